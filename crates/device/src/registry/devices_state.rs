//! The named transitions of a device. README.md has their table. Each runs under the lock.

use std::sync::Arc;
use std::time::Duration;

use corewise_sync::thread::ThreadId;
use corewise_timeline::EdgeKind;

use super::devices::{
    DeferredDrops, DeviceKey, DeviceSlot, Devices, DueProbe, Effects, LastProbe, LeaveReason, Link,
    Phase, ProbeInProgress, Target,
};
use super::matching::{Candidate, RegisteredDriver, Verdict, verdict};
use crate::bound::Bound;
use crate::decl::DeviceDecl;
use crate::driver::ProbeResult;
use crate::error::{ProbeError, ProbeErrorKind};
use crate::info::ProbeOutcome;
use crate::record::Site;

/// A probe to be called.
pub(crate) struct StartedProbe {
    pub decl: Arc<DeviceDecl>,
    pub driver: Arc<RegisteredDriver>,
    pub node: Option<u32>,
    /// Bound objects of the device's needs, by name.
    pub needs: Vec<(String, Arc<dyn Bound>)>,
    /// True if devices no longer wait for optional suppliers.
    pub hopeless: bool,
    /// True if the device is part of the bring-up in progress.
    pub in_bring_up: bool,
}

/// The next step of a thread that ended a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NextStep {
    /// The device is settled, or another thread continues with it.
    Done,
    /// The thread asks another driver for the device, in the same way.
    Again,
}

impl Devices {
    /// Adds a device (step Add). If the device is ready and synchronous, the calling thread probes
    /// it.
    pub(crate) fn add(
        &mut self,
        decl: Arc<DeviceDecl>,
        candidates: Vec<Candidate>,
        thread: ThreadId,
        now: Duration,
        fx: &mut Effects,
    ) -> DeviceKey {
        let parent = decl.parent.as_deref().and_then(|p| self.by_name.get(p).copied());
        // Rule 1.2.12: a device whose probe runs on this thread registers its own child.
        let by_probe = parent.is_some_and(|parent| {
            let its = &self.slot(parent).phase;
            matches!(its, Phase::Probing(p) if p.caller == Some(thread))
        });
        // An asynchronous child waits for its parent, as for every other need.
        let nested = by_probe && candidates.first().is_some_and(|c| !c.asynchronous);
        let index = self.enter(decl, nested);
        let slot = self.slot_mut(index);
        (slot.candidates, slot.by_probe) = (candidates, by_probe);
        self.attach(index, true, None, now, fx);
        self.key(index)
    }

    /// Makes a waiting or idle device ready, if it can be probed (step Attach). `mine` is true if
    /// the calling thread probes a synchronous device itself.
    pub(super) fn attach(
        &mut self,
        index: u32,
        mine: bool,
        by: Option<DeviceKey>,
        now: Duration,
        fx: &mut Effects,
    ) {
        let slot = self.slot_mut(index);
        if slot.candidates.is_empty() {
            slot.phase = Phase::Idle(LeaveReason::NoDriver);
            return;
        }
        self.attach_to(index, None, mine, by, now, fx);
    }

    /// Carries out Attach for one candidate alone. If that candidate is synchronous, the caller
    /// probes the device.
    pub(super) fn attach_only(&mut self, index: u32, at: usize, now: Duration, fx: &mut Effects) {
        self.attach_to(index, Some(at), true, None, now, fx);
    }

    fn attach_to(
        &mut self,
        index: u32,
        only: Option<usize>,
        mine: bool,
        by: Option<DeviceKey>,
        now: Duration,
        fx: &mut Effects,
    ) {
        let slot = self.slot_mut(index);
        slot.phase = Phase::Waiting;
        if slot.unmet > 0 || slot.is_wanted_down() {
            fx.hopes |= slot.lenient && self.may_be_waived(index);
            return;
        }
        let stopping =
            slot.in_bring_up.is_some() && self.bring_up.as_ref().is_some_and(|b| b.stopping());
        if stopping {
            self.note(index, ProbeOutcome::Cancelled, now, fx);
            self.slot_mut(index).phase = Phase::Idle(LeaveReason::Cancelled);
            self.blame(index, now, fx);
            return;
        }
        let slot = self.slot_mut(index);
        slot.phase = Phase::Ready;
        for (at, candidate) in slot.candidates.iter_mut().enumerate() {
            candidate.asked = only.is_some_and(|only| only != at);
        }
        slot.failure = None;
        slot.takes_turn(only.unwrap_or(0));
        (slot.queued, slot.released_by) = (now, by);
        let in_bring_up = slot.in_bring_up.is_some();
        self.active += 1;
        if in_bring_up {
            if let Some(bring_up) = &mut self.bring_up {
                bring_up.active += 1;
            }
        }
        self.dispatch(index, mine, fx);
    }

