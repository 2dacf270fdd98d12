//! An NBD server: block devices for other machines, under names.
//!
//! ```
//! use std::sync::Arc;
//! use std::time::Duration;
//! use corewise_blockmq::Queue;
//! use corewise_drivers::Memory;
//! use corewise_nbd::{Export, Options, Server};
//! use corewise_topology::Machine;
//! use corewise_workqueue::{WorkerPools, Workqueue};
//!
//! let machine = Machine::live()?;
//! let pools = WorkerPools::new(&machine);
//! let wq = Workqueue::builder("block").build(&pools)?;
//! let disk = Queue::builder(&machine, Arc::new(Memory::new(64 << 20)?)).name("ram").build(&wq);
//!
//! let server = Server::new(Options::default());
//! server.add_export(Export::new("ram", disk.clone()).description("64 MiB of memory"))?;
//! let endpoint = server.listen_tcp("127.0.0.1:0")?;
//! println!("nbdinfo '{}'", endpoint.uri("ram")); // nbd://127.0.0.1:40313/ram
//! # let corewise_nbd::Endpoint::Tcp(address) = endpoint else { unreachable!() };
//! # let mut greeting = [0; 8];
//! # std::io::Read::read_exact(&mut std::net::TcpStream::connect(address)?, &mut greeting)?;
//! # assert_eq!(&greeting, b"NBDMAGIC");
//!
//! // The end: clients get the answers to their requests, then their devices are flushed.
//! let report = server.drain(Duration::from_secs(10));
//! assert!(report.is_clean());
//! disk.drain();
//! # drop((server, disk));
//! pools.shutdown();
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Any [`BlockDevice`](corewise_blockmq::BlockDevice) will do; the example `serve_memory` has one
//! of its own.
//!
//! In reading order:
//!
//! | module | its job |
//! |---|---|
//! | `wire` | constants and messages, bytes to structs and back. Pure |
//! | `handshake` | the negotiation as a state machine over bytes. Pure |
//! | `policy` | the verdict on a request, the flags of an export. Pure |
//! | [`Export`] | a [`BlockDevice`](corewise_blockmq::BlockDevice) under a name |
//! | `deadline` | a time by which a client has to act |
//! | `load` | replies owed to a client, in one word; arrival times; counters of replies |
//! | `memory` | one budget for the bytes of all requests |
//! | `reply` | the path of replies to the socket, on which no thread waits |
//! | `tls` | the same bytes in TLS; the feature `tls`, off by default since ring compiles C |
//! | `client_log` | log lines about clients, and their rate limits |
//! | `session` | the transmission phase of one connection |
//! | `client` | the client's side: [`Remote`], a driver of another server's exports |
//! | [`Server`] | listeners, exports, connections, drain |
//!
//! The server speaks fixed newstyle negotiation (`EXPORT_NAME`, `LIST`, `INFO`, `GO`, `ABORT`,
//! `STRUCTURED_REPLY`, `LIST_META_CONTEXT`, `SET_META_CONTEXT`), and simple and structured
//! replies. It serves `READ`, `WRITE`, `FLUSH`, `TRIM`, `WRITE_ZEROES`, `BLOCK_STATUS` with
//! `base:allocation`, `qemu:allocation-depth` and `qemu:dirty-bitmap:`, `DISC`, the flags `FUA`,
//! `NO_HOLE`, `DF` and `REQ_ONE`, and several connections to one export. If the device has a use
//! for them, it also serves `CACHE` and the flag `FAST_ZERO`. The feature `tls` adds `STARTTLS`.
//! [`Options::extended_headers`] lets clients have extended headers. The server doesn't speak
//! resizing: it refuses the option, and clients go on without.
//!
//! A client may read and write any bytes. If a change covers a block of the device in part, the
//! server reads, changes and writes the block. All changes of that block, by any client, then come
//! one after the other. Blocks larger than 64 KiB are only taken whole.
//!
//! Holes are those that the device reports
//! ([`Request::extents_of`](corewise_blockmq::Request::extents_of)). Block status tells them to
//! clients. A read of 64 KiB or more by a client with structured replies leaves them out. The
//! server asks the device for size and abilities at each handshake. So a device that grew shows its
//! size to clients that connect from then on.

mod client;
mod client_log;
mod connection;
mod deadline;
mod error;
mod export;
#[doc(hidden)]
pub mod handshake;
mod load;
mod memory;
#[doc(hidden)]
pub mod model;
mod negotiate;
mod policy;
mod reply;
mod server;
mod session;
#[cfg(feature = "tls")]
mod tls;
#[cfg(not(feature = "tls"))]
#[path = "tls/none.rs"]
mod tls;
#[doc(hidden)]
pub mod wire;

#[cfg(feature = "tls")]
pub use client::RemoteTls;
pub use client::session::{RemoteProxy, RemoteSession};
pub use client::{
    Remote, RemoteError, RemoteEvent, RemoteObserver, RemoteOptions, RemoteState, RemoteStatus,
    Uri, UriError,
};
pub use corewise_export::{Peer, Rate, Traffic};
pub use error::{Error, TlsPart};
pub use export::{AllocationDepth, Checkpoints, Export};
pub use load::Budget;
pub use memory::{MemoryUse, limit_heap, reserve_heap};
pub use server::{
    ClientEvent, ClientStatus, DrainReport, Endpoint, ExportFlush, ExportStatus, FlushOutcome,
    HandshakeCounts, Listener, Options, Server,
};
#[cfg(feature = "tls")]
pub use tls::Tls;

/// The README's example is a test too.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub mod readme {}
