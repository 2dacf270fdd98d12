//! The way past the host's page cache (`O_DIRECT`): the alignment that a file system needs, and a
//! check that a device can give it.

use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;

use rustix::fs::{AtFlags, OFlags, StatxFlags};
use rustix::io::{Errno, ReadWriteFlags};

use super::error::OpenErrorKind;

/// The alignment that a file system needs for I/O that goes past its cache. Powers of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alignment {
    /// Addresses in memory are multiples of it, in bytes.
    pub memory: u32,
    /// Offsets in the file, and the lengths of the pieces, are multiples of it, in bytes.
    pub offset: u32,
}

impl Alignment {
    /// Returns true if a piece of memory may go to (or come from) byte `at` of the file as it is.
    pub(super) fn fits(self, at: u64, address: usize, len: usize) -> bool {
        let offset = self.offset as usize;
        at % u64::from(self.offset) == 0
            && len % offset == 0
            && address % (self.memory as usize) == 0
    }
}

/// Returns the file system's own values (`STATX_DIOALIGN`, since Linux 6.1); `None` if it has none,
/// or doesn't go past its cache.
pub(super) fn found(file: &File) -> Option<Alignment> {
    let stat = rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN).ok()?;
    if stat.stx_mask & StatxFlags::DIOALIGN.bits() == 0 {
        return None;
    }
    sane(Alignment { memory: stat.stx_dio_mem_align, offset: stat.stx_dio_offset_align })
}

/// Checks the values: a file system reports 0 if it can't do this, and powers of two otherwise.
fn sane(found: Alignment) -> Option<Alignment> {
    (found.memory.is_power_of_two() && found.offset.is_power_of_two()).then_some(found)
}

/// Returns the alignment for a device with blocks of this size that goes past the cache.
pub(super) fn with_blocks(
    found: Option<Alignment>,
    block_size: u32,
) -> Result<Alignment, OpenErrorKind> {
    let can = found.filter(|found| found.offset <= block_size);
    can.ok_or(OpenErrorKind::NotDirect { needs: found, block_size })
}

/// Makes all further I/O on the file go past the cache.
pub(super) fn go(file: &File) -> io::Result<()> {
    let flags = rustix::fs::fcntl_getfl(file)?;
    Ok(rustix::fs::fcntl_setfl(file, flags | OFlags::DIRECT)?)
}

// Reads from the host's cache, into memory that needn't be initialized. `rustix` has `preadv2` for
// initialized memory only; initializing it first would cost as much as the read.

/// Reads from byte `at` of the file on. Returns how many bytes of `room` are initialized now, from
/// its first one on. With [`ReadWriteFlags::NOWAIT`] it reads only from the cache, and never
/// blocks.
///
/// # Errors
/// [`Errno::AGAIN`] if the cache has nothing there; [`Errno::OPNOTSUPP`], [`Errno::INVAL`] or
/// [`Errno::NOSYS`] if file system or kernel can't be asked like this; else the error of the read.
pub(super) fn read(
    file: &File,
    room: &mut [MaybeUninit<u8>],
    at: u64,
    flags: ReadWriteFlags,
) -> Result<usize, Errno> {
    let list = libc::iovec { iov_base: room.as_mut_ptr().cast(), iov_len: room.len() };
    // The offset goes in two words. If one holds all of it, the kernel ignores the other one.
    let (low, high) = (at as libc::c_long, (at >> 32) as libc::c_long);
    // SAFETY: the list has one entry, and both live until the call returns. The entry names `room`,
    // which is borrowed exclusively; the kernel writes to it, no more than its length, and reads
    // nothing of it.
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
    use super::*;

    #[test]
    fn a_device_goes_past_the_cache_where_its_blocks_are_large_enough() {
        let found = |offset| Some(Alignment { memory: 512, offset });
        for block_size in [512, 4096] {
            assert_eq!(with_blocks(found(512), block_size).ok(), found(512));
        }
        for cannot in [None, found(4096)] {
            let error = with_blocks(cannot, 512).unwrap_err();
            assert!(matches!(
                error,
                OpenErrorKind::NotDirect { needs, block_size: 512 } if needs == cannot
            ));
        }
    }

    #[test]
    fn a_piece_of_memory_fits_where_its_address_its_length_and_its_place_do() {
        let align = Alignment { memory: 4, offset: 512 };
        assert!(align.fits(1024, 4096 + 4, 512));
        assert!(!align.fits(1025, 4096, 512));
        assert!(!align.fits(1024, 4097, 512));
        assert!(!align.fits(1024, 4096, 511));
    }

    #[test]
    fn a_file_system_that_says_zero_cannot() {
        assert_eq!(sane(Alignment { memory: 0, offset: 0 }), None);
        assert_eq!(sane(Alignment { memory: 512, offset: 0 }), None);
    }
}

#[cfg(test)]
mod cached_tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    /// Reads bytes of the file; `None` if its file system can't be asked.
    fn read_some(file: &File, len: usize, at: u64) -> Option<Vec<u8>> {
        let mut got = Vec::with_capacity(len);
        let n = match read(file, &mut got.spare_capacity_mut()[..len], at, ReadWriteFlags::NOWAIT) {
            Ok(n) => n,
            Err(Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS) => return None,
            Err(error) => panic!("{error}"),
        };
        // SAFETY: this many bytes were read.
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
        assert!(read_some(&file, 10, 1000).unwrap().is_empty());
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
