//! What is told of a queue.

use std::collections::BTreeMap;
use std::ptr;
use std::sync::Arc;

use crate::attributes::{PoolKey, QueueKind};
use crate::pool::Pool;
use crate::pool::group::Group;
use crate::pwq::Pwq;
use crate::pwq::counts::Tally;
use crate::pwq::limit::CountedBy;
use crate::pwq::limit_policy::{UNLIMITED, effective};
use crate::pwq::queue_core::QueueCore;
use crate::pwq::slot::PwqSlot;
use crate::report::{LinkDump, QueueDump, QueueStats, SlotDump, SlotPlace};

/// See [`Registered::dump`](crate::timekeeper::registered::Registered::dump).
pub(crate) fn of(queue: &QueueCore, id: &dyn Fn(usize, usize) -> Option<usize>) -> QueueDump {
    let attributes = queue.attributes.lock().clone();
    let PoolKey { scope, strict, cpus, nice, .. } = PoolKey::of(queue.traits.kind, &attributes);
    let mut dump = QueueDump {
        id: queue.id,
        name: queue.name.clone(),
        kind: queue.traits.kind,
        scope,
        strict,
        cpus,
        nice,
        max_active: limit(effective(attributes.max_active)),
        capacity: queue.room.as_ref().map(|room| room.places()),
        refused: queue.room.as_ref().map_or(0, |room| room.refused()),
        timed: queue.traits.timed,
        rescuer: queue.rescuer.is_some(),
        ..QueueDump::default()
    };
    if dump.kind == QueueKind::Ordered {
        dump.max_active = Some(1);
    }
    let mut pods = Vec::new();
    let carried = Deferred::of(queue);
    queue.colours.each(|slot, pwq| {
        pods.push((pwq.pool, pwq.group.pools[pwq.pool].spec.pod));
        if let Some(pool) = id(Arc::as_ptr(&pwq.group).addr(), pwq.pool) {
            let stats = pwq.stats(slot, &carried);
            dump.links.push(LinkDump { pool, stats, in_flight: stats.in_flight() });
        }
    });
    dump.slots = slots(queue, &pods);
    dump.stats = queue.stats();
    dump.in_flight = dump.links.iter().map(|pwq| pwq.in_flight).sum();
    dump.links.sort_by_key(|pwq| pwq.pool);
    dump
}

fn limit(max: usize) -> Option<usize> {
    (max != UNLIMITED).then_some(max)
}

/// Those that have a limit, or hold something back. `pods`: the pod of each pool, by its index.
fn slots(queue: &QueueCore, pods: &[(usize, u32)]) -> Vec<SlotDump> {
    let last = queue.limiter.slots().count().saturating_sub(1);
    let slots = queue.limiter.slots().enumerate().filter_map(|(index, slot)| {
        let (active, max, held) = slot.sizes();
        let place = match queue.limiter.counted_by {
            CountedBy::Queue => SlotPlace::Queue,
            CountedBy::Node if index == last => SlotPlace::NoNode,
            CountedBy::Node => SlotPlace::Node(u32::try_from(index).ok()?),
            CountedBy::Pool => {
                SlotPlace::Pod(pods.iter().find(|(pool, _)| *pool == index).map(|(_, pod)| *pod)?)
            }
        };
        (max != UNLIMITED || held > 0).then_some(SlotDump { place, active, max: limit(max), held })
    });
    slots.collect()
}

/// What the workers that may run a queue's work carry (a moment ago), by the slot's address.
pub(crate) struct Deferred(BTreeMap<usize, OfSlot>);

#[derive(Clone, Copy, Default)]
struct OfSlot {
    /// How many were over, before the workers were looked at.
    over: u64,
    /// How many had been queued by Reuse, as far as the slot knew.
    again: u64,
    carried: u64,
    /// What the slot doesn't know of.
    more: u64,
}

impl Deferred {
    /// Looks at them. Takes short locks.
    pub(crate) fn of(queue: &QueueCore) -> Deferred {
        let mut slots = BTreeMap::new();
        let mut groups: Vec<Arc<Group>> = Vec::new();
        for (slot, pwq) in queue.colours.members.lock().all() {
            let (over, again) = (slot.tally.over(), slot.tally.again());
            slots.insert(ptr::from_ref(slot).addr(), OfSlot { over, again, ..OfSlot::default() });
            if let Some(pwq) = pwq {
                if !groups.iter().any(|group| Arc::ptr_eq(group, &pwq.group)) {
                    groups.push(Arc::clone(&pwq.group));
                }
            }
        }
        let pools = groups.iter().flat_map(|group| group.pools.iter());
        let workers: Vec<_> = pools.flat_map(Pool::workers).collect();
        let first: Vec<_> = workers.iter().map(|worker| worker.carry.look()).collect();
        for (worker, first) in workers.iter().zip(first) {
            let now = worker.carry.look();
            let Some(slot) = slots.get_mut(&now.home) else { continue };
            slot.more += now.again();
            // A number that doesn't change between two rounds was there at one moment together: none of it is on its
            // way from one worker to another, by Reuse. One that does is taken for instances in flight.
            if now == first {
                slot.carried += now.many();
            }
        }
        Deferred(slots)
    }

    /// Adds the instances queued here so far, and those of them that are over: what workers carry is. `known`: those
    /// queued of which the slot knows.
    pub(crate) fn add_to(
        &self,
        stats: &mut QueueStats,
        slot: &PwqSlot<Pwq>,
        known: fn(&Tally) -> u64,
    ) {
        let (tally, seen) = (&slot.tally, self.0.get(&ptr::from_ref(slot).addr()));
        let OfSlot { over, again, carried, more } = seen.copied().unwrap_or_default();
        // Not less than there were at one moment since this was made: those over were counted before, and those that
        // came are after.
        let in_flight = tally.in_flight().min(tally.ever_came().saturating_sub(over + carried));
        // After that: what is in flight then is among those that were queued. An end that the slot was told meanwhile isn't
        // counted twice.
        let queued = known(tally) + (again + more).saturating_sub(tally.again());
        stats.queued += queued;
        stats.completed += queued.saturating_sub(in_flight);
    }
}
