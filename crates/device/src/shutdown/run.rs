//! Drives a shutdown: the loop, the caller's part by counters, the helpers, the watch.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use corewise_sync::sys::{RunState, Tid, run_state};
use corewise_sync::thread::Builder;
use corewise_sync::time::PausableClock;
use corewise_sync::{Mutex, context, text};
use corewise_timeline::Outcome;
use corewise_topology::{CpuId, current_cpu};

use super::batch::{BATCH, CallbackBatch};
use super::hang::HangReport;
use super::options::{HangPolicy, ShutdownMode};
use super::policy;
use super::policy::{Pace, SLOW, WatchStep};
use super::state::{
    CallbackTask, CallerStep, EndedCallback, HelperStep, HelpersWanted, Scratch, ShutdownState,
    StepResult,
};
use crate::bound::{Bound, EndSink, Failure, ShutdownCall, ShutdownDone, ShutdownFailure};
use crate::error::{ShutdownError, caught};
use crate::event;
use crate::event::{Event, Observer};
use crate::graph::DeviceId;
use crate::handoff::Handoff;
use crate::placement::Placer;
use crate::record::{Clock, Site};
use crate::takeover::Walk;
use crate::watch::{Watch, WatchTarget};

/// One shutdown, with all that its threads share.
pub(crate) struct ShutdownRun {
    pub state: Arc<ShutdownState>,
    pub placer: Arc<Placer>,
    pub observer: Option<Observer>,
    pub clock: Clock,
    /// I: the policy for late callbacks.
    pub on_hang: HangPolicy,
    /// I: true if slow callbacks are known, so there is no loop.
    pub counts_at_once: bool,
    /// L: is the lock; guards the last state that the watch saw.
    pub pace: Mutex<Pace>,
    /// L: is the lock; guards the time for which this process was stopped. `None`: no callback can
    /// be late.
    pub running: Option<Mutex<PausableClock>>,
}

impl ShutdownRun {
    /// Shuts down, and returns when everything is shut down, or the policy gives the rest up.
    /// Blocks. `watch` checks the clock meanwhile, if there is one.
    pub(crate) fn run(self: &Arc<Self>, watch: Option<&Watch>) {
        let parallel = self.state.outline().mode == ShutdownMode::Parallel;
        self.state.is_looked_at(watch.is_some());
        let watching = self.first_look().and_then(|first| watch?.watch(self.clone(), first));
        if watching.is_none() {
            self.state.is_looked_at(false);
        }
        if watching.is_none() && self.state.first_deadline().is_some() {
            tracing::warn!("no timer: a shutdown callback that hangs is not reported");
        }
        if self.counts_at_once || (parallel && watching.is_none()) {
            self.state.count(&mut Scratch::default());
        }
        if self.on_hang == HangPolicy::WaitOn || !self.start(0, Self::lead) {
            self.lead();
        }
        context::blocking("device shutdown", || self.state.wait_for_the_end());
    }

    /// Returns the time of the first check, if there is one.
    pub(crate) fn first_look(&self) -> Option<Duration> {
        let parallel = self.state.outline().mode == ShutdownMode::Parallel;
        let slow = parallel.then_some(SLOW);
        slow.into_iter().chain(self.slice()).min()
    }

    /// Returns the longest time between two checks of the deadlines: a longer one is a pause of
    /// this process.
    fn slice(&self) -> Option<Duration> {
        self.running.as_ref().map(|clock| clock.lock().slice())
    }

    /// Records for how long this process was stopped since the last check.
    fn look_for_pauses(&self, now: Duration) {
        let Some(clock) = &self.running else { return };
        let mut clock = clock.lock();
        let before = clock.paused();
        clock.now();
        let paused = clock.paused() - before;
        drop(clock);
        self.state.was_paused(now, paused);
    }

