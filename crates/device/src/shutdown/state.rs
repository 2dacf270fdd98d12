//! The state of one shutdown: which devices are ready, which thread runs them, and when a helper is
//! asked for. It has neither threads nor clock: tests step it by hand, [`super::run`] drives it.
//!
//! `README.md` beside this file has the states and the argument why no thread waits for an event
//! that can't come. Guards: `I:` immutable, `A:` atomic itself, `L:` lock (its data is named). Lock
//! order: `state` is taken last; nothing is called while it is held.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use corewise_sync::sys::Tid;
use corewise_sync::{Condvar, Mutex, RwLock};
use corewise_timeline::Outcome;
use corewise_topology::CpuId;

use super::batch::CallbackBatch;
use super::hang::{HangReport, LateDevice, Pauses};
use super::looped::{CountedState, ReadyQueue, Urgency};
use super::options::{Kind, Outline, ShutdownPlan, Timeouts};
use super::policy;
use super::policy::{HelperRole, Load, SLOW};
use crate::bound::Bound;
use crate::event::{Cancel, Listener};
use crate::graph::{DeviceId, Graph};
use crate::record::Site;
use crate::takeover::Walk;

/// Number of asynchronous devices that the caller checks for one that it may help with.
const LOOK_AT: usize = 64;

/// One shutdown.
pub(crate) struct ShutdownState {
    /// I: the devices to be called.
    pub(super) outline: Arc<Outline>,
    /// I: CPUs that work may run on.
    pub(super) cpus: usize,
    /// I: the switches.
    pub(super) abort: Cancel,
    /// I: true if an observer gets finished callbacks.
    pub(super) observed: bool,
    /// I: deadlines, and the policy past them.
    pub(super) timeouts: Timeouts,
    /// I: by device, the expected time of the longest chain behind it, if that is known.
    pub(super) paths: Option<Vec<u64>>,
    /// L: is the lock; guards the objects, by device, until they are given back at the end. Taken
    /// after `state`.
    pub(super) bound: RwLock<Vec<Option<Arc<dyn Bound>>>>,
    /// A: itself; the position of the loop.
    pub(super) walk: Arc<Walk>,
    /// I: once made, see [`ShutdownState::count`]; made under the lock.
    pub(super) counted: OnceLock<CountedState>,
    /// L: is the lock; guards all changing state except the counters, the walks and the objects.
    pub(super) state: Mutex<ProgressState>,
    /// L: with `state`; the caller waits here, and so does a thread that waits for the end.
    pub(super) caller: Condvar,
    /// L: with `state`; the watching helper waits here.
    pub(super) watcher: Condvar,
}

