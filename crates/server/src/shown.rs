//! What clients can see of an export.

use corewise::blockmq::BlockDevice;

use crate::manifest;

/// An export as clients see it.
#[derive(Clone, Debug)]
pub struct Shown {
    /// Its name, which may be empty.
    pub name: String,
    /// The device that it shows.
    pub device: String,
    /// Its size in bytes.
    pub size: u64,
    /// Whether clients may only read.
    pub read_only: bool,
    /// The manifest's words about it; empty where there are none.
    pub description: String,
}

impl Shown {
    pub(crate) fn new(export: &manifest::Export, volume: &dyn BlockDevice) -> Shown {
        let geometry = volume.geometry();
        Shown {
            name: export.name.clone(),
            device: export.device.clone(),
            size: geometry.size,
            read_only: export.read_only || geometry.read_only,
            description: export.description.clone().unwrap_or_default(),
        }
    }
}
