//! Handing a started request on to a device below: what the drivers with one child have in common.

use crate::device::BlockDevice;
use crate::driver::Started;
use crate::request::{Op, Payload, Request};

/// Submits `rq` to `device`, at `offset` there; it completes as it does there, on that thread. Its
/// bytes travel along and come back; nothing is copied. Any context.
pub(super) fn pass_on(device: &dyn BlockDevice, mut rq: Started, offset: u64) {
    let (len, flags) = (rq.len(), rq.flags());
    let below = match (rq.op(), rq.take_payload()) {
        (Op::Read, Payload::Read(buffer)) => Request::read_into(offset, len as usize, buffer),
        // A read without a buffer can't be: it then fails below, and says so.
        (Op::Read, _) => Request::read(offset, len as usize),
        (Op::Write, Payload::Write(data)) => Request::write(offset, data),
        (Op::Write, _) => Request::write(offset, Default::default()),
        (Op::Flush, _) => Request::flush(),
        (Op::Discard, _) => Request::discard(offset, len),
        (Op::WriteZeroes, _) => Request::write_zeroes(offset, len),
    };
    device.submit(below.with_flags(flags).on_complete(move |done| {
        let mut rq = rq;
        rq.set_payload(done.payload);
        rq.complete(done.result);
    }));
}
