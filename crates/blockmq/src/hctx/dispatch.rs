//! Dispatch: the runner's pass over what is pending, which feeds the driver.

use std::cell::Cell;
use std::{iter, mem};

use corewise_sync::atomic::Ordering;
use corewise_sync::context::AtomicSection;
use corewise_sync::panics::caught;

use crate::admission::runner::{PassOutcome, Source};
use crate::nest;
use crate::state::backlog::Backlog;
use crate::state::core::{Core, Hctx};
use crate::state::driver::{Dispatch, Started};
use crate::state::pending::Pending;
use crate::stats::RunnerStats;
use crate::tags::TagBatch;

/// Requests started in one pass, between two looks at others that want to run.
const PASS_QUOTA: u32 = 32;

impl Hctx {
    /// Publishes what the runner leaves.
    fn publish(&self, backlog: &Backlog<Box<Pending>>) {
        // Relaxed: ordered by the read-modify-write that follows (a mark, a place in line, end, hand_over) and by
        // the fences of the run protocol.
        self.left.store(backlog.len(), Ordering::Relaxed);
    }

    /// Tags for what is next, `most` of them at most.
    fn tags_for_next(&self, backlog: &Backlog<Box<Pending>>, cpu: usize, most: u32) -> TagBatch {
        let tags = self.tags.take(cpu, most);
        if !tags.is_empty() {
            return tags;
        }
        RunnerStats::add(&self.runner_stats.tag_waits, 1);
        // Leave, then Mark (or LineUp) and Retry: what is left has to be visible before, for the thread that frees a tag and
        // sees that somebody waits asks nobody else what is pending.
        self.publish(backlog);
        self.tags.wait(cpu, most)
    }

    /// Gives tags back that were taken and not used.
    fn return_tags(&self, cpu: usize, tags: TagBatch) {
        if !tags.is_empty() {
            self.tags.put_back(cpu, tags);
        }
    }

    /// At the end of a run: a tag that was waited for, and that this hardware queue can't use now, is for others.
    /// Where something is pending and may go, the giver of the tag is about to run it.
    pub(super) fn decline_tag(&self, core: &Core) {
        if self.tags.has_grant() && (!core.gate.is_open() || !self.has_pending()) {
            self.tags.decline(0);
        }
    }
}

/// A hardware queue and the queue that it belongs to: what the run protocol runs.
pub(super) struct DispatchSource<'a> {
    core: &'a Core,
    hctx: &'a Hctx,
    /// O: it has made a pass.
    ran: Cell<bool>,
}

impl<'a> DispatchSource<'a> {
    pub(super) fn new(core: &'a Core, hctx: &'a Hctx) -> Self {
        Self { core, hctx, ran: Cell::new(false) }
    }
}

impl Source for DispatchSource<'_> {
    fn has_pending(&self) -> bool {
        self.hctx.has_pending()
    }

    fn pass(&self, halted: &dyn Fn() -> bool) -> PassOutcome {
        let DispatchSource { core, hctx, ran } = self;
        let stats = &hctx.runner_stats;
        RunnerStats::add(if ran.replace(true) { &stats.reruns } else { &stats.runs }, 1);
        let pass = nest::pass(*hctx, || hctx.feed_driver(core, halted));
        hctx.with_backlog(|backlog| {
            if hctx.is_hand_empty(backlog) {
                return pass;
            }
            // Submitted behind the last look, perhaps in the commit.
            hctx.collect(core, backlog);
            hctx.publish(backlog);
            if pass == PassOutcome::Idle { PassOutcome::More } else { pass }
        })
    }

    fn put_down(&self) -> bool {
        let mut had = false;
        // SAFETY: only the runner calls this.
        while let Some(pending) = unsafe { self.hctx.hand.pop() } {
            self.core.enqueue(pending);
            had = true;
        }
        had
    }
}

impl Hctx {
    /// For the runner, outside of a pass.
    #[inline]
    fn with_backlog<R>(&self, f: impl FnOnce(&mut Backlog<Box<Pending>>) -> R) -> R {
        // SAFETY: only the holder of RUNNING calls this, and it alone touches the backlog until it
        // ends. A callee of `f` may come back here, but then finds RUNNING set.
        self.backlog.with_mut(|backlog| f(unsafe { &mut *backlog }))
    }

    /// Keep: takes a request of this hardware queue into the runner's hand where this thread is the runner, and in a pass;
    /// else gives it back.
    #[inline]
    pub(crate) fn keep(&self, pending: Box<Pending>) -> Option<Box<Pending>> {
        if !nest::is_in_pass_of(self) {
            return Some(pending);
        }
        // SAFETY: passes are made by the runner, and this thread is in one.
        unsafe { self.hand.push(pending) };
        None
    }

    /// The backlog shows that the caller is the runner.
    fn is_hand_empty(&self, _: &Backlog<Box<Pending>>) -> bool {
        // SAFETY: the caller is the runner.
        unsafe { self.hand.is_empty() }
    }

