//! A bring-up: many devices at once, and one caller that waits for all of them and probes the
//! synchronous ones, in order.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::devices::{DeviceKey, Devices, DueProbe, Effects, LeaveReason, Link, Phase};
use super::info::ProbeRecord;
use super::matching::{Candidate, StuckAction, stuck};
use crate::decl::DeviceDecl;
use crate::error::ProbeError;
use crate::event::Cancel;
use crate::graph::{DeviceId, Graph, GraphError};
use crate::info::ProbeOutcome;
use crate::record::Record;
use crate::shutdown::HangPolicy;

/// The bring-up in progress.
pub(crate) struct BringUpInProgress {
    options: BringUpPlan,
    /// The devices of this bring-up alone, as they were declared.
    graph: Arc<Graph>,
    /// Keys by device; `None` for those that were rejected and do not exist.
    keys: Vec<Option<DeviceKey>>,
    outcomes: Vec<Option<ProbeOutcome>>,
    /// Synchronous devices whose turn has not come, in base order.
    turns: VecDeque<u32>,
    /// Number of devices that have no outcome.
    left: usize,
    /// Number of devices that are ready or being probed.
    pub(super) active: usize,
    /// Number of active devices that are ready and stand in `turns`.
    pub(super) ready_turns: usize,
    /// Number of active devices whose probe is past its deadline.
    pub(super) overdue: usize,
    /// True if something has changed since the caller looked.
    news: bool,
    /// True if the whole bring-up is past its deadline.
    late: bool,
    /// True if overdue probes leave devices unsettled.
    gave_up: bool,
    /// Devices past their deadlines, by place.
    named: Vec<u32>,
    /// Number of outcomes and overdue probes that the observer has not got yet.
    untold: usize,
    stopped_by: Option<u32>,
    records: Vec<Record>,
    began: Duration,
}

/// Options of a bring-up.
pub(crate) struct BringUpPlan {
    pub keep_going: bool,
    pub cancel: Cancel,
    pub observed: bool,
    /// True if its caller is a worker: then it begins queued devices itself, if no other worker has
    /// come.
    pub helps: bool,
    /// Deadline of a probe, after which it is named.
    pub device_timeout: Option<Duration>,
    /// Deadline of the whole bring-up.
    pub timeout: Option<Duration>,
    /// The policy for a probe that is past its deadline.
    pub on_hang: HangPolicy,
}

/// A device that is past its deadline.
pub(crate) struct OverdueDevice {
    pub decl: Arc<DeviceDecl>,
    pub after: Duration,
    /// Its place in the bring-up in progress.
    pub in_bring_up: Option<u32>,
}

/// The next step of the bring-up's caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallerStep {
    /// Probes this synchronous device.
    Run(DueProbe),
    /// Waits until something changes.
    Wait,
    /// Every device is settled.
    Done,
}

/// The result of a finished bring-up.
pub(crate) struct FinishedBringUp {
    pub graph: Arc<Graph>,
    /// Outcome, driver and cost by device.
    pub devices: Vec<(ProbeOutcome, ProbeRecord)>,
    pub records: Vec<Record>,
    pub stopped_by: Option<u32>,
    /// Devices past their deadlines.
    pub overdue: Vec<u32>,
    pub gave_up: bool,
}

impl BringUpInProgress {
    pub(super) fn stopping(&self) -> bool {
        self.stopped_by.is_some() || self.gave_up || self.options.cancel.is_cancelled()
    }
}

impl Devices {
    pub(crate) fn has_bring_up(&self) -> bool {
        self.bring_up.is_some()
    }

    pub(crate) fn bring_up_cancel(&self) -> Option<Cancel> {
        Some(self.bring_up.as_ref()?.options.cancel.clone())
    }

