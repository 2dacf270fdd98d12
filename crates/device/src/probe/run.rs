//! Drives a bring-up with workers: queues what becomes ready, calls the probes, tells the observer.

use super::state::{CallerStep, Effects, ProbeState};
use crate::done::{ProbeDone, ProbeResult};
use crate::driver::{Bound, Driver, ProbeContext, ProbeError, caught};
use crate::event::{self, Event, Observer};
use crate::placement::Placer;
use crate::record::{Clock, Site};
use crate::{DeviceId, Graph};
use corewise_sync::{Mutex, context};
use std::sync::Arc;
use std::time::Duration;

/// One bring-up and all that its threads share.
pub(crate) struct ProbeRun {
    pub state: Arc<ProbeState>,
    /// Per device; `None` for those that are never probed here.
    pub drivers: Vec<Option<Arc<dyn Driver>>>,
    pub placer: Arc<Placer>,
    pub observer: Option<Observer>,
    pub clock: Clock,
}

impl ProbeRun {
    /// Brings everything up that can be, and returns when each device is settled. Blocks.
    pub(crate) fn run(self: &Arc<Self>) {
        let cancel = self.state.cancel();
        let listener: Arc<dyn crate::cancel::Listener> = self.state.clone();
        cancel.listen(Arc::downgrade(&listener));
        let mut fx = Effects::default();
        self.state.seed(self.clock.now(), &mut fx);
        self.apply(&mut fx);
        loop {
            let mut step = self.state.caller_step(self.clock.now(), &mut fx);
            if step == CallerStep::Wait && fx.is_empty() {
                step = context::blocking("device bring-up", || {
                    self.state.caller_wait(|| self.clock.now(), &mut fx)
                });
            }
            self.apply(&mut fx);
            match step {
                CallerStep::Run(id) => self.call(id),
                CallerStep::Wait => {}
                CallerStep::Done => return,
            }
        }
    }

    /// Does what a step asked for.
    fn apply(self: &Arc<Self>, fx: &mut Effects) {
        for id in std::mem::take(&mut fx.queue) {
            let ticket = Ticket { run: Some(self.clone()), id };
            self.placer.spawn(self.graph().node(id), move |cpu| ticket.probe(cpu));
        }
        let finished = std::mem::take(&mut fx.finished);
        if let Some(observer) = &self.observer
            && !finished.is_empty()
        {
            let total = self.state.total();
            for (id, outcome, done) in &finished {
                let (device, done) = (self.graph().name(*id), *done);
                event::tell(Some(observer), &Event::Finished { device, outcome, done, total });
            }
            self.state.told(finished.len());
        }
    }

    /// Probes a synchronous device, and waits for it.
    fn call(self: &Arc<Self>, id: DeviceId) {
        let ticket = Ticket { run: Some(self.clone()), id };
        self.placer.call(self.graph().node(id), move |cpu| ticket.probe(cpu));
    }

    fn graph(&self) -> &Arc<Graph> {
        self.state.graph()
    }

    /// Probes one device, on this thread.
    fn probe(self: &Arc<Self>, id: DeviceId, placed: Option<u32>) {
        let mut fx = Effects::default();
        let site = Site::here(self.placer.machine(), placed);
        if let Some(needs) = self.state.begin(id, site, self.clock.now(), &mut fx) {
            let device = self.graph().name(id);
            event::tell(self.observer.as_ref(), &Event::Started { device });
            let call = Arc::new(Call::new(self, id));
            let panicked = self.call_driver(id, &needs, &call).err();
            // The shutdown may drop the suppliers as soon as this device is settled, and in its own
            // order: this thread must not be the one that holds them last.
            drop(needs);
            if let Some((result, at)) = call.returned(panicked) {
                self.end(id, result, at, &mut fx);
            }
        }
        self.apply(&mut fx);
    }

    /// Takes in how a probe ended.
    fn end(&self, id: DeviceId, result: ProbeResult, at: Duration, fx: &mut Effects) {
        if let Err(error) = &result
            && !error.is_no_device()
        {
            tracing::warn!(device = self.graph().name(id), %error, "probe failed");
        }
        self.state.end(id, result, at, || self.clock.now(), fx);
    }

    /// Calls the driver. An error says with what it panicked.
    fn call_driver(
        &self,
        id: DeviceId,
        needs: &[(String, Arc<dyn Bound>)],
        call: &Arc<Call>,
    ) -> Result<(), String> {
        let decl = self.graph().decl(id);
        let cx = ProbeContext::new(decl, self.graph().node(id), needs, self.state.cancel());
        let driver = self.drivers[id.index()].as_ref().expect("devices without one are rejected");
        let its = call.clone();
        let done = ProbeDone::new(move |result| its.finished(result));
        caught(|| context::blocking("device probe", || driver.start_probe(&cx, done)))
    }
}

/// One call of a driver, which may end before the driver returns or after.
///
/// What ends before is taken in by the thread that called, when it is back: it still holds what the
/// device needs. What ends after is taken in by whoever ends it.
struct Call {
    /// I: what the call belongs to.
    run: Arc<ProbeRun>,
    /// I: whom it is about.
    id: DeviceId,
    /// L: is the lock; guards how far the call is.
    stage: Mutex<Stage>,
}

enum Stage {
    /// The driver has not returned.
    Called,
    /// Nor has it, but the probe was over at that time.
    Finished(ProbeResult, Duration),
    /// The driver has returned.
    Returned,
}

impl Call {
    fn new(run: &Arc<ProbeRun>, id: DeviceId) -> Call {
        Call { run: run.clone(), id, stage: Mutex::new(Stage::Called) }
    }

    /// The driver says how the probe ended.
    fn finished(&self, result: ProbeResult) {
        let at = self.run.clock.now();
        let mut stage = self.stage.lock();
        if matches!(*stage, Stage::Called) {
            *stage = Stage::Finished(result, at);
            return;
        }
        drop(stage);
        let mut fx = Effects::default();
        self.run.end(self.id, result, at, &mut fx);
        self.run.apply(&mut fx);
    }

    /// The driver has returned, or panicked. Returns how the probe ended, if it did.
    fn returned(&self, panicked: Option<String>) -> Option<(ProbeResult, Duration)> {
        let stage = std::mem::replace(&mut *self.stage.lock(), Stage::Returned);
        let now = || self.run.clock.now();
        match (stage, panicked) {
            (Stage::Finished(Ok(bound), at), _) => Some((Ok(bound), at)),
            (_, Some(message)) => Some((Err(ProbeError::panicked(message)), now())),
            (Stage::Finished(result, at), None) => Some((result, at)),
            (Stage::Called | Stage::Returned, None) => None,
        }
    }
}

/// The duty to settle one device that was queued. It is done also where the pools drop the work
/// without running it, so that nobody waits for a probe that can't come.
struct Ticket {
    run: Option<Arc<ProbeRun>>,
    id: DeviceId,
}

impl Ticket {
    fn probe(mut self, placed: Option<u32>) {
        if let Some(run) = self.run.take() {
            run.probe(self.id, placed);
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if let Some(run) = self.run.take() {
            let gone = "its worker pools were shut down before it could be probed; \
                        shut down devices before pools";
            let mut fx = Effects::default();
            let at = run.clock.now();
            let error = Err(ProbeError::failed(gone));
            run.state.end(self.id, error, at, || run.clock.now(), &mut fx);
            run.apply(&mut fx);
        }
    }
}
