//! Everything about worker pools and their queues at one moment, as plain data.
//!
//! Collected by reading: nothing stops for it. It holds one lock at a time, that of a pool or of a
//! list, for as long as it takes to copy a few numbers; each figure is true of its own moment, and
//! those of one dump lie close together. In the spirit of the kernel's `wq_dump.py`.

mod text;

use std::collections::HashMap;
use std::sync::Arc;

use corewise_topology::{AffinityScope, CpuSet, Machine, Pod, Pods};

use crate::link::{Link, Shared};
use crate::pool::group::Group;
use crate::stats::{PoolReport, QueueStats};

/// What [`WorkerPools::dump`](crate::WorkerPools::dump) found. [`Display`](std::fmt::Display) writes
/// it as tables for people; `{:80}` wraps them at 80 columns instead of 100.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Dump {
    /// The CPUs that may be used: online and allowed.
    pub cpus: CpuSet,
    /// Of those, the CPUs for general work.
    pub housekeeping: CpuSet,
    /// Changes whenever one of these sets does.
    pub epoch: u64,
    /// All scopes, from the finest to the coarsest.
    pub scopes: Vec<ScopeDump>,
    /// All pools. Their numbers hold within this dump only.
    pub pools: Vec<PoolDump>,
    /// All queues, in the order in which they were made.
    pub queues: Vec<QueueDump>,
}

/// How one scope divides the machine.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ScopeDump {
    /// The scope.
    pub scope: AffinityScope,
    /// Whether queues have it where nobody says else.
    pub default: bool,
    /// Its pods by number.
    pub pods: Vec<Pod>,
}

/// One pool.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolDump {
    /// Its number: its place in the list of pools.
    pub id: usize,
    /// How many queues use it, or have work left in it.
    pub links: usize,
    /// Its workers and what they have done.
    pub state: PoolReport,
}

/// One queue.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueueDump {
    /// Its number in its worker pools: 1 for the first one ever made, and never used again.
    pub id: u64,
    /// Its name.
    pub name: String,
    /// What a pod is for it.
    pub scope: AffinityScope,
    /// Whether its work never leaves its pod.
    pub strict: bool,
    /// What it has done, in all pools.
    pub stats: QueueStats,
    /// Instances queued and not over.
    pub in_flight: u64,
    /// Each pool that it uses, or has work left in.
    pub links: Vec<LinkDump>,
}

/// One queue in one pool.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LinkDump {
    /// The pool, by [`PoolDump::id`].
    pub pool: usize,
    /// What the queue has done there.
    pub stats: QueueStats,
    /// Instances queued there and not over.
    pub in_flight: u64,
}

/// Where a pool is in the dump: by its group's address and its place in the group.
type PoolIds = HashMap<(usize, usize), usize>;

impl Dump {
    /// Reads it all.
    pub(crate) fn new(
        machine: &Machine,
        pods: &Pods,
        groups: &[Arc<Group>],
        queues: &[Arc<Shared>],
    ) -> Dump {
        let (pools, ids) = pools(groups);
        let mut dump = machine.read(|masks| Dump {
            cpus: masks.online.clone(),
            housekeeping: masks.housekeeping.clone(),
            epoch: masks.epoch,
            ..Dump::default()
        });
        dump.pools = pools;
        dump.scopes = AffinityScope::ALL
            .into_iter()
            .map(|scope| ScopeDump {
                scope,
                default: scope == AffinityScope::default(),
                pods: pods.scope(scope).to_vec(),
            })
            .collect();
        for queue in queues {
            let queue = QueueDump::new(queue, &ids);
            for link in &queue.links {
                dump.pools[link.pool].links += 1;
            }
            dump.queues.push(queue);
        }
        dump.queues.sort_by_key(|queue| queue.id);
        dump
    }

    /// Leaves out the queues that `keep` says no to. The pools stay as they are.
    pub fn retain_queues(&mut self, mut keep: impl FnMut(&str) -> bool) {
        self.queues.retain(|queue| keep(&queue.name));
    }
}

/// All pools in the order of scope and pod.
fn pools(groups: &[Arc<Group>]) -> (Vec<PoolDump>, PoolIds) {
    let mut all: Vec<((usize, usize), PoolReport)> = Vec::new();
    for group in groups {
        let address = Arc::as_ptr(group) as usize;
        let reports = PoolReport::of(group).into_iter().enumerate();
        all.extend(reports.map(|(index, report)| ((address, index), report)));
    }
    all.sort_by_key(|(_, pool)| (pool.scope, pool.strict, pool.pod));
    let mut ids = PoolIds::new();
    let pools = all.into_iter().enumerate().map(|(id, (place, state))| {
        ids.insert(place, id);
        PoolDump { id, links: 0, state }
    });
    (pools.collect(), ids)
}

impl QueueDump {
    fn new(queue: &Shared, ids: &PoolIds) -> QueueDump {
        let mut dump = QueueDump {
            id: queue.id,
            name: queue.name.clone(),
            scope: AffinityScope::default(),
            strict: false,
            stats: QueueStats::default(),
            in_flight: 0,
            links: Vec::new(),
        };
        queue.colours.each(|link| {
            dump.scope = link.group.scope;
            dump.strict = !link.group.soft;
            if let Some(link) = LinkDump::new(link, ids) {
                dump.in_flight += link.in_flight;
                dump.links.push(link);
            }
        });
        dump.stats = QueueStats::of(queue);
        dump.links.sort_by_key(|link| link.pool);
        dump
    }
}

impl LinkDump {
    fn new(link: &Link, ids: &PoolIds) -> Option<LinkDump> {
        let pool = *ids.get(&(Arc::as_ptr(&link.group) as usize, link.pool))?;
        Some(LinkDump {
            pool,
            stats: QueueStats::of_link(link),
            in_flight: link.in_flight() as u64,
        })
    }
}
