//! What a manifest asks for.

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

    /// Keeps what `keep` says of the names of devices, which those of exports begin with `export:`
    /// among.
    pub(crate) fn retain(&mut self, keep: impl Fn(&str) -> bool) {
        self.devices.retain(|device| keep(&device.name));
        self.exports.retain(|export| keep(&export_name(&export.name)));
    }

    /// The devices that are built over that one.
    pub(crate) fn built_over<'a>(&'a self, part: &'a str) -> impl Iterator<Item = &'a Device> {
        self.devices
            .iter()
            .filter(move |device| device.driver.over().iter().any(|over| over == part))
    }

    /// Its devices by their names.
    pub(crate) fn by_name(&self) -> HashMap<&str, &Device> {
        self.devices.iter().map(|device| (device.name.as_str(), device)).collect()
    }

    /// The devices that need each one, directly.
    pub(crate) fn consumers(&self) -> HashMap<&str, Vec<&Device>> {
        let mut consumers: HashMap<&str, Vec<&Device>> = HashMap::new();
        for device in &self.devices {
            for supplier in &device.suppliers {
                consumers.entry(supplier).or_default().push(device);
            }
        }
        consumers
    }

    /// The devices that the others come up without: a mirror that may begin without all of its legs
    /// is built over each of them, in however many steps.
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

/// What an export is called among devices; no device of a manifest has a colon in its name.
pub(crate) fn export_name(export: &str) -> String {
    format!("export:{export}")
}

/// What a manifest asks for, checked as far as that is possible without touching anything.
#[derive(Clone, Debug)]
pub struct Manifest {
    /// The `[server]` table.
    pub server: Server,
    /// In the order of the file.
    pub devices: Vec<Device>,
    /// In the order of the file, which is also the order in which clients see them.
    pub exports: Vec<Export>,
}

/// A volume, or a part of one.
#[derive(Clone, Debug, PartialEq)]
pub struct Device {
    pub(crate) name: String,
    /// Where its table begins.
    pub(crate) place: Position,
    pub(crate) driver: Driver,
    pub(crate) tuning: Tuning,
    /// Devices that must be up before this one and are shut down after it: the parts it is built
    /// over, then those named in `suppliers`. Each once.
    pub(crate) suppliers: Vec<String>,
}

/// Something that can't be brought up, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftOut {
    /// What it is.
    pub subject: Subject,
    /// The reason in words.
    pub why: String,
}

/// The part of a manifest that can run, and what is wrong with the rest.
#[derive(Debug)]
pub struct Resolved {
    /// Only what has no problem and depends on nothing that has one.
    pub manifest: Manifest,
    /// In the order of the file.
    pub problems: Vec<Problem>,
    /// What is missing from `manifest`: those with a problem, and those that need them.
    pub left_out: Vec<LeftOut>,
    /// The problems concern the manifest or its `[server]` table, so that nothing can run.
    pub fatal: bool,
}

impl Resolved {
    /// Returns a manifest without a problem; `label` is how messages call it.
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

/// Why nobody could attach where there is no Unix socket, and what to do.
pub(crate) fn why_not(export: &Export) -> Option<(&'static str, &'static str)> {
    let only_users = export.allow_uids.is_some() && export.allow_certificates.is_none();
    only_users.then_some((
        "'allow_uids' lets in users who come by a Unix socket, and this server listens on TCP only, so nobody could attach",
        "add 'unix' to [server] (or --socket), or name clients by 'allow_certificates'",
    ))
}

/// Takes the exports away that nobody could reach on a server without a Unix socket. Returns what
/// is wrong with each of them, and how it is told as left out.
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
