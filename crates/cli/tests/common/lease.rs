//! A file whose open blocks, as on a dead disk or a network file system. This process has a lease
//! on the file, and the kernel lets no other process open it until the lease is returned.

use std::ffi::c_int;
use std::fs::File;
use std::os::fd::AsRawFd;

use super::Folder;

/// Command from `asm-generic/fcntl.h`, which libc doesn't have.
const F_SETSIG: c_int = 10;

/// A lease. The kernel takes it away after `/proc/sys/fs/lease-break-time`, 45 seconds, at the
/// latest.
pub struct Lease {
    file: File,
}

impl Lease {
    /// Takes a lease on a new file of that size.
    pub fn on(folder: &Folder, name: &str, bytes: u64) -> Lease {
        let path = folder.write(name, "");
        let file = File::options().read(true).write(true).open(path).expect("it was just made");
        file.set_len(bytes).expect("a sparse file");
        // A signal tells the lease's owner that a process waits. The usual signal would end this
        // process; a process that has not asked for this one ignores it.
        control(&file, F_SETSIG, libc::SIGURG);
        control(&file, libc::F_SETLEASE, libc::F_WRLCK);
        Lease { file }
    }

    /// Gives the lease back, which wakes the waiters.
    pub fn give_back(self) {
        control(&self.file, libc::F_SETLEASE, libc::F_UNLCK);
    }
}

fn control(file: &File, command: c_int, argument: c_int) {
    // SAFETY: the descriptor is open as long as `file` lives, and both commands take an int.
    let answer = unsafe { libc::fcntl(file.as_raw_fd(), command, argument) };
    assert_eq!(answer, 0, "fcntl {command}: {}", std::io::Error::last_os_error());
}
