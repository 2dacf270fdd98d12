//! A guard of an open file, which checks its path, its name and its length.
//!
//! A descriptor keeps its file alive whatever happens to the name. Writes and syncs succeed on a
//! file that was unlinked, renamed, replaced or hidden by a mount, and the next server finds
//! another file, or none. If another program truncates the file, a write behind its end makes it
//! longer again, and the gap reads as zeroes. No call fails for any of this. So a driver that
//! promises that data is durable has to check:
//!
//! | | costs | finds a file | may wait |
//! |---|---|---|---|
//! | [`FileGuard::verify_descriptor`] | 0.8 to 1.5 µs | truncated, unlinked | as `fstat` |
//! | [`FileGuard::verify`] | 2 to 6 µs | also renamed, replaced, hidden | as a path lookup |
//!
//! (Linux 6.18, a virtual machine with two busy CPUs, a path of five parts; the fastest `fdatasync`
//! of a changed block took 72 µs there.)
//!
//! Neither finds a write to the file by another program, nor a truncation that was undone before
//! the check.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use corewise_sync::atomic::{AtomicU64, Ordering};
use rustix::fs::{Access, AtFlags, CWD, OFlags, Statx, StatxFlags};
use rustix::io::Errno;

/// A file that a promise rests on, with its descriptor.
#[derive(Debug)]
pub struct FileGuard {
    file: File,
    /// Absolute path, if it was opened at one.
    path: Option<PathBuf>,
    identity: Identity,
    /// True if it had a name when it was opened. Some file systems count none.
    named: bool,
    access: FileAccess,
    /// A: bytes that it has to have; it only grows, once the file has. Release and Acquire: a check
    /// that begins behind the load finds them.
    size: AtomicU64,
}

/// The identity of a file, whatever its name is. No other file gets it while this one is open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Identity {
    device: (u32, u32),
    inode: u64,
}

/// The permissions needed to open it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct FileAccess {
    mode: u32,
    owner: u32,
    group: u32,
}

/// The result of a check of a file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FileSeen {
    pub(crate) length: u64,
    /// Bytes that it had to have when the check began: it may have grown since.
    wanted: u64,
    pub(crate) has_name: bool,
    identity: Identity,
    access: FileAccess,
}

impl FileSeen {
    /// Returns true if it is shorter than it was.
    pub(crate) fn is_short(&self) -> bool {
        self.length < self.wanted
    }
}

/// A fault of a guarded file.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FileFault {
    /// The file has no name any more: its content goes with the last process that has it open.
    Unlinked,
    /// The file is shorter than it was.
    Truncated {
        /// Bytes that it had.
        from: u64,
        /// Bytes that it has.
        to: u64,
    },
    /// The file is whole, and its path leads to another file or to none.
    Moved {
        /// The file at the path, in words.
        found: String,
        /// Present path of the file, as far as the system tells.
        now: Option<PathBuf>,
    },
    /// The file is whole and in its place, but its permissions have changed: this process couldn't
    /// open it again.
    NoAccess,
    /// The system doesn't tell the file's state.
    Unknown(String),
}

impl fmt::Display for FileFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FileFault::Unlinked => f.write_str("the file was unlinked while in use"),
            FileFault::Truncated { from, to } => {
                write!(f, "the file was truncated while in use, from {from} bytes to {to}")
            }
            FileFault::Moved { found, now: Some(now) } => {
                write!(f, "the path {found}, and the file in use is now {}", now.display())
            }
            FileFault::Moved { found, now: None } => write!(f, "the path {found}"),
            FileFault::NoAccess => f.write_str(
                "the permissions of the file were changed while in use, and no longer let this process \
                 open it",
            ),
            FileFault::Unknown(why) => write!(f, "the state of the file can't be read: {why}"),
        }
    }
}

impl std::error::Error for FileFault {}

