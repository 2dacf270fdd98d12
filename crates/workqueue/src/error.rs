//! The errors of the crate, with a remedy for each.

use std::any::Any;
use std::fmt;
use std::io;
use std::panic::{self, AssertUnwindSafe};

use corewise_sync::panics::{self, PanicPayload};
use corewise_sync::text;

/// A workqueue could not be built, or its attributes could not be changed.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum BuildError {
    /// The process may use none of the requested CPUs.
    NoCpus {
        /// The queue's name.
        queue: String,
        /// The requested CPUs; empty for an empty set.
        asked: String,
        /// The CPUs that the process may use, online or not.
        possible: String,
    },
    /// The system gave no thread for the first worker of a pod.
    Threads {
        /// The queue's name.
        queue: String,
        /// The reason of the system or of the pools' spawn handler, and the remedy.
        reason: String,
    },
    /// The pools were shut down.
    ShutDown {
        /// The queue's name.
        queue: String,
    },
    /// Two options don't go together.
    Conflict {
        /// The queue's name.
        queue: String,
        /// The one.
        asked: &'static str,
        /// The other.
        with: &'static str,
    },
    /// The attributes of this kind of queue can't be changed.
    Fixed {
        /// The queue's name.
        queue: String,
        /// The queue's kind.
        kind: &'static str,
    },
}

impl BuildError {
    pub(crate) fn threads(queue: &str, error: &io::Error) -> BuildError {
        // The system reports a limit as an error that may pass.
        let remedy = match error.kind() {
            io::ErrorKind::WouldBlock => {
                "raise the limit of processes (ulimit -u, or the cgroup's pids.max), or choose a wider scope"
            }
            _ => {
                "see to it that threads can be made, by the spawn handler where the pools have one"
            }
        };
        BuildError::Threads { queue: queue.into(), reason: format!("{error}: {remedy}") }
    }
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BuildError::NoCpus { queue, asked, possible } if asked.is_empty() => write!(
                f,
                "workqueue '{queue}': asked for an empty set of CPUs: name at least one of {possible}"
            ),
            BuildError::NoCpus { queue, asked, possible } => write!(
                f,
                "workqueue '{queue}': asked for CPUs {asked}, but the process may use only \
                 {possible}, online or not: name at least one of these"
            ),
            BuildError::Threads { queue, reason } => {
                write!(f, "workqueue '{queue}': cannot start a first worker: {reason}")
            }
            BuildError::ShutDown { queue } => {
                write!(f, "workqueue '{queue}': its worker pools were shut down")
            }
            BuildError::Conflict { queue, asked, with } => write!(
                f,
                "workqueue '{queue}': {asked} and {with} exclude each other: leave out one of them"
            ),
            BuildError::Fixed { queue, kind } => write!(
                f,
                "workqueue '{queue}': it is {kind}, and such a queue keeps its attributes: use an \
                 unbound queue to change them (for max_active, call set_max_active)"
            ),
        }
    }
}

impl std::error::Error for BuildError {}

/// The item is pending: a run follows that sees all writes before the call, unless it is cancelled
/// before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Queued {
    /// The item is pending by this call.
    Now,
    /// An earlier call made it pending: any number of calls become one run.
    AlreadyPending,
}

/// A reason why a queue refused something. A refusal changes nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum QueueError {
    /// The item is disabled: see [`Work::disable`](crate::Work::disable).
    Disabled,
    /// The queue is being [drained](crate::Workqueue::drain), and this doesn't come from one of its
    /// own items. Later it takes it again.
    Draining,
    /// The queue was [destroyed](crate::Workqueue::destroy), or its pools were
    /// [shut down](crate::WorkerPools::shutdown). It takes nothing any more.
    Closed,
    /// The queue's [capacity](crate::QueueBuilder::capacity) is used up by closures that wait or
    /// run: see [`Workqueue::try_spawn`](crate::Workqueue::try_spawn).
    Full,
    /// The item has a delay, and the system gave no thread for the timers.
    NoThread,
}

impl fmt::Display for QueueError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            QueueError::Disabled => "not queued: the item is disabled: enable it first",
            QueueError::Draining => "not queued: the queue is being drained: try again later",
            QueueError::Closed => "not queued: the queue was destroyed or shut down: use another",
            QueueError::Full => "not queued: the queue is full: try again when some of it is done",
            QueueError::NoThread => {
                "not queued: cannot start the timer thread: raise the limit of processes"
            }
        })
    }
}

