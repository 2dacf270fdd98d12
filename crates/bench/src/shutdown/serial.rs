//! The plain loop: what somebody writes who has a list of devices.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use corewise_device::Bound;

use crate::error::BenchError;
use crate::shutdown::ours::Fake;
use crate::shutdown::pass::Pass;

/// Shuts the devices down one by one, backwards: each that has a callback is called, a panic in it
/// keeps the others from nothing, and errors are counted. Then the objects are dropped in the same
/// order.
pub fn prepare(pass: &Arc<Pass>) -> impl FnOnce() -> Result<(), BenchError> + use<> {
    let mut devices: Vec<Arc<dyn Bound>> = Vec::with_capacity(pass.web().devices().len());
    devices.extend(pass.web().backwards().map(|device| Fake::bound(pass, device)));
    devices.reverse();
    move || {
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
        if failed > 0 { Err(BenchError::Panicked) } else { Ok(()) }
    }
}
