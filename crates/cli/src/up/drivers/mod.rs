//! Drivers of the device manager: what turns a manifest's devices into block devices and exports.

mod export;
mod file;
mod leaf;
mod mirror;
mod over_one;

use std::sync::Arc;

use corewise::blockmq::drivers::{Mirror, Stripe};
use corewise::blockmq::{self, BlockDevice, BlockDeviceExt, Completer, Queue, RqAffinity};
use corewise::device::{self, Bound, ProbeContext, ProbeError, ProbeType, ShutdownError};
use corewise::sync::Mutex;
use corewise::topology::Machine;
use corewise::workqueue::Workqueue;

use super::cleanup::Cleanup;
use super::report::Report;
use crate::control::disks::Disks;
use crate::manifest;
use over_one::Claims;

pub(crate) use export::{EXPORT, ExportDriver, Shown};

/// What all volumes are made with.
#[derive(Clone)]
pub(crate) struct House {
    pub(crate) machine: Machine,
    /// Runs what the queues of volumes can't run on the spot.
    pub(crate) workqueue: Workqueue,
    /// Where a volume asks for it.
    pub(crate) completer: Option<Completer>,
    /// Knows the files that were made.
    pub(crate) cleanup: Arc<Cleanup>,
    pub(crate) notes: Arc<Notes>,
    /// Where what happens to volumes while they serve is told.
    pub(crate) report: Report,
    /// Knows the queues of the volumes that are up.
    pub(crate) disks: Arc<Disks>,
}

impl House {
    /// The queue of a volume, as its manifest wants it.
    fn queue(&self, device: &manifest::Device, driver: Arc<dyn blockmq::Driver>) -> Arc<Queue> {
        let asked = device.tuning;
        let mut builder = Queue::builder(&self.machine, driver)
            .name(device.name.as_str())
            .scheduler(asked.scheduler);
        if let Some(how) = asked.hw_queues {
            builder = builder.hw_queues(how);
        }
        if let Some(after) = asked.timeout {
            builder = builder.timeout(Some(after));
        }
        if let (Some(completer), true) =
            (&self.completer, asked.rq_affinity != RqAffinity::Anywhere)
        {
            builder = builder.complete_with(completer, asked.rq_affinity);
        }
        builder.build(&self.workqueue)
    }
}

/// What is no failure, and yet worth a word to the user.
#[derive(Debug, Default)]
pub(crate) struct Notes {
    /// L: is the lock; guards what was not told yet.
    notes: Mutex<Vec<String>>,
}

impl Notes {
    /// From any thread.
    pub(crate) fn add(&self, note: String) {
        self.notes.lock().push(note);
    }

    /// What came since the last call.
    pub(crate) fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.notes.lock())
    }
}

/// Brings up the devices whose `driver` in the manifest has this name.
pub(crate) struct VolumeDriver {
    name: &'static str,
    house: House,
}

impl VolumeDriver {
    /// One for each driver that a manifest may name.
    pub(crate) fn all(house: &House) -> impl Iterator<Item = VolumeDriver> {
        let house = house.clone();
        manifest::driver_names().map(move |name| VolumeDriver { name, house: house.clone() })
    }
}

impl device::Driver for VolumeDriver {
    fn name(&self) -> &str {
        self.name
    }

    fn probe_type(&self) -> ProbeType {
        ProbeType::PreferAsynchronous
    }

    fn probe(&self, cx: &ProbeContext<'_>) -> Result<Arc<dyn Bound>, ProbeError> {
        let device = cx.config::<manifest::Device>()?;
        let mut mirror = None;
        let driver: Arc<dyn blockmq::Driver> = match &device.driver {
            manifest::Driver::Memory { size, block_size } => leaf::memory(*size, *block_size)?,
            manifest::Driver::Null { size, block_size } => leaf::null(*size, *block_size),
            manifest::Driver::File(file) => Arc::new(file::open(device, file, &self.house)?),
            manifest::Driver::Stripe { over, chunk } => {
                Arc::new(Stripe::new(parts(cx, over)?, *chunk).map_err(ProbeError::failed)?)
            }
            manifest::Driver::Mirror(asked) => {
                let made = self::mirror::open(&self.house, device, asked, parts(cx, &asked.over)?)?;
                mirror = Some(Arc::clone(&made));
                made
            }
            manifest::Driver::Partition { over, which } => {
                over_one::partition(cx, &self.house, &device.name, over, &which.value)?
            }
            manifest::Driver::Delay { over, delays } => {
                over_one::delay(cx, &self.house, over, *delays)?
            }
            manifest::Driver::Error { over, fault, seed } => {
                over_one::error(cx, over, fault, *seed)?
            }
        };
        let queue = self.house.queue(device, driver);
        self.house.disks.add(&queue);
        let keeps_data = matches!(device.driver, manifest::Driver::File(_));
        self.house.cleanup.came_up(&device.name);
        Ok(Arc::new(Volume { queue, keeps_data, mirror, claims: Claims::default() }))
    }
}

/// The parts of a volume, in the order of the manifest.
fn parts(cx: &ProbeContext<'_>, over: &[String]) -> Result<Vec<Arc<dyn BlockDevice>>, ProbeError> {
    over.iter().map(|name| Ok(cx.supplier::<Volume>(name)?.device())).collect()
}

/// A volume that is up: what exports and stacked volumes use.
pub(crate) struct Volume {
    queue: Arc<Queue>,
    /// What is written here ends here, and not in parts of their own.
    keeps_data: bool,
    mirror: Option<Arc<Mirror>>,
    claims: Claims,
}

impl Volume {
    pub(crate) fn device(&self) -> Arc<dyn BlockDevice> {
        self.queue.clone()
    }
}

impl Bound for Volume {
    /// Whatever is still on its way (requests of clients whose connections were cut) ends first;
    /// then everything becomes durable, where it is kept: a flush of a stripe would only be one of
    /// its parts, and theirs comes next.
    fn shutdown(&self) -> Result<(), ShutdownError> {
        self.queue.drain();
        if let Some(mirror) = &self.mirror {
            mirror.settle();
        }
        if !self.keeps_data {
            return Ok(());
        }
        self.queue.flush().map_err(|error| {
            ShutdownError::new(format!("flush failed, recent writes may be lost: {error}"))
        })
    }

    fn has_shutdown(&self) -> bool {
        let geometry = self.queue.geometry();
        geometry.can_flush && !geometry.read_only
    }
}
