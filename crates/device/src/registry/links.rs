//! The links between devices: devices that come, go, and are linked while others live on. The cost
//! of a step depends only on the device's own links.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use corewise_timeline::EdgeKind;

use crate::decl::DeviceDecl;
use crate::graph::{Graph, GraphContext, GraphError, NamedDecl, OutsideNeeds};
use crate::registry::devices::{
    Cost, DeferredDrops, DeviceKey, DeviceSlot, Devices, Effects, Instance, LeaveReason, Link,
    Phase, Target,
};
use crate::registry::matching::{Candidate, RegisteredDriver};

impl Devices {
    /// Returns the description of an existing device for the builder of a graph.
    pub(crate) fn outside(&self, name: &str) -> Option<OutsideNeeds> {
        let &index = self.by_name.get(name)?;
        Some(OutsideNeeds { node: self.slot(index).node })
    }

    /// Enters a new device under its name (step Link): links it with its needs and with the devices
    /// that have been waiting for that name. `nested`: its parent is being probed, and registers
    /// it.
    pub(super) fn enter(&mut self, decl: Arc<DeviceDecl>, nested: bool) -> u32 {
        self.graph = None;
        self.changes += 1;
        let registration = self.registrations;
        self.registrations += 1;
        let index = self.free.pop().unwrap_or_else(|| {
            let index = u32::try_from(self.slots.len()).expect("fewer than 4294967296 devices");
            self.slots.push(DeviceSlot::empty());
            self.bound.push(None);
            index
        });
        self.in_order &= index as usize + 1 == self.slots.len();
        let slot = self.slot_mut(index);
        let generation = slot.generation;
        *slot = DeviceSlot { generation, registration, node: decl.node, ..DeviceSlot::empty() };
        slot.decl = Some(decl.clone());
        self.by_name.insert(NamedDecl(decl.clone()), index);
        if let Some(parent) = &decl.parent {
            self.need(index, parent, EdgeKind::Parent, false, nested);
        }
        for (supplier, optional) in decl.all_suppliers() {
            self.need(index, supplier, EdgeKind::Supplier, optional, false);
        }
        for consumer in self.dangling.remove(decl.name.as_str()).unwrap_or_default() {
            let is_it = |l: &&mut Link| matches!(&l.to, Target::Missing(n) if *n == decl.name);
            let link = self.slot_mut(consumer).needs.iter_mut().find(is_it);
            let Some(link) = link else { continue };
            link.to = Target::Device(index);
            let kind = link.kind;
            self.slot_mut(index).feeds.push(consumer);
            if kind == EdgeKind::Parent {
                self.take_over_node(consumer);
            }
        }
        index
    }

    /// Adds a need, unless it was the last one added to that supplier.
    pub(super) fn need(
        &mut self,
        index: u32,
        name: &str,
        kind: EdgeKind,
        optional: bool,
        nested: bool,
    ) {
        let target = self.by_name.get(name).copied();
        let hopeless = self.hopeless;
        let met = target.is_some_and(|to| matches!(self.slot(to).phase, Phase::Bound));
        let coming = target.is_some_and(|to| self.slot(to).is_in_progress());
        // A new device's needs are added one after another: a need that it has already came last.
        let last = match target {
            Some(to) => self.slot(to).feeds.last(),
            None => self.dangling.get(name).and_then(|waiting| waiting.last()),
        };
        if last == Some(&index) {
            return;
        }
        let waived = nested || (optional && hopeless && !met && !coming);
        let to = match target {
            Some(to) => {
                self.slot_mut(to).feeds.push(index);
                Target::Device(to)
            }
            None => {
                self.dangling.entry(name.to_string()).or_default().push(index);
                Target::Missing(name.to_string())
            }
        };
        let slot = self.slot_mut(index);
        slot.unmet += u32::from(!met && !waived);
        slot.lenient |= waived || optional;
        slot.needs.push(Link { to, kind, optional, waived });
        if kind == EdgeKind::Parent {
            self.take_over_node(index);
        }
    }

