//! The state word of a work item: pending, running, handed over, and which instance it is.
//!
//! One word, changed by read-modify-writes only; every change has a name here, and nobody else
//! touches the bits. The proof stands in `state.md`.
//!
//! | bits | name | meaning | set by | cleared by |
//! |---|---|---|---|---|
//! | 0 | `PENDING` | queued, or handed over, and not started | `pend` | `start`, `run_claimed`, `cancel` |
//! | 1 | `RUNNING` | somebody runs the function | `start`, `run_claimed` | `finish` |
//! | 2 | `AGAIN` | a second worker found it running and left it to the first; implies `PENDING` | `hand_over`, `run_claimed` | `finish`, `run_claimed`, `cancel`, `unclaim` |
//! | 3 | `FLUSHERS` | somebody waits for an instance; set and cleared under the flushers' lock | `announce_flusher` | `clear_flushers` |
//! | 4 | `CLAIMED` | the pending instance is its claimant's; implies `PENDING` | `claim`, `finish` | `run_claimed`, `cancel`, `unclaim` |
//! | 5 | `ALONE` | the owner of the item has it alone: the word is never changed by its runner | `alone` | never |
//! | 6 | `ORPHAN` | nobody has a handle any more, nor ever will | `orphan` | never |
//! | 7 | `FRESH` | somebody waits who has come since the flushers were looked at; as `FLUSHERS` | `announce_flusher` | `flushers_seen`, `clear_flushers` |
//! | 8..24 | disable depth | above 0 nothing is queued | `disable` | `enable` |
//! | 24..36 | lookers | how many read the job slot at the moment | `peek` | `look_away`, `claim_looked_at` |
//! | 36.. | sequence | number of the instance queued last | `pend` | never: it wraps |

use corewise_sync::atomic::{AtomicU64, Ordering};
use corewise_sync::thread;

use crate::error::{QueueError, Queued};

const PENDING: u64 = 1;
const RUNNING: u64 = 1 << 1;
const AGAIN: u64 = 1 << 2;
const FLUSHERS: u64 = 1 << 3;
const CLAIMED: u64 = 1 << 4;
const ALONE: u64 = 1 << 5;
const ORPHAN: u64 = 1 << 6;
const FRESH: u64 = 1 << 7;
const DEPTH_SHIFT: u32 = 8;
const DEPTH_ONE: u64 = 1 << DEPTH_SHIFT;
const DEPTH: u64 = (u16::MAX as u64) << DEPTH_SHIFT;
const LOOKER: u64 = 1 << 24;
const LOOKERS: u64 = 0xfff * LOOKER;
const SEQ_SHIFT: u32 = 36;
const SEQ_ONE: u64 = 1 << SEQ_SHIFT;

/// Number of an instance: one successful queueing. It wraps after 2^28 of them.
pub(crate) type Seq = u64;

