//! Where probes run: the one helper that both the synchronous and the asynchronous path use. See
//! `README.md` beside this file.
//!
//! A probe is placed once, here, near its device's node; the worker that runs it carries a
//! placement token, so that nobody places it again. CPUs of the node are given out in rotation, and
//! isolated CPUs never. The CPU only chooses the pod whose pool runs the probe: affinity is soft,
//! so a CPU that goes between the choice and the queueing costs locality and nothing else.

mod pace;
mod policy;

use corewise_sync::Mutex;
use corewise_sync::atomic::{AtomicUsize, Ordering};
use corewise_sync::context::{self, Placement};
use corewise_sync::{hint, time};
use corewise_topology::{AffinityScope, CpuId, Machine, Masks, current_cpu};
use corewise_workqueue::{At, BuildError, WorkerPools, Workqueue};
use pace::Pace;
use policy::{Asker, Candidate, Path, Place};
use std::collections::HashMap;

/// Places probes on the worker pools of one machine.
pub(crate) struct Placer {
    /// I: a handle.
    pools: WorkerPools,
    /// I: a handle; unbound, and never on an isolated CPU.
    queue: Workqueue,
    /// L: is the lock; guards whose turn it is.
    rotations: Mutex<Rotations>,
    /// A: tasks on workers that wait for a probe on another node. Relaxed: only the number counts,
    /// and a thread that adds one sees a value that has it.
    nested: AtomicUsize,
    /// I: how quick probes are; atomic itself.
    pace: Pace,
}

/// Whose turn it is, per node and of all nodes together, as of one epoch of the machine's masks.
#[derive(Default)]
struct Rotations {
    epoch: Option<u64>,
    nodes: HashMap<Option<u32>, Rotation>,
}

struct Rotation {
    cpus: Vec<CpuId>,
    next: usize,
}

/// The place, and the CPU whose turn it is.
type Choice = (Place, Option<CpuId>);

impl Placer {
    pub(crate) fn new(pools: &WorkerPools) -> Result<Placer, BuildError> {
        // Its CPUs are by default the housekeeping ones, so that it shares its pools with others.
        let queue = Workqueue::builder("device").build(pools)?;
        let rotations = Mutex::new(Rotations::default());
        let (nested, pace) = (AtomicUsize::new(0), Pace::new(pools.machine().parallelism()));
        Ok(Placer { pools: pools.clone(), queue, rotations, nested, pace })
    }

    pub(crate) fn machine(&self) -> &Machine {
        self.pools.machine()
    }

    /// The queue itself, for work that belongs near no device.
    pub(crate) fn queue(&self) -> &Workqueue {
        &self.queue
    }

    /// Queues `f` for another CPU than the caller's, which goes on: each time for the next one. The worker
    /// of the caller's own CPU would wait for that. Does not block. If the pools are shut down, `f` is dropped.
    pub(crate) fn spawn_elsewhere(&self, f: impl FnOnce() + Send + 'static) {
        self.queue_at(self.choose_elsewhere(), move |_| f());
    }

    /// Choose: the next CPU but the caller's.
    fn choose_elsewhere(&self) -> Choice {
        let here = self.here();
        let mut rotations = self.rotations.lock();
        let rotation = rotations.on(None, &self.pools);
        let cpu = rotation.turn().filter(|cpu| Some(*cpu) != here).or_else(|| rotation.turn());
        (cpu.map_or(Place::Anywhere, |_| Place::Near), cpu)
    }

    /// Queues `f` near the node; anywhere, where the node is unknown or has no usable CPU. `f` gets
    /// the CPU that was chosen. Does not block. If the pools are shut down, `f` is dropped.
    pub(crate) fn spawn(&self, node: Option<u32>, f: impl FnOnce(Option<CpuId>) + Send + 'static) {
        let choice = self.choose(Path::Async, node, false);
        self.queue_at(choice, f);
    }

    /// QueueAt: what was chosen may have changed by now; the pod's workers have followed that.
    fn queue_at(&self, (place, cpu): Choice, f: impl FnOnce(Option<CpuId>) + Send + 'static) {
        match (place, cpu) {
            (Place::Near, Some(cpu)) => {
                drop(self.queue.at(At::Cpu(cpu)).execute(move || f(Some(cpu))))
            }
            _ => drop(self.queue.execute(move || f(None))),
        }
    }