    /// Runs the caller's part: the loop, then the rest by counters.
    fn lead(self: &Arc<Self>) {
        // All of it is one region: if this is a pool's worker, the pool need not hear of each
        // callback.
        context::blocking("device shutdown", || match self.walk() {
            LoopEnd::Counts(ended) => self.by_counters(ended, 0),
            LoopEnd::Over => self.state.lead_is_through(),
        });
    }

    /// Starts a thread of its own that runs that part. Returns false if none can be started.
    fn start(self: &Arc<Self>, lead: u64, part: fn(&Arc<Self>)) -> bool {
        let run = self.clone();
        let begin = Builder::new().name("cw-shutdown".into()).spawn(move || match lead {
            0 => part(&run),
            _ => run.by_counters(None, lead),
        });
        if let Err(error) = &begin {
            tracing::error!(%error, "cannot start a thread for synchronous shutdown callbacks");
        }
        begin.is_ok()
    }

    /// Runs the loop, one by one: no counters, no queue, no lock, no thread.
    fn walk(self: &Arc<Self>) -> LoopEnd {
        let state = &self.state;
        let mut thread = ThreadState::new(self);
        if !state.loop_begins(&thread.site, Some(Tid::current())) {
            return LoopEnd::Counts(None);
        }
        let mut place = 0;
        while place < state.total() {
            if state.helpers_pay(place) && state.count_between(&mut Scratch::default()) {
                return LoopEnd::Counts(None);
            }
            let places = state.loop_walks(place);
            place = places.end;
            match self.walk_on(&state.outline().calls, &state.walk, places, &mut thread) {
                WalkEnd::Through => {}
                WalkEnd::Taken(ended) => return LoopEnd::Counts(Some(ended)),
                WalkEnd::Leaves(_) => {
                    state.loop_leaves();
                    return LoopEnd::Over;
                }
                // The callback has returned, and is over later. If others may run meanwhile the
                // counting begins; else it is waited for.
                WalkEnd::Detached(at, device) => {
                    let ended = if state.outline().mode == ShutdownMode::Parallel {
                        state.count(&mut Scratch::default());
                        state.loop_detaches(device)
                    } else {
                        state.loop_waits(device)
                    };
                    match ended.map(|ended| self.step(&state.walk, at, ended)) {
                        Some(Ok(())) => place = at + 1,
                        Some(Err(ended)) => return LoopEnd::Counts(Some(ended)),
                        None if self.state.is_aborted() && !state.has_counted() => {
                            return LoopEnd::Over;
                        }
                        None => return LoopEnd::Counts(None),
                    }
                }
            }
        }
        LoopEnd::Over
    }

    /// Calls devices of a walk back, one after the other: the loop's, or those of a batch.
    fn walk_on(
        self: &Arc<Self>,
        devices: &[DeviceId],
        walk: &Walk,
        places: Range<usize>,
        thread: &mut ThreadState,
    ) -> WalkEnd {
        let mut objects = std::mem::take(&mut thread.objects);
        self.state.objects(&devices[places.clone()], &mut objects);
        let mut stop = WalkEnd::Through;
        for (place, &device) in places.clone().zip(&devices[places]) {
            let Some(bound) = objects.pop().filter(|_| !self.state.is_aborted()) else {
                stop = WalkEnd::Leaves(device);
                break;
            };
            let Some(ended) = self.call(CallbackTask { device, bound }, thread) else {
                stop = WalkEnd::Detached(place, device);
                break;
            };
            if let Err(ended) = self.step(walk, place, ended) {
                stop = WalkEnd::Taken(ended);
                break;
            }
        }
        objects.clear();
        thread.objects = objects;
        stop
    }

    /// Ends that place of a walk. Returns the end if the rest was taken over.
    fn step(&self, walk: &Walk, place: usize, ended: EndedCallback) -> Result<(), EndedCallback> {
        let told = self.told(&ended);
        self.state.step(walk, place, ended)?;
        if let Some((device, outcome)) = told {
            // Only the loop has an observer: there are no batches then.
            self.tell_finished(device, &outcome, place + 1);
        }
        Ok(())
    }

