//! Drives a shutdown: the loop, the caller's part by counters, the helpers, the watch.

use super::hang::News;
use super::looped::BATCH;
use super::options::HangPolicy;
use super::policy::{Look, Pace, SLOW};
use super::report::ShutdownMode;
use super::state::{CallerStep, Ended, HelperStep, Owed, Scratch, ShutdownState, Task};
use crate::DeviceId;
use crate::driver::{ShutdownError, caught};
use crate::event::{self, Event, Observer};
use crate::handoff::Handoff;
use crate::placement::Placer;
use crate::record::{Clock, Site};
use crate::shutdown_done::{Answer, Call, Ends, Failure, ShutdownDone};
use crate::watch::{Watch, Watched};
use corewise_sync::sys::{RunState, Tid, run_state};
use corewise_sync::thread::Builder;
use corewise_sync::{Mutex, context};
use corewise_timeline::Outcome;
use corewise_topology::{CpuId, current_cpu};
use std::sync::Arc;
use std::time::Duration;

/// One shutdown and all that its threads share.
pub(crate) struct ShutdownRun {
    pub state: Arc<ShutdownState>,
    pub placer: Arc<Placer>,
    pub observer: Option<Observer>,
    pub clock: Clock,
    /// I: what to do when something is late.
    pub on_hang: HangPolicy,
    /// I: it is known that something is slow, so there is no loop.
    pub counts_at_once: bool,
    /// L: is the lock; guards what the watch saw last.
    pub pace: Mutex<Pace>,
}

