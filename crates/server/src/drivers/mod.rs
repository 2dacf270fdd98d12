//! Drivers of the device manager, which turn a manifest's devices into block devices and exports.

mod checkpoint;
mod context;
pub(super) mod export;
pub(super) mod file;
mod front_ends;
mod mirror;
mod object;
mod plain;
mod volume;

pub(crate) use context::{CallTargets, MissingParts, VolumeContext, Warnings};

pub(crate) use export::{EXPORT, ExportDriver, ImageExports};
pub use front_ends::remove_links;
pub(crate) use front_ends::{FrontEnds, link};
pub(crate) use plain::behind_the_end;
pub(crate) use volume::{Volume, VolumeDriver};
