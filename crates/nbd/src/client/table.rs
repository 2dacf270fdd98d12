//! The requests that a volume's thread has: which ones wait to be sent, which ones are on their
//! way, and what of a read has come.
//!
//! Belongs to that thread alone. No two changes of one block are on their way at a time: so a
//! change that nobody has answered when a connection breaks can be sent again as it is, since no
//! later one can have been done in between (README.md, "Once more").
//!
//! [`Durable`] says which of the acknowledged changes are durable, as far as the other side's word
//! goes.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::time::Instant;

use bytes::Bytes;
use corewise_blockmq::{IoError, Op, Started};

use super::policy::MOST_TRIES;
use crate::wire::REQUEST_LEN;

/// Most pieces of one read that came before those in front of them.
const MOST_PIECES: usize = 1024;
/// Most errors that one answer may tell: without an end it would keep the thread busy until the
/// request's time is over.
const MOST_ERRORS: u32 = 1024;

/// A request.
pub(super) struct TableEntry {
    pub(super) rq: Started,
    /// Its place in the order of arrival.
    order: u64,
    /// How often it was sent.
    tries: u32,
    /// The connection that it was sent on, while it is on its way.
    pub(super) on: Option<usize>,
    /// By what its answers name it; another one each time.
    pub(super) cookie: u64,
    pub(super) head: [u8; REQUEST_LEN],
    /// Not all its bytes have left yet.
    pub(super) leaving: bool,
    /// The other side has said how it ended; its answer is about to be looked at, or waits until
    /// all its bytes have left.
    pub(super) answered: bool,
    /// How it ended, where that was said before all its bytes had left.
    pub(super) answer: Option<Result<(), IoError>>,
    /// What an error chunk has said; the reply isn't over.
    pub(super) error: Option<IoError>,
    /// How many error chunks have come.
    errors: u32,
    /// Extents have come.
    pub(super) has_extents: bool,
    /// Of a flush: how many changes it covers.
    pub(super) covers: u64,
    /// Of a read: what came before its turn, by where it begins.
    early: BTreeMap<u64, Piece>,
}

/// A piece of a read.
pub(super) enum Piece {
    Data(Bytes),
    Zeroes(u64),
}

impl Piece {
    fn len(&self) -> u64 {
        match self {
            Piece::Data(bytes) => bytes.len() as u64,
            Piece::Zeroes(n) => *n,
        }
    }
}

impl TableEntry {
    /// Bytes that follow its head.
    pub(super) fn payload(&self) -> u64 {
        if self.rq.op() == Op::Write { self.rq.len() } else { 0 }
    }

    /// Whether a piece of a read may lie here: it was asked for, and hasn't come. And whether its
    /// turn has come.
    pub(super) fn takes(&self, piece: &Range<u64>) -> Option<bool> {
        let at = self.at();
        if piece.is_empty() || piece.start < at || piece.end > self.range().end {
            return None;
        }
        let before = self.early.range(..piece.end).next_back();
        if before.is_some_and(|(start, before)| start + before.len() > piece.start) {
            return None;
        }
        let next = piece.start == at;
        (next || self.early.len() < MOST_PIECES).then_some(next)
    }

    /// Where the next byte of a read belongs.
    fn at(&self) -> u64 {
        self.rq.offset() + self.rq.filled()
    }

    /// Whether there may be one more error chunk.
    pub(super) fn may_err(&mut self) -> bool {
        self.errors += 1;
        self.errors <= MOST_ERRORS
    }

    /// Puts a piece in its place, or keeps it until its turn comes. It [may lie
    /// there](TableEntry::takes).
    pub(super) fn put_piece(&mut self, start: u64, piece: Piece) {
        self.early.insert(start, piece);
        self.catch_up();
    }

    /// Puts the pieces in place whose turn has come.
    pub(super) fn catch_up(&mut self) {
        while let Some(piece) = self.early.remove(&self.at()) {
            match piece {
                Piece::Data(bytes) => _ = self.rq.put(&bytes),
                Piece::Zeroes(n) => _ = self.rq.put_zeroes(n),
            }
        }
    }

    /// Whether all that was asked for has come.
    pub(super) fn is_whole(&self) -> bool {
        self.rq.filled() == self.rq.len()
    }

    pub(super) fn range(&self) -> Range<u64> {
        self.rq.offset()..self.rq.offset() + self.rq.len()
    }
}

