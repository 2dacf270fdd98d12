//! The part of the scenario that changes queues while work flows: other attributes, another
//! maximum, drains; and the machine under them.

use corewise_topology::{AffinityScope, CpuId, CpuSet, Machine};
use corewise_workqueue::{BuildError, QueueBuilder, QueueError, QueueKind};

use super::ledger::{Gauge, Ledger};
use super::{Chance, Item, Line};

/// Makes the builder's queue hold work back, in one of several ways.
pub(crate) fn held<C: Chance>(
    builder: QueueBuilder,
    (cpus, nodes): (u64, u64),
    gauge: &Gauge,
    chance: &mut C,
) -> QueueBuilder {
    let most = 1 + chance.below(2);
    let max_active = usize::try_from(most).unwrap_or(usize::MAX);
    match chance.below(5) {
        0 | 1 => {
            gauge.allow(1);
            builder.scope(scope(chance)).strict(chance.one_in(3)).kind(QueueKind::Ordered)
        }
        2 | 3 => {
            gauge.allow(most * slots(nodes));
            builder.scope(scope(chance)).strict(chance.one_in(3)).max_active(max_active)
        }
        _ => {
            gauge.allow(most * cpus);
            builder.kind(QueueKind::Bound).max_active(max_active)
        }
    }
}

pub(crate) fn scope<C: Chance>(chance: &mut C) -> AffinityScope {
    [AffinityScope::Cpu, AffinityScope::Cache, AffinityScope::System][chance.below(3) as usize]
}

/// Returns how many instances may be active. An unbound queue has its maximum on each node (it is
/// less than 8), and once more for pods that span nodes.
fn slots(nodes: u64) -> u64 {
    if nodes == 1 { 1 } else { nodes + 1 }
}

/// Changes a CPU: it goes or comes, or is set apart. The pools follow, on this thread or on another
/// that is telling an earlier change.
pub(crate) fn change<C: Chance>(machine: &Machine, cpus: u64, chance: &mut C) {
    let cpu = chance.below(cpus) as u32;
    match chance.below(3) {
        // The last CPU stays.
        0 => drop(machine.set_online(CpuId::new(cpu), false)),
        1 => drop(machine.set_online(CpuId::new(cpu), true)),
        _ => drop(machine.set_isolated(&CpuSet::full(chance.below(cpus + 1) as u32))),
    }
}

impl Line {
    /// Sets another maximum, more often higher than lower.
    pub(crate) fn set_max_active<C: Chance>(
        &self,
        (cpus, nodes): (u64, u64),
        ledger: &Ledger,
        chance: &mut C,
    ) {
        let most = 1 + chance.below(3);
        self.gauge.allow(match self.queue.kind() {
            QueueKind::Ordered => return,
            QueueKind::Bound => most * cpus,
            _ => most * slots(nodes),
        });
        let set = self.queue.set_max_active(usize::try_from(most).unwrap_or(usize::MAX));
        ledger.check(set.is_ok(), || format!("set_max_active({most}) said {set:?}"));
    }

    /// Sets another scope, strictness, or set of CPUs; the same maximum.
    pub(crate) fn set_attributes<C: Chance>(&self, ledger: &Ledger, chance: &mut C) {
        let mut attributes = self.queue.attributes();
        attributes.scope = scope(chance);
        attributes.strict = chance.one_in(2);
        attributes.cpus = chance.one_in(3).then(|| CpuSet::full(1));
        let set = self.queue.set_attributes(&attributes);
        let right = match &set {
            Ok(()) => self.queue.kind() != QueueKind::Bound,
            Err(BuildError::Fixed { .. }) => self.queue.kind() == QueueKind::Bound,
            Err(BuildError::ShutDown { .. }) => ledger.is_closing(),
            Err(_) => false,
        };
        ledger.check(right, || format!("set_attributes({attributes:?}) said {set:?}"));
    }

    /// Waits until the queue is empty: what was accepted before is over.
    pub(crate) fn drain(&self) {
        let before: Vec<_> = self.items.iter().map(|item| item.entry.accepted()).collect();
        // The one that queues itself.
        let Item { work, entry } = &self.items[1];
        let drain = || self.refusing.during(|| self.queue.drain());
        entry.drained(drain, || !work.is_pending() && !work.is_running());
        for (item, before) in self.items.iter().zip(before) {
            item.entry.flushed(before, "Workqueue::drain");
        }
    }

    /// Closes it for good: it is empty then, and takes nothing.
    pub(crate) fn destroy(&self, ledger: &Ledger) {
        self.queue.destroy();
        for Item { work, entry } in &self.items {
            entry.queue(|| {
                let queued = self.queue.queue(work);
                ledger
                    .check(queued == Err(QueueError::Closed), || format!("destroyed: {queued:?}"));
                queued.is_ok()
            });
        }
        let stats = self.queue.stats();
        ledger.check(stats.queued == stats.completed, || format!("destroyed with {stats:?}"));
    }
}
