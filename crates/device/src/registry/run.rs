//! Drives the registry with threads: does the duties of its steps, and calls the drivers.
//!
//! Guards: `I:` immutable, `L:` lock (its data is named). Lock order: `state` comes before the
//! lists of deferred devices, and nothing is called while it is held.

use std::sync::Arc;
use std::time::Duration;

use corewise_sync::thread::current;
use corewise_sync::{Condvar, Mutex, MutexGuard, context, text};
use corewise_timeline::Outcome;
use corewise_workqueue::Work;

use super::bring_up::{CallerStep, FinishedBringUp, OverdueDevice};
use super::devices::{DeviceKey, Devices, DueProbe, Effects};
use super::inside::{ProbesAround, ProbesInside};
use super::matching::Drivers;
use super::prober::{GONE, ProberDuty, Ticket};
use super::walk::Unbinding;
use crate::bound::Bound;
use crate::decl::DeviceDecl;
use crate::driver::AddsDevices;
use crate::error::{Error, ProbeError, caught};
use crate::event;
use crate::event::{Cancel, Event, Listener, Observer};
use crate::info::DeviceState;
use crate::placement::Placer;
use crate::record::Clock;
use crate::shutdown::{Outline, ShutdownState};
use crate::watch::Watch;

/// The state that a manager and its workers share.
pub(crate) struct Registry {
    /// I: places probes.
    pub placer: Arc<Placer>,
    /// I: counts from the creation of the manager.
    pub clock: Clock,
    /// L: is the lock; guards everything about devices and drivers.
    pub state: Mutex<RegistryState>,
    /// L: with `state`; a thread that waits for some device waits here.
    pub changed: Condvar,
    /// L: with `state`; the caller of a bring-up waits here.
    pub caller: Condvar,
    /// I: goes off at the deferral timeout.
    pub deferral_timer: Work,
    /// I: goes off when the next probe will be past its deadline.
    pub deadline_timer: Work,
}

pub(crate) struct RegistryState {
    pub devices: Devices,
    pub drivers: Drivers,
    /// The observer of the bring-up in progress.
    pub observer: Option<Observer>,
    /// The registries that the caller of the bring-up in progress is inside.
    pub around: ProbesAround,
    /// Switch for probes outside a bring-up: the shutdown throws it to make them give up.
    pub cancel: Cancel,
    /// Number of threads that are unbinding devices.
    pub walks: usize,
    /// Callbacks of those threads that run now, and the number of threads that wait for another's.
    pub unbindings: Vec<(DeviceKey, Arc<Unbinding>)>,
    pub waiting: usize,
    /// Number of threads that wait for some device to change. Each probe's end is a change, and a
    /// wake-up without a sleeper is a system call, too.
    pub sleepers: usize,
    /// Deferral timeout, counted from the first bring-up.
    pub deferral_timeout: Duration,
    /// End of the deferral timeout; `None` before the first bring-up has ended, or a first device
    /// was added.
    pub deferral_ends: Option<Duration>,
    /// Time at which the deadline timer fires.
    pub looks_at: Option<Duration>,
    /// Outline for a shutdown, with the count of changes for which it is true.
    pub outline: Option<(u64, Arc<Outline>)>,
    /// Watch of the clock during a shutdown, if one may need that.
    pub watch: Option<Arc<Watch>>,
    /// The shutdown in progress.
    pub shutdown: Option<(Arc<ShutdownState>, Clock)>,
    /// Objects that a shutdown left undone, by device of its graph.
    pub left: Vec<Option<Arc<dyn Bound>>>,
}

impl Registry {
    /// Makes a step under the lock, wakes the threads that it concerns, and returns its further
    /// duties.
    pub(crate) fn locked<R>(
        &self,
        step: impl FnOnce(&mut RegistryState, Duration, &mut Effects) -> R,
    ) -> (R, Effects) {
        let mut fx = Effects::default();
        let mut state = self.state.lock();
        let result = step(&mut state, self.clock.now(), &mut fx);
        self.wake(&state, &mut fx);
        (result, fx)
    }

