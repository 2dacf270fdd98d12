//! Waiting until the handlers that run just now have ended, without disturbing the CPUs that run none.
//!
//! A handler is a reading section of the handle's epochs, opened by the thread that runs its CPU's target: two plain stores.
//! (Models of calls do without: epochs have models of their own.)

use corewise_sync::epoch::{Epochs, Reader, Section};
use corewise_sync::{context, hint};

use crate::smp::Smp;

/// The handlers of all targets of a handle.
#[derive(Default)]
pub(crate) struct Handlers {
    epochs: Epochs,
}

/// Those of one target, one after the other.
pub(crate) struct OneByOne {
    reader: Reader,
}

/// A handler that is being run, until dropped.
pub(crate) struct Begun<'a> {
    _section: Option<Section<'a>>,
}

impl Handlers {
    pub(crate) fn of_a_target(&self) -> OneByOne {
        OneByOne { reader: self.epochs.reader() }
    }
}

impl OneByOne {
    /// The stepper of the target is about to run a handler.
    #[inline]
    pub(crate) fn begin(&self) -> Begun<'_> {
        Begun { _section: (!hint::EVERY_SCHEDULE).then(|| self.reader.enter()) }
    }
}

impl Smp {
    /// Returns when every function that was running on a call target when this was called has ended: each CPU
    /// has passed a point at which it ran none. The writes of those functions are visible after; functions
    /// that begin later see what the caller wrote before.
    ///
    /// So what no call will find any more, because the caller took it away before, can be dropped: none is
    /// looking at it. Calls that were accepted and haven't begun aren't waited for (for those too:
    /// `call_all(|_| ()).wait()`, which wakes every CPU).
    ///
    /// ```
    /// use std::sync::Arc;
    /// use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
    /// use corewise_smp::Smp;
    /// use corewise_topology::Machine;
    ///
    /// let smp = Smp::new(&Machine::synthetic("core:4 pu:1")?)?;
    /// let open = Arc::new(AtomicBool::new(true));
    /// let device = Arc::clone(&open);
    /// let poke = move |_cpu| {
    ///     if device.load(Relaxed) {
    ///         // Use the device.
    ///     }
    /// };
    /// smp.call_all_nowait(poke);
    /// open.store(false, Relaxed);
    /// smp.synchronize();
    /// // No function uses the device any more, and none will.
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// Idle CPUs are neither woken nor asked. It costs a [heavy fence](corewise_sync::fence::heavy) and a look at
    /// each target; where a function is running it looks for some microseconds more, then sleeps in a blocking
    /// region, to be woken by the end of the last one. The kernel's `synchronize_rcu`, for handlers.
    ///
    /// # Panics
    /// Inside an atomic section: a function on a call target would wait for itself.
    #[track_caller]
    pub fn synchronize(&self) {
        assert!(
            !context::in_atomic_section(),
            "Smp::synchronize inside an atomic section might wait for itself"
        );
        self.shared.handlers.epochs.synchronize();
    }
}
