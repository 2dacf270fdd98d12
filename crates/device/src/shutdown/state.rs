//! The state of one shutdown: what is ready, who runs it, when a helper is asked for. No threads
//! and no clock here: tests step it by hand, [`super::run`] drives it.
//!
//! `README.md` beside this file has the states and the argument why nobody waits for something that
//! can't come. Guards: `I:` immutable, `L:` lock (what it guards is named). Lock order: `state` is
//! taken last; nothing is called while it is held.

use super::counted::Counted;
use super::plan::{Kind, ShutdownPlan};
use super::policy::{self, HelperRole, Load, SLOW};
use super::report::Notes;
use crate::driver::Bound;
use crate::record::{Record, Site};
use crate::{Cancel, DeviceId, Graph};
use corewise_sync::{Condvar, Mutex};
use corewise_timeline::Outcome;
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// How many asynchronous devices the caller looks at for one that it may help with.
const LOOK_AT: usize = 64;

/// One shutdown.
pub(crate) struct ShutdownState {
    /// I: who needs whom.
    pub(super) graph: Arc<Graph>,
    /// I: the snapshot.
    pub(super) kinds: Vec<Kind>,
    /// I: how many devices have a callback.
    pub(super) total: usize,
    /// I: CPUs that work may run on.
    pub(super) cpus: usize,
    /// I: switches itself.
    pub(super) abort: Cancel,
    /// I: somebody is told about finished callbacks.
    pub(super) observed: bool,
    /// I: once made, see [`ShutdownState::count`]; made under the lock, or before anybody else knows
    /// of this shutdown.
    pub(super) counted: OnceLock<Counted>,
    /// L: is the lock; guards all that changes but the counters.
    pub(super) state: Mutex<State>,
    /// L: with `state`; the caller waits here.
    pub(super) caller: Condvar,
    /// L: with `state`; the watching helper waits here.
    pub(super) watcher: Condvar,
}