    /// Calls a batch back. Returns the result for the thread's next step.
    fn call_batch(
        self: &Arc<Self>,
        batch: Arc<CallbackBatch>,
        thread: &mut ThreadState,
        scratch: &mut Scratch,
    ) -> StepResult {
        let places = 0..batch.devices.len();
        match self.walk_on(&batch.devices, &batch.walk, places, thread) {
            WalkEnd::Through => return StepResult::Batch(batch),
            WalkEnd::Taken(ended) => return StepResult::One(ended),
            WalkEnd::Leaves(device) => self.state.batch_leaves(device, scratch),
            WalkEnd::Detached(_, device) => {
                return self.state.batch_detaches(device, scratch).into();
            }
        }
        StepResult::Nothing
    }

    /// Runs the caller's part once the counting has begun: synchronous devices, and asynchronous
    /// ones if it may help. `ended` is its last callback.
    fn by_counters(self: &Arc<Self>, ended: Option<EndedCallback>, lead: u64) {
        let mut scratch = Scratch::default();
        let mut thread = ThreadState::new(self);
        let (mut ran, mut waited) = (StepResult::from(ended), false);
        loop {
            let told = self.told_of(&ran);
            let now = self.now_after(&ran);
            let ran_before = std::mem::replace(&mut ran, StepResult::Nothing);
            let at = (&thread.site, lead);
            let (step, owed) = self.state.caller_step(now, ran_before, at, waited, &mut scratch);
            self.pay(owed, told);
            match step {
                CallerStep::Run(task) => ran = self.call_counted(task, &mut thread),
                CallerStep::Walk(batch) => ran = self.call_batch(batch, &mut thread, &mut scratch),
                CallerStep::Wait(limit) => {
                    waited = self.state.caller_wait(limit);
                }
                CallerStep::Replaced => return,
                CallerStep::Done | CallerStep::Aborted => {
                    self.state.lead_is_through();
                    return;
                }
            }
        }
    }

    /// Runs a helper's loop. All of it is one region: the pool need not hear of each callback.
    fn help(self: &Arc<Self>) {
        context::long_running("device shutdown", || self.help_by_counters());
    }

    fn help_by_counters(self: &Arc<Self>) {
        self.state.helper_comes();
        let mut scratch = Scratch::default();
        let mut thread = ThreadState::new(self);
        let (mut ran, mut watched) = (StepResult::Nothing, false);
        loop {
            let told = self.told_of(&ran);
            let now = self.now_after(&ran);
            let ran_before = std::mem::replace(&mut ran, StepResult::Nothing);
            let (step, owed) =
                self.state.helper_step(now, ran_before, &thread.site, watched, &mut scratch);
            self.pay(owed, told);
            watched = matches!(step, HelperStep::Watch(_));
            match step {
                HelperStep::Run(task) => ran = self.call_counted(task, &mut thread),
                HelperStep::Walk(batch) => ran = self.call_batch(batch, &mut thread, &mut scratch),
                HelperStep::Watch(limit) => {
                    context::blocking("device shutdown", || self.state.helper_wait(limit));
                }
                HelperStep::Leave => return,
            }
        }
    }

    /// Returns the time of a step: that of the callback that has just ended, else the clock's.
    fn now_after(&self, ran: &StepResult) -> Duration {
        match ran {
            StepResult::Nothing => self.clock.now(),
            StepResult::One(ended) => ended.at,
            StepResult::Batch(batch) => batch.ended(batch.devices.len()),
        }
    }

    /// Does the duties of a step towards others; those that start other threads come first.
    fn pay(self: &Arc<Self>, owed: HelpersWanted, told: Option<(DeviceId, Outcome)>) {
        if owed.wake {
            self.state.wake_caller();
        }
        for _ in 0..owed.helpers {
            let ticket = HelperTicket(Some(self.clone()));
            self.placer.spawn_elsewhere(move || ticket.help());
        }
        if let Some(lead) = owed.deputy {
            if !self.start(lead, |_| {}) {
                self.state.deputy_lost(lead);
            }
        }
        if let (Some((device, outcome)), true) = (told, owed.tell) {
            self.tell_finished(device, &outcome, owed.done);
            self.state.told();
        }
        let mut news = owed.news;
        while !news.is_empty() {
            news.into_iter().for_each(|news| self.tell_news(news));
            news = self.state.more_news();
        }
    }

