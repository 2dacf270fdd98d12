//! Corewise's device manager, as a program uses it.

use std::sync::Arc;

use corewise_device::{
    Bound, BringUpOptions, DeviceDecl, DeviceManager, Driver, ProbeContext, ProbeError, ProbeType,
    ShutdownError, ShutdownOptions,
};
use corewise_topology::Machine;
use corewise_workqueue::WorkerPools;

use crate::error::BenchError;
use crate::shutdown::pass::Pass;
use crate::shutdown::web::{Device, Web};
use crate::start::Pools;

/// A device that is up.
#[derive(Debug)]
pub(super) struct Fake {
    pass: Arc<Pass>,
    device: u32,
}

impl Fake {
    /// Returns a device of a pass.
    pub(super) fn bound(pass: &Arc<Pass>, device: u32) -> Arc<dyn Bound> {
        Arc::new(Fake { pass: Arc::clone(pass), device })
    }
}

impl Bound for Fake {
    fn shutdown(&self) -> Result<(), ShutdownError> {
        self.pass.call(self.device);
        Ok(())
    }

    fn has_shutdown(&self) -> bool {
        self.pass.has_callback(self.device)
    }
}

/// Its driver.
struct Fakes {
    pass: Arc<Pass>,
}

impl Driver for Fakes {
    fn name(&self) -> &str {
        "fake"
    }

    // The device comes up in the caller's thread, so the measured shutdown finds the pools as they
    // were made.
    fn probe_type(&self) -> ProbeType {
        ProbeType::ForceSynchronous
    }

    fn probe(&self, cx: &ProbeContext<'_>) -> Result<Arc<dyn Bound>, ProbeError> {
        Ok(Fake::bound(&self.pass, *cx.config::<u32>()?))
    }
}

/// Brings the devices up, and returns the function that shuts them down. The value that this
/// returns is dropped afterwards.
///
/// # Errors
/// The devices could not be brought up.
pub(super) fn prepare(
    machine: &Machine,
    pass: &Arc<Pass>,
) -> Result<impl FnOnce() -> Result<Left, BenchError> + use<>, BenchError> {
    let (devices, pools) = bring_up(machine, pass)?;
    let left = Left { devices: Some(devices), _pools: pools };
    Ok(move || {
        let devices = left.devices.as_ref().expect("it was made with them");
        let report = devices.shutdown(&ShutdownOptions::new())?;
        if report.is_clean() { Ok(left) } else { Err(BenchError::Panicked) }
    })
}

/// Brings the devices up.
///
/// # Errors
/// No queue can be built, or a device doesn't come up.
pub(crate) fn bring_up(
    machine: &Machine,
    pass: &Arc<Pass>,
) -> Result<(DeviceManager, Pools), BenchError> {
    let pools = Pools(WorkerPools::new(machine));
    let devices = DeviceManager::new(&pools.0)?;
    devices.register(Arc::new(Fakes { pass: Arc::clone(pass) }))?;
    let decls = decls(pass.web());
    if !devices.bring_up(decls, &BringUpOptions::new())?.is_complete() {
        return Err(BenchError::WrongAnswer);
    }
    Ok((devices, pools))
}

/// Returns the declarations of all devices, in the order of their registration.
pub(crate) fn decls(web: &Web) -> Vec<DeviceDecl> {
    let decl = |(number, device): (u32, &Device)| {
        let name = |need: u32| web.devices()[need as usize].name.clone();
        let decl = DeviceDecl::new(device.name.clone(), "fake");
        let mut decl = decl.async_shutdown(device.opted_in).config(number);
        decl.parent = device.parent.map(name);
        decl.suppliers = device.suppliers.iter().map(|need| name(*need)).collect();
        decl
    };
    let mut decls: Vec<DeviceDecl> = (0..).zip(web.devices()).map(decl).collect();
    if web.inverted {
        decls.reverse();
    }
    decls
}

/// The remains of a program after a shutdown: worker threads, which end with this, and the
/// manager's devices.
#[derive(Debug)]
pub(super) struct Left {
    pub(super) devices: Option<DeviceManager>,
    pub(super) _pools: Pools,
}