pub(super) struct ProgressState {
    /// Site of the loop, once it was asked to begin.
    pub(super) loop_site: Option<Site>,
    /// The system's number of its thread.
    pub(super) loop_thread: Option<Tid>,
    /// True if the loop left before its end.
    pub(super) loop_left: bool,
    /// True if the loop waits for a callback that has returned.
    pub(super) loop_detached: bool,
    /// Ends of callbacks that had returned before, left to the walkers that called them.
    pub(super) walk_later: Vec<EndedCallback>,
    /// Failures in a walk: the loop, or a batch.
    pub(super) walk_failed: Vec<(DeviceId, String)>,
    /// Ready devices by rank in base order; the last one goes first.
    pub(super) sync: BTreeMap<u32, DeviceId>,
    /// Asynchronous devices likewise, except that those with the longest path come first.
    pub(super) asyncs: ReadyQueue,
    /// Batches that threads are in, or have not reported as over.
    pub(super) walks: Vec<Arc<CallbackBatch>>,
    /// Batches that are over, or were taken over, each with the number of its callbacks that were
    /// over.
    pub(super) walked: Vec<(Arc<CallbackBatch>, usize)>,
    /// True if a callback returned before its device was over: a batch would be given back each
    /// time.
    pub(super) later_seen: bool,
    /// True if the watch checks whether a batch is held up.
    pub(super) looked_at: bool,
    pub(super) running: Vec<RunningCallback>,
    /// Pauses of this process.
    pub(super) pauses: Pauses,
    /// Devices that were skipped and have not ended, each with the start of its callback.
    pub(super) skipped: Vec<(DeviceId, Duration)>,
    /// Devices that were late, in the order of detection.
    pub(super) late: Vec<LateDevice>,
    /// Number of running callbacks that are late.
    pub(super) overdue: usize,
    /// True if the whole shutdown was found late.
    pub(super) run_is_late: bool,
    /// True if late callbacks made the shutdown leave the rest undone.
    pub(super) gave_up: bool,
    /// Events that the observer has not got yet.
    pub(super) news: Vec<HangReport>,
    /// True while a thread reports events; afterwards it comes back for new ones.
    pub(super) telling: bool,
    /// Number of devices with a callback that is not over, since the counting has begun.
    pub(super) left: usize,
    /// Number of the others that the observer has not got yet.
    pub(super) untold: usize,
    /// Synchronous ones among them, by number and by bit.
    pub(super) sync_left: usize,
    pub(super) sync_mask: u64,
    pub(super) caller: CallerRests,
    /// Number of the thread that has the caller's part: the first, or one of its deputies.
    pub(super) lead: u64,
    /// The device whose callback that thread is in.
    pub(super) lead_in: Option<DeviceId>,
    /// True if that part is over.
    pub(super) lead_is_through: bool,
    /// True if a thread sleeps until the end.
    pub(super) end_is_awaited: bool,
    /// True if a helper checks the clock.
    pub(super) watched: bool,
    pub(super) helpers: usize,
    pub(super) coming: usize,
    pub(super) asked: usize,
    pub(super) cap: usize,
    target: usize,
    pub(super) slow_seen: bool,
    /// Durations of callbacks.
    pub(super) took: LoopTimes,
    pub(super) notes: Vec<CallbackNote>,
}

/// Durations of some callbacks.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LoopTimes {
    pub(super) callbacks: usize,
    pub(super) in_all: Duration,
}

