//! What the drivers that stand on other devices have in common: handing a request on, and looking for completions.

use std::sync::Arc;

use crate::device::BlockDevice;
use crate::driver::Started;
use crate::request::Whole;

/// Submits `rq` to `device`, at `offset` there; it completes as it does there, on that thread. Any
/// context.
pub(super) fn pass_on(device: &dyn BlockDevice, rq: Started, offset: u64) {
    let len = rq.len();
    device.submit(Whole::new(rq).part(0, len, offset));
}

/// Polls all of them; `None` where none can be polled.
pub(super) fn poll<'a>(
    devices: impl IntoIterator<Item = &'a Arc<dyn BlockDevice>>,
) -> Option<usize> {
    devices.into_iter().filter_map(|device| device.poll()).reduce(|all, found| all + found)
}