    /// Adds the devices of a bring-up: those that are not rejected exist from now on. A device that
    /// needs nothing becomes ready; one that can't come up is settled.
    pub(crate) fn begin_bring_up(
        &mut self,
        graph: Arc<Graph>,
        faults: &[GraphError],
        candidates: Vec<Vec<Candidate>>,
        options: BringUpPlan,
        now: Duration,
        fx: &mut Effects,
    ) {
        let total = graph.len();
        self.slots.reserve(total);
        self.bound.reserve(total);
        self.by_name.reserve(total);
        let mut fault_of: HashMap<usize, &GraphError> = HashMap::new();
        for fault in faults {
            for device in fault.devices() {
                fault_of.entry(device).or_insert(fault);
            }
        }
        // Devices enter in base order, each after its needs.
        let mut keys = vec![None; total];
        let mut candidates = candidates;
        for &id in graph.order().iter().filter(|&&id| !graph.is_rejected(id)) {
            let index = self.enter(graph.decl(id).clone(), false);
            let slot = self.slot_mut(index);
            slot.candidates = std::mem::take(&mut candidates[id.index()]);
            slot.in_bring_up = Some(id.0);
            slot.in_turn = slot.candidates.first().is_some_and(|c| !c.asynchronous);
            keys[id.index()] = Some(self.key(index));
        }
        // Devices count as registered in the order of their declarations, whatever they need.
        let base = self.registrations - keys.iter().flatten().count() as u64;
        for (place, key) in (base..).zip(keys.iter().flatten()) {
            self.slot_mut(key.index).registration = place;
        }
        self.in_order &= keys.iter().flatten().is_sorted_by_key(|key| key.index);
        let in_turn = |id: &DeviceId| {
            let key = keys[id.index()].filter(|key| self.slot(key.index).in_turn);
            key.map(|_| id.0)
        };
        let turns = graph.order().iter().filter_map(in_turn).collect();
        for key in keys.iter().flatten() {
            let slot = self.slot(key.index);
            let inside = |&to: &u32| self.slot(to).in_bring_up.is_some();
            let open = slot.needs.iter().filter_map(Link::device).filter(inside).count();
            self.slot_mut(key.index).open = u32::try_from(open).expect("as many as devices");
        }
        let seeds = keys.clone();
        self.bring_up = Some(BringUpInProgress {
            options,
            graph,
            keys,
            outcomes: vec![None; total],
            turns,
            left: total,
            active: 0,
            ready_turns: 0,
            overdue: 0,
            news: true,
            late: false,
            gave_up: false,
            named: Vec::new(),
            untold: 0,
            stopped_by: None,
            records: Vec::with_capacity(total),
            began: now,
        });
        for (place, key) in (0u32..).zip(seeds) {
            match (key, fault_of.get(&(place as usize))) {
                (Some(key), _) => self.seed(key.index, now, fx),
                (None, fault) => {
                    let fault = (*fault.expect("a rejected device has a fault")).clone();
                    self.note_at(place, ProbeOutcome::Rejected(fault), now, fx);
                    self.blame_rejected(place, now, fx);
                }
            }
        }
    }

    /// Makes a device of a bring-up ready, or settles it if it can't come up (step Seed).
    fn seed(&mut self, index: u32, now: Duration, fx: &mut Effects) {
        self.attach(index, false, None, now, fx);
        self.skip_if_hopeless(index, now, fx);
    }

    /// Settles the need for a rejected device: it doesn't exist, so no link leads to it.
    fn blame_rejected(&mut self, place: u32, now: Duration, fx: &mut Effects) {
        let Some(bring_up) = &self.bring_up else { return };
        let feeds = bring_up.graph.feeds(DeviceId(place)).iter();
        let consumers: Vec<DeviceKey> = feeds.filter_map(|c| bring_up.keys[c.index()]).collect();
        for consumer in consumers {
            let slot = self.slot_mut(consumer.index);
            slot.culprit = Some(slot.culprit.map_or(place, |c| c.min(place)));
            self.skip_if_hopeless(consumer.index, now, fx);
        }
    }

    /// Records that a device of a bring-up is settled (step Blame): those in it that need it have
    /// one open need less. A device with none left, and yet unmet ones, is skipped, and so on.
    pub(super) fn blame(&mut self, index: u32, now: Duration, fx: &mut Effects) {
        let mut stack = vec![index];
        while let Some(index) = stack.pop() {
            let slot = self.slot(index);
            let Some(place) = slot.in_bring_up else { continue };
            let culprit = match self.bring_up.as_ref().map(|b| &b.outcomes[place as usize]) {
                Some(Some(ProbeOutcome::Bound | ProbeOutcome::Cancelled)) => None,
                Some(Some(ProbeOutcome::Skipped { .. })) => slot.culprit,
                _ => Some(place),
            };
            let feeds = std::mem::take(&mut self.slot_mut(index).feeds);
            for &consumer in &feeds {
                if !self.is_unsettled(consumer) {
                    continue;
                }
                let its = self.slot_mut(consumer);
                its.open = its.open.saturating_sub(1);
                its.culprit = its.culprit.into_iter().chain(culprit).min();
                if self.skip(consumer, now, fx) {
                    stack.push(consumer);
                }
            }
            self.slot_mut(index).feeds = feeds;
        }
    }

