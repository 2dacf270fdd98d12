//! The response of a queue to changes of its CPUs.

use corewise_sync::atomic::Ordering;
use corewise_topology::{CpuSet, Masks};

use crate::hctx::run;
use crate::percpu::map::heirs;
use crate::state::backlog::Backlog;
use crate::state::core::{Core, Hctx};
use crate::state::pending::Pending;

impl Core {
    /// Follows the masks of the machine. Masks older than the known ones change nothing.
    pub(crate) fn follow(&self, masks: &Masks) {
        // Without workers, this thread makes the runs, but not under the lock.
        let _later = run::hold_back();
        let mut seen = self.layout.changing.lock();
        if masks.epoch >= *seen {
            *seen = masks.epoch;
            self.cpus_are(&masks.online);
        }
    }

    /// Applies the set of online CPUs. Doesn't wait for requests. The caller holds
    /// `layout.changing`.
    fn cpus_are(&self, online: &CpuSet) {
        let mut went = Vec::new();
        for (slot, &cpu) in self.layout.map.cpus().iter().enumerate() {
            let is = online.contains(cpu);
            if self.layout.set_online(slot, is) && !is {
                went.push(slot);
            }
        }
        self.settle();
        // A dead CPU's software queue: no thread on that CPU will run it any more, so it is run
        // once from elsewhere.
        for slot in went {
            let hctx = self.hctx(self.layout.hctx_of(slot));
            if hctx.has_pending() {
                hctx.run_async(self);
            }
        }
    }

    /// Marks the hardware queues that have no CPU, and those that have one again. The caller holds
    /// `layout.changing`.
    fn settle(&self) {
        let n = self.layout.hw_queues();
        let slots: Vec<_> = (0..n).map(|hctx| self.layout.slots_of(hctx)).collect();
        let online: Vec<_> =
            (0..self.layout.map.slots()).map(|s| self.layout.is_online(s)).collect();
        for (index, heir) in heirs(&slots, &online).into_iter().enumerate() {
            let hctx = self.hctx(index);
            match heir {
                Some(slot) => {
                    hctx.set_heir(slot);
                    hctx.inactive.store(true, Ordering::Release);
                    // The requests there go to the heir, by its runner.
                    hctx.run_async(self);
                }
                None => {
                    if hctx.inactive.swap(false, Ordering::AcqRel) {
                        hctx.run_async(self);
                    }
                }
            }
        }
    }
}

impl Hctx {
    /// Passes everything in `backlog` to the heir of a hardware queue without CPUs. Returns false
    /// if there is no heir; then nothing was done. Only the runner calls it. The requests are
    /// counted in, so the layout stays as it is.
    pub(crate) fn hand_on(&self, core: &Core, backlog: &mut Backlog<Box<Pending>>) -> bool {
        let slot = self.heir();
        let index = core.layout.hctx_of(slot);
        let heir = core.hctx(index);
        if std::ptr::eq(heir, self) {
            return false;
        }
        while let Some(mut pending) = backlog.next() {
            pending.hctx = index;
            core.software.push(&heir.ctxs, slot, pending);
        }
        heir.run_async(core);
        true
    }
}
