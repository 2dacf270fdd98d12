//! Words and protocols that know nothing of requests: usage, holds, runs, waits. `../README.md`
//! argues them.

pub(crate) mod end;
pub(crate) mod flusher;
pub(crate) mod gate;
pub(crate) mod run_state;
pub(crate) mod tag_state;
pub(crate) mod usage;
