//! The locks by which QEMU's programs keep an image to themselves. They are taken beside `flock`,
//! which QEMU ignores.
//!
//! QEMU gives each permission two bytes of the file (`block/file-posix.c`). A program that uses the
//! permission read-locks byte 100 + N. A program that lets no other use it read-locks byte 200 + N.
//! So no lock by itself ever conflicts: each program takes its locks first, and then checks those
//! of the others. Of two programs that come at the same time, at least one finds the other.
//!
//! | N | permission | a writer here | a reader here |
//! |---|---|---|---|
//! | 0 | read, and find it consistent | uses | uses |
//! | 1 | write | uses, alone | lets no other |
//! | 3 | resize | lets no other; uses it while it grows | lets no other |
//!
//! These are the locks of a guest's disk. As with such a disk, `qemu-img info` and `qemu-io -r` get
//! in. `qemu-img convert`, which allows no writer, gets in with `--force-share` only.
//!
//! The locks belong to the open file description (`F_OFD_SETLK`). So they go with it, and not with
//! any other descriptor of the file that this process closes.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

const USES: i64 = 100;
const ALONE: i64 = 200;
const READ: i64 = 0;
const WRITE: i64 = 1;
const RESIZE: i64 = 3;
/// Number of permissions.
const COUNT: i64 = 4;

/// The reason why a file isn't to be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Conflict {
    /// Another program has it open for writing, or resizes it.
    Writer,
    /// Another program has it open, and lets no other read, write or resize it.
    Alone,
    /// A lock of another kind is in the way.
    Other,
}

/// Takes the locks. `Ok(false)`: the file system has none. Closing the file releases them.
pub(super) fn lock(file: &File, read_only: bool) -> Result<bool, Conflict> {
    let uses: &[i64] = if read_only { &[READ] } else { &[READ, WRITE] };
    let alone = [WRITE, RESIZE];
    let bytes = uses.iter().map(|bit| USES + bit).chain(alone.map(|bit| ALONE + bit));
    match bytes.into_iter().try_for_each(|byte| take(file, byte)) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            let_go(file);
            return Err(Conflict::Other);
        }
        // Kernels and file systems return EINVAL, ENOLCK, ENOSYS or EOPNOTSUPP.
        Err(_) => {
            let_go(file);
            return Ok(false);
        }
    }
    let found = check(file, uses, &alone);
    if found.is_err() {
        let_go(file);
    }
    found.map(|()| true)
}

/// Resizes a file whose locks are taken, unless another program counts on its size.
pub(super) fn resizing<T>(file: &File, resize: impl FnOnce() -> T) -> Result<T, Conflict> {
    // An error: the file system has no such locks, and no other program has any.
    let _ = take(file, USES + RESIZE);
    // Its own descriptor finds no lock of its own.
    let found = check(file, &[RESIZE], &[]).map(|()| resize());
    let _ = set(file, libc::F_UNLCK, USES + RESIZE, 1);
    found
}

fn check(file: &File, uses: &[i64], alone: &[i64]) -> Result<(), Conflict> {
    if uses.iter().any(|bit| is_taken(file, ALONE + bit)) {
        let writes = [WRITE, RESIZE].iter().any(|bit| is_taken(file, USES + bit));
        return Err(if writes { Conflict::Writer } else { Conflict::Alone });
    }
    let writes = alone.iter().any(|bit| is_taken(file, USES + bit));
    if writes { Err(Conflict::Writer) } else { Ok(()) }
}

fn let_go(file: &File) {
    for first in [USES, ALONE] {
        // An error means that there was none.
        let _ = set(file, libc::F_UNLCK, first, COUNT);
    }
}

fn take(file: &File, byte: i64) -> io::Result<()> {
    set(file, libc::F_RDLCK, byte, 1)
}

