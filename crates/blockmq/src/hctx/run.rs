//! The runners of a hardware queue: a visitor, a worker, or a test by hand.

use corewise_topology::current_cpu;
use std::sync::Weak;
use std::time::Duration;

use corewise_sync::atomic::Ordering;
use corewise_sync::fence::Asymmetric;
use corewise_workqueue::{At, Work};

use super::alone;
use super::dispatch::Feed;
use crate::admission::gate::{Fenced, Recheck};
use crate::admission::runner::{self, BUDGET_VISITOR, BUDGET_WORKER, Ran};
use crate::hotplug::policy::slot_for_run;
use crate::state::core::Core;
use crate::state::core::{Background, Hctx};
use crate::state::pending::Pending;
use crate::stats::bump;
use crate::thread::nest;

/// Pause between two tries where the driver is busy with nothing in flight, or the kernel takes
/// nothing from a ring. As long as the kernel's (`BLK_MQ_RESOURCE_DELAY`).
const BUSY_PAUSE: Duration = Duration::from_millis(3);

/// The item with which a worker runs hardware queue `index`.
pub(super) fn work(core: &Weak<Core>, index: usize) -> Work {
    let core = Weak::clone(core);
    Work::new(move || {
        // A queue that was dropped has nothing left to run.
        if let Some(core) = Weak::upgrade(&core) {
            core.hctx(index).run_as_worker(&core);
        }
    })
}

impl Hctx {
    /// Runs the queue on this thread, if there is need and nobody else does. `published`: the
    /// caller knows that something is pending. Never blocks, any context.
    pub(crate) fn visit(&self, core: &Core, slot: usize, published: bool) {
        self.visit_by(core, slot, published, &Fenced::<Asymmetric>::new());
    }

    /// As [`Hctx::visit`], with another second look where the first says that there is no need.
    #[inline]
    pub(crate) fn visit_by(
        &self,
        core: &Core,
        slot: usize,
        published: bool,
        recheck: &impl Recheck,
    ) {
        match &self.background {
            // A driver that may block runs where blocking is allowed, and a pass far down where there is stack.
            Background::Workers { .. } if core.may_block || nest::is_far_down() => {
                self.run_async(core);
            }
            Background::Workers { .. } => {
                let ran = self.run_by(core, published, BUDGET_VISITOR, recheck);
                self.account(core, slot, ran);
            }
            Background::ByHand { wanted } => wanted.store(true, Ordering::Release),
        }
    }

    /// Has a request go to the driver that is inside and lies nowhere yet: by this thread, if nobody else runs the
    /// queue, and then it needn't be published and collected. Never blocks, any context. (The kernel's
    /// `blk_mq_try_issue_directly`; there it passes the scheduler, and here it passes only the software queue.) Where the
    /// thread is in a pass of this very queue, that goes on with it.
    pub(crate) fn issue(&self, core: &Core, pending: Box<Pending>) {
        let Some(pending) = self.keep(pending) else { return };
        let slot = pending.slot;
        let here = matches!(self.background, Background::Workers { .. }) && !core.may_block;
        if here && !nest::is_far_down() && core.gate.is_open() && self.state.try_claim() {
            // SAFETY: this thread is the runner now.
            unsafe { self.hand.push(pending) };
            let feed = Feed::new(core, self);
            let (state, grace) = (&self.state, &self.grace);
            let ran = nest::dispatch(|| {
                runner::run_claimed(&core.gate, state, grace, &feed, BUDGET_VISITOR)
            });
            self.decline_tag(core);
            self.account(core, slot, ran);
        } else {
            core.enqueue(pending);
            self.visit(core, slot, true);
        }
    }

    /// Has the queue run by a worker, soon. Never blocks, any context.
    pub(crate) fn run_async(&self, core: &Core) {
        match &self.background {
            Background::Workers { wq, work, .. } => {
                // Queue: it may be queued already, and then runs after this moment; or there are no workers any more.
                let _ = wq.at(self.place_for_run(core)).queue(work);
                self.unless_alone(core);
            }
            Background::ByHand { wanted } => wanted.store(true, Ordering::Release),
        }
    }