    pub(super) fn skip_if_hopeless(&mut self, index: u32, now: Duration, fx: &mut Effects) {
        if self.is_unsettled(index) && self.skip(index, now, fx) {
            self.blame(index, now, fx);
        }
    }

    /// Skips a device of the bring-up whose needs are all settled and not all up (step Skip). If
    /// they come up later after all, it is probed.
    fn skip(&mut self, index: u32, now: Duration, fx: &mut Effects) -> bool {
        let slot = self.slot(index);
        if slot.open > 0 || slot.unmet == 0 || !matches!(slot.phase, Phase::Waiting) {
            return false;
        }
        let stopping = self.bring_up.as_ref().is_some_and(BringUpInProgress::stopping);
        if !stopping && (self.waits_for_others(index) || self.may_be_waived(index)) {
            return false;
        }
        self.conclude_waiting(index, now, fx);
        true
    }

    /// Settles a device that waits or was deferred, as it is, and those that wait for it.
    fn give_up(&mut self, index: u32, now: Duration, fx: &mut Effects) {
        self.conclude_waiting(index, now, fx);
        self.blame(index, now, fx);
    }

    /// Settles a device that waits or was deferred, as it is.
    fn conclude_waiting(&mut self, index: u32, now: Duration, fx: &mut Effects) {
        let Some(bring_up) = &self.bring_up else { return };
        let slot = self.slot(index);
        let outcome = match &slot.phase {
            Phase::Deferred(reason) => ProbeOutcome::Deferred { reason: reason.clone() },
            _ if bring_up.stopping() => ProbeOutcome::Cancelled,
            _ if self.may_be_waived(index) => {
                let supplier = self.first_unmet(index).unwrap_or("nobody");
                let reason = format!("it waits for the optional supplier \"{supplier}\"");
                ProbeOutcome::Deferred { reason }
            }
            _ => {
                let culprit = slot.culprit.map(|place| bring_up.graph.name(DeviceId(place)));
                let unmet = || self.first_unmet(index).unwrap_or("nobody");
                let culprit = culprit.unwrap_or_else(unmet).to_string();
                ProbeOutcome::Skipped { culprit }
            }
        };
        if outcome == ProbeOutcome::Cancelled {
            self.slot_mut(index).phase = Phase::Idle(LeaveReason::Cancelled);
        }
        self.note(index, outcome, now, fx);
    }

    fn first_unmet(&self, index: u32) -> Option<&str> {
        let unmet = |l: &&Link| !l.waived && !l.device().is_some_and(|to| self.is_up(to));
        let link = self.slot(index).needs.iter().find(unmet)?;
        Some(self.target_name(&link.to))
    }

    pub(super) fn is_up(&self, index: u32) -> bool {
        matches!(self.slot(index).phase, Phase::Bound)
    }

    /// Returns true if the device is in the bring-up and has no outcome.
    pub(super) fn is_unsettled(&self, index: u32) -> bool {
        let outcome = |place: u32| Some(&self.bring_up.as_ref()?.outcomes[place as usize]);
        matches!(self.slot(index).in_bring_up.and_then(outcome), Some(None))
    }

    /// Returns true if the device needs something outside the bring-up that is in progress.
    fn waits_for_others(&self, index: u32) -> bool {
        let other = |to: u32| self.slot(to).in_bring_up.is_none() && self.slot(to).is_in_progress();
        self.slot(index).needs.iter().filter_map(Link::device).any(other)
    }

    /// Returns true if the device lacks only optional needs: after the timeout it will be probed
    /// without them.
    pub(super) fn may_be_waived(&self, index: u32) -> bool {
        let met = |l: &Link| l.waived || l.device().is_some_and(|to| self.is_up(to));
        !self.hopeless && self.slot(index).needs.iter().all(|l| l.optional || met(l))
    }

