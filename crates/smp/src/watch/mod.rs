//! The watchdog, which explains a wait for a call that takes too long. The file has the waits, the
//! watch with the thread that watches futures, and the word that tells this thread whether to
//! check. See `README.md` beside this file.

use std::collections::VecDeque;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use corewise_sync::atomic::{AtomicBool, AtomicU32, Ordering};
use corewise_sync::fence::{FencePolicy, FullFence};
use corewise_sync::thread::{self, Builder, JoinHandle};
use corewise_sync::time::Stamp;
use corewise_sync::{Mutex, Parker, Unparker, context, panics};
use corewise_topology::{CpuId, CpuSet, pin_current_thread};

use crate::cells::{CallWatch, Cell, Outstanding, Pools, Watched};
use crate::priority::{self, Priority};
use crate::spin;
use crate::target::Target;

mod stall;

use crate::watch::stall::{ReportHistory, any_awaited, report_on};
pub use stall::{CallStall, MissingAnswer, Progress, ThreadState, Waiter};

/// Time after which a wait is reported by default: the same as the kernel's.
pub(crate) const STALL_AFTER: Duration = Duration::from_secs(5);

/// Returns the time after which a thread that waits checks for the first time whether its target
/// sleeps. The thread that was to wake the target may have been preempted before it did. So long
/// that hardly any wait gets there.
pub(crate) fn first_look(limit: Option<Duration>) -> Duration {
    const FIRST_LOOK: Duration = Duration::from_millis(10);
    limit.map_or(FIRST_LOOK, |limit| limit.min(FIRST_LOOK))
}

/// Returns the time after which a wait is reported again that was reported `told` times: at the
/// limit, at twice that, at four times that.
pub(crate) fn next_report(limit: Duration, told: u32) -> Duration {
    // A limit of zero would have no end of reports.
    let limit = limit.max(Duration::from_millis(1));
    limit.saturating_mul(1_u32.checked_shl(told).unwrap_or(u32::MAX))
}

/// Waits for a call, as [`Signal::wait`](corewise_sync::Signal::wait) does, and reports if that
/// takes long. `on_target`: the thread is on the CPU that it waits for.
///
/// # Safety
/// The same as for [`Signal::wait`](corewise_sync::Signal::wait).
#[inline]
#[track_caller]
pub(crate) unsafe fn wait(cell: &Cell, on_target: bool) {
    if let Some((watched, waiter_habit)) = cell.watched().zip(cell.waiter_habit()) {
        let mut sleeps = None;
        let spin = || {
            sleeps = waiter_habit.spin(cell.signal(), on_target);
            sleeps.is_none()
        };
        // SAFETY: the caller's promise.
        unsafe {
            let first = first_look(watched.limit);
            if !cell.signal().wait_after(spin, Some(first)) {
                wait_on(watched, cell, first);
            }
        }
        if let Some(sleeps) = sleeps {
            waiter_habit.slept(&sleeps, on_target);
        }
        return;
    }
    let looks = spin::brief_looks(on_target);
    // SAFETY: the caller's promise.
    unsafe { cell.signal().wait(looks) };
}

/// Waits on for a thread that has waited for that long: wakes each target that hasn't seen its
/// call, and reports if the wait gets longer than the limit.
///
/// # Safety
/// The same as for [`Signal::wait`](corewise_sync::Signal::wait).
#[cold]
#[track_caller]
unsafe fn wait_on(watched: &Watched, cell: &Cell, so_far: Duration) {
    cell.diagnosis.forsaken();
    watched.watch.wake_again(cell);
    // SAFETY: the caller's promise.
    let ended = unsafe { cell.signal().wait_on(watched.limit.map(|limit| limit - so_far)) };
    // Without a limit it waits until the call has ended.
    let Some(limit) = watched.limit.filter(|_| !ended) else { return };
    let began = Stamp::precise();
    let mut told = 0;
    loop {
        watched.watch.report_late(cell, limit + Stamp::precise().since(began));
        told += 1;
        let waited = limit + Stamp::precise().since(began);
        let next = next_report(limit, told).saturating_sub(waited);
        // SAFETY: the caller's promise.
        if unsafe { cell.signal().wait_on(Some(next)) } {
            return;
        }
    }
}

/// Polls for a call, as [`Signal::poll_complete`](corewise_sync::Signal::poll_complete) does; from
/// the first time that it is pending the wait is watched.
///
/// # Safety
/// The same as for [`Signal::poll_complete`](corewise_sync::Signal::poll_complete).
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

/// The thread sleeps until it is called.
const REST: u32 = 0;
/// The thread checks from time to time, or was called to.
const RAISED: u32 = 1;

