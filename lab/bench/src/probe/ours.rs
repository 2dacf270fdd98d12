//! A device manager, which places each probe once; and no design at all. Each brings all devices
//! up, and says how long it took until the last one was.

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

/// How devices are brought up.
#[derive(Debug, Clone, Copy)]
pub(super) struct BringUpStyle {
    /// On which node they are.
    pub node: Option<u32>,
    /// One after the other.
    pub synchronous: bool,
}

/// By Corewise's own manager, one a pass, all on the same pools. Work that has to be done before
/// doesn't count.
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

/// By a plain thread a device, started beforehand and let go at the same moment, which the system's
/// scheduler puts where it likes.
///
/// It says what the machine makes of the pattern by itself. Where there are fewer CPUs than devices
/// that is not what no design can beat: two probes that share a CPU wait for each other, and drift.
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
