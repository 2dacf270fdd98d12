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
    /// Somebody keeps it frozen: it takes requests again after the last [`Queue::unfreeze`](crate::Queue::unfreeze).
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

/// One [`Queue::unquiesce`](crate::Queue::unquiesce) or [`Queue::unfreeze`](crate::Queue::unfreeze) too many: nobody
/// held the queue that way. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotHeld {
    pub(crate) queue: Box<str>,
    pub(crate) asked: &'static str,
    pub(crate) missing: &'static str,
}

impl fmt::Display for NotHeld {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { queue, asked, missing } = self;
        write!(
            f,
            "{asked} of `{queue}` without a {missing}: nothing was changed; call it once for each {missing}"
        )
    }
}

impl std::error::Error for NotHeld {}
