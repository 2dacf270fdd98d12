//! The published word of a pool: what a push has to know, mirrored from the counts under the lock.
//!
//! Written only under the pool's lock, read by every push without it. See `README.md` for the
//! protocol.

use corewise_sync::atomic::{AtomicU32, Ordering, aside};

use crate::pool::policy::Counts;

/// A push has to wake (or make) a worker of this pool.
const WAKE: u32 = 1;
/// The pod's cores are all taken: a push may look for another pod.
const SATURATED: u32 = 1 << 1;
/// More workers hold a core than the pod has: who looks for work next goes idle.
const CROWDED: u32 = 1 << 2;
/// The pool takes no more work.
const CLOSED: u32 = 1 << 3;
/// The pod has no CPU that can be used: its workers run elsewhere.
const AWAY: u32 = 1 << 4;
/// The system refused a thread, and hasn't been asked again.
const REFUSED: u32 = 1 << 5;
/// The pool is short of workers, and somebody who waits for an item can run that.
const WANTED: u32 = 1 << 6;
/// The pod has no share of what may run at once: work that may run anywhere is for others.
const ASIDE: u32 = 1 << 7;
/// A searcher is under way: a push that finds something before it counts what it leaves to that one.
const SEARCHING: u32 = 1 << 8;
/// What waits is left to the workers that run tiny items: a push asks the timekeeper to look after them.
const ENOUGH: u32 = 1 << 9;
/// From here on: among how many workers what waits is shared.
const SHARE: u32 = 16;

/// A decoded reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Reading(u32);

impl Reading {
    pub(super) fn of(counts: &Counts, rest: Rest) -> Reading {
        let bits = [
            (counts.wake_on_push(), WAKE),
            (counts.saturated(), SATURATED),
            (!counts.may_take() || counts.has_too_many(), CROWDED),
            (counts.searching, SEARCHING),
            (counts.has_enough(), ENOUGH),
            (rest.closed, CLOSED),
            (rest.away, AWAY),
            (rest.aside, ASIDE),
            (rest.refused, REFUSED),
            (rest.wanted && counts.is_short(), WANTED),
        ];
        let workers = if counts.has_enough() { counts.takers } else { counts.base };
        let workers = u32::try_from(workers).unwrap_or(u32::MAX).min(u32::from(u16::MAX));
        let bits = bits.into_iter().filter_map(|(set, bit)| set.then_some(bit));
        Reading(bits.fold(workers << SHARE, |all, bit| all | bit))
    }

    /// For a push, before which nothing lay there if it is the `first`. The searcher comes for that one. Counted is only
    /// what finds that it hasn't come yet: one item at a time writes no line for that.
    #[inline]
    pub(super) fn after_push(self, first: impl FnOnce() -> bool) -> Reading {
        if self.searching() && first() { Reading(self.0 & !SEARCHING) } else { self }
    }

    pub(crate) fn wake(self) -> bool {
        self.0 & WAKE != 0
    }
    pub(crate) fn saturated(self) -> bool {
        self.0 & SATURATED != 0
    }
    /// What waits is left to the workers that are at it.
    pub(crate) fn enough(self) -> bool {
        self.0 & ENOUGH != 0
    }
    pub(crate) fn crowded(self) -> bool {
        self.0 & CROWDED != 0
    }
    pub(crate) fn closed(self) -> bool {
        self.0 & CLOSED != 0
    }
    pub(crate) fn away(self) -> bool {
        self.0 & AWAY != 0
    }
    pub(crate) fn wanted(self) -> bool {
        self.0 & WANTED != 0
    }
    pub(crate) fn searching(self) -> bool {
        self.0 & SEARCHING != 0
    }
    /// Among how many workers what waits is shared.
    pub(super) fn workers(self) -> u64 {
        u64::from(self.0 >> SHARE)
    }
    pub(crate) fn aside(self) -> bool {
        self.0 & ASIDE != 0
    }
    /// A worker of it may be woken for the work of another pod.
    pub(crate) fn may_help(self) -> bool {
        (self.wake() || self.enough() && !self.saturated()) && !self.aside()
    }
    /// The pusher has to see to something.
    #[inline]
    pub(crate) fn concerns_pusher(self) -> bool {
        self.0 & (WAKE | CLOSED | SATURATED | SEARCHING | ENOUGH) != 0
    }
    /// A worker that has taken an item has to see to something: another worker is to be named or
    /// made, or the system to be asked for a thread again.
    pub(crate) fn concerns_taker(self) -> bool {
        self.0 & (WAKE | REFUSED) != 0
    }
}

/// What a reading has beside the counts.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Rest {
    pub(super) closed: bool,
    pub(super) away: bool,
    pub(super) aside: bool,
    pub(super) refused: bool,
    /// Somebody waits for an item of this pool, and could run it.
    pub(super) wanted: bool,
}

/// The word.
#[derive(Debug)]
pub(crate) struct Word {
    /// A: a [`Reading`]; written under the pool's lock.
    bits: AtomicU32,
}

impl Word {
    pub(crate) fn new(reading: Reading) -> Self {
        Word { bits: AtomicU32::new(reading.0) }
    }

    /// SeqCst: Check. A push comes before it, see `README.md`.
    #[inline]
    pub(crate) fn read(&self) -> Reading {
        Reading(self.bits.load(Ordering::SeqCst))
    }

    /// Publishes; the caller holds the pool's lock. Returns the word published before. A swap, for the sake of its
    /// order before later loads.
    pub(crate) fn publish(&self, reading: Reading) -> Reading {
        let old = Reading(self.bits.load(Ordering::Relaxed));
        if old != reading {
            self.bits.swap(reading.0, Ordering::SeqCst);
        }
        old
    }
}

/// How much is left to the searcher that is under way.
#[derive(Debug, Default)]
pub(crate) struct Left {
    /// A: one, and the pushes since it was named that found something before them. A hint: a count that is off names a
    /// searcher too few or too many, so Relaxed.
    pushes: aside::AtomicU32,
}

impl Left {
    /// Under the pool's lock: a searcher is named, for one push.
    pub(super) fn begin(&self) {
        if self.pushes.load(Ordering::Relaxed) != 1 {
            self.pushes.store(1, Ordering::Relaxed);
        }
    }

    /// One more is left to it: how many there are. Once there are many nobody writes any more.
    pub(super) fn one_more(&self) -> u32 {
        match self.pushes.load(Ordering::Relaxed) {
            many @ MANY.. => many,
            _ => self.pushes.fetch_add(1, Ordering::Relaxed) + 1,
        }
    }
}

/// More than so many aren't counted: a storm's producers write one line for each, and wake more than tiny items pay.
const MANY: u32 = 9;