/// The word that tells the thread whether to check. `F` is left out in the model that has to fail.
#[allow(unreachable_pub, reason = "the models reach it")]
pub struct Alert<F = FullFence> {
    /// A: `REST` or `RAISED`.
    state: AtomicU32,
    fence: PhantomData<F>,
}

#[allow(unreachable_pub, reason = "the models reach it")]
impl<F: FencePolicy> Alert<F> {
    /// Creates the word of a thread that rests.
    #[allow(clippy::new_without_default, reason = "for the crate and its models alone")]
    pub fn new() -> Self {
        Alert { state: AtomicU32::new(REST), fence: PhantomData }
    }

    /// Raises the alert; the caller has Published that it waits. Returns true if the thread rests,
    /// and the caller is the one to call it.
    #[must_use = "the thread sleeps until it is called"]
    pub fn raise(&self) -> bool {
        // RaiseFence, between Publish and ReadAlert; partner: RestFence.
        F::full();
        // ReadAlert. Relaxed, as all here: the fences order, and what is published are atomics.
        self.state.load(Ordering::Relaxed) == REST
            // Raise: of several, one calls.
            && self.state.swap(RAISED, Ordering::Relaxed) == REST
    }

    /// Lowers the alert; the thread has found no waiter. Returns true if there is still none, and
    /// it may sleep until it is called; `any` checks once more.
    #[must_use = "false: the thread must look again"]
    pub fn lower(&self, any: impl FnOnce() -> bool) -> bool {
        // Lower.
        self.state.store(REST, Ordering::Relaxed);
        // RestFence, between Lower and LookAgain; partner: RaiseFence.
        F::full();
        // LookAgain.
        if !any() {
            return true;
        }
        // A thread that raised it meanwhile has left a token, which makes the next sleep short.
        // That is all.
        self.state.store(RAISED, Ordering::Relaxed);
        false
    }

    /// Gives up a raise, as the thread could not be called: the next waiter tries again.
    pub(super) fn give_up(&self) {
        self.state.store(REST, Ordering::Relaxed);
    }
}

/// The callback that gets each report.
pub(crate) type OnStall = dyn Fn(&CallStall) + Send + Sync;

/// Number of last reports that are kept for the dump.
const KEPT: usize = 16;

/// The watch over one handle's calls. The cells' pools keep it, so it outlives every wait.
pub(crate) struct Watch {
    /// I: itself, for its thread.
    this: Weak<Watch>,
    /// I: the time after which a wait is reported; `None`: none is.
    limit: Option<Duration>,
    /// I: the callback that gets each report.
    on_stall: Option<Arc<OnStall>>,
    /// I: in CPU order.
    targets: Box<[Arc<Target>]>,
    /// I: the pools that the thread checks. Weak: the pools keep the watch.
    pools: Weak<Pools>,
    alert: Alert,
    /// I: wakes the thread.
    unparker: Unparker,
    /// A: true if the thread is to end. Relaxed: the token that is left after it orders.
    stop: AtomicBool,
    /// L: is the lock; guards the thread's start and end.
    thread: Mutex<WatchThread>,
    /// L: is the lock; guards the last reports.
    kept: Mutex<VecDeque<CallStall>>,
}

/// The thread that watches futures' waits.
enum WatchThread {
    /// The thread was not needed so far.
    Unborn(Parker),
    Runs(JoinHandle<()>),
    Stopped,
}

impl Watch {
    /// Creates the watch over the calls to these targets, and the pools of their cells, which keep
    /// it: one for each target's CPU.
    pub(crate) fn new(
        limit: Option<Duration>,
        on_stall: Option<Arc<OnStall>>,
        targets: Box<[Arc<Target>]>,
    ) -> (Arc<Watch>, Arc<Pools>) {
        let mut made = None;
        let pools = Arc::new_cyclic(|pools| {
            let (parker, cpus) = (Parker::new(), targets.len());
            let watch = Arc::new_cyclic(|this| Watch {
                this: Weak::clone(this),
                limit,
                on_stall,
                targets,
                pools: Weak::clone(pools),
                alert: Alert::new(),
                unparker: parker.unparker(),
                stop: AtomicBool::new(false),
                thread: Mutex::new(WatchThread::Unborn(parker)),
                kept: Mutex::new(VecDeque::new()),
            });
            let watched = Watched { limit, watch: Arc::clone(&watch) as Arc<dyn CallWatch> };
            made = Some(watch);
            Pools::watched(cpus, &watched)
        });
        (made.expect("it is made with the pools"), pools)
    }

