//! Unbinding and removing: the devices that need one go first, in the order of a shutdown.
//!
//! A thread that unbinds a device walks over all that need it, marks them so that nothing new
//! begins to use them, and unbinds them from the outermost inwards. A walk trusts nothing that it
//! saw under an earlier lock: a device is taken by the walk that finds, under the same lock, that
//! no other device uses it. A walk waits only for what runs (a probe, another walk's callback),
//! never for another walk: README.md has the argument.

use super::devices::{
    DeferredDrops, DeviceKey, DeviceSlot, Devices, Effects, Instance, LeaveReason, Link, Phase,
};
use crate::bound::Bound;
use crate::decl::DeviceDecl;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

/// One walk.
pub(crate) struct LeaveWalk {
    /// The device to unbind. It stays down then, unless it is to be removed.
    root: Instance,
    /// Frames: each device but the first needed the one before when its frame was put there. That
    /// may have changed since.
    stack: Vec<WalkFrame>,
    /// Number of frames by device, for those that have any.
    on_stack: HashMap<DeviceKey, u32>,
    /// Devices that were visited, and may be up again when all is done.
    passed: Vec<DeviceKey>,
}

#[derive(Clone, Copy)]
struct WalkFrame {
    device: Instance,
    /// True if the device goes for good, and not only its driver.
    remove: bool,
    /// Position among its feeds: those before it were not checked in this round.
    cursor: usize,
}

/// The next step of a walk.
pub(crate) enum LeaveStep {
    /// Calls this device's callback, then reports it with [`Devices::unbound`].
    Unbind { key: DeviceKey, decl: Arc<DeviceDecl>, bound: Arc<dyn Bound> },
    /// Waits until something changes.
    Wait,
    /// All is done.
    Done,
}

impl LeaveWalk {
    /// Creates a walk from a device that is to be unbound, or removed with its children.
    pub(crate) fn new(root: Instance, remove: bool) -> LeaveWalk {
        let (stack, on_stack) = (Vec::new(), HashMap::new());
        let mut walk = LeaveWalk { root, stack, on_stack, passed: vec![] };
        walk.push(root, remove);
        walk
    }

    fn push(&mut self, device: Instance, remove: bool) {
        self.stack.push(WalkFrame { device, remove, cursor: usize::MAX });
        *self.on_stack.entry(device.key).or_default() += 1;
    }

    fn pop(&mut self) {
        let Some(frame) = self.stack.pop() else { return };
        let frames = self.on_stack.entry(frame.device.key).or_default();
        *frames -= 1;
        if *frames == 0 {
            self.on_stack.remove(&frame.device.key);
        }
    }

    /// Returns the latest frame of a device.
    fn frame_of(&self, key: DeviceKey) -> Option<&WalkFrame> {
        self.on_stack.get(&key)?;
        self.stack.iter().rev().find(|frame| frame.device.key == key)
    }
}

impl Devices {
    /// Returns the device as it is now, until it is unbound.
    pub(crate) fn instance(&self, key: DeviceKey) -> Instance {
        Instance { key, unbinds: self.live(key).map_or(0, |slot| slot.unbinds) }
    }

    /// Returns the children that a device has registered during its own probe.
    pub(crate) fn children_by_probe(&self, key: DeviceKey) -> Vec<DeviceKey> {
        // If a shutdown has taken all objects, nothing is up, and no callback is called any more.
        let slot = self.live(key).filter(|_| !self.taken);
        let Some(slot) = slot else { return Vec::new() };
        let is_its = |&&i: &&u32| self.is_by_probe_of(i, key.index);
        slot.feeds.iter().rev().filter(is_its).map(|&i| self.key(i)).collect()
    }

    /// Marks a probe as failed, and returns the children that it has registered. They go before the
    /// failure is recorded: until then the device is being probed, and its needs stay up for them.
    /// The thread that records the failure walks over the children meanwhile. So another walk must
    /// not wait for the probe if the probe waits for that walk: [`Devices::is_in_circle`].
    pub(crate) fn failing(&mut self, key: DeviceKey, fx: &mut Effects) -> Vec<Instance> {
        let children = self.children_by_probe(key);
        if !children.is_empty() {
            if let Phase::Probing(probing) = &mut self.slot_mut(key.index).phase {
                (probing.failing, probing.caller) = (true, None);
                fx.wake = true;
            }
        }
        children.into_iter().map(|child| self.instance(child)).collect()
    }

    fn is_by_probe_of(&self, index: u32, parent: u32) -> bool {
        self.slot(index).by_probe && self.slot(index).parent() == Some(parent)
    }