    /// Gives a device without a node of its own its parent's, and passes that on.
    fn take_over_node(&mut self, index: u32) {
        let mut todo = vec![index];
        while let Some(index) = todo.pop() {
            let slot = self.slot(index);
            let parent = slot.parent().map(|parent| self.slot(parent).node);
            if let (None, Some(Some(node))) = (slot.node, parent) {
                self.slot_mut(index).node = Some(node);
                let is_child = |&&i: &&u32| self.slot(i).parent() == Some(index);
                todo.extend(self.slot(index).feeds.iter().filter(is_child));
            }
        }
    }

    /// Removes a device that no other uses any more. Those that need it wait for its name.
    pub(super) fn forget(&mut self, index: u32, fx: &mut Effects) {
        self.graph = None;
        self.changes += 1;
        let slot = std::mem::replace(self.slot_mut(index), DeviceSlot::empty());
        self.slot_mut(index).generation = slot.generation.wrapping_add(1);
        self.free.push(index);
        slot.needs.iter().for_each(|link| self.drop_feed(&link.to, index));
        if let Some(decl) = slot.decl {
            self.by_name.remove(decl.name.as_str());
            for &consumer in &slot.feeds {
                for link in &mut self.slot_mut(consumer).needs {
                    if matches!(link.to, Target::Device(to) if to == index) {
                        link.to = Target::Missing(decl.name.clone());
                    }
                }
                self.dangling.entry(decl.name.clone()).or_default().push(consumer);
            }
            fx.trash.push(DeferredDrops::Decl(decl));
        }
        let released_by = slot.cost.last.and_then(|last| last.released_by);
        fx.trash.extend(released_by.map(DeferredDrops::Decl));
        fx.trash.push(DeferredDrops::Drivers(slot.candidates));
        fx.trash.extend(slot.driver.map(DeferredDrops::Driver));
        fx.trash.extend(self.bound[index as usize].take().map(DeferredDrops::Object));
    }

    /// Removes a consumer from a supplier.
    pub(super) fn drop_feed(&mut self, needed: &Target, consumer: u32) {
        match needed {
            Target::Device(to) => {
                let feeds = &mut self.slot_mut(*to).feeds;
                // The latest one is most often the first to go.
                if let Some(place) = feeds.iter().rposition(|&i| i == consumer) {
                    feeds.remove(place);
                }
            }
            Target::Missing(name) => {
                if let Some(waiting) = self.dangling.get_mut(name) {
                    waiting.retain(|&i| i != consumer);
                    if waiting.is_empty() {
                        self.dangling.remove(name);
                    }
                }
            }
        }
    }

    /// Returns the cycles that new devices would close with devices that wait for them by name.
    /// Links among the new ones are the graph builder's business.
    pub(crate) fn cycles_closed_by(&self, decls: &[Arc<DeviceDecl>]) -> Vec<GraphError> {
        let awaited = |(_, d): &(usize, &Arc<DeviceDecl>)| self.dangling.contains_key(&d.name);
        let suspects: Vec<_> = decls.iter().enumerate().filter(awaited).collect();
        if suspects.is_empty() {
            return Vec::new();
        }
        let new: HashMap<&str, &DeviceDecl> =
            decls.iter().map(|d| (d.name.as_str(), &**d)).collect();
        let mut users: HashMap<&str, Vec<&str>> = HashMap::new();
        for decl in decls {
            decl.needs().for_each(|need| users.entry(need).or_default().push(&decl.name));
        }
        let fault = |(device, decl): (usize, &Arc<DeviceDecl>)| {
            if !self.is_on_circle(&decl.name, &new, &users) {
                return None;
            }
            let path = self.path_back(&decl.name, &new)?;
            Some(GraphError::Cycle { path: path.into_iter().map(|n| (device, n)).collect() })
        };
        suspects.into_iter().filter_map(fault).collect()
    }