    pub(super) fn target(&self, cpu: CpuId) -> Option<&Target> {
        let position = self.targets.binary_search_by_key(&cpu, |target| target.cpu).ok()?;
        Some(&self.targets[position])
    }

    /// Returns how far a call has come.
    pub(crate) fn progress(&self, cell: &Cell, call: &Outstanding) -> Progress {
        let target = self.target(call.target);
        stall::progress(cell, call, target.and_then(|target| target.stats.running()))
    }

    /// Returns the last reports, the oldest first.
    pub(crate) fn reports(&self) -> Vec<CallStall> {
        self.kept.lock().iter().cloned().collect()
    }

    /// Calls the thread, or starts it.
    #[cold]
    fn call(&self) {
        let mut thread = self.thread.lock();
        let parker = match std::mem::replace(&mut *thread, WatchThread::Stopped) {
            WatchThread::Unborn(parker) => parker,
            there => {
                *thread = there;
                drop(thread);
                return self.unparker.unpark();
            }
        };
        // No handle is left, or its last drop is under way.
        let Some((watch, pools)) = self.this.upgrade().zip(self.pools.upgrade()) else { return };
        let shared = Arc::new(Mutex::new(Some(parker)));
        let its = Arc::clone(&shared);
        let started = Builder::new().name("cw-call-watch".into()).spawn(move || {
            let parker = its.lock().take();
            watch.run(&pools, &parker.expect("it is put there before, and taken here"));
        });
        match started {
            Ok(handle) => *thread = WatchThread::Runs(handle),
            Err(error) => {
                tracing::debug!(%error, "cannot start the thread that reports late calls of \
                                         futures");
                if let Some(parker) = shared.lock().take() {
                    *thread = WatchThread::Unborn(parker);
                }
                self.alert.give_up();
            }
        }
    }

    /// Runs the thread.
    fn run(&self, pools: &Pools, parker: &Parker) {
        // The thread that polled first may be pinned, and may be urgent.
        priority::apply(Priority::Plain);
        if let Err(error) = pin_current_thread(&CpuSet::full(1024)) {
            tracing::debug!(%error, "the watch keeps the CPU affinity of the thread that \
                                     started it");
        }
        let Some(limit) = self.limit else { return };
        let mut lookout = ReportHistory::new(limit);
        while !self.stop.load(Ordering::Relaxed) {
            let (reports, next) = lookout.look(self, pools);
            for report in reports {
                self.tell(report);
            }
            match next {
                Some(next) => {
                    parker.park_timeout(next);
                }
                None => {
                    if self.alert.lower(|| any_awaited(pools)) {
                        parker.park();
                    }
                }
            }
        }
    }

    /// Logs a report, keeps it, and calls back.
    fn tell(&self, report: CallStall) {
        {
            let mut kept = self.kept.lock();
            if kept.len() == KEPT {
                kept.pop_front();
            }
            kept.push_back(report.clone());
        }
        // Subscribers and callbacks are user code: what waits goes on waiting.
        let told = catch_unwind(AssertUnwindSafe(|| {
            tracing::warn!("a cross-CPU call is late: {report}");
            if let Some(on_stall) = &self.on_stall {
                on_stall(&report);
            }
        }));
        told.unwrap_or_else(panics::discard);
    }

    /// Ends the thread. Waits for that, unless it is called in an atomic section, or by the thread
    /// itself (a callback that had the last handle).
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
        let thread = std::mem::replace(&mut *self.thread.lock(), WatchThread::Stopped);
        let WatchThread::Runs(handle) = thread else { return };
        self.unparker.unpark();
        if handle.thread().id() != thread::current().id() && !context::in_atomic_section() {
            let _ = context::blocking("Smp::drop", || handle.join());
        }
    }
}

impl CallWatch for Watch {
    fn wake_again(&self, cell: &Cell) {
        stall::wake_again(self, cell);
    }

    fn report_late(&self, cell: &Cell, waited: Duration) {
        if let Some(report) = report_on(self, cell, Waiter::Thread, waited) {
            self.tell(report);
        }
    }

    fn awaited(&self, cell: &Cell) {
        // Publish.
        if cell.diagnosis.awaited() && self.alert.raise() {
            self.call();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_wait_is_reported_at_the_limit_and_then_at_doubling_intervals() {
        let limit = Duration::from_secs(5);
        let times: Vec<u64> = (0..4).map(|told| next_report(limit, told).as_secs()).collect();
        assert_eq!(times, [5, 10, 20, 40]);
        assert!(next_report(limit, 31) <= next_report(limit, 32));
        assert!(next_report(limit, u32::MAX) > Duration::from_secs(1 << 32));
        assert!(next_report(Duration::ZERO, 0) > Duration::ZERO);
    }
}
