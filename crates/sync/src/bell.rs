//! The bell of a thread that serves an inbox: it rings only if the thread may be asleep.
//!
//! A thread takes nodes out of an [`Inbox`](crate::inbox::Inbox), and sleeps in
//! the kernel if there is nothing to do. Waking it costs a system call, so a thread that puts
//! something in asks first whether that is needed. The pattern is *publish, fence, check*:
//!
//! ```text
//! pusher                                 thread
//! Publish: push to the inbox             Doze: asleep = true
//! RingFence                              DozeFence
//! Ask: asleep? no: leave                 Look: inbox empty? yes: sleep
//! ```
//!
//! Without the fences both could read the old value: the node lies there, and the thread sleeps.
//! The push and the store are `SeqCst`, and so are the two loads. So the language orders them, and
//! neither fence needs an instruction. Of several pushers that find the thread asleep, one takes
//! the mark and rings. `tests/loom/bell.rs` checks that; its twin without fences loses a node.

use std::fmt;
use std::marker::PhantomData;

use crate::facade::atomic::{AtomicBool, Ordering};
use crate::facade::fence::{FencePolicy, FullFence};

/// The record of whether a thread that serves an [`Inbox`](crate::inbox::Inbox) has to be woken.
/// Nothing but the order of accesses: how the thread sleeps is its own affair.
pub struct Bell<F: FencePolicy = FullFence> {
    /// A: true while the thread is asleep: set by Doze, cleared by the thread when it is awake
    /// again, or by the pusher that rings. Each change is a read-modify-write, so they have one
    /// order.
    asleep: AtomicBool,
    fence: PhantomData<F>,
}

impl<F: FencePolicy> Default for Bell<F> {
    fn default() -> Self {
        Self::new()
    }
}

impl<F: FencePolicy> Bell<F> {
    /// Creates the bell of a thread that is awake.
    pub fn new() -> Self {
        Self { asleep: AtomicBool::new(false), fence: PhantomData }
    }

    /// Marks the thread as about to sleep (Doze). It has to look at its inbox once more before it
    /// does.
    pub fn doze(&self) {
        self.asleep.swap(true, Ordering::SeqCst);
        F::implied(); // DozeFence
    }

    /// Marks the thread as awake: it will look at its inbox before it sleeps.
    #[inline]
    pub fn awake(&self) {
        // Relaxed: a pusher that still reads true doesn't get the mark, or rings in vain.
        self.asleep.swap(false, Ordering::Relaxed);
    }

    /// Returns true if the caller has to wake the thread, after a push (Ask). Any context.
    #[inline]
    #[must_use = "the caller must wake the thread"]
    pub fn must_ring(&self) -> bool {
        F::implied(); // RingFence
        self.asleep.load(Ordering::SeqCst) && self.asleep.swap(false, Ordering::SeqCst)
    }
}

impl<F: FencePolicy> fmt::Debug for Bell<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bell").field("asleep", &self.asleep.load(Ordering::Relaxed)).finish()
    }
}
