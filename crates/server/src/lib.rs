//! The block-storage server as a library: a program brings a manifest up, inspects it, changes it
//! while it serves, and takes it down.
//!
//! ```no_run
//! use corewise_server::{Options, Server, manifest};
//!
//! let text = std::fs::read_to_string("/etc/corewise/disks.toml")?;
//! let manifest = manifest::read(&text, "/etc/corewise".as_ref()).into_manifest("disks.toml")?;
//! let server = Server::up(manifest, Options::default())?;
//! println!("{}", server.health().text());
//! server.down("the program ends");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! In reading order: `manifest` reads and checks a manifest without touching anything. `control` is
//! the protocol between a running server and its clients. `drivers` creates the block devices and
//! exports of a manifest, and `live` changes them while they serve. `answers` is the server's end
//! of the control socket. `server` is the life of a server, from the first socket to the last
//! flush. Nothing here prints, handles signals or ends the process: an [`Observer`] gets the
//! reports.

mod address_space;
mod answers;
pub mod block_use;
mod check;
mod cleanup;

pub mod control;
mod descriptors;
mod drivers;
mod error;
mod events;
mod handle;
mod history;
mod listen;
mod live;
pub mod manifest;
mod metrics_http;
mod new_parts;
mod observer;
mod plan;
mod process_limits;
mod report;
mod server;
mod service;
mod settings;
pub mod source;
mod status;
mod store_check;
pub mod text;
mod threads;
mod tls;
pub mod units;

pub use check::{check, front_ends};
pub use cleanup::Cleanup;
#[cfg(feature = "crypt")]
pub use corewise::drivers::Secret;
pub use drivers::{DiskRecord, remove_links};
pub use error::{Error, ErrorKind};
pub use handle::Handle;

pub use manifest::unreachable;
pub use observer::{Blocker, ClientLimits, Notice, Observer, Phase, Ready, Severity, ShownExport};
pub use process_limits::{ProcessLimits, become_io_flusher, raise_open_files};
pub use server::{Options, Server};

pub use source::Source;