/// The requests of a volume.
#[derive(Default)]
pub(super) struct Table {
    slots: Vec<Option<Box<TableEntry>>>,
    free: Vec<usize>,
    /// Those that wait to be sent, in the order of their arrival.
    line: VecDeque<usize>,
    /// Each with its place in the order, by deadline: all have the same time.
    due: VecDeque<(Instant, u64, usize)>,
    /// Changes that are on their way.
    changing: Vec<(usize, Range<u64>)>,
    arrived: u64,
    sent: u64,
    /// How many are on their way.
    pub(super) on_their_way: usize,
}

impl Table {
    pub(super) fn is_empty(&self) -> bool {
        self.free.len() == self.slots.len()
    }

    /// Puts a request at the end of the line.
    pub(super) fn add(&mut self, rq: Started, deadline: Instant) {
        self.arrived += 1;
        let entry = Box::new(TableEntry {
            order: self.arrived,
            tries: 0,
            on: None,
            cookie: 0,
            head: [0; REQUEST_LEN],
            leaving: false,
            answered: false,
            answer: None,
            error: None,
            errors: 0,
            has_extents: false,
            covers: 0,
            early: BTreeMap::new(),
            rq,
        });
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        self.slots[slot] = Some(entry);
        self.line.push_back(slot);
        if self.due.len() > 2 * self.slots.len() + 64 {
            // One that takes long keeps those behind it, which have ended.
            let slots = &self.slots;
            self.due.retain(|&(_, order, slot)| holds(slots, slot, order));
        }
        self.due.push_back((deadline, self.arrived, slot));
    }

    /// The request in a slot that the caller knows to hold one.
    pub(super) fn get(&self, slot: usize) -> &TableEntry {
        self.slots[slot].as_ref().expect(HELD)
    }

    pub(super) fn get_mut(&mut self, slot: usize) -> &mut TableEntry {
        self.slots[slot].as_mut().expect(HELD)
    }

    /// The request that a cookie names, which was sent on this connection and isn't answered yet.
    pub(super) fn find(&self, cookie: u64, on: usize) -> Option<usize> {
        let slot = (cookie & 0xFFFF) as usize;
        let entry = self.slots.get(slot)?.as_ref()?;
        let named = entry.cookie == cookie && entry.on == Some(on) && !entry.answered;
        named.then_some(slot)
    }

    /// The first in the line, from number `from` on, that may be sent now, and its number there.
    /// Changes that have to wait go to `waiting`: those behind them that meet them wait too, or a
    /// large one might never find all its blocks free.
    pub(super) fn next(
        &self,
        from: usize,
        waiting: &mut Vec<Range<u64>>,
    ) -> Option<(usize, usize)> {
        let rest = self.line.iter().enumerate().skip(from);
        let mut free = rest.filter(|&(_, &slot)| {
            let entry = self.get(slot);
            let range = entry.range();
            let met = entry.rq.op().is_change()
                && (self.changing.iter().any(|(_, other)| meet(&range, other))
                    || waiting.iter().any(|other| meet(&range, other)));
            if met {
                waiting.push(range);
            }
            !met
        });
        free.next().map(|(n, &slot)| (n, slot))
    }

    /// The first in the line, whether or not it may be sent.
    pub(super) fn first(&self) -> Option<usize> {
        self.line.front().copied()
    }

    /// Takes number `n` out of the line, which is on its way from now on.
    pub(super) fn send(&mut self, n: usize, on: usize) -> usize {
        let slot = self.line.remove(n).expect("the caller was given this number");
        self.sent += 1;
        let cookie = self.sent << 16 | slot as u64;
        let entry = self.get_mut(slot);
        // The bytes that an earlier connection has brought go: it may have been out of order before
        // that was seen.
        entry.rq.start_over();
        let range = entry.range();
        (entry.cookie, entry.on, entry.leaving) = (cookie, Some(on), true);
        entry.tries += 1;
        if entry.rq.op().is_change() {
            self.changing.push((slot, range));
        }
        self.on_their_way += 1;
        slot
    }

    /// Takes a request out, to be completed by the caller.
    pub(super) fn remove(&mut self, slot: usize) -> Started {
        let entry = self.slots[slot].take().expect(HELD);
        self.free.push(slot);
        if entry.on.is_some() {
            self.on_their_way -= 1;
            self.changing.retain(|(other, _)| *other != slot);
        } else {
            self.line.retain(|other| *other != slot);
        }
        entry.rq
    }

    /// Sends a request again that the other side has not done. False where that was tried often
    /// enough.
    pub(super) fn back_to_line(&mut self, slot: usize) -> bool {
        self.on_their_way -= 1;
        self.changing.retain(|(other, _)| *other != slot);
        let entry = self.get_mut(slot);
        entry.on = None;
        (entry.answered, entry.answer) = (false, None);
        (entry.error, entry.errors) = (None, 0);
        entry.has_extents = false;
        entry.early.clear();
        let (order, again) = (entry.order, entry.tries < MOST_TRIES);
        let at = self.line.partition_point(|&other| self.get(other).order < order);
        self.line.insert(at, slot);
        again
    }

