//! What a shutdown has left undone, and why.

use super::plan::Outline;
use crate::graph::{DeviceId, Graph};
use corewise_sync::text;
use corewise_timeline::EdgeKind;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

/// What is not shut down. Its `Display` says it in words.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Remaining {
    /// The device's name.
    pub device: String,
    /// Why it is not shut down.
    pub state: RemainingState,
    /// For a device that waits: who it really waits for, and through whom. Where several run that it
    /// waits for, the one that has been running longest. `None`: nobody that it waits for runs.
    pub behind: Option<Behind>,
    /// Its deadline has passed while its callback runs.
    pub overdue: bool,
    /// It was skipped: its callback still runs, and counts for nothing.
    pub skipped: bool,
}

/// Why a device is not shut down (yet).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RemainingState {
    /// Its callback is being called, for that long by now, or has returned and is not over.
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

/// The devices that one waits for, and through which edge.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Behind {
    /// The device whose callback runs.
    pub device: String,
    /// How long it has been running.
    pub elapsed: Duration,
    /// The first step to it: a child or consumer of the one that waits. It may be `device` itself.
    pub through: String,
    /// Whether that is a child or a consumer.
    pub edge: EdgeKind,
}

impl fmt::Display for Remaining {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", text::name(&self.device))?;
        match &self.state {
            RemainingState::Running { elapsed } => {
                write!(f, " has been running for {elapsed:.1?}")?;
            }
            RemainingState::Ready => write!(f, " is ready, but has not started")?,
            RemainingState::Waiting { on } => {
                let on = on.join(", ");
                write!(f, " waits for {}", text::message(&on))?;
            }
        }
        if let Some(Behind { device, elapsed, through, .. }) = &self.behind {
            let same = through == device;
            let (device, through) = (text::name(device), text::name(through));
            match same {
                true => write!(f, " ({device} has been running for {elapsed:.1?})")?,
                false => write!(
                    f,
                    " (through {through} for {device}, which has been running for {elapsed:.1?})"
                )?,
            }
        }
        match (self.skipped, self.overdue) {
            (true, _) => write!(f, " (skipped)"),
            (false, true) => write!(f, " (late)"),
            (false, false) => Ok(()),
        }
    }
}

/// What remains, in the order in which a serial shutdown would go on. `open` has those with a
/// callback that is not over.
pub(super) fn of(
    outline: &Outline,
    mut open: Vec<bool>,
    running: &BTreeMap<DeviceId, Duration>,
    skipped: BTreeMap<DeviceId, Duration>,
    late: &BTreeSet<DeviceId>,
) -> Vec<Remaining> {
    let graph = &outline.graph;
    // By device: who it waits for, and through whom.
    let mut behind: Vec<Option<(DeviceId, Duration, DeviceId)>> = vec![None; open.len()];
    let mut left = Vec::new();
    for &id in graph.order().iter().rev() {
        let name = || graph.name(id).to_string();
        if let Some(&elapsed) = skipped.get(&id) {
            let state = RemainingState::Running { elapsed };
            let (device, behind) = (name(), None);
            left.push(Remaining { device, state, behind, overdue: true, skipped: true });
            continue;
        }
        let waits: Vec<DeviceId> =
            graph.feeds(id).iter().copied().filter(|f| open[f.index()]).collect();
        // A device without a callback is open as long as something that it waits for is.
        let calls = open[id.index()];
        open[id.index()] |= !waits.is_empty();
        let through = |&f: &DeviceId| match running.get(&f) {
            Some(&elapsed) => Some((f, elapsed, f)),
            None => behind[f.index()].map(|(device, elapsed, _)| (device, elapsed, f)),
        };
        let first = waits.iter().filter_map(through).max_by_key(|&(_, elapsed, _)| elapsed);
        behind[id.index()] = first;
        if !calls {
            continue;
        }
        let state = match running.get(&id) {
            Some(&elapsed) => RemainingState::Running { elapsed },
            None if waits.is_empty() => RemainingState::Ready,
            None => {
                let on = waits.iter().map(|&f| graph.name(f).to_string()).collect();
                RemainingState::Waiting { on }
            }
        };
        let behind = first.map(|(device, elapsed, through)| Behind {
            device: graph.name(device).to_string(),
            elapsed,
            through: graph.name(through).to_string(),
            edge: edge(graph, through, id),
        });
        let overdue = late.contains(&id);
        left.push(Remaining { device: name(), state, behind, overdue, skipped: false });
    }
    left
}

/// Whether `device` is a child or a consumer of what it needs.
fn edge(graph: &Graph, device: DeviceId, need: DeviceId) -> EdgeKind {
    match graph.decl(device).parent.as_deref() == Some(graph.name(need)) {
        true => EdgeKind::Parent,
        false => EdgeKind::Supplier,
    }
}
