//! The NBD protocol: wire module, handshake, session, exports over a block device.
//!
//! In reading order:
//!
//! | module | its job |
//! |---|---|
//! | [`wire`] | constants and messages, bytes to structs and back. Pure |
//! | [`handshake`] | the negotiation as a state machine over bytes. Pure |
//! | [`policy`] | what a request deserves, which flags an export gets, which client is admitted. Pure |
//! | [`Export`] | a [`BlockDevice`](corewise_blockmq::BlockDevice) under a name |
//! | [`load`] | what a connection owes its client, in one word |
//! | [`reply`] | how replies reach the socket without anybody waiting |
//! | `session` | the transmission phase of one connection |
//! | [`Server`] | listeners, exports, connections, drain |
//!
//! What is spoken: fixed newstyle negotiation (`EXPORT_NAME`, `LIST`, `INFO`, `GO`, `ABORT`),
//! simple replies, `READ`, `WRITE`, `FLUSH`, `TRIM`, `WRITE_ZEROES`, `DISC`, the flags `FUA` and
//! `NO_HOLE`, several connections to one export. Not spoken: TLS, structured replies, block status,
//! extended headers; clients are told so and go on without.

mod connection;
mod error;
mod export;
pub mod handshake;
pub mod load;
#[cfg(loom)]
#[doc(hidden)]
pub mod model;
mod negotiate;
pub mod policy;
pub mod reply;
mod server;
mod session;
pub mod wire;

pub use error::Error;
pub use export::Export;
pub use server::{DrainReport, Endpoint, ExportStatus, FlushOutcome, Listener, Options, Server};

/// The README's example is a test too.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub mod readme {}
