//! The state of one bring-up: which devices wait, are ready, run, are settled. No threads here:
//! tests step it by hand, [`super::run`] drives it with workers.
//!
//! Guards: `I:` immutable, `L:` lock (what it guards is named). Lock order: `state` is taken last;
//! nothing is called while it is held.

use crate::counters::{Counters, Release, Settled};
use crate::driver::{Bound, ProbeError};
use crate::record::{Record, Site};
use crate::{Cancel, DeviceId, Graph, GraphError};
use corewise_sync::{Condvar, Mutex};
use corewise_timeline::Outcome;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

/// What became of a device in a bring-up.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ProbeOutcome {
    /// It is up.
    Bound,
    /// Its probe failed.
    Failed(ProbeError),
    /// It was not probed: something that it needs did not come up.
    Skipped {
        /// The device at the root of it, which failed or was rejected itself.
        culprit: String,
    },
    /// It was not probed: its declaration is at fault.
    Rejected(GraphError),
    /// It was not probed: the bring-up was cancelled, or stopped because another device failed.
    Cancelled,
}

impl ProbeOutcome {
    pub(super) fn on_timeline(&self) -> Outcome {
        match self {
            ProbeOutcome::Bound => Outcome::Ok,
            ProbeOutcome::Failed(error) => Outcome::Failed(error.to_string()),
            ProbeOutcome::Skipped { culprit } => {
                Outcome::Skipped(format!("needs \"{culprit}\", which did not come up"))
            }
            ProbeOutcome::Rejected(fault) => Outcome::Failed(fault.to_string()),
            ProbeOutcome::Cancelled => Outcome::Cancelled,
        }
    }
}

/// The bound parent and suppliers of a device, by name.
pub(crate) type Needs = Vec<(String, Arc<dyn Bound>)>;

/// What the caller of a step owes: devices to queue, and events to tell, both without the lock.
#[derive(Debug, Default)]
pub(crate) struct Effects {
    /// Asynchronous devices that became ready.
    pub queue: Vec<DeviceId>,
    /// Devices that are done with; the number counts them.
    pub finished: Vec<(DeviceId, Outcome, usize)>,
}

impl Effects {
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty() && self.finished.is_empty()
    }
}

/// What the caller of the bring-up does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallerStep {
    /// Probes this synchronous device.
    Run(DeviceId),
    /// Waits until something changes.
    Wait,
    /// Every device is settled.
    Done,
}

/// What is to be brought up, and how.
pub(crate) struct Plan {
    pub graph: Arc<Graph>,
    /// Bound objects of the devices of earlier bring-ups, which come first in the graph; `None`
    /// for those that did not come up. Kept until the bring-up is over, no longer.
    pub prior: Vec<Option<Arc<dyn Bound>>>,
    /// Per device: whether it probes asynchronously.
    pub is_async: Vec<bool>,
    /// The faults of rejected devices, where each can be told from the graph.
    pub faults: Vec<GraphError>,
    /// Whether others go on when one fails.
    pub keep_going: bool,
    /// Stops the start of further probes.
    pub cancel: Cancel,
    /// Somebody is told about finished devices: the bring-up ends after the last telling.
    pub observed: bool,
}

/// One bring-up.
pub(crate) struct ProbeState {
    /// I: what is to be done.
    plan: Plan,
    /// I: the first of `plan.faults` that is about a device, by its index among the new ones.
    fault_of: HashMap<usize, usize>,
    /// I: which devices of earlier bring-ups are up. Not their objects: a worker that lets go of
    /// this late must not be the one that drops them.
    prior_up: Vec<bool>,
    /// I: the counters are atomic themselves.
    counters: Counters,
    /// L: is the lock; guards all that changes but the counters.
    state: Mutex<State>,
    /// L: with `state`; the caller waits here.
    changed: Condvar,
}

struct State {
    slots: Vec<Slot>,
    /// Synchronous devices that were not started, in their order.
    sync_order: VecDeque<DeviceId>,
    /// Devices of this bring-up that are not settled.
    left: usize,
    total: usize,
    /// Finished devices that the observer was not told about yet.
    untold: usize,
    /// The failure that stopped the bring-up.
    stopped_by: Option<DeviceId>,
    records: Vec<Record>,
}

