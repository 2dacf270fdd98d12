//! The state word of a work item: pending, running, handed over, and which instance it is.
//!
//! One word, changed by read-modify-writes only; every change has a name here, and nobody else
//! touches the bits. The proof stands in `work_state.md`.
//!
//! | bits | name | meaning | set by | cleared by |
//! |---|---|---|---|---|
//! | 0 | `PENDING` | queued, or handed over, and not started | `pend` | `start`, `run_claimed`, `cancel` |
//! | 1 | `RUNNING` | somebody runs the function | `start`, `run_claimed` | `finish` |
//! | 2 | `AGAIN` | a second worker found it running and left it to the first; implies `PENDING` | `hand_over`, `run_claimed` | `finish`, `run_claimed`, `cancel`, `unclaim` |
//! | 3 | `FLUSHERS` | somebody waits for an instance; set and cleared under the flushers' lock | `announce_flusher` | `clear_flushers` |
//! | 4 | `CLAIMED` | the pending instance is its claimant's; implies `PENDING` | `claim`, `finish` | `run_claimed`, `cancel`, `unclaim` |
//! | 5 | `ALONE` | whoever has the item has it alone: the word is never changed by who runs it | `alone` | never |
//! | 8..24 | disable depth | above 0 nothing is queued | `disable` | `enable` |
//! | 24..36 | turn | how often the instance was given back by a claimant; wraps | `unclaim` | never |
//! | 36.. | sequence | number of the instance queued last | `pend` | never: it wraps |

use std::fmt;

use corewise_sync::atomic::{AtomicU64, Ordering};

const PENDING: u64 = 1;
const RUNNING: u64 = 1 << 1;
const AGAIN: u64 = 1 << 2;
const FLUSHERS: u64 = 1 << 3;
const CLAIMED: u64 = 1 << 4;
const ALONE: u64 = 1 << 5;
const DEPTH_SHIFT: u32 = 8;
const DEPTH_ONE: u64 = 1 << DEPTH_SHIFT;
const DEPTH: u64 = (u16::MAX as u64) << DEPTH_SHIFT;
const TURN_ONE: u64 = 1 << 24;
const TURN: u64 = 0xfff * TURN_ONE;
const SEQ_SHIFT: u32 = 36;
const SEQ_ONE: u64 = 1 << SEQ_SHIFT;

/// Number of an instance: one successful queueing.
pub(crate) type Seq = u64;

/// Whether instance `a` is `b` or came before it. Sequence numbers wrap after 2^28 instances, so
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
    #[inline]
    pub(crate) fn pending(self) -> bool {
        self.0 & PENDING != 0
    }
    #[inline]
    pub(crate) fn running(self) -> bool {
        self.0 & RUNNING != 0
    }
    /// Handed over: it lies in no container.
    #[inline]
    pub(crate) fn again(self) -> bool {
        self.0 & AGAIN != 0
    }
    #[inline]
    pub(crate) fn claimed(self) -> bool {
        self.0 & CLAIMED != 0
    }
    /// It is pending for its whole life, and whoever holds it does so alone.
    #[inline]
    pub(crate) fn alone(self) -> bool {
        self.0 & ALONE != 0
    }
    /// How often it is disabled.
    pub(crate) fn depth(self) -> u16 {
        ((self.0 & DEPTH) >> DEPTH_SHIFT) as u16
    }
    #[inline]
    pub(crate) fn seq(self) -> Seq {
        self.0 >> SEQ_SHIFT
    }
}

impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkState")
            .field("pending", &self.pending())
            .field("running", &self.running())
            .field("again", &self.again())
            .field("claimed", &self.claimed())
            .field("disabled", &self.depth())
            .field("flushers", &(self.0 & FLUSHERS != 0))
            .field("seq", &self.seq())
            .finish()
    }
}

