//! A file whose open blocks, as that of a dead disk or of a network file system does: this process
//! has a lease on it, and the kernel lets nobody else open it until that is given back.

use std::ffi::c_int;
use std::fs::File;
use std::os::fd::AsRawFd;

use super::Folder;

/// From `asm-generic/fcntl.h`; libc doesn't have it.
const F_SETSIG: c_int = 10;

/// A lease. The kernel takes it away after `/proc/sys/fs/lease-break-time`, 45 seconds, at the
/// latest.
pub struct Lease {
    file: File,
}

impl Lease {
    /// Takes one on a new file of that size.
    pub fn on(folder: &Folder, name: &str, bytes: u64) -> Lease {
        let path = folder.write(name, "");
        let file = File::options().read(true).write(true).open(path).expect("it was just made");
        file.set_len(bytes).expect("a sparse file");
        // The owner of a lease is told by a signal that somebody waits. The usual one would end
        // this process; this one is ignored by a process that has not asked for it.
        control(&file, F_SETSIG, libc::SIGURG);
        control(&file, libc::F_SETLEASE, libc::F_WRLCK);
        Lease { file }
    }

    /// The waiters go on.
    pub fn give_back(self) {
        control(&self.file, libc::F_SETLEASE, libc::F_UNLCK);
    }
}

fn control(file: &File, command: c_int, argument: c_int) {
    // SAFETY: the descriptor is open as long as `file` lives, and both commands take an int.
    let answer = unsafe { libc::fcntl(file.as_raw_fd(), command, argument) };
    assert_eq!(answer, 0, "fcntl {command}: {}", std::io::Error::last_os_error());
}
