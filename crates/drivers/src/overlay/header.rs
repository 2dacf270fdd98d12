//! The beginning of an overlay's file, and the place of each block in it. Pure.
//!
//! Both copies of the header are one sector with a checksum; `README.md` beside this file shows the
//! whole file.

use crate::bit_pages::{PAGE, PAGE_BITS};

/// Bytes of a sector, which a disk writes as a whole.
const SECTOR: usize = 512;
const MAGIC: &[u8; 8] = b"cw-over2";
/// Bytes of the magic in front of the number of the format.
const FORMAT: usize = 7;
/// Offset of the checksum in a header.
const CHECKSUM: usize = 8;
/// Bytes of a header that have a meaning.
const USED: usize = 80;
/// Distance of the two copies.
const COPY: u64 = 4096;
/// Offset of the first page of the directory.
pub(super) const HEADERS: u64 = 2 * COPY;
/// Smallest and largest block, as powers of two.
const SHIFTS: std::ops::RangeInclusive<u32> = 12..=20;
/// Largest size of an overlay, so that no sum of offsets overflows.
const LARGEST: u64 = 1 << 56;

/// A header: it describes the overlay, and says what its map means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Header {
    /// Identity of the overlay.
    pub(super) id: [u8; 16],
    /// Number that grows with each written header.
    pub(super) events: u64,
    /// Bytes of the overlay.
    pub(super) size: u64,
    /// Size of a block, as a power of two.
    pub(super) block_shift: u32,
    /// Change of the whole overlay that is under way.
    pub(super) change: WholeChange,
    /// The base; `None` once the overlay has every block.
    pub(super) base: Option<BaseIdentity>,
    /// True while all blocks of the base are being fetched.
    pub(super) flatten: bool,
    /// Number of pages of the directory: these were written.
    pub(super) directory: usize,
}

/// A change of a whole overlay, which the next start completes after a crash.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum WholeChange {
    /// The state without such a change.
    #[default]
    None,
    /// All own blocks are being given up.
    Reset,
    /// All own blocks are being copied to the base.
    Commit,
}

/// The means to recognize a base.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BaseIdentity {
    /// Bytes of the base.
    pub(super) size: u64,
    /// Checksum of its first bytes.
    pub(super) first: u32,
    /// Checksum of samples all over it.
    pub(super) samples: u32,
}

impl Header {
    /// Encodes the header in a piece of `piece` bytes, at least a sector.
    pub(super) fn encode(&self, piece: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(piece.max(SECTOR));
        bytes.extend(MAGIC);
        bytes.extend([0; 4]);
        bytes.extend(self.block_shift.to_le_bytes());
        bytes.extend(self.id);
        bytes.extend(self.events.to_le_bytes());
        bytes.extend(self.size.to_le_bytes());
        let change = match self.change {
            WholeChange::None => 0_u32,
            WholeChange::Reset => 1,
            WholeChange::Commit => 2,
        };
        bytes.extend(change.to_le_bytes());
        let flags = u32::from(self.base.is_some()) | u32::from(self.flatten) << 1;
        bytes.extend(flags.to_le_bytes());
        let base = self.base.unwrap_or(BaseIdentity { size: 0, first: 0, samples: 0 });
        bytes.extend(base.size.to_le_bytes());
        bytes.extend(base.first.to_le_bytes());
        bytes.extend(base.samples.to_le_bytes());
        bytes.extend((self.directory as u64).to_le_bytes());
        debug_assert_eq!(bytes.len(), USED);
        bytes.resize(piece.max(SECTOR), 0);
        let sum = crc32fast::hash(&bytes[..SECTOR]);
        bytes[CHECKSUM..CHECKSUM + 4].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// Decodes a piece; `None` if it holds no header that makes sense.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let sector = bytes.get(..SECTOR)?;
        let word = |at: usize| {
            u32::from_le_bytes([sector[at], sector[at + 1], sector[at + 2], sector[at + 3]])
        };
        let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
        let mut unsummed = sector.to_vec();
        unsummed[CHECKSUM..CHECKSUM + 4].fill(0);
        if !sector.starts_with(MAGIC) || crc32fast::hash(&unsummed) != word(CHECKSUM) {
            return None;
        }
        let mut id = [0; 16];
        id.copy_from_slice(&sector[16..32]);
        let change = match word(48) {
            0 => WholeChange::None,
            1 => WholeChange::Reset,
            2 => WholeChange::Commit,
            _ => return None,
        };
        let identity = BaseIdentity { size: long(56), first: word(64), samples: word(68) };
        let (base, flatten) = match word(52) {
            0 => (None, false),
            1 => (Some(identity), false),
            3 => (Some(identity), true),
            _ => return None,
        };
        let (events, size, block_shift) = (long(32), long(40), word(12));
        let directory = usize::try_from(long(72)).ok()?;
        let header = Self { id, events, size, block_shift, change, base, flatten, directory };
        let fits = |size: u64| size <= LARGEST && size % SECTOR as u64 == 0;
        let sane = SHIFTS.contains(&header.block_shift)
            && header.size != 0
            && fits(header.size)
            && fits(identity.size)
            && (base.is_some() || change == WholeChange::None);
        let sane = sane && {
            let layout = header.layout();
            directory <= layout.directories(layout.groups(header.size))
        };
        sane.then_some(header)
    }

