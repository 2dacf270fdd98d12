//! Dispatch: the runner's pass over what is pending, which feeds the driver.

use std::collections::VecDeque;

use corewise_sync::atomic::Ordering;
use corewise_sync::context::AtomicSection;

use super::Hctx;
use crate::driver::{Dispatch, Started};
use crate::pending::Pending;
use crate::policy::PASS_QUOTA;
use crate::queue::Core;
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

/// A hardware queue and the queue that it belongs to: what the run protocol runs.
pub(super) struct Feed<'a> {
    pub(super) core: &'a Core,
    pub(super) hctx: &'a Hctx,
}

impl Source for Feed<'_> {
    fn has_pending(&self) -> bool {
        self.hctx.has_pending()
    }

    fn pass(&self, halted: &dyn Fn() -> bool) -> Pass {
        let Feed { core, hctx } = self;
        let mut started = 0;
        let pass = hctx.list.with_mut(|list| {
            // SAFETY: only the holder of RUNNING calls this, and it alone touches `list` until it
            // ends. What is called below may come back here, but then finds RUNNING set.
            let list = unsafe { &mut *list };
            let pass = hctx.start_some(core, list, halted, &mut started);
            hctx.publish(list);
            pass
        });
        if started != 0 {
            let _section =
                (!core.may_block).then(|| AtomicSection::enter("commit of a block dispatch"));
            if caught(|| core.driver.commit(hctx.index)).is_none() {
                tracing::error!(queue = %core.name, "the driver panicked in commit");
            }
        }
        pass
    }
}

impl Hctx {
    fn start_some(
        &self,
        core: &Core,
        list: &mut VecDeque<Box<Pending>>,
        halted: &dyn Fn() -> bool,
        started: &mut u64,
    ) -> Pass {
        // A driver that may block is run by workers only, and says where it blocks.
        let _section =
            (!core.may_block).then(|| AtomicSection::enter("dispatch of block requests"));
        loop {
            if list.is_empty() {
                core.software.collect(&self.ctxs, list);
            }
            if list.is_empty() {
                return Pass::Idle;
            }
            if core.is_dead() {
                list.drain(..).for_each(Pending::abandon);
                continue;
            }
            if *started == u64::from(PASS_QUOTA) || halted() {
                return Pass::More;
            }
            if self.activity.is_inactive() && self.hand_on(core, list) {
                continue;
            }
            let Some(tag) = self.tag_for_next(list) else { return Pass::Idle };
            if self.activity.is_inactive_behind_tag() && self.hand_on(core, list) {
                self.tags.put_back(tag);
                self.activity.tag_freed();
                continue;
            }
            let Some(mut pending) = list.pop_front() else { return Pass::Idle };
            pending.tag = tag;
            let rq = Started::new(pending);
            let driver = &core.driver;
            // Counted before it can complete, so that who has drained the queue sees it counted.
            RunnerStats::add(&self.runner_stats.dispatched, 1);
            match caught(|| driver.queue_request(self.index, rq)) {
                Some(Dispatch::Started) => *started += 1,
                Some(Dispatch::Busy(rq)) => {
                    RunnerStats::add(&self.runner_stats.busy, 1);
                    RunnerStats::add(&self.runner_stats.dispatched, 1u64.wrapping_neg());
                    let pending = rq.into_pending();
                    let tag = pending.tag;
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
                        queue = %core.name, driver = driver.kind(),
                        "the driver panicked while it started a request"
                    );
                }
            }
        }
    }
}
