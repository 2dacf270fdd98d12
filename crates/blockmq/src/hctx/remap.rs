//! Remapping: the requests of a pass that go to the device below as they are, without a tag.

use std::{iter, ptr};

use corewise_sync::panics::caught;

use crate::request::Op;
use crate::request::error::{IoError, IoErrorKind};
use crate::state::backlog::Backlog;
use crate::state::core::{Core, Hctx};
use crate::state::driver::{BlockDevice, Remap};
use crate::state::pending::{Pending, Verdict};
use crate::state::request::Request;
use crate::stats::RunnerStats;

/// Asks the driver for the place of the next request on another device. `None`: the driver gets
/// the request, or its panic has failed the request, which counts as sent.
fn next_place<'a>(
    core: &'a Core,
    backlog: &mut Backlog<Box<Pending>>,
    sent: &mut u32,
) -> Option<Remap<'a>> {
    let rq = backlog.first()?.rq();
    if matches!(rq.op(), Op::Flush | Op::Extents) || rq.is_merged() {
        return None;
    }
    let place = caught(|| core.driver.remap(rq));
    if place.is_none() {
        fail(core, backlog.next()?);
        *sent += 1;
    }
    place?
}

/// Returns true if both are the same device. Their tables count, too: a device and its first field
/// have one address.
fn is_same(one: &dyn BlockDevice, other: &dyn BlockDevice) -> bool {
    ptr::eq(one, other)
}

/// Fails a request for which the driver panicked.
#[cold]
fn fail(core: &Core, mut pending: Box<Pending>) {
    tracing::error!(
        queue = %core.name, driver = core.kind,
        "the driver panicked while it looked for the place of a request"
    );
    let why = "the driver panicked while it looked for the place of the request";
    pending.leave_for_below();
    pending.verdict = Some(Verdict::Ended(Err(IoError::with(IoErrorKind::Gone, why))));
    pending.settle();
}

impl Hctx {
    /// Sends the next requests to the device below, as long as the driver names the same device,
    /// `most` of them at most, and as long as `may_go` says. Returns how many were sent, or have
    /// failed by a panic of the driver.
    pub(super) fn send_below(
        &self,
        core: &Core,
        backlog: &mut Backlog<Box<Pending>>,
        most: u32,
        may_go: impl Fn() -> bool,
    ) -> u32 {
        let mut sent = 0;
        let place = next_place(core, backlog, &mut sent);
        let Some(Remap { device, offset }) = place else { return sent };
        let Some(first) = backlog.next() else { return sent };
        sent += 1;
        // Counted before it can complete, as `dispatched`.
        RunnerStats::add(&self.runner_stats.remapped, 1);
        let first = Request::remapped(first, offset);
        let is_done = if backlog.is_empty() {
            caught(|| device.submit(first))
        } else {
            let mut first = Some(first);
            let mut batch = iter::from_fn(|| {
                if let Some(first) = first.take() {
                    return Some(first);
                }
                if sent == most || !may_go() {
                    return None;
                }
                let place = next_place(core, backlog, &mut sent)?;
                if !is_same(place.device, device) {
                    return None;
                }
                let next = backlog.next()?;
                sent += 1;
                RunnerStats::add(&self.runner_stats.remapped, 1);
                Some(Request::remapped(next, place.offset))
            });
            caught(|| device.submit_batch(&mut batch))
        };
        if is_done.is_none() {
            // The unwinding dropped the request, which completed it.
            tracing::error!(
                queue = %core.name, below = device.name(),
                "the device below panicked while it took a request"
            );
        }
        sent
    }
}
