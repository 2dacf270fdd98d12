//! Drivers of the device manager: what turns a manifest's devices into block devices and exports.

mod context;
mod driver;
pub(super) mod export;
pub(super) mod file;
mod leaf;
mod mirror;
mod mirror_lines;
mod object;
mod over_one;
mod remote;
mod volume;

pub(crate) use context::{House, Missing, Notes};
pub(crate) use driver::VolumeDriver;
pub(crate) use export::{EXPORT, ExportDriver};
pub(crate) use volume::Volume;