    /// Calls a device back, once the counting has begun.
    fn call_counted(self: &Arc<Self>, task: CallbackTask, thread: &mut ThreadState) -> StepResult {
        let device = task.device;
        let ended = self.call(task, thread);
        if ended.is_none() {
            self.state.detached(device);
        }
        ended.into()
    }

    /// Calls a device back. Returns `None` if it will be over later.
    fn call(
        self: &Arc<Self>,
        task: CallbackTask,
        thread: &mut ThreadState,
    ) -> Option<EndedCallback> {
        let (CallbackTask { device, bound }, ThreadState { call, site, .. }) = (task, thread);
        if let Some(observer) = &self.observer {
            event::tell(Some(observer), &Event::Started { device: self.name(device) });
        }
        match Arc::get_mut(call) {
            Some(call) => {
                call.handoff.reset();
                call.device = device;
            }
            // The thread that finishes the last one later has it, or an obsolete handle.
            None => *call = self.new_call(device),
        }
        let done = ShutdownDone::of(call.clone());
        let answer = match caught(|| bound.start_shutdown(done)) {
            Ok(()) => call.handoff.returned().map(answered),
            Err(message) => Some(match call.handoff.panicked() {
                None | Some(Some(Failure::Dropped)) => {
                    Outcome::Failed(format!("the callback panicked: {message}"))
                }
                Some(answer) => answered(answer),
            }),
        };
        // The thread may have moved since the last time.
        if site.cpu.is_some() && !self.placer.machine().is_synthetic() {
            site.cpu = current_cpu();
        }
        answer.map(|outcome| self.ended(device, outcome, site.cpu))
    }

    /// Creates a record for the calls of one thread.
    fn new_call(self: &Arc<Self>, device: DeviceId) -> Arc<ShutdownCall> {
        Arc::new(ShutdownCall { handoff: Handoff::new(), ends: self.clone(), device })
    }

    /// Returns the end of a callback that is over now.
    fn ended(&self, device: DeviceId, outcome: Outcome, cpu: Option<CpuId>) -> EndedCallback {
        if let Outcome::Failed(message) = &outcome {
            let (device, message) = (text::name(self.name(device)), text::message(message));
            tracing::warn!(%device, %message, "shutdown callback failed");
        }
        EndedCallback { device, outcome, at: self.clock.now(), cpu }
    }

    fn name(&self, device: DeviceId) -> &str {
        self.state.graph().name(device)
    }

    /// Returns what the observer gets about a callback that is over, if there is an observer.
    fn told(&self, ended: &EndedCallback) -> Option<(DeviceId, Outcome)> {
        self.observer.as_ref()?;
        Some((ended.device, ended.outcome.clone()))
    }

    fn told_of(&self, ran: &StepResult) -> Option<(DeviceId, Outcome)> {
        if let StepResult::One(ended) = ran { self.told(ended) } else { None }
    }

    fn tell_finished(&self, device: DeviceId, outcome: &Outcome, done: usize) {
        let (device, total) = (self.name(device), self.state.total());
        event::tell(self.observer.as_ref(), &Event::Finished { device, outcome, done, total });
    }

    fn tell_news(&self, news: HangReport) {
        let observer = self.observer.as_ref();
        match news {
            HangReport::Overdue { device, after } => {
                let device = self.name(device);
                // Debug: a length of time.
                tracing::warn!(device = %text::name(device), ?after, "a shutdown callback is late");
                event::tell(observer, &Event::Overdue { device, after });
            }
            HangReport::Skipped { device, outcome, done } => {
                self.tell_finished(device, &outcome, done);
                self.state.told();
            }
            HangReport::GaveUp { left } => {
                tracing::warn!(
                    left,
                    "the shutdown gives up: some devices hang, or wait for devices that hang"
                );
                event::tell(observer, &Event::GaveUp { left });
            }
        }
    }
}

