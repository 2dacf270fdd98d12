//! A sysfs tree: the folder that a machine has, a copy of it, or a saved listing of its links.

use std::fs;
use std::path::{Path, PathBuf};

use corewise::kernel_log::DeviceGraph;
use corewise::kernel_log::sysfs::Listing;
use corewise_server::bounded_file;

use super::source::LONGEST;
use crate::exit::Failure;

/// Reads who is whose parent, supplier and driver.
pub(super) fn read(path: &Path) -> Result<DeviceGraph, Failure> {
    let cannot = |why: &dyn std::fmt::Display| {
        Failure::new(format!("cannot read the sysfs tree '{}': {why}", path.display()))
    };
    let mut listing = Listing::new();
    let found = match fs::metadata(path).map_err(|why| cannot(&why))?.is_dir() {
        true => walk(path, &mut listing).map_err(|why| cannot(&why))?,
        false => {
            let text = bounded_file::read_any(path, LONGEST).map_err(|why| cannot(&why))?;
            let text = String::from_utf8_lossy(&text);
            text.lines().filter(|line| listing.line(line)).count()
        }
    };
    if found == 0 {
        return Err(Failure::new(format!("found no sysfs links in '{}'", path.display()))
            .help(
                "use /sys/devices, a copy of it, or the output of find /sys/devices -type l -printf '%p -> %l\\n'",
            ));
    }
    Ok(listing.graph())
}

/// Goes through a tree, and says how many links there are. A file that can't be read is passed over, as
/// some folders of sysfs can't.
fn walk(root: &Path, listing: &mut Listing) -> std::io::Result<usize> {
    let mut found = 0;
    let mut folders: Vec<PathBuf> = vec![root.to_path_buf()];
    fs::read_dir(root)?;
    while let Some(folder) = folders.pop() {
        let Ok(entries) = fs::read_dir(&folder) else { continue };
        for entry in entries.flatten() {
            let path = entry.path();
            let Ok(kind) = entry.file_type() else { continue };
            if kind.is_dir() {
                folders.push(path);
            } else if kind.is_symlink() {
                let Ok(target) = fs::read_link(&path) else { continue };
                listing.link(&path.to_string_lossy(), &target.to_string_lossy());
                found += 1;
            } else if entry.file_name() == "sync_state_only" {
                let says = fs::read_to_string(&path).unwrap_or_default();
                let link = folder.file_name().unwrap_or_default().to_string_lossy();
                if says.trim() == "1" {
                    listing.sync_state_only(&link);
                }
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_and_its_listing_say_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("devices");
        let disk = root.join("pci0000:00/0000:00:06.0/0000:01:00.0");
        fs::create_dir_all(&disk).unwrap();
        for device in [&disk, disk.parent().unwrap()] {
            std::os::unix::fs::symlink("../../../bus/pci", device.join("subsystem")).unwrap();
        }
        std::os::unix::fs::symlink("../../../bus/pci/drivers/nvme", disk.join("driver")).unwrap();
        let tree = read(&root).unwrap();
        assert_eq!(tree.drivers.get("0000:01:00.0").map(String::as_str), Some("nvme"));
        assert!(
            tree.edges()
                .iter()
                .any(|e| e.supplier == "0000:00:06.0" && e.consumer == "0000:01:00.0")
        );

        let text = "/sys/devices/pci0000:00/0000:00:06.0/subsystem -> ../../../bus/pci\n\
             /sys/devices/pci0000:00/0000:00:06.0/0000:01:00.0/subsystem -> ../../../../bus/pci\n\
             /sys/devices/pci0000:00/0000:00:06.0/0000:01:00.0/driver -> ../../../../bus/pci/drivers/nvme\n";
        let saved = folder.path().join("links.txt");
        fs::write(&saved, text).unwrap();
        assert_eq!(read(&saved).unwrap(), tree);
    }

    #[test]
    fn a_folder_that_is_not_a_sysfs_tree_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        assert!(format!("{:?}", read(folder.path()).unwrap_err()).contains("no sysfs links"));
        assert!(
            format!("{:?}", read(&folder.path().join("x")).unwrap_err()).contains("cannot read")
        );
    }
}
