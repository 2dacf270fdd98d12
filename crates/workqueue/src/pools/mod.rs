//! The handle that owns the worker pools of a machine; and the groups of pools by their attributes.
//! Queues with the same attributes share a group, which ends when no queue uses it any more.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, DefaultHasher};
use std::sync::{Arc, Weak};
use std::{fmt, io};

use corewise_sync::Mutex;
use corewise_sync::atomic::{AtomicU64, Ordering};
use corewise_sync::hazard::Hazards;
use corewise_topology::{AffinityScope, CpuSet, Machine, Masks, Pods, Subscription, Topology};

use crate::attributes::PoolKey;
use crate::error::BuildError;
use crate::pool::PoolSpec;
use crate::pool::group::{Group, Setup};
use crate::pool::pins::Pinning;
use crate::pool::worker::Threads;
use crate::pools::builder::PoolsBuilder;
use crate::report::PoolReport;
use crate::timekeeper::Registered;
use crate::timekeeper::Timekeeper;
use crate::timekeeper::follow::Follower;
use crate::timekeeper::rescuer::Rescuer;

pub(crate) mod builder;
mod dump;
mod shutdown;

pub use shutdown::{StillRunning, Unfinished};

/// The worker pools of one machine. Queues with equal attributes share pools, as in the kernel.
///
/// A pool's first worker on each CPU is pinned to that CPU alone, and wakes for items that are
/// queued from there. The others may run on each CPU of their pod. If the queuer then waits, on the
/// same CPU, an item takes some 4 us. To wake another CPU that has been halted, and to be woken by
/// it, would take 50 us. A queuer that continues to compute shares its CPU with the worker until
/// the item is over. A real-time thread that never pauses keeps the worker of its CPU from running:
/// isolate the CPUs of such threads.
///
/// The type is a cheap handle. When the last one is gone, and the last
/// [`Workqueue`](crate::Workqueue) built on it, the workers run the queued items and leave. No
/// thread waits for them, so a drop can't deadlock. [`WorkerPools::shutdown`] does the same and
/// waits.
#[derive(Clone)]
pub struct WorkerPools {
    inner: Arc<Inner>,
}

// The reason is that of `Workqueue`.
impl std::panic::UnwindSafe for WorkerPools {}
impl std::panic::RefUnwindSafe for WorkerPools {}

struct Inner {
    /// I: the settings of the builder.
    asked: PoolsBuilder,
    pods: Pods,
    threads: Arc<Threads>,
    keeper: Arc<Timekeeper>,
    /// L: is the lock; guards the groups made so far, and whether they are closed.
    groups: Mutex<Groups>,
    /// I: the hazard pointers of threads in the middle of a push.
    hazards: Arc<Hazards>,
    /// I: niceness of the thread that made the pools.
    niceness: i32,
    /// A: number of the queue made last; only its uniqueness matters, so Relaxed.
    last_queue: AtomicU64,
    /// I: the subscription by which the pools follow the machine.
    _following: Subscription,
    /// I: the follower of a live machine, if the builder asked for one.
    follower: Option<Follower>,
}

/// The CPUs that a queue may use now: on each node by number, and in all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct UsableCpus {
    pub(crate) by_node: Vec<usize>,
    pub(crate) total: usize,
}

/// Returns the highest number of a node plus one.
pub(crate) fn nodes(topology: &Topology) -> usize {
    topology.nodes().iter().map(|node| node.node as usize + 1).max().unwrap_or(0)
}

impl WorkerPools {
    /// Returns the machine that the pools are for.
    pub fn machine(&self) -> &Machine {
        &self.inner.asked.machine
    }

    /// Returns the maximum of threads of one pool while the others have none: see
    /// [`PoolsBuilder::max_workers`](crate::PoolsBuilder::max_workers) and
    /// [`PoolsBuilder::max_threads`](crate::PoolsBuilder::max_threads).
    pub fn max_workers(&self) -> usize {
        self.inner.asked.max_workers.min(self.inner.threads.most())
    }

    /// Returns the machine's pods, with the shard size of these pools.
    pub fn pods(&self) -> &Pods {
        &self.inner.pods
    }

    /// Returns the state of each pool, in the order of scope and pod.
    pub fn report(&self) -> Vec<PoolReport> {
        let groups: Vec<_> = self.inner.groups.lock().used().collect();
        let mut report: Vec<_> = groups.iter().flat_map(|g| g.reports()).collect();
        report.sort_by_key(|p| (p.scope, p.strict, p.pod));
        report
    }

