//! Drives a shutdown: the caller's loop, the helpers' loop, and the serial loop.

use super::looped::Look;
use super::plan::Kind;
use super::policy::SLOW;
use super::report::ShutdownMode;
use super::state::{CallerStep, Ended, HelperStep, Owed, Scratch, ShutdownState, Task};
use crate::driver::{ShutdownError, caught};
use crate::event::{self, Event, Observer};
use crate::handoff::Handoff;
use crate::placement::Placer;
use crate::record::{Clock, Record, Site};
use crate::shutdown_done::{Answer, Ends, ShutdownDone};
use crate::watch::{Watch, Watched};
use crate::{Cancel, DeviceId};
use corewise_sync::context;
use corewise_timeline::Outcome;
use std::sync::Arc;
use std::time::Duration;

/// One shutdown and all that its threads share.
pub(crate) struct ShutdownRun {
    pub state: Arc<ShutdownState>,
    pub placer: Arc<Placer>,
    pub observer: Option<Observer>,
    pub abort: Cancel,
    pub clock: Clock,
}

impl ShutdownRun {
    /// Shuts down, and returns when everything is, or when the shutdown was aborted. Blocks.
    /// `watch` looks at the clock meanwhile, if there is one.
    pub(crate) fn run(self: &Arc<Self>, mode: ShutdownMode, watch: Option<&Watch>) {
        let listener: Arc<dyn crate::cancel::Listener> = self.state.clone();
        self.abort.listen(Arc::downgrade(&listener));
        if mode == ShutdownMode::Serial {
            let _: Through = self.one_by_one(false);
            return;
        }
        if let Some(_watching) = watch.and_then(|w| w.watch(self.clone(), SLOW)) {
            if let Through::Counts(ended) = self.one_by_one(true) {
                self.by_counters(ended);
            }
        } else {
            // Nobody would see that a callback takes long: count from the beginning.
            self.state.count(&mut Scratch::default());
            self.by_counters(None);
        }
    }

    /// One by one in reverse base order: no counters, no queue, no thread. With `sync_first`, what
    /// has to wait for an asynchronous device comes after all the rest.
    fn one_by_one(self: &Arc<Self>, sync_first: bool) -> Through {
        let (graph, kinds) = (self.state.graph(), self.state.kinds());
        let site = Site::here(self.placer.machine(), None);
        let call = Arc::default();
        let mut at =
            Loop { site, now: self.clock.now(), passed: Vec::new(), call, counts: sync_first };
        let order = graph.order().iter().rev().copied();
        let through = if sync_first {
            let mut waits = vec![false; graph.len()];
            let mut later = Vec::new();
            let mut now_or_later = |&id: &DeviceId| {
                if waits[id.index()] || kinds[id.index()] == Kind::Async {
                    graph.needs(id).iter().for_each(|need| waits[need.index()] = true);
                    later.push(id);
                    return false;
                }
                true
            };
            let first = order.filter(|id| now_or_later(id)).find_map(|id| self.next(id, &mut at));
            first.or_else(|| later.into_iter().find_map(|id| self.next(id, &mut at)))
        } else {
            order.into_iter().find_map(|id| self.next(id, &mut at))
        };
        self.state.serial_passed(&mut at.passed);
        through.unwrap_or(Through::Over)
    }

    /// Shuts one device down, in the loop. Returns how the loop ends, where it ends there.
    fn next(self: &Arc<Self>, id: DeviceId, at: &mut Loop) -> Option<Through> {
        match self.state.kinds()[id.index()] {
            Kind::Absent => {}
            Kind::NoCallback => {
                at.passed.push(Record::instant(id, at.now, None, Outcome::Ok, true));
            }
            Kind::Sync | Kind::Async => {
                if self.abort.is_cancelled() {
                    return Some(Through::Over);
                }
                let start = self.state.serial_start(id, at.now, &at.site, &mut at.passed);
                let Some(task) = start else { return Some(Through::Counts(None)) };
                let Some(ended) = self.call(task, &mut at.call) else {
                    return self.next_is_later(id, at);
                };
                at.now = ended.at;
                let told = self.told(Some(&ended));
                match self.state.serial_end(ended) {
                    Ok(owed) => self.pay(owed, told),
                    Err(ended) => return Some(Through::Counts(Some(ended))),
                }
            }
        }
        None
    }

    /// The callback has returned, and the device will be over later. Where others may run meanwhile
    /// the counting begins; else it is waited for.
    fn next_is_later(self: &Arc<Self>, id: DeviceId, at: &mut Loop) -> Option<Through> {
        self.state.detached(id);
        if at.counts {
            self.state.count(&mut Scratch::default());
            return Some(Through::Counts(None));
        }
        context::blocking("device shutdown", || self.state.serial_wait());
        at.now = self.clock.now();
        self.state.is_counted().then_some(Through::Counts(None))
    }