    /// Records the outcome of a device, if it is in a bring-up.
    pub(super) fn note(
        &mut self,
        index: u32,
        outcome: ProbeOutcome,
        at: Duration,
        fx: &mut Effects,
    ) {
        if let Some(place) = self.slot(index).in_bring_up {
            self.note_at(place, outcome, at, fx);
            // The caller passes over it from now on, and would never come for it.
            self.leave_turn(index);
        }
    }

    fn note_at(&mut self, place: u32, outcome: ProbeOutcome, at: Duration, fx: &mut Effects) {
        let Some(bring_up) = &self.bring_up else { return };
        if bring_up.outcomes[place as usize].is_some() {
            return;
        }
        let record = self.record(place, &outcome, at);
        let Some(bring_up) = &mut self.bring_up else { return };
        let stops = matches!(&outcome, ProbeOutcome::Failed(_)) && !bring_up.options.keep_going;
        if stops && bring_up.stopped_by.is_none() {
            bring_up.stopped_by = Some(place);
        }
        let decl = bring_up.graph.decl(DeviceId(place)).clone();
        let told = record.outcome.clone();
        bring_up.records.push(record);
        bring_up.outcomes[place as usize] = Some(outcome);
        bring_up.left -= 1;
        bring_up.news = true;
        bring_up.untold += usize::from(bring_up.options.observed);
        if bring_up.options.observed {
            fx.finished.push((decl, told, bring_up.outcomes.len() - bring_up.left));
        }
    }

    /// Returns the record of a device that is being settled.
    fn record(&self, place: u32, outcome: &ProbeOutcome, at: Duration) -> Record {
        let (id, outcome) = (DeviceId(place), outcome.on_timeline());
        let bring_up = self.bring_up.as_ref().expect("only devices of a bring-up are noted");
        let since = |t: Duration| t.saturating_sub(bring_up.began);
        let Some(slot) = bring_up.keys[id.index()].and_then(|key| self.live(key)) else {
            return Record::instant(id, since(at), None, outcome, false);
        };
        let by = slot.released_by.and_then(|key| self.live(key)).and_then(|s| s.in_bring_up);
        let by = by.map(DeviceId);
        match &slot.phase {
            Phase::Probing(probing) => Record {
                device: id,
                queued: since(slot.queued),
                start: since(probing.since),
                end: since(at),
                site: Some(probing.site.clone()),
                released_by: by,
                outcome,
                no_callback: false,
            },
            _ => Record::instant(id, since(at), by, outcome, false),
        }
    }

    /// Returns the next step of the caller.
    pub(crate) fn caller_step(&mut self, now: Duration, fx: &mut Effects) -> CallerStep {
        loop {
            let Some(bring_up) = &mut self.bring_up else { return CallerStep::Done };
            bring_up.news = false;
            if bring_up.late && bring_up.options.on_hang != HangPolicy::WaitOn {
                self.give_up_overdue(true, now, fx);
            }
            if self.bring_up.as_ref().is_some_and(BringUpInProgress::stopping) {
                self.sweep(now, fx);
            }
            if let Some(step) = self.next_turn() {
                return step;
            }
            let Some(bring_up) = &self.bring_up else { return CallerStep::Done };
            if bring_up.left == 0 {
                return if bring_up.untold == 0 { CallerStep::Done } else { CallerStep::Wait };
            }
            // The observer gets an overdue device's name before the policy acts.
            let unnamed = bring_up.overdue > 0 && bring_up.untold > 0;
            if bring_up.active > bring_up.overdue || unnamed || !fx.is_empty() {
                return CallerStep::Wait;
            }
            let (overdue, policy) = (bring_up.overdue > 0, bring_up.options.on_hang);
            let unsettled: Vec<u32> = self.unsettled().collect();
            let others = unsettled.iter().any(|&i| self.waits_for_others(i));
            let retrying = self.late_worker || self.deferred.is_active();
            match stuck(others, retrying, self.deferring) {
                StuckAction::Wait => return CallerStep::Wait,
                StuckAction::BeginDeferral => self.begin_deferral(fx),
                StuckAction::Conclude if overdue && policy == HangPolicy::WaitOn => {
                    return CallerStep::Wait;
                }
                StuckAction::Conclude if overdue => {
                    self.give_up_overdue(policy == HangPolicy::GiveUp, now, fx);
                }
                StuckAction::Conclude => {
                    // Devices that others wait for come first.
                    let deferred = |i: &u32| matches!(self.slot(*i).phase, Phase::Deferred(_));
                    let (first, then): (Vec<u32>, Vec<u32>) =
                        unsettled.into_iter().partition(deferred);
                    for index in first.into_iter().chain(then) {
                        if self.is_unsettled(index) {
                            self.give_up(index, now, fx);
                        }
                    }
                }
            }
        }
    }

