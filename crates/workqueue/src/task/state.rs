//! The state word of a work item: pending, running, handed over, and which instance it is.
//!
//! The state is one word, changed by read-modify-writes only. Every change has a name here, and no
//! other code touches the bits. The proof stands in `state.md`.
//!
//! | bits | name | meaning | set by |
//! |---|---|---|---|
//! | 0 | `PENDING` | queued, or handed over, and not started | `pend` |
//! | 1 | `RUNNING` | somebody runs the function | `start`, `run_claimed` |
//! | 2 | `AGAIN` | handed over; implies `PENDING` | `hand_over`, `run_claimed` |
//! | 3 | `FLUSHERS` | somebody waits for an instance | `announce_flusher` |
//! | 4 | `CLAIMED` | its claimant has the instance; implies `PENDING` | `claim`, `finish` |
//! | 5 | `ALONE` | the owner of the item has it alone | `alone` |
//! | 6 | `ORPHAN` | nobody has a handle any more, nor ever will | `orphan` |
//! | 7 | `FRESH` | a waiter came since the flushers were looked at | `announce_flusher` |
//! | 8..24 | disable depth | above 0 nothing is queued | `disable` |
//! | 24..36 | lookers | number of readers of the job slot | `peek` |
//! | 36.. | sequence | number of the instance queued last | `pend` |
//!
//! An item is handed over when a second worker finds it running, and leaves it to the first.
//! `FLUSHERS` and `FRESH` are set and cleared under the flushers' lock. The runner of an `ALONE`
//! item never changes the word.
//!
//! | name | cleared by |
//! |---|---|
//! | `PENDING` | `start`, `run_claimed`, `cancel` |
//! | `RUNNING` | `finish` |
//! | `AGAIN` | `finish`, `run_claimed`, `cancel`, `unclaim` |
//! | `FLUSHERS` | `clear_flushers` |
//! | `CLAIMED` | `run_claimed`, `cancel`, `unclaim` |
//! | `ALONE`, `ORPHAN` | never |
//! | `FRESH` | `flushers_seen`, `clear_flushers` |
//! | disable depth | `enable` |
//! | lookers | `look_away`, `claim_looked_at` |
//! | sequence | never: it wraps |

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
    /// Returns true if it was handed over: it lies in no container.
    #[inline]
    pub(crate) fn again(self) -> bool {
        self.0 & AGAIN != 0
    }
    #[inline]
    pub(crate) fn claimed(self) -> bool {
        self.0 & CLAIMED != 0
    }
    /// Returns true if it is pending for its whole life, and its holder holds it alone.
    #[inline]
    pub(crate) fn alone(self) -> bool {
        self.0 & ALONE != 0
    }
    /// Returns true if an instance has a waiter.
    #[inline]
    pub(crate) fn has_flushers(self) -> bool {
        self.0 & FLUSHERS != 0
    }
    /// Returns true if it is neither pending nor running.
    #[inline]
    fn idle(self) -> bool {
        self.0 & (PENDING | RUNNING) == 0
    }
    /// Returns true if the item is idle, and no handle is left.
    #[inline]
    fn gone(self) -> bool {
        self.idle() && self.is_orphan()
    }
    /// Returns true if no handle is left.
    #[inline]
    pub(crate) fn is_orphan(self) -> bool {
        self.0 & ORPHAN != 0
    }
    /// Returns how often it is disabled.
    pub(crate) fn depth(self) -> u16 {
        ((self.0 & DEPTH) >> DEPTH_SHIFT) as u16
    }
    #[inline]
    pub(crate) fn seq(self) -> Seq {
        self.0 >> SEQ_SHIFT
    }
}

