//! How a queue is built.

use std::sync::Arc;

use corewise_topology::Machine;
use corewise_workqueue::Workqueue;

use super::Queue;
use crate::driver::Driver;
use crate::gate::RunGate;
use crate::hctx::{Core, Hctx};
use crate::map::{CpuMap, CpuPlace};

/// Makes a [`Queue`].
#[must_use = "a builder does nothing until it builds"]
pub struct QueueBuilder {
    machine: Machine,
    driver: Arc<dyn Driver>,
    name: Option<String>,
    hw_queues: Option<usize>,
    depth: Option<u32>,
}

impl QueueBuilder {
    pub(super) fn new(machine: &Machine, driver: Arc<dyn Driver>) -> Self {
        Self { machine: machine.clone(), driver, name: None, hw_queues: None, depth: None }
    }

    /// The name under which logs and errors speak of the device; else the driver's kind.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// At most this many hardware queues; also at most as many as the driver has room for, and as
    /// there are CPUs.
    pub fn hw_queues(mut self, n: usize) -> Self {
        self.hw_queues = Some(n);
        self
    }

    /// At most this many requests of each hardware queue in the driver at once; also at most the
    /// driver's own depth.
    pub fn depth(mut self, depth: u32) -> Self {
        self.depth = Some(depth);
        self
    }

    /// Builds the queue; asynchronous runs go to `wq`.
    pub fn build(self, wq: &Workqueue) -> Arc<Queue> {
        self.make(Some(wq))
    }

    /// Builds a queue that nothing runs but [`Queue::step`]: for tests that choose the order of
    /// events themselves, on one thread.
    pub fn build_by_hand(self) -> Arc<Queue> {
        self.make(None)
    }

    fn make(self, wq: Option<&Workqueue>) -> Arc<Queue> {
        let driver = self.driver;
        let room = driver.hw_queues().max(1);
        let map = CpuMap::new(places(&self.machine), self.hw_queues.unwrap_or(room).clamp(1, room));
        let depth = self.depth.unwrap_or(u32::MAX).min(driver.depth()).max(1);
        let core = Arc::new(Core {
            name: self.name.unwrap_or_else(|| driver.kind().to_owned()).into(),
            geometry: driver.geometry(),
            driver,
            gate: RunGate::new(),
        });
        let hctxs =
            (0..map.hw_queues()).map(|h| Hctx::new(&core, h, map.cpus(h), depth, wq)).collect();
        Arc::new(Queue { core, hctxs, map })
    }
}

/// The online CPUs in the order in which hardware queues divide them.
fn places(machine: &Machine) -> Vec<CpuPlace> {
    let topology = machine.topology();
    machine
        .online()
        .iter()
        .filter_map(|cpu| topology.cpu(cpu))
        .map(|c| CpuPlace {
            node: c.node.unwrap_or(u32::MAX),
            llc: c.llc.unwrap_or(u32::MAX),
            core: c.core.unwrap_or(c.cpu),
            cpu: c.cpu,
        })
        .collect()
}