    /// Returns the synchronous device whose turn it is. While another one is before it and may
    /// still come, there is none. If only devices behind it are in progress, the first one waits
    /// for a deferred device, and they go before it.
    fn next_turn(&mut self) -> Option<CallerStep> {
        let bring_up = self.bring_up.as_mut()?;
        let slots = &mut self.slots;
        let at = loop {
            let &place = bring_up.turns.front()?;
            let key = bring_up.keys[place as usize]
                .filter(|_| bring_up.outcomes[place as usize].is_none());
            match key.map(|key| &mut slots[key.index as usize]) {
                Some(slot) if slot.in_turn && matches!(slot.phase, Phase::Ready) => break 0,
                // The probe may end elsewhere: the next one begins after its end, unless it is
                // late.
                Some(slot) if slot.phase.holds_turns() => return None,
                Some(slot) if slot.in_turn && matches!(slot.phase, Phase::Waiting) => {
                    if bring_up.ready_turns == 0
                        || bring_up.active > bring_up.ready_turns + bring_up.overdue
                    {
                        return None;
                    }
                    let is_ready = |&place: &u32| {
                        let slot =
                            bring_up.keys[place as usize].map(|key| &slots[key.index as usize]);
                        slot.is_some_and(|s| s.in_turn && matches!(s.phase, Phase::Ready))
                    };
                    break bring_up.turns.iter().position(is_ready)?;
                }
                Some(slot) => slot.in_turn = false,
                None => {}
            }
            bring_up.turns.pop_front();
        };
        // The device stays in its place until it is settled.
        let place = *bring_up.turns.get(at)?;
        bring_up.ready_turns -= 1;
        let key = bring_up.keys[place as usize]?;
        slots[key.index as usize].in_turn = false;
        Some(CallerStep::Run(self.due(key.index)))
    }

    /// Returns true if the caller of the bring-up has something to do.
    pub(crate) fn caller_is_wanted(&self) -> bool {
        let Some(bring_up) = &self.bring_up else { return false };
        let front = bring_up.turns.front().and_then(|&place| bring_up.keys[place as usize]);
        let front = front.map(|key| &self.slot(key.index).phase);
        let turn = front.is_some_and(|p| !matches!(p, Phase::Waiting) && !p.holds_turns());
        let only_these = bring_up.active == bring_up.ready_turns + bring_up.overdue;
        let helps = bring_up.options.helps;
        bring_up.news && (turn || only_these || helps || bring_up.late || bring_up.stopping())
    }

    /// Returns an asynchronous device that is queued, for a caller that would wait on a worker
    /// (step Help). Perhaps all other workers wait like that, and none would come for it.
    pub(crate) fn to_help_with(&self) -> Option<DueProbe> {
        let is_queued = |&index: &u32| {
            let slot = self.slot(index);
            matches!(slot.phase, Phase::Ready) && slot.candidates[slot.turn].asynchronous
        };
        let bring_up =
            self.bring_up.as_ref().filter(|b| b.options.helps && b.active > b.ready_turns)?;
        let left =
            bring_up.keys.iter().zip(&bring_up.outcomes).filter(|(_, outcome)| outcome.is_none());
        let mut left = left.filter_map(|(key, _)| key.map(|key| key.index));
        left.find(is_queued).map(|index| self.due(index))
    }

    /// Records that a device is queued, which a caller that helps may begin.
    pub(super) fn news_for_helper(&mut self) {
        if let Some(bring_up) = &mut self.bring_up {
            bring_up.news |= bring_up.options.helps;
        }
    }

