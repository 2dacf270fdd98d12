//! What a device is at, what it waits for, what probing it has cost and what became of it, as plain
//! data.

use crate::error::ProbeError;
use crate::graph::GraphError;
use corewise_sync::text;
use corewise_timeline::{EdgeKind, Outcome};
use corewise_topology::CpuId;
use std::fmt;
use std::time::Duration;

/// What a device is at.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeviceState {
    /// Something that it needs is not up.
    Waiting,
    /// It is about to be probed.
    Queued,
    /// Its driver was called and has not said how the probe ended.
    Probing,
    /// Its driver asked to be called again when another device is up.
    Deferred {
        /// Why.
        reason: String,
    },
    /// It is up.
    Bound,
    /// It is being unbound.
    Leaving,
    /// It was unbound on purpose, or its devices were shut down.
    Unbound,
    /// No driver matches.
    NoDriver,
    /// Its bring-up was cancelled before it was probed.
    Cancelled,
    /// No driver could bind it. The error says why; also where there is no such device.
    Failed(ProbeError),
}

impl DeviceState {
    /// One lower-case word, as it stands in tables and in JSON.
    pub fn as_str(&self) -> &'static str {
        match self {
            DeviceState::Waiting => "waiting",
            DeviceState::Queued => "queued",
            DeviceState::Probing => "probing",
            DeviceState::Deferred { .. } => "deferred",
            DeviceState::Bound => "bound",
            DeviceState::Leaving => "leaving",
            DeviceState::Unbound => "unbound",
            DeviceState::NoDriver => "no_driver",
            DeviceState::Cancelled => "cancelled",
            DeviceState::Failed(_) => "failed",
        }
    }
}

impl fmt::Display for DeviceState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What a device is like. A copy: it doesn't change when the device does.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DeviceInfo {
    /// Its name.
    pub name: String,
    /// The driver that it is bound to or being probed by; else the one that it names, if any.
    pub driver: Option<String>,
    /// What it is at.
    pub state: DeviceState,
    /// The NUMA node near which it is: its own, else that of the closest ancestor that has one.
    pub node: Option<u32>,
    /// The parent's name.
    pub parent: Option<String>,
    /// What it needs: its parent and suppliers, each once.
    pub needs: Vec<Need>,
    /// Those that need it: children and consumers, by name.
    pub feeds: Vec<String>,
    /// What probing it has cost.
    pub cost: ProbeCost,
}

/// Something that a device needs.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Need {
    /// The name of what it needs.
    pub device: String,
    /// Through which link.
    pub edge: EdgeKind,
    /// It can do without.
    pub optional: bool,
    /// What that device is at; `None` where there is none of that name.
    pub state: Option<DeviceState>,
}

/// What probing a device has cost. All times count from the making of the manager.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProbeCost {
    /// How often a driver was called for it.
    pub attempts: u32,
    /// How often that ended in a deferral.
    pub deferrals: u32,
    /// How long all calls took together.
    pub total: Duration,
    /// How long the deferred ones took together: what was spent in vain.
    pub deferring: Duration,
    /// The CPU on which the last call began; `None`: not known.
    pub cpu: Option<CpuId>,
    /// The thread on which the last call began; empty before the first.
    pub worker: String,
    /// When nothing was left that the last call had to wait for.
    pub queued: Duration,
    /// When the last call began.
    pub started: Duration,
    /// When it was over; `None` while it goes on, or before the first.
    pub finished: Option<Duration>,
    /// What came up last of all that it needs.
    pub released_by: Option<String>,
}

/// A device that is not up and may come up yet.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pending {
    /// Its name.
    pub device: String,
    /// Why it is not up.
    pub state: PendingState,
}

/// Why a device is not up yet.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PendingState {
    /// It is being probed, for that long by now.
    Probing {
        /// How long.
        elapsed: Duration,
        /// Its deadline has passed.
        overdue: bool,
        /// The name of the driver.
        driver: String,
    },
    /// Nothing holds it up: it waits for a worker, or for its turn.
    Queued,
    /// Its driver asked to be called again when another device is up.
    Deferred {
        /// Why.
        reason: String,
        /// How often it was tried.
        attempts: u32,
    },
    /// These are not up.
    Waiting {
        /// What it waits for.
        on: Vec<AwaitedDevice>,
    },
}

/// What a device waits for, and through which link.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AwaitedDevice {
    /// Its name.
    pub device: String,
    /// The link.
    pub edge: EdgeKind,
    /// There is no device of that name.
    pub missing: bool,
    /// The waiting device can do without it, and will, after the deferral timeout.
    pub optional: bool,
}

impl fmt::Display for Pending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", text::name(&self.device), self.state)
    }
}

impl fmt::Display for PendingState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PendingState::Probing { elapsed, overdue, driver } => {
                let driver = text::name(driver);
                write!(f, "being probed by {driver} for {elapsed:.3?}")?;
                f.write_str(if *overdue { ", past its deadline" } else { "" })
            }
            PendingState::Queued => f.write_str("about to be probed"),
            PendingState::Deferred { reason, attempts } => {
                let times = if *attempts == 1 { "time" } else { "times" };
                let reason = text::message(reason);
                write!(f, "deferred by its driver ({reason}), tried {attempts} {times}")
            }
            PendingState::Waiting { on } => {
                let on: Vec<String> = on.iter().map(ToString::to_string).collect();
                write!(f, "waits for {}", text::message(&on.join(", ")))
            }
        }
    }
}

impl fmt::Display for AwaitedDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let optional = if self.optional { "optional " } else { "" };
        write!(f, "its {optional}{} \"{}\"", self.edge.as_str(), text::name(&self.device))?;
        f.write_str(if self.missing { ", which does not exist" } else { "" })
    }
}

/// What became of a device in a bring-up.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ProbeOutcome {
    /// It is up.
    Bound,
    /// Its probe failed.
    Failed(ProbeError),
    /// It was not probed: something that it needs did not come up. It will be if that comes up
    /// later.
    Skipped {
        /// The device at the root of it, which failed or was rejected itself.
        culprit: String,
    },
    /// Its driver asked to be called again when another device is up, or an optional supplier is
    /// not there yet: it may still come up by itself.
    Deferred {
        /// Why.
        reason: String,
    },
    /// It was not probed: its declaration is at fault.
    Rejected(GraphError),
    /// It was not probed: the bring-up was cancelled, or stopped because another device failed.
    Cancelled,
}

impl ProbeOutcome {
    pub(crate) fn on_timeline(&self) -> Outcome {
        match self {
            ProbeOutcome::Bound => Outcome::Ok,
            ProbeOutcome::Failed(error) => Outcome::Failed(error.to_string()),
            ProbeOutcome::Skipped { culprit } => {
                Outcome::Skipped(format!("it needs \"{culprit}\", which did not come up"))
            }
            ProbeOutcome::Deferred { reason } => Outcome::Deferred(reason.clone()),
            ProbeOutcome::Rejected(fault) => Outcome::Failed(fault.to_string()),
            ProbeOutcome::Cancelled => Outcome::Cancelled,
        }
    }
}
