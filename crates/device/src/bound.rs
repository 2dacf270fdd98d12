//! A bound device: the object that a probe creates, and the callback that shuts it down. The
//! callback may end later, and on another thread.

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
    /// Called at most once. A shutdown calls it on a pool worker or on the caller of
    /// [`shutdown`](crate::DeviceManager::shutdown), beside those of unrelated devices. If the
    /// declaration [says so](crate::DeviceDecl::async_shutdown), it runs on that caller alone.
    /// [`unbind`](crate::DeviceManager::unbind) and [`remove`](crate::DeviceManager::remove) call
    /// it on their own thread. It may block.
    ///
    /// # Errors
    ///
    /// An error (or a panic) is recorded on the timeline, and never stops the sequence.
    fn shutdown(&self) -> Result<(), ShutdownError> {
        Ok(())
    }

    /// Begins to shut the device down; [`Bound::shutdown`] has the contract. This is the method
    /// that the manager calls. By default it calls `shutdown`. It may return before the device is
    /// shut down: then `done` is finished later, from any thread, and an asynchronous service holds
    /// no worker.
    ///
    /// The callback is over when `done` is finished, or dropped (a failure). A drop by a panic of
    /// this call is recorded as that panic. An implementation should not keep the last handle of
    /// this object beyond the end, or the object is dropped later than promised. A synchronous
    /// device that is not over holds up the other synchronous ones, but no thread.
    fn start_shutdown(self: Arc<Self>, done: ShutdownDone) {
        done.finish(self.shutdown());
    }

    /// Returns false if [`Bound::shutdown`] has nothing to do: the device is then completed on the
    /// spot, without lock or queue. Asked at the end of a bring-up and, if devices have come or
    /// gone since, when the shutdown begins.
    fn has_shutdown(&self) -> bool {
        true
    }
}

impl fmt::Debug for dyn Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Bound")
    }
}

/// Returns the concrete object behind a bound one.
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

/// The failure of a shutdown; `None` after a success.
pub(crate) type ShutdownFailure = Option<Failure>;

/// A failure that a handle reports.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The handle was dropped.
    Dropped,
    /// The handle was finished with this error.
    Said(ShutdownError),
}

/// A callback that is running or about to run. Each thread reuses one for all its calls, unless a
/// handle of it is kept.
pub(crate) struct ShutdownCall {
    /// I: itself; `Handoff` says what guards its fields.
    pub handoff: Handoff<Failure>,
    /// I: the sink that gets an end that comes after the call.
    pub ends: Arc<dyn EndSink>,
    /// I: for one call.
    pub device: DeviceId,
}

/// Receiver of the end of a callback that has returned before.
pub(crate) trait EndSink: Send + Sync {
    /// Records the end of the device's callback, which came after the callback had returned.
    fn ended_later(self: Arc<Self>, device: DeviceId, answer: ShutdownFailure);
}

/// The duty to report that a device is shut down; see [`Bound::start_shutdown`].
///
/// May be sent to any thread and finished there, also within the callback. If it is dropped without
/// an end, the shutdown has failed, so no thread waits for ever for a task that was cancelled.
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

    /// Creates a handle that calls `tell` once with the result, on the thread that finishes or
    /// drops it. The manager creates these; the function is public so that a device can be tested
    /// without a manager, or wrapped into another one. A panic in `tell` is caught and logged.
    pub fn new(tell: impl FnOnce(Result<(), ShutdownError>) + Send + 'static) -> ShutdownDone {
        ShutdownDone(Some(DoneTarget::Closure(Box::new(tell))))
    }

    /// Reports that the device is shut down, or as far as it will get. Devices that waited for it
    /// go on.
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
