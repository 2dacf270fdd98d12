//! The device graph of a sysfs tree, from the symbolic links in it.
//!
//! The crate opens no file: a walker of `/sys/devices` reports its links, one by one. A tree need
//! not be copied to be used elsewhere; a list of its links is enough:
//!
//! ```text
//! find /sys/devices -type l -printf '%p -> %l\n' > links
//! grep -H . /sys/devices/virtual/devlink/*/sync_state_only >> links
//! ```

use crate::graph::{DeviceGraph, EdgeSource};
use corewise_timeline::EdgeKind;
use std::collections::{BTreeMap, HashMap, HashSet};

/// The symbolic links below `/sys/devices`, as they are found.
///
/// # Examples
///
/// ```
/// use corewise_kernel_log::sysfs::Listing;
///
/// let mut listing = Listing::new();
/// listing.line(
///     "/sys/devices/pci0000:00/0000:00:06.0/driver -> ../../../bus/pci/drivers/pcieport",
/// );
/// listing.line(
///     "/sys/devices/pci0000:00/0000:00:06.0/0000:01:00.0/subsystem -> ../../../../bus/pci",
/// );
/// let graph = listing.graph();
/// assert_eq!(graph.drivers["0000:00:06.0"], "pcieport");
/// assert_eq!(graph.edges()[0].supplier, "0000:00:06.0");
/// assert_eq!(graph.edges()[0].consumer, "0000:01:00.0");
/// ```
#[derive(Clone, Debug, Default)]
pub struct Listing {
    /// Folders that are devices, by path: their drivers.
    devices: BTreeMap<String, Option<String>>,
    /// Path of the consumer, the supplier as the link names it, and the link itself.
    suppliers: Vec<(String, String, String)>,
    /// Links between devices that order nothing.
    sync_state_only: HashSet<String>,
}

impl Listing {
    /// Creates an empty listing.
    pub fn new() -> Listing {
        Listing::default()
    }

    /// Takes one symbolic link: its path and its target. Ignores links that aren't about the graph.
    pub fn link(&mut self, path: &str, target: &str) {
        let Some((folder, name)) = path.rsplit_once('/') else { return };
        let last = |path: &str| path.rsplit('/').next().unwrap_or(path).to_owned();
        match name {
            "driver" => {
                self.devices.insert(folder.to_owned(), Some(last(target)));
            }
            // Every device but the root of a bus has one of these.
            "subsystem" | "firmware_node" | "of_node" | "iommu_group" => {
                self.devices.entry(folder.to_owned()).or_default();
            }
            _ => {
                if let Some(supplier) = name.strip_prefix("supplier:") {
                    self.suppliers.push((folder.to_owned(), supplier.to_owned(), last(target)));
                    self.devices.entry(folder.to_owned()).or_default();
                }
            }
        }
    }

    /// Records that a device link, by its name below `/sys/devices/virtual/devlink`, only syncs
    /// state: it orders neither probes nor shutdowns.
    pub fn sync_state_only(&mut self, link: &str) {
        self.sync_state_only.insert(link.to_owned());
    }

    /// Takes one line of a listing, as in the [module's](self) example: `PATH -> TARGET`, or
    /// `…/LINK/sync_state_only:1`. Returns false if it is neither.
    pub fn line(&mut self, line: &str) -> bool {
        let line = line.trim();
        if let Some((path, target)) = line.split_once(" -> ") {
            // `ls -l` puts its columns before the path.
            let path = path.find('/').map_or(path, |at| &path[at..]);
            self.link(path, target);
            return true;
        }
        match line.rsplit_once("/sync_state_only:") {
            Some((link, value)) => {
                if value.trim() == "1" {
                    self.sync_state_only(link.rsplit('/').next().unwrap_or(link));
                }
                true
            }
            None => false,
        }
    }