    /// Sends a ready device to the place of its probe (step Dispatch).
    fn dispatch(&mut self, index: u32, mine: bool, fx: &mut Effects) {
        self.slot_mut(index).times += 1;
        let (due, slot) = (self.due(index), self.slot(index));
        if slot.candidates[slot.turn].asynchronous {
            let node = slot.node;
            self.stand(node, due, fx);
            // Its synchronous driver may have been unregistered since the bring-up began.
            if std::mem::take(&mut self.slot_mut(index).in_turn) {
                self.news();
            }
            // If the caller is a worker, it may have to take the device.
            self.news_for_helper();
        } else if slot.in_turn {
            // The caller of the bring-up takes the device when its turn comes.
            if let Some(bring_up) = &mut self.bring_up {
                bring_up.ready_turns += 1;
            }
            self.news();
        } else if mine {
            fx.mine.push(due);
        } else {
            self.late.push_back(due);
            self.want_late_worker(true, fx);
        }
    }

    /// Starts the late worker if it is wanted and doesn't run.
    pub(super) fn want_late_worker(&mut self, wanted: bool, fx: &mut Effects) {
        if wanted && !self.late_worker {
            self.late_worker = true;
            self.late_number += 1;
            fx.late_worker = Some(self.late_number);
        }
    }

    /// Replaces the late worker if it hangs in the probe of `hangs`, which is past its deadline.
    pub(super) fn replace_late_worker(&mut self, hangs: DeviceKey, fx: &mut Effects) {
        if self.late_worker && self.late_probing.is_some_and(|due| due.key == hangs) {
            self.late_worker = false;
            self.late_number += 1;
            let more = !self.late.is_empty() || self.deferred.is_active();
            self.want_late_worker(more, fx);
        }
    }

    /// Returns the next probe of the late worker with this number. If it returns `None`, the worker
    /// leaves. Deferred devices become ready again here, and the asynchronous ones are queued.
    pub(crate) fn next_late(
        &mut self,
        number: u64,
        now: Duration,
        fx: &mut Effects,
    ) -> Option<DueProbe> {
        if number != self.late_number {
            return None;
        }
        self.late_probing = self.late.pop_front().or_else(|| self.next_retry(now, fx));
        if self.late_probing.is_none() {
            self.late_worker = false;
            fx.wake = true;
            self.news();
        }
        self.late_probing
    }

    /// Makes deferred devices ready again, up to the first synchronous one, and returns that.
    fn next_retry(&mut self, now: Duration, fx: &mut Effects) -> Option<DueProbe> {
        while let Some(key) = self.deferred.next() {
            // In between, another thread may have bound, removed or probed the device.
            if !self.live(key).is_some_and(|s| matches!(s.phase, Phase::Deferred(_))) {
                continue;
            }
            self.attach(key.index, true, None, now, fx);
            if let Some(mine) = fx.mine.pop() {
                return Some(mine);
            }
        }
        None
    }

