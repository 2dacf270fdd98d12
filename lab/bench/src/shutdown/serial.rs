//! The plain loop over a list of devices in a valid order.
//!
//! The order is that of Linux's list: devices in the order of their registration, but each after
//! those that it needs. (An order that follows memory is faster because of the caches.)
//!
//! Corewise brings the devices up, and its worker threads stay. So their objects lie in memory as
//! with Corewise, and the allocator takes locks as in any program with threads.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use corewise_device::{Bound, Graph};
use corewise_topology::Machine;

use crate::error::BenchError;
use crate::shutdown::ours::{Fake, Left, bring_up, decls};
use crate::shutdown::pass::Pass;

/// Makes the devices, and returns the function that shuts them down one by one, backwards. It calls
/// each callback, goes on after a panic, and counts errors. Then it drops the objects in the same
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