/// What the worker that finished an instance owes.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub(crate) struct Finished {
    /// Another worker had handed the next instance over, and it is the caller's claim now.
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

    /// Of an item that is queued once, by who makes it, and that nobody else has.
    pub(crate) fn alone() -> Self {
        WorkState { word: AtomicU64::new(PENDING | ALONE | SEQ_ONE) }
    }

    #[inline]
    pub(crate) fn snapshot(&self) -> Snapshot {
        Snapshot(self.word.load(Ordering::Acquire))
    }

    /// Makes it pending: true where it wasn't, so that the caller now owns the job slot and has to
    /// queue it. Also the call that returns false is a read-modify-write: what its caller wrote
    /// before is seen by the instance that was pending already (its `start` acquires this
    /// release). A disabled item refuses, and nothing is changed.
    #[inline]
    pub(crate) fn pend(&self) -> bool {
        let mut now = self.word.load(Ordering::Relaxed);
        loop {
            if now & PENDING == 0 && now & DEPTH != 0 {
                return false;
            }
            let next = if now & PENDING != 0 { now } else { now.wrapping_add(SEQ_ONE) | PENDING };
            match self.word.compare_exchange_weak(now, next, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return now & PENDING == 0,
                Err(seen) => now = seen,
            }
        }
    }

    /// From pending to running, given a snapshot that is neither running nor claimed. The caller has
    /// copied the job before: once the bit is clear the next queuer owns the slot. False where the
    /// word moved meanwhile.
    #[inline]
    pub(crate) fn start(&self, from: Snapshot) -> bool {
        debug_assert!(from.pending() && !from.running() && !from.claimed());
        self.change(from, (from.0 & !PENDING) | RUNNING)
    }

    /// Leaves the pending instance to the worker that runs the item now; the job slot stays filled.
    /// False where the word moved meanwhile.
    #[inline]
    pub(crate) fn hand_over(&self, from: Snapshot) -> bool {
        debug_assert!(from.pending() && from.running() && !from.claimed());
        // Release: pairs with the Acquire in `finish`, which then reads the job slot.
        self.change(from, from.0 | AGAIN)
    }

    /// Takes the pending instance away from everybody else. False where the word moved meanwhile.
    #[inline]
    pub(crate) fn claim(&self, from: Snapshot) -> bool {
        debug_assert!(from.pending() && !from.claimed());
        self.change(from, from.0 | CLAIMED)
    }

    #[inline]
    fn change(&self, from: Snapshot, to: u64) -> bool {
        self.word.compare_exchange(from.0, to, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// The function returned. Where an instance was handed over it is claimed by the caller in the
    /// same step, and `RUNNING` stays set if the caller `stays` to run it; unless somebody else has
    /// claimed it: then it is theirs.
    #[inline]
    pub(crate) fn finish(&self, stays: bool) -> Finished {
        let mut now = self.word.load(Ordering::Relaxed);
        loop {
            debug_assert!(now & RUNNING != 0);
            let again = now & (AGAIN | CLAIMED) == AGAIN;
            let mut next = now;
            if again {
                next = (next & !AGAIN) | CLAIMED;
            }
            if !again || !stays {
                next &= !RUNNING;
            }
            match self.word.compare_exchange_weak(now, next, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return Finished { again, flushers: now & FLUSHERS != 0 },
                Err(seen) => now = seen,
            }
        }
    }

    /// Starts the instance that `finish` claimed for the caller, which stayed (after the job was
    /// copied); its number.
    #[inline]
    pub(crate) fn restart(&self) -> Seq {
        let old = self.word.fetch_and(!(PENDING | CLAIMED), Ordering::AcqRel);
        debug_assert!(old & (PENDING | CLAIMED | RUNNING) == PENDING | CLAIMED | RUNNING);
        old >> SEQ_SHIFT
    }

    /// The claimant runs the instance itself (it has copied the job); its number. `None` where
    /// another instance runs: it is left to that one's worker, with the job slot filled.
    pub(crate) fn run_claimed(&self) -> Option<Seq> {
        let mut now = self.word.load(Ordering::Relaxed);
        loop {
            debug_assert!(now & (PENDING | CLAIMED) == PENDING | CLAIMED);
            let runs = now & RUNNING != 0;
            let next = if runs {
                (now & !CLAIMED) | AGAIN
            } else {
                (now & !(PENDING | CLAIMED | AGAIN)) | RUNNING
            };
            match self.word.compare_exchange_weak(now, next, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return (!runs).then_some(now >> SEQ_SHIFT),
                Err(seen) => now = seen,
            }
        }
    }

    /// The claimant gives the instance back: it is about to put it into a container. The word is
    /// another one than before the claim, so that who has read it then can't claim on it: the
    /// instance may lie elsewhere now.
    pub(crate) fn unclaim(&self) {
        let mut now = self.word.load(Ordering::Relaxed);
        loop {
            debug_assert!(now & (PENDING | CLAIMED) == PENDING | CLAIMED);
            let next = now & !(CLAIMED | AGAIN | TURN) | (now + TURN_ONE) & TURN;
            match self.word.compare_exchange_weak(now, next, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return,
                Err(seen) => now = seen,
            }
        }
    }

    /// Under the flushers' lock: the claimant drops the instance without running it (after it
    /// copied the job). What it was.
    pub(crate) fn cancel(&self) -> Snapshot {
        let old = self.word.fetch_and(!(PENDING | CLAIMED | AGAIN), Ordering::AcqRel);
        debug_assert!(old & (PENDING | CLAIMED) == PENDING | CLAIMED);
        Snapshot(old)
    }

    /// Disables queueing once more; `None` where that has been done 65 535 times. What it was.
    pub(crate) fn disable(&self) -> Option<Snapshot> {
        let mut now = self.word.load(Ordering::Relaxed);
        while now & DEPTH != DEPTH {
            let next = now + DEPTH_ONE;
            match self.word.compare_exchange_weak(now, next, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return Some(Snapshot(now)),
                Err(seen) => now = seen,
            }
        }
        None
    }

    /// Takes one `disable` back; how many are left. `None` where there was none.
    pub(crate) fn enable(&self) -> Option<u16> {
        let mut now = self.word.load(Ordering::Relaxed);
        while now & DEPTH != 0 {
            let next = now - DEPTH_ONE;
            match self.word.compare_exchange_weak(now, next, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return Some(Snapshot(next).depth()),
                Err(seen) => now = seen,
            }
        }
        None
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
        assert!(state.finish(true).again);
        assert_eq!(state.restart(), 2);
        assert!(!state.finish(true).again);
        assert!(!state.snapshot().running());
    }

    #[test]
    fn a_claimed_instance_is_left_to_its_claimant() {
        let state = WorkState::new();
        assert!(state.pend() && state.start(state.snapshot()));
        assert!(state.pend() && state.hand_over(state.snapshot()));
        assert!(state.claim(state.snapshot()));
        assert!(!state.finish(true).again, "the worker lets it go");
        assert!(!state.pend(), "it is still pending");
        assert_eq!(state.run_claimed(), Some(2));
        assert!(state.pend() && state.claim(state.snapshot()));
        assert_eq!(state.run_claimed(), None, "it runs already: handed over");
        assert!(state.finish(false).again, "who doesn't stay gets the claim");
        let now = state.snapshot();
        assert!(now.claimed() && !now.running() && !now.again());
        state.unclaim();
        assert!(state.snapshot().pending() && !state.snapshot().claimed());
    }

    #[test]
    fn a_claim_fails_on_what_was_read_before_the_instance_was_claimed_and_put_elsewhere() {
        let state = WorkState::new();
        assert!(state.pend());
        for _ in 0..5_000 {
            let read = state.snapshot();
            assert!(state.claim(state.snapshot()));
            state.unclaim();
            assert!(!state.claim(read));
            assert_eq!((state.snapshot().depth(), state.snapshot().seq()), (0, 1));
        }
    }

    #[test]
    fn disabling_is_counted_and_an_attempt_leaves_no_trace() {
        let state = WorkState::new();
        assert!(state.disable().is_some() && state.disable().is_some());
        let before = state.snapshot();
        assert!(!state.pend());
        assert!(state.snapshot() == before);
        assert_eq!((state.enable(), state.enable(), state.enable()), (Some(1), Some(0), None));
        assert!(state.pend());
        assert_eq!(state.snapshot().seq(), 1, "disabling isn't counted among the instances");
        for _ in 0..u16::MAX {
            assert!(state.disable().is_some());
        }
        assert!(state.disable().is_none(), "the depth is full");
        assert_eq!((state.snapshot().depth(), state.snapshot().seq()), (u16::MAX, 1));
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
