//! Frames of a segment: a head with the checksum of the frame, and its blocks.
//!
//! A frame that is neither compressed nor sealed has a table with the checksum of each block behind
//! its head, so that a reader can fetch and verify single blocks. The checksum in the head covers
//! that table. Frames of format 5, and those that are compressed or sealed, have no table: the
//! checksum in the head covers all stored bytes.

use bytes::{Buf, BufMut, Bytes};

use super::objects::{BLOCK, Damaged};

/// Bytes of a frame's head.
pub(crate) const FRAME_HEAD: usize = 16;
/// Maximum blocks of a frame.
pub(crate) const FRAME_BLOCKS: u64 = 32;
/// Maximum bytes of a frame: incompressible data with a table, or with the overhead of encryption.
pub(crate) const FRAME_MOST: u32 =
    FRAME_HEAD as u32 + FRAME_BLOCKS as u32 * (BLOCK as u32 + SUM as u32) + 64;

/// Bytes of a block's checksum.
const SUM: usize = 4;
/// First bytes of a frame without a table.
const WHOLE: u32 = u32::from_le_bytes(*b"cwfr");
/// First bytes of a frame with a table.
const WITH_TABLE: u32 = u32::from_le_bytes(*b"cwfb");

const WRONG_SUM: &str = "the checksum of a frame is wrong";

/// The head of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrameHead {
    /// Compression method.
    pub(crate) how: u32,
    /// Number of decompressed blocks.
    pub(crate) blocks: u32,
}

impl FrameHead {
    /// Returns the data that a sealed frame is bound to, beside its nonce.
    pub(crate) fn place(&self, spot: &FrameAddress) -> Vec<u8> {
        let mut out = b"corewise frame 1".to_vec();
        out.put_slice(&spot.encode());
        out.put_u32_le(self.how);
        out.put_u32_le(self.blocks);
        out
    }

    /// Encodes the head of these bytes, with the checksum of both and of the frame's address.
    pub(crate) fn encode(&self, spot: &FrameAddress, stored: &[Bytes]) -> [u8; FRAME_HEAD] {
        let mut out = Vec::new();
        out.put_u32_le(WHOLE);
        out.put_u32_le(self.how);
        out.put_u32_le(self.blocks);
        let mut sum = summer(spot, &out);
        stored.iter().for_each(|part| sum.update(part));
        out.put_u32_le(sum.finalize());
        out.try_into().expect("so many bytes are these")
    }

    /// Decodes the head. Returns it with the bytes behind it, and behind a table.
    pub(crate) fn decode(spot: &FrameAddress, frame: &Bytes) -> Result<(Self, Bytes), Damaged> {
        let mut from = &frame[..];
        let (magic, how, blocks) =
            (from.try_get_u32_le()?, from.try_get_u32_le()?, from.try_get_u32_le()?);
        let sum = from.try_get_u32_le()?;
        if magic == WITH_TABLE {
            let sums = BlockSums::decode(spot, frame)?;
            let data = frame.slice(sums.front()..);
            if data.len() as u64 != sums.blocks() * BLOCK || !sums.fit(0, &data) {
                return Err(Damaged(WRONG_SUM.into()));
            }
            return Ok((Self { how, blocks }, data));
        }
        let stored = frame.slice(FRAME_HEAD..);
        let mut found = summer(spot, &frame[..FRAME_HEAD - SUM]);
        found.update(&stored);
        if magic != WHOLE || found.finalize() != sum {
            return Err(Damaged(WRONG_SUM.into()));
        }
        Ok((Self { how, blocks }, stored))
    }
}

fn summer(spot: &FrameAddress, head: &[u8]) -> crc32fast::Hasher {
    let mut sum = crc32fast::Hasher::new();
    sum.update(&spot.encode());
    sum.update(head);
    sum
}

/// The checksums of a frame's blocks.
pub(crate) struct BlockSums<'a> {
    table: &'a [u8],
}

impl BlockSums<'_> {
    /// Returns the number of blocks of a frame of `stored` bytes, if that is the length of a frame
    /// with a table. A frame without a table may have the same length.
    pub(crate) fn blocks_by_length(stored: u32) -> Option<u64> {
        let (data, each) = (u64::from(stored).checked_sub(FRAME_HEAD as u64)?, BLOCK + SUM as u64);
        (data % each == 0 && (1..=FRAME_BLOCKS).contains(&(data / each))).then_some(data / each)
    }

    /// Returns the bytes of the head and the table of a frame of `blocks` blocks.
    pub(crate) fn front_of(blocks: u64) -> usize {
        FRAME_HEAD + blocks as usize * SUM
    }

    /// Encodes the head and the table of these blocks.
    pub(crate) fn encode(spot: &FrameAddress, data: &[Bytes]) -> Vec<u8> {
        let blocks = || data.iter().flat_map(|part| part.chunks(BLOCK as usize));
        let mut head = Vec::new();
        head.put_u32_le(WITH_TABLE);
        head.put_u32_le(0);
        head.put_u32_le(blocks().count() as u32);
        let mut table = Vec::new();
        blocks().for_each(|block| table.put_u32_le(crc32fast::hash(block)));
        let mut sum = summer(spot, &head);
        sum.update(&table);
        head.put_u32_le(sum.finalize());
        head.extend_from_slice(&table);
        head
    }
}

