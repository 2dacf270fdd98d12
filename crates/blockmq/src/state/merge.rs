//! Merging: requests that touch become one before the driver sees them.
//!
//! The runner merges while it empties the software queues, where it alone has the requests. It
//! compares each request with the last few that wait already, as the kernel's `blk_bio_list_merge`
//! does in a software queue. So requests that a thread submits together (a batch, a plug) are
//! merged, and so are requests of several CPUs of a hardware queue. Each request keeps its own
//! buffers and its own end. If a merged one fails, each of its requests is tried alone, so that
//! none fails for its neighbour.

use std::mem;

use crate::request::Op;
use crate::request::limits::{Limits, Shape, Side};
use crate::request::table::Seg;
use crate::sched::Item;
use crate::state::backlog::Waiting;
use crate::state::pending::Pending;
use crate::state::request::Request;

/// Merges `late` into `early` if they touch, the limits allow it and the driver gains by it; else
/// gives it back.
fn try_merge(early: &mut Box<Pending>, late: Box<Pending>) -> Result<(), Box<Pending>> {
    let core = &early.core;
    // Most requests don't touch, which this check sees at once.
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

// Requests that others were merged into: the queue's steps before and after the driver.

impl Request {
    /// Returns how many of its bytes the driver gets first: see [`Limits::first`].
    pub(crate) fn first_within(&self, limits: &Limits) -> Option<u64> {
        let pieces = self.segments().map(|segment| segment.len() as u64);
        limits.first(self.op(), self.offset(), self.len(), pieces)
    }

    /// Returns its own pieces of memory, and how many of their bytes lie in front of its own.
    #[inline]
    pub(super) fn own_segs(&self) -> (&[Seg], u64, u64) {
        if self.op.has_bytes() { (self.segs(), self.skip, self.own) } else { (&[], 0, 0) }
    }

    /// Returns the length of its own memory list, which is no smaller than the number of pieces.
    pub(crate) fn entries(&self) -> usize {
        self.table.segs().len()
    }

    /// Marks the request as one that is merged with no other.
    pub(crate) fn stay_alone(&mut self) {
        self.no_merge = true;
    }

    /// Clears `fua`: the queue makes the request durable by a flush, and doesn't ask the driver to.
    pub(crate) fn take_fua(&mut self) -> bool {
        mem::take(&mut self.flags.fua)
    }

    /// Returns the properties by which merges are decided.
    pub(crate) fn shape(&self, limits: &Limits) -> Shape {
        let pieces = if self.is_merged() {
            self.pieces
        } else {
            self.segments().map(|s| limits.pieces_of(s.len() as u64)).sum()
        };
        let no_merge = self.no_merge || self.flags.fua;
        Shape { op: self.op, offset: self.offset, len: self.len, pieces, no_merge }
    }

    /// Returns true if others were merged into it.
    pub(crate) fn is_merged(&self) -> bool {
        !self.tail.is_empty()
    }

    /// Appends `behind`, which begins where this one ends; `pieces` counts the pieces of both.
    pub(crate) fn append(&mut self, mut behind: Box<Pending>, pieces: u32) {
        let mut tail = mem::take(&mut behind.rq_mut().tail);
        self.len += behind.rq().len;
        self.pieces = pieces;
        let own = behind.rq().own;
        behind.rq_mut().len = own;
        self.tail.push_back(behind);
        while let Some(next) = tail.pop_front() {
            self.tail.push_back(next);
        }
    }

    /// Takes out the requests that were merged into it, in order, each with its share of the filled
    /// bytes.
    pub(crate) fn unmerge(&mut self) -> impl Iterator<Item = Box<Pending>> + use<> {
        let mut filled = self.filled;
        let mut own = move |len: u64| {
            let here = filled.min(len);
            filled -= here;
            here
        };
        self.len = self.own;
        self.filled = own(self.own);
        let mut tail = mem::take(&mut self.tail);
        std::iter::from_fn(move || {
            let mut next = tail.pop_front()?;
            let rq = next.rq_mut();
            rq.filled = own(rq.own);
            Some(next)
        })
    }
}
