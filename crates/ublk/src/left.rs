//! Disks that a former server has left: how they are found, taken over or ended. No two processes
//! do that, or make a disk, with the same mark at once.

use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::{io, mem};

use crate::abi::{DeviceInfo, Params, control, feature, state};
use crate::control::{CONTROL, Command, Control, PROMPT};
use crate::disk::DiskOptions;
use crate::error::Error;

/// The word by which the next server finds a disk: which data it has, and for whom. The kernel
/// keeps it. The same texts give the same mark in each process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mark(u64);

impl Mark {
    /// Creates the mark of a disk from two texts: which data it has, and which export of which
    /// server it is.
    pub fn of(data: &str, place: &str) -> Mark {
        // FNV-1a, of which 31 and 32 bits are kept; never 0.
        let hash = |text: &str| {
            let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
                (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
            });
            (hash ^ hash >> 32) & u64::from(u32::MAX)
        };
        Mark(hash(data) << 32 | hash(place) | 1)
    }

    /// Returns the word.
    pub fn word(self) -> u64 {
        self.0
    }

    /// Returns true if a disk with that mark has the same data.
    fn has_data_of(self, other: Mark) -> bool {
        self.0 >> 32 == other.0 >> 32
    }
}

/// The right to make, to take over or to end the disk with a mark, which one process has at a time.
/// The kernel takes it back if that process dies.
pub(crate) struct MarkLock {
    _control: File,
}

impl MarkLock {
    /// Takes the right. Disks without a mark have none.
    pub(crate) fn take(mark: Mark) -> Result<Option<MarkLock>, Error> {
        if mark == Mark::default() {
            return Ok(None);
        }
        let control = OpenOptions::new().read(true).write(true).open(CONTROL);
        let control = control.map_err(Error::no_control)?;
        match lock(&control, mark) {
            Ok(()) => Ok(Some(MarkLock { _control: control })),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(Error::InWork),
            Err(error) => {
                Err(Error::Command { what: "lock the mark of a disk", disk: None, error })
            }
        }
    }
}