pub(super) struct State {
    pub(super) bound: Vec<Option<Arc<dyn Bound>>>,
    /// Ready devices by rank in base order; the last one goes first.
    pub(super) sync: BTreeMap<u32, Ready>,
    pub(super) asyncs: BTreeMap<u32, Ready>,
    pub(super) running: Vec<Running>,
    /// Devices with a callback that is not over.
    pub(super) left: usize,
    /// Those of the others that the observer was not told about yet.
    pub(super) untold: usize,
    /// Synchronous ones among them, by number and by bit.
    pub(super) sync_left: usize,
    pub(super) sync_mask: u64,
    /// Asynchronous ones among them that the serial loop has not begun.
    pub(super) async_left: usize,
    /// How many of the notes are the serial loop's, which counts nothing.
    pub(super) looped: usize,
    /// How long callbacks took, together.
    pub(super) busy: Duration,
    pub(super) caller: CallerRests,
    /// A helper looks at the clock.
    pub(super) watched: bool,
    pub(super) helpers: usize,
    pub(super) coming: usize,
    pub(super) asked: usize,
    pub(super) cap: usize,
    pub(super) target: usize,
    pub(super) slow_seen: bool,
    pub(super) records: Vec<Record>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallerRests {
    No,
    /// Until it is woken.
    Asleep,
    /// It looks at the clock too.
    Watching,
}

#[derive(Clone, Debug)]
pub(super) struct Ready {
    pub(super) device: DeviceId,
    pub(super) queued: Duration,
    pub(super) by: Option<DeviceId>,
}

pub(super) struct Running {
    pub(super) ready: Ready,
    pub(super) since: Duration,
    pub(super) site: Site,
    /// Its callback has returned, but it is not over: no thread is in it.
    pub(super) detached: bool,
}

/// A callback to be called.
pub(crate) struct Task {
    pub device: DeviceId,
    pub bound: Arc<dyn Bound>,
}

/// A callback that is over.
pub(crate) struct Ended {
    pub device: DeviceId,
    pub outcome: Outcome,
    pub at: Duration,
}

/// Room for a step to work in, kept by each thread from step to step.
#[derive(Default)]
pub(crate) struct Scratch {
    pub(super) ready: Vec<Ready>,
    pub(super) records: Vec<Record>,
    pub(super) stack: Vec<(u32, Option<u32>)>,
}

/// What the caller does next.
pub(crate) enum CallerStep {
    /// Calls this back.
    Run(Task),
    /// Waits: until woken, or for that long at most.
    Wait(Option<Duration>),
    /// Everything is shut down.
    Done,
    /// The rest is left undone.
    Aborted,
}

/// What a helper does next.
pub(crate) enum HelperStep {
    /// Calls this back.
    Run(Task),
    /// Waits that long and asks again.
    Watch(Duration),
    /// Goes home.
    Leave,
}

/// What whoever made a step owes to the others, without the lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use]
pub(crate) struct Owed {
    /// That many helpers are to be asked for.
    pub helpers: usize,
    /// The caller is to be woken.
    pub wake: bool,
    /// How many callbacks are over now.
    pub done: usize,
}

/// What a shutdown leaves.
pub(crate) struct Finished {
    pub notes: Notes,
    /// By device.
    pub bound: Vec<Option<Arc<dyn Bound>>>,
}

impl ShutdownState {
    pub(crate) fn new(plan: ShutdownPlan) -> ShutdownState {
        let ShutdownPlan { graph, bound, kinds, cpus, max_helpers: cap, abort, observed } = plan;
        let number = |kind| kinds.iter().filter(|k| **k == kind).count();
        let (sync_left, async_left) = (number(Kind::Sync), number(Kind::Async));
        let total = sync_left + async_left;
        let state = State {
            bound,
            sync: BTreeMap::new(),
            asyncs: BTreeMap::new(),
            running: Vec::new(),
            left: total,
            untold: 0,
            sync_left,
            sync_mask: 0,
            async_left,
            looped: 0,
            busy: Duration::ZERO,
            caller: CallerRests::No,
            watched: false,
            helpers: 0,
            coming: 0,
            asked: 0,
            cap,
            target: cpus.max(2),
            slow_seen: false,
            records: Vec::with_capacity(kinds.len()),
        };
        ShutdownState {
            graph,
            kinds,
            total,
            cpus,
            abort,
            observed,
            counted: OnceLock::new(),
            state: Mutex::new(state),
            caller: Condvar::new(),
            watcher: Condvar::new(),
        }
    }

    /// The snapshot.
    pub(crate) fn kinds(&self) -> &[Kind] {
        &self.kinds
    }

    pub(crate) fn graph(&self) -> &Arc<Graph> {
        &self.graph
    }

    /// Whether the counting has begun. Decided under the lock.
    pub(super) fn is_counted(&self) -> bool {
        self.counted.get().is_some()
    }

    pub(super) fn counted(&self) -> &Counted {
        self.counted.get().expect("nothing is released or taken before the counting has begun")
    }

    pub(super) fn is_aborted(&self) -> bool {
        self.abort.is_cancelled()
    }

    pub(super) fn is_observed(&self) -> bool {
        self.observed
    }

    /// How many devices have a callback.
    pub(crate) fn total(&self) -> usize {
        self.total
    }

    /// The caller's step. `ended` is what it ran before; `waited` says that its last wait took its
    /// whole time.
    pub(crate) fn caller_step(
        &self,
        now: Duration,
        ended: Option<Ended>,
        site: &Site,
        waited: bool,
        scratch: &mut Scratch,
    ) -> (CallerStep, Owed) {
        let mut st = self.conclude(ended, scratch);
        st.caller = CallerRests::No;
        let step = if st.is_over() {
            CallerStep::Done
        } else if self.abort.is_cancelled() {
            CallerStep::Aborted
        } else if let Some((_, ready)) = st.next_sync(&self.kinds) {
            CallerStep::Run(st.start(ready, now, site))
        } else if let Some(rank) = self.pick_for_caller(&st, waited) {
            let ready = st.asyncs.remove(&rank).expect("it was picked under this lock");
            CallerStep::Run(st.start(ready, now, site))
        } else if st.asyncs.is_empty() {
            st.caller = CallerRests::Asleep;
            CallerStep::Wait(None)
        } else {
            // Whoever is to take these may not come: then the caller takes them after all.
            st.caller = CallerRests::Watching;
            CallerStep::Wait(Some(SLOW))
        };
        let owed = self.owed(&mut st, now);
        (step, owed)
    }

