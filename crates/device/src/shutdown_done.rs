//! The handle of a shutdown callback, which may be finished later and from anywhere.

use crate::driver::ShutdownError;
use crate::handoff::Handoff;
use crate::{DeviceId, driver::caught};
use std::fmt;
use std::sync::Arc;

/// Why a shutdown did not succeed; `None` where it did.
pub(crate) type Answer = Option<Failure>;

/// What a handle hands over that tells of no success.
#[derive(Debug)]
pub(crate) enum Failure {
    /// It was dropped.
    Dropped,
    /// It was finished so.
    Said(ShutdownError),
}

/// A callback that is being called, or will be: each thread has one, for one call after the other,
/// unless somebody keeps a handle of it.
pub(crate) struct Call {
    /// I: itself; see there.
    pub handoff: Handoff<Failure>,
    /// I: where an end goes to that comes after the call.
    pub ends: Arc<dyn Ends>,
    /// I: for one call.
    pub device: DeviceId,
}

/// Where the end of a callback that has returned goes to.
pub(crate) trait Ends: Send + Sync {
    /// The device's callback is over, after it had returned.
    fn ended_later(self: Arc<Self>, device: DeviceId, answer: Answer);
}

/// The duty to say that a device is shut down, see
/// [`Bound::start_shutdown`](crate::Bound::start_shutdown).
///
/// May be sent to any thread and finished there, also within the callback. Dropped without an end it
/// counts as a failure, so nobody waits for ever for a task that was cancelled.
#[must_use = "dropped, it makes the shutdown of its device a failed one"]
pub struct ShutdownDone(Option<To>);

enum To {
    Call(Arc<Call>),
    Closure(Box<dyn FnOnce(Result<(), ShutdownError>) + Send>),
}

impl ShutdownDone {
    pub(crate) fn of(call: Arc<Call>) -> ShutdownDone {
        ShutdownDone(Some(To::Call(call)))
    }

    /// `tell` is called once, with the result: on the thread that finishes or drops this. Made by the
    /// manager; public so that a device can be tested without one, or wrapped into another one. A
    /// panic in `tell` is caught and logged.
    pub fn new(tell: impl FnOnce(Result<(), ShutdownError>) + Send + 'static) -> ShutdownDone {
        ShutdownDone(Some(To::Closure(Box::new(tell))))
    }

    /// The device is shut down, or as far as it will get. Devices that waited for it go on.
    ///
    /// From any thread. It does not block, but after the callback has returned it may call the
    /// shutdown's observer.
    pub fn finish(mut self, result: Result<(), ShutdownError>) {
        self.end(result.err().map(Failure::Said));
    }

    fn end(&mut self, answer: Answer) {
        match self.0.take() {
            Some(To::Call(call)) => {
                if let Some(answer) = call.handoff.finish(answer) {
                    call.ends.clone().ended_later(call.device, answer);
                }
            }
            Some(To::Closure(tell)) => {
                let result = match answer {
                    None => Ok(()),
                    Some(Failure::Said(error)) => Err(error),
                    Some(Failure::Dropped) => Err(ShutdownError::dropped()),
                };
                if let Err(panic) = caught(|| tell(result)) {
                    tracing::error!(panic, "the callback at the end of a shutdown panicked");
                }
            }
            None => {}
        }
    }
}

impl Drop for ShutdownDone {
    fn drop(&mut self) {
        self.end(Some(Failure::Dropped));
    }
}

impl fmt::Debug for ShutdownDone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShutdownDone").finish_non_exhaustive()
    }
}
