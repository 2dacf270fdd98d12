//! The plain loop: what somebody writes who has a list of devices in an order that is right.
//!
//! It is the order of Linux's list: that of registration, but a device comes after what it needs.
//! (An order of the same web that follows memory is quicker by what caches make of it.)
//!
//! They are brought up by Corewise, and its worker threads stay: so their objects lie in memory as
//! there, and the allocator takes locks as it does in any program with threads.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use corewise_device::{Bound, Graph};
use corewise_topology::Machine;

use crate::error::BenchError;
use crate::shutdown::ours::{Fake, Left, bring_up, decls};
use crate::shutdown::pass::Pass;

/// Shuts the devices down one by one, backwards: each that has a callback is called, a panic in it
/// keeps the others from nothing, and errors are counted. Then the objects are dropped in the same
/// order.
///
/// # Errors
/// A device doesn't come up.
pub(super) fn prepare(
    machine: &Machine,
    pass: &Arc<Pass>,
) -> Result<impl FnOnce() -> Result<Left, BenchError> + use<>, BenchError> {
    let (manager, pools) = bring_up(machine, pass)?;
    let order = Graph::build(decls(pass.web())).map_err(|_| BenchError::WrongAnswer)?;
    let mut devices: Vec<Arc<dyn Bound>> = Vec::with_capacity(order.len());
    for &device in order.order() {
        let name = order.decl(device).name.as_str();
        devices.push(manager.bound::<Fake>(name).ok_or(BenchError::WrongAnswer)?);
    }
    drop(order);
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
        if failed > 0 {
            Err(BenchError::Panicked)
        } else {
            Ok(Left { devices: None, _pools: pools })
        }
    })
}
