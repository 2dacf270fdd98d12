//! The old design: every device is a work item, which blocks its worker until all devices that
//! depend on it are done. It is the asynchronous shutdown that was proposed for Linux until v9
//! (October 2024).
//!
//! All devices are queued as there, also those with nothing to do, on a queue that runs 256 items
//! at once. They are queued in the reverse order of their registration. Two faults of the design
//! are mended, so that only the design is compared:
//!
//! - An item waits for its own dependents, and not for all items queued before the last of them.
//! - Devices are queued in an order that keeps dependencies, whatever the order of their
//!   registration. So the items that an item waits for were queued before it, and the active items
//!   can't be 256 blocked ones.
//!
//! For that, the queue has one pod. Several pods take turns at the limit, and an item may be let
//! through before those that it waits for. Devices that haven't opted in keep their order: each
//! waits for the one before too.

use std::sync::Arc;

use corewise_device::Bound;
use corewise_sync::{Completion, context};
use corewise_topology::{AffinityScope, Machine};
use corewise_workqueue::{WorkerPools, Workqueue};

use crate::error::BenchError;
use crate::shutdown::ours::{Fake, Left};
use crate::shutdown::pass::Pass;
use crate::start::Pools;

/// Items that run at once.
const MAX_ACTIVE: usize = 256;

/// State that the items share.
struct Before {
    pass: Arc<Pass>,
    devices: Vec<Device>,
}

struct Device {
    bound: Arc<dyn Bound>,
    /// Completed once the device's shutdown is over.
    done: Completion,
    /// The device that was queued before it, of those that haven't opted in, if it hasn't either.
    previous: Option<u32>,
}

impl Before {
    fn new(pass: &Arc<Pass>) -> Before {
        let (web, mut previous) = (pass.web(), None);
        let mut device = |number: u32| {
            let opted_in = web.devices()[number as usize].opted_in;
            let after = previous.filter(|_| !opted_in);
            if !opted_in {
                previous = Some(number);
            }
            Device { bound: Fake::bound(pass, number), done: Completion::new(), previous: after }
        };
        let mut devices: Vec<Device> = web.backwards().map(&mut device).collect();
        devices.reverse();
        Before { pass: Arc::clone(pass), devices }
    }

    /// Runs a device's item.
    fn shut_down(&self, number: u32) {
        let device = &self.devices[number as usize];
        for &other in self.pass.web().dependents(number).iter().chain(&device.previous) {
            self.devices[other as usize].done.wait();
        }
        if device.bound.has_shutdown() {
            // If the device failed, its waiters don't wait any longer. The pass detects a callback
            // that was left out.
            drop(context::blocking("device shutdown", || device.bound.shutdown()));
        }
        device.done.complete();
    }
}

/// Makes the devices and a queue, and returns the function that shuts the devices down.
///
/// # Errors
/// The queue can't be built.
pub(super) fn prepare(
    machine: &Machine,
    pass: &Arc<Pass>,
) -> Result<impl FnOnce() -> Result<Left, BenchError> + use<>, BenchError> {
    let pools = Pools(WorkerPools::new(machine));
    let queue = Workqueue::builder("async").scope(AffinityScope::System).max_active(MAX_ACTIVE);
    let queue = queue.build(&pools.0)?;
    let before = Arc::new(Before::new(pass));
    let left = Left { devices: None, _pools: pools };
    Ok(move || {
        for device in before.pass.web().backwards() {
            let its = Arc::clone(&before);
            drop(queue.spawn(move || its.shut_down(device)));
        }
        queue.flush();
        drop(before);
        Ok(left)
    })
}
