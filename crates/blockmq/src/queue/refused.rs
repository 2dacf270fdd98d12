//! What a queue refuses.

use std::fmt;

use crate::state::request::Request;

/// Why a queue didn't take a request whose submitter doesn't want to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NowaitError {
    /// The queue has as many requests of this CPU as it [takes](crate::QueueBuilder::nr_requests): there is room once
    /// some of them have completed.
    Full,
    /// Somebody keeps it frozen: it takes requests again once the last [guard](crate::FreezeGuard) is dropped.
    Frozen,
}

impl fmt::Display for NowaitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Full => {
                "not submitted: the queue has as many requests of this CPU as it takes: \
                 submit it again when some have completed"
            }
            Self::Frozen => {
                "not submitted: somebody keeps the queue frozen: submit it again once it is unfrozen"
            }
        })
    }
}

impl std::error::Error for NowaitError {}

/// A request that a queue didn't take, and why: see [`Queue::submit_nowait`](crate::Queue::submit_nowait).
#[non_exhaustive]
pub struct Refused {
    /// The request, as it was.
    pub request: Box<Request>,
    /// Why.
    pub error: NowaitError,
}

impl fmt::Debug for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Refused").field("error", &self.error).finish_non_exhaustive()
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl std::error::Error for Refused {}