impl FileGuard {
    /// Guards a file that was opened at `path`, and has to keep its length. Asks the file system,
    /// which may block.
    ///
    /// # Errors
    /// The path leads to another file by now ([`io::ErrorKind::StaleNetworkFileHandle`]: open it
    /// again), or the system doesn't tell where it leads.
    pub fn new(file: File, path: &Path) -> io::Result<Self> {
        let path = std::path::absolute(path)?;
        let seen = look_at(&file)?;
        if look_up(&path)?.identity != seen.identity {
            let why = "the file was replaced while it was opened; try again";
            return Err(io::Error::new(io::ErrorKind::StaleNetworkFileHandle, why));
        }
        let FileSeen { length, has_name, identity, access, .. } = seen;
        let size = AtomicU64::new(length);
        Ok(Self { file, path: Some(path), identity, named: has_name, access, size })
    }

    /// Guards a file that never had a name.
    #[cfg(test)]
    pub(crate) fn without_path(file: File) -> Self {
        let length = look_at(&file).map_or(0, |seen| seen.length);
        let (identity, access) = (Identity::default(), FileAccess::default());
        Self { file, path: None, identity, named: false, access, size: AtomicU64::new(length) }
    }

    /// Returns the open file.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Notes that the file has grown to `size` bytes, which it then has to keep.
    pub fn grew(&self, size: u64) {
        self.size.fetch_max(size, Ordering::Release);
    }

    /// Returns the bytes that it has to have.
    pub(crate) fn size(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }

    /// Checks that the file has a name and its length. It doesn't look the path up, and waits no
    /// longer than `fstat`.
    ///
    /// # Errors
    /// The fault of the file.
    pub fn verify_descriptor(&self) -> Result<(), FileFault> {
        let seen = self.look().map_err(|error| FileFault::Unknown(said(error)))?;
        self.judge(seen)
    }

    /// Checks that the path leads to the file, and the file has its length. Blocks as long as the
    /// lookup of the path does.
    ///
    /// # Errors
    /// The worst fault of several: the file has no name, it is shorter, its path leads elsewhere,
    /// it can't be opened.
    pub fn verify(&self) -> Result<(), FileFault> {
        let Some(path) = &self.path else { return self.verify_descriptor() };
        let wanted = self.size();
        let found = match look_up(path) {
            Ok(seen) if seen.identity == self.identity => {
                self.judge(FileSeen { wanted, ..seen })?;
                return self.judge_access(path, seen);
            }
            Ok(_) => "leads to another file".to_owned(),
            Err(Errno::NOENT | Errno::NOTDIR) => "leads to no file".to_owned(),
            Err(error) => format!("can't be followed ({})", said(error)),
        };
        self.verify_descriptor()?;
        Err(FileFault::Moved { found, now: self.path_now() })
    }

    /// Returns the file's present path. The system follows only the name by which it was opened.
    fn path_now(&self) -> Option<PathBuf> {
        let now = std::fs::read_link(format!("/proc/self/fd/{}", self.file.as_raw_fd())).ok()?;
        look_up(&now).is_ok_and(|seen| seen.identity == self.identity).then_some(now)
    }

    pub(crate) fn look(&self) -> rustix::io::Result<FileSeen> {
        let wanted = self.size();
        look_at(&self.file).map(|seen| FileSeen { wanted, ..seen })
    }

    /// Returns true if it had a name once, and has none.
    pub(crate) fn is_unlinked(&self, seen: FileSeen) -> bool {
        self.named && !seen.has_name
    }

    /// Checks the permissions, if they have changed: that takes another call.
    fn judge_access(&self, path: &Path, seen: FileSeen) -> Result<(), FileFault> {
        if seen.access == self.access {
            return Ok(());
        }
        // As it was opened.
        let flags = rustix::fs::fcntl_getfl(&self.file).unwrap_or(OFlags::RDONLY);
        let how = match flags.contains(OFlags::RDWR) {
            true => Access::READ_OK | Access::WRITE_OK,
            false => Access::READ_OK,
        };
        match rustix::fs::accessat(CWD, path, how, AtFlags::EACCESS) {
            Err(Errno::ACCESS | Errno::PERM) => Err(FileFault::NoAccess),
            _ => Ok(()),
        }
    }

