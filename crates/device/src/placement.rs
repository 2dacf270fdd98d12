//! Where probes run: the one helper that both the synchronous and the asynchronous path use.
//!
//! A probe is placed once, here, near its device's node; the worker that runs it carries a
//! placement token, so that nobody places it again. CPUs of the node are given out in rotation, and
//! isolated CPUs never. The CPU only chooses the pod whose pool runs the probe: affinity is soft,
//! nothing is pinned, so a CPU that goes offline between the choice and the queueing costs locality
//! and nothing else (rule 1.2.14 without its lock).

use crate::policy::{self, Candidate, Path, Place};
use corewise_sync::Mutex;
use corewise_sync::context::Placement;
use corewise_topology::{AffinityScope, Machine, Masks};
use corewise_workqueue::{BuildError, WorkerPools, Workqueue};
use std::collections::HashMap;

/// Places probes on the worker pools of one machine.
pub(crate) struct Placer {
    /// I: a handle.
    pools: WorkerPools,
    /// I: a handle; unbound, and never on an isolated CPU.
    queue: Workqueue,
    /// L: is the lock; guards whose turn it is.
    rotations: Mutex<Rotations>,
}

/// Whose turn it is, per node, as of one epoch of the machine's masks.
#[derive(Default)]
struct Rotations {
    epoch: Option<u64>,
    nodes: HashMap<u32, Rotation>,
}

struct Rotation {
    cpus: Vec<u32>,
    next: usize,
}

impl Placer {
    pub(crate) fn new(pools: &WorkerPools) -> Result<Placer, BuildError> {
        // Its CPUs are by default the housekeeping ones, so that it shares its pools with others.
        let queue = Workqueue::builder("device").build(pools)?;
        Ok(Placer { pools: pools.clone(), queue, rotations: Mutex::new(Rotations::default()) })
    }

    pub(crate) fn machine(&self) -> &Machine {
        self.pools.machine()
    }

    /// The queue itself, for work that belongs near no device.
    pub(crate) fn queue(&self) -> &Workqueue {
        &self.queue
    }

    /// Queues `f` near the node; anywhere, where the node is unknown or has no usable CPU. `f` gets
    /// the CPU that was chosen. Does not block. If the pools are shut down, `f` is dropped.
    pub(crate) fn spawn(&self, node: Option<u32>, f: impl FnOnce(Option<u32>) + Send + 'static) {
        match self.choose(Path::Async, node) {
            (Place::Near, Some(cpu)) => drop(self.queue.spawn_on(cpu, move || f(Some(cpu)))),
            _ => drop(self.queue.spawn(move || f(None))),
        }
    }

    /// Runs `f` near the node and waits for it; in the calling thread, where the node is unknown or
    /// has no usable CPU, or where this task was placed on that node already. If the pools are shut
    /// down, `f` is dropped.
    pub(crate) fn call(&self, node: Option<u32>, f: impl FnOnce(Option<u32>) + Send + 'static) {
        match self.choose(Path::Sync, node) {
            (Place::Near, Some(cpu)) => {
                // `f` catches the panics of what it calls, and tells when it is dropped unused, so
                // that there is no result to lose here.
                let _ = self.queue.spawn_on(cpu, move || f(Some(cpu))).join();
            }
            _ => f(None),
        }
    }

    /// The place, and the CPU whose turn it is.
    fn choose(&self, path: Path, node: Option<u32>) -> (Place, Option<u32>) {
        let token = Placement::current();
        let mut rotations = self.rotations.lock();
        let rotation = node.map(|node| rotations.on(node, &self.pools));
        let usable = rotation.as_ref().is_some_and(|r| !r.cpus.is_empty());
        let place = policy::place(path, node, usable, token);
        let cpu = match rotation {
            Some(rotation) if place == Place::Near => rotation.turn(),
            _ => None,
        };
        (place, cpu)
    }
}

impl Rotations {
    fn on(&mut self, node: u32, pools: &WorkerPools) -> &mut Rotation {
        let masks = pools.machine().masks();
        if self.epoch != Some(masks.epoch) {
            *self = Rotations { epoch: Some(masks.epoch), nodes: HashMap::new() };
        }
        self.nodes.entry(node).or_insert_with(|| Rotation {
            cpus: policy::rotation(&candidates(pools, &masks, node)),
            next: 0,
        })
    }
}

impl Rotation {
    fn turn(&mut self) -> Option<u32> {
        let cpu = *self.cpus.get(self.next % self.cpus.len().max(1))?;
        self.next += 1;
        Some(cpu)
    }
}

/// The online CPUs of the node that are not isolated. Where every online CPU is isolated there is
/// no housekeeping CPU, and none is a candidate.
fn candidates(pools: &WorkerPools, masks: &Masks, node: u32) -> Vec<Candidate> {
    let topology = pools.machine().topology();
    let usable = masks.online.difference(&masks.isolated);
    let near = topology.cpus().iter().filter(|c| c.node == Some(node) && usable.contains(c.cpu));
    let candidate = |cpu: u32, core| Candidate {
        cpu,
        core,
        pod: pools.pods().pod_of(AffinityScope::CacheShard, cpu),
    };
    near.map(|c| candidate(c.cpu, c.core)).collect()
}

#[cfg(test)]
#[path = "placement_tests.rs"]
mod tests;
