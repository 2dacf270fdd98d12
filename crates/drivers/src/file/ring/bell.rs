//! The bell of a thread that serves an inbox: rung only where the thread may be asleep.
//!
//! A driver's thread takes requests out of an [`Inbox`](corewise_sync::inbox::Inbox), and sleeps in the
//! kernel where there is nothing to do. Waking it costs a system call, so a thread that puts something in asks
//! first whether that is needed. The pattern is *publish, fence, check*:
//!
//! ```text
//! pusher                                 thread
//! Publish: push to the inbox             Doze: asleep = true
//! RingFence                              DozeFence
//! Ask: asleep? no: leave                 Look: inbox empty? yes: sleep
//! ```
//!
//! Without the fences both could read the old value: the request lies there, and the thread sleeps. The push
//! and the store are `SeqCst`, and so are the two loads, so the language orders them and no instruction is
//! needed for either fence. Of several pushers that find it asleep one takes the mark and rings.
//! Checked by `tests/loom/bell.rs`, whose twin without fences loses the request.

use std::fmt;
use std::marker::PhantomData;

use corewise_sync::atomic::{AtomicBool, Ordering};
use corewise_sync::fence::{FencePolicy, FullFence};

/// Whether somebody has to wake the thread.
pub struct Bell<F: FencePolicy = FullFence> {
    /// A: set by Doze, cleared by the thread when it is awake again, or by the pusher that rings. Each
    /// change is a read-modify-write, so they have one order.
    asleep: AtomicBool,
    fence: PhantomData<F>,
}

impl<F: FencePolicy> Default for Bell<F> {
    fn default() -> Self {
        Self::new()
    }
}

impl<F: FencePolicy> Bell<F> {
    /// The bell of a thread that is awake.
    pub fn new() -> Self {
        Self { asleep: AtomicBool::new(false), fence: PhantomData }
    }

    /// Doze: the thread is about to sleep. It has to look at its inbox once more before it does.
    pub fn doze(&self) {
        self.asleep.swap(true, Ordering::SeqCst);
        F::implied(); // DozeFence
    }

    /// The thread is awake, and will look at its inbox before it sleeps.
    #[inline]
    pub fn awake(&self) {
        // Relaxed: who still reads true doesn't get the mark, or rings in vain.
        self.asleep.swap(false, Ordering::Relaxed);
    }

    /// Ask: true where the caller has to wake the thread, after a push. Any context.
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
