//! The quiesce gate: one nested depth, and the question "may this hardware queue run?".
//!
//! Quiesced means depth > 0: there is no second flag that could disagree with it. The protocol, its
//! named steps and the race that the fences prevent stand in `../README.md`.

use std::fmt;
use std::marker::PhantomData;

use corewise_sync::atomic::{AtomicU32, Ordering};
use corewise_sync::fence::{Asymmetric, AsymmetricPolicy};
use corewise_sync::{Condvar, Mutex};

use crate::admission::run_state::RunState;

/// A nested gate in front of dispatch. See `../README.md` for the protocol.
///
/// `F` is the pair of fences: the dispatching side has the light one, the closing and opening side
/// the heavy one.
pub struct RunGate<F: AsymmetricPolicy = Asymmetric> {
    /// A: number of quiesces in force. The fences in the functions below order the stores.
    depth: Depth,
    fence: PhantomData<F>,
}

impl<F: AsymmetricPolicy> Default for RunGate<F> {
    fn default() -> Self {
        Self::new()
    }
}

impl<F: AsymmetricPolicy> RunGate<F> {
    /// Creates an open gate.
    pub fn new() -> Self {
        F::prepare();
        Self { depth: Depth::new(), fence: PhantomData }
    }

    /// Closes the gate one level deeper and returns the new depth. Never blocks: a caller that
    /// needs to know that no dispatch is in progress waits for the grace period afterwards.
    pub fn quiesce(&self) -> u32 {
        // Close.
        let depth = self.depth.raise();
        // CloseFence, pairs with SectionFence: either the runner sees the depth, or the thread that
        // waits for the grace period sees the runner.
        F::heavy();
        depth
    }

    /// Quiesces each of `gates` as [`RunGate::quiesce`] does, with one heavy fence for all.
    pub fn quiesce_all<'a>(gates: impl IntoIterator<Item = &'a Self>) {
        for gate in gates {
            gate.depth.raise(); // Close
        }
        F::heavy(); // CloseFence
    }

    /// Undoes one quiesce of the caller's. Returns true if the depth went from 1 to 0: then the
    /// heavy fence has been issued.
    #[must_use = "true obliges the caller to look at every hardware queue, and run those with something pending"]
    pub fn unquiesce(&self) -> bool {
        // Open. Release: the next runner sees the quiescer's writes.
        let opened = self.depth.lower();
        if opened {
            // OpenFence, pairs with RefuseFence: either the submitter sees the gate open, or the
            // caller's look at the queues sees the submitter's request.
            F::heavy();
        }
        opened
    }

    /// Returns how many quiesces were in force a moment ago.
    pub fn depth(&self) -> u32 {
        self.depth.get()
    }

    /// Returns true if the gate was open a moment ago. Acquire: pairs with Open, so that the run
    /// that follows sees the changes under quiesce.
    #[inline]
    pub fn is_open(&self) -> bool {
        self.depth.is_zero()
    }

    /// Returns whether the caller must run the queue: "publish, fence, check". The caller has
    /// published its request (if it has one) before. `wants` says whether there is work, and is
    /// asked once more behind the fence.
    ///
    /// The first look takes no lock and no fence, so the positive answer costs two loads; only a
    /// "no" pays for the fence and a second look. `false` is final: the thread that opens the gate
    /// later sees the request.
    #[cfg(test)]
    fn must_run(&self, wants: impl Fn() -> bool) -> bool {
        self.must_run_by(&FencedRecheck::<F>::new(), wants)
    }

    /// Returns the same as [`RunGate::must_run`], with another second look.
    #[inline]
    pub fn must_run_by(&self, recheck: &impl Recheck, wants: impl Fn() -> bool) -> bool {
        let look = || self.is_open() && wants();
        look() || recheck.again(look)
    }
}

/// The step that makes a "no" of the first look at a [`RunGate`] final. The queue's own is
/// [`FencedRecheck`]. Others are for comparison: Linux took a lock around its second look, and on
/// PREEMPT_RT slept in it.
pub trait Recheck {
    /// Looks once more: `look` returns whether the gate is open and something is pending, as the
    /// first look did. A second look that isn't ordered behind the caller's stores strands
    /// requests.
    fn again(&self, look: impl Fn() -> bool) -> bool;
}

/// A second look behind RefuseFence.
pub struct FencedRecheck<F: AsymmetricPolicy = Asymmetric>(PhantomData<F>);

impl<F: AsymmetricPolicy> FencedRecheck<F> {
    pub(crate) fn new() -> Self {
        Self(PhantomData)
    }
}

impl<F: AsymmetricPolicy> Recheck for FencedRecheck<F> {
    #[inline]
    fn again(&self, look: impl Fn() -> bool) -> bool {
        // RefuseFence, pairs with OpenFence.
        F::light();
        look()
    }
}

impl<F: AsymmetricPolicy> fmt::Debug for RunGate<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunGate").field("depth", &self.depth()).finish()
    }
}

// A nested closing: the number of closings, in one word.

/// Number of closings in force.
#[derive(Debug)]
pub(crate) struct Depth {
    /// A: the number. Changes are AcqRel: a thread that finds it open sees the writes while it was
    /// closed.
    number: AtomicU32,
}

impl Depth {
    pub(crate) fn new() -> Self {
        Self { number: AtomicU32::new(0) }
    }

