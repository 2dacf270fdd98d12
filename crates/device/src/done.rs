//! The handle with which an asynchronous probe says how it ended.

use crate::driver::{Bound, ProbeError};
use std::fmt;
use std::sync::Arc;

/// Says how one probe ended; see [`Driver::start_probe`](crate::Driver::start_probe).
///
/// It may go anywhere: into another thread, a task of an asynchronous runtime, the callback of a
/// request. No worker is held meanwhile. Dropped without [`ProbeDone::finish`] (also by a panic, or
/// by a runtime that ends) it finishes the probe as failed, so that nobody waits for ever.
///
/// The idea is that of a kernel `struct completion`, with a result.
#[must_use = "dropped, it makes the probe fail"]
pub struct ProbeDone {
    tell: Option<Box<dyn FnOnce(ProbeResult) + Send>>,
}

/// What a probe gives.
pub(crate) type ProbeResult = Result<Arc<dyn Bound>, ProbeError>;

impl ProbeDone {
    /// `tell` is called once, with the result: on the thread that finishes or drops this. Made by the
    /// manager; public so that a driver can be tested without one.
    pub fn new(
        tell: impl FnOnce(Result<Arc<dyn Bound>, ProbeError>) + Send + 'static,
    ) -> ProbeDone {
        ProbeDone { tell: Some(Box::new(tell)) }
    }

    /// The probe is over: the device is bound, or not. From any thread. Does not block; the device's
    /// observers are told on this thread, and what waited for the device is queued. A probe that was
    /// given up meanwhile (its deadline has passed) may have its result dropped here.
    pub fn finish(mut self, result: Result<Arc<dyn Bound>, ProbeError>) {
        if let Some(tell) = self.tell.take() {
            tell(result);
        }
    }
}

impl Drop for ProbeDone {
    fn drop(&mut self) {
        if let Some(tell) = self.tell.take() {
            tell(Err(ProbeError::failed(
                "its driver dropped the probe's completion without a result; finish it on every \
                 path",
            )));
        }
    }
}

impl fmt::Debug for ProbeDone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProbeDone").finish_non_exhaustive()
    }
}
