//! The requests of a volume's thread: those that wait to be sent, those on their way, and the
//! pieces of reads that have come.
//!
//! Only that thread uses the table. No two changes of one block are on their way at a time. So a
//! change without a reply when a connection breaks can be sent again as it is. No later change can
//! have been done in between (README.md, "Requests that are sent again").
//!
//! [`Durable`] records which of the acknowledged changes are durable, as far as the server says.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::time::Instant;

use bytes::Bytes;
use corewise_blockmq::{IoError, Op, Started};

use super::policy::MOST_TRIES;
use crate::wire::REQUEST_LEN;

/// Largest number of pieces of one read that came out of order.
const MOST_PIECES: usize = 1024;
/// Largest number of error chunks in one reply: an endless series would keep the thread busy until
/// the request's timeout.
const MOST_ERRORS: u32 = 1024;

/// A request in the table.
pub(super) struct TableEntry {
    pub(super) rq: Started,
    /// Sequence number of its arrival.
    order: u64,
    /// Number of times that it was sent.
    tries: u32,
    /// Connection on which it was sent, while it is on its way.
    pub(super) on: Option<usize>,
    /// Cookie by which replies name it; each attempt has another one.
    pub(super) cookie: u64,
    pub(super) head: [u8; REQUEST_LEN],
    /// True until all its bytes have been sent.
    pub(super) leaving: bool,
    /// True if the reply has come. It is about to be handled, or waits until all bytes of the
    /// request have been sent.
    pub(super) answered: bool,
    /// Result, if the reply came before all bytes of the request had been sent.
    pub(super) answer: Option<Result<(), IoError>>,
    /// Error of an error chunk in an unfinished reply.
    pub(super) error: Option<IoError>,
    /// Number of error chunks so far.
    errors: u32,
    /// True if extents have come.
    pub(super) has_extents: bool,
    /// Number of changes that a flush covers.
    pub(super) covers: u64,
    /// Pieces of a read that came out of order, by their start.
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
    /// Returns the number of payload bytes after the request's head.
    pub(super) fn payload(&self) -> u64 {
        if self.rq.op() == Op::Write { self.rq.len() } else { 0 }
    }

    /// Returns `None` if no piece of the read may lie here: it was not asked for, or has already
    /// come. Returns true if the piece is the next one in order.
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

    /// Returns the offset of the next byte of a read.
    fn at(&self) -> u64 {
        self.rq.offset() + self.rq.filled()
    }

    /// Counts an error chunk, and returns true unless there are too many.
    pub(super) fn may_err(&mut self) -> bool {
        self.errors += 1;
        self.errors <= MOST_ERRORS
    }

    /// Stores a piece in the buffer, or keeps it until the pieces before it have come. The piece
    /// [may lie there](TableEntry::takes).
    pub(super) fn put_piece(&mut self, start: u64, piece: Piece) {
        self.early.insert(start, piece);
        self.catch_up();
    }

    /// Stores the pieces that have become the next ones in order.
    pub(super) fn catch_up(&mut self) {
        while let Some(piece) = self.early.remove(&self.at()) {
            match piece {
                Piece::Data(bytes) => _ = self.rq.put(&bytes),
                Piece::Zeroes(n) => _ = self.rq.put_zeroes(n),
            }
        }
    }

    /// Returns true if all that was asked for has come.
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
    /// Requests that wait to be sent, in the order of their arrival.
    queue: VecDeque<usize>,
    /// Requests by deadline, each with its sequence number. All have the same timeout.
    due: VecDeque<(Instant, u64, usize)>,
    /// Changes on their way.
    changing: Vec<(usize, Range<u64>)>,
    arrived: u64,
    sent: u64,
    /// Number of requests on their way.
    pub(super) on_their_way: usize,
}

impl Table {
    pub(super) fn is_empty(&self) -> bool {
        self.free.len() == self.slots.len()
    }