impl std::error::Error for QueueError {}

/// A closure that a queue didn't take, and the reason: see
/// [`Workqueue::execute`](crate::Workqueue::execute) and
/// [`Workqueue::try_spawn`](crate::Workqueue::try_spawn).
#[non_exhaustive]
pub struct Refused<C> {
    /// The closure, as it was.
    pub closure: C,
    /// Why.
    pub error: QueueError,
}

impl<C> fmt::Debug for Refused<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Refused").field("error", &self.error).finish_non_exhaustive()
    }
}

impl<C> fmt::Display for Refused<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<C> std::error::Error for Refused<C> {}

/// A spawned closure gave no value.
#[derive(Debug)]
#[non_exhaustive]
pub enum JoinError {
    /// The job panicked with this payload.
    Panicked(PanicPayload),
    /// The job was cancelled before its end: by [`JoinHandle::abort`](crate::JoinHandle::abort), or
    /// because the pools were shut down. Its closure or future was dropped.
    Cancelled,
}

impl JoinError {
    pub(crate) fn panicked(payload: Box<dyn Any + Send>) -> JoinError {
        JoinError::Panicked(PanicPayload::new(payload))
    }

    /// Returns the whole message of the panic, if there is one. The error's text leaves out the
    /// middle of a long message.
    pub fn message(&self) -> Option<&str> {
        match self {
            JoinError::Panicked(payload) => Some(payload.message()),
            JoinError::Cancelled => None,
        }
    }

    /// Returns true if the job was cancelled before its end.
    pub fn is_cancelled(&self) -> bool {
        matches!(self, JoinError::Cancelled)
    }

    /// Resumes the panic in this thread, as `std::thread::JoinHandle` users do by unwrapping.
    ///
    /// # Panics
    /// Always: with the closure's own payload, or saying that it was cancelled.
    pub fn resume(self) -> ! {
        match self {
            JoinError::Panicked(payload) => std::panic::resume_unwind(payload.into_inner()),
            JoinError::Cancelled => panic!("{self}"),
        }
    }
}

/// Runs a function that may run user code, and only logs a panic in there.
#[inline]
pub(crate) fn shielded(what: &str, body: impl FnOnce()) {
    if let Err(payload) = panic::catch_unwind(AssertUnwindSafe(body)) {
        report(what, payload);
    }
}

#[cold]
fn report(what: &str, payload: Box<dyn Any + Send>) {
    let message = text::message(panics::message(&*payload));
    quietly(|| tracing::error!(%message, "{what} panicked"));
    panics::discard(payload);
}

/// Logs in a place where a panic would do harm: the subscriber is user code too. If it panics, only
/// the panic hook reports that.
pub(crate) fn quietly(log: impl FnOnce()) {
    if let Err(payload) = panic::catch_unwind(AssertUnwindSafe(log)) {
        panics::discard(payload);
    }
}

impl fmt::Display for JoinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            JoinError::Panicked(payload) => {
                write!(f, "the task panicked: {}", text::message(payload.message()))
            }
            JoinError::Cancelled => f.write_str(
                "the task was cancelled: it was aborted, or its worker pools were shut down",
            ),
        }
    }
}

impl std::error::Error for JoinError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_of_processes_is_named_only_where_the_system_says_that_it_is_reached() {
        let told =
            |kind, why: &str| BuildError::threads("q", &io::Error::new(kind, why)).to_string();
        let full = told(io::ErrorKind::WouldBlock, "Resource temporarily unavailable");
        assert!(full.contains("unavailable: raise the limit of processes"), "{full}");
        let lost = told(io::ErrorKind::Other, "the spawn handler dropped the worker");
        assert!(lost.contains("dropped the worker: see to it"), "{lost}");
        assert!(!lost.contains("limit"), "{lost}");
    }

    #[test]
    fn a_join_error_goes_where_errors_go() {
        fn wants<E: std::error::Error + Send + Sync + 'static>(error: E) -> E {
            error
        }
        let error = wants(JoinError::panicked(Box::new("on purpose")));
        assert!(!error.is_cancelled());
        assert_eq!(format!("{error:?}"), r#"Panicked("on purpose")"#);
        assert_eq!(error.to_string(), "the task panicked: on purpose");
        let other = JoinError::panicked(Box::new(7));
        assert_eq!(other.message(), Some("a payload that is not text"));
        assert!(wants(JoinError::Cancelled).is_cancelled());
    }
}