    /// Records news for the caller of the bring-up.
    pub(crate) fn news(&mut self) {
        if let Some(bring_up) = &mut self.bring_up {
            bring_up.news = true;
        }
    }

    /// Counts probes of the bring-up that are past their deadline as failed (step Give up). They
    /// continue, and their late results count after all. `all`: nothing else is begun either.
    fn give_up_overdue(&mut self, all: bool, now: Duration, fx: &mut Effects) {
        let unsettled: Vec<u32> = self.unsettled().collect();
        if let Some(bring_up) = &mut self.bring_up {
            if all && !std::mem::replace(&mut bring_up.gave_up, true) {
                fx.gave_up = Some(bring_up.left);
            }
        }
        for index in unsettled {
            let Phase::Probing(probing) = &mut self.slot_mut(index).phase else { continue };
            if !probing.overdue {
                continue;
            }
            probing.given_up = true;
            let error = ProbeError::timed_out(now.saturating_sub(probing.since));
            self.note(index, ProbeOutcome::Failed(error), now, fx);
            self.waive_behind(index, now, fx);
            self.blame(index, now, fx);
            if let Some(bring_up) = &mut self.bring_up {
                bring_up.overdue -= 1;
            }
            self.left_progress(index, fx);
        }
    }

    /// Marks each device past its deadline (step Overdue). Returns them, and the time of the next
    /// check. The observer gets a report about those of the bring-up.
    pub(crate) fn overdue(
        &mut self,
        now: Duration,
        fx: &mut Effects,
    ) -> (Vec<OverdueDevice>, Option<Duration>) {
        let mut named = Vec::new();
        let mut next: Option<Duration> = None;
        let ends =
            self.bring_up.as_ref().and_then(|b| Some(b.began.saturating_add(b.options.timeout?)));
        let late = ends.is_some_and(|ends| ends <= now);
        next = next.into_iter().chain(ends.filter(|_| !late)).min();
        for index in (0u32..).take(self.slots.len()) {
            let own = self.slot(index).decl.as_ref().and_then(|d| d.probe_timeout);
            let limit = own.or(self.bring_up_timeout(index));
            let in_bring_up = self.slot(index).in_bring_up;
            let Phase::Probing(probing) = &mut self.slot_mut(index).phase else { continue };
            let ends = limit.map(|limit| probing.since.saturating_add(limit));
            let is_late = in_bring_up.is_some() && late || ends.is_some_and(|ends| ends <= now);
            if probing.overdue || !is_late {
                next = next.into_iter().chain(ends.filter(|_| !probing.overdue)).min();
                continue;
            }
            probing.overdue = true;
            let after = now.saturating_sub(probing.since);
            self.replace_late_worker(self.key(index), fx);
            named.extend(self.slot(index).decl.clone().map(|decl| OverdueDevice {
                decl,
                after,
                in_bring_up,
            }));
        }
        if let Some(bring_up) = &mut self.bring_up {
            bring_up.late |= late;
            bring_up.news = true;
            bring_up.named.extend(named.iter().filter_map(|n| n.in_bring_up));
            let news = named.iter().filter(|n| n.in_bring_up.is_some()).count();
            bring_up.overdue += news;
            bring_up.untold += if bring_up.options.observed { news } else { 0 };
        }
        (named, next.map(|at| at.saturating_sub(now)))
    }

    /// Treats every probe of the bring-up as if its time limit were zero.
    #[cfg(test)]
    pub(super) fn limit_all(&mut self) {
        if let Some(bring_up) = &mut self.bring_up {
            bring_up.options.device_timeout = Some(Duration::ZERO);
        }
    }

    /// Returns the deadline of the whole bring-up.
    pub(crate) fn bring_up_limit(&self) -> Option<Duration> {
        self.bring_up.as_ref()?.options.timeout
    }

    /// Cancels devices that are ready but not started, and those that wait. That includes queued
    /// ones, so the caller waits only for running probes.
    fn sweep(&mut self, now: Duration, fx: &mut Effects) {
        let unsettled: Vec<u32> = self.unsettled().collect();
        for index in unsettled {
            match self.slot(index).phase {
                _ if !self.is_unsettled(index) => {}
                Phase::Ready => {
                    self.leave_turn(index);
                    self.settle(index, ProbeOutcome::Cancelled, now, fx);
                }
                Phase::Deferred(_) => self.give_up(index, now, fx),
                _ => self.skip_if_hopeless(index, now, fx),
            }
        }
    }