    /// Puts a request at the end of the queue.
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
        self.queue.push_back(slot);
        if self.due.len() > 2 * self.slots.len() + 64 {
            // Entries of ended requests pile up behind one that takes long.
            let slots = &self.slots;
            self.due.retain(|&(_, order, slot)| holds(slots, slot, order));
        }
        self.due.push_back((deadline, self.arrived, slot));
    }

    /// Returns the request in a slot that the caller knows to be filled.
    pub(super) fn get(&self, slot: usize) -> &TableEntry {
        self.slots[slot].as_ref().expect(HELD)
    }

    pub(super) fn get_mut(&mut self, slot: usize) -> &mut TableEntry {
        self.slots[slot].as_mut().expect(HELD)
    }

    /// Returns the slot of the unanswered request with this cookie that was sent on this
    /// connection.
    pub(super) fn find(&self, cookie: u64, on: usize) -> Option<usize> {
        let slot = (cookie & 0xFFFF) as usize;
        let entry = self.slots.get(slot)?.as_ref()?;
        let named = entry.cookie == cookie && entry.on == Some(on) && !entry.answered;
        named.then_some(slot)
    }

    /// Returns the first request of the queue, from index `from` on, that may be sent now, and its
    /// index. Changes that have to wait are added to `waiting`, and later changes that overlap one
    /// of them wait too. Otherwise a large change might never find all its blocks free.
    pub(super) fn next(
        &self,
        from: usize,
        waiting: &mut Vec<Range<u64>>,
    ) -> Option<(usize, usize)> {
        let rest = self.queue.iter().enumerate().skip(from);
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

    /// Returns the first request of the queue, whether or not it may be sent.
    pub(super) fn first(&self) -> Option<usize> {
        self.queue.front().copied()
    }

    /// Takes the request at index `n` from the queue and puts it on its way.
    pub(super) fn send(&mut self, n: usize, on: usize) -> usize {
        let slot = self.queue.remove(n).expect("the caller was given this number");
        self.sent += 1;
        let cookie = self.sent << 16 | slot as u64;
        let entry = self.get_mut(slot);
        // Bytes that an earlier connection brought are dropped: that connection may have been
        // faulty before the fault was noticed.
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

    /// Removes a request, which the caller completes.
    pub(super) fn remove(&mut self, slot: usize) -> Started {
        let entry = self.slots[slot].take().expect(HELD);
        self.free.push(slot);
        if entry.on.is_some() {
            self.on_their_way -= 1;
            self.changing.retain(|(other, _)| *other != slot);
        } else {
            self.queue.retain(|other| *other != slot);
        }
        entry.rq
    }

    /// Puts a request that the server has not done back into the queue. Returns false if it has
    /// been sent often enough.
    pub(super) fn requeue(&mut self, slot: usize) -> bool {
        self.on_their_way -= 1;
        self.changing.retain(|(other, _)| *other != slot);
        let entry = self.get_mut(slot);
        entry.on = None;
        (entry.answered, entry.answer) = (false, None);
        (entry.error, entry.errors) = (None, 0);
        entry.has_extents = false;
        entry.early.clear();
        let (order, again) = (entry.order, entry.tries < MOST_TRIES);
        let at = self.queue.partition_point(|&other| self.get(other).order < order);
        self.queue.insert(at, slot);
        again
    }

    /// Returns the requests on their way, in the order of their arrival.
    pub(super) fn sent(&self) -> Vec<usize> {
        let sent = |slot: &usize| self.slots[*slot].as_ref().is_some_and(|e| e.on.is_some());
        let mut all: Vec<usize> = (0..self.slots.len()).filter(sent).collect();
        all.sort_unstable_by_key(|&slot| self.get(slot).order);
        all
    }

    /// Returns the first request whose deadline has passed.
    pub(super) fn late(&mut self, now: Instant) -> Option<usize> {
        self.deadline().filter(|deadline| *deadline <= now)?;
        self.due.front().map(|(_, _, slot)| *slot)
    }

    /// Returns the next deadline.
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

/// Returns true if a slot holds the request with sequence number `order`.
fn holds(slots: &[Option<Box<TableEntry>>], slot: usize, order: u64) -> bool {
    slots[slot].as_ref().is_some_and(|entry| entry.order == order)
}

fn meet(one: &Range<u64>, other: &Range<u64>) -> bool {
    other.start < one.end && one.start < other.end
}

const HELD: &str = "a slot in the queue, or on its way, holds a request";

/// Largest number of changes that are recorded with their ranges.
const MOST_NOTED: usize = 16 << 10;

/// A count of the acknowledged changes. A flush that succeeds covers those that were counted before
/// it was sent.
#[derive(Debug, Default)]
pub(super) struct Durable {
    /// Acknowledged changes that aren't durable by themselves, as those with FUA are.
    acknowledged: u64,
    /// Number of them that are durable, or were lost with a connection.
    settled: u64,
    /// Ranges of the unsettled changes, each with its number. A change that begins where the last
    /// one ended extends that entry, and counts as unsettled with it.
    noted: VecDeque<(u64, Range<u64>)>,
    /// Number of the last change that wasn't recorded for lack of room. Changes up to it may lie
    /// anywhere.
    unnoted: u64,
    /// True if changes were lost with a connection and no flush has failed for it yet.
    lost: bool,
    /// Ranges of the lost changes, from start to end. The server may return older data there.
    doubtful: BTreeMap<u64, u64>,
}

impl Durable {
    /// Records an acknowledged change. `durable` is true if it is durable by itself.
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

    /// Returns the number of changes that a flush sent now will cover.
    pub(super) fn covered(&self) -> u64 {
        self.acknowledged
    }

    /// Records a flush that succeeded and covers `covered` changes, on the connections on which
    /// they were acknowledged.
    pub(super) fn flushed(&mut self, covered: u64) {
        self.settled = self.settled.max(covered);
        while self.noted.front().is_some_and(|(number, _)| *number <= self.settled) {
            self.noted.pop_front();
        }
    }

    /// Records that the connections are gone. Returns true if changes may be lost.
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

    /// Returns true if a flush has to fail, since changes before it may be lost. After that the
    /// next flush may succeed, and reads return the server's data.
    pub(super) fn tell(&mut self) -> bool {
        self.doubtful.clear();
        std::mem::take(&mut self.lost)
    }

    /// Returns true if an acknowledged change in the range may be lost and no flush has failed for
    /// it yet.
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

    /// Removes a range that was written anew from the lost ones.
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
