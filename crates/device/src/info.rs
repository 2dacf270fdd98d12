//! Plain data about devices: their states, what they wait for, the cost of their probes and the
//! outcomes.

use crate::error::ProbeError;
use crate::graph::GraphError;
use corewise_sync::text;
use corewise_timeline::{EdgeKind, Outcome};
use corewise_topology::CpuId;
use std::fmt;
use std::time::Duration;

/// The state of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeviceState {
    /// Something that the device needs is not up.
    Waiting,
    /// The device is about to be probed.
    Queued,
    /// The driver was called and has not reported how the probe ended.
    Probing,
    /// The driver asked to be called again when another device is up.
    Deferred {
        /// The reason.
        reason: String,
    },
    /// The device is up.
    Bound,
    /// The device is being unbound.
    Leaving,
    /// The device was unbound on purpose, or its devices were shut down.
    Unbound,
    /// The registered drivers don't match.
    NoDriver,
    /// The bring-up was cancelled before the device was probed.
    Cancelled,
    /// The probe failed, or every driver found that there is no such device. The error says why.
    Failed(ProbeError),
}

impl DeviceState {
    /// Returns one lower-case word, as it stands in tables and in JSON.
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

/// A copy of a device's properties and state: it doesn't change when the device does.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DeviceInfo {
    /// Its name.
    pub name: String,
    /// The driver to which the device is bound or which probes it; else the one that it names, if
    /// any.
    pub driver: Option<String>,
    /// The state.
    pub state: DeviceState,
    /// The NUMA node near which the device is: its own, else that of the closest ancestor that has
    /// one.
    pub node: Option<u32>,
    /// The parent's name.
    pub parent: Option<String>,
    /// The parent and suppliers, each once.
    pub needs: Vec<Need>,
    /// Children and consumers, by name.
    pub feeds: Vec<String>,
    /// Cost of its probes.
    pub cost: ProbeCost,
}

/// Something that a device needs.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Need {
    /// The name of the device that is needed.
    pub device: String,
    /// The kind of the link.
    pub edge: EdgeKind,
    /// True if the device can do without it.
    pub optional: bool,
    /// The state of the needed device; `None` if there is none of that name.
    pub state: Option<DeviceState>,
}

/// The cost of a device's probes. All times count from the creation of the manager.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProbeCost {
    /// Number of calls of a driver for it.
    pub attempts: u32,
    /// Number of calls that ended in a deferral.
    pub deferrals: u32,
    /// Time of all calls together.
    pub total: Duration,
    /// Time of the deferred calls together: time spent in vain.
    pub deferring: Duration,
    /// The CPU on which the last call began; `None` if it is not known.
    pub cpu: Option<CpuId>,
    /// The thread on which the last call began; empty before the first.
    pub worker: String,
    /// The time from which the last call had nothing left to wait for.
    pub queued: Duration,
    /// The start of the last call.
    pub started: Duration,
    /// The end of the last call; `None` while it goes on, or before the first.
    pub finished: Option<Duration>,
    /// The device that came up last of all that it needs.
    pub released_by: Option<String>,
}

/// A device that is not up and may come up yet.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pending {
    /// Its name.
    pub device: String,
    /// The reason why it is not up.
    pub state: PendingState,
}

/// The reason why a device is not up yet.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PendingState {
    /// The device is being probed.
    Probing {
        /// Time since the probe began.
        elapsed: Duration,
        /// True if its deadline has passed.
        overdue: bool,
        /// The name of the driver.
        driver: String,
    },
    /// The device is ready: it waits for a worker, or for its turn.
    Queued,
    /// The driver asked to be called again when another device is up.
    Deferred {
        /// The reason.
        reason: String,
        /// Number of attempts.
        attempts: u32,
    },
    /// Devices that it needs are not up.
    Waiting {
        /// The devices that it waits for.
        on: Vec<AwaitedDevice>,
    },
}

/// A device that another one waits for, and the link between them.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AwaitedDevice {
    /// Its name.
    pub device: String,
    /// The link.
    pub edge: EdgeKind,
    /// True if there is no device of that name.
    pub missing: bool,
    /// True if the waiting device can do without it, and will after the deferral timeout.
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

/// The outcome of a device in a bring-up.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ProbeOutcome {
    /// The device is up.
    Bound,
    /// The probe failed.
    Failed(ProbeError),
    /// The device was not probed: something that it needs did not come up. If that comes up later,
    /// the device is probed.
    Skipped {
        /// The device at the root of it, which failed or was rejected itself.
        culprit: String,
    },
    /// The driver asked to be called again when another device is up, or an optional supplier is
    /// not there yet: the device may still come up by itself.
    Deferred {
        /// The reason.
        reason: String,
    },
    /// The device was not probed: its declaration is at fault.
    Rejected(GraphError),
    /// The device was not probed: the bring-up was cancelled, or stopped because another device
    /// failed.
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
