//! Requests of which others have become a part: what the queue does with them before and after the driver.

use std::mem;

use crate::request::limits::{Limits, Shape};
use crate::request::table::Seg;
use crate::state::pending::Pending;
use crate::state::request::Request;

impl Request {
    /// How many of its bytes the driver gets first: see [`Limits::first`].
    pub(crate) fn first_within(&self, limits: &Limits) -> Option<u64> {
        let pieces = self.segments().map(|segment| segment.len() as u64);
        limits.first(self.op(), self.offset(), self.len(), pieces)
    }

    /// Its own pieces of memory, and how many bytes of them are in front of its own.
    #[inline]
    pub(super) fn own_segs(&self) -> (&[Seg], u64, u64) {
        if self.op.has_bytes() { (self.segs(), self.skip, self.own) } else { (&[], 0, 0) }
    }

    /// How many entries the list of its own memory has: no fewer than it has pieces.
    pub(crate) fn entries(&self) -> usize {
        self.table.segs().len()
    }

    /// Nothing is to be merged with it.
    pub(crate) fn stay_alone(&mut self) {
        self.no_merge = true;
    }

    /// The queue makes it durable by a flush: the driver isn't asked to.
    pub(crate) fn take_fua(&mut self) -> bool {
        mem::take(&mut self.flags.fua)
    }

    /// What a merge looks at.
    pub(crate) fn shape(&self, limits: &Limits) -> Shape {
        let pieces = if self.is_merged() {
            self.pieces
        } else {
            self.segments().map(|s| limits.pieces_of(s.len() as u64)).sum()
        };
        let no_merge = self.no_merge || self.flags.fua;
        Shape { op: self.op, offset: self.offset, len: self.len, pieces, no_merge }
    }

    /// Whether others were merged into it.
    pub(crate) fn is_merged(&self) -> bool {
        !self.tail.is_empty()
    }

    /// Merges `behind` into it, which begins where this one ends; `pieces` are those of both.
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

    /// Those that were merged into it, in order, each with what was filled of it.
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