    /// Returns true if a piece begins as a header does.
    pub(super) fn has_magic(bytes: &[u8]) -> bool {
        bytes.starts_with(MAGIC)
    }

    /// Returns true if a piece begins as a header of another format does.
    pub(super) fn has_other_format(bytes: &[u8]) -> bool {
        bytes.starts_with(&MAGIC[..FORMAT])
            && bytes.get(FORMAT).is_some_and(|byte| byte.is_ascii_digit() && *byte != MAGIC[FORMAT])
    }

    /// Returns the offset of a copy, 0 or 1.
    pub(super) fn copy_at(copy: u64) -> u64 {
        copy * COPY
    }

    pub(super) fn layout(&self) -> Layout {
        Layout { shift: self.block_shift }
    }
}

/// The places of blocks and of pages of the map in a file. Blocks are numbered from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    shift: u32,
}

impl Layout {
    /// Returns the layout for blocks of `block_size` bytes; `None` if that is no power of two from
    /// 4 KiB to 1 MiB.
    pub(super) fn new(block_size: u32) -> Option<Self> {
        let shift = block_size.checked_ilog2()?;
        let fits = block_size.is_power_of_two() && SHIFTS.contains(&shift);
        fits.then_some(Self { shift })
    }

    pub(super) fn shift(self) -> u32 {
        self.shift
    }

    /// Returns the bytes of a block.
    pub(super) fn block(self) -> u64 {
        1 << self.shift
    }

    /// Returns the bytes of the device that a group has.
    pub(super) fn group_bytes(self) -> u64 {
        (PAGE_BITS as u64) << self.shift
    }

    /// Returns the number of groups of a device of `size` bytes.
    pub(super) fn groups(self, size: u64) -> usize {
        size.div_ceil(self.group_bytes()) as usize
    }

    /// Returns the group of byte `offset` of the device. A division by a constant is cheap.
    #[inline]
    pub(super) fn group(self, offset: u64) -> usize {
        (offset >> self.shift) as usize / PAGE_BITS
    }

    /// Returns the end of the group of byte `offset`.
    pub(super) fn group_end(self, offset: u64) -> u64 {
        (self.group(offset) as u64 + 1) * self.group_bytes()
    }

    /// Returns the bit of byte `offset` in the page of its group.
    #[inline]
    pub(super) fn bit(self, offset: u64) -> usize {
        (offset >> self.shift) as usize % PAGE_BITS
    }

    /// Returns the place in the file of byte `offset` of the device.
    #[inline]
    pub(super) fn place(self, offset: u64) -> u64 {
        let group = self.group(offset);
        let pages = Self::directory_of(group) + 1 + group + 1;
        HEADERS + (pages * PAGE) as u64 + offset
    }

