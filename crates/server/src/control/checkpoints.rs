//! Checkpoints as JSON. The names in the JSON are a promise; `docs/control.md` explains each.

use corewise::drivers::CheckpointStatus;
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
    /// Reason why they can't.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unreadable: Option<String>,
    /// URIs of the device as it was then, if it is readable.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub uris: Vec<String>,
}

/// The state of a device with checkpoints.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CheckpointState {
    /// Number of checkpoints.
    pub(crate) count: usize,
    /// Bytes that would count as changed after a crash now, whether they are or not.
    pub(crate) open: u64,
    /// Bytes of the old content of blocks that is kept.
    pub(crate) copied: u64,
    /// Most bytes of that; 0 if none is kept.
    pub(crate) room: u64,
    /// Newest checkpoint, if its old content couldn't be kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) lost: Option<LostCheckpoint>,
}

/// A checkpoint that can't be read, since its old content couldn't be kept.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct LostCheckpoint {
    pub(crate) checkpoint: String,
    pub(crate) why: String,
}

impl CheckpointState {
    pub(crate) fn new(status: CheckpointStatus) -> CheckpointState {
        let CheckpointStatus { checkpoints: count, open, copied, room, lost, .. } = status;
        let lost = lost.map(|(checkpoint, why)| LostCheckpoint { checkpoint, why });
        CheckpointState { count, open, copied, room, lost }
    }
}