    /// Makes a step under the lock, and does its duties.
    pub(crate) fn step<R>(
        self: &Arc<Self>,
        step: impl FnOnce(&mut RegistryState, Duration, &mut Effects) -> R,
    ) -> R {
        let (result, fx) = self.locked(step);
        self.apply(fx);
        result
    }

    /// Wakes the threads that a step concerns, under the lock.
    fn wake(&self, state: &RegistryState, fx: &mut Effects) {
        if state.devices.caller_is_wanted() {
            self.caller.notify_all();
        }
        if std::mem::take(&mut fx.wake) && state.sleepers > 0 {
            self.changed.notify_all();
        }
    }

    /// Sleeps until some device has changed, or for no reason.
    pub(super) fn sleep<'a>(
        &'a self,
        mut state: MutexGuard<'a, RegistryState>,
    ) -> MutexGuard<'a, RegistryState> {
        state.sleepers += 1;
        let mut state = self.changed.wait(state);
        state.sleepers -= 1;
        state
    }

    /// Queues a prober, which queues those of `others` first. The prober may take the CPU of the
    /// queuing thread for as long as its probe computes. Further items of that thread would be
    /// queued only after that.
    pub(super) fn queue_prober(
        self: &Arc<Self>,
        node: Option<u32>,
        due: DueProbe,
        others: Vec<DueProbe>,
    ) {
        let ticket = Ticket::new(self, due, ProberDuty::Line(node)).with(others);
        self.placer.spawn(node, move |cpu| ticket.probe(cpu));
    }

    /// Adds a device, and probes it if it can be probed: see
    /// [`DeviceManager::add`](crate::DeviceManager::add).
    pub(crate) fn add(self: &Arc<Self>, decl: DeviceDecl) -> Result<DeviceState, Error> {
        let decl = Arc::new(decl);
        let me = current().id();
        // Drivers are asked without the lock. If one comes or goes meanwhile, they are asked once
        // more.
        let (key, fx) = loop {
            let drivers = self.state.lock().drivers.clone();
            let candidates = drivers.candidates(&decl, false);
            let (added, fx) = self.locked(|state, now, fx| {
                if state.devices.is_closed() {
                    return Err(Error::ShuttingDown);
                }
                if state.drivers.version != drivers.version {
                    return Ok(None);
                }
                let faults = state.devices.refuse(&decl);
                if !faults.is_empty() {
                    return Err(Error::Rejected(faults));
                }
                if !state.devices.has_bring_up() {
                    state.begin_deferral(now, fx);
                }
                Ok(Some(state.devices.add(decl.clone(), candidates, me, now, fx)))
            });
            if let Some(key) = added? {
                break (key, fx);
            }
        };
        self.apply(fx);
        self.state_after(key, &decl.name)
    }

    /// Returns a device's state after the work of its own call is over or continues elsewhere.
    pub(crate) fn state_after(&self, key: DeviceKey, name: &str) -> Result<DeviceState, Error> {
        let state = self.state.lock().devices.state(key);
        state.ok_or_else(|| Error::NoSuchDevice(name.to_string()))
    }

    /// Does the duties of a step. It makes the probes of the step's caller here and now.
    pub(crate) fn apply(self: &Arc<Self>, mut fx: Effects) {
        let mut queue = std::mem::take(&mut fx.queue);
        while !queue.is_empty() {
            let (due, node) = queue.remove(0);
            let (near, others): (Vec<_>, _) = queue.into_iter().partition(|(_, its)| *its == node);
            queue = others;
            self.queue_prober(node, due, near.into_iter().map(|(due, _)| due).collect());
        }
        if let Some(number) = fx.late_worker {
            let ticket = LateTicket { registry: Some(self.clone()), number };
            // If it is refused, the ticket is dropped, and does the same.
            drop(self.placer.queue().execute(move || ticket.work()));
        }
        let inside = ProbesInside::enter(self);
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

    /// Reports settled devices to the observer of the bring-up.
    fn tell(self: &Arc<Self>, finished: Vec<(Arc<DeviceDecl>, Outcome, usize)>) {
        if finished.is_empty() {
            return;
        }
        let (observer, total) = {
            let state = self.state.lock();
            (state.observer.clone(), state.devices.bring_up_total())
        };
        for (decl, outcome, done) in &finished {
            let (device, done) = (decl.name.as_str(), *done);
            event::tell(observer.as_ref(), &Event::Finished { device, outcome, done, total });
        }
        self.was_told(finished.len());
    }

    /// Records that the observer has got that many devices; the caller may have waited for that.
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
    pub(crate) fn run_bring_up(self: &Arc<Self>) -> Option<FinishedBringUp> {
        let limit = self.state.lock().devices.bring_up_limit();
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
                        Ticket::new(self, due, ProberDuty::One).probe(None);
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
                CallerStep::Done => return self.state.lock().devices.finish_bring_up(),
            }
        }
    }

    /// Runs the late worker: probes, one after another, the devices without a waiting caller.
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
        if let Some(left) = left {
            if !self.deferral_timer.is_pending() {
                let _ = self.placer.queue().queue_delayed(&self.deferral_timer, left);
            }
        }
    }

    /// Ends the deferral timeout, unless it was moved: logs each device that waits, with its
    /// missing needs.
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
                    tracing::warn!(%device, "a device is not up at the deferral timeout");
                }
            }
            None => self.set_deferral_timer(),
        }
    }

    /// Schedules a check for overdue probes after that time at the latest.
    pub(crate) fn look_after(&self, after: Duration) {
        let mut state = self.state.lock();
        let at = self.clock.now().saturating_add(after);
        if state.looks_at.is_none_or(|looks_at| at < looks_at) {
            state.looks_at = Some(at);
            // Under the lock, so that the timer is that of the latest such step.
            let _ = self.placer.queue().mod_delayed(&self.deadline_timer, after);
        }
    }

    /// Logs and reports each device past its deadline.
    pub(crate) fn look(self: &Arc<Self>) {
        let (named, next, observer) = self.step(|state, now, fx| {
            state.looks_at = None;
            let (named, next) = state.devices.overdue(now, fx);
            (named, next, state.observer.clone())
        });
        let mut told = 0;
        for OverdueDevice { decl, after, in_bring_up } in named {
            let device = decl.name.as_str();
            // Debug: a length of time.
            tracing::warn!(device = %text::name(device), ?after, "a probe is past its deadline");
            if in_bring_up.is_some() && observer.is_some() {
                event::tell(observer.as_ref(), &Event::Overdue { device, after });
                told += 1;
            }
        }
        self.was_told(told);
        if let Some(next) = next {
            self.look_after(next);
        }
    }

    /// Waits for `done`, which is checked under the lock whenever some device has changed.
    pub(crate) fn wait_until(
        &self,
        what: &'static str,
        mut done: impl FnMut(&mut RegistryState) -> bool,
    ) -> MutexGuard<'_, RegistryState> {
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

impl AddsDevices for Arc<Registry> {
    fn add(&self, decl: DeviceDecl) -> Result<DeviceState, Error> {
        Registry::add(self, decl)
    }
}

impl Listener for Registry {
    fn cancelled(&self) {
        self.state.lock().devices.news();
        self.caller.notify_all();
        self.changed.notify_all();
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
            // All devices that it would have probed fail.
            while registry.step(|state, now, fx| {
                let next = state.devices.next_late(self.number, now, fx);
                let gone = || ProbeError::failed(GONE);
                next.map(|due| state.devices.lost(due, gone(), now, fx)).is_some()
            }) {}
        }
    }
}