struct Slot {
    phase: Phase,
    queued: Duration,
    released_by: Option<DeviceId>,
    bound: Option<Arc<dyn Bound>>,
    outcome: Option<ProbeOutcome>,
}

enum Phase {
    /// Something that it needs is not settled.
    Waiting,
    /// It may start.
    Ready,
    /// Its probe is being called.
    Running { start: Duration, site: Site },
    /// It has its outcome.
    Settled,
}

/// What a finished bring-up leaves.
pub(crate) struct Finished {
    /// Per device of this bring-up: its outcome and its bound object.
    pub devices: Vec<(ProbeOutcome, Option<Arc<dyn Bound>>)>,
    pub records: Vec<Record>,
    pub stopped_by: Option<DeviceId>,
}

impl ProbeState {
    pub(crate) fn new(mut plan: Plan) -> ProbeState {
        let prior = std::mem::take(&mut plan.prior);
        let graph = &plan.graph;
        let first = prior.len();
        let needs = |d: DeviceId| u32::try_from(graph.needs(d).len()).expect("as many as devices");
        let counters = Counters::new(graph.ids().map(needs));
        let is_new_sync = |d: &DeviceId| {
            d.index() >= first && !plan.is_async[d.index()] && !graph.is_rejected(*d)
        };
        // In base order, so that no synchronous device stands before one that it needs: however
        // they are registered, the first one that was not started never waits for a later one.
        let sync_order = graph.order().iter().copied().filter(is_new_sync).collect();
        let mut slots: Vec<Slot> = Vec::with_capacity(graph.len());
        let prior_up = prior.iter().map(Option::is_some).collect();
        slots.extend(prior.into_iter().map(|bound| Slot {
            phase: Phase::Settled,
            queued: Duration::ZERO,
            released_by: None,
            bound,
            outcome: None,
        }));
        slots.extend((first..graph.len()).map(|_| Slot {
            phase: Phase::Waiting,
            queued: Duration::ZERO,
            released_by: None,
            bound: None,
            outcome: None,
        }));
        let total = graph.len() - first;
        let records = Vec::with_capacity(total);
        let state =
            State { slots, sync_order, left: total, total, untold: 0, stopped_by: None, records };
        let mut fault_of = HashMap::new();
        for (place, fault) in plan.faults.iter().enumerate() {
            for device in fault.devices() {
                fault_of.entry(device).or_insert(place);
            }
        }
        let (state, changed) = (Mutex::new(state), Condvar::new());
        ProbeState { counters, state, changed, plan, fault_of, prior_up }
    }

    pub(crate) fn graph(&self) -> &Arc<Graph> {
        &self.plan.graph
    }

    pub(crate) fn cancel(&self) -> &Cancel {
        &self.plan.cancel
    }

    /// How many devices this bring-up has.
    pub(crate) fn total(&self) -> usize {
        self.plan.graph.len() - self.prior_up.len()
    }

    /// Seeds the counters: what needs nothing becomes ready, what is rejected is settled. Called
    /// once, before any other step.
    pub(crate) fn seed(&self, now: Duration, fx: &mut Effects) {
        let st = &mut *self.state.lock();
        for id in self.plan.graph.ids() {
            let release = self.counters.seed(id.0);
            if release != Release::Waiting {
                match self.settle(st, id, None, release, now, fx) {
                    Settled::Queued => {}
                    Settled::Done => self.cascade(st, id, None, now, fx),
                    Settled::Failed(culprit) => self.cascade(st, id, Some(culprit), now, fx),
                }
            }
        }
    }

