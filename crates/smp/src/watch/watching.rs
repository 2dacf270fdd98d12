//! The watch itself: what it knows of a handle, and the thread that looks after futures.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};
use std::time::Duration;

use corewise_sync::atomic::{AtomicBool, Ordering};
use corewise_sync::thread::{self, Builder, JoinHandle};
use corewise_sync::{Mutex, Parker, Unparker, context, panics};
use corewise_topology::{CpuId, CpuSet, pin_current_thread};

use super::alert::Alert;
use super::look::{self, Lookout, any_awaited, report_on};
use super::stall::{CallStall, Progress, Waiter};
use crate::cells::{CallWatch, Cell, Outstanding, Pools, Watched};
use crate::priority::{self, Priority};
use crate::target::Target;

/// What is called with each report.
pub(crate) type OnStall = dyn Fn(&CallStall) + Send + Sync;

/// So many of the last reports are kept for the dump.
const KEPT: usize = 16;

/// The watch over one handle's calls. The cells' pools keep it, so it outlives every wait.
pub(crate) struct Watch {
    /// I: itself, for its thread.
    this: Weak<Watch>,
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
    /// The watch over the calls to these targets, and the pools of their cells, which keep it: one for
    /// each target's CPU.
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
                thread: Mutex::new(Thread::Unborn(parker)),
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

    /// How far a call has come.
    pub(crate) fn progress(&self, cell: &Cell, call: &Outstanding) -> Progress {
        let target = self.target(call.target);
        look::progress(cell, call, target.and_then(|target| target.stats.running()))
    }

    /// The last reports, the oldest first.
    pub(crate) fn reports(&self) -> Vec<CallStall> {
        self.kept.lock().iter().cloned().collect()
    }

    /// Calls the thread, or starts it.
    #[cold]
    fn call(&self) {
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
        let Some((watch, pools)) = self.this.upgrade().zip(self.pools.upgrade()) else { return };
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

impl CallWatch for Watch {
    fn wake_again(&self, cell: &Cell) {
        look::wake_again(self, cell);
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
