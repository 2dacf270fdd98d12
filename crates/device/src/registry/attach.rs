//! What changes who may have a device: drivers that come and go, devices that are bound again, links
//! that are added.

use super::devices::{
    DeferredDrops, DeviceKey, DeviceSlot, Devices, Effects, Instance, LeaveReason, Link, Phase,
    Target,
};
use super::matching::{Candidate, RegisteredDriver};
use crate::decl::DeviceDecl;
use crate::graph::{Graph, GraphContext, GraphError};
use corewise_timeline::EdgeKind;
use std::sync::Arc;
use std::time::Duration;

/// What became of a link that was to go.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum UnlinkOutcome {
    /// It was there.
    Done,
    /// There is none.
    None,
    /// It is that to the parent.
    Parent,
}

/// What became of a link.
pub(crate) enum LinkOutcome {
    Done,
    /// The consumer is not up, and would wait for itself.
    Circle(GraphError),
    /// The consumer is up, and the supplier is not.
    SupplierNotUp,
}

impl Devices {
    /// Validates the devices of a bring-up among those that exist.
    pub(crate) fn admit(
        &self,
        decls: &[Arc<DeviceDecl>],
        driver_fault: &dyn Fn(usize, &DeviceDecl) -> Option<GraphError>,
    ) -> (Graph, Vec<GraphError>) {
        let circles = self.cycles_closed_by(decls);
        let fault = |device: usize, decl: &DeviceDecl| {
            let circle = circles.iter().find(|c| c.device() == device).cloned();
            circle.or_else(|| driver_fault(device, decl))
        };
        let outside = |name: &str| self.outside(name);
        let surroundings = GraphContext { outside: &outside, driver_fault: &fault };
        Graph::build_among(decls.to_vec(), &surroundings)
    }

    /// What is wrong with one device that is to be added. Its needs need not exist.
    pub(crate) fn refuse(&self, decl: &Arc<DeviceDecl>) -> Vec<GraphError> {
        let (device, name) = (0, decl.name.clone());
        if name.is_empty() {
            return vec![GraphError::EmptyName { device }];
        }
        if self.by_name.contains_key(name.as_str()) {
            return vec![GraphError::DuplicateName { device, name, first: None }];
        }
        if decl.needs().any(|need| *need == name) {
            return vec![GraphError::Cycle { path: vec![(device, name)] }];
        }
        self.cycles_closed_by(std::slice::from_ref(decl))
    }

    /// All devices that are not up, in registration order.
    pub(crate) fn unbound_devices(&self) -> Vec<(DeviceKey, Arc<DeviceDecl>)> {
        let all = self.in_registration_order().into_iter();
        let of = |i| Some((self.key(i), self.slot(i).decl.clone()?));
        all.filter(|&i| !self.is_up(i)).filter_map(of).collect()
    }

    /// Offer (driver-attach, rules 1.2.2 and 1.2.3): a driver has come that matches the device. One
    /// that nobody has is probed with that driver alone.
    pub(crate) fn offer(
        &mut self,
        key: DeviceKey,
        candidate: Candidate,
        now: Duration,
        fx: &mut Effects,
    ) {
        if self.live(key).is_none() {
            return;
        }
        let closed = self.closed;
        let slot = self.slot_mut(key.index);
        let same = |c: &Candidate| Arc::ptr_eq(&c.driver, &candidate.driver);
        if slot.candidates.iter().any(same) {
            return;
        }
        let after = |c: &&Candidate| c.asynchronous <= candidate.asynchronous;
        let at = slot.candidates.iter().take_while(after).count();
        slot.candidates.insert(at, candidate);
        match slot.phase {
            Phase::Ready | Phase::Probing(_) => {
                // It is asked in this round, before anybody gives up.
                slot.turn += usize::from(at <= slot.turn);
            }
            Phase::Waiting | Phase::Idle(_) | Phase::Deferred(_) if !closed => {
                self.attach_only(key.index, at, now, fx);
            }
            _ => {}
        }
    }

    /// Revoke: a driver has gone. Returns the devices that it still has, which are to be unbound.
    pub(crate) fn revoke(
        &mut self,
        driver: &Arc<RegisteredDriver>,
        fx: &mut Effects,
    ) -> Vec<Instance> {
        let mut users = Vec::new();
        for index in self.in_registration_order() {
            let slot = self.slot_mut(index);
            let has = slot.driver.as_ref().is_some_and(|d| Arc::ptr_eq(d, driver));
            let idle = matches!(slot.phase, Phase::Waiting | Phase::Idle(_) | Phase::Deferred(_));
            if !idle && (has || matches!(slot.phase, Phase::Ready)) {
                let its = |c: &Candidate| Arc::ptr_eq(&c.driver, driver);
                if has || slot.candidates.iter().any(its) {
                    users.push(self.instance(self.key(index)));
                }
            } else if idle {
                let (gone, kept) = std::mem::take(&mut slot.candidates)
                    .into_iter()
                    .partition(|c| Arc::ptr_eq(&c.driver, driver));
                slot.candidates = kept;
                if slot.candidates.is_empty() {
                    slot.phase = Phase::Idle(LeaveReason::NoDriver);
                }
                fx.trash.push(DeferredDrops::Drivers(gone));
                let former = if has { slot.driver.take() } else { None };
                fx.trash.extend(former.map(DeferredDrops::Driver));
            }
        }
        // The latest first, as in a shutdown.
        users.reverse();
        users
    }

