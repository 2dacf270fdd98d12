//! The way of a request through an overlay: to the file, to the base, or in parts to both. The
//! names of the steps are those of `README.md` beside this file.

use std::ops::Range;
use std::sync::Arc;

use bytes::BytesMut;
use corewise_blockmq::{
    BlockDevice, Extent, ExtentKind, Extents, HeldRequest, IoError, Op, Request, Started, Whole,
};

use super::OverlayState;
use super::map::PageNeed;
use crate::below::pass_on;
use crate::bit_pages::PAGE;

/// Most parts of a request for extents. An answer may end before its range does.
const MOST_EXTENT_PARTS: u32 = 1024;

/// The place where bytes of the overlay lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    File,
    Base,
    /// Behind the base's end.
    Zeroes,
}

impl OverlayState {
    /// Begins a request, or begins it anew after a wait. Any context.
    pub(super) fn start(self: &Arc<Self>, rq: Started) {
        let (offset, end) = (rq.offset(), rq.offset() + rq.len());
        let needs = match rq.op() {
            Op::Flush => return self.commit(rq.into()),
            // The answer ends where the map isn't known.
            Op::Extents => offset..offset + 1,
            _ => offset..end,
        };
        if let Some(group) = self.map.missing(needs) {
            return self.load(group, rq);
        }
        match rq.op() {
            Op::Read | Op::Prefetch => self.read(rq),
            Op::Extents => self.extents(rq),
            _ => self.change(rq),
        }
    }

    /// Returns the place in the file of a request that the file can do alone: its blocks are own,
    /// in one group, and their bits need no commit (Look).
    pub(super) fn own_place(&self, rq: &Request) -> Option<u64> {
        let (offset, end) = (rq.offset(), rq.offset() + rq.len());
        if self.map.run(offset, end) != Some((true, end - offset)) {
            return None;
        }
        // After the look: a first change Sets, Marks and Unlocks in this order.
        if rq.op().is_change() && rq.flags().fua && self.lacks_bits(offset..end) {
            return None;
        }
        Some(self.layout.place(offset))
    }

    /// Makes a request wait for a group's page, and reads that if nobody does (Load).
    fn load(self: &Arc<Self>, group: usize, rq: Started) {
        match self.map.wait_for(group, rq) {
            PageNeed::Loaded(rq) => return self.start(rq),
            PageNeed::Waits => return,
            PageNeed::Load => {}
        }
        if let Some((waited, result)) = self.map.came_unread(group) {
            return self.begin_again(waited, &result);
        }
        let state = Arc::clone(self);
        let read = Request::read(self.layout.page(group), PAGE);
        self.file.submit(read.on_complete(move |done| {
            let data = done.into_data();
            let (waited, result) =
                state.map.came(group, data.as_ref().map(|data| &data[..]).map_err(Clone::clone));
            state.begin_again(waited, &result);
        }));
    }

    /// Begins requests anew that waited for a page, or fails them.
    pub(super) fn begin_again(
        self: &Arc<Self>,
        waited: Vec<Started>,
        result: &Result<(), IoError>,
    ) {
        for rq in waited {
            match result {
                Ok(()) => self.start(rq),
                Err(error) => rq.complete(Err(error.clone())),
            }
        }
    }

    /// Returns the source of the byte at `offset`, and the number of bytes before `end` that have
    /// the same one. Their page is in memory, or they count as zeroes.
    fn look(&self, offset: u64, end: u64) -> (Source, u64) {
        let (own, len) = self.map.run(offset, end).unwrap_or((false, end - offset));
        match self.base_size.checked_sub(offset) {
            _ if own => (Source::File, len),
            None | Some(0) => (Source::Zeroes, len),
            Some(left) => (Source::Base, len.min(left)),
        }
    }

    fn read(self: &Arc<Self>, rq: Started) {
        let (offset, len) = (rq.offset(), rq.len());
        match self.look(offset, offset + len) {
            (Source::File, all) if all == len => {
                pass_on(&*self.file, rq, self.layout.place(offset));
            }
            _ if self.fetch.keeps_reads() && rq.op() == Op::Read => {
                let state = Arc::clone(self);
                let keep = move |rq, result| state.read_and_keep(rq, result);
                self.in_parts(Whole::with(rq, keep), offset..offset + len, u32::MAX);
            }
            (Source::Base, all) if all == len => match self.base() {
                Ok(base) => pass_on(&*base, rq, offset),
                Err(error) => rq.complete(Err(error)),
            },
            _ => self.in_parts(Whole::new(rq), offset..offset + len, u32::MAX),
        }
    }