    /// Returns true if a path leads from a device back to itself. It searches along the device's
    /// needs and along its consumers, by turns: if one side ends soon, the length of the other
    /// doesn't matter. So a device at the end of a long chain, which another waits for, costs as
    /// little as any other.
    fn is_on_circle(
        &self,
        from: &str,
        new: &HashMap<&str, &DeviceDecl>,
        users: &HashMap<&str, Vec<&str>>,
    ) -> bool {
        let needs = |name: &str| self.needs_of(name, new);
        let feeds = |name: &str| -> Vec<String> {
            let waiting = || self.dangling.get(name).map_or(&[][..], Vec::as_slice);
            let there = self.by_name.get(name).map(|&index| self.slot(index).feeds.as_slice());
            let there = there.unwrap_or_else(waiting).iter().map(|&i| self.slot(i).name());
            let new = users.get(name).into_iter().flatten().copied();
            there.chain(new).map(String::from).collect()
        };
        let mut todo = [vec![from.to_string()], vec![from.to_string()]];
        let mut seen = [HashSet::new(), HashSet::new()];
        loop {
            for side in 0..2 {
                let Some(at) = todo[side].pop() else { return false };
                let edges = if side == 0 { feeds(&at) } else { needs(&at) };
                for next in edges {
                    if next == from {
                        return true;
                    }
                    if seen[side].insert(next.clone()) {
                        todo[side].push(next);
                    }
                }
            }
        }
    }

    /// Returns the needs of a device by name, whether it exists or is one of the new ones.
    fn needs_of(&self, name: &str, new: &HashMap<&str, &DeviceDecl>) -> Vec<String> {
        if let Some(decl) = new.get(name) {
            return decl.needs().cloned().collect();
        }
        let Some(&index) = self.by_name.get(name) else { return Vec::new() };
        self.slot(index).needs.iter().map(|l| self.target_name(&l.to).to_string()).collect()
    }

    /// Returns a path from a device along its needs, back to itself.
    pub(super) fn path_back(
        &self,
        from: &str,
        new: &HashMap<&str, &DeviceDecl>,
    ) -> Option<Vec<String>> {
        let needs = |name: &str| self.needs_of(name, new);
        let mut seen: HashSet<String> = HashSet::new();
        let mut path = vec![(from.to_string(), needs(from))];
        while let Some((_, left)) = path.last_mut() {
            match left.pop() {
                None => drop(path.pop()),
                Some(next) if next == from => {
                    return Some(path.into_iter().map(|(name, _)| name).collect());
                }
                Some(next) if seen.insert(next.clone()) => {
                    let its = needs(&next);
                    path.push((next, its));
                }
                Some(_) => {}
            }
        }
        None
    }

    /// Returns true if `from` needs `to`, directly or not.
    pub(super) fn needs_indirectly(&self, from: u32, to: u32) -> bool {
        let mut seen: HashSet<u32> = HashSet::new();
        let mut todo = vec![from];
        while let Some(at) = todo.pop() {
            if at == to {
                return true;
            }
            if seen.insert(at) {
                todo.extend(self.slot(at).needs.iter().filter_map(Link::device));
            }
        }
        false
    }

    pub(super) fn target_name<'a>(&'a self, target: &'a Target) -> &'a str {
        match target {
            Target::Device(to) => self.slot(*to).name(),
            Target::Missing(name) => name,
        }
    }
}

impl Link {
    pub(super) fn device(&self) -> Option<u32> {
        match self.to {
            Target::Device(to) => Some(to),
            Target::Missing(_) => None,
        }
    }
}

impl DeviceSlot {
    fn empty() -> DeviceSlot {
        DeviceSlot {
            generation: 0,
            decl: None,
            registration: 0,
            node: None,
            phase: Phase::Waiting,
            needs: Vec::new(),
            feeds: Vec::new(),
            unmet: 0,
            lenient: false,
            candidates: Vec::new(),
            turn: 0,
            times: 0,
            failure: None,
            driver: None,
            leaving: false,
            going: false,
            stays_down: false,
            unbinds: 0,
            dropping: 0,
            by_probe: false,
            in_bring_up: None,
            in_turn: false,
            open: 0,
            culprit: None,
            queued: std::time::Duration::ZERO,
            released_by: None,
            cost: Cost::default(),
        }
    }