    /// Those that are on their way, in the order of their arrival.
    pub(super) fn sent(&self) -> Vec<usize> {
        let sent = |slot: &usize| self.slots[*slot].as_ref().is_some_and(|e| e.on.is_some());
        let mut all: Vec<usize> = (0..self.slots.len()).filter(sent).collect();
        all.sort_unstable_by_key(|&slot| self.get(slot).order);
        all
    }

    /// The first one whose time is over.
    pub(super) fn late(&mut self, now: Instant) -> Option<usize> {
        self.deadline().filter(|deadline| *deadline <= now)?;
        self.due.front().map(|(_, _, slot)| *slot)
    }

    /// When the time of the next one is over.
    pub(super) fn deadline(&mut self) -> Option<Instant> {
        while let Some(&(deadline, order, slot)) = self.due.front() {
            if holds(&self.slots, slot, order) {
                return Some(deadline);
            }
            self.due.pop_front();
        }
        None
    }
}

/// Whether a slot has the request that came as number `order`.
fn holds(slots: &[Option<Box<TableEntry>>], slot: usize, order: u64) -> bool {
    slots[slot].as_ref().is_some_and(|entry| entry.order == order)
}

fn meet(one: &Range<u64>, other: &Range<u64>) -> bool {
    other.start < one.end && one.start < other.end
}

const HELD: &str = "a slot in the line, or on its way, holds a request";

/// Changes that are noted with their places, at most.
const MOST_NOTED: usize = 16 << 10;

/// Changes are counted as they are acknowledged; a flush that succeeds covers those that were
/// counted before it was sent.
#[derive(Debug, Default)]
pub(super) struct Durable {
    /// Changes that were acknowledged, and that don't stand for themselves as those with FUA do.
    acknowledged: u64,
    /// So many of them are durable, or were lost with a connection.
    settled: u64,
    /// Where those lie that aren't settled, each with its number. One that goes on where the last
    /// one ended makes that longer, and so is taken for unsettled with it.
    noted: VecDeque<(u64, Range<u64>)>,
    /// There were too many to note up to this number: they may lie anywhere.
    unnoted: u64,
    /// Some were lost with a connection, and nobody has been told yet.
    lost: bool,
    /// Where those lie, from the start of each to its end. The other side may show there what was
    /// before them.
    doubtful: BTreeMap<u64, u64>,
}

impl Durable {
    /// A change was acknowledged, that stands for itself or doesn't.
    pub(super) fn change(&mut self, range: &Range<u64>, durable: bool) {
        self.trust(range);
        if durable {
            return;
        }
        self.acknowledged += 1;
        if let Some((number, last)) = self.noted.back_mut() {
            if last.end == range.start {
                (*number, last.end) = (self.acknowledged, range.end);
                return;
            }
        }
        if self.noted.len() == MOST_NOTED {
            self.noted.clear();
            self.unnoted = self.acknowledged;
        } else {
            self.noted.push_back((self.acknowledged, range.clone()));
        }
    }

    /// What a flush that is sent now will cover.
    pub(super) fn covered(&self) -> u64 {
        self.acknowledged
    }

    /// A flush has succeeded that covers so many, on the connections on which they were
    /// acknowledged.
    pub(super) fn flushed(&mut self, covered: u64) {
        self.settled = self.settled.max(covered);
        while self.noted.front().is_some_and(|(number, _)| *number <= self.settled) {
            self.noted.pop_front();
        }
    }

    /// The connections are gone: whether changes may have gone with them.
    pub(super) fn broke(&mut self) -> bool {
        let lost = self.acknowledged > self.settled;
        if self.unnoted > self.settled {
            self.noted.clear();
            self.doubt(0..u64::MAX);
        }
        for (_, range) in std::mem::take(&mut self.noted) {
            self.doubt(range);
        }
        self.settled = self.acknowledged;
        self.lost |= lost;
        lost
    }

    /// Whether a flush has to fail, since changes before it may be lost. The next one needn't, and
    /// what is there now is what is read.
    pub(super) fn tell(&mut self) -> bool {
        self.doubtful.clear();
        std::mem::take(&mut self.lost)
    }

