//! Drivers of the device manager: what turns a manifest's devices into block devices and exports.

mod export;
mod file;
mod leaf;
mod mirror;
mod over_one;
mod volume;

use std::collections::BTreeSet;
use std::sync::Arc;

use corewise::blockmq::drivers::FileRings;
use corewise::blockmq::{self, Completer, Queue, RqAffinity};
use corewise::device::{self, Bound, ProbeContext, ProbeError};
use corewise::sync::Mutex;
use corewise::topology::Machine;
use corewise::workqueue::Workqueue;

use super::cleanup::Cleanup;
use super::report::Report;
use crate::control::disks::Disks;
use crate::manifest::{self, Manifest};

pub(crate) use export::{EXPORT, ExportDriver, Shown};
pub(crate) use volume::Volume;

/// What all volumes are made with.
#[derive(Clone)]
pub(crate) struct House {
    pub(crate) machine: Machine,
    /// What the volumes in files share.
    pub(crate) rings: FileRings,
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
    /// Knows the volumes that could not be brought up and may be missing.
    pub(crate) missing: Arc<Missing>,
}

/// Parts of mirrors, and what these are built over: they may be missing at the beginning.
#[derive(Debug)]
pub(crate) struct Missing {
    may: BTreeSet<String>,
    /// L: is the lock; guards who is missing, and why.
    found: Mutex<Vec<(String, String)>>,
}

impl Missing {
    pub(crate) fn new(manifest: &Manifest) -> Missing {
        let names = manifest.devices.iter().map(|device| device.name.clone());
        let may = names.filter(|name| manifest.may_be_missing(name)).collect();
        Missing { may, found: Mutex::default() }
    }

    fn may(&self, device: &str) -> bool {
        self.may.contains(device)
    }

    fn add(&self, device: &str, why: String) {
        self.found.lock().push((device.to_string(), why));
    }

    /// Those that were missing, and why.
    pub(crate) fn take(&self) -> Vec<(String, String)> {
        std::mem::take(&mut *self.found.lock())
    }
}

impl House {
    /// The queue of a volume, as its manifest wants it.
    fn queue(&self, device: &manifest::Device, driver: Arc<dyn blockmq::Driver>) -> Arc<Queue> {
        let asked = device.tuning;
        let mut builder = Queue::builder(&self.machine, driver)
            .name(device.name.as_str())
            .scheduler(asked.scheduler)
            .iostats(asked.iostats);
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

    fn probe(&self, cx: &ProbeContext<'_>) -> Result<Arc<dyn Bound>, ProbeError> {
        let device = cx.config::<manifest::Device>()?;
        let parts = device.driver.over().iter().map(|name| cx.supplier::<Volume>(name));
        let volume =
            Volume::new(self.house.clone(), device.clone(), parts.collect::<Result<_, _>>()?);
        match volume.make() {
            Ok(made) => volume.came(made),
            Err(error) if self.house.missing.may(&device.name) => {
                self.house.missing.add(&device.name, error.to_string());
                *volume.why.lock() = error.to_string();
            }
            Err(error) => return Err(error),
        }
        Ok(Arc::new(volume))
    }
}
