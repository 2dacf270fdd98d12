//! Unbinding and removing: those who need a device go first, in the order of a shutdown.
//!
//! Whoever unbinds a device walks over all that need it, marks them so that nothing new begins to use
//! them, and unbinds them from the outermost inwards. It waits only for what runs (a probe, another
//! one's callback), never for another walk: README.md has the argument.

use super::{Devices, Effects, Key, Phase, Trash, Why};
use crate::DeviceDecl;
use crate::driver::Bound;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

/// One walk.
pub(crate) struct Leave {
    root: Key,
    visited: HashSet<u32>,
    /// Those of them that go for good.
    going: HashSet<u32>,
    stack: Vec<Frame>,
    /// Who was visited, and may be up again when all is done.
    passed: Vec<Key>,
}

struct Frame {
    key: Key,
    /// It goes for good, and not only its driver.
    remove: bool,
    /// Those before this place among its feeds were not looked at in this round.
    cursor: usize,
    /// A round found nothing new.
    complete: bool,
}

/// What to do next.
pub(crate) enum LeaveStep {
    /// Calls this device's callback, then says so with [`Devices::unbound`].
    Unbind { key: Key, decl: Arc<DeviceDecl>, bound: Arc<dyn Bound> },
    /// Waits until something changes.
    Wait,
    /// All is done.
    Done,
}

impl Leave {
    /// A walk from a device that is to be unbound, or removed with its children.
    pub(crate) fn new(root: Key, remove: bool) -> Leave {
        let frame = Frame { key: root, remove, cursor: usize::MAX, complete: false };
        let visited = HashSet::from([root.index]);
        let going = if remove { visited.clone() } else { HashSet::new() };
        Leave { root, visited, going, stack: vec![frame], passed: vec![] }
    }
}

impl Devices {
    /// The children that a device has registered during its own probe.
    pub(crate) fn children_by_probe(&self, key: Key) -> Vec<Key> {
        // A shutdown has taken all objects: nothing is up, and nobody's callback is called any more.
        let slot = self.live(key).filter(|_| !self.taken);
        let Some(slot) = slot else { return Vec::new() };
        let is_its = |&&i: &&u32| self.is_by_probe_of(i, key.index);
        slot.feeds.iter().rev().filter(is_its).map(|&i| self.key(i)).collect()
    }

    fn is_by_probe_of(&self, index: u32, parent: u32) -> bool {
        self.slot(index).by_probe && self.slot(index).parent() == Some(parent)
    }

    /// The next step of a walk.
    pub(crate) fn leave_step(
        &mut self,
        walk: &mut Leave,
        now: Duration,
        fx: &mut Effects,
    ) -> LeaveStep {
        while let Some(frame) = walk.stack.last_mut() {
            let (key, remove) = (frame.key, frame.remove);
            let index = key.index;
            if self.live(key).is_none() {
                walk.stack.pop();
                continue;
            }
            self.mark(index, fx);
            // Outwards: whoever needs this one, the latest first.
            let feeds = &self.slot(index).feeds;
            let mut next = None;
            let mut at = frame.cursor.min(feeds.len());
            while at > 0 && next.is_none() {
                at -= 1;
                let feed = feeds[at];
                let goes = remove && self.slot(feed).parent() == Some(index)
                    || self.is_by_probe_of(feed, index);
                // One that was passed may have come up again meanwhile, or may have to go for good.
                let new = !walk.visited.contains(&feed) || self.is_up(feed);
                let remove = goes && !walk.going.contains(&feed);
                if remove || (new && self.slot(feed).is_live()) {
                    next = Some((feed, goes));
                }
            }
            frame.cursor = at;
            if let Some((feed, remove)) = next {
                frame.complete = false;
                let key = self.key(feed);
                walk.visited.insert(feed);
                if remove {
                    walk.going.insert(feed);
                }
                walk.stack.push(Frame { key, remove, cursor: usize::MAX, complete: false });
                continue;
            }
            if !frame.complete {
                // Some may have come meanwhile.
                (frame.complete, frame.cursor) = (true, usize::MAX);
                continue;
            }
            if self.runs_at_or_behind(index) {
                frame.complete = false;
                frame.cursor = usize::MAX;
                return LeaveStep::Wait;
            }
            if let Some(step) = self.take(index) {
                return step;
            }
            // Inwards again.
            walk.stack.pop();
            self.slot_mut(index).leaving = false;
            if remove || key == walk.root {
                self.withdraw_from_batch(index, now, fx);
            } else {
                walk.passed.push(key);
            }
            if remove {
                // Its number may be somebody else's from now on.
                walk.visited.remove(&index);
                walk.going.remove(&index);
                self.forget(index, fx);
                fx.wake = true;
            } else if key == walk.root && !matches!(self.slot(index).phase, Phase::Idle(_)) {
                self.slot_mut(index).phase = Phase::Idle(Why::Unbound);
            }
        }
        // Who can do without what has left needn't wait for it.
        for key in std::mem::take(&mut walk.passed) {
            let waits =
                |slot: &super::Slot| matches!(slot.phase, Phase::Waiting) && slot.unmet == 0;
            if self.live(key).is_some_and(waits) {
                self.attach(key.index, false, None, now, fx);
            }
        }
        LeaveStep::Done
    }

