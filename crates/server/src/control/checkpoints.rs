//! Checkpoints as JSON. The names in the JSON are a promise; `docs/control.md` explains each.

use serde::{Deserialize, Serialize};

/// An action on the checkpoints of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CheckpointAction {
    /// Takes a checkpoint with this name, or with its number as its name.
    Take(Option<String>),
    List,
    Delete(String),
}

/// A point in time of a device.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CheckpointReport {
    /// Name of the checkpoint, by default its number.
    pub name: String,
    /// Time, in seconds since 1970.
    pub taken: f64,
    /// Bytes that may have changed since; `None` if that isn't known.
    pub changed: Option<u64>,
    /// True if clients can read the device as it was then.
    pub readable: bool,
    /// Exports of the device, if it is readable.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub exports: Vec<CheckpointExport>,
}

/// An export of a device with checkpoints.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CheckpointExport {
    /// URI of the export, which has the metadata contexts of the checkpoints.
    pub uri: String,
    /// URI of the device as it was at the checkpoint.
    pub image: String,
}
