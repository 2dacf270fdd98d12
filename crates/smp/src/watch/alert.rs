//! Whether the watching thread has to look: the word between it and those who begin to wait.
//!
//! The protocol stands in `README.md` beside this file.

use std::marker::PhantomData;

use corewise_sync::atomic::{AtomicU32, Ordering};
use corewise_sync::fence::{FencePolicy, FullFence};

/// The thread sleeps until it is called.
const REST: u32 = 0;
/// The thread looks from time to time, or was called to.
const RAISED: u32 = 1;

/// The word. `F` is left out in the model that has to fail.
pub struct Alert<F = FullFence> {
    /// A: `REST` or `RAISED`.
    state: AtomicU32,
    fence: PhantomData<F>,
}

impl<F: FencePolicy> Alert<F> {
    /// The thread rests.
    #[allow(clippy::new_without_default, reason = "for the crate and its models alone")]
    pub fn new() -> Self {
        Alert { state: AtomicU32::new(REST), fence: PhantomData }
    }

    /// The caller has Published that it waits. True: the thread rests, and the caller is the one to call it.
    #[must_use = "the thread sleeps until it is called"]
    pub fn raise(&self) -> bool {
        // RaiseFence, between Publish and ReadAlert; partner: RestFence.
        F::full();
        // ReadAlert. Relaxed, as all here: the fences order, and what is published are atomics.
        self.state.load(Ordering::Relaxed) == REST
            // Raise: of several, one calls.
            && self.state.swap(RAISED, Ordering::Relaxed) == REST
    }

    /// The thread has found nobody who waits. True: there is still none, and it may sleep until it is
    /// called; `any` looks once more.
    #[must_use = "false: the thread must look again"]
    pub fn lower(&self, any: impl FnOnce() -> bool) -> bool {
        // Lower.
        self.state.store(REST, Ordering::Relaxed);
        // RestFence, between Lower and LookAgain; partner: RaiseFence.
        F::full();
        // LookAgain.
        if !any() {
            return true;
        }
        // A thread that raised it meanwhile has left a token, which makes the next sleep short. That is all.
        self.state.store(RAISED, Ordering::Relaxed);
        false
    }

    /// Nobody could be called: the next one tries again.
    pub(super) fn give_up(&self) {
        self.state.store(REST, Ordering::Relaxed);
    }
}
