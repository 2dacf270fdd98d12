//! The links between devices: devices that come, go, and are linked while others live on. Each step costs what
//! the device's own links cost.

use super::devices::{Cost, DeferredDrops, DeviceSlot, Devices, Effects, Link, Phase, Target};
use crate::decl::DeviceDecl;
use crate::graph::{GraphError, NamedDecl, OutsideNeeds};
use corewise_timeline::EdgeKind;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

impl Devices {
    /// What the builder of a graph has to know about a device that exists.
    pub(crate) fn outside(&self, name: &str) -> Option<OutsideNeeds> {
        let &index = self.by_name.get(name)?;
        Some(OutsideNeeds { node: self.slot(index).node })
    }

    /// Link: a new device takes its name, and is linked with what it needs and with those who have
    /// been waiting for that name. `nested`: its parent is being probed, and registers it.
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

    /// Adds a need, unless it was the last one added to what is needed.
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
        // A new device's needs are added one after another: one that it has already came last.
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

    /// A device without a node of its own takes over its parent's, and hands it on.
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

    /// A device that nobody uses any more leaves. Those who need it wait for its name.
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

    /// A supplier no longer has that consumer.
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

    /// The cycles that new devices would close with devices that wait for them by name. Links
    /// among the new ones are the graph builder's business.
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

    /// Whether a way leads from a device back to itself. Looks along what it needs and along who needs
    /// it, by turns: where one side soon comes to its end, it doesn't matter how long the other is. So a
    /// device at the end of a long chain, which somebody waits for, costs as little as any other.
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

    /// What a device needs, by name, whether it exists or is one of the new ones.
    fn needs_of(&self, name: &str, new: &HashMap<&str, &DeviceDecl>) -> Vec<String> {
        if let Some(decl) = new.get(name) {
            return decl.needs().cloned().collect();
        }
        let Some(&index) = self.by_name.get(name) else { return Vec::new() };
        self.slot(index).needs.iter().map(|l| self.target_name(&l.to).to_string()).collect()
    }

    /// A way from a device along what it needs, back to itself.
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

    /// Whether `from` needs `to`, directly or not.
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
            in_batch: None,
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

    /// It is ready or being probed: it will be settled by itself.
    pub(super) fn is_in_progress(&self) -> bool {
        match &self.phase {
            Phase::Ready => true,
            Phase::Probing(probing) => !probing.given_up,
            _ => false,
        }
    }
}
