//! Drives a shutdown: the caller's loop, the helpers' loop, and the serial loop.

use super::plan::Kind;
use super::report::ShutdownMode;
use super::state::{CallerStep, Ended, HelperStep, Owed, Scratch, ShutdownState, Task};
use crate::driver::{Bound, panic_message};
use crate::event::{self, Event, Observer};
use crate::placement::Placer;
use crate::record::{Clock, Record, Site};
use crate::{Cancel, DeviceId};
use corewise_sync::context;
use corewise_timeline::Outcome;
use std::panic::{AssertUnwindSafe, catch_unwind};
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
    pub(crate) fn run(self: &Arc<Self>, mode: ShutdownMode) {
        match mode {
            ShutdownMode::Serial => self.serial(),
            ShutdownMode::Parallel => self.parallel(),
        }
    }

    /// One by one in reverse base order: no counters, no queue, no thread.
    fn serial(&self) {
        let (graph, kinds) = (self.state.graph(), self.state.kinds());
        let site = Site::here(self.placer.machine(), None);
        let mut now = self.clock.now();
        let mut passed: Vec<Record> = Vec::new();
        for &id in graph.order().iter().rev() {
            match kinds[id.index()] {
                Kind::Absent => {}
                Kind::NoCallback => {
                    passed.push(Record::instant(id, now, None, Outcome::Ok, true));
                }
                Kind::Sync | Kind::Async => {
                    if self.abort.is_cancelled() {
                        break;
                    }
                    let bound = self.state.serial_start(id, now, &site, &mut passed);
                    let ended = self.call(id, &*bound);
                    drop(bound);
                    now = ended.at;
                    let told = self.observer.as_ref().map(|_| ended.outcome.clone());
                    let done = self.state.serial_end(ended);
                    self.tell_finished(id, told, done);
                }
            }
        }
        self.state.serial_passed(&mut passed);
    }

    /// The caller's loop: synchronous devices, and asynchronous ones where it may help.
    fn parallel(self: &Arc<Self>) {
        let listener: Arc<dyn crate::cancel::Listener> = self.state.clone();
        self.abort.listen(Arc::downgrade(&listener));
        let mut scratch = Scratch::default();
        self.state.seed(&mut scratch);
        let site = Site::here(self.placer.machine(), None);
        let (mut ended, mut waited) = (None, false);
        loop {
            let told = self.told(ended.as_ref());
            let now = self.now_after(ended.as_ref());
            let (step, owed) =
                self.state.caller_step(now, ended.take(), &site, waited, &mut scratch);
            self.pay(owed, told);
            match step {
                CallerStep::Run(task) => ended = Some(self.call_task(task)),
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
        let (mut ended, mut watched) = (None, false);
        loop {
            let told = self.told(ended.as_ref());
            let now = self.now_after(ended.as_ref());
            let (step, owed) =
                self.state.helper_step(now, ended.take(), &site, watched, &mut scratch);
            self.pay(owed, told);
            watched = matches!(step, HelperStep::Watch(_));
            match step {
                HelperStep::Run(task) => ended = Some(self.call_task(task)),
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
            self.tell_finished(id, Some(outcome), owed.done);
            self.state.told();
        }
    }

    fn call_task(&self, task: Task) -> Ended {
        self.call(task.device, &*task.bound)
    }

    fn call(&self, device: DeviceId, bound: &dyn Bound) -> Ended {
        let name = self.state.graph().name(device);
        event::tell(self.observer.as_ref(), &Event::Started { device: name });
        let call = || context::blocking("device shutdown", || bound.shutdown());
        let result = catch_unwind(AssertUnwindSafe(call));
        let at = self.clock.now();
        let outcome = match result {
            Ok(Ok(())) => Outcome::Ok,
            Ok(Err(error)) => Outcome::Failed(error.to_string()),
            Err(payload) => {
                Outcome::Failed(format!("the callback panicked: {}", panic_message(&*payload)))
            }
        };
        if let Outcome::Failed(message) = &outcome {
            tracing::warn!(device = name, %message, "shutdown callback failed");
        }
        Ended { device, outcome, at }
    }

    /// What the observer is to be told about a callback that is over, if there is an observer.
    fn told(&self, ended: Option<&Ended>) -> Option<(DeviceId, Outcome)> {
        self.observer.as_ref()?;
        ended.map(|e| (e.device, e.outcome.clone()))
    }

    fn tell_finished(&self, id: DeviceId, outcome: Option<Outcome>, done: usize) {
        if let Some(outcome) = outcome {
            let (device, total) = (self.state.graph().name(id), self.state.total());
            let event = Event::Finished { device, outcome: &outcome, done, total };
            event::tell(self.observer.as_ref(), &event);
        }
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
