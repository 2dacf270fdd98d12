//! The requests that a volume's thread has: which ones wait to be sent, which ones are on their way, and what of a read has come.
//!
//! Belongs to that thread alone. No two changes of one block are on their way at a time: so a change that nobody has answered when
//! a connection breaks can be sent again as it is, since no later one can have been done in between (README.md, "Once more").

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::time::Instant;

use bytes::Bytes;
use corewise_blockmq::{IoError, Op, Started};

use super::policy::MOST_TRIES;
use crate::wire::REQUEST_LEN;

/// Most pieces of one read that came before those in front of them.
const MOST_PIECES: usize = 1024;
/// Most errors that one answer may tell: without an end it would keep the thread busy until the request's time is over.
const MOST_ERRORS: u32 = 1024;

/// A request.
pub(super) struct Entry {
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
    /// The other side has said how it ended; its answer is about to be looked at, or waits until all its bytes have left.
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

impl Entry {
    /// Bytes that follow its head.
    pub(super) fn payload(&self) -> u64 {
        if self.rq.op() == Op::Write { self.rq.len() } else { 0 }
    }

    /// Whether a piece of a read may lie here: it was asked for, and hasn't come. And whether its turn has come.
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

    /// Puts a piece in its place, or keeps it until its turn comes. It [may lie there](Entry::takes).
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
    slots: Vec<Option<Box<Entry>>>,
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
        let entry = Box::new(Entry {
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
    pub(super) fn get(&self, slot: usize) -> &Entry {
        self.slots[slot].as_ref().expect(HELD)
    }

    pub(super) fn get_mut(&mut self, slot: usize) -> &mut Entry {
        self.slots[slot].as_mut().expect(HELD)
    }

    /// The request that a cookie names, which was sent on this connection and isn't answered yet.
    pub(super) fn find(&self, cookie: u64, on: usize) -> Option<usize> {
        let slot = (cookie & 0xFFFF) as usize;
        let entry = self.slots.get(slot)?.as_ref()?;
        let named = entry.cookie == cookie && entry.on == Some(on) && !entry.answered;
        named.then_some(slot)
    }

    /// The first in the line, from number `from` on, that may be sent now, and its number there. Changes that have to wait
    /// go to `waiting`: those behind them that meet them wait too, or a large one might never find all its blocks free.
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
        // The bytes that an earlier connection has brought go: it may have been out of order before that was seen.
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

    /// Sends a request again that the other side has not done. False where that was tried often enough.
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
fn holds(slots: &[Option<Box<Entry>>], slot: usize, order: u64) -> bool {
    slots[slot].as_ref().is_some_and(|entry| entry.order == order)
}

fn meet(one: &Range<u64>, other: &Range<u64>) -> bool {
    other.start < one.end && one.start < other.end
}

const HELD: &str = "a slot in the line, or on its way, holds a request";