    /// Begins the probe of a ready device (step Begin). The caller then calls its driver. Returns
    /// `None` if the driver must not be called any more.
    pub(crate) fn begin(
        &mut self,
        key: DeviceKey,
        site: &Site,
        thread: ThreadId,
        now: Duration,
        fx: &mut Effects,
    ) -> Option<StartedProbe> {
        let slot = self.live(key)?;
        if !matches!(slot.phase, Phase::Ready) {
            return None;
        }
        let stopping =
            slot.in_bring_up.is_some() && self.bring_up.as_ref().is_some_and(|b| b.stopping());
        if self.closed || stopping {
            self.settle(key.index, ProbeOutcome::Cancelled, now, fx);
            return None;
        }
        if slot.unmet > 0 || slot.is_wanted_down() {
            // A supplier has left, or another thread waits to unbind this device.
            self.recede(key.index, fx);
            return None;
        }
        let attempt = self.deferred.attempt();
        let hopeless = self.hopeless;
        let bound = |link: &Link| {
            let to = link.device().filter(|&to| self.is_up(to))?;
            Some((self.slot(to).name().to_string(), self.bound[to as usize].clone()?))
        };
        let needs = self.slot(key.index).needs.iter().filter_map(bound).collect();
        let parent = self.slot(key.index).parent().and_then(|parent| self.slot(parent).node);
        let slot = self.slot_mut(key.index);
        slot.node = slot.node.or(parent);
        let driver = slot.candidates[slot.turn].driver.clone();
        let former = slot.driver.replace(driver.clone());
        slot.phase = Phase::Probing(ProbeInProgress {
            since: now,
            site: site.clone(),
            caller: Some(thread),
            attempt,
            overdue: false,
            given_up: false,
            failing: false,
        });
        slot.cost.attempts += 1;
        let decl = slot.decl.clone()?;
        let (node, in_bring_up) = (slot.node, slot.in_bring_up.is_some());
        fx.trash.extend(former.map(DeferredDrops::Driver));
        fx.look_after = self.time_left(key.index);
        Some(StartedProbe { decl, driver, node, needs, hopeless, in_bring_up })
    }

    /// Returns a ready device to waiting (step Recede).
    pub(super) fn recede(&mut self, index: u32, fx: &mut Effects) {
        self.slot_mut(index).phase = Phase::Waiting;
        self.left_progress(index, fx);
    }

    /// Records that a device is no longer ready or being probed.
    pub(super) fn left_progress(&mut self, index: u32, fx: &mut Effects) {
        self.active -= 1;
        if self.slot(index).in_bring_up.is_some() {
            if let Some(bring_up) = &mut self.bring_up {
                bring_up.active -= 1;
            }
        }
        self.news();
        fx.wake = true;
    }

    /// Records that the driver has returned on that thread. The probe may still be in progress.
    pub(crate) fn returned(&mut self, key: DeviceKey, thread: ThreadId) {
        if self.live(key).is_some() {
            if let Phase::Probing(probing) = &mut self.slot_mut(key.index).phase {
                if probing.caller == Some(thread) {
                    probing.caller = None;
                }
            }
        }
    }

    /// Ends a probe (step End). The probe was over at `at`. If its worker is gone, the probe is
    /// never called and `result` is an error. `again` is true if the caller can ask the next driver
    /// itself. Devices are released `now`, because the End of a probe that was over after `at` may
    /// have come first.
    pub(crate) fn end(
        &mut self,
        key: DeviceKey,
        result: ProbeResult,
        at: Duration,
        now: Duration,
        again: bool,
        fx: &mut Effects,
    ) -> NextStep {
        let open = |s: &DeviceSlot| matches!(s.phase, Phase::Ready | Phase::Probing(_));
        if !self.live(key).is_some_and(open) {
            // The device was cancelled or removed, so its object is dropped.
            fx.trash.extend(result.ok().map(DeferredDrops::Object));
            return NextStep::Done;
        }
        let index = key.index;
        if self.taken || !self.is_late_end_wanted(index) {
            self.slot_mut(index).phase = Phase::Idle(LeaveReason::Cancelled);
            fx.trash.extend(result.ok().map(DeferredDrops::Object));
            fx.wake = true;
            return NextStep::Done;
        }
        self.account(index, &result, at, fx);
        let kind = result.as_ref().err().map(ProbeError::kind);
        let slot = self.slot_mut(index);
        let was_asynchronous = slot.candidates[slot.turn].asynchronous;
        let next = slot.candidates.iter().position(|c| !c.asked);
        let next = next.filter(|_| !self.closed);
        match (verdict(kind, next), result) {
            (Verdict::Bind, Ok(bound)) => self.bind(index, bound, at, now, fx),
            (Verdict::Defer, Err(error)) => self.defer(index, &error, now, fx),
            (Verdict::AskNext(next), Err(error)) => {
                let slot = self.slot_mut(index);
                slot.failure = Some(first_real(slot.failure.take(), error));
                slot.phase = Phase::Ready;
                slot.queued = now;
                slot.takes_turn(next);
                if again && slot.candidates[slot.turn].asynchronous == was_asynchronous {
                    return NextStep::Again;
                }
                self.dispatch(index, false, fx);
            }
            (_, Err(error)) => {
                let error = first_real(self.slot_mut(index).failure.take(), error);
                self.settle_at(index, ProbeOutcome::Failed(error), at, now, fx);
            }
            (_, Ok(bound)) => fx.trash.push(DeferredDrops::Object(bound)),
        }
        NextStep::Done
    }