    /// Runs `f` near the node and waits for it; in the calling thread, where the node is unknown or
    /// has no usable CPU, where the caller is on that node already, by its placement token or by the
    /// CPU that it is on, or where too many workers wait for each other's nodes. If the pools are
    /// shut down, `f` is dropped.
    pub(crate) fn call(&self, node: Option<u32>, f: impl FnOnce(Option<CpuId>) + Send + 'static) {
        let waits = Placement::current().map(|_| Nested::enter(&self.nested));
        let waiting = waits.as_ref().map_or(0, |nested| nested.waiting);
        let must_not_wait = policy::too_many_wait(waiting, self.pools.max_workers());
        match self.choose(Path::Sync, node, must_not_wait) {
            (Place::Near, Some(cpu)) => {
                // `f` catches the panics of what it calls, and tells when it is dropped unused, so
                // that there is no result to lose here (rule 9).
                let _ = self.queue.at(At::Cpu(cpu)).spawn(move || f(Some(cpu))).join();
            }
            _ => {
                drop(waits);
                f(None);
            }
        }
    }

    /// So many probes of a node can run at once at most: it has no more threads.
    pub(crate) fn most_at_once(&self) -> usize {
        if hint::IN_MODEL {
            // Else nobody would stand in line there.
            return 2;
        }
        let pods = self.pools.pods().scope(AffinityScope::CacheShard).len();
        self.pools.max_workers().saturating_mul(pods)
    }

    /// Calls a driver's probe, on this thread. If that is a worker, its pool is told that it may take long,
    /// so that others start meanwhile; but not where probes are so quick that it wouldn't pay, or so
    /// many run at once that they would only wait for each other. Says whether the worker may go on with another
    /// probe, too: not in the last case, where its pool says how many run.
    pub(crate) fn probing<R>(&self, probe: impl FnOnce() -> R) -> (R, bool) {
        context::might_block("device probe");
        let (pacing, began) = (self.pace.begin(), time::now());
        let declares = pacing.declares();
        let result = if declares { context::long_running("device probe", probe) } else { probe() };
        let goes_on = pacing.goes_on();
        drop(pacing);
        self.pace.note(time::now() - began, declares);
        (result, goes_on)
    }

    /// Choose: the place, and the CPU whose turn it is.
    fn choose(&self, path: Path, node: Option<u32>, must_not_wait: bool) -> Choice {
        let mut rotations = self.rotations.lock();
        let rotation = node.map(|node| rotations.on(Some(node), &self.pools));
        let usable = rotation.as_ref().map_or(&[][..], |r| &r.cpus);
        let asker = Asker {
            token: Placement::current(),
            on_node: path == Path::Sync && self.here().is_some_and(|cpu| usable.contains(&cpu)),
            must_not_wait,
        };
        let place = policy::place(path, node, !usable.is_empty(), asker);
        let cpu = match rotation {
            Some(rotation) if place == Place::Near => rotation.turn(),
            _ => None,
        };
        (place, cpu)
    }

    /// The CPU that the calling thread is on, where the machine is the one that it runs on.
    fn here(&self) -> Option<CpuId> {
        if self.machine().is_synthetic() { None } else { current_cpu() }
    }
}

impl Rotations {
    fn on(&mut self, node: Option<u32>, pools: &WorkerPools) -> &mut Rotation {
        if self.epoch != Some(pools.machine().epoch()) || !self.nodes.contains_key(&node) {
            let masks = pools.machine().masks();
            if self.epoch != Some(masks.epoch) {
                // Other nodes' turns are of the old masks.
                *self = Rotations { epoch: Some(masks.epoch), nodes: HashMap::new() };
            }
            let cpus = policy::rotation(&candidates(pools, &masks, node));
            self.nodes.insert(node, Rotation { cpus, next: 0 });
        }
        self.nodes.get_mut(&node).expect("it was inserted above where it was not there")
    }
}

impl Rotation {
    fn turn(&mut self) -> Option<CpuId> {
        let cpu = *self.cpus.get(self.next % self.cpus.len().max(1))?;
        self.next += 1;
        Some(cpu)
    }
}

/// The online CPUs of the node, or of all, that are not isolated. Where every online CPU is isolated there is
/// no housekeeping CPU, and none is a candidate.
fn candidates(pools: &WorkerPools, masks: &Masks, node: Option<u32>) -> Vec<Candidate> {
    let topology = pools.machine().topology();
    let usable = masks.online.difference(&masks.isolated);
    let near = topology
        .cpus()
        .iter()
        .filter(|c| (node.is_none() || c.node == node) && usable.contains(c.cpu));
    let candidate = |cpu: CpuId, core| Candidate {
        cpu,
        core,
        pod: pools.pods().pod_of(AffinityScope::CacheShard, cpu),
    };
    near.map(|c| candidate(c.cpu, c.core)).collect()
}

/// A task on a worker that waits, or is about to, until dropped.
struct Nested<'p> {
    /// A: the placer's.
    count: &'p AtomicUsize,
    /// How many do, this one included.
    waiting: usize,
}

impl Nested<'_> {
    fn enter(count: &AtomicUsize) -> Nested<'_> {
        Nested { count, waiting: count.fetch_add(1, Ordering::Relaxed) + 1 }
    }
}

impl Drop for Nested<'_> {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
