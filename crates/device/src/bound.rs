//! What a probe makes of a device: an object that is bound, and shut down in the end by a callback,
//! which may be over later and elsewhere.

use crate::error::{ShutdownError, caught};
use crate::graph::DeviceId;
use crate::handoff::Handoff;
use std::any::{Any, TypeId};
use std::fmt;
use std::sync::Arc;

/// A device that is up: what its consumers use, and what is called at shutdown.
///
/// Consumers get at the concrete type with
/// [`ProbeContext::supplier`](crate::ProbeContext::supplier); drivers that stand for one another
/// bind the same type (a struct around `Arc<dyn BlockDevice>`, say).
///
/// The object is dropped by the thread that called
/// [`shutdown`](crate::DeviceManager::shutdown), after the last callback has ended, each device
/// before what it needs. A panic in `drop` is caught.
pub trait Bound: Any + Send + Sync {
    /// Flushes and closes, after everything that needs this device was shut down.
    ///
    /// Called at most once: on a pool worker or the caller of
    /// [`shutdown`](crate::DeviceManager::shutdown), beside those of devices that have nothing to
    /// do with this one; on that caller alone where the declaration [says
    /// so](crate::DeviceDecl::async_shutdown). It may block.
    ///
    /// # Errors
    ///
    /// An error (or a panic) is recorded on the timeline, and never stops the sequence.
    fn shutdown(&self) -> Result<(), ShutdownError> {
        Ok(())
    }

    /// As [`Bound::shutdown`], which it calls by default; but it may return before the device is
    /// shut down, and `done` is finished later, from any thread: so an asynchronous service holds
    /// no worker. This is what is called.
    ///
    /// It counts as over when `done` is finished, or dropped (a failure): a drop by a panic of this
    /// call is recorded as that panic. It should not keep the last handle of this object beyond
    /// that, or the object is dropped later than promised. A synchronous device that is not over
    /// yet holds up the other synchronous ones, but no thread.
    fn start_shutdown(self: Arc<Self>, done: ShutdownDone) {
        done.finish(self.shutdown());
    }

    /// Begins to end the device's service because it is unbound or removed, while the program goes
    /// on: the counterpart of a kernel driver's `remove`. `done` says, perhaps later and from
    /// anywhere, how that ended. By default it is the same as [`Bound::start_shutdown`].
    ///
    /// Called at most once, on the thread that unbinds or removes, after all that need the device
    /// were unbound; not called where [`Bound::has_shutdown`] is false. The object is dropped
    /// afterwards.
    fn start_unbind(self: Arc<Self>, done: ShutdownDone) {
        self.start_shutdown(done);
    }

    /// False where [`Bound::shutdown`] has nothing to do: the device is then completed on the spot,
    /// without lock or queue. Asked at the end of a bring-up and, where devices have come or gone
    /// since, when the shutdown begins.
    fn has_shutdown(&self) -> bool {
        true
    }
}

impl fmt::Debug for dyn Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Bound")
    }
}

/// The concrete object behind a bound one.
pub(crate) fn downcast<T: Bound>(bound: Arc<dyn Bound>) -> Option<Arc<T>> {
    // Not `Arc::downcast`, for which the trait object would have to become another one: older
    // compilers can't.
    if bound.as_ref().type_id() != TypeId::of::<T>() {
        return None;
    }
    // SAFETY: the object is a `T`, so an `Arc` of it has the layout of an `Arc<T>`, and the pointer
    // came from `into_raw`.
    Some(unsafe { Arc::from_raw(Arc::into_raw(bound).cast::<T>()) })
}

/// Why a shutdown did not succeed; `None` where it did.
pub(crate) type ShutdownFailure = Option<Failure>;

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
pub(crate) struct ShutdownCall {
    /// I: itself; see there.
    pub handoff: Handoff<Failure>,
    /// I: where an end goes to that comes after the call.
    pub ends: Arc<dyn EndSink>,
    /// I: for one call.
    pub device: DeviceId,
}

/// Where the end of a callback that has returned goes to.
pub(crate) trait EndSink: Send + Sync {
    /// The device's callback is over, after it had returned.
    fn ended_later(self: Arc<Self>, device: DeviceId, answer: ShutdownFailure);
}

/// The duty to say that a device is shut down, see
/// [`Bound::start_shutdown`].
///
/// May be sent to any thread and finished there, also within the callback. Dropped without an end
/// it counts as a failure, so nobody waits for ever for a task that was cancelled.
#[must_use = "dropped, it makes the shutdown of its device a failed one"]
pub struct ShutdownDone(Option<DoneTarget>);

enum DoneTarget {
    Call(Arc<ShutdownCall>),
    Closure(Box<dyn FnOnce(Result<(), ShutdownError>) + Send>),
}

impl ShutdownDone {
    pub(crate) fn of(call: Arc<ShutdownCall>) -> ShutdownDone {
        ShutdownDone(Some(DoneTarget::Call(call)))
    }

    /// `tell` is called once, with the result: on the thread that finishes or drops this. Made by
    /// the manager; public so that a device can be tested without one, or wrapped into another one.
    /// A panic in `tell` is caught and logged.
    pub fn new(tell: impl FnOnce(Result<(), ShutdownError>) + Send + 'static) -> ShutdownDone {
        ShutdownDone(Some(DoneTarget::Closure(Box::new(tell))))
    }

    /// The device is shut down, or as far as it will get. Devices that waited for it go on.
    ///
    /// From any thread. It does not block, but after the callback has returned it may call the
    /// shutdown's observer.
    pub fn finish(mut self, result: Result<(), ShutdownError>) {
        self.end(result.err().map(Failure::Said));
    }

    fn end(&mut self, answer: ShutdownFailure) {
        match self.0.take() {
            Some(DoneTarget::Call(call)) => {
                if let Some(answer) = call.handoff.finish(answer) {
                    call.ends.clone().ended_later(call.device, answer);
                }
            }
            Some(DoneTarget::Closure(tell)) => {
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