/// The duties of the worker that finished an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub(crate) struct FinishResult {
    /// Another worker had handed the next instance over, and it is the caller's claim now.
    pub(crate) again: bool,
    /// True if neither an instance nor a handle is left: the caller frees the item.
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

    /// Creates the state of an item that is queued once, by its maker, and that no other thread
    /// has.
    pub(crate) fn alone() -> Self {
        WorkState { word: AtomicU64::new(PENDING | ALONE | ORPHAN | SEQ_ONE) }
    }

    /// Creates the state of an item that is queued by its maker.
    #[inline]
    pub(crate) fn pending() -> Self {
        WorkState { word: AtomicU64::new(PENDING | SEQ_ONE) }
    }

    #[inline]
    pub(crate) fn snapshot(&self) -> Snapshot {
        Snapshot(self.word.load(Ordering::Acquire))
    }

    /// Makes the item pending. `Now`: the caller owns the job slot, at which no thread looks any
    /// more, and has to queue the item. `AlreadyPending` is a read-modify-write too: the pending
    /// instance sees the caller's earlier writes (its `start` acquires this release). A disabled
    /// item refuses, and nothing is changed.
    #[inline(always)]
    pub(crate) fn pend(&self) -> Result<Queued, QueueError> {
        // This is the common case.
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

    /// Returns how the item was queued, for a caller that has made it pending; `was` is the
    /// previous word.
    #[inline]
    fn pended(&self, was: u64) -> Queued {
        if was & LOOKERS != 0 {
            // At the instance before, which runs: the slot is still read.
            self.outwait_lookers_at_length();
        }
        Queued::Now
    }

    /// Updates the word and returns the previous one; returns `None` if there is no `next`, and the
    /// word stays.
    fn update(&self, next: impl FnMut(u64) -> Option<u64>) -> Option<u64> {
        self.word.fetch_update(Ordering::AcqRel, Ordering::Relaxed, next).ok()
    }

    /// Moves the item from pending to running, given a snapshot that is neither running nor
    /// claimed. The caller has copied the job before, since the next queuer owns the slot once the
    /// bit is clear. Returns false if the word moved meanwhile.
    #[inline]
    pub(crate) fn start(&self, from: Snapshot) -> bool {
        debug_assert!(from.pending() && !from.running() && !from.claimed());
        self.change(from, (from.0 & !PENDING) | RUNNING)
    }

    /// Leaves the pending instance to the worker that runs the item now; the job slot stays filled.
    /// Returns false if the word moved meanwhile.
    #[inline]
    pub(crate) fn hand_over(&self, from: Snapshot) -> bool {
        debug_assert!(from.pending() && from.running() && !from.claimed());
        // Release: pairs with the Acquire in `finish`, which then reads the job slot.
        self.change(from, from.0 | AGAIN)
    }

    /// Takes the pending instance away from everybody else. Returns false if the word moved
    /// meanwhile.
    #[inline]
    pub(crate) fn claim(&self, from: Snapshot) -> bool {
        debug_assert!(from.pending() && !from.claimed());
        self.change(from, from.0 | CLAIMED)
    }

    #[inline]
    fn change(&self, from: Snapshot, to: u64) -> bool {
        self.word.compare_exchange(from.0, to, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Ends the run, given a snapshot without lookers, whose flushers were collected. If an
    /// instance was handed over, the caller claims it in the same step, unless another thread has
    /// claimed it. `RUNNING` stays set if the caller `stays` to run it. Returns `None` if the word
    /// moved meanwhile.
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
        // Release: all accesses to the item come before any thread frees it.
        self.change(from, next).then_some(FinishResult { again, last: Snapshot(next).gone() })
    }

    /// Ends the run as [`finish`](WorkState::finish) does, in the simple case: no thread waits or
    /// looks, nothing was handed over, nothing moves. Returns whether this was the last instance of
    /// an item without handles.
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

    /// Moves a claimed instance to running, for the claimant that runs it itself (and has copied
    /// the job). Returns false if another instance runs: the claimed one is left to that one's
    /// worker, with the job slot filled.
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

    /// Gives the instance back, for a claimant that is about to put it into a container.
    pub(crate) fn unclaim(&self) {
        let old = self.word.fetch_and(!(CLAIMED | AGAIN), Ordering::AcqRel);
        debug_assert!(old & (PENDING | CLAIMED) == PENDING | CLAIMED);
    }

    /// Ends a claimed instance without a run (after the claimant copied the job), given a snapshot
    /// without lookers, whose flushers were collected unless it runs. Returns whether no handle is
    /// left, so that the caller frees the item. Returns `None` if the word moved meanwhile.
    pub(crate) fn cancel(&self, from: Snapshot) -> Option<bool> {
        debug_assert!(from.0 & (PENDING | CLAIMED) == PENDING | CLAIMED && from.0 & LOOKERS == 0);
        let next = from.0 & !(PENDING | CLAIMED | AGAIN);
        self.change(from, next).then_some(Snapshot(next).gone())
    }

    /// Gives up the instance of an item that was made [pending](WorkState::pending), that no other
    /// thread knows yet, and that isn't queued.
    pub(crate) fn give_up(&self) {
        let old = self.word.fetch_and(!PENDING, Ordering::AcqRel);
        debug_assert!(old & (PENDING | RUNNING | CLAIMED | ORPHAN) == PENDING);
    }

    /// Notes that the last handle is gone. Returns whether the caller frees the item: else the
    /// thread that ends its last instance does.
    pub(crate) fn orphan(&self) -> bool {
        // Acquire and Release: as in `finish`.
        let old = self.word.fetch_or(ORPHAN, Ordering::AcqRel);
        debug_assert!(old & ORPHAN == 0);
        Snapshot(old).idle()
    }

    /// Keeps other threads from writing the job slot, or giving up its contents, until `look_away`
    /// or `claim_looked_at`. Takes a snapshot of an instance that is pending, unclaimed, and
    /// doesn't run. Returns false if the word moved meanwhile, or if too many threads look.
    pub(crate) fn peek(&self, from: Snapshot) -> bool {
        debug_assert!(from.pending() && !from.running() && !from.claimed());
        from.0 & LOOKERS != LOOKERS && self.change(from, from.0 + LOOKER)
    }

    /// Ends the caller's look.
    pub(crate) fn look_away(&self) {
        // Release pairs with the Acquire in `outwait_lookers`.
        let old = self.word.fetch_sub(LOOKER, Ordering::AcqRel);
        debug_assert!(old & LOOKERS != 0);
    }

    /// Takes the instance that the caller looks at. Returns false if another thread has it by now;
    /// the look ends then, too.
    pub(crate) fn claim_looked_at(&self) -> bool {
        let waits = |now| now & (PENDING | RUNNING | CLAIMED) == PENDING;
        let claimed = self.update(|now| waits(now).then(|| (now - LOOKER) | CLAIMED)).is_some();
        if !claimed {
            self.look_away();
        }
        claimed
    }

    /// Waits, yielding, until no thread looks. No look begins while the instance is claimed, runs,
    /// or isn't placed yet.
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

    /// Disables queueing one level deeper, and returns the state before. Returns `None` if that has
    /// been done 65 535 times.
    pub(crate) fn disable(&self) -> Option<Snapshot> {
        self.update(|now| (now & DEPTH != DEPTH).then(|| now + DEPTH_ONE)).map(Snapshot)
    }

    /// Takes one `disable` back, and returns how many are left; `None` if there was none.
    pub(crate) fn enable(&self) -> Option<u16> {
        let was = self.update(|now| (now & DEPTH != 0).then(|| now - DEPTH_ONE))?;
        Some(Snapshot(was).depth() - 1)
    }

    /// Announces a waiter for the latest instance. Called under the flushers' lock.
    pub(crate) fn announce_flusher(&self) -> Snapshot {
        Snapshot(self.word.fetch_or(FLUSHERS | FRESH, Ordering::AcqRel))
    }

    /// Notes that the caller looks through the waiters, under the flushers' lock. Returns the state
    /// then: a later waiter changes that.
    pub(crate) fn flushers_seen(&self) -> Snapshot {
        Snapshot(self.word.fetch_and(!FRESH, Ordering::AcqRel) & !FRESH)
    }

    /// Notes that no thread waits any more, under the flushers' lock. Returns the state then.
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
