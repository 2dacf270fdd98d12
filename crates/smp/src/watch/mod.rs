//! The watchdog: who waits too long for a call is told why. See `README.md` beside this file.

#[allow(unreachable_pub, reason = "the models reach it")]
pub(crate) mod alert;
mod look;
mod stall;

use std::task::{Context, Poll};

use crate::cells::Cell;
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
    if let Some((watch, patience)) = cell.watch().zip(cell.patience()) {
        let mut sleeps = None;
        let spin = || {
            sleeps = patience.spin(cell.signal(), on_target);
            sleeps.is_none()
        };
        // SAFETY: the caller's promise.
        unsafe {
            let first = policy::first_look(watch.limit());
            if !cell.signal().wait_after(spin, Some(first)) {
                watch.wait_on(cell, first);
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
        if let Some(watch) = cell.watch() {
            if watch.limit().is_some() {
                watch.awaited(cell);
            }
        }
    }
    poll
}

mod watching {
    use std::collections::VecDeque;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::{Arc, Weak};
    use std::time::Duration;

    use corewise_sync::atomic::{AtomicBool, Ordering};
    use corewise_sync::thread::{self, Builder, JoinHandle};
    use corewise_sync::time::Stamp;
    use corewise_sync::{Mutex, Parker, Unparker, context, panics};
    use corewise_topology::{CpuId, CpuSet, pin_current_thread};

    use super::alert::Alert;
    use super::look::{self, Lookout, any_awaited, report_on};
    use super::stall::{CallStall, Progress, Waiter};
    use crate::cells::{Cell, Outstanding, Pools};
    use crate::policy;
    use crate::priority::{self, Priority};
    use crate::target::Target;

    /// What is called with each report.
    pub(crate) type OnStall = dyn Fn(&CallStall) + Send + Sync;

    /// So many of the last reports are kept for the dump.
    const KEPT: usize = 16;

    /// The watch over one handle's calls. The cells' pools keep it, so it outlives every wait.
    pub(crate) struct Watch {
        /// I: a wait that takes longer is reported; `None`: none is.
        limit: Option<Duration>,
        /// I: what is called with each report.
        on_stall: Option<Arc<OnStall>>,
        /// I: in CPU order.
        targets: Box<[Arc<Target>]>,
        /// I: what the thread looks at. Weak: the pools keep the watch.
        pools: Weak<Pools>,
        alert: Alert,
        /// I: wakes the thread.
        unparker: Unparker,
        /// A: the thread is to end. Relaxed: the token that is left after it orders.
        stop: AtomicBool,
        /// L: is the lock; guards the thread's start and end.
        thread: Mutex<Thread>,
        /// L: is the lock; guards the last reports.
        kept: Mutex<VecDeque<CallStall>>,
    }

    /// The thread that watches futures' waits.
    enum Thread {
        /// Not needed so far.
        Unborn(Parker),
        Runs(JoinHandle<()>),
        Stopped,
    }

    impl Watch {
        pub(crate) fn new(
            limit: Option<Duration>,
            on_stall: Option<Arc<OnStall>>,
            targets: Box<[Arc<Target>]>,
            pools: Weak<Pools>,
        ) -> Arc<Watch> {
            let parker = Parker::new();
            Arc::new(Watch {
                limit,
                on_stall,
                targets,
                pools,
                alert: Alert::new(),
                unparker: parker.unparker(),
                stop: AtomicBool::new(false),
                thread: Mutex::new(Thread::Unborn(parker)),
                kept: Mutex::new(VecDeque::new()),
            })
        }

        #[inline]
        pub(crate) fn limit(&self) -> Option<Duration> {
            self.limit
        }

        pub(super) fn target(&self, cpu: CpuId) -> Option<&Target> {
            let position = self.targets.binary_search_by_key(&cpu, |target| target.cpu).ok()?;
            Some(&self.targets[position])
        }

        /// How far a call has come.
        pub(crate) fn progress(&self, cell: &Cell, call: &Outstanding) -> Progress {
            let target = self.target(call.target);
            look::progress(cell, call, target.and_then(|target| target.stats.running()))
        }

        /// The last reports, the oldest first.
        pub(crate) fn reports(&self) -> Vec<CallStall> {
            self.kept.lock().iter().cloned().collect()
        }

        /// A thread has waited for so long: wakes each target that hasn't seen its call, and waits on; reports where it gets
        /// longer than the limit says.
        ///
        /// # Safety
        /// As [`Signal::wait`](corewise_sync::Signal::wait).
        #[cold]
        #[track_caller]
        pub(super) unsafe fn wait_on(&self, cell: &Cell, so_far: Duration) {
            cell.diagnosis.forsaken();
            look::wake_again(self, cell);
            // SAFETY: the caller's promise.
            let ended = unsafe { cell.signal().wait_on(self.limit.map(|limit| limit - so_far)) };
            // Without a limit it waits until it has ended.
            let Some(limit) = self.limit.filter(|_| !ended) else { return };
            let began = Stamp::precise();
            let mut told = 0;
            loop {
                let waited = limit + Stamp::precise().since(began);
                if let Some(report) = report_on(self, cell, Waiter::Thread, waited) {
                    self.tell(report);
                }
                told += 1;
                let waited = limit + Stamp::precise().since(began);
                let next = policy::next_report(limit, told).saturating_sub(waited);
                // SAFETY: the caller's promise.
                if unsafe { cell.signal().wait_on(Some(next)) } {
                    return;
                }
            }
        }

        /// Somebody begins to await the call, or does still: steps Publish and those that follow.
        pub(super) fn awaited(self: &Arc<Self>, cell: &Cell) {
            // Publish.
            if cell.diagnosis.awaited() && self.alert.raise() {
                self.call();
            }
        }

        /// Calls the thread, or starts it.
        #[cold]
        fn call(self: &Arc<Self>) {
            let mut thread = self.thread.lock();
            let parker = match std::mem::replace(&mut *thread, Thread::Stopped) {
                Thread::Unborn(parker) => parker,
                there => {
                    *thread = there;
                    drop(thread);
                    return self.unparker.unpark();
                }
            };
            // No handle is left, or its last drop is under way.
            let Some(pools) = self.pools.upgrade() else { return };
            let watch = Arc::clone(self);
            let seat = Arc::new(Mutex::new(Some(parker)));
            let its = Arc::clone(&seat);
            let started = Builder::new().name("cw-call-watch".into()).spawn(move || {
                let parker = its.lock().take();
                watch.run(&pools, &parker.expect("it is put there before, and taken here"));
            });
            match started {
                Ok(handle) => *thread = Thread::Runs(handle),
                Err(error) => {
                    tracing::debug!(%error, "cannot start the thread that reports late calls of \
                                             futures");
                    if let Some(parker) = seat.lock().take() {
                        *thread = Thread::Unborn(parker);
                    }
                    self.alert.give_up();
                }
            }
        }

        /// The thread's body.
        fn run(&self, pools: &Pools, parker: &Parker) {
            // The thread that polled first may be pinned, and may be urgent.
            priority::apply(Priority::Plain);
            if let Err(error) = pin_current_thread(&CpuSet::full(1024)) {
                tracing::debug!(%error, "the watch keeps the CPU affinity of the thread that \
                                         started it");
            }
            let Some(limit) = self.limit else { return };
            let mut lookout = Lookout::new(limit);
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

        /// Ends the thread. Waits for that, unless it is called in an atomic section, or by the thread itself
        /// (a callback that had the last handle).
        pub(crate) fn stop(&self) {
            self.stop.store(true, Ordering::Relaxed);
            let thread = std::mem::replace(&mut *self.thread.lock(), Thread::Stopped);
            let Thread::Runs(handle) = thread else { return };
            self.unparker.unpark();
            if handle.thread().id() != thread::current().id() && !context::in_atomic_section() {
                let _ = context::blocking("Smp::drop", || handle.join());
            }
        }
    }
}
