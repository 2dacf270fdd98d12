//! The prober: takes a device, calls its driver, records the result, and continues with the next in
//! line.

use std::sync::Arc;
use std::time::Duration;

use corewise_sync::text;
use corewise_sync::thread::{ThreadId, current};
use corewise_topology::CpuId;

use super::devices::{DeviceKey, DueProbe, Effects};
use super::devices_state::{NextStep, StartedProbe};
use super::inside::{ProbesAround, ProbesInside};
use super::run::{Registry, RegistryState};
use crate::decl::DeviceDecl;
use crate::driver::{ProbeContext, ProbeDone, ProbeResult};
use crate::error::{ProbeError, caught};
use crate::event;
use crate::event::{Cancel, Event, Observer};
use crate::handoff::Handoff;
use crate::record::Site;

/// The devices that a thread has to probe.
#[derive(Clone, Copy)]
pub(super) enum ProberDuty {
    /// One device alone.
    One,
    /// One device, and then those that stand in line at this node: the thread is a prober.
    Line(Option<u32>),
}

/// Number of devices that a prober probes in a row. Then its pool queues another prober behind the
/// other waiting items.
const IN_A_ROW: u32 = 8;

/// A probe to be made, with its data of the state.
struct ProbeTurn {
    key: DeviceKey,
    begun: StartedProbe,
    observer: Option<Observer>,
    cancel: Cancel,
    around: ProbesAround,
}

impl RegistryState {
    /// Begins the device. If that isn't to be probed any more, or is none, begins the next one in
    /// line.
    fn turn(
        &mut self,
        mut key: Option<DeviceKey>,
        duty: ProberDuty,
        site: &Site,
        me: ThreadId,
        now: Duration,
        fx: &mut Effects,
    ) -> Option<ProbeTurn> {
        loop {
            let key = match (key.take(), duty) {
                (Some(key), _) => key,
                (None, ProberDuty::One) => return None,
                (None, ProberDuty::Line(node)) => self.devices.next_in_line(node)?.key,
            };
            let Some(begun) = self.devices.begin(key, site, me, now, fx) else { continue };
            let bring_up = begun.in_bring_up;
            let cancel = self.devices.bring_up_cancel().filter(|_| bring_up);
            let cancel = cancel.unwrap_or_else(|| self.cancel.clone());
            let around = if bring_up { self.around.clone() } else { ProbesAround::default() };
            return Some(ProbeTurn { key, begun, observer: self.observer.clone(), cancel, around });
        }
    }

    /// Ends a prober that has finished its device, and leaves its line, if it had one, to another
    /// worker.
    fn leave(&mut self, duty: ProberDuty, fx: &mut Effects) {
        if let ProberDuty::Line(node) = duty {
            self.devices.hand_line_over(node, fx);
        }
    }
}

/// Logs how a probe ended, if that is worth a line.
fn log(device: &str, result: &ProbeResult) {
    if let Err(error) = result {
        let device = text::name(device);
        if error.is_deferral() || error.is_no_device() {
            tracing::debug!(%device, %error, "not probed");
        } else {
            tracing::warn!(%device, %error, "probe failed");
        }
    }
}

impl Registry {
    /// Probes a synchronous device near its node, and waits for the driver to return.
    pub(crate) fn probe_placed(self: &Arc<Self>, due: DueProbe) {
        let node = self.state.lock().devices.node(due.key);
        let ticket = Ticket::new(self, due, ProberDuty::One);
        let around = ProbesAround::here();
        self.placer.call(node, move |cpu| {
            let _around = around.enter();
            ticket.probe(cpu);
        });
    }

    /// Probes a device on this thread, and any other that falls to it. Before the next one begins,
    /// the thread does the duties of the last one's end; without duties, both are one step.
    fn probe(self: &Arc<Self>, first: DeviceKey, duty: ProberDuty, placed: Option<CpuId>) {
        let me = current().id();
        let here = || Site::here(self.placer.machine(), placed);
        let (mut site, mut probed) = (here(), 0);
        let mut turn =
            self.step(|state, now, fx| state.turn(Some(first), duty, &site, me, now, fx));
        while let Some(ProbeTurn { key, begun, observer, cancel, around }) = turn {
            let device = begun.decl.clone();
            if begun.in_bring_up {
                let device = device.name.as_str();
                event::tell(observer.as_ref(), &Event::Started { device });
            }
            let call = Arc::new(ProbeCall { registry: self.clone(), key, handoff: Handoff::new() });
            let around = around.enter();
            let called = self.call_driver(begun, &cancel, &call);
            drop(around);
            probed += 1;
            let goes_on = called.as_ref().is_ok_and(|goes_on| *goes_on) && probed < IN_A_ROW;
            let ended = match called {
                Ok(_) => call.handoff.returned().flatten(),
                Err(message) => {
                    let panicked = || (Err(ProbeError::panicked(message)), self.clock.now());
                    let told = call.handoff.panicked().flatten().filter(|(r, _)| r.is_ok());
                    Some(told.unwrap_or_else(panicked))
                }
            };
            if let Some((result, _)) = &ended {
                if result.is_err() {
                    self.remove_children(key);
                }
                log(&device.name, result);
            }
            site = here();
            let mut owes = None;
            turn = self.step(|state, now, fx| {
                let again = match ended {
                    None => {
                        state.devices.returned(key, me);
                        false
                    }
                    Some((result, at)) => {
                        state.devices.end(key, result, at, now, true, fx) == NextStep::Again
                    }
                };
                let same = again.then_some(key);
                if same.is_none() && !goes_on {
                    state.leave(duty, fx);
                } else if fx.is_empty() {
                    return state.turn(same, duty, &site, me, now, fx);
                } else {
                    owes = Some(same);
                }
                None
            });
            if let Some(same) = owes {
                turn = self.step(|state, now, fx| state.turn(same, duty, &site, me, now, fx));
            }
        }
    }