    /// Returns the next step of a walk.
    pub(crate) fn leave_step(
        &mut self,
        walk: &mut LeaveWalk,
        now: Duration,
        fx: &mut Effects,
    ) -> LeaveStep {
        while let Some(&WalkFrame { device, remove, .. }) = walk.stack.last() {
            let (key, index) = (device.key, device.key.index);
            // If a shutdown has taken all objects, nothing is up.
            let Some(slot) = self.live(key).filter(|_| !self.taken) else {
                walk.pop();
                continue;
            };
            let unbinds = slot.unbinds;
            if unbinds != device.unbinds {
                // The reason for its frame is gone, by this walk or another one. Perhaps it is up
                // again.
                if !remove {
                    walk.pop();
                    walk.passed.push(key);
                    continue;
                }
                if let Some(frame) = walk.stack.last_mut() {
                    (frame.device.unbinds, frame.cursor) = (unbinds, usize::MAX);
                }
            }
            let is_root = device == walk.root;
            self.mark(index, remove, is_root, fx);
            // The walk goes outwards: to its consumers, the latest first.
            if let Some((feed, remove)) = self.next_outwards(walk) {
                walk.push(self.instance(self.key(feed)), remove);
                continue;
            }
            // No device uses it, and none can begin to while this lock is held.
            if self.runs_at_or_behind(index) {
                return LeaveStep::Wait;
            }
            if let Some(step) = self.take(index) {
                return step;
            }
            // Inwards again.
            walk.pop();
            self.slot_mut(index).leaving = false;
            if remove {
                self.withdraw_from_bring_up(index, now, fx);
                self.forget(index, fx);
                fx.wake = true;
                continue;
            }
            if is_root {
                self.stay_down(index, now, fx);
            }
            walk.passed.push(key);
        }
        // A device that can do without the one that left needn't wait for it.
        for key in std::mem::take(&mut walk.passed) {
            let waits = |slot: &DeviceSlot| matches!(slot.phase, Phase::Waiting) && slot.unmet == 0;
            if self.live(key).is_some_and(waits) {
                self.attach(key.index, false, None, now, fx);
            }
        }
        LeaveStep::Done
    }

    /// Returns the device that has to go before the one on top of the stack, and true if it goes
    /// for good. Returns `None` if all feeds were checked, and none has to.
    fn next_outwards(&self, walk: &mut LeaveWalk) -> Option<(u32, bool)> {
        let &WalkFrame { device, remove, cursor } = walk.stack.last()?;
        let index = device.key.index;
        let feeds = &self.slot(index).feeds;
        let cursor = cursor.min(feeds.len());
        let found = |&at: &usize| self.goes_before(walk, feeds[at], index, remove);
        // Those that were checked are checked again: one may have come up since.
        let at = (0..cursor).rev().chain((cursor..feeds.len()).rev()).find(found);
        if let Some(frame) = walk.stack.last_mut() {
            frame.cursor = at.unwrap_or(usize::MAX);
        }
        at.map(|at| (feeds[at], self.goes_along(feeds[at], index, remove)))
    }

    /// Returns true if the feed is removed too. That is so for a child of a removed device, and for
    /// a child of an unbound device that has registered it.
    fn goes_along(&self, feed: u32, index: u32, remove: bool) -> bool {
        remove && self.slot(feed).parent() == Some(index) || self.is_by_probe_of(feed, index)
    }

    fn goes_before(&self, walk: &LeaveWalk, feed: u32, index: u32, remove: bool) -> bool {
        let uses = self.slot(feed).uses_what_it_needs();
        let goes_along = self.goes_along(feed, index, remove);
        match walk.frame_of(self.key(feed)) {
            None => goes_along || uses && !self.is_in_circle(index, feed),
            // The feed has a frame below. Either the two need each other, and one has to be first;
            // or links have changed since, and then the feed goes before this one all the same.
            Some(frame) => goes_along && !frame.remove || uses && !self.uses(index, feed),
        }
    }

    /// Returns true if waiting for the feed could close a circle. That is so if its probe has
    /// failed and waits for the walk over its children, and one of these uses the device that uses
    /// the feed.
    fn is_in_circle(&self, index: u32, feed: u32) -> bool {
        matches!(&self.slot(feed).phase, Phase::Probing(p) if p.failing) && self.uses(index, feed)
    }

    /// Returns true if `from` uses `to`, directly or through others that are up.
    fn uses(&self, from: u32, to: u32) -> bool {
        let mut seen: HashSet<u32> = HashSet::new();
        let mut todo = vec![from];
        while let Some(at) = todo.pop() {
            for need in self.slot(at).needs.iter().filter_map(Link::device) {
                if need == to {
                    return true;
                }
                if self.slot(need).uses_what_it_needs() && seen.insert(need) {
                    todo.push(need);
                }
            }
        }
        false
    }