/// The data that a thread keeps from call to call.
struct ThreadState {
    /// The call. Most calls are over when they return, so it serves for the next one.
    call: Arc<ShutdownCall>,
    /// The site where it runs.
    site: Site,
    /// Scratch space.
    objects: Vec<Arc<dyn Bound>>,
}

impl ThreadState {
    fn new(run: &Arc<ShutdownRun>) -> ThreadState {
        ThreadState {
            call: run.new_call(DeviceId(0)),
            site: Site::here(run.placer.machine(), None),
            objects: Vec::with_capacity(BATCH),
        }
    }
}

/// The end of a walk.
enum WalkEnd {
    /// All devices were called back.
    Through,
    /// The walk was aborted before that device.
    Leaves(DeviceId),
    /// The callback of that place has returned, and its device will be over later, or is already.
    Detached(usize, DeviceId),
    /// The rest was taken over; this is the callback that had just ended.
    Taken(EndedCallback),
}

/// The end of the loop.
enum LoopEnd {
    /// All is done, or the shutdown was aborted.
    Over,
    /// The counting has begun; this is the callback that the loop ran then.
    Counts(Option<EndedCallback>),
}

impl EndSink for ShutdownRun {
    fn ended_later(self: Arc<Self>, device: DeviceId, answer: ShutdownFailure) {
        let ended = self.ended(device, answered(answer), None);
        let told = self.told(&ended);
        if let Some(owed) = self.state.ended_later(ended, &mut Scratch::default()) {
            self.pay(owed, told);
        }
    }
}

/// Returns the outcome of a callback that was finished, or whose handle was dropped.
fn answered(answer: ShutdownFailure) -> Outcome {
    match answer {
        None => Outcome::Ok,
        Some(Failure::Said(error)) => Outcome::Failed(error.to_string()),
        Some(Failure::Dropped) => Outcome::Failed(ShutdownError::dropped().to_string()),
    }
}

impl WatchTarget for ShutdownRun {
    fn look(self: Arc<Self>) -> Option<Duration> {
        let now = self.clock.now();
        self.look_for_pauses(now);
        let look = self.state.look(now, &mut self.pace.lock(), is_blocked);
        let (mut deadline, counts) = self.state.look_at_deadlines(now);
        if counts || look == WatchStep::Count {
            let mut scratch = Scratch::default();
            self.state.count(&mut scratch);
            if counts {
                deadline = self.state.look_at_deadlines(now).0;
            }
        }
        let owed = self.state.owes(now, &mut Scratch::default());
        self.pay(owed, None);
        let again = match look {
            WatchStep::Again(after) => Some(after),
            // There may be batches.
            WatchStep::Count => Some(SLOW),
            WatchStep::Over => None,
        };
        // A deadline of zero is over before its callback begins.
        let deadline = deadline.map(|deadline| self.slice().unwrap_or(deadline).min(deadline));
        again.into_iter().chain(deadline).min().map(policy::not_too_soon)
    }
}

/// Returns true if a thread of this process sleeps just now. If the system doesn't say, the thread
/// counts as asleep: a long callback blocks, as a rule.
fn is_blocked(thread: Option<Tid>) -> bool {
    thread.and_then(run_state) != Some(RunState::Ready)
}

/// The claim to a helper that was asked for. If the pools drop it unused, the caller continues
/// without it.
struct HelperTicket(Option<Arc<ShutdownRun>>);

impl HelperTicket {
    fn help(mut self) {
        if let Some(run) = self.0.take() {
            run.help();
        }
    }
}

impl Drop for HelperTicket {
    fn drop(&mut self) {
        if let Some(run) = self.0.take() {
            run.state.helper_lost();
        }
    }
}