    /// Fails a device whose prober never comes (step Lost). If the device is no longer ready, or
    /// became ready again, nothing happens: another thread probes it.
    pub(crate) fn lost(&mut self, due: DueProbe, why: ProbeError, now: Duration, fx: &mut Effects) {
        let is_it = |s: &DeviceSlot| matches!(s.phase, Phase::Ready) && s.times == due.time;
        if self.live(due.key).is_some_and(is_it) {
            self.end(due.key, Err(why), now, now, false, fx);
        }
    }

    /// Returns true if the end of this probe is wanted. The end of an abandoned probe counts like
    /// any other, unless the devices were shut down in between. After a shutdown no thread would
    /// call the device's callback.
    fn is_late_end_wanted(&mut self, index: u32) -> bool {
        let closed = self.closed;
        let in_bring_up = self.slot(index).in_bring_up.is_some();
        let Phase::Probing(probing) = &mut self.slot_mut(index).phase else { return true };
        if !probing.given_up {
            if probing.overdue && in_bring_up {
                if let Some(bring_up) = &mut self.bring_up {
                    bring_up.overdue -= 1;
                }
            }
            return true;
        }
        probing.given_up = false;
        self.active += usize::from(!closed);
        if in_bring_up && !closed {
            if let Some(bring_up) = &mut self.bring_up {
                bring_up.active += 1;
            }
        }
        !closed
    }

    /// Brings the device up (step Bind). Its consumers may become ready, and deferred devices are
    /// retried.
    fn bind(
        &mut self,
        index: u32,
        bound: Arc<dyn Bound>,
        at: Duration,
        now: Duration,
        fx: &mut Effects,
    ) {
        self.bound[index as usize] = Some(bound);
        self.changes += 1;
        if self.slot(index).is_wanted_down() {
            // Another thread waits to unbind the device, so its consumers must not begin.
            self.conclude(index, ProbeOutcome::Bound, at, fx);
            self.slot_mut(index).phase = Phase::Leaving;
            self.blame(index, now, fx);
            return;
        }
        let outcome = ProbeOutcome::Bound;
        self.settle_at(index, outcome, at, now, fx);
        if self.deferring {
            let active = self.deferred.trigger();
            self.want_late_worker(active, fx);
        }
    }

    /// Defers the device: its driver asked to be called again (step Defer).
    fn defer(&mut self, index: u32, error: &ProbeError, now: Duration, fx: &mut Effects) {
        let key = self.key(index);
        let slot = self.slot_mut(index);
        let phase = std::mem::replace(&mut slot.phase, Phase::Deferred(error.to_string()));
        slot.cost.deferrals += 1;
        if let Phase::Probing(ProbeInProgress { attempt, .. }) = phase {
            let active = self.deferred.park(key, attempt);
            self.want_late_worker(active, fx);
        }
        fx.hopes = true;
        self.left_progress(index, fx);
        self.waive_behind(index, now, fx);
    }

    /// Records the cost of a probe.
    fn account(&mut self, index: u32, result: &ProbeResult, at: Duration, fx: &mut Effects) {
        let slot = self.slot_mut(index);
        let Phase::Probing(ProbeInProgress { since, site, .. }) = &slot.phase else {
            return;
        };
        let took = at.saturating_sub(*since);
        slot.cost.total += took;
        if matches!(result, Err(error) if error.kind() == ProbeErrorKind::Deferred) {
            slot.cost.deferring += took;
        }
        let (site, started, queued) = (site.clone(), *since, slot.queued);
        let by = slot.released_by;
        let released_by = by.and_then(|key| self.live(key)).and_then(|s| s.decl.clone());
        let last = LastProbe { site, queued, started, finished: Some(at), released_by };
        let former = self.slot_mut(index).cost.last.replace(last);
        // This may be the last handle of a removed device.
        fx.trash.extend(former.and_then(|last| last.released_by).map(DeferredDrops::Decl));
    }

    pub(super) fn settle(
        &mut self,
        index: u32,
        outcome: ProbeOutcome,
        now: Duration,
        fx: &mut Effects,
    ) {
        self.settle_at(index, outcome, now, now, fx);
    }