    /// A worker (or the caller) is about to probe `id`. Returns what the device needs, or `None`
    /// where it is not to be probed any more: it was or is now cancelled.
    pub(crate) fn begin(
        &self,
        id: DeviceId,
        site: Site,
        now: Duration,
        fx: &mut Effects,
    ) -> Option<Needs> {
        let st = &mut *self.state.lock();
        if !matches!(st.slots[id.index()].phase, Phase::Ready) {
            return None;
        }
        if self.stopping(st) {
            self.conclude(st, id, ProbeOutcome::Cancelled, now, fx);
            self.cascade(st, id, None, now, fx);
            self.wake_caller(st);
            return None;
        }
        st.slots[id.index()].phase = Phase::Running { start: now, site };
        let bound = |&need: &DeviceId| {
            let bound = st.slots[need.index()].bound.clone();
            (
                self.plan.graph.name(need).to_string(),
                bound.expect("a device is ready when all that it needs is bound"),
            )
        };
        Some(self.plan.graph.needs(id).iter().map(bound).collect())
    }

    /// The probe of `id` was over at `at`, or will never be called (its worker is gone: an error).
    pub(crate) fn end(
        &self,
        id: DeviceId,
        result: Result<Arc<dyn Bound>, ProbeError>,
        at: Duration,
        clock: impl Fn() -> Duration,
        fx: &mut Effects,
    ) {
        let st = &mut *self.state.lock();
        // There are no slots any more where the whole bring-up is over, and a completion came late.
        let over = st.slots.get(id.index()).is_none_or(|slot| matches!(slot.phase, Phase::Settled));
        if over {
            return;
        }
        // What this releases is released now, under the lock: another thread's probe may have ended
        // after `at`, and have come first.
        let now = clock();
        let culprit = match result {
            Ok(bound) => {
                st.slots[id.index()].bound = Some(bound);
                self.conclude(st, id, ProbeOutcome::Bound, at, fx);
                None
            }
            Err(error) => {
                if !self.plan.keep_going && st.stopped_by.is_none() {
                    st.stopped_by = Some(id);
                }
                self.conclude(st, id, ProbeOutcome::Failed(error), at, fx);
                Some(id.0)
            }
        };
        self.cascade(st, id, culprit, now, fx);
        self.wake_caller(st);
    }

    /// What the caller does now; never blocks.
    pub(crate) fn caller_step(&self, now: Duration, fx: &mut Effects) -> CallerStep {
        self.step(&mut self.state.lock(), now, fx)
    }

    /// As [`ProbeState::caller_step`], but waits until there is something to do: `Wait` is
    /// returned only together with effects.
    pub(crate) fn caller_wait(&self, clock: impl Fn() -> Duration, fx: &mut Effects) -> CallerStep {
        let mut st = self.state.lock();
        loop {
            let step = self.step(&mut st, clock(), fx);
            if step != CallerStep::Wait || !fx.is_empty() {
                return step;
            }
            st = self.changed.wait(st);
        }
    }

    fn step(&self, st: &mut State, now: Duration, fx: &mut Effects) -> CallerStep {
        if self.stopping(st) {
            self.sweep(st, now, fx);
        }
        while let Some(&id) = st.sync_order.front() {
            match st.slots[id.index()].phase {
                Phase::Settled => drop(st.sync_order.pop_front()),
                Phase::Ready => {
                    st.sync_order.pop_front();
                    return CallerStep::Run(id);
                }
                Phase::Waiting | Phase::Running { .. } => return CallerStep::Wait,
            }
        }
        if st.left == 0 && st.untold == 0 { CallerStep::Done } else { CallerStep::Wait }
    }

    /// The observer was told about `n` finished devices. Not called where there is none.
    pub(crate) fn told(&self, n: usize) {
        let mut st = self.state.lock();
        st.untold -= n;
        if st.untold == 0 {
            self.wake_caller(&st);
        }
    }

    /// Everything that is over: only after the caller was told `Done`.
    pub(crate) fn finish(&self) -> Finished {
        let mut st = self.state.lock();
        let slots = st.slots.drain(..).skip(self.prior_up.len());
        let outcome = |slot: Slot| {
            (slot.outcome.expect("every device is settled when the caller is done"), slot.bound)
        };
        let devices = slots.map(outcome).collect();
        let records = std::mem::take(&mut st.records);
        Finished { devices, records, stopped_by: st.stopped_by }
    }

    fn stopping(&self, st: &State) -> bool {
        st.stopped_by.is_some() || self.plan.cancel.is_cancelled()
    }

