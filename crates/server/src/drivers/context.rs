//! The context that all volumes are created with, and the records of their bring-up.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use corewise::blockmq::{self, Completer, HwQueues, Queue, RqAffinity};
use corewise::device::{BringUp, ProbeOutcome};
use corewise::drivers::FileRings;
use corewise::smp::{self, Priority, Smp, StartError};
use corewise::sync::Mutex;
use corewise::topology::{Machine, Subscription};
use corewise::workqueue::Workqueue;

use super::file::Files;
#[cfg(feature = "crypt")]
use super::secrets::Secrets;
use crate::cleanup::Cleanup;
use crate::control::disks::Disks;
use crate::manifest::{self, Manifest};
use crate::new_parts;
use crate::report::Report;

/// The context that all volumes are created with.
#[derive(Clone)]
pub(crate) struct VolumeContext {
    pub(crate) machine: Machine,
    /// Rings that the volumes in files share.
    pub(crate) rings: FileRings,
    /// Files of the volumes.
    pub(crate) files: Arc<Files>,
    /// Queue for work that the volumes' queues can't run on the spot.
    pub(crate) workqueue: Workqueue,
    pub(crate) calls: Arc<CallTargets>,
    /// Record of the files that were created.
    pub(crate) cleanup: Arc<Cleanup>,
    pub(crate) notes: Arc<Warnings>,
    /// Reporter of events while volumes serve.
    pub(crate) report: Report,
    /// Queues of the volumes that are up.
    pub(crate) disks: Arc<Disks>,
    /// Volumes that could not be brought up and may be missing.
    pub(crate) missing: Arc<MissingParts>,
    /// Keys of encrypted devices.
    #[cfg(feature = "crypt")]
    pub(crate) secrets: Arc<Secrets>,
}

/// Devices that may be missing at the start, since they are below a mirror, devices that must not
/// be created, and overlays that must not write to their base.
#[derive(Debug, Default)]
pub(crate) struct MissingParts {
    /// L: is the lock; guards the names of the devices that may be missing.
    may: Mutex<BTreeSet<String>>,
    /// L: is the lock; guards the missing devices and the reasons.
    found: Mutex<Vec<(String, String)>>,
    /// L: is the lock; guards the devices that must not be created, and the reasons.
    not_made: Mutex<BTreeMap<String, String>>,
    /// L: is the lock; guards the overlays whose bases have other users, and the reasons.
    no_commits: Mutex<BTreeMap<String, String>>,
}

impl MissingParts {
    /// Decides which devices may be missing in the bring-up of `added`, some or all devices of
    /// `manifest`. It also decides which devices of `manifest` must not be created from now on.
    pub(crate) fn expect(&self, added: &Manifest, manifest: &Manifest) {
        *self.may.lock() = added.may_be_missing();
        *self.not_made.lock() = new_parts::refused(manifest);
        let no_commit = |device: &manifest::Device| {
            let manifest::Driver::Overlay(overlay) = &device.driver else { return None };
            let why = manifest.base_in_use(&device.name, overlay.over.as_deref()?)?;
            Some((device.name.clone(), why))
        };
        *self.no_commits.lock() = added.devices.iter().filter_map(no_commit).collect();
    }

    /// Returns the reason why that overlay must not write to its base, or `None` if it may.
    pub(super) fn why_no_commit(&self, overlay: &str) -> Option<String> {
        self.no_commits.lock().get(overlay).cloned()
    }

    /// Returns the reason why that device must not be created, or `None` if it may.
    pub(super) fn why_not_made(&self, device: &str) -> Option<String> {
        self.not_made.lock().get(device).cloned()
    }

    pub(super) fn may(&self, device: &str) -> bool {
        self.may.lock().contains(device)
    }

    pub(super) fn add(&self, device: &str, why: String) {
        self.found.lock().push((device.to_string(), why));
    }

    /// Returns the devices missing in that bring-up that count as failures, with the reasons: a
    /// device above such a one is not up.
    pub(crate) fn lacking(&self, manifest: &Manifest, up: &BringUp) -> BTreeMap<String, String> {
        let missing: BTreeMap<String, String> =
            std::mem::take(&mut *self.found.lock()).into_iter().collect();
        let is_up = |name: &str| {
            up.device(name).is_some_and(|device| device.outcome == ProbeOutcome::Bound)
        };
        // The walk starts at each device that is neither up nor missing. It goes down to the
        // missing devices below, directly or through other missing ones.
        let devices = manifest.by_name();
        let is_out = |device: &&manifest::Device| {
            !missing.contains_key(&device.name) && !is_up(&device.name)
        };
        let parts = |device: &manifest::Device| device.driver.over().to_vec();
        let mut todo: Vec<String> =
            manifest.devices.iter().filter(is_out).flat_map(parts).collect();
        let mut lacking = BTreeMap::new();
        while let Some(name) = todo.pop() {
            let Some(why) = missing.get(&name) else { continue };
            if lacking.insert(name.clone(), why.clone()).is_none() {
                todo.extend(
                    devices.get(name.as_str()).into_iter().flat_map(|device| parts(device)),
                );
            }
        }
        lacking
    }
}