fn range(kind: libc::c_int, byte: i64, len: i64) -> libc::flock {
    // SAFETY: integers alone, for which zeroes are values. Some systems have more fields than are
    // named here.
    let mut range: libc::flock = unsafe { std::mem::zeroed() };
    range.l_type = kind as libc::c_short;
    range.l_whence = libc::SEEK_SET as libc::c_short;
    (range.l_start, range.l_len) = (byte as libc::off_t, len as libc::off_t);
    range
}

fn set(file: &File, kind: libc::c_int, byte: i64, len: i64) -> io::Result<()> {
    let range = range(kind, byte, len);
    // SAFETY: the descriptor is open, and the command reads a `flock` that lives until the call
    // returns.
    let done = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const range) };
    if done == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Returns true if another open file has a lock on a byte; false also if the system can't answer
/// that.
fn is_taken(file: &File, byte: i64) -> bool {
    let mut range = range(libc::F_WRLCK, byte, 1);
    // SAFETY: as in `set`; the command also writes to it.
    let done = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &raw mut range) };
    done != -1 && range.l_type != libc::F_UNLCK as libc::c_short
}

#[cfg(test)]
mod tests {
    use rustix::fs::{Mode, OFlags};

    use super::*;

    /// Opens the file as another program that locks these bytes.
    fn other(path: &std::path::Path, bytes: &[i64]) -> File {
        let file = File::options().read(true).write(true).open(path).unwrap();
        bytes.iter().for_each(|byte| take(&file, *byte).unwrap());
        file
    }

    #[test]
    fn a_writer_keeps_writers_away_and_readers_that_allow_it_get_in() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f");
        std::fs::write(&path, [0; 512]).unwrap();
        let open = || other(&path, &[]);
        for (theirs, read_only, expected) in [
            // As `qemu-io`, `qemu-nbd` and a guest's disk that write.
            (&[100, 101][..], false, Err(Conflict::Writer)),
            (&[100, 101], true, Err(Conflict::Writer)),
            (&[100, 101, 203], false, Err(Conflict::Writer)),
            (&[100, 101, 201, 203], true, Err(Conflict::Writer)),
            // As `qemu-io -r`, `qemu-img info`, and a disk that is only read.
            (&[100], false, Ok(true)),
            (&[100], true, Ok(true)),
            (&[100, 201, 203], false, Err(Conflict::Alone)),
            (&[100, 201, 203], true, Ok(true)),
            (&[200], true, Err(Conflict::Alone)),
            (&[103], true, Err(Conflict::Writer)),
        ] {
            let their_file = other(&path, theirs);
            let ours = open();
            assert_eq!(lock(&ours, read_only), expected, "{theirs:?}, read-only: {read_only}");
            if expected.is_err() {
                let is_free = |byte| !is_taken(&their_file, byte);
                assert!([100, 101, 201, 203].into_iter().all(is_free), "{theirs:?}");
            }
        }
        // The other way round, these programs ask in the same way.
        let ours = open();
        assert_eq!(lock(&ours, false), Ok(true));
        let theirs = open();
        assert!(is_taken(&theirs, 201), "a writer is refused");
        assert!(!is_taken(&theirs, 200), "a reader isn't");
        assert!(is_taken(&theirs, 101), "a reader that allows no writer is");
        assert!(!is_taken(&ours, 101), "nobody is in the way of himself");
        assert_eq!(resizing(&ours, || 1), Ok(1));
        take(&theirs, 203).unwrap();
        assert_eq!(resizing(&ours, || 1), Err(Conflict::Alone));
        drop(ours);
        assert!(!is_taken(&theirs, 101) && !is_taken(&theirs, 201), "it goes with the file");
    }

    #[test]
    fn where_there_are_no_such_locks_the_file_is_opened_without() {
        // A descriptor that only names a file takes none.
        let folder = tempfile::tempdir().unwrap();
        let path = rustix::fs::open(folder.path(), OFlags::PATH, Mode::empty()).unwrap();
        let file = File::from(path);
        assert_eq!(lock(&file, true), Ok(false));
        assert_eq!(resizing(&file, || 1), Ok(1));
    }
}