    /// Returns the place in the file of a group's page of the map.
    pub(super) fn page(self, group: usize) -> u64 {
        let pages = Self::directory_of(group) + 1 + group;
        HEADERS + (pages * PAGE) as u64 + group as u64 * self.group_bytes()
    }

    /// Returns the number of the page of the directory that names a group.
    #[inline]
    pub(super) fn directory_of(group: usize) -> usize {
        group / PAGE_BITS
    }

    /// Returns the number of pages of the directory for that many groups.
    pub(super) fn directories(self, groups: usize) -> usize {
        groups.div_ceil(PAGE_BITS)
    }

    /// Returns the place in the file of a page of the directory, in front of its groups.
    pub(super) fn directory(self, at: usize) -> u64 {
        self.page(at * PAGE_BITS) - PAGE as u64
    }

    /// Returns the size of the file for a device of `size` bytes.
    pub(super) fn file_size(self, size: u64) -> u64 {
        let groups = self.groups(size);
        let pages = self.directories(groups) + groups;
        HEADERS + (pages * PAGE) as u64 + size.next_multiple_of(self.block())
    }

    /// Returns true if a device of `size` bytes isn't too large.
    pub(super) fn takes(size: u64) -> bool {
        size <= LARGEST
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        Header {
            id: *b"0123456789abcdef",
            events: 7,
            size: 1 << 40,
            block_shift: 16,
            change: WholeChange::Commit,
            base: Some(BaseIdentity { size: 1 << 39, first: 1, samples: 2 }),
            flatten: true,
            directory: 1,
        }
    }

    #[test]
    fn a_header_is_read_as_it_was_written_and_no_bit_of_it_flips_unnoticed() {
        for piece in [512, 4096] {
            let bytes = header().encode(piece);
            assert_eq!((bytes.len(), Header::decode(&bytes)), (piece, Some(header())));
            for bit in 0..SECTOR * 8 {
                let mut bad = bytes.clone();
                bad[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(Header::decode(&bad), None, "bit {bit}");
            }
        }
        assert_eq!(Header::decode(&header().encode(512)[..511]), None);
    }

    #[test]
    fn a_header_that_makes_no_sense_is_none() {
        let bad = |spoil: fn(&mut Header)| {
            let mut header = header();
            spoil(&mut header);
            assert_eq!(Header::decode(&header.encode(512)), None);
        };
        bad(|header| header.size = 0);
        bad(|header| header.size = 513);
        bad(|header| header.size = u64::MAX - 511);
        bad(|header| header.block_shift = 11);
        bad(|header| header.block_shift = 21);
        bad(|header| header.base = Some(BaseIdentity { size: u64::MAX, first: 0, samples: 0 }));
        bad(|header| header.base = None);
        bad(|header| header.directory = 2);
    }

    #[test]
    fn no_two_blocks_or_pages_share_a_place_in_the_file() {
        for shift in [12, 16] {
            let layout = Layout { shift };
            let groups = PAGE_BITS as u64 + 3;
            let size = groups * layout.group_bytes() + 5 * layout.block() + 512;
            let mut end = HEADERS;
            for group in 0..layout.groups(size) {
                if group % PAGE_BITS == 0 {
                    assert_eq!(layout.directory(group / PAGE_BITS), end);
                    end += PAGE as u64;
                }
                assert_eq!(layout.page(group), end);
                end += PAGE as u64;
                let first = group as u64 * layout.group_bytes();
                let last = layout.group_end(first).min(size) - 1;
                assert_eq!((layout.place(first), layout.bit(first)), (end, 0));
                assert_eq!((layout.group(first), layout.group(last)), (group, group));
                end = layout.place(last) + 1;
            }
            let rest = size.next_multiple_of(layout.block()) - size;
            assert_eq!(layout.file_size(size), end + rest);
            assert_eq!(layout.groups(size) as u64, groups + 1);
        }
    }

    #[test]
    fn blocks_have_4_kib_to_1_mib() {
        let good = |size: u32| Layout::new(size).is_some();
        assert!([4096, 64 << 10, 1 << 20].into_iter().all(good));
        assert!(![0, 1, 2048, 4097, 2 << 20, u32::MAX].into_iter().any(good));
    }
}