/// Locks one byte of a file, whose place depends on the mark, until the file is closed. No file
/// needs to be that long.
fn lock(file: &File, mark: Mark) -> io::Result<()> {
    // SAFETY: all bytes may be zero: it has numbers alone.
    let mut range: libc::flock = unsafe { mem::zeroed() };
    range.l_type = libc::F_WRLCK as i16;
    range.l_whence = libc::SEEK_SET as i16;
    range.l_start = (mark.0 >> 1) as i64;
    range.l_len = 1;
    // SAFETY: the file is open, and the kernel only reads the range.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const range) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Returns the disk with a mark, if a former server left it. A disk with this mark that was never
/// started, or that ended with its server, is taken away. Fails if a disk that waits has the same
/// data for another server: its file system isn't to be changed below it.
pub(crate) fn find(
    control: &mut Control,
    options: &DiskOptions,
) -> Result<Option<DeviceInfo>, Error> {
    let mark = options.mark;
    if mark == Mark::default() {
        return Ok(None);
    }
    let mut found = None;
    for disk in disks() {
        let Ok(info) = control.info(disk) else { continue };
        let (has_server, waits) = (has_server(&info), waits(&info));
        if info.mark != mark.word() {
            let is_ours = options.others.contains(&Mark(info.mark));
            if waits && options.outlives && mark.has_data_of(Mark(info.mark)) && !is_ours {
                return Err(Error::Left { disk });
            }
            continue;
        }
        if has_server {
            return Err(Error::Taken { disk, process: info.server });
        }
        if !waits {
            let _ = control.plain(Command::new(control::STOP_DEV, disk));
            let _ = delete(control, disk);
            continue;
        }
        if options.is_new {
            return Err(Error::NewData { disk });
        }
        found = Some(info);
    }
    Ok(found)
}

/// Returns the numbers of the machine's ublk devices.
fn disks() -> Vec<u32> {
    let folder = std::fs::read_dir("/sys/class/ublk-char").into_iter().flatten();
    let number = |entry: io::Result<std::fs::DirEntry>| {
        entry.ok()?.file_name().to_str()?.strip_prefix("ublkc")?.parse().ok()
    };
    folder.filter_map(number).collect()
}

/// Returns true if a process that is alive serves the device.
fn has_server(info: &DeviceInfo) -> bool {
    let is_alive = |process: i32| std::path::Path::new(&format!("/proc/{process}")).exists();
    info.state == state::LIVE && info.server > 0 && is_alive(info.server)
}

/// Returns true if the device's requests wait for the next server.
fn waits(info: &DeviceInfo) -> bool {
    let can_wait = info.features & feature::USER_RECOVERY != 0;
    can_wait && info.state != state::DEAD && !has_server(info)
}

/// Begins the takeover of a disk that a former server left.
pub(crate) fn resume(
    control: &mut Control,
    info: &DeviceInfo,
    wanted: &Params,
) -> Result<(), Error> {
    let disk = info.device;
    let found = control.params(disk).map_err(Error::command("describe", disk))?;
    let (old, new) = (found.basic, wanted.basic);
    let changed = |what, disk_has: u64, device_has: u64| {
        Err(Error::Changed { disk, what, disk_has, device_has })
    };
    if old.sectors > new.sectors {
        return changed("size in bytes", old.sectors * 512, new.sectors * 512);
    }
    if old.logical_shift != new.logical_shift {
        return changed("block size", 1 << old.logical_shift, 1 << new.logical_shift);
    }
    if old.attributes != new.attributes {
        return changed("attributes", old.attributes.into(), new.attributes.into());
    }
    // The kernel is busy while it winds the former server up.
    match control.patiently(Command::new(control::START_USER_RECOVERY, disk)) {
        // A server that died in the middle of its takeover had begun it: before Linux 6.15 the
        // kernel refuses to begin again, and goes on.
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(()),
        result => result.map(drop).map_err(Error::command("begin the takeover of", disk)),
    }
}

/// Deletes a device that has no disk any more. Its number is free once its last user has closed it.
pub(crate) fn delete(control: &mut Control, number: u32) -> Result<(), Error> {
    control
        .plain(Command::new(control::DEL_DEV_ASYNC, number))
        .map(drop)
        .map_err(Error::command("take away", number))
}

/// Ends a disk that nobody serves, whose users get errors from then on: `corewise detach`.
///
/// # Errors
/// If it has a server that is alive, or the kernel refuses.
pub fn discard_left(number: u32) -> Result<(), Error> {
    let mut control = Control::open(PROMPT)?;
    let describe =
        |control: &mut Control| control.info(number).map_err(Error::command("describe", number));
    let _lock = MarkLock::take(Mark(describe(&mut control)?.mark))?;
    // It may have got a server meanwhile.
    let info = describe(&mut control)?;
    if has_server(&info) {
        return Err(Error::Taken { disk: number, process: info.server });
    }
    control
        .plain(Command::new(control::STOP_DEV, number))
        .map_err(Error::command("stop", number))?;
    delete(&mut control, number)
}

/// A disk of this machine, of any server.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FoundDisk {
    /// Number in its path.
    pub number: u32,
    /// Process that serves it, if one does.
    pub server: Option<u32>,
    /// True if its requests wait for the next server.
    pub waits: bool,
    /// Word by which the next server finds it.
    pub mark: Mark,
}

/// Returns the disks of this machine, of any server, whose numbers are `wanted`. Blocks for a
/// moment.
///
/// # Errors
/// If the kernel has no ublk, or the process may not use it.
pub fn list(wanted: impl Fn(u32) -> bool) -> Result<Vec<FoundDisk>, Error> {
    let mut disks = disks();
    disks.retain(|number| wanted(*number));
    if disks.is_empty() {
        return Ok(Vec::new());
    }
    let mut control = Control::open(PROMPT)?;
    let mut found = Vec::new();
    for number in disks {
        let Ok(info) = control.info(number) else { continue };
        if info.state != state::DEAD {
            let server = has_server(&info).then_some(info.server as u32);
            found.push(FoundDisk { number, server, waits: waits(&info), mark: Mark(info.mark) });
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_process_at_a_time_has_the_right_to_a_mark_until_it_dies() {
        let path = std::env::temp_dir().join(format!("corewise-ublk-{}", std::process::id()));
        let open =
            || OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
        let [one, other] = [open().unwrap(), open().unwrap()];
        let [disk, same, another] = ["a", "a", "b"].map(|name| Mark::of("data", name));
        lock(&one, disk).unwrap();
        assert_eq!(lock(&other, same).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        lock(&other, another).unwrap();
        drop(one);
        lock(&other, same).unwrap();
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn marks_tell_disks_of_the_same_data_from_others() {
        let mark = Mark::of("data", "a");
        assert!(mark.has_data_of(Mark::of("data", "b")) && mark != Mark::of("data", "b"));
        assert!(!mark.has_data_of(Mark::of("other", "a")));
    }
}
