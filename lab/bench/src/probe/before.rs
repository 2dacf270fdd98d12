//! The old designs. Each device has an asynchronous worker near its node, which queues the probe
//! again and waits for it.
//!
//! `before` is the kernel's: `pci_call_probe` chose the first housekeeping CPU of the node. It
//! queued the probe on that CPU's own queue (`schedule_work_on`, bound). `nested` is the patch's
//! variant with `queue_work_node`: the probe runs anywhere on the node, but each device still has a
//! second worker.
//!
//! Both are built from the same queues as the new design, so they differ only in the placement.
//! Pools are concurrency-managed, and a worker that waits lets another one run. A waiter doesn't
//! take the item back and run it, as waits of Corewise would, since the kernel's `flush_work`
//! doesn't.

use std::sync::Arc;
use std::time::Duration;

use corewise_sync::{Countdown, context, time};
use corewise_topology::{CpuId, Machine};
use corewise_workqueue::{At, QueueKind, WorkerPools, Workqueue};

use crate::error::BenchError;
use crate::probe::device::Device;
use crate::probe::ours::BringUpStyle;
use crate::start::Pools;

/// The place of the second worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Second {
    /// A fixed CPU, as in `before`.
    On(CpuId),
    /// Any CPU of the node, as in `nested`.
    Near,
}

/// The kernel's default limit of a queue (`WQ_DFL_ACTIVE`), which the queue of asynchronous probes
/// has. At most this number of workers wait for another one. The items for which they wait need
/// more workers.
const ASYNC_ACTIVE: usize = 256;

/// An old design.
#[derive(Debug)]
pub(super) struct Twice {
    asynchronous: Workqueue,
    probes: Workqueue,
    second: Second,
    _pools: Pools,
}

impl Twice {
    /// Creates the design's queues on a machine.
    ///
    /// # Errors
    /// A queue couldn't be built.
    pub(super) fn new(machine: &Machine, second: Second) -> Result<Twice, BenchError> {
        let pools = WorkerPools::builder(machine).max_workers(4 * ASYNC_ACTIVE).build();
        let asynchronous = Workqueue::builder("async").max_active(ASYNC_ACTIVE).build(&pools)?;
        let probes = Workqueue::builder("probe");
        let probes = if second == Second::Near { probes } else { probes.kind(QueueKind::Bound) }
            .build(&pools)?;
        Ok(Twice { asynchronous, probes, second, _pools: Pools(pools) })
    }
}

impl Twice {
    /// Brings the devices up, and returns the time until the last one is.
    pub(super) fn bring_up(
        &self,
        devices: Vec<Device>,
        how: BringUpStyle,
    ) -> Result<Duration, BenchError> {
        let began = time::now();
        let all = Arc::new(Countdown::new(devices.len()));
        for device in devices {
            let (probes, second, all) = (self.probes.clone(), self.second, Arc::clone(&all));
            let placed = move || probe(&probes, second, how.node, device);
            if how.synchronous {
                placed();
                all.done();
                continue;
            }
            let run = move || {
                placed();
                all.done();
            };
            let at = how.node.map_or(At::Here, At::Node);
            let taken = self.asynchronous.at(at).execute(run);
            taken.map_err(|_| BenchError::Nothing { what: "queue that takes work" })?;
        }
        all.wait();
        Ok(time::now() - began)
    }
}

/// Probes a device as the kernel's `pci_call_probe` does: a device without a node here, others
/// elsewhere.
fn probe(probes: &Workqueue, second: Second, node: Option<u32>, device: Device) {
    let Some(node) = node else { return device.probe() };
    let placed = match second {
        Second::On(cpu) => probes.at(At::Cpu(cpu)).spawn(move || device.probe()),
        Second::Near => probes.at(At::Node(node)).spawn(move || device.probe()),
    };
    // The result has no meaning here: fake devices don't fail.
    let _ = context::blocking("flush_work", || placed.join());
}
