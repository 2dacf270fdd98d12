//! What a device is like at one moment, as plain data.

use super::{Cost, Devices, Key, Last, Link, Phase, Target, Why};
use crate::DeviceDecl;
use crate::driver::ProbeError;
use corewise_timeline::EdgeKind;
use corewise_topology::CpuId;
use std::fmt;
use std::sync::Arc;
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
    /// Suppliers that only want to know of it, by name: links for sync-state only.
    pub sync_state_only: Vec<String>,
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

/// Which driver was called for a device, and what that has cost. It becomes words when somebody asks for them:
/// the caller of a bring-up waits until the last device's was taken down.
#[derive(Clone, Default)]
pub(crate) struct Called {
    pub driver: Option<Arc<str>>,
    cost: Cost,
}

impl Called {
    pub(crate) fn cost(&self) -> ProbeCost {
        self.cost.told()
    }
}

impl Cost {
    fn told(&self) -> ProbeCost {
        let mut told = ProbeCost {
            attempts: self.attempts,
            deferrals: self.deferrals,
            total: self.total,
            deferring: self.deferring,
            ..ProbeCost::default()
        };
        if let Some(last) = &self.last {
            (told.cpu, told.worker) = (last.site.cpu, last.site.worker.to_string());
            (told.queued, told.started) = (last.queued, last.started);
            told.finished = last.finished;
            told.released_by = last.released_by.as_ref().map(|decl| decl.name.clone());
        }
        told
    }
}

impl Devices {
    /// Everything about every device, in registration order.
    pub(crate) fn infos(&self) -> Vec<DeviceInfo> {
        self.in_registration_order().into_iter().filter_map(|i| self.info_of(i)).collect()
    }

    /// Everything about one.
    pub(crate) fn info(&self, name: &str) -> Option<DeviceInfo> {
        self.info_of(*self.by_name.get(name)?)
    }

    pub(crate) fn state(&self, key: super::Key) -> Option<DeviceState> {
        self.live(key).map(|_| self.state_of(key.index))
    }

    pub(super) fn state_of(&self, index: u32) -> DeviceState {
        match &self.slot(index).phase {
            Phase::Waiting => DeviceState::Waiting,
            Phase::Ready => DeviceState::Queued,
            Phase::Probing(_) => DeviceState::Probing,
            Phase::Deferred(reason) => DeviceState::Deferred { reason: reason.clone() },
            Phase::Bound | Phase::Leaving if self.taken => DeviceState::Unbound,
            Phase::Bound => DeviceState::Bound,
            Phase::Leaving | Phase::Unbinding => DeviceState::Leaving,
            Phase::Idle(Why::NoDriver) => DeviceState::NoDriver,
            Phase::Idle(Why::Unbound) => DeviceState::Unbound,
            Phase::Idle(Why::Cancelled) => DeviceState::Cancelled,
            Phase::Idle(Why::Failed(error)) => DeviceState::Failed(error.clone()),
        }
    }

    fn info_of(&self, index: u32) -> Option<DeviceInfo> {
        let slot = self.slot(index);
        let decl: &DeviceDecl = slot.decl.as_ref()?;
        let named = (!decl.driver.is_empty()).then(|| decl.driver.clone());
        Some(DeviceInfo {
            name: decl.name.clone(),
            driver: slot.driver.as_ref().map(|d| d.name.to_string()).or(named),
            state: self.state_of(index),
            node: slot.node,
            parent: decl.parent.clone(),
            needs: slot.needs.iter().map(|link| self.need_of(link)).collect(),
            sync_state_only: slot.sync_state_only.clone(),
            feeds: slot.feeds.iter().map(|&i| self.slot(i).name().to_string()).collect(),
            cost: self.cost_of(index).told(),
        })
    }

    fn need_of(&self, link: &Link) -> Need {
        let state = match link.to {
            Target::Device(to) => Some(self.state_of(to)),
            Target::Missing(_) => None,
        };
        let device = self.target_name(&link.to).to_string();
        Need { device, edge: link.kind, optional: link.optional, state }
    }

    /// The driver that was called for a device, and what that has cost by now.
    pub(super) fn called(&self, key: Key) -> Called {
        let Some(slot) = self.live(key) else { return Called::default() };
        let driver = slot.driver.as_ref().map(|driver| driver.name.clone());
        Called { driver, cost: self.cost_of(key.index) }
    }

    fn cost_of(&self, index: u32) -> Cost {
        let slot = self.slot(index);
        let mut cost = slot.cost.clone();
        if let Phase::Probing(probing) = &slot.phase {
            let by = |key: Key| self.live(key).and_then(|slot| slot.decl.clone());
            cost.last = Some(Last {
                site: probing.site.clone(),
                queued: slot.queued,
                started: probing.since,
                finished: None,
                released_by: slot.released_by.and_then(by),
            });
        }
        cost
    }
}
