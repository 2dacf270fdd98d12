//! Merging: requests that touch become one before the driver sees them.
//!
//! The runner merges while it empties the software queues, where it alone has what it looks at: each request
//! is compared with the last few that wait already, as the kernel's `blk_bio_list_merge` does in a software
//! queue. So what a thread submits together (a batch, a plug) is merged too, and so is what several
//! CPUs of a hardware queue submit. The requests stay what they are: each has its own buffers and its own
//! end. Where a merged one fails, each of them is tried alone, so that none fails for its neighbour.

use std::mem;

use crate::request::limits::Side;
use crate::request::op::Op;
use crate::sched::Item;
use crate::state::backlog::Waiting;
use crate::state::pending::Pending;

/// Merges `late` into `early`, if they touch, the limits allow it and the driver gains by it; else gives it back.
fn try_merge(early: &mut Box<Pending>, late: Box<Pending>) -> Result<(), Box<Pending>> {
    let core = &early.core;
    // Most don't touch, and that is seen at once.
    let (a, b) = (early.rq(), late.rq());
    let touch = a.offset().wrapping_add(a.len()) == b.offset()
        || b.offset().wrapping_add(b.len()) == a.offset();
    if !touch || !core.merges {
        return Err(late);
    }
    let (a, b) = (a.shape(&core.limits), b.shape(&core.limits));
    let Some(side) = core.limits.may_merge(&a, &b) else { return Err(late) };
    let behind = match side {
        Side::Back => late,
        Side::Front => mem::replace(early, late),
    };
    early.rq_mut().append(behind, a.pieces + b.pieces);
    Ok(())
}

impl Item for Box<Pending> {
    fn is_read(&self) -> bool {
        self.rq().op() == Op::Read
    }

    fn start(&self) -> u64 {
        self.rq().offset()
    }

    fn end(&self) -> u64 {
        self.rq().offset().saturating_add(self.rq().len())
    }

    fn merge(&mut self, other: Self) -> Result<(), Self> {
        try_merge(self, other)
    }
}

impl Waiting for Box<Pending> {
    fn is_flush(&self) -> bool {
        self.rq().op() == Op::Flush
    }

    fn slot(&self) -> usize {
        self.slot
    }

    fn merges(&self) -> bool {
        self.core.merges
    }
}
