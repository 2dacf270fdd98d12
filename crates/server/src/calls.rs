//! Call targets, by which requests end on other CPUs: started where the first volume asks for it.

use corewise::blockmq::{Completer, RqAffinity};
use corewise::smp::{Priority, Smp, StartError};
use corewise::sync::Mutex;
use corewise::topology::{Machine, Subscription};

use crate::manifest::Manifest;

/// They follow the machine's CPUs.
#[derive(Default)]
pub(crate) struct Calls {
    /// L: is the lock, held while they start.
    started: Mutex<Option<(Smp, Subscription)>>,
}

impl Calls {
    /// Starts them, where a volume of the manifest asks for it and nothing has.
    pub(crate) fn start_for(
        &self,
        manifest: &Manifest,
        machine: &Machine,
    ) -> Result<(), StartError> {
        let asks = |affinity| affinity != RqAffinity::Anywhere;
        let mut started = self.started.lock();
        if started.is_none() && manifest.devices.iter().any(|d| asks(d.tuning.rq_affinity)) {
            // Their handlers end requests, which is short: so they may run ahead of ordinary work.
            let smp = Smp::builder(machine).priority(Priority::OF_INTERRUPT_THREADS).build()?;
            let follower = smp.clone();
            let follows = machine.on_change(move |_| drop(follower.follow_machine()));
            *started = Some((smp, follows));
        }
        Ok(())
    }

    pub(crate) fn completer(&self) -> Option<Completer> {
        self.started.lock().as_ref().map(|(smp, _)| Completer::new(smp))
    }
}
