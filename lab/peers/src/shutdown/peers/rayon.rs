//! rayon: a scope, and for each device a counter of the devices that must be done before it. The
//! task that counts the counter down to zero spawns the device's callback.
//!
//! Callbacks block, and a worker of rayon's that blocks does nothing else. So it has 32 workers, as
//! many as Corewise may have helpers, and not one a CPU. They are made before.

use std::io;
use std::sync::Arc;

use corewise_bench::BenchError;
use corewise_bench::shutdown::pass::Pass;
use corewise_sync::atomic::{AtomicU32, Ordering};
use rayon::{Scope, ThreadPool, ThreadPoolBuilder};

use crate::shutdown::peers::previous;

/// Number of workers.
const THREADS: usize = 32;

/// The devices, and their waits for each other.
struct Counted {
    pass: Arc<Pass>,
    devices: Vec<Device>,
}

struct Device {
    /// A: number of devices that must be done before it; AcqRel.
    left: AtomicU32,
    /// Devices that wait for it.
    feeds: Vec<u32>,
}

impl Counted {
    fn new(pass: &Arc<Pass>) -> Counted {
        let web = pass.web();
        let mut feeds: Vec<Vec<u32>> =
            web.devices().iter().map(|device| device.needs().collect()).collect();
        let previous = previous(pass);
        for (device, before) in (0..).zip(&previous) {
            if let Some(before) = before {
                feeds[*before as usize].push(device);
            }
        }
        let device = |(number, feeds): (u32, Vec<u32>)| {
            let before = previous[number as usize].iter();
            let count = web.dependents(number).iter().chain(before).count();
            let left = AtomicU32::new(u32::try_from(count).unwrap_or(u32::MAX));
            Device { left, feeds }
        };
        let devices = (0..).zip(feeds).map(device).collect();
        Counted { pass: Arc::clone(pass), devices }
    }

    /// Shuts down a device that waits for no other any more, and then devices that waited for it
    /// alone.
    fn start<'s>(&'s self, scope: &Scope<'s>, device: u32) {
        if self.pass.has_callback(device) {
            scope.spawn(move |scope| {
                self.pass.call(device);
                self.done(scope, device);
            });
        } else {
            self.done(scope, device);
        }
    }

    /// Shuts down the devices that waited for this one, with a stack of its own: chains are long.
    fn done<'s>(&'s self, scope: &Scope<'s>, device: u32) {
        let mut done = vec![device];
        while let Some(device) = done.pop() {
            for &next in &self.devices[device as usize].feeds {
                if self.devices[next as usize].left.fetch_sub(1, Ordering::AcqRel) > 1 {
                    continue;
                }
                if self.pass.has_callback(next) {
                    self.start(scope, next);
                } else {
                    done.push(next);
                }
            }
        }
    }
}

/// Makes the workers and the counters.
///
/// # Errors
/// A thread couldn't be started.
pub(crate) fn prepare(
    pass: &Arc<Pass>,
) -> Result<impl FnOnce() -> Result<ThreadPool, BenchError> + use<>, BenchError> {
    let pool = ThreadPoolBuilder::new().num_threads(THREADS).build();
    let pool = pool.map_err(|error| BenchError::Thread(io::Error::other(error)))?;
    let counted = Counted::new(pass);
    // This is read before any counter is counted down.
    let free = |device: &u32| counted.devices[*device as usize].left.load(Ordering::Relaxed) == 0;
    let first: Vec<u32> = pass.web().backwards().filter(free).collect();
    Ok(move || {
        pool.scope(|scope| first.iter().for_each(|&device| counted.start(scope, device)));
        drop(counted);
        Ok(pool)
    })
}
