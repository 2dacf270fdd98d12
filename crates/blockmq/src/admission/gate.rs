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
    /// A: how many quiesces are in force. Stores are ordered by the fences named where they are.
    depth: Depth,
    fence: PhantomData<F>,
}

impl<F: AsymmetricPolicy> Default for RunGate<F> {
    fn default() -> Self {
        Self::new()
    }
}

impl<F: AsymmetricPolicy> RunGate<F> {
    /// An open gate.
    pub fn new() -> Self {
        F::prepare();
        Self { depth: Depth::new(), fence: PhantomData }
    }

    /// Closes the gate one level deeper and returns the new depth. Never blocks: who needs to know
    /// that no dispatch is in progress waits for the grace period afterwards.
    pub fn quiesce(&self) -> u32 {
        // Close.
        let depth = self.depth.raise();
        // CloseFence, pairs with SectionFence: either the runner sees the depth, or the thread that
        // waits for the grace period sees the runner.
        F::heavy();
        depth
    }

    /// As [`RunGate::quiesce`] of each of `gates`, with one heavy fence for all.
    pub fn quiesce_all<'a>(gates: impl IntoIterator<Item = &'a Self>) {
        for gate in gates {
            gate.depth.raise(); // Close
        }
        F::heavy(); // CloseFence
    }

    /// Undoes one quiesce of the caller's. True: the depth went from 1 to 0, and the heavy fence
    /// has been issued.
    #[must_use = "true obliges the caller to look at every hardware queue, and run those with something pending"]
    pub fn unquiesce(&self) -> bool {
        // Open. Release: what the quiescer changed is seen by the next runner.
        let opened = self.depth.lower();
        if opened {
            // OpenFence, pairs with RefuseFence: either the submitter sees the gate open, or the
            // caller's look at the queues sees the submitter's request.
            F::heavy();
        }
        opened
    }

    /// How many quiesces are in force, a moment ago.
    pub fn depth(&self) -> u32 {
        self.depth.get()
    }

    /// True where nobody keeps the gate closed, a moment ago. Acquire: pairs with Open, so that
    /// what was changed under quiesce is seen by the run that follows it.
    #[inline]
    pub fn is_open(&self) -> bool {
        self.depth.is_zero()
    }

    /// "Publish, fence, check": must somebody run? The caller has published its request (if
    /// it has one) before. `wants` says whether there is anything to run for, and is asked again
    /// behind the fence.
    ///
    /// The first look takes no lock and no fence, so the positive answer costs two loads; only a
    /// "no" pays for the fence and a second look. `false` is final: the thread that opens the gate
    /// later sees the request.
    #[cfg(test)]
    fn must_run(&self, wants: impl Fn() -> bool) -> bool {
        self.must_run_by(&FencedRecheck::<F>::new(), wants)
    }

    /// As [`RunGate::must_run`], with another second look.
    #[inline]
    pub fn must_run_by(&self, recheck: &impl Recheck, wants: impl Fn() -> bool) -> bool {
        let look = || self.is_open() && wants();
        look() || recheck.again(look)
    }
}

/// How a "no" of the first look at a [`RunGate`] is made final. The queue's own is
/// [`FencedRecheck`]; others are for comparing with: what Linux had before took a lock around its
/// second look, and on PREEMPT_RT slept in it.
pub trait Recheck {
    /// The second look: `look` tells whether the gate is open and something is pending, as the
    /// first one did. One that doesn't order it behind what the caller has stored strands requests.
    fn again(&self, look: impl Fn() -> bool) -> bool;
}

/// RefuseFence, and then the second look.
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

// A nested closing: how many times something is closed, in one word.

/// How many closings are in force.
#[derive(Debug)]
pub(crate) struct Depth {
    /// A: the number. Changes are AcqRel: a thread that finds it open sees what was done while it
    /// was closed.
    number: AtomicU32,
}

impl Depth {
    pub(crate) fn new() -> Self {
        Self { number: AtomicU32::new(0) }
    }

    /// Closes one level deeper; the new depth.
    pub(crate) fn raise(&self) -> u32 {
        self.number.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// Undoes one [`raise`](Self::raise) of the caller's. True: that was the last one, and it is
    /// open.
    pub(crate) fn lower(&self) -> bool {
        let was = self.number.fetch_sub(1, Ordering::AcqRel);
        debug_assert!(was != 0, "only what was raised is lowered");
        was == 1
    }

    /// The number, a moment ago. Relaxed.
    #[inline]
    pub(crate) fn get(&self) -> u32 {
        self.number.load(Ordering::Relaxed)
    }

    /// Whether it is open, a moment ago. Acquire.
    #[inline]
    pub(crate) fn is_zero(&self) -> bool {
        self.number.load(Ordering::Acquire) == 0
    }
}

// Where threads sleep until something is so.

/// Threads that sleep until what they look for is there: the kernel's wait queue, with its
/// `wait_event` and `wake_up_all`.
///
/// They look under the lock, and the teller takes the lock after having made it so. So a look that
/// finds nothing comes before that, and the looker is asleep when it is told.
#[derive(Debug, Default)]
pub(crate) struct WaitQueue {
    /// L: is the lock; guards nothing but the sleep.
    lock: Mutex<()>,
    /// L: waited on with `lock`.
    told: Condvar,
}

impl WaitQueue {
    /// Nobody waits.
    pub(crate) fn new() -> Self {
        Self { lock: Mutex::new(()), told: Condvar::new() }
    }

    /// Blocks until `look` finds something. It is asked at once, and each time that somebody tells.
    pub(crate) fn wait<R>(&self, mut look: impl FnMut() -> Option<R>) -> R {
        let mut lock = self.lock.lock();
        loop {
            if let Some(found) = look() {
                return found;
            }
            lock = self.told.wait(lock);
        }
    }

    /// Has everybody look once more. Takes a short lock.
    #[cold]
    pub(crate) fn tell(&self) {
        drop(self.lock.lock());
        // Not under the lock: a thread that wakes while this one has lost its CPU would sleep
        // again, on the lock.
        self.told.notify_all();
    }
}

// The grace period of a quiesce: wait until the runner that may have missed it has ended.

/// Where those wait who need one hardware queue's runner to end.
///
/// Its lock is taken on the slow path only: by waiters, and by a runner that was told that there
/// are some.
#[derive(Debug, Default)]
pub struct Grace {
    ended: WaitQueue,
}

impl Grace {
    /// Nobody waits.
    pub fn new() -> Self {
        Self { ended: WaitQueue::new() }
    }

    /// Blocks until the runner of this moment (if there is one) has ended. With the gate closed
    /// before, no dispatch is in progress afterwards and none starts.
    pub fn wait(&self, state: &RunState) {
        if !state.is_running() {
            return;
        }
        // Announce: the runner that sees it wakes us after its end.
        let Some(run) = state.announce_waiter() else { return };
        // A wake-up says only that some run has ended. It may be one from before: its runner wakes
        // after its end, and the next one may have begun meanwhile.
        self.ended.wait(|| (!state.is_run(run)).then_some(()));
    }

    /// The runner's duty where its end told it to wake. Takes a short lock.
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

    /// Counts the fences of its thread.
    pub(crate) struct Counted;

    corewise_sync::per_thread! {
        /// O: light fences of this thread.
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
