//! The watchdog: who waits too long for a call is told why. See `README.md` beside this file.

#[allow(unreachable_pub, reason = "the models reach it")]
pub(crate) mod alert;
mod look;
mod stall;
mod watching;

use std::task::{Context, Poll};
use std::time::Duration;

use corewise_sync::time::Stamp;

use crate::cells::{Cell, Watched};
use crate::policy;
use crate::spin;

pub use stall::{CallStall, Missing, Progress, ThreadState, Waiter};
pub(crate) use watching::{OnStall, Watch};

/// Waits for a call, as [`Signal::wait`](corewise_sync::Signal::wait) does, and reports where that takes
/// long. `on_target`: the thread is on the CPU that it waits for.
///
/// # Safety
/// As [`Signal::wait`](corewise_sync::Signal::wait).
#[inline]
#[track_caller]
pub(crate) unsafe fn wait(cell: &Cell, on_target: bool) {
    if let Some((watched, patience)) = cell.watched().zip(cell.patience()) {
        let mut sleeps = None;
        let spin = || {
            sleeps = patience.spin(cell.signal(), on_target);
            sleeps.is_none()
        };
        // SAFETY: the caller's promise.
        unsafe {
            let first = policy::first_look(watched.limit);
            if !cell.signal().wait_after(spin, Some(first)) {
                wait_on(watched, cell, first);
            }
        }
        if let Some(sleeps) = sleeps {
            patience.slept(&sleeps, on_target);
        }
        return;
    }
    let looks = spin::policy::brief_looks(on_target);
    // SAFETY: the caller's promise.
    unsafe { cell.signal().wait(looks) };
}

/// A thread has waited for so long: wakes each target that hasn't seen its call, and waits on; reports where it gets
/// longer than the limit says.
///
/// # Safety
/// As [`Signal::wait`](corewise_sync::Signal::wait).
#[cold]
#[track_caller]
unsafe fn wait_on(watched: &Watched, cell: &Cell, so_far: Duration) {
    cell.diagnosis.forsaken();
    watched.watch.wake_again(cell);
    // SAFETY: the caller's promise.
    let ended = unsafe { cell.signal().wait_on(watched.limit.map(|limit| limit - so_far)) };
    // Without a limit it waits until it has ended.
    let Some(limit) = watched.limit.filter(|_| !ended) else { return };
    let began = Stamp::precise();
    let mut told = 0;
    loop {
        watched.watch.report_late(cell, limit + Stamp::precise().since(began));
        told += 1;
        let waited = limit + Stamp::precise().since(began);
        let next = policy::next_report(limit, told).saturating_sub(waited);
        // SAFETY: the caller's promise.
        if unsafe { cell.signal().wait_on(Some(next)) } {
            return;
        }
    }
}

/// Polls for a call, as [`Signal::poll_complete`](corewise_sync::Signal::poll_complete) does; from the first time
/// that it is pending the wait is watched.
///
/// # Safety
/// As [`Signal::poll_complete`](corewise_sync::Signal::poll_complete).
#[inline]
pub(crate) unsafe fn poll(cell: &Cell, cx: &mut Context<'_>) -> Poll<()> {
    // SAFETY: the caller's promise.
    let poll = unsafe { cell.signal().poll_complete(cx) };
    if poll.is_pending() {
        if let Some(watched) = cell.watched().filter(|watched| watched.limit.is_some()) {
            watched.watch.awaited(cell);
        }
    }
    poll
}
