//! A device's geometry: its size, limits and abilities, as plain numbers.

/// The size, limits and abilities of a device. These are plain numbers, which don't change while
/// the device lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Size in bytes, a multiple of `block_size`.
    pub size: u64,
    /// Smallest unit of a request, in bytes: offsets and lengths are multiples of it. A power of
    /// two, from 512 to 32 MiB.
    pub block_size: u32,
    /// The size in bytes at which (and to multiples of which) the device works best.
    pub preferred: u32,
    /// The block that the device changes at once, in bytes: `block_size` times a power of two; less
    /// counts as `block_size`. Requests are split at multiples of it if that is possible.
    pub physical_block: u32,
    /// Maximum of bytes in one read or write.
    pub max_transfer: u32,
    /// Maximum of pieces of memory in one read or write.
    pub max_segments: u32,
    /// Maximum of bytes in one piece of memory; a larger one counts as several.
    pub max_segment_size: u32,
    /// Distance of boundaries in bytes that no read or write crosses (as the chunk of a stripe); 0:
    /// there are none.
    pub chunk: u32,
    /// Maximum of bytes in one discard.
    pub max_discard: u64,
    /// Maximum of bytes in one write-zeroes.
    pub max_write_zeroes: u64,
    /// Address and length of each piece of memory at which the device works best: a power of two up
    /// to 32 MiB, 1 if any will do. Buffers that a [`Queue`](crate::Queue) allocates are aligned to
    /// it.
    pub memory_alignment: u32,
    /// True if changes are refused.
    pub read_only: bool,
    /// True if there is something to flush. If false, a flush succeeds and does nothing: a
    /// completed write is as durable as it will ever be.
    pub can_flush: bool,
    /// True if a change can be made durable on its own (`fua`).
    pub can_fua: bool,
    /// True if discards free space. If false, a discard is refused as not supported.
    pub can_discard: bool,
    /// True if ranges can be zeroed without sending zeroes. If false, that is refused as not
    /// supported.
    pub can_write_zeroes: bool,
    /// True if a range can be zeroed in less time than zeroes are written in, at least sometimes.
    /// If not, a request that asks for that (`fast`) is refused as not supported, and nothing is
    /// changed.
    pub can_fast_zero: bool,
    /// True if there is a cache that a range can be read into beforehand. If false, that is refused
    /// as not supported.
    pub can_prefetch: bool,
    /// True if seeks cost time.
    pub rotational: bool,
}

/// The largest block, and the largest alignment.
const MOST: u32 = 32 << 20;

impl Geometry {
    /// Describes a writable device of `size` bytes with 512-byte blocks, 4 KiB preferred, transfers
    /// of up to 32 MiB and no other limit. It can do everything but fast zeroing and read-ahead.
    pub const fn new(size: u64) -> Self {
        Self {
            size,
            block_size: 512,
            preferred: 4096,
            physical_block: 512,
            max_transfer: 32 << 20,
            max_segments: u32::MAX,
            max_segment_size: u32::MAX,
            chunk: 0,
            max_discard: u64::MAX,
            max_write_zeroes: u64::MAX,
            memory_alignment: 1,
            read_only: false,
            can_flush: true,
            can_fua: true,
            can_discard: true,
            can_write_zeroes: true,
            can_fast_zero: false,
            can_prefetch: false,
            rotational: false,
        }
    }

    /// Returns a field that is out of its documented range, with the remedy; `None` if all are
    /// within. A [`Queue`](crate::Queue) isn't built for such a device, and a server doesn't export
    /// it.
    pub fn cannot_be(&self) -> Option<String> {
        let Self { size, block_size: block, physical_block: physical, memory_alignment, .. } =
            *self;
        if !block.is_power_of_two() || !(512..=MOST).contains(&block) {
            return Some(format!(
                "block_size is {block}, and no power of two from 512 to {MOST}; say 512 where the device has no blocks"
            ));
        }
        if size % u64::from(block) != 0 {
            let below = size - size % u64::from(block);
            return Some(format!(
                "size is {size}, and no multiple of block_size {block}; round it down, to {below}"
            ));
        }
        if physical > block && !physical.is_power_of_two() {
            return Some(format!(
                "physical_block is {physical}, and not block_size {block} times a power of two; say {block} where the device \
                 changes each block by itself"
            ));
        }
        if !memory_alignment.is_power_of_two() || memory_alignment > MOST {
            return Some(format!(
                "memory_alignment is {memory_alignment}, and no power of two up to {MOST}; say 1 where the device doesn't care"
            ));
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_device_can_be_is_told_with_what_to_say_instead() {
        let good = Geometry::new(1 << 30);
        assert_eq!(good.cannot_be(), None);
        assert_eq!(Geometry { physical_block: 0, ..good }.cannot_be(), None, "counts as a block");
        assert_eq!(Geometry { block_size: MOST, size: 1 << 40, ..good }.cannot_be(), None);
        let told = |g: Geometry, of: &str, instead: &str| {
            let why = g.cannot_be().unwrap_or_else(|| panic!("{g:?} was taken"));
            assert!(why.starts_with(of) && why.contains(instead), "{why}");
        };
        for block_size in [0, 1, 3, 256, 513, 1 << 26, u32::MAX] {
            told(Geometry { block_size, ..good }, "block_size", "say 512");
        }
        told(Geometry { size: 1000, ..good }, "size", "round it down, to 512");
        told(Geometry { size: u64::MAX, ..good }, "size", "round it down");
        for physical_block in [513, 700, u32::MAX] {
            told(Geometry { physical_block, ..good }, "physical_block", "say 512");
        }
        for memory_alignment in [0, 3, 1 << 31, u32::MAX] {
            told(Geometry { memory_alignment, ..good }, "memory_alignment", "say 1");
        }
    }
}
