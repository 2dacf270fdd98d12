//! Timeouts: the driver is told of a request that it has had for too long, and that can't race its completion.
//!
//! `README.md` beside this file has the protocol.

mod tag_state;
mod watch;

pub use tag_state::{Release, TagState};
pub use watch::Watch;

pub use late::{LateOne, TimedOut, TimerReturn};
pub(crate) use late::{TagSlot, Timeouts};

mod late;
