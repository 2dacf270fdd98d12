//! How a dump is read: pools first, then queues, so that a queue's new pool may be missing and no
//! pool's number is wrong.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use corewise_sync::atomic::Ordering;
use corewise_sync::sys::{CpuTime, Tid};
use corewise_topology::{AffinityScope, Machine, Pods};

use super::{Dump, LinkDump, PoolDump, QueueDump, RunningDump, ScopeDump, SlotDump, SlotPlace};
use crate::attributes::{Class, QueueKind};
use crate::pool::group::Group;
use crate::pool::report::PoolReport;
use crate::pool::worker::Worker;
use crate::pwq::Link;
use crate::pwq::carried::Carried;
use crate::pwq::limit::CountedBy;
use crate::pwq::limit_policy::UNLIMITED;
use crate::pwq::queue_core::Shared;
use crate::pwq::slot::Seat;
use crate::pwq::stats::QueueStats;

/// Where a pool is in the dump: by its group's address and its place in the group.
type PoolIds = HashMap<(usize, usize), usize>;

impl Dump {
    /// Reads it all.
    pub(crate) fn new(
        machine: &Machine,
        pods: &Pods,
        groups: &[Arc<Group>],
        queues: &[Arc<Shared>],
        armed: &HashMap<u64, usize>,
    ) -> Dump {
        let mut dump = machine.read(|masks| Dump {
            cpus: masks.online.clone(),
            housekeeping: masks.housekeeping.clone(),
            cpu_quota: masks.cpu_quota,
            epoch: masks.epoch,
            ..Dump::default()
        });
        let ids = dump.read_pools(groups);
        dump.scopes = AffinityScope::ALL
            .into_iter()
            .map(|scope| ScopeDump {
                scope,
                default: scope == AffinityScope::default(),
                pods: pods.scope(scope).to_vec(),
            })
            .collect();
        for queue in queues {
            let mut queue = QueueDump::new(queue, &ids);
            let runs = |running: &&RunningDump| running.queue == queue.id;
            queue.delayed = armed.get(&queue.id).copied().unwrap_or(0);
            queue.running = dump.running.iter().filter(runs).count() as u64;
            for link in &queue.links {
                dump.pools[link.pool].links += 1;
            }
            dump.queues.push(queue);
        }
        dump.queues.sort_by_key(|queue| queue.id);
        dump
    }

    /// All pools in the order of class, priority, scope and pod, and what their workers run.
    fn read_pools(&mut self, groups: &[Arc<Group>]) -> PoolIds {
        let mut all: Vec<(&Arc<Group>, usize, PoolReport)> = Vec::new();
        for group in groups {
            let reports = PoolReport::of(group).into_iter().enumerate();
            all.extend(reports.map(|(index, report)| (group, index, report)));
        }
        all.sort_by_key(|(group, index, pool)| {
            // The leftover of the key, the CPUs asked for, is told apart by nothing that has an
            // order; the pools' own CPUs do.
            let cpus = pool.cpus.first();
            (group.class, group.nice, pool.scope, pool.strict, cpus, pool.pod, *index)
        });
        let mut ids = PoolIds::new();
        for (id, (group, index, state)) in all.into_iter().enumerate() {
            ids.insert((Arc::as_ptr(group) as usize, index), id);
            let pool = &group.pools[index];
            let former = Duration::from_nanos(pool.stats.former_cpu_ns.load(Ordering::Relaxed));
            let mut cpu_time = former;
            for worker in pool.workers() {
                cpu_time += time_of(&worker);
                self.running.extend(RunningDump::new(id, &worker));
            }
            let kind = match group.class {
                Class::Unbound => QueueKind::Unbound,
                Class::Bound => QueueKind::Bound,
                Class::BottomHalf => QueueKind::BottomHalf,
            };
            self.pools.push(PoolDump { id, kind, nice: group.nice, links: 0, state, cpu_time });
        }
        self.running.sort_by_key(|running| (running.pool, running.worker));
        ids
    }
}

/// What the worker's thread has spent on CPUs. One that ended just now has nothing here: it has added
/// its time to the pool's.
fn time_of(worker: &Worker) -> Duration {
    let time = worker.tid().and_then(|tid| CpuTime::of(Tid::from_number(tid)).ok());
    time.and_then(|time| time.read()).map_or(Duration::ZERO, |reading| reading.ran)
}

impl RunningDump {
    fn new(pool: usize, worker: &Worker) -> Option<RunningDump> {
        let shown = worker.shown.read()?;
        Some(RunningDump {
            pool,
            worker: worker.id,
            thread: worker.tid(),
            instance: shown.instance,
            queue: shown.label.queue,
            function: (shown.label.name)(),
            site: shown.label.site.to_string(),
        })
    }
}

impl QueueDump {
    fn new(queue: &Shared, ids: &PoolIds) -> QueueDump {
        let (max_active, cpus) = {
            let limit = queue.limit.lock();
            (limit.max_active, limit.cpus.clone())
        };
        let mut dump = QueueDump {
            id: queue.id,
            name: queue.name.clone(),
            kind: queue.kind,
            scope: AffinityScope::default(),
            strict: false,
            cpus,
            nice: 0,
            max_active: limit(max_active),
            freezable: queue.freezable,
            frozen: queue.is_frozen(),
            stats: QueueStats::default(),
            in_flight: 0,
            running: 0,
            delayed: 0,
            timed: queue.timed,
            rescuer: queue.rescuer.is_some(),
            slots: Vec::new(),
            links: Vec::new(),
        };
        if dump.kind == QueueKind::Ordered {
            dump.max_active = Some(1);
        }
        let mut pods = Vec::new();
        let carried = Carried::of(queue);
        queue.colours.each(|seat, link| {
            // The newest links come last: theirs are the attributes that hold.
            (dump.scope, dump.strict, dump.nice) =
                (link.group.scope, !link.group.soft, link.group.nice);
            pods.push((link.pool, link.group.pools[link.pool].spec.pod));
            dump.links.extend(LinkDump::new(seat, link, &carried, ids));
        });
        dump.slots = slots(queue, &pods);
        dump.stats = queue.stats();
        dump.in_flight = dump.links.iter().map(|link| link.in_flight).sum();
        dump.links.sort_by_key(|link| link.pool);
        dump
    }
}

fn limit(max: usize) -> Option<usize> {
    (max != UNLIMITED).then_some(max)
}

/// Those that have a limit, or hold something back. `pods`: the pod of each pool, by its index.
fn slots(queue: &Shared, pods: &[(usize, u32)]) -> Vec<SlotDump> {
    let last = queue.limiter.slots().count().saturating_sub(1);
    let slots = queue.limiter.slots().enumerate().filter_map(|(index, slot)| {
        let (active, max, held) = slot.sizes();
        let place = match queue.limiter.counted_by() {
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

impl LinkDump {
    fn new(seat: &Seat<Link>, link: &Link, carried: &Carried, ids: &PoolIds) -> Option<LinkDump> {
        let pool = *ids.get(&(Arc::as_ptr(&link.group) as usize, link.pool))?;
        Some(LinkDump {
            pool,
            stats: link.stats(seat, carried),
            in_flight: carried.in_flight(seat),
        })
    }
}