/// A decoded reading of the word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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
    /// It is pending for its whole life, and its holder holds it alone.
    #[inline]
    pub(crate) fn alone(self) -> bool {
        self.0 & ALONE != 0
    }
    /// Somebody waits for an instance.
    #[inline]
    pub(crate) fn has_flushers(self) -> bool {
        self.0 & FLUSHERS != 0
    }
    /// Neither pending nor running.
    #[inline]
    fn idle(self) -> bool {
        self.0 & (PENDING | RUNNING) == 0
    }
    /// Idle, and nobody has it.
    #[inline]
    fn gone(self) -> bool {
        self.idle() && self.is_orphan()
    }
    /// Nobody has a handle any more.
    #[inline]
    pub(crate) fn is_orphan(self) -> bool {
        self.0 & ORPHAN != 0
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

/// What the worker that finished an instance owes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub(crate) struct FinishResult {
    /// Another worker had handed the next instance over, and it is the caller's claim now.
    pub(crate) again: bool,
    /// No instance is left, and nobody has the item: it is the caller's to free.
    pub(crate) last: bool,
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

    /// Of an item that is queued once, by its maker, and that nobody else has.
    pub(crate) fn alone() -> Self {
        WorkState { word: AtomicU64::new(PENDING | ALONE | ORPHAN | SEQ_ONE) }
    }

    /// Of an item that is queued by its maker.
    #[inline]
    pub(crate) fn pending() -> Self {
        WorkState { word: AtomicU64::new(PENDING | SEQ_ONE) }
    }

    #[inline]
    pub(crate) fn snapshot(&self) -> Snapshot {
        Snapshot(self.word.load(Ordering::Acquire))
    }

    /// Makes it pending. `Now`: the caller owns the job slot, at which nobody looks any more, and
    /// has to queue it. `AlreadyPending` is a read-modify-write too: what the caller wrote before
    /// is seen by the instance that was pending (its `start` acquires this release). A disabled
    /// item refuses, and nothing is changed.
    #[inline(always)]
    pub(crate) fn pend(&self) -> Result<Queued, QueueError> {
        // As it nearly always is.
        let now = self.word.load(Ordering::Relaxed);
        if now & (PENDING | DEPTH) == 0 {
            let next = now.wrapping_add(SEQ_ONE | PENDING);
            if self.word.compare_exchange(now, next, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                return Ok(self.pended(now));
            }
        }
        self.pend_slowly()
    }

    #[inline(never)]
    fn pend_slowly(&self) -> Result<Queued, QueueError> {
        let was = self.update(|now| match now {
            _ if now & PENDING != 0 => Some(now),
            _ if now & DEPTH != 0 => None,
            _ => Some(now.wrapping_add(SEQ_ONE) | PENDING),
        });
        let was = was.ok_or(QueueError::Disabled)?;
        Ok(if was & PENDING != 0 { Queued::AlreadyPending } else { self.pended(was) })
    }

    /// The caller has made it pending; what it was.
    #[inline]
    fn pended(&self, was: u64) -> Queued {
        if was & LOOKERS != 0 {
            // At the instance before, which runs: the slot is still read.
            self.outwait_lookers_at_length();
        }
        Queued::Now
    }

    /// What it was; `None` where it stays that, since there is no `next`.
    fn update(&self, next: impl FnMut(u64) -> Option<u64>) -> Option<u64> {
        self.word.fetch_update(Ordering::AcqRel, Ordering::Relaxed, next).ok()
    }

    /// From pending to running, given a snapshot that is neither running nor claimed. The caller
    /// has copied the job before: once the bit is clear the next queuer owns the slot. False where
    /// the word moved meanwhile.
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

    /// The function returned; given a snapshot that nobody looks in, and whose flushers were
    /// collected. Where an instance was handed over it is claimed by the caller in the same step,
    /// and `RUNNING` stays set if the caller `stays` to run it; unless somebody else has claimed
    /// it: then it is theirs. `None` where the word moved meanwhile.
    #[inline]
    pub(crate) fn finish(&self, from: Snapshot, stays: bool) -> Option<FinishResult> {
        let now = from.0;
        debug_assert!(now & RUNNING != 0 && now & LOOKERS == 0);
        let again = now & (AGAIN | CLAIMED) == AGAIN;
        let mut next = now;
        if again {
            next = (next & !AGAIN) | CLAIMED;
        }
        if !again || !stays {
            next &= !RUNNING;
        }
        // Release: what was done with the item comes before it is freed, by any thread.
        self.change(from, next).then_some(FinishResult { again, last: Snapshot(next).gone() })
    }

    /// As [`finish`](WorkState::finish), where there is nothing to it: nobody waits or looks,
    /// nothing was handed over, nothing moves. Whether it was the last instance of an item that
    /// nobody has.
    #[inline]
    pub(crate) fn finish_quickly(&self) -> Option<bool> {
        // Relaxed: the change acquires.
        let now = self.word.load(Ordering::Relaxed);
        if now & (FLUSHERS | FRESH | LOOKERS | AGAIN) != 0 {
            return None;
        }
        self.finish(Snapshot(now), true).map(|finished| finished.last)
    }

    /// Starts the instance that `finish` claimed for the caller, which stayed (after the job was
    /// copied); its number.
    #[inline]
    pub(crate) fn restart(&self) {
        let old = self.word.fetch_and(!(PENDING | CLAIMED), Ordering::AcqRel);
        debug_assert!(old & (PENDING | CLAIMED | RUNNING) == PENDING | CLAIMED | RUNNING);
    }

    /// The claimant runs the instance itself (it has copied the job). False where another instance
    /// runs: it is left to that one's worker, with the job slot filled.
    pub(crate) fn run_claimed(&self) -> bool {
        let was = self.update(|now| {
            debug_assert!(now & (PENDING | CLAIMED) == PENDING | CLAIMED);
            Some(match now & RUNNING {
                0 => now & !(PENDING | CLAIMED | AGAIN) | RUNNING,
                _ => now & !CLAIMED | AGAIN,
            })
        });
        was.is_some_and(|was| was & RUNNING == 0)
    }

    /// The claimant gives the instance back: it is about to put it into a container.
    pub(crate) fn unclaim(&self) {
        let old = self.word.fetch_and(!(CLAIMED | AGAIN), Ordering::AcqRel);
        debug_assert!(old & (PENDING | CLAIMED) == PENDING | CLAIMED);
    }

    /// The claimant drops the instance without running it (after it copied the job); given a
    /// snapshot that nobody looks in, and whose flushers were collected unless it runs. Whether
    /// nobody has the item any more, so that it is the caller's to free. `None` where the word
    /// moved meanwhile.
    pub(crate) fn cancel(&self, from: Snapshot) -> Option<bool> {
        debug_assert!(from.0 & (PENDING | CLAIMED) == PENDING | CLAIMED && from.0 & LOOKERS == 0);
        let next = from.0 & !(PENDING | CLAIMED | AGAIN);
        self.change(from, next).then_some(Snapshot(next).gone())
    }

    /// An item that was made [pending](WorkState::pending), and that nobody knows of yet, isn't
    /// queued.
    pub(crate) fn give_up(&self) {
        let old = self.word.fetch_and(!PENDING, Ordering::AcqRel);
        debug_assert!(old & (PENDING | RUNNING | CLAIMED | ORPHAN) == PENDING);
    }

    /// The last handle is gone. Whether the item is the caller's to free: else who ends its last
    /// instance does.
    pub(crate) fn orphan(&self) -> bool {
        // Acquire and Release: as in `finish`.
        let old = self.word.fetch_or(ORPHAN, Ordering::AcqRel);
        debug_assert!(old & ORPHAN == 0);
        Snapshot(old).idle()
    }

    /// From here until `look_away` or `claim_looked_at` the job slot isn't written, and what it
    /// says isn't given up; given a snapshot of an instance that is pending, unclaimed, and doesn't
    /// run. False where the word moved meanwhile, or too many look.
    pub(crate) fn peek(&self, from: Snapshot) -> bool {
        debug_assert!(from.pending() && !from.running() && !from.claimed());
        from.0 & LOOKERS != LOOKERS && self.change(from, from.0 + LOOKER)
    }

    /// The caller looks no more.
    pub(crate) fn look_away(&self) {
        // Release pairs with the Acquire in `outwait_lookers`.
        let old = self.word.fetch_sub(LOOKER, Ordering::AcqRel);
        debug_assert!(old & LOOKERS != 0);
    }

    /// The caller, which looks, takes the instance instead. False where it looks at what is
    /// another's by now; it looks no more then either.
    pub(crate) fn claim_looked_at(&self) -> bool {
        let waits = |now| now & (PENDING | RUNNING | CLAIMED) == PENDING;
        let claimed = self.update(|now| waits(now).then(|| (now - LOOKER) | CLAIMED)).is_some();
        if !claimed {
            self.look_away();
        }
        claimed
    }

    /// Waits, yielding, until nobody looks. None begins to while the instance is claimed, runs, or
    /// isn't placed yet.
    #[inline]
    pub(crate) fn outwait_lookers(&self) {
        // Acquire pairs with the Release in `look_away`.
        if self.word.load(Ordering::Acquire) & LOOKERS != 0 {
            self.outwait_lookers_at_length();
        }
    }

    #[cold]
    fn outwait_lookers_at_length(&self) {
        while self.word.load(Ordering::Acquire) & LOOKERS != 0 {
            thread::yield_now();
        }
    }

    /// Disables queueing once more; `None` where that has been done 65 535 times. Returns the state
    /// before.
    pub(crate) fn disable(&self) -> Option<Snapshot> {
        self.update(|now| (now & DEPTH != DEPTH).then(|| now + DEPTH_ONE)).map(Snapshot)
    }

    /// Takes one `disable` back; how many are left. `None` where there was none.
    pub(crate) fn enable(&self) -> Option<u16> {
        let was = self.update(|now| (now & DEPTH != 0).then(|| now - DEPTH_ONE))?;
        Some(Snapshot(was).depth() - 1)
    }

    /// Under the flushers' lock: announces one who waits for the latest instance.
    pub(crate) fn announce_flusher(&self) -> Snapshot {
        Snapshot(self.word.fetch_or(FLUSHERS | FRESH, Ordering::AcqRel))
    }

    /// Under the flushers' lock, by a thread that looks through the waiters. Returns the state
    /// then: a later one changes that.
    pub(crate) fn flushers_seen(&self) -> Snapshot {
        Snapshot(self.word.fetch_and(!FRESH, Ordering::AcqRel) & !FRESH)
    }

    /// Under the flushers' lock, where nobody waits any more. Returns the state then.
    pub(crate) fn clear_flushers(&self) -> Snapshot {
        let bits = FLUSHERS | FRESH;
        Snapshot(self.word.fetch_and(!bits, Ordering::AcqRel) & !bits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pend(state: &WorkState) -> bool {
        state.pend() == Ok(Queued::Now)
    }

    fn finish(state: &WorkState, stays: bool) -> FinishResult {
        state.finish(state.snapshot(), stays).expect("nobody else is there")
    }

    #[test]
    fn a_pending_item_is_not_queued_again() {
        let state = WorkState::new();
        assert!(pend(&state));
        assert!(!pend(&state));
        assert_eq!(state.snapshot().seq(), 1);
    }

    #[test]
    fn pending_is_clear_while_it_runs_so_that_it_can_be_queued_again() {
        let state = WorkState::new();
        assert!(pend(&state));
        assert!(state.start(state.snapshot()));
        assert!(pend(&state), "a running item is not pending");
        assert!(state.hand_over(state.snapshot()));
        assert!(finish(&state, true).again);
        state.restart();
        assert!(!finish(&state, true).again);
        assert!(!state.snapshot().running());
    }

    #[test]
    fn a_claimed_instance_is_left_to_its_claimant() {
        let state = WorkState::new();
        assert!(pend(&state) && state.start(state.snapshot()));
        assert!(pend(&state) && state.hand_over(state.snapshot()));
        assert!(state.claim(state.snapshot()));
        assert!(!finish(&state, true).again, "the worker lets it go");
        assert!(!pend(&state), "it is still pending");
        assert!(state.run_claimed());
        assert!(pend(&state) && state.claim(state.snapshot()));
        assert!(!state.run_claimed(), "it runs already: handed over");
        assert!(finish(&state, false).again, "who doesn't stay gets the claim");
        let now = state.snapshot();
        assert!(now.claimed() && !now.running() && !now.again());
        state.unclaim();
        assert!(state.snapshot().pending() && !state.snapshot().claimed());
    }

    #[test]
    fn an_item_is_freed_once_by_its_last_holder() {
        let state = WorkState::new();
        assert!(pend(&state) && state.start(state.snapshot()));
        assert!(!finish(&state, true).last, "there is a handle");
        assert!(state.orphan(), "nothing is left of it");
        let state = WorkState::new();
        assert!(pend(&state) && state.start(state.snapshot()));
        assert!(pend(&state) && !state.orphan());
        assert!(!finish(&state, true).last, "it is pending");
        assert!(state.claim(state.snapshot()));
        assert_eq!(state.cancel(state.snapshot()), Some(true));
        let state = WorkState::pending();
        assert!(state.start(state.snapshot()) && !state.orphan());
        assert!(finish(&state, true).last);
    }

    #[test]
    fn a_pending_item_may_be_taken_until_it_starts() {
        let state = WorkState::new();
        assert!(pend(&state) && state.peek(state.snapshot()) && state.peek(state.snapshot()));
        assert!(state.claim_looked_at());
        assert!(!state.claim_looked_at(), "it is claimed by the other");
        state.outwait_lookers();
        state.unclaim();
        assert!(state.peek(state.snapshot()) && state.start(state.snapshot()));
        assert!(!state.claim_looked_at(), "the one looked at runs");
        assert!(pend(&state), "and nobody looks any more");
        assert!(!finish(&state, true).again);
    }

    #[test]
    fn a_new_waiter_moves_the_word() {
        let state = WorkState::new();
        assert!(pend(&state) && state.start(state.snapshot()));
        state.announce_flusher();
        let seen = state.flushers_seen();
        state.announce_flusher();
        assert_eq!(state.finish(seen, true), None);
        let seen = state.clear_flushers();
        assert!(!seen.has_flushers() && state.finish(seen, true).is_some());
    }

    #[test]
    fn disabling_is_counted_and_an_attempt_leaves_no_trace() {
        let state = WorkState::new();
        assert!(state.disable().is_some() && state.disable().is_some());
        let before = state.snapshot();
        assert!(!pend(&state));
        assert!(state.snapshot() == before);
        assert_eq!((state.enable(), state.enable(), state.enable()), (Some(1), Some(0), None));
        assert!(pend(&state));
        assert_eq!(state.snapshot().seq(), 1, "disabling isn't counted among the instances");
        for _ in 0..u16::MAX {
            assert!(state.disable().is_some());
        }
        assert!(state.disable().is_none(), "the depth is full");
        assert_eq!((state.snapshot().depth(), state.snapshot().seq()), (u16::MAX, 1));
    }
}