    /// Waits, as [`CallerStep::Wait`] asked: until there may be something to do. Returns whether it
    /// took its whole time.
    pub(crate) fn caller_wait(&self, limit: Option<Duration>) -> bool {
        let mut st = self.state.lock();
        // Somebody may have had something for the caller since it stepped: then it is not resting
        // any more, see `owed`.
        while st.caller != CallerRests::No && !self.abort.is_cancelled() {
            match limit {
                None => st = self.caller.wait(st),
                Some(limit) => {
                    let (guard, timed_out) = self.caller.wait_timeout(st, limit);
                    st = guard;
                    if timed_out {
                        return st.caller != CallerRests::No;
                    }
                }
            }
        }
        false
    }

    /// Wakes the caller where a step said so.
    pub(crate) fn wake_caller(&self) {
        self.caller.notify_all();
    }

    /// A helper that was asked for is here.
    pub(crate) fn helper_comes(&self) {
        let mut st = self.state.lock();
        st.coming = st.coming.saturating_sub(1);
        st.helpers += 1;
    }

    /// A helper that was asked for will never come: the caller does without.
    pub(crate) fn helper_lost(&self) {
        let mut st = self.state.lock();
        st.coming = st.coming.saturating_sub(1);
        st.cap = 0;
        st.caller = CallerRests::No;
        drop(st);
        self.wake_caller();
    }

    /// A helper's step. `ended` is what it ran before; `watched` says that it was the watcher.
    pub(crate) fn helper_step(
        &self,
        now: Duration,
        ended: Option<Ended>,
        site: &Site,
        watched: bool,
        scratch: &mut Scratch,
    ) -> (HelperStep, Owed) {
        let mut st = self.conclude(ended, scratch);
        if watched {
            st.watched = false;
        }
        let load = st.observe(now, self.cpus);
        let role =
            if self.abort.is_cancelled() { HelperRole::Leave } else { policy::helper_role(&load) };
        let step = match role {
            HelperRole::Run => {
                let (_, ready) = st.asyncs.pop_last().expect("there is a backlog");
                HelperStep::Run(st.start(ready, now, site))
            }
            HelperRole::Watch => {
                st.watched = true;
                let turns_slow = |r: &Running| (r.since + SLOW).checked_sub(now);
                let next = st.running.iter().filter_map(turns_slow).filter(|d| !d.is_zero()).min();
                HelperStep::Watch(next.unwrap_or(SLOW))
            }
            HelperRole::Leave => {
                st.helpers -= 1;
                HelperStep::Leave
            }
        };
        let owed = self.owed(&mut st, now);
        (step, owed)
    }

    /// Waits, as [`HelperStep::Watch`] asked.
    pub(crate) fn helper_wait(&self, limit: Duration) {
        let st = self.state.lock();
        if st.watched && !self.abort.is_cancelled() {
            drop(self.watcher.wait_timeout(st, limit));
        }
    }

    /// An asynchronous device that the caller may run now, see [`policy::caller_may_help`].
    fn pick_for_caller(&self, st: &State, waited: bool) -> Option<u32> {
        let &last = st.asyncs.last_key_value()?.0;
        // Helpers that don't come, or may not come, leave it to the caller.
        let forsaken = waited && (st.coming > 0 || st.helpers >= st.cap);
        let alone = st.asyncs.len() == 1 && st.running.is_empty();
        if forsaken || policy::caller_may_help(st.sync_left, alone, None, None) || st.cap == 0 {
            return Some(last);
        }
        let below = self.counted().below.as_ref()?;
        let may = |ready: &Ready| {
            let mask = below.masks[ready.device.index()];
            policy::caller_may_help(st.sync_left, alone, Some(mask), Some(st.sync_mask))
        };
        st.asyncs.iter().rev().take(LOOK_AT).find(|(_, ready)| may(ready)).map(|(&rank, _)| rank)
    }

