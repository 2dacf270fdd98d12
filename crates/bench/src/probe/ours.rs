//! A device manager, which places each probe once.

use std::sync::Arc;
use std::time::Duration;

use corewise_device::{
    Bound, BringUpOptions, DeviceDecl, DeviceManager, Driver, ProbeContext, ProbeError, ProbeType,
};
use corewise_sync::time;
use corewise_topology::Machine;
use corewise_workqueue::WorkerPools;

use crate::error::BenchError;
use crate::probe::device::Device;

/// How devices are brought up.
#[derive(Debug, Clone, Copy)]
pub struct How {
    /// On which node they are.
    pub node: Option<u32>,
    /// One after the other.
    pub synchronous: bool,
}

/// What brings devices up: a design under test.
pub trait Devices {
    /// Brings all of them up, and returns when the last one is: how long that took. Work that has to be
    /// made before doesn't count.
    ///
    /// # Errors
    /// It couldn't.
    fn bring_up(&self, devices: Vec<Device>, how: How) -> Result<Duration, BenchError>;
}

/// Corewise's own: one manager a pass, all on the same pools.
#[derive(Debug)]
pub struct Managed {
    pools: WorkerPools,
}

impl Managed {
    /// On a machine.
    pub fn new(machine: &Machine) -> Managed {
        Managed { pools: WorkerPools::new(machine) }
    }
}

impl Devices for Managed {
    fn bring_up(&self, devices: Vec<Device>, how: How) -> Result<Duration, BenchError> {
        let manager = DeviceManager::new(&self.pools)?;
        let probe_type = match how.synchronous {
            true => ProbeType::ForceSynchronous,
            false => ProbeType::PreferAsynchronous,
        };
        manager.register(Arc::new(Fake { probe_type }))?;
        let decl = |(number, device): (usize, Device)| {
            DeviceDecl::new(format!("fake{number}"), "fake").node(how.node).config(device)
        };
        let decls = devices.into_iter().enumerate().map(decl).collect();
        let began = time::now();
        let up = manager.bring_up(decls, &BringUpOptions::new())?;
        let took = time::now() - began;
        match up.is_complete() {
            true => Ok(took),
            false => Err(BenchError::WrongAnswer),
        }
    }
}

impl Drop for Managed {
    fn drop(&mut self) {
        self.pools.shutdown();
    }
}

struct Fake {
    probe_type: ProbeType,
}

struct Up;

impl Bound for Up {
    fn has_shutdown(&self) -> bool {
        false
    }
}

impl Driver for Fake {
    fn name(&self) -> &str {
        "fake"
    }

    fn probe_type(&self) -> ProbeType {
        self.probe_type
    }

    fn probe(&self, cx: &ProbeContext<'_>) -> Result<Arc<dyn Bound>, ProbeError> {
        cx.config::<Device>()?.probe();
        Ok(Arc::new(Up))
    }
}