    /// Returns true while the walk has to wait where it is.
    pub(crate) fn leave_must_wait(&self, walk: &LeaveWalk) -> bool {
        let top = walk.stack.last().filter(|frame| self.live(frame.device.key).is_some());
        !self.taken && top.is_some_and(|frame| self.runs_at_or_behind(frame.device.key.index))
    }

    /// Returns true if a thread works on the device, or on one that needs it.
    fn runs_at_or_behind(&self, index: u32) -> bool {
        let runs = |i: u32| matches!(self.slot(i).phase, Phase::Probing(_) | Phase::Unbinding);
        let in_hands = |feed: u32| {
            self.slot(feed).dropping > 0 || runs(feed) && !self.is_in_circle(index, feed)
        };
        runs(index) || self.slot(index).feeds.iter().any(|&feed| in_hands(feed))
    }

    /// Marks the device: no new device begins to use it, nor does it begin anything (step Mark).
    fn mark(&mut self, index: u32, remove: bool, stays_down: bool, fx: &mut Effects) {
        let slot = self.slot_mut(index);
        slot.going |= remove;
        slot.stays_down |= stays_down;
        match slot.phase {
            Phase::Bound => {
                slot.phase = Phase::Leaving;
                self.withdraw(index);
            }
            Phase::Ready => {
                // Its prober will see that it isn't ready any more.
                slot.leaving = true;
                self.leave_turn(index);
                self.recede(index, fx);
            }
            Phase::Probing(_) => slot.leaving = true,
            _ => {}
        }
    }

    /// Takes a marked device; the taker calls its callback (step Take).
    fn take(&mut self, index: u32) -> Option<LeaveStep> {
        if !matches!(self.slot(index).phase, Phase::Leaving) {
            return None;
        }
        let decl = self.slot(index).decl.clone()?;
        let bound = self.bound[index as usize].clone()?;
        self.slot_mut(index).phase = Phase::Unbinding;
        Some(LeaveStep::Unbind { key: self.key(index), decl, bound })
    }

    /// Records that the callback of a device that was taken is over (step Unbound). Its object is
    /// dropped. The device waits for its needs, as before its first probe, or stays down if that
    /// was requested.
    pub(crate) fn unbound(&mut self, key: DeviceKey, now: Duration, fx: &mut Effects) {
        if self.live(key).is_none() {
            return;
        }
        self.changes += 1;
        let slot = self.slot_mut(key.index);
        (slot.phase, slot.leaving, slot.unbinds) = (Phase::Waiting, false, slot.unbinds + 1);
        fx.trash.extend(slot.driver.take().map(DeferredDrops::Driver));
        let object = self.bound.get_mut(key.index as usize).and_then(Option::take);
        fx.trash.extend(object.map(DeferredDrops::Object));
        fx.wake = true;
        if self.slot(key.index).stays_down {
            self.stay_down(key.index, now, fx);
        }
    }

    /// Announces that the caller is about to drop the object of a device that it has unbound (step
    /// Drops). Another walk waits for that before it takes the devices that the object may use.
    pub(crate) fn drops(&mut self, key: DeviceKey) {
        if self.live(key).is_some() {
            self.slot_mut(key.index).dropping += 1;
        }
    }

    /// Records that the object is gone (step Dropped).
    pub(crate) fn dropped(&mut self, key: DeviceKey, fx: &mut Effects) {
        if self.live(key).is_some() {
            self.slot_mut(key.index).dropping -= 1;
            fx.wake = true;
        }
    }

    /// Keeps a device down that is to be unbound and is not up.
    fn stay_down(&mut self, index: u32, now: Duration, fx: &mut Effects) {
        self.withdraw_from_bring_up(index, now, fx);
        let slot = self.slot_mut(index);
        slot.stays_down = false;
        if !matches!(slot.phase, Phase::Idle(_)) {
            slot.phase = Phase::Idle(LeaveReason::Unbound);
        }
    }
}

impl Phase {
    /// Returns true if later devices of a bring-up wait for its end.
    pub(super) fn holds_turns(&self) -> bool {
        matches!(self, Phase::Probing(probing) if !probing.overdue)
    }
}

impl DeviceSlot {
    /// Returns true if it uses its needs, or may do so soon.
    fn uses_what_it_needs(&self) -> bool {
        match &self.phase {
            Phase::Ready | Phase::Probing(_) | Phase::Bound | Phase::Leaving | Phase::Unbinding => {
                true
            }
            Phase::Waiting | Phase::Deferred(_) | Phase::Idle(_) => false,
        }
    }

    /// Returns true if it must not begin, because a thread waits to unbind it, or to remove it.
    pub(super) fn is_wanted_down(&self) -> bool {
        self.leaving || self.going
    }
}

#[cfg(test)]
#[path = "leave_tests.rs"]
mod tests;
