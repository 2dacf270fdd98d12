//! The declarations that the device manager takes, made from a manifest, and the way back from
//! devices to the manifest's lines.

use std::collections::{BTreeMap, HashMap, HashSet};

use corewise::device::{BringUp, DeviceDecl, DeviceReport, ProbeOutcome};

use crate::drivers::EXPORT;
use crate::manifest::{Driver, Manifest, Position, Subject, export_name};

/// Returns the direct and indirect consumers of that device. None of them is up before it.
pub(crate) fn needing(device: &str, decls: &[DeviceDecl]) -> Vec<String> {
    let mut consumers: HashMap<&str, Vec<&str>> = HashMap::new();
    for decl in decls {
        for supplier in &decl.suppliers {
            consumers.entry(supplier).or_default().push(&decl.name);
        }
    }
    let mut found: HashSet<&str> = HashSet::new();
    let mut todo = vec![device];
    while let Some(name) = todo.pop() {
        let more = consumers.remove(name).into_iter().flatten();
        todo.extend(more.filter(|consumer| found.insert(consumer)));
    }
    let names = decls.iter().map(|decl| &decl.name);
    names.filter(|name| found.contains(name.as_str())).cloned().collect()
}

/// The declarations, and the manifest's entry of each.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) decls: Vec<DeviceDecl>,
    origins: BTreeMap<String, (Subject, Position)>,
}

impl Plan {
    /// Makes the declarations of a manifest, in any order: the device manager sorts them.
    pub(crate) fn new(manifest: &Manifest) -> Plan {
        let mut plan = Plan { decls: Vec::new(), origins: BTreeMap::new() };
        for device in &manifest.devices {
            // A file device that fails to come up is reported at the path of its file, a partition
            // at its number, a checkpoint device at the path of its record.
            let place = match &device.driver {
                Driver::File(file) => file.path.place,
                Driver::Overlay(overlay) => overlay.path.place,
                Driver::Partition(asked) => asked.partition.place,
                Driver::Checkpoint(asked) => asked.path.place,
                _ => device.place,
            };
            plan.origins
                .insert(device.name.clone(), (Subject::Device(Ok(device.name.clone())), place));
            let decl = DeviceDecl::new(&device.name, device.driver.name())
                .node(device.tuning.node.as_ref().map(|at| at.value));
            let mut decl = device.suppliers.iter().fold(decl, DeviceDecl::supplier);
            decl.probe_timeout = device.tuning.probe_timeout;
            decl.shutdown_timeout = Some(device.tuning.shutdown_timeout);
            plan.decls.push(decl.config(device.clone()));
        }
        for export in &manifest.exports {
            let name = export_name(&export.name);
            let subject = Subject::Export(Ok(export.name.clone()));
            plan.origins.insert(name.clone(), (subject, export.place));
            let mut decl = DeviceDecl::new(name, EXPORT).supplier(&export.device);
            decl.shutdown_timeout = Some(export.shutdown_timeout);
            plan.decls.push(decl.config(export.clone()));
        }
        plan
    }

    /// Returns the devices that failed by themselves, and the reasons.
    pub(crate) fn failures(
        &self,
        up: &BringUp,
        lacking: &BTreeMap<String, String>,
    ) -> Vec<(String, String)> {
        let of_it = |device: &DeviceReport| match &device.outcome {
            ProbeOutcome::Failed(error) => Some(error.to_string()),
            ProbeOutcome::Rejected(fault) => Some(fault.to_string()),
            _ => lacking.get(&device.name).cloned(),
        };
        let found = up.devices().iter().filter_map(|one| Some((one.name.clone(), of_it(one)?)));
        found.collect()
    }

    /// Returns the manifest's entry of a device of the manager, and its place.
    pub(crate) fn origin(&self, device: &str) -> Option<&(Subject, Position)> {
        self.origins.get(device)
    }
}

/// Returns the reason of a device that was skipped, since `culprit` didn't come up.
pub(crate) fn not_up_below(culprit: &str) -> String {
    format!("it depends on '{culprit}', which did not come up")
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Duration;

    use super::*;
    use crate::manifest;

    #[test]
    fn devices_keep_their_needs_and_exports_need_their_device() {
        let text = "[[device]]\nname = \"a\"\ndriver = \"memory\"\nsize = \"1M\"\nnode = 1\n\
                    [[device]]\nname = \"b\"\ndriver = \"null\"\nsize = \"1M\"\nsuppliers = [\"a\"]\n\
                    probe_timeout = \"7s\"\n[[export]]\nname = \"e\"\ndevice = \"b\"\n\
                    shutdown_timeout = \"8s\"\n";
        let plan = Plan::new(&manifest::read(text, Path::new("/")).manifest);
        let decl = |name: &str| plan.decls.iter().find(|decl| decl.name == name).unwrap();
        assert_eq!((decl("a").driver.as_str(), decl("a").node), ("memory", Some(1)));
        assert_eq!(decl("b").suppliers, ["a"]);
        assert_eq!(decl("export:e").suppliers, ["b"]);
        assert_eq!(decl("b").probe_timeout, Some(Duration::from_secs(7)));
        assert_eq!(decl("b").shutdown_timeout, Some(Duration::from_secs(10)));
        assert_eq!(decl("export:e").shutdown_timeout, Some(Duration::from_secs(8)));
        assert!(plan.decls.iter().all(|decl| decl.async_shutdown));
        assert_eq!(needing("a", &plan.decls), ["b", "export:e"]);
        assert_eq!(needing("export:e", &plan.decls), [""; 0]);
        let (subject, place) = plan.origin("export:e").unwrap();
        assert_eq!((subject.to_string().as_str(), place.line), ("export 'e'", 12));
    }
}
