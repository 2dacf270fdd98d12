//! Devices of Linux's NBD client, as `/sys/block` shows them.

use std::path::{Path, PathBuf};

use corewise_server::units;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use serde::Serialize;

/// Bytes of a sector, in which the kernel counts.
pub(super) const SECTOR: u64 = 512;

/// An attached device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Device {
    /// Number of the device.
    #[serde(skip)]
    pub(super) index: u32,
    /// Path of the device.
    device: String,
    /// Size in bytes.
    pub(super) size: u64,
    /// Process that attached it.
    pub(super) process: u32,
    /// Export, as `corewise attach` wrote it; `None` for another program's device, and on kernels
    /// before 5.14.
    pub(super) export: Option<String>,
    /// True if it refuses changes.
    read_only: bool,
}

/// Returns the path of a device.
pub(super) fn path(index: u32) -> String {
    format!("/dev/nbd{index}")
}

impl Device {
    /// Returns the device of this number if it is attached.
    pub(super) fn of(index: u32) -> Option<Device> {
        Device::at(index, Path::new("/sys/block"))
    }

    fn at(index: u32, block: &Path) -> Option<Device> {
        let folder = block.join(format!("nbd{index}"));
        let read = |name: &str| {
            let text = std::fs::read_to_string(folder.join(name)).ok()?;
            Some(text.trim_end_matches('\n').to_string())
        };
        // The kernel shows it as long as the device has connections.
        let process = read("pid")?.parse().ok()?;
        let size = read("size")?.parse::<u64>().ok()?.saturating_mul(SECTOR);
        let read_only = read("ro").is_some_and(|ro| ro == "1");
        let export = read("backend");
        Some(Device { index, device: path(index), size, process, export, read_only })
    }

    /// Returns the attached devices, in the order of their numbers.
    pub(super) fn all() -> Vec<Device> {
        Device::all_at(Path::new("/sys/block"))
    }

    fn all_at(block: &Path) -> Vec<Device> {
        let entries = std::fs::read_dir(block).into_iter().flatten().flatten();
        let numbers = entries.filter_map(|entry| {
            entry.file_name().to_str()?.strip_prefix("nbd")?.parse::<u32>().ok()
        });
        let mut devices: Vec<_> = numbers.filter_map(|index| Device::at(index, block)).collect();
        devices.sort_by_key(|device| device.index);
        devices
    }

    /// Returns true if the process that attached it still runs, as this program.
    pub(super) fn has_owner(&self) -> bool {
        let program = |process: &str| {
            std::fs::read_to_string(PathBuf::from("/proc").join(process).join("comm")).ok()
        };
        let theirs = program(&self.process.to_string());
        self.process != std::process::id() && theirs.is_some() && theirs == program("self")
    }

    /// Returns the cells of its row in a table.
    pub(super) fn row(&self) -> [String; 4] {
        let size = units::size(self.size);
        let size = if self.read_only { format!("{size}, read-only") } else { size };
        let export = self.export.clone().unwrap_or_else(|| "-".to_string());
        [self.device.clone(), size, self.process.to_string(), export]
    }
}

/// Returns true if a file system, another device or a process with a claim has the device.
pub(super) fn is_in_use(index: u32) -> bool {
    let flags = OFlags::RDONLY | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NONBLOCK;
    matches!(rustix::fs::open(path(index), flags, Mode::empty()), Err(Errno::BUSY))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_attached_devices_are_shown_in_order() {
        let folder = tempfile::tempdir().unwrap();
        let write = |device: &str, files: &[(&str, &str)]| {
            let device = folder.path().join(device);
            std::fs::create_dir(&device).unwrap();
            for (name, text) in files {
                std::fs::write(device.join(name), text).unwrap();
            }
        };
        write("nbd10", &[("pid", "17\n"), ("size", "8\n"), ("ro", "1\n")]);
        let export = ("backend", "nbd://host/a b\n");
        write("nbd2", &[("pid", "16\n"), ("size", "2048\n"), ("ro", "0\n"), export]);
        write("nbd0", &[("size", "0\n"), ("ro", "0\n")]);
        write("sda", &[("size", "8\n")]);
        let rows: Vec<_> = Device::all_at(folder.path()).iter().map(Device::row).collect();
        assert_eq!(rows[0], ["/dev/nbd2", "1 MiB", "16", "nbd://host/a b"]);
        assert_eq!(rows[1], ["/dev/nbd10", "4 KiB, read-only", "17", "-"]);
        assert_eq!(rows.len(), 2);
    }
}
