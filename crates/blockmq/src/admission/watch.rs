//! Whether somebody will look after the requests that the driver has: the timer of a queue.
//!
//! ```text
//! runner                          timer
//! Start: the tag's word           Disarm: armed = false
//! StartedFence (light)            DisarmFence (heavy)
//! Look: armed? no: arm it         Look: is anything in flight? yes: arm it
//! ```
//!
//! Both may look before either's store is seen: then the request is in flight and no timer runs. With a fence on
//! both sides one of the two sees the other. Requests start all the time and the timer finds nothing now and then,
//! so the runner's fence is the light one.

use std::fmt;
use std::marker::PhantomData;

use corewise_sync::atomic::{AtomicBool, Ordering};
use corewise_sync::fence::{Asymmetric, AsymmetricPolicy};

/// Whether the timer runs.
pub struct Watch<F: AsymmetricPolicy = Asymmetric> {
    /// A: a timer is set, or its function runs and has not yet decided that it is the last.
    armed: AtomicBool,
    fence: PhantomData<F>,
}

impl<F: AsymmetricPolicy> Watch<F> {
    /// No timer runs.
    pub fn new() -> Self {
        F::prepare();
        Self { armed: AtomicBool::new(false), fence: PhantomData }
    }

    /// A request has just been started (its word is written). True: the caller sets the timer.
    #[inline]
    #[must_use = "true means that the caller sets the timer"]
    pub fn started(&self) -> bool {
        F::light(); // StartedFence, pairs with DisarmFence
        !self.armed.load(Ordering::Relaxed) && self.arm()
    }

    /// True where nobody else has armed it: the caller sets the timer.
    #[must_use = "true means that the caller sets the timer"]
    pub fn arm(&self) -> bool {
        !self.armed.swap(true, Ordering::AcqRel)
    }

    /// The timer's function has found nothing in flight. It looks **once more** after this, and arms the timer again
    /// where it finds something.
    pub fn disarm(&self) {
        self.armed.store(false, Ordering::Release);
        F::heavy(); // DisarmFence, pairs with StartedFence
    }
}

impl<F: AsymmetricPolicy> Default for Watch<F> {
    fn default() -> Self {
        Self::new()
    }
}

impl<F: AsymmetricPolicy> fmt::Debug for Watch<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch")
            .field("armed", &self.armed.load(Ordering::Relaxed))
            .finish_non_exhaustive()
    }
}
