//! Devices of Linux's NBD client, as `/sys/block` shows them.

use std::fs::{File, Metadata};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use corewise::nbd::wire::TransmissionFlags;
use corewise_server::units;
use rustix::fs::{FlockOperation, major, minor};
use rustix::io::Errno;
use serde::Serialize;

/// Folder of the locks of attached devices, and of the records of their connections.
pub(super) const FOLDER: &str = "/run/corewise";
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
    /// Process that attached it first.
    process: u32,
    /// Export, as `corewise attach` wrote it; `None` for another program's device.
    pub(super) export: Option<String>,
    /// Text that the kernel keeps for it: the export, and a mark of this attachment.
    #[serde(skip)]
    pub(super) backend: Option<String>,
    /// True if it refuses changes.
    pub(super) read_only: bool,
    /// Size of its blocks in bytes.
    #[serde(skip)]
    pub(super) block_size: u32,
    /// Number of connections: each has a queue.
    #[serde(skip)]
    pub(super) connections: u16,
    /// Transmission flags that its users rely on.
    #[serde(skip)]
    pub(super) flags: u16,
}

/// Returns the size of the device of this name in bytes.
pub(super) fn size(block: &Path, name: &str) -> Option<u64> {
    let sectors = std::fs::read_to_string(block.join(name).join("size")).ok()?;
    Some(sectors.trim().parse::<u64>().ok()?.saturating_mul(SECTOR))
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
        let size = size(block, &format!("nbd{index}"))?;
        let read_only = read("ro").is_some_and(|ro| ro == "1");
        let backend = read("backend");
        // The mark stands behind the last blank, which no URI has.
        let export = backend.as_deref().and_then(|text| text.rsplit_once(' '));
        let export = export.map(|(export, _)| export.to_string());
        let block_size = read("queue/logical_block_size").and_then(|size| size.parse().ok());
        let block_size = block_size.unwrap_or(SECTOR as u32);
        let queues = std::fs::read_dir(folder.join("mq")).into_iter().flatten().count();
        let connections = u16::try_from(queues).unwrap_or(u16::MAX).max(1);
        // The kernel learned these from the first connection.
        let is = |name: &str, value: &str| read(name).is_some_and(|text| text == value);
        let some = |name: &str| read(name).is_some_and(|text| text != "0");
        let flags = [
            (is("queue/write_cache", "write back"), TransmissionFlags::SEND_FLUSH),
            (is("queue/fua", "1"), TransmissionFlags::SEND_FUA),
            (some("queue/discard_max_bytes"), TransmissionFlags::SEND_TRIM),
            (some("queue/write_zeroes_max_bytes"), TransmissionFlags::SEND_WRITE_ZEROES),
            (read_only, TransmissionFlags::READ_ONLY),
            (connections > 1, TransmissionFlags::CAN_MULTI_CONN),
        ];
        let none = TransmissionFlags::empty();
        let flags = flags.into_iter().fold(none, |all, (has, flag)| all.with_if(has, flag)).0;
        let device = path(index);
        Some(Device {
            index,
            device,
            size,
            process,
            export,
            backend,
            read_only,
            block_size,
            connections,
            flags,
        })
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

    /// Returns the cells of its row in a table.
    pub(super) fn row(&self) -> [String; 4] {
        let size = units::size(self.size);
        let size = if self.read_only { format!("{size}, read-only") } else { size };
        let export = self.export.clone().unwrap_or_else(|| "-".to_string());
        [self.device.clone(), size, self.process.to_string(), export]
    }
}

fn block(index: u32) -> PathBuf {
    Path::new("/sys/block").join(format!("nbd{index}"))
}

/// Makes the kernel send no larger requests than the server takes.
pub(super) fn limit_requests(index: u32, most: u32) -> std::io::Result<()> {
    let file = block(index).join("queue/max_sectors_kb");
    let now = std::fs::read_to_string(&file)?.trim().parse::<u32>().unwrap_or(u32::MAX);
    if now > most >> 10 { std::fs::write(file, (most >> 10).to_string()) } else { Ok(()) }
}