    /// Where a worker is to run it: here, if here is one of ours; else one of ours in turn; else anywhere.
    fn place_for_run(&self, core: &Core) -> At {
        let layout = &core.layout;
        let here = current_cpu().and_then(|cpu| layout.map.known(cpu));
        if here.is_some_and(|slot| layout.hctx_of(slot) == self.index) {
            return At::Here;
        }
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let slot = slot_for_run(layout.slots_of(self.index), |slot| layout.is_online(slot), turn);
        slot.map_or(At::Here, |slot| At::Cpu(layout.map.cpus()[slot]))
    }

    /// Ask, behind Queue: where no worker comes any more, the queue is run here.
    fn unless_alone(&self, core: &Core) {
        if core.end.has_come() {
            if let Background::Workers { core, .. } = &self.background {
                alone::run(core, self.index);
            }
        }
    }

    /// Has the queue run by a worker after `delay`, for a thread that has just tried to run it: a run that is to come
    /// already comes then instead. (The kernel's `blk_mq_delay_run_hw_queue`.)
    fn run_after(&self, core: &Core, delay: Duration) {
        match &self.background {
            Background::Workers { wq, later, core: ours, .. } => {
                let later = later.get_or_init(|| work(ours, self.index));
                let _ = wq.mod_delayed(later, delay);
                self.unless_alone(core);
            }
            Background::ByHand { wanted } => wanted.store(true, Ordering::Release),
        }
    }

    pub(super) fn run_as_worker(&self, core: &Core) {
        let ran = self.run(core, false, BUDGET_WORKER);
        self.count(core, core.layout.some_slot_of(self.index), ran);
        match ran {
            Ran::HandOver { .. } => self.run_async(core),
            // Nobody will tell us, so we have to ask again, though not with a core of our own.
            // A submitter asks meanwhile too, and so does a completion.
            Ran::Busy { .. } => self.run_after(core, BUSY_PAUSE),
            Ran::Refused | Ran::Joined | Ran::Done { .. } => {}
        }
    }

    /// One bounded step, by hand: `None` where nobody wanted a run since the last one.
    pub(crate) fn step(&self, core: &Core) -> Option<Ran> {
        if let Background::ByHand { wanted } = &self.background {
            if !wanted.swap(false, Ordering::Acquire) {
                return None;
            }
        }
        let ran = self.run(core, false, 1);
        self.account(core, core.layout.some_slot_of(self.index), ran);
        Some(ran)
    }

    /// Runs until nothing is pending, for a queue that is being dropped.
    pub(crate) fn run_to_the_end(&self, core: &Core) {
        // Joined: that runner looks again after this moment.
        let _ = self.run(core, true, u32::MAX);
    }

    pub(super) fn run(&self, core: &Core, published: bool, budget: u32) -> Ran {
        self.run_by(core, published, budget, &Fenced::<Asymmetric>::new())
    }

    fn run_by(&self, core: &Core, published: bool, budget: u32, recheck: &impl Recheck) -> Ran {
        let feed = Feed::new(core, self);
        let (gate, state, grace) = (&core.gate, &self.state, &self.grace);
        let ran = nest::dispatch(|| {
            runner::run_by(gate, state, grace, &feed, published, budget, recheck)
        });
        if ran != Ran::Joined {
            self.decline_tag(core);
        }
        ran
    }

    fn account(&self, core: &Core, slot: usize, ran: Ran) {
        self.count(core, slot, ran);
        if let Ran::HandOver { .. } | Ran::Busy { .. } = ran {
            self.run_async(core);
        }
    }

    fn count(&self, core: &Core, slot: usize, ran: Ran) {
        let stats = core.visitor_stats.of(slot);
        match ran {
            Ran::Refused => bump(&stats.refused),
            Ran::Joined => bump(&stats.joined),
            Ran::HandOver { .. } | Ran::Busy { .. } => bump(&stats.handed_over),
            // The runner has counted it.
            Ran::Done { .. } => {}
        }
    }

    /// The part of an unquiesce that this hardware queue owes: the caller has issued OpenFence.
    pub(crate) fn run_if_pending(&self, core: &Core) {
        if self.has_pending() {
            bump(&core.visitor_stats.of(core.layout.some_slot_of(self.index)).after_unquiesce);
            self.run_async(core);
        }
    }
}