    /// Returns a number for a new queue: 1, 2, ...
    pub(crate) fn next_queue(&self) -> u64 {
        self.inner.last_queue.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Registers a queue.
    pub(crate) fn register(&self, queue: Arc<dyn Registered>) {
        let mut queues = self.inner.keeper.queues.lock();
        queues.add(&queue);
        if queues.closed {
            // It got its pools just before the shutdown, which doesn't see it.
            queue.close();
            queue.cancel_waiting();
        }
    }

    /// Returns the existing queues, by number.
    pub(crate) fn queues(&self) -> Vec<Arc<dyn Registered>> {
        self.inner.keeper.queues.lock().alive()
    }

    /// Creates a rescuer for a queue, and a timekeeper that calls it.
    pub(crate) fn rescuer(&self, queue: &str) -> io::Result<Rescuer> {
        self.inner.keeper.will_call()?;
        Rescuer::start(queue, self.inner.niceness)
    }

    pub(crate) fn keeper(&self) -> &Arc<Timekeeper> {
        &self.inner.keeper
    }

    pub(crate) fn hazards(&self) -> &Arc<Hazards> {
        &self.inner.hazards
    }

    /// Returns the CPUs that a queue which asked for `cpus` may use now.
    pub(crate) fn usable_cpus(&self, cpus: Option<&CpuSet>) -> UsableCpus {
        let machine = &self.inner.asked.machine;
        let usable = match cpus {
            Some(cpus) => cpus.intersection(&machine.online()),
            None => machine.housekeeping(),
        };
        let topology = machine.topology();
        let mut by_node = vec![0; nodes(topology)];
        for node in topology.nodes() {
            by_node[node.node as usize] = node.cpus.intersection(&usable).len();
        }
        UsableCpus { by_node, total: usable.len() }
    }

    /// Ends the pools that no queue uses any more. They stay until then, for the next queue that
    /// has such attributes.
    pub(crate) fn reap(&self) {
        self.inner.groups.lock().reap();
    }

    /// Returns the pools for these attributes: the existing ones, or new ones with a first worker
    /// each. They stay for as long as the lease exists.
    pub(crate) fn lease(&self, name: &str, key: PoolKey) -> Result<Arc<Lease>, BuildError> {
        if let Some(lease) = self.inner.groups.lock().lease(name, &key)? {
            return Ok(lease);
        }
        // No lock is held: a spawn handler is the user's.
        let group = self.new_group(name, &key)?;
        let started = group.start().map_err(|error| BuildError::threads(name, &error));
        let mut groups = self.inner.groups.lock();
        let leased = started.and_then(|()| groups.lease(name, &key));
        let lease = match leased.transpose() {
            None => groups.insert(key, &group),
            // It is refused, or another thread was faster.
            Some(leased) => {
                groups.retire(&group);
                return leased;
            }
        };
        drop(groups);
        self.inner.keeper.look_after(&group);
        // The machine may have changed meanwhile. From here on `Inner::follow` includes the group.
        group.follow(&self.inner.asked.machine.masks());
        Ok(lease)
    }

    /// Pools without workers yet.
    fn new_group(&self, name: &str, key: &PoolKey) -> Result<Arc<Group>, BuildError> {
        let specs = self.inner.specs(key);
        if specs.is_empty() {
            return Err(BuildError::NoCpus {
                queue: name.into(),
                asked: key.cpus.as_ref().map_or_else(String::new, CpuSet::to_string),
                possible: self.inner.asked.machine.topology().allowed().to_string(),
            });
        }
        let setup = Setup {
            scope: key.scope,
            soft: !key.strict,
            concurrency: self.inner.asked.concurrency,
            pinning: match self.inner.asked.machine.is_synthetic() {
                true => Pinning::Nowhere,
                false => Pinning::Cpu,
            },
            idle: self.inner.asked.idle,
            idle_timeout: self.inner.asked.idle_timeout,
            spawner: self.inner.asked.spawner.clone(),
            threads: Arc::clone(&self.inner.threads),
            keeper: self.inner.keeper.of_pools(),
            niceness: self.inner.niceness,
        };
        let group = Arc::new(Group::new(setup, specs).of_key(key));
        group.follow(&self.inner.asked.machine.masks());
        Ok(group)
    }
}

impl Inner {
    /// Applies a change of the machine.
    fn follow(&self, masks: &Masks) {
        for group in self.groups() {
            group.follow(masks);
        }
        let queues = self.keeper.queues.lock().alive();
        for queue in queues {
            queue.divide_again();
            queue.settle();
        }
    }

    fn groups(&self) -> Vec<Arc<Group>> {
        self.groups.lock().all()
    }

    /// Returns a pool's specification for each pod that has any of the CPUs, online or not.
    fn specs(&self, key: &PoolKey) -> Vec<PoolSpec> {
        let max = self.asked.max_workers;
        let mut specs: Vec<PoolSpec> = self
            .pods
            .scope(key.scope)
            .iter()
            .filter_map(|pod| {
                let cpus = match &key.cpus {
                    Some(cpus) => pod.cpus.intersection(cpus),
                    None => pod.cpus.clone(),
                };
                (!cpus.is_empty()).then_some(PoolSpec {
                    pod: pod.pod,
                    cpus,
                    node: pod.node,
                    max,
                    near: Vec::new(),
                })
            })
            .collect();
        let llc = |cpu| self.pods.pod_of(AffinityScope::Cache, cpu);
        let place = |spec: &PoolSpec| (spec.node, spec.cpus.first().and_then(llc));
        let places: Vec<_> = specs.iter().map(place).collect();
        for (index, spec) in specs.iter_mut().enumerate() {
            spec.near = nearest(&places, index);
        }
        specs
    }

