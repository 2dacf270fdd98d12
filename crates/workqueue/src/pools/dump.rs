//! The collection of a dump: pools first, then queues. So a queue's new pool may be missing, but no
//! pool's number is wrong.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use corewise_sync::atomic::Ordering;
use corewise_sync::sys::{CpuTime, Tid};
use corewise_topology::AffinityScope;

use super::WorkerPools;
use crate::pool::group::Group;
use crate::pool::worker::Worker;
use crate::report::{Dump, PoolDump, PoolReport, RunningDump, ScopeDump};

/// The pools' numbers in the dump, by the group's address and the pool's index in the group.
type PoolIds = HashMap<(usize, usize), usize>;

impl WorkerPools {
    /// Collects everything about the pools and their queues, for observers and their programs. It
    /// may be called at any time, also after [`WorkerPools::shutdown`]. It delays no thread: it
    /// takes each pool's lock for a moment. Allocates; not for an atomic section.
    pub fn dump(&self) -> Dump {
        let groups = self.inner.groups();
        let (queues, armed) = (self.queues(), self.inner.keeper.armed());
        let mut dump = self.machine().read(|masks| Dump {
            cpus: masks.online.clone(),
            housekeeping: masks.housekeeping.clone(),
            cpu_quota: masks.cpu_quota,
            epoch: masks.epoch,
            ..Dump::default()
        });
        let ids = dump.read_pools(&groups);
        dump.scopes = AffinityScope::ALL
            .into_iter()
            .map(|scope| ScopeDump {
                scope,
                default: scope == AffinityScope::default(),
                pods: self.pods().scope(scope).to_vec(),
            })
            .collect();
        let id = |group, pool| ids.get(&(group, pool)).copied();
        for queue in queues {
            let mut queue = queue.dump(&id);
            let runs = |running: &&RunningDump| running.queue == queue.id;
            queue.delayed = armed.get(&queue.id).copied().unwrap_or(0);
            queue.running = dump.running.iter().filter(runs).count() as u64;
            for link in &queue.links {
                dump.pools[link.pool].links += 1;
            }
            dump.queues.push(queue);
        }
        dump
    }
}

impl Dump {
    /// Reads all pools in the order of class, priority, scope and pod, and the items of their
    /// workers.
    fn read_pools(&mut self, groups: &[Arc<Group>]) -> PoolIds {
        let mut all: Vec<(&Arc<Group>, usize, PoolReport)> = Vec::new();
        for group in groups {
            let reports = group.reports().into_iter().enumerate();
            all.extend(reports.map(|(index, report)| (group, index, report)));
        }
        all.sort_by_key(|(group, index, pool)| {
            // The rest of the key, the requested CPUs, has no order; the pools' own CPUs have one.
            let cpus = pool.cpus.first();
            (group.kind as u8, group.nice, pool.scope, pool.strict, cpus, pool.pod, *index)
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
            let Group { kind, nice, .. } = **group;
            self.pools.push(PoolDump { id, kind, nice, links: 0, state, cpu_time });
        }
        self.running.sort_by_key(|running| (running.pool, running.worker));
        ids
    }
}

/// Returns the CPU time of the worker's thread. A thread that ended just now returns zero, since
/// its time has been added to the pool's.
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
