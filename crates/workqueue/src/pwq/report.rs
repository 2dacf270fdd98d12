//! What is told of a queue.

use std::sync::Arc;

use crate::attributes::{PoolKey, QueueKind};
use crate::pwq::carried::Deferred;
use crate::pwq::limit::CountedBy;
use crate::pwq::limit_policy::{UNLIMITED, effective};
use crate::pwq::queue_core::QueueCore;
use crate::report::{LinkDump, QueueDump, SlotDump, SlotPlace};
use crate::timekeeper::registered::Registered;

/// See [`Registered::dump`].
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
        freezable: queue.traits.freezable,
        frozen: queue.is_frozen(),
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
