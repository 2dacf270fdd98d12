//! The state word of a work item: pending, running, handed over, and which instance it is.
//!
//! One word, changed by read-modify-writes only; every change has a name here, and nobody else
//! touches the bits. The proof stands in `work_state.md`.
//!
//! | bits | name | meaning | set by | cleared by |
//! |---|---|---|---|---|
//! | 0 | `PENDING` | queued, or handed over, and not started: its holder owns the item's job slot | `pend` | `start`, `restart`, `cancel` |
//! | 1 | `RUNNING` | some worker runs the function | `start` | `finish` |
//! | 2 | `AGAIN` | a second worker found it running and left it to the first; implies `PENDING` | `hand_over` | `restart` |
//! | 3 | `FLUSHERS` | somebody waits for an instance; set and cleared under the flushers' lock | `announce_flusher` | `clear_flushers` |
//! | 24.. | sequence | number of the instance queued last | `pend` | never: it wraps |

use std::fmt;

use corewise_sync::atomic::{AtomicU64, Ordering};

const PENDING: u64 = 1;
const RUNNING: u64 = 1 << 1;
const AGAIN: u64 = 1 << 2;
const FLUSHERS: u64 = 1 << 3;
const SEQ_SHIFT: u32 = 24;
const SEQ_ONE: u64 = 1 << SEQ_SHIFT;

/// Number of an instance: one successful queueing.
pub(crate) type Seq = u64;

/// Whether instance `a` is `b` or came before it. Sequence numbers wrap after 2^40 instances, so
/// they are compared by distance.
pub(crate) fn at_most(a: Seq, b: Seq) -> bool {
    (b.wrapping_sub(a) & (u64::MAX >> SEQ_SHIFT)) < 1 << (63 - SEQ_SHIFT)
}

/// A number that is `at_most` that of every instance around `seq`: what waits for it is woken by
/// whichever instance finishes next.
pub(crate) fn long_before(seq: Seq) -> Seq {
    seq.wrapping_sub(1 << (62 - SEQ_SHIFT)) & (u64::MAX >> SEQ_SHIFT)
}

/// A decoded reading of the word.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Snapshot(u64);

impl Snapshot {
    pub(crate) fn pending(self) -> bool {
        self.0 & PENDING != 0
    }
    pub(crate) fn running(self) -> bool {
        self.0 & RUNNING != 0
    }
    pub(crate) fn seq(self) -> Seq {
        self.0 >> SEQ_SHIFT
    }
}

impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkState")
            .field("pending", &self.pending())
            .field("running", &self.running())
            .field("again", &(self.0 & AGAIN != 0))
            .field("flushers", &(self.0 & FLUSHERS != 0))
            .field("seq", &self.seq())
            .finish()
    }
}

/// What the worker that finished an instance owes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub(crate) struct Finished {
    /// Another worker handed the next instance over: take the job from the slot, `restart`, run
    /// it.
    pub(crate) again: bool,
    /// Wake those who wait for this instance.
    pub(crate) flushers: bool,
}

/// The word.
pub(crate) struct WorkState {
    /// A: the bits of the table above.
    word: AtomicU64,
}

impl WorkState {
    pub(crate) fn new() -> Self {
        WorkState { word: AtomicU64::new(0) }
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        Snapshot(self.word.load(Ordering::Acquire))
    }

    /// Makes it pending: true where it wasn't, so that the caller now owns the job slot and has to
    /// queue it. Also the call that returns false is a read-modify-write: what its caller wrote
    /// before is seen by the instance that was pending already (its `start` acquires this
    /// release).
    pub(crate) fn pend(&self) -> bool {
        let mut now = self.word.load(Ordering::Relaxed);
        loop {
            let next = if now & PENDING != 0 { now } else { now.wrapping_add(SEQ_ONE) | PENDING };
            match self.word.compare_exchange_weak(now, next, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return now & PENDING == 0,
                Err(seen) => now = seen,
            }
        }
    }