    /// What the step that was just made owes to others.
    pub(super) fn owed(&self, st: &mut State, now: Duration) -> Owed {
        let sync = !st.sync.is_empty() && !st.awaits_sync(&self.kinds);
        let own = st.is_over() || sync || self.abort.is_cancelled();
        let helps = !own && self.pick_for_caller(st, false).is_some();
        // A caller that sleeps is woken for a backlog too: to watch that somebody comes for it.
        let watches = st.caller == CallerRests::Asleep && !st.asyncs.is_empty();
        let wake = st.caller != CallerRests::No && (own || helps || watches);
        if wake {
            st.caller = CallerRests::No;
        }
        let mut load = st.observe(now, self.cpus);
        load.backlog -= usize::from(wake && helps);
        let helpers = if self.abort.is_cancelled() { 0 } else { policy::helpers_to_ask(&load) };
        st.coming += helpers;
        st.asked += helpers;
        Owed { helpers, wake, done: self.total - st.left }
    }
}

impl State {
    pub(super) fn take_in(&mut self, graph: &Graph, kinds: &[Kind], scratch: &mut Scratch) {
        self.records.append(&mut scratch.records);
        for ready in scratch.ready.drain(..) {
            let rank = graph.rank(ready.device);
            match kinds[ready.device.index()] {
                Kind::Sync => self.sync.insert(rank, ready),
                _ => self.asyncs.insert(rank, ready),
            };
        }
    }

    /// The synchronous device that is next.
    fn next_sync(&mut self, kinds: &[Kind]) -> Option<(u32, Ready)> {
        if self.sync.is_empty() || self.awaits_sync(kinds) {
            return None;
        }
        self.sync.pop_last()
    }

    /// A synchronous device is not over, although its callback has returned: no other one begins.
    fn awaits_sync(&self, kinds: &[Kind]) -> bool {
        self.running.iter().any(|r| r.detached && kinds[r.ready.device.index()] == Kind::Sync)
    }

    pub(super) fn is_over(&self) -> bool {
        self.left == 0 && self.untold == 0
    }

    /// The thread may have looked at its clock before another one released the device.
    pub(super) fn start(&mut self, ready: Ready, now: Duration, site: &Site) -> Task {
        let (device, now) = (ready.device, now.max(ready.queued));
        let bound = self.bound[device.index()].clone();
        self.running.push(Running { ready, since: now, site: site.clone(), detached: false });
        Task { device, bound: bound.expect("a device with a callback is bound") }
    }

    pub(super) fn record_end(&mut self, ended: Ended) {
        let of = |r: &Running| r.ready.device == ended.device;
        let index = self.running.iter().position(of).expect("it was started");
        let running = self.running.swap_remove(index);
        let took = ended.at.saturating_sub(running.since);
        self.slow_seen |= took >= SLOW;
        self.busy += took;
        self.records.push(running.record(ended.at, ended.outcome));
    }

    /// The load now; raises the target where callbacks block.
    fn observe(&mut self, now: Duration, cpus: usize) -> Load {
        let inside = self.running.iter().filter(|r| !r.detached);
        let (mut running, mut blocked) = (0, 0);
        for r in inside {
            running += 1;
            blocked += usize::from(now.saturating_sub(r.since) >= SLOW);
        }
        self.slow_seen |= blocked > 0;
        let mut load = Load {
            backlog: self.asyncs.len(),
            running,
            blocked,
            target: self.target,
            helpers: self.helpers,
            coming: self.coming,
            cap: self.cap,
            watched: self.watched || self.caller == CallerRests::Watching,
            slow_seen: self.slow_seen,
        };
        self.target = policy::raised_target(&load, cpus);
        load.target = self.target;
        load
    }
}

impl Running {
    pub(super) fn record(&self, end: Duration, outcome: Outcome) -> Record {
        Record {
            device: self.ready.device,
            queued: self.ready.queued,
            start: self.since,
            end,
            site: Some(self.site.clone()),
            released_by: self.ready.by,
            outcome,
            no_callback: false,
        }
    }
}

impl crate::cancel::Listener for ShutdownState {
    fn cancelled(&self) {
        let _st = self.state.lock();
        self.caller.notify_all();
        self.watcher.notify_all();
    }
}

#[cfg(test)]
#[path = "state_tests.rs"]
mod tests;
