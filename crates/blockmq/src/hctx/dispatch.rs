//! Dispatch: the runner's pass over what is pending, which feeds the driver.

use std::collections::VecDeque;
use std::sync::Arc;

use corewise_sync::atomic::Ordering;
use corewise_sync::context::AtomicSection;

use super::{Hctx, Pending};
use crate::driver::{Dispatch, Started};
use crate::policy::PASS_QUOTA;
use crate::request::caught;
use crate::runner::{Pass, Source};
use crate::stats::RunnerStats;

impl Hctx {
    /// Publishes what the runner leaves in the list.
    fn publish(&self, list: &VecDeque<Box<Pending>>) {
        // Relaxed: ordered by the read-modify-write that follows (arm, end, hand_over) and by the
        // fences of the run protocol.
        self.left.store(list.len(), Ordering::Relaxed);
    }

    fn tag_for_next(&self, list: &VecDeque<Box<Pending>>) -> Option<u32> {
        if let Some(tag) = self.tags.alloc() {
            return Some(tag);
        }
        RunnerStats::add(&self.runner_stats.tag_waits, 1);
        // Leave, Mark, Retry: what is left has to be visible before the mark, for the free that
        // takes the mark asks nobody else what is pending.
        self.publish(list);
        let _in_use = self.tags.arm();
        self.tags.alloc()
    }
}

impl Source for Arc<Hctx> {
    fn has_pending(&self) -> bool {
        self.left.load(Ordering::Relaxed) != 0 || self.software.has_pending()
    }

    fn pass(&self, halted: &dyn Fn() -> bool) -> Pass {
        let mut started = 0;
        let pass = self.list.with_mut(|list| {
            // SAFETY: only the holder of RUNNING calls this, and it alone touches `list` until it
            // ends. What is called below may come back here, but then finds RUNNING set.
            let list = unsafe { &mut *list };
            let pass = self.start_some(list, halted, &mut started);
            self.publish(list);
            pass
        });
        if started != 0 {
            let _section = AtomicSection::enter("commit of a block dispatch");
            if caught(|| self.core.driver.commit(self.index)).is_none() {
                tracing::error!(queue = %self.core.name, "the driver panicked in commit");
            }
        }
        pass
    }
}

impl Hctx {
    fn start_some(
        self: &Arc<Self>,
        list: &mut VecDeque<Box<Pending>>,
        halted: &dyn Fn() -> bool,
        started: &mut u64,
    ) -> Pass {
        let _section = AtomicSection::enter("dispatch of block requests");
        loop {
            if list.is_empty() {
                self.software.collect(list);
            }
            if list.is_empty() {
                return Pass::Idle;
            }
            if *started == u64::from(PASS_QUOTA) || halted() {
                return Pass::More;
            }
            let Some(tag) = self.tag_for_next(list) else { return Pass::Idle };
            let Some(pending) = list.pop_front() else { return Pass::Idle };
            let rq = Started::new(pending, Arc::clone(self), tag);
            let driver = &self.core.driver;
            // Counted before it can complete, so that who has drained the queue sees it counted.
            RunnerStats::add(&self.runner_stats.dispatched, 1);
            match caught(|| driver.queue_request(self.index, rq)) {
                Some(Dispatch::Started) => *started += 1,
                Some(Dispatch::Busy(rq)) => {
                    RunnerStats::add(&self.runner_stats.busy, 1);
                    RunnerStats::add(&self.runner_stats.dispatched, 1u64.wrapping_neg());
                    let (pending, tag) = rq.into_parts();
                    list.push_front(pending);
                    self.tags.put_back(tag);
                    self.publish(list);
                    // The next completion runs the queue again, if there is one to come.
                    return if self.tags.arm() == 0 { Pass::Later } else { Pass::Idle };
                }
                None => {
                    // The unwinding dropped the request, which completed it.
                    *started += 1;
                    tracing::error!(
                        queue = %self.core.name, driver = driver.kind(),
                        "the driver panicked while it started a request"
                    );
                }
            }
        }
    }
}