    fn extents(&self, rq: Started) {
        let most = rq.extents().map_or(1, Extents::most).clamp(1, MOST_EXTENT_PARTS);
        let (offset, mut end) = (rq.offset(), rq.offset() + rq.len());
        // It ends with the groups that are in memory.
        if let Some(missing) = self.map.missing(offset..end) {
            end = end.min(missing as u64 * self.layout.group_bytes());
        }
        self.in_parts(Whole::new(rq), offset..end, most);
    }

    /// Sends parts of a request to the file and to the base, at most `most` of them.
    fn in_parts(&self, whole: Whole, bytes: Range<u64>, most: u32) {
        let base = self.base();
        let (first, mut at) = (bytes.start, bytes.start);
        for _ in 0..most {
            if at == bytes.end {
                return;
            }
            let (source, len) = self.look(at, bytes.end);
            let within = at - first;
            match (source, &base) {
                (Source::File, _) => {
                    self.file.submit(whole.part(within, len, self.layout.place(at)));
                }
                (Source::Base, Ok(base)) => base.submit(whole.part(within, len, at)),
                (Source::Base, Err(error)) => {
                    whole.part(within, len, at).complete(Err(error.clone()));
                }
                (Source::Zeroes, _) => {
                    let mut part = whole.part(within, len, at);
                    part.put_zeroes(len);
                    part.put_extent(Extent { len, kind: ExtentKind::Hole });
                    part.complete(Ok(()));
                }
            }
            at += len;
        }
    }

    fn change(self: &Arc<Self>, rq: Started) {
        let (offset, end) = (rq.offset(), rq.offset() + rq.len());
        if self.map.all_own(offset..end) {
            return self.pass_change(rq);
        }
        let block = self.layout.block();
        let bytes = match rq.op() {
            // A discard gives up whole blocks only: it need not copy the rest of others.
            Op::Discard => {
                let last = if end == self.size() { end } else { end / block * block };
                offset.next_multiple_of(block)..last
            }
            _ => offset / block * block..end.next_multiple_of(block).min(self.size()),
        };
        if bytes.is_empty() {
            return rq.complete(Ok(()));
        }
        let Some(rq) = self.locks.lock_or_wait(&bytes, rq) else { return };
        if self.map.all_own(bytes.clone()) {
            // It has waited for the change that made them so.
            self.unlock(&bytes);
            return self.pass_change(rq);
        }
        let is_own = |at: u64| self.map.run(at, at + 1).is_some_and(|(own, _)| own);
        let mut rest = Vec::new();
        if rq.op() != Op::Discard {
            if bytes.start < offset && !is_own(offset) {
                rest.push(bytes.start..offset);
            }
            if end < bytes.end && !is_own(end - 1) {
                rest.push(end..bytes.end);
            }
        }
        self.copy_rest(rest, FirstChange { rq, bytes });
    }

    /// Sends a change of blocks that are own to the file, as it is.
    fn pass_change(self: &Arc<Self>, rq: Started) {
        let (offset, end) = (rq.offset(), rq.offset() + rq.len());
        if rq.flags().fua && self.lacks_bits(offset..end) {
            let state = Arc::clone(self);
            let whole = Whole::with(rq, move |rq, result| match result {
                Ok(()) => state.commit(rq),
                Err(_) => rq.complete(result),
            });
            return self.change_in_parts(&whole);
        }
        if end <= self.layout.group_end(offset) {
            return pass_on(&*self.file, rq, self.layout.place(offset));
        }
        self.change_in_parts(&Whole::new(rq));
    }

    fn change_in_parts(&self, whole: &Whole) {
        let (offset, len) = (whole.request().offset(), whole.request().len());
        for piece in self.pieces(offset..offset + len) {
            let place = self.layout.place(piece.start);
            self.file.submit(whole.part(piece.start - offset, piece.end - piece.start, place));
        }
    }

    /// Returns true if the map on disk may lack bits of own blocks.
    fn lacks_bits(&self, bytes: Range<u64>) -> bool {
        // A bit is set and its page marked while the block is locked, and a commit begins before it
        // takes the mark: in this order none is overlooked.
        self.locks.is_locked(&bytes) || self.map.is_marked(bytes) || self.commits.may_lack_bits()
    }

