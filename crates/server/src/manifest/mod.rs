//! The manifest of `corewise up`: what to bring up, what to export and where to listen.
//!
//! `model` is what a manifest asks for. `raw` reads the text and looks nothing up; `resolve` decides what it means, with `drivers` for
//! each device's own keys, `remote` for those of somebody else's export, `object` for those of a
//! volume in an object store, `tuning` for those of its queue and `tls` for those of TLS; `links`
//! follows the names from device to device. All of it is pure: nothing here touches the file system.
//! The format is described in `docs/manifest.md`.

mod changes;
mod drivers;
mod links;
#[cfg(test)]
mod mistakes;
mod model;
mod object;
mod problem;
mod raw;
mod reader;
mod remote;
mod resolve;
#[cfg(test)]
mod tests;
mod tls;
mod tuning;

use std::path::Path;

pub(crate) use changes::{Changes, LegChange, against_record};
pub(crate) use drivers::driver_names;
#[cfg(feature = "object")]
pub(crate) use model::KeyFrom;
#[cfg(feature = "tls")]
pub(crate) use model::RemoteTls;
pub(crate) use model::{
    Clients, Driver, FileDriver, Io, Limit, MetricsAt, Mirror, Object, Remote, export_name,
};
pub use model::{Device, Export, LeftOut, Manifest, Resolved, Server, Tls, too_long};
pub use problem::{At, Place, Problem, Subject};
pub use resolve::{HANG_POLICIES, hang_policy, tcp_address};

/// Reads a manifest. Relative paths in it start at `base`.
pub fn read(text: &str, base: &Path) -> Resolved {
    let (raw, problems) = raw::parse(text);
    resolve::resolve(&raw, problems, base, None)
}

/// Reads the manifest of what is to be added to a server that has all of `server`, and may be built over that.
pub(crate) fn read_beside(text: &str, base: &Path, server: &Manifest) -> Resolved {
    let (raw, problems) = raw::parse(text);
    resolve::resolve(&raw, problems, base, Some(server))
}
