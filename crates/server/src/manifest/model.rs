//! The checked content of a manifest.

use std::collections::{BTreeSet, HashMap};

use super::drivers::{Driver, Tuning};
use super::export::Export;
use super::problem::{Position, Problem, Subject};
use super::server::Server;
use crate::error::Error;

impl Manifest {
    pub(crate) fn device(&self, name: &str) -> Option<&Device> {
        self.devices.iter().find(|device| device.name == name)
    }

    pub(crate) fn export(&self, name: &str) -> Option<&Export> {
        self.exports.iter().find(|export| export.name == name)
    }

    /// Returns true if there is a device, or an export (`export:NAME`), of this name.
    pub(crate) fn declares(&self, name: &str) -> bool {
        self.device(name).is_some() || self.exports.iter().any(|one| export_name(&one.name) == name)
    }

    /// Keeps the devices and exports whose name `keep` accepts. Names of exports begin with
    /// `export:`.
    pub(crate) fn retain(&mut self, keep: impl Fn(&str) -> bool) {
        self.devices.retain(|device| keep(&device.name));
        self.exports.retain(|export| keep(&export_name(&export.name)));
    }

    /// Returns the devices directly above that one.
    pub(crate) fn built_over<'a>(&'a self, part: &'a str) -> impl Iterator<Item = &'a Device> {
        self.devices
            .iter()
            .filter(move |device| device.driver.over().iter().any(|over| over == part))
    }

    /// Returns the reason why nobody may write to the base of this overlay: another device or an
    /// export uses it.
    pub(crate) fn base_in_use(&self, overlay: &str, base: &str) -> Option<String> {
        if let Some(other) = self.built_over(base).find(|other| other.name != overlay) {
            return Some(format!(
                "'{}' stands on '{base}', too, and would get other data: remove it first, or \
                 flatten it if it is an overlay",
                other.name
            ));
        }
        let export = self.exports.iter().find(|export| export.device == base)?;
        Some(format!(
            "the export '{}' shows '{base}', whose data would change: remove it first",
            export.name
        ))
    }

    /// Returns the devices by name.
    pub(crate) fn by_name(&self) -> HashMap<&str, &Device> {
        self.devices.iter().map(|device| (device.name.as_str(), device)).collect()
    }

    /// Returns the direct consumers of each device.
    pub(crate) fn consumers(&self) -> HashMap<&str, Vec<&Device>> {
        let mut consumers: HashMap<&str, Vec<&Device>> = HashMap::new();
        for device in &self.devices {
            for supplier in &device.suppliers {
                consumers.entry(supplier).or_default().push(device);
            }
        }
        consumers
    }

    /// Returns the devices that may be missing: those below a mirror that may begin without all of
    /// its legs, in any number of steps.
    pub(crate) fn may_be_missing(&self) -> BTreeSet<String> {
        let by_name = self.by_name();
        let degraded = |device: &&Device| matches!(&device.driver, Driver::Mirror(mirror) if mirror.begins_degraded());
        let mut todo: Vec<&str> = Vec::new();
        for mirror in self.devices.iter().filter(degraded) {
            todo.extend(mirror.driver.over().iter().map(String::as_str));
        }
        let mut found = BTreeSet::new();
        while let Some(name) = todo.pop() {
            if let Some(device) = by_name.get(name).filter(|_| !found.contains(name)) {
                found.insert(name.to_string());
                todo.extend(device.driver.over().iter().map(String::as_str));
            }
        }
        found
    }
}

/// Returns the name of an export among devices. No device of a manifest has a colon in its name.
pub(crate) fn export_name(export: &str) -> String {
    format!("export:{export}")
}

/// A manifest, checked as far as that is possible without touching anything.
#[derive(Clone, Debug)]
pub struct Manifest {
    /// The `[server]` table.
    pub server: Server,
    /// Devices, in the order of the file.
    pub devices: Vec<Device>,
    /// Exports, in the order of the file, which is also the order in which clients see them.
    pub exports: Vec<Export>,
}

/// A volume, or a part of one.
#[derive(Clone, Debug, PartialEq)]
pub struct Device {
    pub(crate) name: String,
    /// Begin of the device's table.
    pub(crate) place: Position,
    pub(crate) driver: Driver,
    pub(crate) tuning: Tuning,
    /// Devices that must be up before this one and are shut down after it, each once: the parts
    /// below, then those named in `suppliers`.
    pub(crate) suppliers: Vec<String>,
}

/// A device or an export that can't be brought up, and the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftOut {
    /// The device or export.
    pub subject: Subject,
    /// The reason in words.
    pub why: String,
}

/// The part of a manifest that can run, and the problems of the rest.
#[derive(Debug)]
pub struct ResolvedManifest {
    /// Devices and exports that have no problem and depend on nothing that has one.
    pub manifest: Manifest,
    /// Problems, in the order of the file.
    pub problems: Vec<Problem>,
    /// Devices and exports missing from `manifest`: those with a problem, and their consumers.
    pub left_out: Vec<LeftOut>,
    /// True if the problems concern the manifest or its `[server]` table, so that nothing can run.
    pub fatal: bool,
}

impl ResolvedManifest {
    /// Returns a manifest without a problem. `label` is its name in messages.
    ///
    /// # Errors
    /// The problems, a line each.
    pub fn into_manifest(self, label: &str) -> Result<Manifest, Error> {
        if self.problems.is_empty() {
            return Ok(self.manifest);
        }
        let each = self.problems.iter().map(|problem| problem.display(label).to_string());
        Err(Error::new(each.collect::<Vec<_>>().join("\n")))
    }
}

/// Returns the reason why no client could attach without a Unix socket, and advice.
pub(crate) fn why_not(export: &Export) -> Option<(&'static str, &'static str)> {
    let only_users = export.allow_uids.is_some() && export.allow_certificates.is_none();
    only_users.then_some((
        "'allow_uids' admits users of a Unix socket, but this server listens on TCP only, so no \
         client could attach",
        "add 'unix' to [server] (or --socket), or name clients by 'allow_certificates'",
    ))
}

/// Removes the exports that no client could reach on a server without a Unix socket. Returns the
/// problem of each, and its entry among those left out.
pub fn unreachable(manifest: &mut Manifest) -> Vec<(Problem, LeftOut)> {
    let mut found = Vec::new();
    manifest.exports.retain(|export| {
        let Some((why, help)) = why_not(export) else { return true };
        let subject = Subject::Export(Ok(export.name.clone()));
        let problem = Problem::new(export.place, subject.clone(), why).help(help);
        found.push((problem, LeftOut { subject, why: why.to_string() }));
        false
    });
    found
}