    /// Removes a device from the turns, ready or not.
    pub(super) fn leave_turn(&mut self, index: u32) {
        let slot = self.slot_mut(index);
        let was_ready = matches!(slot.phase, Phase::Ready);
        if std::mem::take(&mut slot.in_turn) && was_ready {
            if let Some(bring_up) = &mut self.bring_up {
                bring_up.ready_turns -= 1;
            }
        }
    }

    /// Takes a device out of the bring-up, because another thread unbinds or removes it. If it has
    /// no outcome, it is cancelled.
    pub(super) fn withdraw_from_bring_up(&mut self, index: u32, now: Duration, fx: &mut Effects) {
        if self.is_unsettled(index) {
            self.note(index, ProbeOutcome::Cancelled, now, fx);
            self.blame(index, now, fx);
        }
        let slot = self.slot_mut(index);
        (slot.in_bring_up, slot.in_turn) = (None, false);
    }

    fn unsettled(&self) -> impl Iterator<Item = u32> + '_ {
        let bring_up = self.bring_up.iter();
        let open =
            bring_up.flat_map(|b| b.keys.iter().zip(&b.outcomes).filter(|(_, o)| o.is_none()));
        open.filter_map(|(key, _)| key.map(|key| key.index))
    }

    /// Begins deferral: deferred devices are retried, now and after each bind.
    pub(crate) fn begin_deferral(&mut self, fx: &mut Effects) {
        if std::mem::replace(&mut self.deferring, true) {
            return;
        }
        let active = self.deferred.enable();
        self.want_late_worker(active, fx);
    }

    /// Records that the observer has got `n` devices that are finished or overdue. The caller
    /// doesn't call this for none.
    pub(crate) fn told(&mut self, n: usize) {
        if let Some(bring_up) = &mut self.bring_up {
            bring_up.untold = bring_up.untold.saturating_sub(n);
            bring_up.news = true;
        }
    }

    /// Returns how long a probe that begins now may take before a look is needed.
    pub(super) fn time_left(&self, index: u32) -> Option<Duration> {
        let slot = self.slot(index);
        let late = slot.in_bring_up.is_some() && self.bring_up.as_ref().is_some_and(|b| b.late);
        let own = slot.decl.as_ref().and_then(|decl| decl.probe_timeout);
        if late { Some(Duration::ZERO) } else { own.or(self.bring_up_timeout(index)) }
    }

    fn bring_up_timeout(&self, index: u32) -> Option<Duration> {
        self.slot(index).in_bring_up.and(self.bring_up.as_ref()?.options.device_timeout)
    }

    /// Returns the result of the bring-up: only after the caller got `Done`.
    pub(crate) fn finish_bring_up(&mut self) -> Option<FinishedBringUp> {
        let bring_up = self.bring_up.take()?;
        for key in bring_up.keys.iter().flatten() {
            if self.live(*key).is_some() {
                let slot = self.slot_mut(key.index);
                (slot.in_bring_up, slot.in_turn, slot.open, slot.culprit) = (None, false, 0, None);
            }
        }
        let device = |(outcome, key): (Option<ProbeOutcome>, &Option<DeviceKey>)| {
            let outcome = outcome.expect("every device is settled when the caller is done");
            (outcome, key.map(|key| self.called(key)).unwrap_or_default())
        };
        let devices = bring_up.outcomes.into_iter().zip(&bring_up.keys).map(device).collect();
        Some(FinishedBringUp {
            graph: bring_up.graph,
            devices,
            records: bring_up.records,
            stopped_by: bring_up.stopped_by,
            overdue: bring_up.named,
            gave_up: bring_up.gave_up,
        })
    }

    /// Returns the number of devices of the bring-up in progress.
    pub(crate) fn bring_up_total(&self) -> usize {
        self.bring_up.as_ref().map_or(0, |b| b.outcomes.len())
    }
}

#[cfg(test)]
#[path = "bring_up_tests.rs"]
mod tests;