    fn close(&self) -> Vec<Arc<Group>> {
        // Held items run, like all queued ones.
        let queues = {
            let mut queues = self.keeper.queues.lock();
            queues.closed = true;
            queues.alive()
        };
        for queue in &queues {
            queue.close();
            queue.settle();
        }
        let all = {
            let mut groups = self.groups.lock();
            groups.closed = true;
            groups.all()
        };
        self.keeper.close();
        // No lock is held: items without a worker are cancelled, and that runs the user's
        // destructors.
        for group in &all {
            group.close();
        }
        for queue in &queues {
            queue.cancel_waiting();
        }
        all
    }
}

/// Returns the other pods, nearest first: same cache, same node, then by distance in number, so
/// that each pod starts its search at another one.
fn nearest(places: &[(Option<u32>, Option<u32>)], from: usize) -> Vec<usize> {
    let (node, llc) = places[from];
    let mut others: Vec<usize> = (0..places.len()).filter(|&other| other != from).collect();
    others.sort_by_key(|&other| {
        let (other_node, other_llc) = places[other];
        (other_llc != llc, other_node != node, (other + places.len() - from) % places.len())
    });
    others
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.close();
    }
}

impl fmt::Debug for WorkerPools {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkerPools").field("pools", &self.report()).finish()
    }
}

/// All existing pools.
#[derive(Default)]
pub(crate) struct Groups {
    // Hashed alike in each process: a seed then replays a schedule.
    by_key: HashMap<PoolKey, (Arc<Group>, Weak<Lease>), BuildHasherDefault<DefaultHasher>>,
    /// Pools that no queue uses any more, whose workers leave.
    leaving: Vec<Weak<Group>>,
    pub(crate) closed: bool,
}

/// A lease that keeps a group of pools.
pub(crate) struct Lease {
    /// I: the pools.
    pub(crate) group: Arc<Group>,
}

impl Groups {
    /// Returns the pools with these attributes, if there are any, for a queue of that name.
    pub(crate) fn lease(
        &mut self,
        queue: &str,
        key: &PoolKey,
    ) -> Result<Option<Arc<Lease>>, BuildError> {
        if self.closed {
            return Err(BuildError::ShutDown { queue: queue.into() });
        }
        let found = self.by_key.get_mut(key).map(|(group, lease)| {
            lease.upgrade().unwrap_or_else(|| {
                let renewed = Arc::new(Lease { group: Arc::clone(group) });
                *lease = Arc::downgrade(&renewed);
                renewed
            })
        });
        Ok(found)
    }

    pub(crate) fn insert(&mut self, key: PoolKey, group: &Arc<Group>) -> Arc<Lease> {
        self.reap();
        let lease = Arc::new(Lease { group: Arc::clone(group) });
        self.by_key.insert(key, (Arc::clone(group), Arc::downgrade(&lease)));
        lease
    }

    /// Ends the pools that no queue uses any more.
    pub(crate) fn reap(&mut self) {
        let mut unused = Vec::new();
        self.by_key.retain(|_, (group, lease)| {
            let is_used = lease.strong_count() > 0;
            if !is_used {
                unused.push(Arc::clone(group));
            }
            is_used
        });
        unused.iter().for_each(|group| self.retire(group));
    }

    /// Makes the workers of these pools leave.
    pub(crate) fn retire(&mut self, group: &Arc<Group>) {
        group.close();
        self.leaving.retain(|group| group.strong_count() > 0);
        self.leaving.push(Arc::downgrade(group));
    }

    /// Returns the groups that queues use, or used last.
    pub(crate) fn used(&self) -> impl Iterator<Item = Arc<Group>> {
        self.by_key.values().map(|(group, _)| Arc::clone(group))
    }

    /// Returns the groups in use and those whose workers leave.
    pub(crate) fn all(&self) -> Vec<Arc<Group>> {
        self.used().chain(self.leaving.iter().filter_map(Weak::upgrade)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_pod_shares_the_cache_then_the_node() {
        let places = [
            (Some(0), Some(0)),
            (Some(1), Some(2)),
            (Some(0), Some(1)),
            (Some(0), Some(0)),
            (Some(1), Some(2)),
        ];
        assert_eq!(nearest(&places, 0), [3, 2, 1, 4]);
        assert_eq!(nearest(&places, 4), [1, 0, 2, 3]);
    }
}
