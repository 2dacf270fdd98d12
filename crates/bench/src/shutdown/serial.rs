//! The plain loop: what somebody writes who has a list of devices.
//!
//! They are brought up by Corewise, and its worker threads stay: so their objects lie in memory as
//! there, and the allocator takes locks as it does in any program with threads.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use corewise_device::Bound;
use corewise_topology::Machine;

use crate::error::BenchError;
use crate::shutdown::ours::{Fake, Left, bring_up};
use crate::shutdown::pass::Pass;

/// Shuts the devices down one by one, backwards: each that has a callback is called, a panic in it
/// keeps the others from nothing, and errors are counted. Then the objects are dropped in the same
/// order.
///
/// # Errors
/// A device doesn't come up.
pub fn prepare(
    machine: &Machine,
    pass: &Arc<Pass>,
) -> Result<impl FnOnce() -> Result<Left, BenchError> + use<>, BenchError> {
    let (manager, pools) = bring_up(machine, pass)?;
    let mut devices: Vec<Arc<dyn Bound>> = Vec::with_capacity(pass.web().devices().len());
    for device in pass.web().devices() {
        devices.push(manager.bound::<Fake>(&device.name).ok_or(BenchError::WrongAnswer)?);
    }
    // The list has the last handles.
    drop(manager);
    Ok(move || {
        let mut failed = 0;
        for device in devices.iter().rev() {
            if device.has_shutdown() {
                let called = catch_unwind(AssertUnwindSafe(|| device.shutdown()));
                failed += usize::from(!matches!(called, Ok(Ok(()))));
            }
        }
        while let Some(device) = devices.pop() {
            drop(device);
        }
        if failed > 0 { Err(BenchError::Panicked) } else { Ok(Left::of(pools)) }
    })
}