    /// From pending to running, given a snapshot that isn't running. The holder of `PENDING` has
    /// emptied the job slot before: once the bit is clear the next queuer owns the slot. False
    /// where the word moved meanwhile.
    pub(crate) fn start(&self, from: Snapshot) -> bool {
        debug_assert!(from.pending() && !from.running());
        let next = (from.0 & !PENDING) | RUNNING;
        self.word.compare_exchange(from.0, next, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Leaves the pending instance to the worker that runs the item now; the job slot stays filled.
    /// False where the word moved meanwhile.
    pub(crate) fn hand_over(&self, from: Snapshot) -> bool {
        debug_assert!(from.pending() && from.running());
        // Release: pairs with the Acquire in `finish`, which then reads the job slot.
        self.word
            .compare_exchange(from.0, from.0 | AGAIN, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }

    /// The function returned. `RUNNING` stays set where another instance was handed over.
    pub(crate) fn finish(&self) -> Finished {
        let mut now = self.word.load(Ordering::Relaxed);
        loop {
            debug_assert!(now & RUNNING != 0);
            let again = now & AGAIN != 0;
            let next = if again { now } else { now & !RUNNING };
            match self.word.compare_exchange_weak(now, next, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return Finished { again, flushers: now & FLUSHERS != 0 },
                Err(seen) => now = seen,
            }
        }
    }

    /// Starts the instance that was handed over (after the job slot was emptied); its number.
    pub(crate) fn restart(&self) -> Seq {
        let old = self.word.fetch_and(!(PENDING | AGAIN), Ordering::AcqRel);
        debug_assert!(old & (PENDING | AGAIN | RUNNING) == PENDING | AGAIN | RUNNING);
        old >> SEQ_SHIFT
    }

    /// Under the flushers' lock: drops the pending instance without running it (after the job slot
    /// was emptied). What it was.
    pub(crate) fn cancel(&self) -> Snapshot {
        Snapshot(self.word.fetch_and(!PENDING, Ordering::AcqRel))
    }

    /// Under the flushers' lock: announces one who waits for the latest instance.
    pub(crate) fn announce_flusher(&self) -> Snapshot {
        Snapshot(self.word.fetch_or(FLUSHERS, Ordering::AcqRel))
    }

    /// Under the flushers' lock, where nobody waits any more.
    pub(crate) fn clear_flushers(&self) {
        self.word.fetch_and(!FLUSHERS, Ordering::AcqRel);
    }
}

impl fmt::Debug for WorkState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.snapshot().fmt(f)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_pending_item_is_not_queued_again() {
        let state = WorkState::new();
        assert!(state.pend());
        assert!(!state.pend());
        assert_eq!(state.snapshot().seq(), 1);
    }

    #[test]
    fn pending_is_clear_while_it_runs_so_that_it_can_be_queued_again() {
        let state = WorkState::new();
        assert!(state.pend());
        assert!(state.start(state.snapshot()));
        assert!(state.pend(), "a running item is not pending");
        assert!(state.hand_over(state.snapshot()));
        assert!(state.finish().again);
        assert_eq!(state.restart(), 2);
        assert!(!state.finish().again);
        assert!(!state.snapshot().running());
    }

    #[test]
    fn sequence_numbers_are_compared_by_distance() {
        let last = u64::MAX >> SEQ_SHIFT;
        assert!(at_most(1, 1) && at_most(1, 2) && !at_most(2, 1));
        assert!(at_most(last, 0) && !at_most(0, last), "0 comes after the last number");
        let half = 1 << (63 - SEQ_SHIFT);
        assert!(at_most(0, half - 1) && !at_most(0, half), "half of the numbers are later");
        for seq in [0, 1, half, last] {
            assert!(at_most(long_before(seq), seq) && at_most(long_before(seq), seq.max(2) - 2));
        }
    }
}
