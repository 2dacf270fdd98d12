//! Handing a started request on to a device below: what the drivers with one child have in common.

use crate::device::BlockDevice;
use crate::driver::Started;
use crate::request::Whole;

/// Submits `rq` to `device`, at `offset` there; it completes as it does there, on that thread. Any
/// context.
pub(super) fn pass_on(device: &dyn BlockDevice, rq: Started, offset: u64) {
    let len = rq.len();
    device.submit(Whole::new(rq).part(0, len, offset));
}
