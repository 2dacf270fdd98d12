//! Volumes elsewhere as JSON. The names are the promise: `docs/control.md` explains each.

use corewise::nbd::{RemoteState, RemoteStatus};
use serde::{Deserialize, Serialize};

/// The connections of a volume that is somebody else's export.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct RemoteOf {
    pub(crate) connections: usize,
    /// There has been none for so long that requests fail at once.
    pub(crate) down: bool,
    /// How often it has lost its connections.
    pub(crate) losses: u64,
    /// Flushes that failed since changes may have been lost with a connection.
    pub(crate) unflushed: u64,
    /// Why it lost its connections the last time, or why there is none; empty where it never did.
    pub(crate) why: String,
}

impl RemoteOf {
    pub(crate) fn new(status: &RemoteStatus) -> RemoteOf {
        let (connections, down) = match status.state {
            RemoteState::Connected(connections) => (connections, false),
            RemoteState::Down => (0, true),
            _ => (0, false),
        };
        RemoteOf {
            connections,
            down,
            losses: status.losses,
            unflushed: status.unflushed,
            why: status.why.clone(),
        }
    }
}
