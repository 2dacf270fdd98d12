//! Reading what the host's cache has, into memory that needn't be initialized. `rustix` has `preadv2` for
//! initialized memory only, and to initialize it first would cost as much as the read.

use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;

use rustix::io::{Errno, ReadWriteFlags};

/// Reads from byte `at` of the file on: how many bytes of `room` are initialized now, from its first one on. With
/// [`ReadWriteFlags::NOWAIT`] it is what the cache has, and this never blocks.
///
/// # Errors
/// [`Errno::AGAIN`] where the cache has nothing there; [`Errno::OPNOTSUPP`], [`Errno::INVAL`] or [`Errno::NOSYS`]
/// where file system or kernel can't be asked like this; else what is wrong.
pub(super) fn read(
    file: &File,
    room: &mut [MaybeUninit<u8>],
    at: u64,
    flags: ReadWriteFlags,
) -> Result<usize, Errno> {
    let list = libc::iovec { iov_base: room.as_mut_ptr().cast(), iov_len: room.len() };
    // The offset goes in two words. Where one holds all of it, the kernel ignores the other one.
    let (low, high) = (at as libc::c_long, (at >> 32) as libc::c_long);
    // SAFETY: the list has one entry, and both live until the call returns. The entry names `room`, which is
    // borrowed exclusively; the kernel writes to it, no more than its length, and reads nothing of it.
    let n = unsafe {
        libc::syscall(
            libc::SYS_preadv2,
            file.as_raw_fd(),
            &raw const list,
            1 as libc::c_long,
            low,
            high,
            flags.bits() as libc::c_long,
        )
    };
    match usize::try_from(n) {
        Ok(n) => Ok(n.min(room.len())),
        Err(_) => Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    /// What is read of the file, `None` where its file system can't be asked.
    fn read_some(file: &File, len: usize, at: u64) -> Option<Vec<u8>> {
        let mut got = Vec::with_capacity(len);
        let n = match read(file, &mut got.spare_capacity_mut()[..len], at, ReadWriteFlags::NOWAIT) {
            Ok(n) => n,
            Err(Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS) => return None,
            Err(error) => panic!("{error}"),
        };
        // SAFETY: so many bytes were read.
        unsafe { got.set_len(n) };
        Some(got)
    }

    #[test]
    fn cached_bytes_are_read_up_to_the_end_of_the_file() {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&[7; 1000], 0).unwrap();
        let Some(all) = read_some(&file, 4096, 0) else { return println!("can't be asked here") };
        assert_eq!(all, [7; 1000]);
        assert_eq!(read_some(&file, 10, 995).unwrap(), [7; 5]);
        assert_eq!(read_some(&file, 10, 1000).unwrap(), []);
    }

    #[test]
    fn an_offset_of_more_than_32_bits_arrives_as_it_is() {
        let file = tempfile::tempfile().unwrap();
        let far = (5 << 32) + 12345;
        file.write_all_at(b"far", far).unwrap();
        if let Some(got) = read_some(&file, 3, far) {
            assert_eq!(got, b"far");
        }
    }

    #[test]
    fn a_file_that_cannot_be_read_says_so() {
        let dir = tempfile::tempdir().unwrap();
        let file = File::options().write(true).create_new(true).open(dir.path().join("w")).unwrap();
        let mut room = [MaybeUninit::uninit(); 8];
        let error = read(&file, &mut room, 0, ReadWriteFlags::empty()).unwrap_err();
        assert_eq!(error, Errno::BADF);
    }
}
