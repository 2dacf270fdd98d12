//! Drives the registry with threads: does what its steps ask for, and calls the drivers.
//!
//! Guards: `I:` immutable, `L:` lock (what it guards is named). Lock order: `state` comes before the
//! lists of deferred devices, and nothing is called while it is held.

use super::inside::{Around, Inside};
use crate::done::{ProbeDone, ProbeResult};
use crate::driver::{Bound, ProbeContext, ProbeError, caught};
use crate::event::{self, Event, Observer};
use crate::handoff::Handoff;
use crate::placement::Placer;
use crate::record::{Clock, Site};
use crate::registry::{
    Begun, CallerStep, Devices, Drivers, Due, Effects, Finished, Key, Named, Next,
};
use crate::shutdown::{Outline, ShutdownState};
use crate::watch::Watch;
use crate::{AsyncProbe, Cancel, DeviceDecl};
use corewise_sync::thread::current;
use corewise_sync::{Condvar, Mutex, MutexGuard, context};
use corewise_timeline::Outcome;
use corewise_workqueue::Work;
use std::sync::Arc;
use std::time::Duration;

/// What a manager and its workers share.
pub(crate) struct Registry {
    /// I: where probes run.
    pub placer: Arc<Placer>,
    /// I: counts from the making of the manager.
    pub clock: Clock,
    /// L: is the lock; guards everything about devices and drivers.
    pub state: Mutex<State>,
    /// L: with `state`; whoever waits for some device waits here.
    pub changed: Condvar,
    /// L: with `state`; the caller of a bring-up waits here.
    pub caller: Condvar,
    /// I: goes off at the deferral timeout.
    pub deferral_timer: Work,
    /// I: goes off when the next probe will be past its deadline.
    pub deadline_timer: Work,
}

pub(crate) struct State {
    pub devices: Devices,
    pub drivers: Drivers,
    /// Which drivers are asked to probe devices asynchronously that are added one by one.
    pub asked: AsyncProbe,
    /// The observer of the bring-up in progress.
    pub observer: Option<Observer>,
    /// What the caller of the bring-up in progress is inside of.
    pub around: Around,
    /// Tells probes outside of a bring-up to give up: thrown by the shutdown.
    pub cancel: Cancel,
    /// How many are unbinding devices.
    pub walks: usize,
    /// How many wait for some device to change. Each probe's end is a change, and to wake nobody is a
    /// system call, too.
    pub sleepers: usize,
    /// How long after the first bring-up devices may wait for what is not declared or optional.
    pub deferral_timeout: Duration,
    /// When that is over; `None` before the first bring-up has ended, or a first device was added.
    pub deferral_ends: Option<Duration>,
    /// When the deadline timer goes off.
    pub looks_at: Option<Duration>,
    /// What a shutdown will need to know, and of which count of changes it is true.
    pub outline: Option<(u64, Arc<Outline>)>,
    /// Looks at the clock during a shutdown, if one may need that.
    pub watch: Option<Arc<Watch>>,
    /// The shutdown in progress.
    pub shutdown: Option<(Arc<ShutdownState>, Clock)>,
    /// What a shutdown left undone, by device of its graph.
    pub left: Vec<Option<Arc<dyn Bound>>>,
}

impl Registry {
    /// Makes a step under the lock, wakes whom it concerns, and returns what else is owed.
    pub(crate) fn locked<R>(
        &self,
        step: impl FnOnce(&mut State, Duration, &mut Effects) -> R,
    ) -> (R, Effects) {
        let mut fx = Effects::default();
        let mut state = self.state.lock();
        let result = step(&mut state, self.clock.now(), &mut fx);
        self.wake(&state, &mut fx);
        (result, fx)
    }

    /// Makes a step under the lock, and does all that it asks for.
    pub(crate) fn step<R>(
        self: &Arc<Self>,
        step: impl FnOnce(&mut State, Duration, &mut Effects) -> R,
    ) -> R {
        let (result, fx) = self.locked(step);
        self.apply(fx);
        result
    }

    /// Wakes those whom a step concerns, under the lock.
    fn wake(&self, state: &State, fx: &mut Effects) {
        if state.devices.caller_is_wanted() {
            self.caller.notify_all();
        }
        if std::mem::take(&mut fx.wake) && state.sleepers > 0 {
            self.changed.notify_all();
        }
    }

