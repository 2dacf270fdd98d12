//! Drives a bring-up with workers: queues what becomes ready, calls the probes, tells the observer.

use super::state::{CallerStep, Effects, ProbeState};
use crate::driver::{Bound, Driver, ProbeContext, ProbeError, caught};
use crate::event::{self, Event, Observer};
use crate::placement::Placer;
use crate::record::{Clock, Site};
use crate::{DeviceId, Graph};
use corewise_sync::context;
use std::sync::Arc;

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
            let result = self.call_driver(id, &needs);
            let at = self.clock.now();
            if let Err(error) = &result
                && !error.is_no_device()
            {
                tracing::warn!(device, %error, "probe failed");
            }
            // The shutdown may drop the suppliers as soon as this device is settled, and in its own
            // order: this thread must not be the one that holds them last.
            drop(needs);
            self.state.end(id, result, at, || self.clock.now(), &mut fx);
        }
        self.apply(&mut fx);
    }

    fn call_driver(
        &self,
        id: DeviceId,
        needs: &[(String, Arc<dyn Bound>)],
    ) -> Result<Arc<dyn Bound>, ProbeError> {
        let decl = self.graph().decl(id);
        let cx = ProbeContext::new(decl, self.graph().node(id), needs, self.state.cancel());
        let driver = self.drivers[id.index()].as_ref().expect("devices without one are rejected");
        let call = || context::blocking("device probe", || driver.probe(&cx));
        caught(call).unwrap_or_else(|message| Err(ProbeError::panicked(message)))
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
