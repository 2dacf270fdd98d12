//! What can go wrong, and what to do then.

use std::any::Any;
use std::fmt;
use std::panic::{self, AssertUnwindSafe};

use corewise_sync::panics;

/// A workqueue could not be built, or its attributes not be changed.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum BuildError {
    /// The machine has none of the CPUs that were asked for.
    NoCpus {
        /// The queue's name.
        queue: String,
        /// What was asked for.
        asked: String,
        /// What there is.
        possible: String,
    },
    /// The system gave no thread for the first worker of a pod.
    Threads {
        /// The queue's name.
        queue: String,
        /// What the system said.
        reason: String,
    },
    /// The pools were shut down.
    ShutDown {
        /// The queue's name.
        queue: String,
    },
    /// Two things were asked for that don't go together.
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
        /// What kind it is of.
        kind: &'static str,
    },
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BuildError::NoCpus { queue, asked, possible } => write!(
                f,
                "workqueue '{queue}': asked for CPUs {asked}, but there are only {possible}: \
                 name at least one of those"
            ),
            BuildError::Threads { queue, reason } => write!(
                f,
                "workqueue '{queue}': no thread for a first worker ({reason}): raise the limit of \
                 processes (ulimit -u, or the cgroup's pids.max), or choose a wider scope"
            ),
            BuildError::ShutDown { queue } => {
                write!(f, "workqueue '{queue}': its worker pools were shut down")
            }
            BuildError::Conflict { queue, asked, with } => write!(
                f,
                "workqueue '{queue}': {asked} doesn't go together with {with}: leave one of them out"
            ),
            BuildError::Fixed { queue, kind } => write!(
                f,
                "workqueue '{queue}': it is {kind}, and such a queue keeps its attributes: make it \
                 unbound if they are to change (max_active has a call of its own)"
            ),
        }
    }
}

impl std::error::Error for BuildError {}

/// A spawned closure gave no value.
pub enum JoinError {
    /// It panicked; this is what it panicked with.
    Panicked(Box<dyn Any + Send>),
    /// It was cancelled before its end: by [`JoinHandle::abort`](crate::JoinHandle::abort), or
    /// because the pools were shut down. The closure or future was dropped.
    Cancelled,
}

impl JoinError {
    /// The panic's message, where it has one.
    pub fn message(&self) -> Option<&str> {
        match self {
            JoinError::Panicked(payload) => Some(panic_message(payload.as_ref())),
            JoinError::Cancelled => None,
        }
    }

    /// Goes on with the panic in this thread, as `std::thread::JoinHandle` users do by unwrapping.
    ///
    /// # Panics
    /// Always: with the closure's own payload, or saying that it was cancelled.
    pub fn resume(self) -> ! {
        match self {
            JoinError::Panicked(payload) => std::panic::resume_unwind(payload),
            JoinError::Cancelled => panic!("{self}"),
        }
    }
}

/// Runs what may run user code; a panic in there is logged, and that is all.
pub(crate) fn shielded(what: &str, body: impl FnOnce()) {
    let Err(payload) = panic::catch_unwind(AssertUnwindSafe(body)) else { return };
    tracing::error!(message = panic_message(payload.as_ref()), "{what} panicked");
    panics::discard(payload);
}

/// The message of a panic payload: what `panic!` was given, or that it wasn't text.
pub(crate) fn panic_message(payload: &(dyn Any + Send)) -> &str {
    panics::message(payload).unwrap_or("a payload that is not text")
}

impl fmt::Debug for JoinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            JoinError::Panicked(payload) => {
                f.debug_tuple("Panicked").field(&panic_message(payload.as_ref())).finish()
            }
            JoinError::Cancelled => f.write_str("Cancelled"),
        }
    }
}

impl fmt::Display for JoinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            JoinError::Panicked(payload) => {
                write!(f, "the task panicked: {}", panic_message(payload.as_ref()))
            }
            JoinError::Cancelled => f.write_str(
                "the task was cancelled: it was aborted, or its worker pools were shut down",
            ),
        }
    }
}

impl std::error::Error for JoinError {}