impl<'a> BlockSums<'a> {
    /// Decodes the table from the first bytes of a frame.
    pub(crate) fn decode(spot: &FrameAddress, front: &'a [u8]) -> Result<Self, Damaged> {
        let mut from = front;
        let (magic, how, blocks) =
            (from.try_get_u32_le()?, from.try_get_u32_le()?, from.try_get_u32_le()?);
        let sum = from.try_get_u32_le()?;
        if magic != WITH_TABLE || how != 0 || u64::from(blocks) > FRAME_BLOCKS {
            return Err(Damaged("the frame has no valid table of checksums".into()));
        }
        let table = from.get(..blocks as usize * SUM);
        let table = table.ok_or_else(|| Damaged("the frame is shorter than its table".into()))?;
        let mut found = summer(spot, &front[..FRAME_HEAD - SUM]);
        found.update(table);
        if found.finalize() != sum {
            return Err(Damaged(WRONG_SUM.into()));
        }
        Ok(Self { table })
    }

    /// Returns the number of the frame's blocks.
    pub(crate) fn blocks(&self) -> u64 {
        (self.table.len() / SUM) as u64
    }

    /// Returns the bytes in front of the first block.
    pub(crate) fn front(&self) -> usize {
        Self::front_of(self.blocks())
    }

    /// Verifies whole blocks of the frame, from the block `first` on.
    pub(crate) fn fit(&self, first: u64, data: &[u8]) -> bool {
        let mut sums = self.table.chunks_exact(SUM).skip(first as usize);
        data.chunks(BLOCK as usize).all(|block| {
            sums.next().is_some_and(|sum| *sum == crc32fast::hash(block).to_le_bytes())
        })
    }
}

/// Address and owner of a frame. A frame that lies elsewhere than it was written is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrameAddress {
    /// The segment's id.
    pub(crate) id: u128,
    /// First byte of the frame in the segment.
    pub(crate) at: u32,
    /// First block of the frame.
    pub(crate) start: u64,
}

impl FrameAddress {
    /// Returns a frame's nonce. No two frames share one: segment ids are unique, and each address
    /// in a segment is used once.
    pub(crate) fn nonce(&self) -> [u8; 24] {
        let mut out = Vec::new();
        out.put_u128_le(self.id);
        out.put_u64_le(u64::from(self.at));
        out.try_into().expect("so many bytes are these")
    }

    /// Encodes the address as the checksum of a frame covers it.
    pub(crate) fn encode(&self) -> [u8; 28] {
        let mut out = [0; 28];
        out[..16].copy_from_slice(&self.id.to_le_bytes());
        out[16..20].copy_from_slice(&self.at.to_le_bytes());
        out[20..].copy_from_slice(&self.start.to_le_bytes());
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPOT: FrameAddress = FrameAddress { id: 1 << 99, at: 64, start: 700 };

    fn noise(blocks: u64) -> Bytes {
        let mut random = fastrand::Rng::with_seed(blocks);
        (0..blocks * BLOCK).map(|_| random.u8(..)).collect::<Vec<_>>().into()
    }

    #[test]
    fn each_block_is_verified_alone_and_no_changed_byte_or_other_block_passes() {
        let data = noise(3);
        let front = BlockSums::encode(&SPOT, &[data.slice(..4096), data.slice(4096..)]);
        assert_eq!(front.len(), BlockSums::front_of(3));
        let stored = (front.len() + data.len()) as u32;
        assert_eq!(BlockSums::blocks_by_length(stored), Some(3));
        let sums = BlockSums::decode(&SPOT, &front).unwrap();
        for n in 0..3 {
            let block = &data[n * 4096..][..4096];
            for first in 0..4 {
                assert_eq!(sums.fit(first, block), first == n as u64);
            }
            let mut changed = block.to_vec();
            changed[n * 1000] ^= 1;
            assert!(!sums.fit(n as u64, &changed));
        }
        assert!(sums.fit(1, &data[4096..]) && !sums.fit(2, &data[4096..]));
    }

    #[test]
    fn a_table_with_a_wrong_byte_or_of_another_frame_is_refused() {
        let front = BlockSums::encode(&SPOT, &[noise(2)]);
        for n in 0..front.len() {
            let mut changed = front.clone();
            changed[n] ^= 1 << (n % 8);
            assert!(BlockSums::decode(&SPOT, &changed).is_err(), "byte {n}");
            assert!(BlockSums::decode(&SPOT, &front[..n]).is_err(), "cut to {n}");
        }
        for wrong in [
            FrameAddress { id: 7, ..SPOT },
            FrameAddress { at: 4096, ..SPOT },
            FrameAddress { start: 701, ..SPOT },
        ] {
            assert!(BlockSums::decode(&wrong, &front).is_err());
        }
    }

    #[test]
    fn a_frame_of_format_5_has_one_checksum_and_is_read_as_before() {
        let data = noise(2);
        let head = FrameHead { how: 0, blocks: 2 };
        let frame: Bytes =
            [&head.encode(&SPOT, std::slice::from_ref(&data))[..], &data].concat().into();
        assert_eq!(BlockSums::blocks_by_length(frame.len() as u32), None);
        assert_eq!(FrameHead::decode(&SPOT, &frame), Ok((head, data)));
        assert!(BlockSums::decode(&SPOT, &frame).is_err());
    }
}
