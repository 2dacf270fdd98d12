//! Drivers of the device manager, which turn a manifest's devices into block devices and exports.

mod checkpoint;
mod context;
pub(super) mod crypt;
pub(super) mod export;
pub(super) mod file;
mod front_ends;
mod links;
mod local_disk;
mod mirror;
mod object;
mod overlay;
mod plain;
#[cfg(feature = "crypt")]
mod secrets;
mod volume;

pub(crate) use context::{CallTargets, MissingParts, VolumeContext, Warnings};

pub(crate) use export::{EXPORT, ExportDriver, ImageExports};
pub(crate) use front_ends::FrontEnds;
pub use links::{DiskRecord, remove_links};
pub(crate) use local_disk::link;
pub(crate) use plain::behind_the_end;
#[cfg(feature = "crypt")]
pub(crate) use secrets::Secrets;
pub(crate) use volume::{Volume, VolumeDriver};