    /// Returns the pieces of a range of bytes that are one piece in the file, too.
    pub(super) fn pieces(&self, bytes: Range<u64>) -> impl Iterator<Item = Range<u64>> + use<> {
        let (layout, mut at) = (self.layout, bytes.start);
        std::iter::from_fn(move || {
            let start = at;
            at = bytes.end.min(layout.group_end(start));
            (start < bytes.end).then_some(start..at)
        })
    }

    /// Copies bytes of the base to their places, one range after the other, and then sends the
    /// change (Copy). Each range is a part of a block that isn't own.
    fn copy_rest(self: &Arc<Self>, mut rest: Vec<Range<u64>>, change: FirstChange) {
        let Some(bytes) = rest.pop() else { return self.send(change) };
        let in_base = self.base_size.saturating_sub(bytes.start).min(bytes.end - bytes.start);
        if in_base == 0 {
            return self.write_rest(BytesMut::new(), bytes, rest, change);
        }
        let base = match self.base() {
            Ok(base) => base,
            Err(error) => return self.give_up(change, error),
        };
        let state = Arc::clone(self);
        let read = Request::read(bytes.start, in_base as usize);
        base.submit(read.on_complete(move |done| match done.into_data() {
            Ok(data) => state.write_rest(data, bytes, rest, change),
            Err(error) => state.give_up(change, error),
        }));
    }

    /// Writes what was read of the base; behind the base's end come zeroes.
    fn write_rest(
        self: &Arc<Self>,
        mut data: BytesMut,
        bytes: Range<u64>,
        rest: Vec<Range<u64>>,
        change: FirstChange,
    ) {
        data.resize((bytes.end - bytes.start) as usize, 0);
        let state = Arc::clone(self);
        let write = Request::write(self.layout.place(bytes.start), data);
        self.file.submit(write.on_complete(move |done| match done.result {
            Ok(()) => state.copy_rest(rest, change),
            Err(error) => state.give_up(change, error),
        }));
    }

    /// Sends a change whose blocks are locked to the file (Send).
    fn send(self: &Arc<Self>, change: FirstChange) {
        let FirstChange { rq, bytes } = change;
        if rq.op() == Op::Discard {
            // The blocks have to read as zeroes, which a discard doesn't promise.
            let pieces: Vec<_> = self.pieces(bytes.clone()).collect();
            return self.zero(pieces, FirstChange { rq, bytes });
        }
        let state = Arc::clone(self);
        let whole = Whole::with(rq, move |rq, result| state.sent(rq, &bytes, result));
        self.change_in_parts(&whole);
    }

    /// Zeroes pieces of the file, one after the other, for a discard.
    fn zero(self: &Arc<Self>, mut pieces: Vec<Range<u64>>, change: FirstChange) {
        let Some(piece) = pieces.pop() else {
            let FirstChange { rq, bytes } = change;
            return self.sent(rq.into(), &bytes, Ok(()));
        };
        let state = Arc::clone(self);
        let zero = Request::write_zeroes(self.layout.place(piece.start), piece.end - piece.start);
        self.file.submit(zero.on_complete(move |done| match done.result {
            Ok(()) => state.zero(pieces, change),
            Err(error) => state.give_up(change, error),
        }));
    }

    /// Ends a change that failed before it was sent.
    fn give_up(self: &Arc<Self>, change: FirstChange, error: IoError) {
        let FirstChange { rq, bytes } = change;
        // A place in the base or in the file means nothing here.
        let range = rq.offset()..rq.offset() + rq.len();
        self.sent(rq.into(), &bytes, Err(error.at(range)));
    }

    /// Ends a change that the file has done (Set, Mark, Unlock), or that failed.
    fn sent(self: &Arc<Self>, rq: HeldRequest, bytes: &Range<u64>, result: Result<(), IoError>) {
        let is_done = result.is_ok();
        if is_done {
            self.map.set(bytes.clone());
        }
        self.unlock(bytes);
        if is_done && rq.flags().fua {
            self.commit(rq);
        } else {
            rq.complete(result);
        }
    }

    /// Unlocks a range of bytes, and begins the changes anew that waited for it.
    pub(super) fn unlock(self: &Arc<Self>, bytes: &Range<u64>) {
        for rq in self.locks.unlock(bytes) {
            self.start(rq);
        }
    }
}

/// A change that makes blocks own, which are locked.
struct FirstChange {
    rq: Started,
    /// The locked bytes: whole blocks.
    bytes: Range<u64>,
}
