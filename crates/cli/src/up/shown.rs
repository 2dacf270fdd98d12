//! What clients can see of an export.

use corewise::blockmq::BlockDevice;

use crate::manifest;

/// What clients can see, for the list that is printed.
#[derive(Clone, Debug)]
pub(crate) struct Shown {
    pub(crate) name: String,
    /// The device that it shows.
    pub(crate) device: String,
    /// In bytes.
    pub(crate) size: u64,
    pub(crate) read_only: bool,
    pub(crate) description: String,
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
