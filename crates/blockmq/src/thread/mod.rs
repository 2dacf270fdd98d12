//! The depth that a thread is in: ends and dispatches that nest, a burst of completions, a poll.

pub(crate) mod burst;
pub(crate) mod nest;