    pub(super) fn name(&self) -> &str {
        self.decl.as_ref().map_or("", |decl| decl.name.as_str())
    }

    pub(super) fn parent(&self) -> Option<u32> {
        self.needs.iter().find(|l| l.kind == EdgeKind::Parent).and_then(Link::device)
    }

    /// Returns true if it is ready or being probed: it will be settled by itself.
    pub(super) fn is_in_progress(&self) -> bool {
        match &self.phase {
            Phase::Ready => true,
            Phase::Probing(probing) => !probing.given_up,
            _ => false,
        }
    }
}

// Changes of a device's drivers and links: drivers that come and go, devices that are bound again,
// links that are added.

/// Result of unlinking.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum UnlinkOutcome {
    /// The link is gone.
    Done,
    /// The link doesn't exist.
    None,
    /// The link leads to the parent.
    Parent,
}

/// Result of linking.
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

    /// Returns the faults of one device that is to be added. Its needs need not exist.
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

    /// Returns all devices that are not up, in registration order.
    pub(crate) fn unbound_devices(&self) -> Vec<(DeviceKey, Arc<DeviceDecl>)> {
        let all = self.in_registration_order().into_iter();
        let of = |i| Some((self.key(i), self.slot(i).decl.clone()?));
        all.filter(|&i| !self.is_up(i)).filter_map(of).collect()
    }

    /// Offers a driver that has come to a device that it matches (step Offer; driver-attach, rules
    /// 1.2.2 and 1.2.3). A device that is not up is probed with that driver alone.
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
                // The driver is asked in this round, before the device is given up.
                slot.turn += usize::from(at <= slot.turn);
            }
            Phase::Waiting | Phase::Idle(_) | Phase::Deferred(_) if !closed => {
                self.attach_only(key.index, at, now, fx);
            }
            _ => {}
        }
    }

    /// Removes a driver that has gone from all devices (step Revoke). Returns the devices that it
    /// still has, which are to be unbound.
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

    /// Makes a device that is not up ready, because a caller asks for it (step Rebind).
    pub(crate) fn rebind(&mut self, key: DeviceKey, now: Duration, fx: &mut Effects) {
        let phase = &self.slot(key.index).phase;
        if matches!(phase, Phase::Waiting | Phase::Idle(_) | Phase::Deferred(_)) {
            self.attach(key.index, true, None, now, fx);
        }
    }

    /// Adds a need to a device (step Link).
    pub(crate) fn link(&mut self, consumer: DeviceKey, supplier: DeviceKey) -> LinkOutcome {
        let (from, to) = (consumer.index, supplier.index);
        if self.slot(from).needs.iter().any(|l| l.device() == Some(to)) {
            return LinkOutcome::Done;
        }
        // A device that no other needs can't be on a circle.
        let needed = from == to || !self.slot(from).feeds.is_empty();
        let circle = needed && self.needs_indirectly(to, from);
        let phase = &self.slot(from).phase;
        let up =
            matches!(phase, Phase::Bound | Phase::Probing(_) | Phase::Leaving | Phase::Unbinding);
        // No walk that waits for its end may get into a circle with it.
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

    /// Removes a need from a device (step Unlink). If it was the last one that the device waited
    /// for, the device is attached.
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

    /// Ends the deferral timeout (step Expire). Devices that wait only for optional suppliers
    /// proceed without them, and deferred ones are tried a last time.
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

    /// Returns true if a device waits for an event that the deferral timeout replaces. None does
    /// once nothing is probed any more.
    pub(crate) fn hopes(&self) -> bool {
        let hopes = |slot: &DeviceSlot| match slot.phase {
            Phase::Deferred(_) => true,
            Phase::Waiting => slot.needs.iter().any(|link| link.optional && !link.waived),
            _ => false,
        };
        !self.hopeless && !self.closed && self.slots.iter().any(hopes)
    }

    /// Returns true if nothing is ready, being probed, or being tried again.
    pub(crate) fn is_quiet(&self) -> bool {
        self.active == 0 && !self.late_worker
    }

    pub(crate) fn number_up(&self) -> usize {
        self.bound.iter().flatten().count()
    }
}
