//! Plain data about devices at one moment, for users.

use super::devices::{Cost, DeviceKey, Devices, LastProbe, LeaveReason, Link, Phase, Target};
use crate::decl::DeviceDecl;
use crate::info::{AwaitedDevice, DeviceInfo, DeviceState, Need, Pending, PendingState, ProbeCost};
use std::sync::Arc;
use std::time::Duration;

/// The driver that was called for a device, and the cost. It becomes text on request: the caller of
/// a bring-up waits until the last device's record is made.
#[derive(Clone, Default)]
pub(crate) struct ProbeRecord {
    pub driver: Option<Arc<str>>,
    cost: Cost,
}

impl ProbeRecord {
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
    /// Returns the data of every device, in registration order.
    pub(crate) fn infos(&self) -> Vec<DeviceInfo> {
        self.in_registration_order().into_iter().filter_map(|i| self.info_of(i)).collect()
    }

    /// Returns the data of one device.
    pub(crate) fn info(&self, name: &str) -> Option<DeviceInfo> {
        self.info_of(*self.by_name.get(name)?)
    }

    pub(crate) fn state(&self, key: DeviceKey) -> Option<DeviceState> {
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
            Phase::Idle(LeaveReason::NoDriver) => DeviceState::NoDriver,
            Phase::Idle(LeaveReason::Unbound) => DeviceState::Unbound,
            Phase::Idle(LeaveReason::Cancelled) => DeviceState::Cancelled,
            Phase::Idle(LeaveReason::Failed(error)) => DeviceState::Failed(error.clone()),
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

    /// Returns the driver that was called for a device, and the cost so far.
    pub(super) fn called(&self, key: DeviceKey) -> ProbeRecord {
        let Some(slot) = self.live(key) else { return ProbeRecord::default() };
        let driver = slot.driver.as_ref().map(|driver| driver.name.clone());
        ProbeRecord { driver, cost: self.cost_of(key.index) }
    }

    fn cost_of(&self, index: u32) -> Cost {
        let slot = self.slot(index);
        let mut cost = slot.cost.clone();
        if let Phase::Probing(probing) = &slot.phase {
            let by = |key: DeviceKey| self.live(key).and_then(|slot| slot.decl.clone());
            cost.last = Some(LastProbe {
                site: probing.site.clone(),
                queued: slot.queued,
                started: probing.since,
                finished: None,
                released_by: slot.released_by.and_then(by),
            });
        }
        cost
    }

    /// Returns everything that is not up and may come up yet, in registration order.
    pub(crate) fn pending(&self, now: Duration) -> Vec<Pending> {
        let of = |index| {
            let slot = self.slot(index);
            let state = match &slot.phase {
                Phase::Probing(probing) => PendingState::Probing {
                    elapsed: now.saturating_sub(probing.since),
                    overdue: probing.overdue,
                    driver: slot.driver.as_ref().map(|d| d.name.to_string()).unwrap_or_default(),
                },
                Phase::Ready => PendingState::Queued,
                Phase::Deferred(reason) => {
                    let (reason, attempts) = (reason.clone(), slot.cost.attempts);
                    PendingState::Deferred { reason, attempts }
                }
                Phase::Waiting => PendingState::Waiting { on: self.awaited(index) },
                _ => return None,
            };
            Some(Pending { device: slot.name().to_string(), state })
        };
        self.in_registration_order().into_iter().filter_map(of).collect()
    }

    fn awaited(&self, index: u32) -> Vec<AwaitedDevice> {
        let unmet = |link: &&Link| !link.waived && !link.device().is_some_and(|to| self.is_up(to));
        let awaited = |link: &Link| AwaitedDevice {
            device: self.target_name(&link.to).to_string(),
            edge: link.kind,
            missing: matches!(link.to, Target::Missing(_)),
            optional: link.optional,
        };
        self.slot(index).needs.iter().filter(unmet).map(awaited).collect()
    }
}