    /// The caller's loop once the counting has begun: synchronous devices, and asynchronous ones
    /// where it may help. `ended` is what it ran until then.
    fn by_counters(self: &Arc<Self>, mut ended: Option<Ended>) {
        let mut scratch = Scratch::default();
        let mut call = Arc::default();
        let site = Site::here(self.placer.machine(), None);
        let mut waited = false;
        loop {
            let told = self.told(ended.as_ref());
            let now = self.now_after(ended.as_ref());
            let (step, owed) =
                self.state.caller_step(now, ended.take(), &site, waited, &mut scratch);
            self.pay(owed, told);
            match step {
                CallerStep::Run(task) => ended = self.call(task, &mut call),
                CallerStep::Wait(limit) => {
                    waited = context::blocking("device shutdown", || self.state.caller_wait(limit));
                }
                CallerStep::Done | CallerStep::Aborted => return,
            }
        }
    }

    /// A helper's loop.
    fn help(self: &Arc<Self>) {
        self.state.helper_comes();
        let site = Site::here(self.placer.machine(), None);
        let mut scratch = Scratch::default();
        let mut call = Arc::default();
        let (mut ended, mut watched) = (None, false);
        loop {
            let told = self.told(ended.as_ref());
            let now = self.now_after(ended.as_ref());
            let (step, owed) =
                self.state.helper_step(now, ended.take(), &site, watched, &mut scratch);
            self.pay(owed, told);
            watched = matches!(step, HelperStep::Watch(_));
            match step {
                HelperStep::Run(task) => ended = self.call(task, &mut call),
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
            drop(self.placer.queue().spawn(move || ticket.help()));
        }
        if let Some((id, outcome)) = told {
            self.tell_finished(id, &outcome, owed.done);
            self.state.told();
        }
    }

    /// Calls a device back. `None`: it will be over later. `call` is kept from call to call, since
    /// most are over when they return.
    fn call(self: &Arc<Self>, task: Task, call: &mut Arc<Handoff<Answer>>) -> Option<Ended> {
        let Task { device, bound } = task;
        let name = self.state.graph().name(device);
        event::tell(self.observer.as_ref(), &Event::Started { device: name });
        let done = ShutdownDone::to(call.clone(), self.clone(), device);
        let begin = || context::blocking("device shutdown", || bound.start_shutdown(done));
        let answer = match caught(begin) {
            Ok(()) => call.returned().map(answered),
            Err(message) => {
                let panicked = || Outcome::Failed(format!("the callback panicked: {message}"));
                Some(call.panicked().flatten().map_or_else(panicked, |r| answered(Some(r))))
            }
        };
        let ended = answer.map(|outcome| self.ended(device, outcome));
        match Arc::get_mut(call) {
            Some(call) => call.reset(),
            // Who finishes it later, or has a handle that is worth nothing any more.
            None => *call = Arc::default(),
        }
        ended
    }

    /// A callback is over now.
    fn ended(&self, device: DeviceId, outcome: Outcome) -> Ended {
        if let Outcome::Failed(message) = &outcome {
            tracing::warn!(device = self.state.graph().name(device), %message, "shutdown callback failed");
        }
        Ended { device, outcome, at: self.clock.now() }
    }

    /// What the observer is to be told about a callback that is over, if there is an observer.
    fn told(&self, ended: Option<&Ended>) -> Option<(DeviceId, Outcome)> {
        self.observer.as_ref()?;
        ended.map(|e| (e.device, e.outcome.clone()))
    }

    fn tell_finished(&self, id: DeviceId, outcome: &Outcome, done: usize) {
        let (device, total) = (self.state.graph().name(id), self.state.total());
        event::tell(self.observer.as_ref(), &Event::Finished { device, outcome, done, total });
    }
}

/// Where the serial loop is.
struct Loop {
    site: Site,
    now: Duration,
    /// Devices without a callback since the last one that has one.
    passed: Vec<Record>,
    call: Arc<Handoff<Answer>>,
    /// A device that takes long makes the counting begin.
    counts: bool,
}

/// How the serial loop ended.
enum Through {
    /// All is done, or it was aborted.
    Over,
    /// The counting has begun; this is what the loop ran then.
    Counts(Option<Ended>),
}

impl Ends for ShutdownRun {
    fn ended_later(self: Arc<Self>, device: DeviceId, answer: Answer) {
        let ended = self.ended(device, answered(answer));
        let told = self.told(Some(&ended));
        let owed = self.state.ended_later(ended, &mut Scratch::default());
        self.pay(owed, told);
    }
}

/// How a callback ended that was finished, or whose handle was dropped.
fn answered(answer: Answer) -> Outcome {
    match answer {
        Some(Ok(())) => Outcome::Ok,
        Some(Err(error)) => Outcome::Failed(error.to_string()),
        None => Outcome::Failed(ShutdownError::dropped().to_string()),
    }
}

impl Watched for ShutdownRun {
    fn look(self: Arc<Self>) -> Option<Duration> {
        let now = self.clock.now();
        match self.state.look(now) {
            Look::Again(after) => return Some(after),
            Look::Count => {
                self.state.count(&mut Scratch::default());
                let owed = self.state.owes(now);
                self.pay(owed, None);
            }
            Look::Over => {}
        }
        None
    }
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