    /// Calls the driver. An error has the message of its panic. The device's needs are released
    /// before this returns. The shutdown may drop them as soon as the device is settled, and in its
    /// own order. So this thread must not hold them last. `Ok` says whether its worker may continue
    /// with another probe.
    fn call_driver(
        self: &Arc<Self>,
        begun: StartedProbe,
        cancel: &Cancel,
        call: &Arc<ProbeCall>,
    ) -> Result<bool, String> {
        let StartedProbe { decl, driver, node, needs, hopeless, .. } = begun;
        let cx = ProbeContext::new(&decl, node, &needs, cancel);
        let cx = cx.after_deferral_timeout(hopeless).adds_to(self);
        let driver = driver.driver().expect("no probe begins once a shutdown has let go of it");
        let its = call.clone();
        let done = ProbeDone::new(move |result| its.finished(result));
        let _inside = ProbesInside::enter(self);
        let probe = || driver.start_probe(&cx, done);
        caught(|| self.placer.probing(probe)).map(|((), goes_on)| goes_on)
    }

    /// Records the end of a probe on another thread than its driver's.
    fn end(self: &Arc<Self>, key: DeviceKey, device: &str, result: ProbeResult, at: Duration) {
        log(device, &result);
        self.step(|state, now, fx| state.devices.end(key, result, at, now, false, fx));
    }
}

/// One call of a driver, which may end before the driver returns or after. If it ends before, the
/// calling thread records the result after the return: until then it holds the device's needs.
struct ProbeCall {
    /// I: the registry that made the call.
    registry: Arc<Registry>,
    /// I: the device that is probed.
    key: DeviceKey,
    /// I: has its own lock.
    handoff: Handoff<(ProbeResult, Duration)>,
}

impl ProbeCall {
    /// Takes the driver's report how the probe ended.
    fn finished(&self, result: ProbeResult) {
        let at = self.registry.clock.now();
        let Some(Some((result, at))) = self.handoff.finish(Some((result, at))) else { return };
        let Some(decl) = self.registry.state.lock().devices.decl(self.key) else { return };
        let ending = ProbeEnding {
            what: Some((result, at)),
            registry: self.registry.clone(),
            key: self.key,
            decl,
        };
        if ending.has_children_to_remove() {
            // Their callbacks may block, and this is the thread that finishes the probe.
            drop(self.registry.placer.queue().execute(move || ending.with_children()));
        }
    }
}

/// The end of a probe, which is recorded when this is dropped.
struct ProbeEnding {
    registry: Arc<Registry>,
    key: DeviceKey,
    decl: Arc<DeviceDecl>,
    what: Option<(ProbeResult, Duration)>,
}

impl ProbeEnding {
    fn has_children_to_remove(&self) -> bool {
        let failed = self.what.as_ref().is_some_and(|(result, _)| result.is_err());
        failed && self.registry.has_children(self.key)
    }

    /// Removes the children that the failed probe has registered, then ends the probe.
    fn with_children(self) {
        self.registry.remove_children(self.key);
    }
}

impl Drop for ProbeEnding {
    fn drop(&mut self) {
        if let Some((result, at)) = self.what.take() {
            self.registry.end(self.key, &self.decl.name, result, at);
        }
    }
}

/// The duty to settle one device that was queued, and a prober's duty for its line. It happens also
/// if the pools drop the work without running it, so that no thread waits for a probe that can't
/// come.
pub(super) struct Ticket {
    registry: Option<Arc<Registry>>,
    due: DueProbe,
    duty: ProberDuty,
    /// Devices of the same line for which it queues probers, before anything else.
    others: Vec<DueProbe>,
}

/// Message for a device whose worker will never come.
pub(super) const GONE: &str =
    "the worker pools were shut down before the probe could start; shut down devices before pools";

impl Ticket {
    pub(super) fn new(registry: &Arc<Registry>, due: DueProbe, duty: ProberDuty) -> Ticket {
        Ticket { registry: Some(registry.clone()), due, duty, others: Vec::new() }
    }

    pub(super) fn with(mut self, others: Vec<DueProbe>) -> Ticket {
        self.others = others;
        self
    }

    pub(super) fn probe(mut self, placed: Option<CpuId>) {
        if let Some(registry) = self.registry.take() {
            if let ProberDuty::Line(node) = self.duty {
                self.others.drain(..).for_each(|due| registry.queue_prober(node, due, Vec::new()));
            }
            registry.probe(self.due.key, self.duty, placed);
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if let Some(registry) = self.registry.take() {
            for due in self.others.drain(..) {
                drop(Ticket::new(&registry, due, self.duty));
            }
            registry.step(|state, now, fx| {
                state.devices.lost(self.due, ProbeError::failed(GONE), now, fx);
                if let ProberDuty::Line(node) = self.duty {
                    for due in state.devices.prober_is_lost(node) {
                        state.devices.lost(due, ProbeError::failed(GONE), now, fx);
                    }
                }
            });
        }
    }
}
