//! The way past the host's page cache (`O_DIRECT`): what a file system asks for, and whether a device can
//! give it.

use std::fs::File;
use std::io;

use rustix::fs::{AtFlags, OFlags, StatxFlags};

use super::error::OpenErrorKind;

/// What a file system asks of I/O that goes past its cache. Powers of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alignment {
    /// Addresses in memory are multiples of it, in bytes.
    pub memory: u32,
    /// Offsets in the file, and the lengths of the pieces, are multiples of it, in bytes.
    pub offset: u32,
}

impl Alignment {
    /// Whether a piece of memory may go to (or come from) byte `at` of the file as it is.
    pub(super) fn fits(self, at: u64, address: usize, len: usize) -> bool {
        let offset = self.offset as usize;
        at % u64::from(self.offset) == 0
            && len % offset == 0
            && address % (self.memory as usize) == 0
    }
}

/// What the file system says (`STATX_DIOALIGN`, since Linux 6.1); `None` where it says nothing, or that it
/// doesn't go past its cache.
pub(super) fn found(file: &File) -> Option<Alignment> {
    let stat = rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN).ok()?;
    if stat.stx_mask & StatxFlags::DIOALIGN.bits() == 0 {
        return None;
    }
    sane(Alignment { memory: stat.stx_dio_mem_align, offset: stat.stx_dio_offset_align })
}

/// A file system that doesn't say 0, as it does where it can't, says powers of two.
fn sane(found: Alignment) -> Option<Alignment> {
    (found.memory.is_power_of_two() && found.offset.is_power_of_two()).then_some(found)
}

/// What a device with blocks of this size has to keep to that goes past the cache.
pub(super) fn with_blocks(
    found: Option<Alignment>,
    block_size: u32,
) -> Result<Alignment, OpenErrorKind> {
    let can = found.filter(|found| found.offset <= block_size);
    can.ok_or(OpenErrorKind::NotDirect { needs: found, block_size })
}

/// From now on what is done with the file goes past the cache.
pub(super) fn go(file: &File) -> io::Result<()> {
    let flags = rustix::fs::fcntl_getfl(file)?;
    Ok(rustix::fs::fcntl_setfl(file, flags | OFlags::DIRECT)?)
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