    fn judge(&self, seen: FileSeen) -> Result<(), FileFault> {
        if self.is_unlinked(seen) {
            Err(FileFault::Unlinked)
        } else if seen.is_short() {
            Err(FileFault::Truncated { from: seen.wanted, to: seen.length })
        } else {
            Ok(())
        }
    }
}

fn said(error: Errno) -> String {
    io::Error::from(error).to_string()
}

/// `fstat` would ask for the file's times too. The kernel then notes that they were read (since
/// Linux 6.13), and the next write has to give the file new ones. On ext4 that is a change of the
/// journal, which can't be done without waiting.
const ASKED: StatxFlags = StatxFlags::SIZE
    .union(StatxFlags::NLINK)
    .union(StatxFlags::INO)
    .union(StatxFlags::MODE)
    .union(StatxFlags::UID)
    .union(StatxFlags::GID);

fn look_at(file: &File) -> rustix::io::Result<FileSeen> {
    match rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, ASKED) {
        Ok(found) => Ok(FileSeen::from(found)),
        // A policy that knows no `statx`, for instance.
        Err(_) => rustix::fs::fstat(file).map(FileSeen::from),
    }
}

fn look_up(path: &Path) -> rustix::io::Result<FileSeen> {
    match rustix::fs::statx(CWD, path, AtFlags::empty(), ASKED) {
        Ok(found) => Ok(FileSeen::from(found)),
        Err(Errno::NOSYS | Errno::PERM) => rustix::fs::stat(path).map(FileSeen::from),
        Err(error) => Err(error),
    }
}

impl From<Statx> for FileSeen {
    fn from(found: Statx) -> Self {
        let device = (found.stx_dev_major, found.stx_dev_minor);
        let (owner, group) = (found.stx_uid, found.stx_gid);
        FileSeen {
            length: found.stx_size,
            wanted: 0,
            has_name: found.stx_nlink != 0,
            identity: Identity { device, inode: found.stx_ino },
            access: FileAccess { mode: found.stx_mode.into(), owner, group },
        }
    }
}