    /// Cancels whatever is ready but was not started: also what sits in a queue, so that the caller
    /// waits only for probes that run.
    fn sweep(&self, st: &mut State, now: Duration, fx: &mut Effects) {
        for id in self.plan.graph.ids() {
            if matches!(st.slots[id.index()].phase, Phase::Ready) {
                self.conclude(st, id, ProbeOutcome::Cancelled, now, fx);
                self.cascade(st, id, None, now, fx);
            }
        }
    }

    /// Releases those behind a settled device, and settles what will not be probed.
    fn cascade(
        &self,
        st: &mut State,
        id: DeviceId,
        culprit: Option<u32>,
        now: Duration,
        fx: &mut Effects,
    ) {
        let graph = &self.plan.graph;
        let feeds = |d: u32| graph.feeds(DeviceId(d));
        self.counters.finish(id.0, culprit, &mut Vec::new(), feeds, |device, by, release| {
            self.settle(st, DeviceId(device), Some(DeviceId(by)), release, now, fx)
        });
    }

    /// Decides about a device that was just released.
    fn settle(
        &self,
        st: &mut State,
        id: DeviceId,
        by: Option<DeviceId>,
        release: Release,
        now: Duration,
        fx: &mut Effects,
    ) -> Settled {
        if let Some(&up) = self.prior_up.get(id.index()) {
            return if up { Settled::Done } else { Settled::Failed(id.0) };
        }
        let slot = &mut st.slots[id.index()];
        slot.queued = now;
        slot.released_by = by;
        if self.plan.graph.is_rejected(id) {
            self.conclude(st, id, self.rejection(id), now, fx);
            return Settled::Failed(id.0);
        }
        match release {
            Release::Blamed(culprit) => {
                let name = self.plan.graph.name(DeviceId(culprit)).to_string();
                self.conclude(st, id, ProbeOutcome::Skipped { culprit: name }, now, fx);
                Settled::Failed(culprit)
            }
            Release::Ready | Release::Waiting if self.stopping(st) => {
                self.conclude(st, id, ProbeOutcome::Cancelled, now, fx);
                Settled::Done
            }
            Release::Ready | Release::Waiting => {
                st.slots[id.index()].phase = Phase::Ready;
                if self.plan.is_async[id.index()] {
                    fx.queue.push(id);
                }
                Settled::Queued
            }
        }
    }

    fn rejection(&self, id: DeviceId) -> ProbeOutcome {
        let device = id.index() - self.prior_up.len();
        let fault = self.fault_of.get(&device).map(|&place| self.plan.faults[place].clone());
        ProbeOutcome::Rejected(fault.expect("a rejected device has a fault"))
    }

    /// Gives a device its outcome.
    fn conclude(
        &self,
        st: &mut State,
        id: DeviceId,
        outcome: ProbeOutcome,
        now: Duration,
        fx: &mut Effects,
    ) {
        let slot = &mut st.slots[id.index()];
        let on_timeline = outcome.on_timeline();
        let phase = std::mem::replace(&mut slot.phase, Phase::Settled);
        st.records.push(match phase {
            Phase::Running { start, site } => Record {
                device: id,
                queued: slot.queued,
                start,
                end: now,
                site: Some(site),
                released_by: slot.released_by,
                outcome: on_timeline.clone(),
                no_callback: false,
            },
            _ => Record::instant(id, now, slot.released_by, on_timeline.clone(), false),
        });
        slot.outcome = Some(outcome);
        st.left -= 1;
        st.untold += usize::from(self.plan.observed);
        fx.finished.push((id, on_timeline, st.total - st.left));
    }

    /// Wakes the caller where it has something to do.
    fn wake_caller(&self, st: &State) {
        let front = st.sync_order.front().map(|id| &st.slots[id.index()].phase);
        let sync = matches!(front, Some(Phase::Ready | Phase::Settled));
        if sync || st.left == 0 || self.stopping(st) {
            self.changed.notify_all();
        }
    }
}

impl crate::cancel::Listener for ProbeState {
    fn cancelled(&self) {
        let _st = self.state.lock();
        self.changed.notify_all();
    }
}

#[cfg(test)]
#[path = "state_tests.rs"]
mod tests;