    /// Moves what lies in the software queues to the backlog, and what the runner holds behind it: what came before
    /// goes before.
    fn collect(&self, core: &Core, backlog: &mut Backlog<Box<Pending>>) {
        core.software.collect(&self.ctxs, backlog);
        if !self.is_hand_empty(backlog) {
            // SAFETY: the backlog is the runner's.
            backlog.extend(iter::from_fn(|| unsafe { self.hand.pop() }));
        }
        RunnerStats::add(&self.runner_stats.merged, backlog.take_merged());
    }

    /// A pass: starts what is pending and may go.
    fn feed_driver(&self, core: &Core, halted: &dyn Fn() -> bool) -> PassOutcome {
        let mut started = 0;
        let pass = self.with_backlog(|backlog| {
            if !self.is_hand_empty(backlog) {
                self.collect(core, backlog); // what the runner has brought along
            }
            let mut tags = TagBatch::default();
            let pass = self.start_some(core, backlog, halted, &mut started, &mut tags);
            // Not all were needed: the pass was halted, or the queue is dead.
            self.return_tags(0, tags);
            self.publish(backlog);
            pass
        });
        if started != 0 {
            let _section =
                (!core.may_block).then(|| AtomicSection::enter("commit of a block dispatch"));
            if caught(|| core.driver.commit(self.index)).is_none() {
                tracing::error!(queue = %core.name, "the driver panicked in commit");
            }
        }
        pass
    }

    /// The driver couldn't take it: it goes back to the front, and the tags to others that can use them.
    fn give_back(&self, rq: Started, backlog: &mut Backlog<Box<Pending>>, tags: &mut TagBatch) {
        RunnerStats::add(&self.runner_stats.busy, 1);
        RunnerStats::add(&self.runner_stats.dispatched, 1u64.wrapping_neg());
        let mut pending = rq.into_pending();
        pending.unbegin(self);
        let (slot, tag) = (pending.slot, pending.tag);
        backlog.give_back(pending);
        self.return_tags(slot, TagBatch::one(tag));
        self.return_tags(slot, mem::take(tags));
        self.publish(backlog);
    }

    fn start_some(
        &self,
        core: &Core,
        backlog: &mut Backlog<Box<Pending>>,
        halted: &dyn Fn() -> bool,
        started: &mut u32,
        tags: &mut TagBatch,
    ) -> PassOutcome {
        // A driver that may block is run by workers only, and says where it blocks.
        let _section =
            (!core.may_block).then(|| AtomicSection::enter("dispatch of block requests"));
        let mut fresh = true;
        loop {
            if !self.requeued.is_empty() {
                // A request that the driver gave back later goes before everything else.
                backlog.requeue(self.requeued.take());
            }
            // A scheduler sees what came meanwhile each time that there are tags for some more.
            if backlog.is_empty() || (fresh && backlog.chooses()) {
                self.collect(core, backlog);
                fresh = false;
            }
            if backlog.is_empty() {
                return PassOutcome::Idle;
            }
            if core.is_dead() {
                while let Some(pending) = backlog.next() {
                    pending.abandon();
                }
                continue;
            }
            if *started == PASS_QUOTA || halted() {
                return PassOutcome::More;
            }
            if self.is_inactive() && self.hand_on(core, backlog) {
                continue;
            }
            if tags.is_empty() {
                let most = (PASS_QUOTA - *started).min(backlog.len() as u32);
                let cpu = backlog.slot().unwrap_or_default();
                *tags = self.tags_for_next(backlog, cpu, most);
                fresh = true;
            }
            let Some(tag) = tags.pop() else { return PassOutcome::Idle };
            let Some(mut pending) = backlog.next() else { return PassOutcome::Idle };
            pending.begin(self, tag);
            let rq = Started::new(pending);
            let driver = &core.driver;
            // Counted before it can complete, so that a thread that has drained the queue sees it counted.
            RunnerStats::add(&self.runner_stats.dispatched, 1);
            match caught(|| driver.queue_request(self.index, rq)) {
                Some(Dispatch::Started) => *started += 1,
                Some(Dispatch::Busy(other) | Dispatch::NoResource(other))
                    if !other.is_of(core, self.index, tag) =>
                {
                    // Its tag is no tag of this call's: perhaps of another queue's set. The request of this call stays the driver's.
                    *started += 1;
                    other.refuse(&core.name);
                }
                Some(Dispatch::Busy(rq)) => {
                    self.give_back(rq, backlog, tags);
                    // The next completion runs the queue again, if there is one to come.
                    let in_use = self.tags.restart_at_next_free();
                    return if in_use == 0 { PassOutcome::Later } else { PassOutcome::Idle };
                }
                Some(Dispatch::NoResource(rq)) => {
                    self.give_back(rq, backlog, tags);
                    // As above; but whatever is short may be there much sooner, and nobody tells us.
                    let _in_use = self.tags.restart_at_next_free();
                    return PassOutcome::Later;
                }
                None => {
                    // The unwinding dropped the request, which completed it.
                    *started += 1;
                    tracing::error!(
                        queue = %core.name, driver = core.kind,
                        "the driver panicked while it started a request"
                    );
                }
            }
        }
    }
}