    /// Settles a device that was in progress (step Settle). If it is up, the devices that waited
    /// for it are released. Otherwise a bring-up skips them.
    fn settle_at(
        &mut self,
        index: u32,
        outcome: ProbeOutcome,
        at: Duration,
        now: Duration,
        fx: &mut Effects,
    ) {
        let is_up = outcome == ProbeOutcome::Bound;
        let phase = match &outcome {
            ProbeOutcome::Bound => Phase::Bound,
            ProbeOutcome::Failed(error) => Phase::Idle(LeaveReason::Failed(error.clone())),
            _ => Phase::Idle(LeaveReason::Cancelled),
        };
        self.conclude(index, outcome, at, fx);
        self.slot_mut(index).phase = phase;
        if is_up {
            self.release(index, now, fx);
        } else {
            self.waive_behind(index, now, fx);
        }
        self.blame(index, now, fx);
    }

    /// Reports the outcome to the device's bring-up, if it is in one.
    fn conclude(&mut self, index: u32, outcome: ProbeOutcome, at: Duration, fx: &mut Effects) {
        self.left_progress(index, fx);
        self.note(index, outcome, at, fx);
    }

    /// Releases the consumers of a device that is up now (step Release). Each has one unmet need
    /// less.
    fn release(&mut self, index: u32, now: Duration, fx: &mut Effects) {
        let by = Some(self.key(index));
        let feeds = std::mem::take(&mut self.slot_mut(index).feeds);
        for &consumer in &feeds {
            if self.meets(consumer, index, true)
                && matches!(self.slot(consumer).phase, Phase::Waiting)
            {
                self.attach(consumer, false, by, now, fx);
            }
        }
        self.slot_mut(index).feeds = feeds;
    }

    /// Waives optional needs for a device (step Waive). The device was in progress when the
    /// deferral timeout passed, and did not come up. Consumers that can do without it stop waiting.
    pub(super) fn waive_behind(&mut self, index: u32, now: Duration, fx: &mut Effects) {
        if !self.hopeless {
            return;
        }
        let feeds = std::mem::take(&mut self.slot_mut(index).feeds);
        for &consumer in &feeds {
            let its = |l: &&mut Link| l.device() == Some(index) && l.optional && !l.waived;
            let slot = self.slot_mut(consumer);
            let Some(link) = slot.needs.iter_mut().find(its) else { continue };
            link.waived = true;
            slot.unmet -= 1;
            if slot.unmet == 0 && matches!(slot.phase, Phase::Waiting) {
                self.attach(consumer, false, None, now, fx);
            }
        }
        self.slot_mut(index).feeds = feeds;
    }

    /// Adds one unmet need to each consumer of a device that must not be used any more (step
    /// Withdraw).
    pub(super) fn withdraw(&mut self, index: u32) {
        let feeds = std::mem::take(&mut self.slot_mut(index).feeds);
        for &consumer in &feeds {
            self.meets(consumer, index, false);
        }
        self.slot_mut(index).feeds = feeds;
    }

    /// Records that one of a device's needs is now met, or no longer met. Returns true if all are
    /// met. A waived need returns false, since it wasn't counted.
    fn meets(&mut self, consumer: u32, need: u32, met: bool) -> bool {
        let slot = self.slot_mut(consumer);
        if slot.lenient {
            let is_it = |l: &&mut Link| matches!(l.to, Target::Device(to) if to == need);
            let link = slot.needs.iter_mut().find(is_it);
            if let Some(link) = link.filter(|link| link.waived) {
                // The link was not counted. A parent counts from its own bind on.
                link.waived = link.kind != EdgeKind::Parent;
                return false;
            }
        }
        if met {
            slot.unmet -= 1;
        } else {
            slot.unmet += 1;
        }
        slot.unmet == 0
    }
}

impl DeviceSlot {
    /// Gives this candidate the turn, and marks it as asked.
    fn takes_turn(&mut self, at: usize) {
        self.turn = at;
        self.candidates[at].asked = true;
    }
}

/// Returns the error to report for a device that several drivers refused: the first error that is
/// no quiet refusal. If both are quiet refusals, returns `next`.
fn first_real(first: Option<ProbeError>, next: ProbeError) -> ProbeError {
    first.filter(|e| e.kind() != ProbeErrorKind::NoDevice).unwrap_or(next)
}

#[cfg(test)]
#[path = "devices_tests.rs"]
mod tests;