    /// Sleeps until some device has changed, or for no reason.
    pub(super) fn sleep<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        state.sleepers += 1;
        let mut state = self.changed.wait(state);
        state.sleepers -= 1;
        state
    }

    /// Does what a step asked for. Probes that its caller is to make itself are made here and now.
    pub(crate) fn apply(self: &Arc<Self>, mut fx: Effects) {
        for (due, node) in std::mem::take(&mut fx.queue) {
            let ticket = Ticket { registry: Some(self.clone()), due };
            self.placer.spawn(node, move |cpu| ticket.probe(cpu));
        }
        if let Some(number) = fx.late_worker {
            let ticket = LateTicket { registry: Some(self.clone()), number };
            // Where it is refused the ticket is dropped, and does what there is to do.
            drop(self.placer.queue().execute(move || ticket.work()));
        }
        let inside = Inside::enter(self);
        for trash in std::mem::take(&mut fx.trash) {
            if let Err(panic) = caught(|| drop(trash)) {
                tracing::error!(panic, "dropping a device or its driver panicked");
            }
        }
        drop(inside);
        if fx.hopes {
            self.set_deferral_timer();
        }
        if let Some(after) = fx.look_after {
            self.look_after(after);
        }
        self.tell(std::mem::take(&mut fx.finished));
        if let Some(left) = fx.gave_up {
            let observer = self.state.lock().observer.clone();
            event::tell(observer.as_ref(), &Event::GaveUp { left });
        }
        for due in std::mem::take(&mut fx.mine) {
            self.probe_placed(due);
        }
    }

    /// Tells the observer of the bring-up which devices are done with.
    fn tell(self: &Arc<Self>, finished: Vec<(Arc<DeviceDecl>, Outcome, usize)>) {
        if finished.is_empty() {
            return;
        }
        let (observer, total) = {
            let state = self.state.lock();
            (state.observer.clone(), state.devices.batch_total())
        };
        for (decl, outcome, done) in &finished {
            let (device, done) = (decl.name.as_str(), *done);
            event::tell(observer.as_ref(), &Event::Finished { device, outcome, done, total });
        }
        self.was_told(finished.len());
    }

    /// The observer was told about so many devices; the caller may have waited for that.
    fn was_told(&self, devices: usize) {
        if devices == 0 {
            return;
        }
        let state = &mut *self.state.lock();
        state.devices.told(devices);
        if state.devices.caller_is_wanted() {
            self.caller.notify_all();
        }
    }

    /// Waits until every device of the bring-up in progress is settled, and probes the synchronous
    /// ones. Blocks.
    pub(crate) fn run_batch(self: &Arc<Self>) -> Option<Finished> {
        let limit = self.state.lock().devices.batch_limit();
        limit.into_iter().for_each(|limit| self.look_after(limit));
        loop {
            let (step, fx) = self.locked(|state, now, fx| state.devices.caller_step(now, fx));
            let idle = fx.is_empty();
            self.apply(fx);
            match step {
                CallerStep::Run(due) => self.probe_placed(due),
                CallerStep::Wait if idle => {
                    let help = self.state.lock().devices.to_help_with();
                    if let Some(due) = help {
                        Ticket { registry: Some(self.clone()), due }.probe(None);
                        continue;
                    }
                    context::blocking("device bring-up", || {
                        let state = self.state.lock();
                        if !state.devices.caller_is_wanted() {
                            drop(self.caller.wait(state));
                        }
                    });
                }
                CallerStep::Wait => {}
                CallerStep::Done => return self.state.lock().devices.finish_batch(),
            }
        }
    }

    /// Probes a synchronous device near its node, and waits for the driver to return.
    pub(crate) fn probe_placed(self: &Arc<Self>, due: Due) {
        let node = self.state.lock().devices.node(due.key);
        let ticket = Ticket { registry: Some(self.clone()), due };
        let around = Around::here();
        self.placer.call(node, move |cpu| {
            let _around = around.enter();
            ticket.probe(cpu);
        });
    }

    /// Probes one device, on this thread.
    fn probe(self: &Arc<Self>, key: Key, placed: Option<u32>) {
        loop {
            let site = Site::here(self.placer.machine(), placed);
            let me = current().id();
            let (begun, observer, cancel, around) = self.step(|state, now, fx| {
                let begun = state.devices.begin(key, &site, me, now, fx);
                let batch = begun.as_ref().is_some_and(|begun| begun.in_batch);
                let cancel = state.devices.batch_cancel().filter(|_| batch);
                let cancel = cancel.unwrap_or_else(|| state.cancel.clone());
                let around = if batch { state.around.clone() } else { Around::default() };
                (begun, state.observer.clone(), cancel, around)
            });
            let Some(begun) = begun else { return };
            let device = begun.decl.clone();
            if begun.in_batch {
                let device = device.name.as_str();
                event::tell(observer.as_ref(), &Event::Started { device });
            }
            let call = Arc::new(Call { registry: self.clone(), key, handoff: Handoff::new() });
            let around = around.enter();
            let panicked = self.call_driver(begun, &cancel, &call).err();
            drop(around);
            let ended = match panicked {
                None => call.handoff.returned().flatten(),
                Some(message) => {
                    let panicked = || (Err(ProbeError::panicked(message)), self.clock.now());
                    Some(
                        call.handoff
                            .panicked()
                            .flatten()
                            .filter(|(r, _)| r.is_ok())
                            .unwrap_or_else(panicked),
                    )
                }
            };
            let Some((result, at)) = ended else {
                self.state.lock().devices.returned(key, me);
                return;
            };
            if result.is_err() {
                self.remove_children(key);
            }
            if self.end(key, &device.name, result, at, true) == Next::Done {
                return;
            }
        }
    }

    /// Calls the driver. An error says with what it panicked. What the device needs is let go of
    /// before this returns: the shutdown may drop it as soon as the device is settled, and in its own
    /// order, so this thread must not be the one that holds it last.
    fn call_driver(&self, begun: Begun, cancel: &Cancel, call: &Arc<Call>) -> Result<(), String> {
        let Begun { decl, driver, node, needs, hopeless, .. } = begun;
        let cx = ProbeContext::new(&decl, node, &needs, cancel).after_deferral_timeout(hopeless);
        let its = call.clone();
        let done = ProbeDone::new(move |result| its.finished(result));
        let _inside = Inside::enter(self);
        caught(|| self.placer.probing(|| driver.driver.start_probe(&cx, done)))
    }

    /// Takes in how a probe ended.
    fn end(
        self: &Arc<Self>,
        key: Key,
        device: &str,
        result: ProbeResult,
        at: Duration,
        again: bool,
    ) -> Next {
        if let Err(error) = &result {
            if error.is_deferral() || error.is_no_device() {
                tracing::debug!(device, %error, "not probed");
            } else {
                tracing::warn!(device, %error, "probe failed");
            }
        }
        self.step(|state, now, fx| state.devices.end(key, result, at, now, again, fx))
    }

    /// The late worker: probes, one after another, what nobody waits for.
    fn work_late(self: &Arc<Self>, number: u64) {
        loop {
            let (next, fx) = self.locked(|state, now, fx| state.devices.next_late(number, now, fx));
            self.apply(fx);
            match next {
                Some(due) => self.probe_placed(due),
                None => return,
            }
        }
    }

    /// Sets the timer that ends the waiting, unless the waiting has not begun, or is over.
    pub(crate) fn set_deferral_timer(&self) {
        let left = {
            let state = self.state.lock();
            let left = state.deferral_ends.map(|ends| ends.saturating_sub(self.clock.now()));
            left.filter(|_| state.devices.hopes())
        };
        if let Some(left) = left
            && !self.deferral_timer.is_pending()
        {
            let _ = self.placer.queue().queue_delayed(&self.deferral_timer, left);
        }
    }

    /// The deferral timeout has passed, unless it was moved: says who is waiting, and for whom.
    pub(crate) fn deferral_over(self: &Arc<Self>) {
        let pending = self.step(|state, now, fx| {
            if state.deferral_ends.is_none_or(|ends| now < ends) || state.devices.is_closed() {
                return None;
            }
            let pending = state.devices.pending(now);
            state.devices.expire(now, fx);
            Some(pending)
        });
        match pending {
            Some(pending) => {
                for device in pending {
                    tracing::warn!(%device, "not up at the deferral timeout");
                }
            }
            None => self.set_deferral_timer(),
        }
    }

    /// Has somebody look for overdue probes after that time at the latest.
    pub(crate) fn look_after(&self, after: Duration) {
        let mut state = self.state.lock();
        let at = self.clock.now() + after;
        if state.looks_at.is_none_or(|looks_at| at < looks_at) {
            state.looks_at = Some(at);
            // Under the lock, so that the timer is that of the latest such step.
            let _ = self.placer.queue().mod_delayed(&self.deadline_timer, after);
        }
    }

    /// Names whoever is past its deadline.
    pub(crate) fn look(self: &Arc<Self>) {
        let (named, next, observer) = self.step(|state, now, fx| {
            state.looks_at = None;
            let (named, next) = state.devices.overdue(now, fx);
            (named, next, state.observer.clone())
        });
        let mut told = 0;
        for Named { decl, after, in_batch } in named {
            let device = decl.name.as_str();
            tracing::warn!(device, ?after, "a probe is past its deadline");
            if in_batch.is_some() && observer.is_some() {
                event::tell(observer.as_ref(), &Event::Overdue { device, after });
                told += 1;
            }
        }
        self.was_told(told);
        if let Some(next) = next {
            self.look_after(next);
        }
    }

    /// Waits for `done`, which is looked at under the lock whenever some device has changed.
    pub(crate) fn wait_until(
        &self,
        what: &'static str,
        mut done: impl FnMut(&mut State) -> bool,
    ) -> MutexGuard<'_, State> {
        let mut state = self.state.lock();
        if done(&mut state) {
            return state;
        }
        drop(state);
        context::blocking(what, || {
            let mut state = self.state.lock();
            while !done(&mut state) {
                state = self.sleep(state);
            }
            state
        })
    }
}