impl VolumeContext {
    /// Creates the queue of a volume as its manifest describes it.
    pub(super) fn queue(
        &self,
        device: &manifest::Device,
        driver: Arc<dyn blockmq::Driver>,
    ) -> Arc<Queue> {
        let asked = &device.tuning;
        let mut builder = Queue::builder(&self.machine, driver)
            .name(device.name.as_str())
            .scheduler(asked.scheduler)
            .iostats(asked.iostats);
        // The builder's own default is one for each CPU, as far as the driver has room.
        if asked.hw_queues != HwQueues::PerCpu {
            builder = builder.hw_queues(asked.hw_queues);
        }
        if let Some(after) = asked.timeout {
            builder = builder.timeout(Some(after));
        }
        if asked.rq_affinity != RqAffinity::Anywhere {
            if let Some(completer) = self.calls.completer() {
                builder = builder.complete_with(&completer, asked.rq_affinity);
            }
        }
        builder.build(&self.workqueue)
    }
}

/// Messages to the user that are no failures.
#[derive(Debug, Default)]
pub(crate) struct Warnings {
    /// L: is the lock; guards the messages not yet taken.
    notes: Mutex<Vec<String>>,
}

impl Warnings {
    /// Adds a message. Any thread may call it.
    pub(crate) fn add(&self, note: String) {
        self.notes.lock().push(note);
    }

    /// Takes the messages added since the last call.
    pub(crate) fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.notes.lock())
    }
}

/// The targets of cross-CPU calls, which follow the machine's CPUs.
#[derive(Default)]
pub(crate) struct CallTargets {
    /// L: is the lock, held while the targets start.
    started: Mutex<Option<(Smp, Subscription)>>,
}

impl CallTargets {
    /// Starts the targets if a volume of the manifest needs them and nothing has started them yet.
    pub(crate) fn start_for(
        &self,
        manifest: &Manifest,
        machine: &Machine,
    ) -> Result<(), StartError> {
        // If all CPUs share one cache, "cache" never calls another CPU.
        let needs_call = |affinity| match affinity {
            RqAffinity::Anywhere => false,
            RqAffinity::Cache => machine.topology().llcs().len() > 1,
            _ => true,
        };
        let mut started = self.started.lock();
        if started.is_none() && manifest.devices.iter().any(|d| needs_call(d.tuning.rq_affinity)) {
            // Their handlers end requests, which is short, so they may run ahead of ordinary work.
            let smp = Smp::builder(machine).priority(Priority::OF_INTERRUPT_THREADS).build()?;
            let follower = smp.clone();
            let follows = machine.on_change(move |_| drop(follower.follow_machine()));
            *started = Some((smp, follows));
        }
        Ok(())
    }

    /// Returns the present and past work of the targets, or `None` unless they are started. Never
    /// waits.
    pub(crate) fn dump(&self) -> Option<smp::Dump> {
        self.started.try_lock()?.as_ref().map(|(smp, _)| smp.dump())
    }

    pub(crate) fn completer(&self) -> Option<Completer> {
        self.started.lock().as_ref().map(|(smp, _)| Completer::new(smp))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest;
    use std::path::Path;

    #[test]
    fn call_targets_start_only_if_a_request_may_end_on_another_cpu() {
        let (one, two) = ("l3:1 core:2 pu:1", "l3:2 core:1 pu:1");
        for (topology, keys, starts) in [
            (one, "", false),
            (two, "", true),
            (two, "rq_affinity = \"none\"\n", false),
            (one, "rq_affinity = \"cache\"\n", false),
            (one, "rq_affinity = \"cpu\"\n", true),
        ] {
            let device = "[[device]]\nname = \"a\"\ndriver = \"memory\"\nsize = \"1M\"\n";
            let resolved = manifest::read(&format!("{device}{keys}"), Path::new("/base"));
            let machine = Machine::synthetic(topology).expect("a description");
            let targets = CallTargets::default();
            targets.start_for(&resolved.manifest, &machine).expect("two threads");
            assert_eq!(targets.completer().is_some(), starts, "{topology}, {keys}");
            assert_eq!(targets.dump().is_some(), starts, "{topology}, {keys}");
        }
    }
}