    /// Whether an acknowledged change may be missing there, and nobody has been told yet.
    pub(super) fn is_doubtful(&self, range: &Range<u64>) -> bool {
        let before = self.doubtful.range(..range.end).next_back();
        before.is_some_and(|(_, end)| *end > range.start)
    }

    fn doubt(&mut self, range: Range<u64>) {
        let (mut start, mut end) = (range.start, range.end);
        while let Some((&from, &to)) = self.doubtful.range(..=end).next_back() {
            if to < start {
                break;
            }
            (start, end) = (start.min(from), end.max(to));
            self.doubtful.remove(&from);
        }
        self.doubtful.insert(start, end);
    }

    /// It was written anew.
    fn trust(&mut self, range: &Range<u64>) {
        while let Some((&from, &to)) = self.doubtful.range(..range.end).next_back() {
            if to <= range.start {
                return;
            }
            self.doubtful.remove(&from);
            if to > range.end {
                self.doubtful.insert(range.end, to);
            }
            if from < range.start {
                self.doubtful.insert(from, range.start);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_flush_fails_where_acknowledged_changes_went_with_a_connection() {
        let mut durable = Durable::default();
        durable.change(&(0..512), false);
        assert!(durable.broke() && durable.tell());
        assert!(!durable.tell() && !durable.broke(), "once");
    }

    #[test]
    fn nothing_is_lost_behind_a_flush_and_what_came_after_it_was_sent_is() {
        let mut durable = Durable::default();
        durable.change(&(0..512), false);
        let covered = durable.covered();
        durable.flushed(covered);
        assert!(!durable.broke() && !durable.tell());
        durable.change(&(0..512), false);
        let covered = durable.covered();
        durable.change(&(0..512), false);
        durable.flushed(covered);
        assert!(durable.broke() && durable.tell());
    }

    #[test]
    fn a_second_loss_before_anybody_was_told_is_told_with_the_first() {
        let mut durable = Durable::default();
        durable.change(&(0..512), false);
        assert!(durable.broke());
        assert!(!durable.broke());
        assert!(durable.tell());
        durable.change(&(0..512), false);
        assert!(durable.broke() && durable.tell());
    }

    #[test]
    fn what_was_lost_is_not_read_until_it_was_told_or_written_anew() {
        let mut durable = Durable::default();
        durable.change(&(0..512), false);
        let covered = durable.covered();
        for at in [1024, 1536, 4096] {
            durable.change(&(at..at + 512), false);
        }
        durable.change(&(8192..8704), true);
        durable.flushed(covered);
        assert!(!durable.is_doubtful(&(0..u64::MAX)), "the other side has them");
        assert!(durable.broke());
        let doubtful = |durable: &Durable| -> Vec<u64> {
            (0..20).map(|n| n * 512).filter(|at| durable.is_doubtful(&(*at..at + 512))).collect()
        };
        assert_eq!(doubtful(&durable), [1024, 1536, 4096]);
        assert!(durable.is_doubtful(&(0..1025)) && !durable.is_doubtful(&(2048..4096)));
        durable.change(&(1536..4097), false);
        assert_eq!(doubtful(&durable), [1024, 4096]);
        assert!(durable.broke());
        assert_eq!(doubtful(&durable), (1024..4608).step_by(512).collect::<Vec<_>>());
        durable.change(&(2048..2560), true);
        assert_eq!(doubtful(&durable).len(), 6);
        assert!(durable.tell() && doubtful(&durable).is_empty());
    }

    #[test]
    fn a_flush_covers_no_more_than_was_acknowledged_before_it_where_changes_follow_each_other() {
        let mut durable = Durable::default();
        durable.change(&(0..512), false);
        let covered = durable.covered();
        durable.change(&(512..1024), false);
        durable.flushed(covered);
        assert!(durable.broke() && durable.is_doubtful(&(512..1024)));
    }

    #[test]
    fn changes_that_are_too_many_to_note_may_lie_anywhere() {
        let mut durable = Durable::default();
        for n in 0..=MOST_NOTED as u64 {
            durable.change(&(n * 1024..n * 1024 + 512), false);
        }
        let covered = durable.covered();
        durable.change(&(512..1024), false);
        assert!(durable.noted.len() < 2);
        durable.flushed(covered);
        assert!(durable.broke() && durable.is_doubtful(&(512..1024)));
        assert!(!durable.is_doubtful(&(0..512)), "these were flushed");
        durable.change(&(0..512), false);
        assert!(durable.tell());
        for n in 0..=MOST_NOTED as u64 {
            durable.change(&(n * 1024..n * 1024 + 512), false);
        }
        assert!(durable.broke() && durable.is_doubtful(&(1 << 40..1 << 41)));
    }
}