impl crate::cancel::Listener for Registry {
    fn cancelled(&self) {
        self.state.lock().devices.news();
        self.caller.notify_all();
        self.changed.notify_all();
    }
}

/// One call of a driver, which may end before the driver returns or after. What ends before is taken
/// in by the thread that called, when it is back: it still holds what the device needs.
struct Call {
    /// I: what the call belongs to.
    registry: Arc<Registry>,
    /// I: whom it is about.
    key: Key,
    /// I: has its own lock.
    handoff: Handoff<(ProbeResult, Duration)>,
}

impl Call {
    /// The driver says how the probe ended.
    fn finished(&self, result: ProbeResult) {
        let at = self.registry.clock.now();
        let Some(Some((result, at))) = self.handoff.finish(Some((result, at))) else { return };
        let Some(decl) = self.registry.state.lock().devices.decl(self.key) else { return };
        let ending = Ending {
            what: Some((result, at)),
            registry: self.registry.clone(),
            key: self.key,
            decl,
        };
        if ending.has_children_to_remove() {
            // Their callbacks may block, and this is whoever finishes the probe.
            drop(self.registry.placer.queue().execute(move || ending.with_children()));
        }
    }
}

/// The end of a probe, which is taken in when this is dropped.
struct Ending {
    registry: Arc<Registry>,
    key: Key,
    decl: Arc<DeviceDecl>,
    what: Option<(ProbeResult, Duration)>,
}