fn lock_of(index: u32) -> PathBuf {
    Path::new(FOLDER).join(format!("nbd{index}.lock"))
}

/// Returns the process that replaces a device's connections, if one does.
pub(super) fn owner(index: u32) -> Option<u32> {
    // Nobody may take the lock to see whether it is free: a process that wants it would fail.
    owner_in(
        &std::fs::read_to_string("/proc/locks").ok()?,
        &std::fs::metadata(lock_of(index)).ok()?,
    )
}

fn owner_in(locks: &str, file: &Metadata) -> Option<u32> {
    let (device, inode) = (file.dev(), file.ino());
    let place = format!("{:02x}:{:02x}:{inode}", major(device), minor(device));
    // Number, type, kind, access, process, place. Waiting processes have `->` behind the number.
    let process = locks.lines().find_map(|line| {
        let words: Vec<_> = line.split_whitespace().collect();
        (words.get(1) == Some(&"FLOCK") && words.get(5) == Some(&&*place)).then(|| words[4])
    });
    process?.parse().ok()
}

/// The lock of the process that replaces a device's connections, held as long as it lives.
pub(super) struct Ownership {
    _file: File,
}

impl Ownership {
    /// Takes the lock. Fails with the number of the process that has it.
    pub(super) fn take(index: u32) -> Result<Ownership, String> {
        let (folder, path) = (Path::new(FOLDER), lock_of(index));
        let failed = |error: std::io::Error| format!("cannot lock '{}': {error}", path.display());
        std::fs::create_dir_all(folder).map_err(failed)?;
        let mut options = File::options();
        let mut file = options
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(failed)?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => {
                let mut process = String::new();
                let _ = file.read_to_string(&mut process);
                return Err(format!("process {} has it", process.trim()));
            }
            Err(error) => return Err(failed(error.into())),
        }
        file.set_len(0).map_err(failed)?;
        write!(file, "{}", std::process::id()).map_err(failed)?;
        Ok(Ownership { _file: file })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_process_that_holds_a_lock_is_known_while_it_holds_it() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let owner = || {
            let locks = std::fs::read_to_string("/proc/locks").unwrap();
            owner_in(&locks, &file.as_file().metadata().unwrap())
        };
        assert_eq!(owner(), None);
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).unwrap();
        assert_eq!(owner(), Some(std::process::id()));
        rustix::fs::flock(&file, FlockOperation::Unlock).unwrap();
        assert_eq!(owner(), None);
    }

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
        let export = ("backend", "nbd://host/a%20b 7-1\n");
        write("nbd2", &[("pid", "16\n"), ("size", "2048\n"), ("ro", "0\n"), export]);
        for queue in ["queue", "mq/0", "mq/1"] {
            std::fs::create_dir_all(folder.path().join("nbd2").join(queue)).unwrap();
        }
        for (name, text) in [("write_cache", "write back\n"), ("discard_max_bytes", "0\n")] {
            std::fs::write(folder.path().join("nbd2/queue").join(name), text).unwrap();
        }
        write("nbd0", &[("size", "0\n"), ("ro", "0\n")]);
        write("sda", &[("size", "8\n")]);
        let devices = Device::all_at(folder.path());
        let flags = TransmissionFlags::SEND_FLUSH | TransmissionFlags::CAN_MULTI_CONN;
        assert_eq!((devices[0].connections, devices[0].flags), (2, flags.0));
        assert_eq!((devices[1].connections, devices[1].flags), (1, TransmissionFlags::READ_ONLY.0));
        let rows: Vec<_> = devices.iter().map(Device::row).collect();
        assert_eq!(rows[0], ["/dev/nbd2", "1 MiB", "16", "nbd://host/a%20b"]);
        assert_eq!(rows[1], ["/dev/nbd10", "4 KiB, read-only", "17", "-"]);
        assert_eq!(rows.len(), 2);
    }
}