impl LoopTimes {
    /// Returns the mean, or zero if none is over.
    pub(super) fn mean(&self) -> Duration {
        self.in_all / u32::try_from(self.callbacks).unwrap_or(u32::MAX).max(1)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallerRests {
    No,
    /// The caller sleeps until it is woken.
    Asleep,
    /// The caller checks the clock too.
    Watching,
}

pub(super) struct RunningCallback {
    pub(super) device: DeviceId,
    pub(super) since: Duration,
    site: Site,
    /// True if its callback has returned, but is not over: no thread is in it.
    pub(super) detached: bool,
    /// True if a walker called it, and still holds objects of other devices until it is ended or
    /// detached.
    pub(super) walked: bool,
    /// True if its deadline has passed.
    pub(super) overdue: bool,
    /// True if the observer has that report, or the one that the whole shutdown is late.
    pub(super) named: bool,
    /// True if it has ended, and its runner releases its dependents.
    pub(super) concluding: bool,
}

/// A callback that is over, except those of the loop.
#[derive(Clone, Debug)]
pub(crate) struct CallbackNote {
    pub device: DeviceId,
    pub start: Duration,
    pub end: Duration,
    pub site: Site,
    pub outcome: Outcome,
}

/// A callback to be called.
pub(crate) struct CallbackTask {
    pub device: DeviceId,
    pub bound: Arc<dyn Bound>,
}

/// A callback that is over.
pub(crate) struct EndedCallback {
    pub device: DeviceId,
    pub outcome: Outcome,
    pub at: Duration,
    /// The CPU on which it ended.
    pub cpu: Option<CpuId>,
}

/// The work of a thread since its last step.
pub(crate) enum StepResult {
    Nothing,
    One(EndedCallback),
    /// The whole batch.
    Batch(Arc<CallbackBatch>),
}

impl From<Option<EndedCallback>> for StepResult {
    fn from(ended: Option<EndedCallback>) -> StepResult {
        ended.map_or(StepResult::Nothing, StepResult::One)
    }
}

/// Scratch space of a step, kept by each thread from step to step.
#[derive(Default)]
pub(crate) struct Scratch {
    pub(super) blank: Option<Arc<CallbackBatch>>,
    pub(super) ready: Vec<DeviceId>,
    pub(super) stack: Vec<u32>,
}

/// The next step of the caller.
pub(crate) enum CallerStep {
    /// Calls this device back.
    Run(CallbackTask),
    /// Calls these devices back.
    Walk(Arc<CallbackBatch>),
    /// Waits until woken, or for that long at most.
    Wait(Option<Duration>),
    /// Everything is shut down.
    Done,
    /// The rest is left undone.
    Aborted,
    /// A deputy has the caller's part.
    Replaced,
}

/// The next step of a helper.
pub(crate) enum HelperStep {
    /// Calls this device back.
    Run(CallbackTask),
    /// Calls these devices back.
    Walk(Arc<CallbackBatch>),
    /// Waits that long and retries.
    Watch(Duration),
    /// Ends.
    Leave,
}

/// Duties of the thread that made a step towards the others, to be done without the lock.
#[derive(Debug, Default)]
#[must_use]
pub(crate) struct HelpersWanted {
    /// Number of helpers to ask for.
    pub helpers: usize,
    /// True if the caller is to be woken.
    pub wake: bool,
    /// Number of the deputy that is to take the caller's part.
    pub deputy: Option<u64>,
    /// True if the observer is to get the callback that ended; false if it was skipped before.
    pub tell: bool,
    /// Further events for the observer.
    pub news: Vec<HangReport>,
    /// Number of callbacks that are over now.
    pub done: usize,
}

impl ShutdownState {
    pub(crate) fn new(plan: ShutdownPlan) -> ShutdownState {
        let total = plan.outline.calls.len();
        let state = ProgressState {
            loop_site: None,
            loop_thread: None,
            loop_left: false,
            loop_detached: false,
            walk_later: Vec::new(),
            walk_failed: Vec::new(),
            sync: BTreeMap::new(),
            asyncs: ReadyQueue::default(),
            walks: Vec::new(),
            walked: Vec::new(),
            later_seen: false,
            looked_at: false,
            running: Vec::new(),
            pauses: Pauses::default(),
            skipped: Vec::new(),
            late: Vec::new(),
            overdue: 0,
            run_is_late: false,
            gave_up: false,
            news: Vec::new(),
            telling: false,
            left: total,
            untold: 0,
            sync_left: 0,
            sync_mask: 0,
            caller: CallerRests::No,
            lead: 0,
            lead_in: None,
            lead_is_through: false,
            end_is_awaited: false,
            watched: false,
            helpers: 0,
            coming: 0,
            asked: 0,
            cap: plan.max_helpers,
            target: plan.cpus.max(2),
            slow_seen: false,
            took: LoopTimes::default(),
            notes: Vec::new(),
        };
        ShutdownState {
            walk: Arc::new(Walk::new(total)),
            outline: plan.outline,
            cpus: plan.cpus,
            abort: plan.abort,
            observed: plan.observed,
            timeouts: plan.timeouts,
            paths: plan.paths,
            bound: RwLock::new(plan.bound),
            counted: OnceLock::new(),
            state: Mutex::new(state),
            caller: Condvar::new(),
            watcher: Condvar::new(),
        }
    }

    pub(crate) fn outline(&self) -> &Outline {
        &self.outline
    }

    pub(crate) fn graph(&self) -> &Arc<Graph> {
        &self.outline.graph
    }

    /// Returns true if the counting has begun. Decided under the lock.
    pub(super) fn is_counted(&self) -> bool {
        self.counted.get().is_some()
    }

    pub(super) fn counted(&self) -> &CountedState {
        self.counted.get().expect("nothing is released or taken before the counting has begun")
    }

    /// Returns true if the counting has begun, without the lock: it may begin at any moment.
    pub(crate) fn has_counted(&self) -> bool {
        self.is_counted()
    }

    /// Returns true if the shutdown was aborted from outside.
    pub(crate) fn is_aborted(&self) -> bool {
        self.abort.is_cancelled()
    }

    /// Returns true if the shutdown begins nothing more.
    pub(super) fn stops(&self, st: &ProgressState) -> bool {
        st.gave_up || self.abort.is_cancelled()
    }

    /// Returns the number of devices that have a callback.
    pub(crate) fn total(&self) -> usize {
        self.outline.calls.len()
    }

    /// Makes the step of the thread that has the caller's part, or had it when it began the
    /// callback that it `ran`. `lead` is the number of its part. `waited` says that its last wait
    /// took its whole time.
    pub(crate) fn caller_step(
        &self,
        now: Duration,
        ran: StepResult,
        at: (&Site, u64),
        waited: bool,
        scratch: &mut Scratch,
    ) -> (CallerStep, HelpersWanted) {
        let (site, lead) = at;
        scratch.prepare(site);
        let (mut st, counts) = self.conclude(ran, scratch);
        let step = if st.lead != lead {
            CallerStep::Replaced
        } else {
            st.caller = CallerRests::No;
            st.lead_in = None;
            self.lead_step(&mut st, now, site, waited, scratch)
        };
        let owed = self.owed(&mut st, now, counts, scratch);
        (step, owed)
    }

    fn lead_step(
        &self,
        st: &mut ProgressState,
        now: Duration,
        site: &Site,
        waited: bool,
        scratch: &mut Scratch,
    ) -> CallerStep {
        if st.is_over() {
            return CallerStep::Done;
        } else if self.stops(st) {
            return CallerStep::Aborted;
        }
        if st.sync_left == 0 {
            let lead = Some(st.lead);
            if let Some(batch) = self.pick_batch(st, now, lead, scratch) {
                return CallerStep::Walk(batch);
            }
        }
        let sync = if self.has_sync(st) { st.sync.pop_last() } else { None };
        let device = sync.map(|(_, device)| device).or_else(|| {
            let urgency = self.pick_for_caller(st, waited)?;
            st.asyncs.remove(urgency)
        });
        if let Some(device) = device {
            st.lead_in = Some(device);
            CallerStep::Run(self.begin(st, device, now, site))
        } else if st.asyncs.is_empty() {
            st.caller = CallerRests::Asleep;
            CallerStep::Wait(None)
        } else {
            // The helper that is to take these may not come: then the caller takes them after all.
            st.caller = CallerRests::Watching;
            CallerStep::Wait(Some(SLOW))
        }
    }

    /// Waits as [`CallerStep::Wait`] asked: until there may be something to do. Returns true if it
    /// took its whole time.
    pub(crate) fn caller_wait(&self, limit: Option<Duration>) -> bool {
        let mut st = self.state.lock();
        // Another thread may have had something for the caller since it stepped: then it is not
        // resting any more, see `owed`.
        while st.caller != CallerRests::No && !self.stops(&st) {
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

    /// Wakes the caller if a step said so, and a thread that waits for the end.
    pub(crate) fn wake_caller(&self) {
        self.caller.notify_all();
    }

    /// Records that a helper that was asked for is here.
    pub(crate) fn helper_comes(&self) {
        let mut st = self.state.lock();
        st.coming = st.coming.saturating_sub(1);
        st.helpers += 1;
    }

    /// Records that a helper that was asked for will never come: the caller continues without it.
    pub(crate) fn helper_lost(&self) {
        let mut st = self.state.lock();
        st.coming = st.coming.saturating_sub(1);
        st.cap = 0;
        st.caller = CallerRests::No;
        drop(st);
        self.wake_caller();
    }

    /// Makes a helper's step. `ran` is its last callback; `watched` says that it was the watcher.
    pub(crate) fn helper_step(
        &self,
        now: Duration,
        ran: StepResult,
        site: &Site,
        watched: bool,
        scratch: &mut Scratch,
    ) -> (HelperStep, HelpersWanted) {
        scratch.prepare(site);
        let (mut st, counts) = self.conclude(ran, scratch);
        if watched {
            st.watched = false;
        }
        let load = self.observe(&mut st, now);
        let role = if self.stops(&st) { HelperRole::Leave } else { policy::helper_role(&load) };
        let step = match role {
            HelperRole::Run => match self.pick_batch(&mut st, now, None, scratch) {
                Some(batch) => HelperStep::Walk(batch),
                None => {
                    let device = st.asyncs.pop_last().expect("there is a backlog");
                    HelperStep::Run(self.begin(&mut st, device, now, site))
                }
            },
            HelperRole::Watch => {
                st.watched = true;
                let turns_slow = |r: &RunningCallback| (r.since + SLOW).checked_sub(now);
                let next = st.running.iter().filter_map(turns_slow).filter(|d| !d.is_zero()).min();
                HelperStep::Watch(next.unwrap_or(SLOW))
            }
            HelperRole::Leave => {
                st.helpers -= 1;
                HelperStep::Leave
            }
        };
        let owed = self.owed(&mut st, now, counts, scratch);
        (step, owed)
    }

    /// Waits, as [`HelperStep::Watch`] asked.
    pub(crate) fn helper_wait(&self, limit: Duration) {
        let st = self.state.lock();
        if st.watched && !self.stops(&st) {
            drop(self.watcher.wait_timeout(st, limit));
        }
    }

    /// Returns the urgency of a ready asynchronous device.
    pub(super) fn urgency(&self, device: DeviceId) -> Urgency {
        let path = self.paths.as_ref().map_or(0, |paths| paths[device.index()]);
        (path, self.graph().rank(device))
    }

    /// Returns true if a synchronous device may begin. It may not while another one is not over,
    /// although its callback has returned, unless that is late.
    pub(super) fn has_sync(&self, st: &ProgressState) -> bool {
        let kinds = &self.outline.kinds;
        let holds =
            |r: &RunningCallback| r.detached && !r.overdue && kinds[r.device.index()] == Kind::Sync;
        !st.sync.is_empty() && !st.running.iter().any(holds)
    }

    /// Returns an asynchronous device that the caller may run now, see [`policy::caller_may_help`].
    fn pick_for_caller(&self, st: &ProgressState, waited: bool) -> Option<Urgency> {
        let (last, _) = st.asyncs.iter().next()?;
        // If helpers don't come, or may not come, the devices are left to the caller.
        let forsaken = waited && (st.coming > 0 || st.helpers >= st.cap);
        let alone = st.asyncs.len() == 1 && st.running.is_empty() && st.walks.is_empty();
        if forsaken || policy::caller_may_help(st.sync_left, alone, None, None) || st.cap == 0 {
            return Some(last);
        }
        let below = self.counted().below.as_ref()?;
        let may = |device: DeviceId| {
            let mask = below.masks[device.index()];
            policy::caller_may_help(st.sync_left, alone, Some(mask), Some(st.sync_mask))
        };
        let mut ready = st.asyncs.iter().take(LOOK_AT);
        ready.find(|(_, device)| may(*device)).map(|(urgency, _)| urgency)
    }

    fn begin(
        &self,
        st: &mut ProgressState,
        device: DeviceId,
        now: Duration,
        site: &Site,
    ) -> CallbackTask {
        let bound = self.bound.read()[device.index()].clone();
        st.running.push(RunningCallback::new(device, now, site.clone()));
        CallbackTask { device, bound: bound.expect("a device with a callback is bound") }
    }

    /// Returns the duties of the last step towards others.
    pub(super) fn owed(
        &self,
        st: &mut ProgressState,
        now: Duration,
        tell: bool,
        scratch: &mut Scratch,
    ) -> HelpersWanted {
        if st.overdue > 0 {
            self.apply_policy(st, now, scratch);
        }
        let through = st.is_over() || self.stops(st);
        let own = through || self.has_sync(st);
        let helps = !own && self.pick_for_caller(st, false).is_some();
        // A caller that sleeps is woken for a backlog too: to watch that a helper comes for it.
        let watches = st.caller == CallerRests::Asleep && !st.asyncs.is_empty();
        let wake = st.caller != CallerRests::No && (own || helps || watches);
        if wake {
            st.caller = CallerRests::No;
        }
        let mut load = self.observe(st, now);
        load.backlog -= usize::from(wake && helps);
        let helpers = if self.stops(st) { 0 } else { policy::helpers_to_ask(&load) };
        st.coming += helpers;
        st.asked += helpers;
        HelpersWanted {
            helpers,
            wake: wake || through,
            deputy: self.deputy(st),
            tell,
            news: st.take_news(),
            done: self.total() - st.left,
        }
    }

    /// Returns the load now; raises the target if callbacks block.
    fn observe(&self, st: &mut ProgressState, now: Duration) -> Load {
        // A batch that is held up ceases to be one at the next check.
        let (mut running, mut blocked, mut hung) = (st.walks.len(), 0, 0);
        for r in st.running.iter().filter(|r| !r.detached) {
            if r.overdue {
                hung += usize::from(st.lead_in != Some(r.device));
                continue;
            }
            running += 1;
            blocked += usize::from(now.saturating_sub(r.since) >= SLOW);
        }
        st.slow_seen |= blocked > 0;
        let mut load = Load {
            backlog: st.asyncs.len(),
            running,
            blocked,
            target: st.target,
            // A thread in a late callback is lost, and another one may replace it.
            helpers: st.helpers.saturating_sub(hung),
            coming: st.coming,
            cap: st.cap,
            watched: st.watched || st.looked_at || st.caller == CallerRests::Watching,
            slow_seen: st.slow_seen,
            worth: policy::worth(st.left.saturating_sub(st.sync_left), st.took.mean()),
        };
        st.target = policy::raised_target(&load, self.cpus);
        load.target = st.target;
        load
    }
}

impl ProgressState {
    pub(super) fn take_in(&mut self, of: &ShutdownState, scratch: &mut Scratch) {
        // The counting finds the most urgent ones first, which `ReadyQueue` has last.
        for device in scratch.ready.drain(..).rev() {
            match of.outline.kinds[device.index()] {
                Kind::Sync => drop(self.sync.insert(of.graph().rank(device), device)),
                _ => self.asyncs.insert(of.urgency(device), device),
            }
        }
    }

    pub(super) fn is_over(&self) -> bool {
        self.left == 0 && self.untold == 0
    }

    pub(super) fn detach(&mut self, device: DeviceId) {
        self.later_seen = true;
        if let Some(running) = self.running.iter_mut().find(|r| r.device == device) {
            running.detached = true;
            self.lead_in = self.lead_in.filter(|&d| d != device);
        }
    }

    /// Takes the end of a callback that had returned before and that a walker called, if it has
    /// ended.
    pub(super) fn ended_meanwhile(&mut self, device: DeviceId) -> Option<EndedCallback> {
        let place = self.walk_later.iter().position(|ended| ended.device == device)?;
        self.later_seen = true;
        Some(self.walk_later.swap_remove(place))
    }

    /// Records that a running callback is over.
    pub(super) fn record_end(&mut self, ended: EndedCallback) -> DeviceId {
        let of = |r: &RunningCallback| r.device == ended.device;
        let index = self.running.iter().position(of).expect("it was started");
        let running = self.running.swap_remove(index);
        let took = ended.at.saturating_sub(running.since);
        self.slow_seen |= took >= SLOW;
        self.took.callbacks += 1;
        self.took.in_all += took;
        self.overdue -= usize::from(running.overdue);
        if running.named {
            self.late_has_ended(ended.device, took);
        }
        self.notes.push(running.note(ended.at, ended.outcome));
        ended.device
    }
}

impl Scratch {
    /// Allocates the memory that a step may need, before the step takes the lock.
    fn prepare(&mut self, site: &Site) {
        self.blank.get_or_insert_with(|| CallbackBatch::blank(site));
    }
}

impl RunningCallback {
    pub(super) fn new(device: DeviceId, since: Duration, site: Site) -> RunningCallback {
        RunningCallback {
            device,
            since,
            site,
            detached: false,
            walked: false,
            overdue: false,
            named: false,
            concluding: false,
        }
    }

    pub(super) fn note(&self, end: Duration, outcome: Outcome) -> CallbackNote {
        let (device, start, site) = (self.device, self.since, self.site.clone());
        CallbackNote { device, start, end, site, outcome }
    }
}

impl Listener for ShutdownState {
    fn cancelled(&self) {
        let _st = self.state.lock();
        self.caller.notify_all();
        self.watcher.notify_all();
    }
}

#[cfg(test)]
#[path = "state_tests.rs"]
mod tests;
