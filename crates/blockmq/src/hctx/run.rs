//! Who runs a hardware queue: a visitor, a worker, or a test by hand.

use std::sync::Arc;

use corewise_sync::Parker;
use corewise_sync::atomic::{AtomicBool, Ordering};
use corewise_sync::context;
use corewise_topology::current_cpu;
use corewise_workqueue::{Work, Workqueue};

use super::Hctx;
use crate::policy::{BUDGET_VISITOR, BUDGET_WORKER, BUSY_PAUSE};
use crate::runner::{self, Ran, Source};
use crate::stats::bump;

/// How a hardware queue is run by nobody in particular.
pub(super) enum Background {
    /// By a worker.
    Workers { wq: Workqueue, work: Work },
    /// By a test that calls `step`; every other run only leaves its wish here.
    ByHand {
        /// A: somebody wants a run. Release on set, Acquire on take.
        wanted: AtomicBool,
    },
}

impl Hctx {
    /// Runs the queue on this thread, if there is need and nobody else does. `published`: the
    /// caller knows that something is pending. Never blocks, any context.
    pub(crate) fn visit(self: &Arc<Self>, slot: usize, published: bool) {
        match &self.background {
            Background::Workers { .. } => {
                let ran = self.run(published, BUDGET_VISITOR);
                self.account(slot, ran);
            }
            Background::ByHand { wanted } => wanted.store(true, Ordering::Release),
        }
    }

    /// Has the queue run by a worker, soon. Never blocks, any context.
    pub(crate) fn run_async(&self) {
        match &self.background {
            Background::Workers { wq, work } => {
                // Here, if here is one of ours; else each of ours in turn, so that the first CPU
                // doesn't do everybody's work. False means that it is queued already, and will run
                // after this moment.
                let _ = match current_cpu() {
                    Some(cpu) if self.cpus.contains(&cpu) => wq.queue(work),
                    _ => {
                        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
                        wq.queue_on(self.cpus[turn % self.cpus.len()], work)
                    }
                };
            }
            Background::ByHand { wanted } => wanted.store(true, Ordering::Release),
        }
    }

    pub(super) fn run_as_worker(self: &Arc<Self>) {
        let ran = self.run(false, BUDGET_WORKER);
        if let Ran::Busy { .. } = ran {
            // Nobody will tell us, so we have to ask again, though not with a core of our own.
            // Whoever submits meanwhile asks too, and so does a completion.
            let pause = || Parker::new().park_timeout(BUSY_PAUSE);
            context::blocking("a busy block driver", pause);
        }
        self.account(0, ran);
    }

    /// One bounded step, by hand: `None` where nobody wanted a run since the last one.
    pub(crate) fn step(self: &Arc<Self>) -> Option<Ran> {
        if let Background::ByHand { wanted } = &self.background
            && !wanted.swap(false, Ordering::Acquire)
        {
            return None;
        }
        let ran = self.run(false, 1);
        self.account(0, ran);
        Some(ran)
    }

    fn run(self: &Arc<Self>, published: bool, budget: u32) -> Ran {
        runner::run(&self.core.gate, &self.state, &self.grace, self, published, budget)
    }

    fn account(&self, slot: usize, ran: Ran) {
        let stats = self.visitor_stats.of(slot);
        match ran {
            Ran::Refused => bump(&stats.refused),
            Ran::Joined => bump(&stats.joined),
            Ran::Done { passes } | Ran::HandOver { passes } | Ran::Busy { passes } => {
                bump(&stats.runs);
                if passes > 1 {
                    stats.reruns.fetch_add(u64::from(passes - 1), Ordering::Relaxed);
                }
            }
        }
        if let Ran::HandOver { .. } | Ran::Busy { .. } = ran {
            bump(&stats.handed_over);
            self.run_async();
        }
    }

    /// The part of an unquiesce or start that this hardware queue owes: OpenFence or StartFence has
    /// been issued by the caller.
    pub(crate) fn run_if_pending(self: &Arc<Self>) {
        if self.has_pending() {
            bump(&self.visitor_stats.of(0).after_unquiesce);
            self.run_async();
        }
    }
}