impl Ending {
    fn has_children_to_remove(&self) -> bool {
        let failed = self.what.as_ref().is_some_and(|(result, _)| result.is_err());
        failed && self.registry.has_children(self.key)
    }

    /// Removes the children that the failed probe has registered, first.
    fn with_children(self) {
        self.registry.remove_children(self.key);
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        if let Some((result, at)) = self.what.take() {
            self.registry.end(self.key, &self.decl.name, result, at, false);
        }
    }
}

/// The duty to settle one device that was queued. It is done also where the pools drop the work
/// without running it, so that nobody waits for a probe that can't come.
struct Ticket {
    registry: Option<Arc<Registry>>,
    due: Due,
}

/// What is said of a device whose worker will never come.
const GONE: &str = "its worker pools were shut down before it could be probed; \
                    shut down devices before pools";

impl Ticket {
    fn probe(mut self, placed: Option<u32>) {
        if let Some(registry) = self.registry.take() {
            registry.probe(self.due.key, placed);
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if let Some(registry) = self.registry.take() {
            let gone = ProbeError::failed(GONE);
            registry.step(|state, now, fx| state.devices.lost(self.due, gone, now, fx));
        }
    }
}

/// The duty of the late worker.
struct LateTicket {
    registry: Option<Arc<Registry>>,
    number: u64,
}

impl LateTicket {
    fn work(mut self) {
        if let Some(registry) = self.registry.take() {
            registry.work_late(self.number);
        }
    }
}

impl Drop for LateTicket {
    fn drop(&mut self) {
        if let Some(registry) = self.registry.take() {
            // All that it would have probed fails.
            while registry.step(|state, now, fx| {
                let next = state.devices.next_late(self.number, now, fx);
                let gone = || ProbeError::failed(GONE);
                next.map(|due| state.devices.lost(due, gone(), now, fx)).is_some()
            }) {}
        }
    }
}