    /// Whether the walk still has to wait where it is.
    pub(crate) fn leave_must_wait(&self, walk: &Leave) -> bool {
        let top = walk.stack.last().filter(|frame| self.live(frame.key).is_some());
        top.is_some_and(|frame| self.runs_at_or_behind(frame.key.index))
    }

    /// Whether the device, or one that needs it, is in somebody's hands.
    fn runs_at_or_behind(&self, index: u32) -> bool {
        let runs = |i: u32| {
            let phase = &self.slot(i).phase;
            matches!(phase, Phase::Ready | Phase::Probing(_) | Phase::Unbinding)
        };
        runs(index) || self.slot(index).feeds.iter().any(|&feed| runs(feed))
    }

    /// Mark: nothing new begins to use the device, nor does it begin anything.
    fn mark(&mut self, index: u32, fx: &mut Effects) {
        match self.slot(index).phase {
            Phase::Bound => {
                self.slot_mut(index).phase = Phase::Leaving;
                self.withdraw(index);
            }
            Phase::Ready => {
                // Whoever was to probe it finds that it isn't ready any more.
                self.leave_turn(index);
                self.recede(index, fx);
                self.slot_mut(index).leaving = true;
            }
            Phase::Probing(_) => self.slot_mut(index).leaving = true,
            _ => {}
        }
    }

    /// Take: who takes a marked device calls its callback.
    fn take(&mut self, index: u32) -> Option<LeaveStep> {
        if !matches!(self.slot(index).phase, Phase::Leaving) {
            return None;
        }
        let (key, bound) = (self.key(index), self.bound[index as usize].clone()?);
        let decl = self.slot(index).decl.clone()?;
        self.slot_mut(index).phase = Phase::Unbinding;
        Some(LeaveStep::Unbind { key, decl, bound })
    }

    /// Unbound: the callback of a device that was taken is over. Its object is dropped, and it waits
    /// for what it needs, as before its first probe.
    pub(crate) fn unbound(&mut self, key: Key, fx: &mut Effects) {
        if self.live(key).is_none() {
            return;
        }
        self.changes += 1;
        let slot = self.slot_mut(key.index);
        slot.phase = Phase::Waiting;
        fx.trash.extend(slot.driver.take().map(Trash::Driver));
        fx.trash.extend(self.bound[key.index as usize].take().map(Trash::Object));
        fx.wake = true;
    }
}

impl Phase {
    /// Those behind it in a bring-up wait for its end.
    pub(super) fn holds_turns(&self) -> bool {
        matches!(self, Phase::Probing(probing) if !probing.overdue)
    }
}

impl super::Slot {
    /// It is up, or may be before long.
    fn is_live(&self) -> bool {
        match self.phase {
            Phase::Ready | Phase::Probing(_) | Phase::Bound | Phase::Leaving | Phase::Unbinding => {
                true
            }
            Phase::Waiting | Phase::Deferred(_) | Phase::Idle(_) => false,
        }
    }
}
