//! Timeouts: the driver is told of a request that it has had for too long, and that can't race its completion.
//!
//! `README.md` beside this file has the protocol.

mod late;
