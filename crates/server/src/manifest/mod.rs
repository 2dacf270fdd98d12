//! The manifest of `corewise up`: the devices to bring up, the exports, and the addresses to listen
//! on.
//!
//! `keys` defines a key. The tables of keys are in `server`, `export`, `drivers` (the keys of all
//! devices, and of each driver), and `crypt`, `overlay` and `object` (the drivers of those names).
//! A new key is one entry there. `raw` reads the text by these tables and resolves nothing. `links`
//! follows the names from device to device, and `resolve` makes the `model` of it. All of it is
//! pure: nothing here touches the file system. `docs/manifest.md` describes the format.

mod access;
mod changes;
mod crypt;
mod drivers;
mod export;
mod keys;
mod links;
#[cfg(test)]
mod manual_tests;
#[cfg(test)]
mod mistakes_tests;
mod model;
mod object;
mod overlay;
mod problem;
mod raw;
mod reader;
mod resolve;
mod server;
#[cfg(test)]
mod tests;

use std::path::Path;

pub use access::NodeAccess;
pub(crate) use access::ResolvedAccess;
pub(crate) use changes::{Changes, LegChange, against_record};
pub(crate) use crypt::Crypt;
#[cfg(feature = "crypt")]
pub(crate) use crypt::CryptKey;
#[cfg(feature = "crypt")]
pub use crypt::SecretSource;
pub(crate) use drivers::{
    Checkpoint, Driver, Failing, FileDriver, Io, Mirror, Remote, driver_names,
};
pub use export::{Export, GuestSocket, Limit, UblkDisk};
pub(crate) use keys::{Keys, Reload};
pub(crate) use model::export_name;
pub(crate) use model::why_not;
pub use model::{Device, LeftOut, Manifest, ResolvedManifest, unreachable};
#[cfg(feature = "object")]
pub(crate) use object::KeyFrom;
pub(crate) use object::Object;
pub(crate) use overlay::Overlay;
pub use problem::{Located, Position, Problem, Subject, too_long};

pub use server::{HANG_POLICIES, MetricsAt, Server, Tls, hang_policy, tcp_address};

/// Reads a manifest. Relative paths in it start at `base`.
pub fn read(text: &str, base: &Path) -> ResolvedManifest {
    let (raw, problems) = raw::parse(text, base);
    resolve::resolve(&raw, problems, None)
}

/// Reads a manifest whose devices are added to those of `server`, and may be built over them.
pub(crate) fn read_beside(text: &str, base: &Path, server: &Manifest) -> ResolvedManifest {
    let (raw, problems) = raw::parse(text, base);
    resolve::resolve(&raw, problems, Some(server))
}
