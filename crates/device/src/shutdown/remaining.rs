//! What a shutdown has left undone, and why.

use super::plan::Kind;
use crate::{DeviceId, Graph};
use std::collections::BTreeMap;
use std::time::Duration;

/// What is not shut down.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Remaining {
    /// The device's name.
    pub device: String,
    /// Why it is not shut down.
    pub state: RemainingState,
}

/// Why a device is not shut down (yet).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RemainingState {
    /// Its callback is being called, for that long by now.
    Running {
        /// How long.
        elapsed: Duration,
    },
    /// Nothing holds it up; it was not its turn.
    Ready,
    /// These children and consumers are not shut down.
    Waiting {
        /// Their names.
        on: Vec<String>,
    },
}

/// What remains, in the order in which a serial shutdown would go on. `done` and `running` are by
/// device.
pub(super) fn of(
    graph: &Graph,
    kinds: &[Kind],
    done: &[bool],
    running: &BTreeMap<DeviceId, Duration>,
) -> Vec<Remaining> {
    let open = |id: &DeviceId| !done[id.index()] && kinds[id.index()] != Kind::Absent;
    let order = graph.order().iter().rev().copied();
    let left = order.filter(|id| open(id) && kinds[id.index()].has_callback());
    left.map(|id| {
        let on = graph.feeds(id).iter().filter(|f| open(f));
        let on: Vec<String> = on.map(|&f| graph.name(f).to_string()).collect();
        let state = match running.get(&id) {
            Some(&elapsed) => RemainingState::Running { elapsed },
            None if on.is_empty() => RemainingState::Ready,
            None => RemainingState::Waiting { on },
        };
        Remaining { device: graph.name(id).to_string(), state }
    })
    .collect()
}