    /// Closes one level deeper, and returns the new depth.
    pub(crate) fn raise(&self) -> u32 {
        self.number.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// Undoes one [`raise`](Self::raise) of the caller's. Returns true if that was the last one, so
    /// that it is open.
    pub(crate) fn lower(&self) -> bool {
        let was = self.number.fetch_sub(1, Ordering::AcqRel);
        debug_assert!(was != 0, "only what was raised is lowered");
        was == 1
    }

    /// Returns the number of a moment ago. Relaxed.
    #[inline]
    pub(crate) fn get(&self) -> u32 {
        self.number.load(Ordering::Relaxed)
    }

    /// Returns true if it was open a moment ago. Acquire.
    #[inline]
    pub(crate) fn is_zero(&self) -> bool {
        self.number.load(Ordering::Acquire) == 0
    }
}

// A queue of threads that wait for a condition.

/// Threads that sleep until their condition holds: the kernel's wait queue, with its `wait_event`
/// and `wake_up_all`.
///
/// They look under the lock. The thread that tells them takes the lock after it has made the
/// condition true. So a look that finds nothing comes before that, and its thread is asleep at the
/// wake-up.
#[derive(Debug, Default)]
pub(crate) struct WaitQueue {
    /// L: is the lock; guards nothing but the sleep.
    lock: Mutex<()>,
    /// L: waited on with `lock`.
    told: Condvar,
}

impl WaitQueue {
    /// Creates a queue without waiters.
    pub(crate) fn new() -> Self {
        Self { lock: Mutex::new(()), told: Condvar::new() }
    }

    /// Blocks until `look` succeeds. It is called at once, and at each [`tell`](Self::tell).
    pub(crate) fn wait<R>(&self, mut look: impl FnMut() -> Option<R>) -> R {
        let mut lock = self.lock.lock();
        loop {
            if let Some(found) = look() {
                return found;
            }
            lock = self.told.wait(lock);
        }
    }

    /// Makes all waiters look once more. Takes a short lock.
    #[cold]
    pub(crate) fn tell(&self) {
        drop(self.lock.lock());
        // This isn't done under the lock: if this thread lost its CPU there, a woken thread would
        // sleep again, on the lock.
        self.told.notify_all();
    }
}

// The grace period of a quiesce: wait until the runner that may have missed it has ended.

/// The waiters for the end of one hardware queue's runner.
///
/// Its lock is taken on the slow path only: by waiters, and by a runner that knows of some.
#[derive(Debug, Default)]
pub struct Grace {
    ended: WaitQueue,
}

impl Grace {
    /// Creates a grace period without waiters.
    pub fn new() -> Self {
        Self { ended: WaitQueue::new() }
    }

    /// Blocks until the runner of this moment (if there is one) has ended. With the gate closed
    /// before, no dispatch is in progress afterwards and none starts.
    pub fn wait(&self, state: &RunState) {
        if !state.is_running() {
            return;
        }
        // Announce: the runner that sees it wakes this thread after its end.
        let Some(run) = state.announce_waiter() else { return };
        // A wake-up says only that some run has ended. It may be an earlier one: its runner wakes
        // after its end, and the next run may have begun meanwhile.
        self.ended.wait(|| (!state.is_run(run)).then_some(()));
    }

    /// Wakes the waiters, for a runner whose end has found some. Takes a short lock.
    #[cold]
    pub fn wake(&self) {
        self.ended.tell();
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    #[test]
    fn only_the_last_unquiesce_opens() {
        let gate = RunGate::<Asymmetric>::new();
        assert_eq!(gate.quiesce(), 1);
        assert_eq!(gate.quiesce(), 2);
        assert!(!gate.must_run(|| true));
        assert!(!gate.unquiesce());
        assert!(!gate.must_run(|| true));
        assert!(gate.unquiesce());
        assert!(gate.must_run(|| true));
    }

    /// A pair of fences that counts the light ones of its thread.
    pub(crate) struct Counted;

    corewise_sync::per_thread! {
        /// O: number of light fences of this thread.
        static FENCES: std::cell::Cell<u32> = std::cell::Cell::new(0);
    }

    impl AsymmetricPolicy for Counted {
        fn light() {
            FENCES.with(|n| n.set(n.get() + 1));
        }
        fn heavy() {}
    }

    pub(crate) fn light_fences() -> u32 {
        FENCES.with(std::cell::Cell::get)
    }

    #[test]
    fn rule_4_a_yes_at_the_first_look_costs_no_fence_and_a_no_costs_one() {
        let gate = RunGate::<Counted>::new();
        assert!(gate.must_run(|| true));
        assert_eq!(light_fences(), 0);
        assert!(!gate.must_run(|| false));
        assert_eq!(light_fences(), 1);
        gate.quiesce();
        assert!(!gate.must_run(|| true));
        assert_eq!(light_fences(), 2);
    }

    #[test]
    fn the_second_look_is_taken_only_where_the_first_said_no() {
        use std::cell::Cell;
        struct Counted(Cell<u32>);
        impl Recheck for Counted {
            fn again(&self, look: impl Fn() -> bool) -> bool {
                self.0.set(self.0.get() + 1);
                look()
            }
        }
        let (gate, counted) = (RunGate::<Asymmetric>::new(), Counted(Cell::new(0)));
        assert!(gate.must_run_by(&counted, || true));
        assert_eq!(counted.0.get(), 0);
        let looks = Cell::new(0);
        let second = || looks.replace(looks.get() + 1) == 1;
        assert!(gate.must_run_by(&counted, second), "what came meanwhile is found");
        assert_eq!((counted.0.get(), looks.get()), (1, 2));
        gate.quiesce();
        assert!(!gate.must_run_by(&counted, || true));
    }

    #[test]
    fn nothing_pending_means_no_run() {
        assert!(!RunGate::<Asymmetric>::new().must_run(|| false));
    }
}