impl From<rustix::fs::Stat> for FileSeen {
    fn from(found: rustix::fs::Stat) -> Self {
        let device = (rustix::fs::major(found.st_dev), rustix::fs::minor(found.st_dev));
        let (mode, owner, group) = (found.st_mode, found.st_uid, found.st_gid);
        FileSeen {
            length: u64::try_from(found.st_size).unwrap_or(0),
            wanted: 0,
            has_name: found.st_nlink != 0,
            identity: Identity { device, inode: found.st_ino },
            access: FileAccess { mode, owner, group },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn guarded(path: &Path) -> FileGuard {
        fs::write(path, [7; 4096]).unwrap();
        let file = File::options().read(true).write(true).open(path).unwrap();
        FileGuard::new(file, path).unwrap()
    }

    #[test]
    fn a_file_that_is_renamed_or_replaced_is_told_from_one_that_is_gone_and_is_well_again_under_its_name()
     {
        let folder = tempfile::tempdir().unwrap();
        let (path, other) = (folder.path().join("f"), folder.path().join("g"));
        let guard = guarded(&path);
        guard.verify().unwrap();
        fs::rename(&path, &other).unwrap();
        let moved = guard.verify().unwrap_err();
        assert!(
            matches!(&moved, FileFault::Moved { found, now: Some(now) } if found.contains("no file") && *now == other),
            "{moved:?}"
        );
        guard.verify_descriptor().unwrap();
        fs::write(&path, [7; 4096]).unwrap();
        let replaced = guard.verify().unwrap_err();
        assert!(
            matches!(&replaced, FileFault::Moved { found, .. } if found.contains("another file")),
            "{replaced:?}"
        );
        fs::rename(&other, &path).unwrap();
        guard.verify().unwrap();
        // By another name for the folder, too.
        let (folder, elsewhere) = (folder.path().to_owned(), tempfile::tempdir().unwrap());
        fs::rename(&folder, elsewhere.path().join("h")).unwrap();
        assert!(matches!(guard.verify(), Err(FileFault::Moved { .. })));
        fs::rename(elsewhere.path().join("h"), &folder).unwrap();
        fs::remove_file(&path).unwrap();
        fs::write(&path, [7; 4096]).unwrap();
        assert_eq!(guard.verify(), Err(FileFault::Unlinked));
        assert_eq!(guard.verify_descriptor(), Err(FileFault::Unlinked));
    }

    #[test]
    fn a_file_that_is_shorter_is_told_and_one_that_grew_has_to_stay_so_long() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f");
        let guard = guarded(&path);
        guard.file().set_len(512).unwrap();
        let cut = Err(FileFault::Truncated { from: 4096, to: 512 });
        assert_eq!(guard.verify(), cut);
        assert_eq!(guard.verify_descriptor(), cut);
        guard.file().set_len(8192).unwrap();
        guard.verify().unwrap();
        guard.grew(8192);
        guard.file().set_len(4096).unwrap();
        assert_eq!(guard.verify(), Err(FileFault::Truncated { from: 8192, to: 4096 }));
    }

    #[test]
    fn a_file_that_grows_while_it_is_looked_at_is_not_taken_for_one_that_is_shorter() {
        let folder = tempfile::tempdir().unwrap();
        let guard = guarded(&folder.path().join("f"));
        std::thread::scope(|threads| {
            let grows = threads.spawn(|| {
                for size in (4097..8192).map(|size| 4 * size) {
                    guard.file().set_len(size).unwrap();
                    guard.grew(size);
                }
            });
            while !grows.is_finished() {
                guard.verify().unwrap();
                guard.verify_descriptor().unwrap();
            }
        });
    }

    #[test]
    fn a_symbolic_link_that_leads_elsewhere_and_a_file_that_was_replaced_meanwhile_are_told() {
        let folder = tempfile::tempdir().unwrap();
        let [path, other, link] = ["f", "g", "l"].map(|name| folder.path().join(name));
        fs::write(&path, "").unwrap();
        fs::write(&other, "").unwrap();
        std::os::unix::fs::symlink(&path, &link).unwrap();
        let guard = FileGuard::new(File::open(&link).unwrap(), &link).unwrap();
        guard.verify().unwrap();
        fs::remove_file(&link).unwrap();
        std::os::unix::fs::symlink(&other, &link).unwrap();
        assert!(
            matches!(guard.verify(), Err(FileFault::Moved { now: Some(now), .. }) if now == path)
        );
        let late = FileGuard::new(File::open(&path).unwrap(), &other).unwrap_err();
        assert_eq!(late.kind(), io::ErrorKind::StaleNetworkFileHandle);
    }

    #[test]
    fn permissions_that_keep_the_file_from_being_opened_again_are_a_fault_that_passes() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("inner");
        fs::create_dir(&inner).unwrap();
        let guard = guarded(&inner.join("f"));
        let set = |mode| fs::set_permissions(&inner, fs::Permissions::from_mode(mode)).unwrap();
        set(0);
        let found = guard.verify();
        set(0o700);
        // Root may search any folder, and open any file.
        let is_told = matches!(&found, Err(FileFault::Moved { found, .. }) if found.contains("can't be followed"));
        let may = || rustix::process::geteuid().is_root();
        assert!(is_told || found.is_ok() && may(), "{found:?}");
        guard.verify().unwrap();
        for mode in [0o400, 0o600] {
            let path = inner.join("f");
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let found = guard.verify();
            let expected = if mode == 0o600 || may() { Ok(()) } else { Err(FileFault::NoAccess) };
            assert_eq!(found, expected, "{mode:o}");
        }
    }
}