    /// Rebind: somebody asks for a device that is not up.
    pub(crate) fn rebind(&mut self, key: DeviceKey, now: Duration, fx: &mut Effects) {
        let phase = &self.slot(key.index).phase;
        if matches!(phase, Phase::Waiting | Phase::Idle(_) | Phase::Deferred(_)) {
            self.attach(key.index, true, None, now, fx);
        }
    }

    /// Link: one more thing that a device needs.
    pub(crate) fn link(&mut self, consumer: DeviceKey, supplier: DeviceKey) -> LinkOutcome {
        let (from, to) = (consumer.index, supplier.index);
        if self.slot(from).needs.iter().any(|l| l.device() == Some(to)) {
            return LinkOutcome::Done;
        }
        // Whom nobody needs can't be on a circle.
        let needed = from == to || !self.slot(from).feeds.is_empty();
        let circle = needed && self.needs_indirectly(to, from);
        let phase = &self.slot(from).phase;
        let up =
            matches!(phase, Phase::Bound | Phase::Probing(_) | Phase::Leaving | Phase::Unbinding);
        // No walk that waits for its end may come to be in a circle with it.
        let failing = matches!(phase, Phase::Probing(probing) if probing.failing);
        if up && !self.is_up(to) {
            return LinkOutcome::SupplierNotUp;
        }
        if circle && (!up || failing) {
            let mut path = vec![(0, self.slot(from).name().to_string())];
            if from != to {
                path.push((0, self.slot(to).name().to_string()));
            }
            return LinkOutcome::Circle(GraphError::Cycle { path });
        }
        self.graph = None;
        self.changes += 1;
        let met = self.is_up(to);
        let open = self.is_unsettled(from) && self.is_unsettled(to);
        self.slot_mut(to).feeds.push(from);
        let slot = self.slot_mut(from);
        slot.open += u32::from(open);
        slot.unmet += u32::from(!met && !circle);
        slot.lenient |= circle;
        let to = Target::Device(to);
        slot.needs.push(Link { to, kind: EdgeKind::Supplier, optional: false, waived: circle });
        LinkOutcome::Done
    }

    /// Unlink: one thing less that a device needs. If it was the last one that it waited for, it is
    /// attached.
    pub(crate) fn unlink(
        &mut self,
        consumer: DeviceKey,
        supplier: &str,
        now: Duration,
        fx: &mut Effects,
    ) -> UnlinkOutcome {
        let index = consumer.index;
        let is_it = |link: &Link| self.target_name(&link.to) == supplier;
        let Some(at) = self.slot(index).needs.iter().position(is_it) else {
            return UnlinkOutcome::None;
        };
        if self.slot(index).needs[at].kind == EdgeKind::Parent {
            return UnlinkOutcome::Parent;
        }
        self.graph = None;
        self.changes += 1;
        let link = self.slot_mut(index).needs.remove(at);
        self.drop_feed(&link.to, index);
        let met = link.device().is_some_and(|to| self.is_up(to));
        let open =
            self.is_unsettled(index) && link.device().is_some_and(|to| self.is_unsettled(to));
        let slot = self.slot_mut(index);
        slot.unmet -= u32::from(!met && !link.waived);
        slot.open -= u32::from(open);
        if slot.unmet == 0 && matches!(slot.phase, Phase::Waiting) {
            self.attach(index, false, None, now, fx);
        } else {
            self.skip_if_hopeless(index, now, fx);
        }
        // A walk may have waited for the consumer.
        fx.wake = true;
        self.news();
        UnlinkOutcome::Done
    }

    /// Expire: the deferral timeout has passed. Devices that wait for optional suppliers alone go on
    /// without them, and those that were deferred are tried a last time.
    pub(crate) fn expire(&mut self, now: Duration, fx: &mut Effects) {
        self.hopeless = true;
        for index in self.in_registration_order() {
            if !matches!(self.slot(index).phase, Phase::Waiting) {
                continue;
            }
            let hopeless = |link: &Link| {
                let coming = |to| self.is_up(to) || self.slot(to).is_in_progress();
                link.optional && !link.waived && !link.device().is_some_and(coming)
            };
            let which: Vec<bool> = self.slot(index).needs.iter().map(hopeless).collect();
            let slot = self.slot_mut(index);
            for (link, _) in slot.needs.iter_mut().zip(which).filter(|(_, hopeless)| *hopeless) {
                link.waived = true;
                slot.unmet -= 1;
            }
            if slot.unmet == 0 {
                self.attach(index, false, None, now, fx);
            }
        }
        let active = self.deferred.trigger();
        self.want_late_worker(active, fx);
    }

    /// Whether somebody waits for what the deferral timeout ends. Nobody does once nothing is probed any more.
    pub(crate) fn hopes(&self) -> bool {
        let hopes = |slot: &DeviceSlot| match slot.phase {
            Phase::Deferred(_) => true,
            Phase::Waiting => slot.needs.iter().any(|link| link.optional && !link.waived),
            _ => false,
        };
        !self.hopeless && !self.closed && self.slots.iter().any(hopes)
    }

    /// Nothing is ready, being probed, or being tried again.
    pub(crate) fn is_quiet(&self) -> bool {
        self.active == 0 && !self.late_worker
    }

    pub(crate) fn number_up(&self) -> usize {
        self.bound.iter().flatten().count()
    }
}
