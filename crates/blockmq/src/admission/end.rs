//! The end of the workers, and the thread that then does their work.
//!
//! A thread that has work for a worker publishes it, queues a work item, and then asks here. The
//! thread that ends the pools records the end here, and then looks for published work. So it
//! doesn't matter whether the item was accepted, refused, or accepted and cancelled:
//!
//! ```text
//! requester                              end of the pools
//! Publish: the request lies there        Come: over = true
//! AskFence (light)                       ComeFence (heavy)
//! Ask: over? yes: does it itself         Look: does what lies there
//! ```
//!
//! Without the fences both could read the old value: the request lies there, and no worker comes
//! any more. Requests are many, and pools end once, so the requester's fence is the light one. Both
//! threads may do the work: one at a time does it, and finds nothing the second time. Checked by
//! `tests/loom/end.rs`.

use std::fmt;
use std::marker::PhantomData;

use corewise_sync::atomic::{AtomicBool, Ordering};
use corewise_sync::fence::{Asymmetric, AsymmetricPolicy};

/// The record of whether the workers are gone.
pub struct EndOfWorkers<F: AsymmetricPolicy = Asymmetric> {
    /// A: true once they are gone. Relaxed: the fences order it.
    over: AtomicBool,
    fence: PhantomData<F>,
}

impl<F: AsymmetricPolicy> EndOfWorkers<F> {
    /// Creates a record of existing workers.
    pub fn new() -> Self {
        F::prepare();
        Self { over: AtomicBool::new(false), fence: PhantomData }
    }

    /// Records that there are no workers from now on (Come). The caller then does the work that was
    /// published for them.
    pub fn come(&self) {
        self.over.store(true, Ordering::Relaxed);
        F::heavy(); // ComeFence, pairs with AskFence
    }

    /// Asks, for a thread that has just published work for a worker (Ask). Returns true if no
    /// worker will do it. Any context.
    #[inline]
    #[must_use = "true obliges the caller to do what it has published"]
    pub fn has_come(&self) -> bool {
        F::light(); // AskFence, pairs with ComeFence
        self.over.load(Ordering::Relaxed)
    }
}

impl<F: AsymmetricPolicy> Default for EndOfWorkers<F> {
    fn default() -> Self {
        Self::new()
    }
}

impl<F: AsymmetricPolicy> fmt::Debug for EndOfWorkers<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("End")
            .field("over", &self.over.load(Ordering::Relaxed))
            .finish_non_exhaustive()
    }
}
