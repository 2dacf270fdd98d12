//! Corewise's device manager, which places each probe once, and plain threads, without any design.
//! Each brings all devices up, and returns the time until the last one was up.

use std::sync::Arc;
use std::time::Duration;

use corewise_device::{
    Bound, BringUpOptions, DeviceDecl, DeviceManager, Driver, ProbeContext, ProbeError, ProbeType,
};
use corewise_sync::time;
use corewise_workqueue::WorkerPools;

use crate::error::BenchError;
use crate::probe::device::Device;
use crate::start::together;

/// Options of a bring-up.
#[derive(Debug, Clone, Copy)]
pub(super) struct BringUpStyle {
    /// The node of the devices.
    pub node: Option<u32>,
    /// True if devices are brought up one after the other.
    pub synchronous: bool,
}

/// Brings devices up with Corewise's manager. Each pass has its own manager on the same pools. The
/// preparation isn't timed.
///
/// # Errors
/// A device doesn't come up.
pub(super) fn managed(
    pools: &WorkerPools,
    devices: Vec<Device>,
    how: BringUpStyle,
) -> Result<Duration, BenchError> {
    let manager = DeviceManager::new(pools)?;
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
    if up.is_complete() { Ok(took) } else { Err(BenchError::WrongAnswer) }
}

struct Fake {
    probe_type: ProbeType,
}

struct BoundFake;

impl Bound for BoundFake {
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
        Ok(Arc::new(BoundFake))
    }
}

/// Brings devices up with a plain thread each. The threads are started beforehand and begin at
/// once, and the system's scheduler places them.
///
/// The result shows the machine's own behaviour with this pattern. With fewer CPUs than devices it
/// isn't a lower bound: two probes that share a CPU wait for each other, and drift.
///
/// # Errors
/// A thread couldn't be started.
pub(super) fn threads(devices: &[Device]) -> Result<Duration, BenchError> {
    let names: Vec<String> = (0..devices.len()).map(|n| format!("probe/{n}")).collect();
    let probe = |number: usize, ()| {
        devices[number].probe();
        Ok(())
    };
    let ran = together(&names, |_| Ok(()), probe)?;
    Ok(ran.ended - ran.began)
}