    /// Returns the graph: parents by path, suppliers by the links between devices, and drivers.
    /// Devices have their names in the kernel's log.
    pub fn graph(self) -> DeviceGraph {
        let mut graph = DeviceGraph::new();
        let mut names: HashMap<String, &str> = HashMap::new();
        for (path, driver) in &self.devices {
            let name = device(path);
            if let Some(driver) = driver {
                graph.drivers.insert(name.clone(), driver.clone());
            }
            let folders = std::iter::successors(Some(path.as_str()), |p| {
                p.rsplit_once('/').map(|(folder, _)| folder)
            });
            if let Some(parent) = folders.skip(1).find(|p| self.devices.contains_key(*p)) {
                graph.add(device(parent), &name, EdgeKind::Parent, EdgeSource::Sysfs);
            }
            names.insert(name, path);
        }
        for (consumer, supplier, link) in &self.suppliers {
            if self.sync_state_only.contains(link) {
                continue;
            }
            let supplier = supplier.replace('!', "/");
            // `supplier:BUS:NAME` since 5.11, `supplier:NAME` before that; names have colons.
            let without_bus = supplier.split_once(':').map(|(_, name)| name);
            let name = match without_bus {
                Some(name) if names.contains_key(name) || !names.contains_key(&supplier) => name,
                _ => &supplier,
            };
            graph.add(name, device(consumer), EdgeKind::Supplier, EdgeSource::Sysfs);
        }
        graph
    }
}

/// Returns a device's name: sysfs cannot have a `/` in one.
fn device(path: &str) -> String {
    path.rsplit('/').next().unwrap_or(path).replace('!', "/")
}

#[cfg(test)]
mod tests {
    use super::*;

    const LISTING: &str = "\
/sys/devices/pci0000:00/0000:00:06.0/subsystem -> ../../../bus/pci
/sys/devices/pci0000:00/0000:00:06.0/driver -> ../../../bus/pci/drivers/pcieport
/sys/devices/pci0000:00/0000:00:06.0/0000:01:00.0/subsystem -> ../../../../bus/pci
/sys/devices/pci0000:00/0000:00:06.0/0000:01:00.0/driver -> ../../../../bus/pci/drivers/nvme
/sys/devices/pci0000:00/0000:00:06.0/0000:01:00.0/nvme/nvme0/subsystem -> ../../x/class/nvme
/sys/devices/pci0000:00/0000:00:06.0/0000:01:00.0/nvme/nvme0/device -> ../../../0000:01:00.0
/sys/devices/pci0000:00/0000:00:06.0/0000:01:00.0/supplier:platform:fa0.gpio -> ../x/platform:fa0.gpio--pci:0000:01:00.0
/sys/devices/pci0000:00/0000:00:06.0/0000:01:00.0/supplier:acpi:clk -> ../x/acpi:clk--pci:0000:01:00.0
lrwxrwxrwx 1 root root 0 /sys/devices/platform/fa0.gpio/supplier:0000:00:06.0 -> ../x/y
/sys/devices/platform/a!b/driver -> ../../bus/platform/drivers/c
/sys/devices/virtual/devlink/acpi:clk--pci:0000:01:00.0/sync_state_only:1
/sys/devices/virtual/devlink/other/sync_state_only:0
not a line of one
";

    fn graph() -> DeviceGraph {
        let mut listing = Listing::new();
        let taken = LISTING.lines().filter(|line| listing.line(line)).count();
        assert_eq!(taken, LISTING.lines().count() - 1);
        listing.graph()
    }

    fn needs(graph: &DeviceGraph, consumer: &str) -> Vec<(String, EdgeKind)> {
        let of = graph.edges().iter().filter(|e| e.consumer == consumer);
        of.map(|e| (e.supplier.clone(), e.kind)).collect()
    }

    #[test]
    fn the_parent_is_the_nearest_folder_that_is_a_device() {
        let graph = graph();
        assert_eq!(needs(&graph, "nvme0"), [("0000:01:00.0".into(), EdgeKind::Parent)]);
        assert_eq!(needs(&graph, "0000:00:06.0"), []);
        assert!(graph.edges().iter().all(|e| e.source == EdgeSource::Sysfs));
    }

    #[test]
    fn suppliers_are_named_with_their_bus_or_without_and_sync_state_only_links_do_not_count() {
        let graph = graph();
        assert_eq!(
            needs(&graph, "0000:01:00.0"),
            [("0000:00:06.0".into(), EdgeKind::Parent), ("fa0.gpio".into(), EdgeKind::Supplier),]
        );
        assert_eq!(needs(&graph, "fa0.gpio"), [("0000:00:06.0".into(), EdgeKind::Supplier)]);
    }

    #[test]
    fn a_driver_is_where_its_link_leads() {
        let graph = graph();
        assert_eq!(graph.drivers["0000:01:00.0"], "nvme");
        assert_eq!(graph.drivers["a/b"], "c");
        assert!(!graph.drivers.contains_key("nvme0"));
    }
}