impl ShutdownRun {
    /// Shuts down, and returns when everything is, or nobody waits for the rest. Blocks. `watch`
    /// looks at the clock meanwhile, if there is one.
    pub(crate) fn run(self: &Arc<Self>, watch: Option<&Watch>) {
        let parallel = self.state.outline().mode == ShutdownMode::Parallel;
        let watching = self.first_look().and_then(|first| watch?.watch(self.clone(), first));
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

    /// When somebody has to look for the first time, if ever.
    pub(crate) fn first_look(&self) -> Option<Duration> {
        let parallel = self.state.outline().mode == ShutdownMode::Parallel;
        let slow = parallel.then_some(SLOW);
        slow.into_iter().chain(self.state.first_deadline()).min()
    }

    /// The caller's part: the loop, then what is left by counters.
    fn lead(self: &Arc<Self>) {
        // All of it is one region: a pool whose worker this is need not hear of each callback.
        context::blocking("device shutdown", || match self.walk() {
            Through::Counts(ended) => self.by_counters(ended, 0),
            Through::Over => self.state.lead_is_through(),
        });
    }

    /// Has a thread of its own do that. False where there is none to be had.
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

    /// One by one: no counters, no queue, no lock, no thread.
    fn walk(self: &Arc<Self>) -> Through {
        let calls = &self.state.outline().calls;
        let mut site = Site::here(self.placer.machine(), None);
        let thread = Tid::current();
        if !self.state.loop_begins(&site, Some(thread)) {
            return Through::Counts(None);
        }
        let (mut call, mut batch) = (self.new_call(DeviceId(0)), Vec::with_capacity(BATCH));
        for (place, &device) in calls.iter().enumerate() {
            if batch.is_empty() {
                if self.state.helpers_pay(place)
                    && self.state.count_between(&mut Scratch::default())
                {
                    return Through::Counts(None);
                }
                self.state.loop_takes(place, &mut batch);
            }
            let bound = batch.pop().filter(|_| !self.state.is_aborted());
            let Some(bound) = bound else {
                self.state.loop_leaves();
                return Through::Over;
            };
            let Some(ended) =
                self.call(Task { device, bound }, &mut call, &mut site).or_else(|| {
                    // It has returned, and is over later. Where others may run meanwhile the counting
                    // begins; else it is waited for.
                    if self.state.outline().mode == ShutdownMode::Parallel {
                        self.state.count(&mut Scratch::default());
                        return self.state.loop_detaches(device);
                    }
                    self.state.loop_waits()
                })
            else {
                if self.state.is_aborted() && !self.state.has_counted() {
                    return Through::Over;
                }
                return Through::Counts(None);
            };
            let told = self.told(Some(&ended));
            if let Err(ended) = self.state.loop_ended(place, ended) {
                return Through::Counts(Some(ended));
            }
            if let Some((device, outcome)) = told {
                self.tell_finished(device, &outcome, place + 1);
            }
        }
        Through::Over
    }

    /// The caller's part once the counting has begun: synchronous devices, and asynchronous ones
    /// where it may help. `ended` is what it ran until then.
    fn by_counters(self: &Arc<Self>, mut ended: Option<Ended>, lead: u64) {
        let mut scratch = Scratch::default();
        let mut call = self.new_call(DeviceId(0));
        let mut site = Site::here(self.placer.machine(), None);
        let mut waited = false;
        loop {
            let told = self.told(ended.as_ref());
            let now = self.now_after(ended.as_ref());
            let (step, owed) =
                self.state.caller_step(now, ended.take(), (&site, lead), waited, &mut scratch);
            self.pay(owed, told);
            match step {
                CallerStep::Run(task) => ended = self.call_counted(task, &mut call, &mut site),
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

    /// A helper's loop. All of it is one region: the pool need not hear of each callback.
    fn help(self: &Arc<Self>) {
        context::long_running("device shutdown", || self.help_by_counters());
    }

    fn help_by_counters(self: &Arc<Self>) {
        self.state.helper_comes();
        let mut site = Site::here(self.placer.machine(), None);
        let mut scratch = Scratch::default();
        let mut call = self.new_call(DeviceId(0));
        let (mut ended, mut watched) = (None, false);
        loop {
            let told = self.told(ended.as_ref());
            let now = self.now_after(ended.as_ref());
            let (step, owed) =
                self.state.helper_step(now, ended.take(), &site, watched, &mut scratch);
            self.pay(owed, told);
            watched = matches!(step, HelperStep::Watch(_));
            match step {
                HelperStep::Run(task) => ended = self.call_counted(task, &mut call, &mut site),
                HelperStep::Watch(limit) => {
                    context::blocking("device shutdown", || self.state.helper_wait(limit));
                }
                HelperStep::Leave => return,
            }
        }
    }

    /// The time of a step: a moment ago a callback ended, or it has to be looked up.
    fn now_after(&self, ended: Option<&Ended>) -> Duration {
        ended.map_or_else(|| self.clock.now(), |e| e.at)
    }

    /// Does what a step owes to others, first of all what sets other threads going.
    fn pay(self: &Arc<Self>, owed: Owed, told: Option<(DeviceId, Outcome)>) {
        if owed.wake {
            self.state.wake_caller();
        }
        for _ in 0..owed.helpers {
            let ticket = Ticket(Some(self.clone()));
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
    fn call_counted(
        self: &Arc<Self>,
        task: Task,
        call: &mut Arc<Call>,
        site: &mut Site,
    ) -> Option<Ended> {
        let device = task.device;
        let ended = self.call(task, call, site);
        if ended.is_none() {
            self.state.detached(device);
        }
        ended
    }

    /// Calls a device back. `None`: it will be over later. `call` is kept from call to call, since
    /// most are over when they return.
    fn call(self: &Arc<Self>, task: Task, call: &mut Arc<Call>, site: &mut Site) -> Option<Ended> {
        let Task { device, bound } = task;
        if let Some(observer) = &self.observer {
            event::tell(Some(observer), &Event::Started { device: self.name(device) });
        }
        match Arc::get_mut(call) {
            Some(call) => {
                call.handoff.reset();
                call.device = device;
            }
            // The thread that finishes the last one later has it, or a handle that is worth nothing any more.
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
        // It may have been moved since the last time.
        if site.cpu.is_some() && !self.placer.machine().is_synthetic() {
            site.cpu = current_cpu();
        }
        answer.map(|outcome| self.ended(device, outcome, site.cpu))
    }

    /// For the calls of one thread.
    fn new_call(self: &Arc<Self>, device: DeviceId) -> Arc<Call> {
        Arc::new(Call { handoff: Handoff::new(), ends: self.clone(), device })
    }

    /// A callback is over now.
    fn ended(&self, device: DeviceId, outcome: Outcome, cpu: Option<CpuId>) -> Ended {
        if let Outcome::Failed(message) = &outcome {
            tracing::warn!(device = self.name(device), %message, "shutdown callback failed");
        }
        Ended { device, outcome, at: self.clock.now(), cpu }
    }

    fn name(&self, device: DeviceId) -> &str {
        self.state.graph().name(device)
    }

    /// What the observer is to be told about a callback that is over, if there is an observer.
    fn told(&self, ended: Option<&Ended>) -> Option<(DeviceId, Outcome)> {
        self.observer.as_ref()?;
        ended.map(|e| (e.device, e.outcome.clone()))
    }

    fn tell_finished(&self, device: DeviceId, outcome: &Outcome, done: usize) {
        let (device, total) = (self.name(device), self.state.total());
        event::tell(self.observer.as_ref(), &Event::Finished { device, outcome, done, total });
    }

    fn tell_news(&self, news: News) {
        let observer = self.observer.as_ref();
        match news {
            News::Overdue { device, after } => {
                let device = self.name(device);
                tracing::warn!(device, ?after, "a shutdown callback is late");
                event::tell(observer, &Event::Overdue { device, after });
            }
            News::Skipped { device, outcome, done } => {
                self.tell_finished(device, &outcome, done);
                self.state.told();
            }
            News::GaveUp { left } => {
                tracing::warn!(
                    left,
                    "the shutdown gives up: some devices hang, or wait for those that do"
                );
                event::tell(observer, &Event::GaveUp { left });
            }
        }
    }
}

/// How the loop ended.
enum Through {
    /// All is done, or it was aborted.
    Over,
    /// The counting has begun; this is what the loop ran then.
    Counts(Option<Ended>),
}

impl Ends for ShutdownRun {
    fn ended_later(self: Arc<Self>, device: DeviceId, answer: Answer) {
        let ended = self.ended(device, answered(answer), None);
        let told = self.told(Some(&ended));
        if let Some(owed) = self.state.ended_later(ended, &mut Scratch::default()) {
            self.pay(owed, told);
        }
    }
}

/// How a callback ended that was finished, or whose handle was dropped.
fn answered(answer: Answer) -> Outcome {
    match answer {
        None => Outcome::Ok,
        Some(Failure::Said(error)) => Outcome::Failed(error.to_string()),
        Some(Failure::Dropped) => Outcome::Failed(ShutdownError::dropped().to_string()),
    }
}

impl Watched for ShutdownRun {
    fn look(self: Arc<Self>) -> Option<Duration> {
        let now = self.clock.now();
        let look = self.state.look(now, &mut self.pace.lock(), is_blocked);
        let (mut deadline, counts) = self.state.look_at_deadlines(now);
        if counts || look == Look::Count {
            let mut scratch = Scratch::default();
            self.state.count(&mut scratch);
            if counts {
                deadline = self.state.look_at_deadlines(now).0;
            }
        }
        let owed = self.state.owes(now, &mut Scratch::default());
        self.pay(owed, None);
        let again = if let Look::Again(after) = look { Some(after) } else { None };
        again.into_iter().chain(deadline).min()
    }
}

/// Whether a thread of this process sleeps just now. Where the system doesn't say so, it does: a
/// callback that takes long blocks, as a rule.
fn is_blocked(thread: Option<Tid>) -> bool {
    thread.and_then(run_state) != Some(RunState::Ready)
}

/// A helper that was asked for. Should the pools drop it unused, the caller is told to do without.
struct Ticket(Option<Arc<ShutdownRun>>);

impl Ticket {
    fn help(mut self) {
        if let Some(run) = self.0.take() {
            run.help();
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if let Some(run) = self.0.take() {
            run.state.helper_lost();
        }
    }
}
