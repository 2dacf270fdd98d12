//! Work: what a request asks of the device, judged against its geometry, and cut into pieces. Pure.
//!
//! A request may be as long as 126 segments of any length. It is executed in pieces, so the memory
//! that it takes at a time is bounded, and a long request doesn't keep others from the device.

use corewise_blockmq::{Geometry, Op};
use virtio_bindings::virtio_blk;

use super::chain::{RawRequest, Status, total};
use crate::config::{RANGE_SECTORS, RANGES, SECTOR};

/// Largest piece of a read or a write, in bytes.
pub(crate) const PIECE: u64 = 512 << 10;
/// Largest piece of a discard, or of zeroes, in bytes.
const PIECE_NOTED: u64 = 8 << 20;
/// Bytes of one range of a discard or write-zeroes, in the request's data.
pub(super) const RANGE_BYTES: usize = 16;
/// Bytes of the answer to `VIRTIO_BLK_T_GET_ID`.
pub(super) const ID_BYTES: usize = virtio_blk::VIRTIO_BLK_ID_BYTES as usize;
const UNMAP: u32 = virtio_blk::VIRTIO_BLK_WRITE_ZEROES_FLAG_UNMAP;

/// A request's kind, as far as it is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Io(Op),
    /// The guest asks for the disk's serial number.
    Id,
}

/// A range of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DiskRange {
    pub(super) offset: u64,
    pub(super) len: u64,
    /// True if a write-zeroes has to keep the range allocated.
    pub(super) no_unmap: bool,
}

/// A piece of the work, which becomes one request to the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) op: Op,
    pub(super) range: DiskRange,
    /// Number of the request's data bytes in front of this piece's.
    pub(super) skip: u64,
}

impl Piece {
    /// Returns the number of bytes that it moves.
    pub(super) fn bytes(&self) -> u64 {
        if self.op.has_bytes() { self.range.len } else { 0 }
    }
}

/// A request that is refused: its status, and the reason in words.
pub(super) type Refusal = (Status, &'static str);

const fn failed(why: &'static str) -> Refusal {
    (Status::Failed, why)
}

/// Returns the kind of a request, if this disk serves it.
pub(super) fn kind(
    raw: &RawRequest,
    geometry: &Geometry,
    read_only: bool,
) -> Result<Kind, Refusal> {
    let unsupported = (Status::Unsupported, "a request is of a kind that the disk doesn't have");
    let op = match raw.kind {
        virtio_blk::VIRTIO_BLK_T_IN => Op::Read,
        virtio_blk::VIRTIO_BLK_T_OUT => Op::Write,
        virtio_blk::VIRTIO_BLK_T_FLUSH => Op::Flush,
        virtio_blk::VIRTIO_BLK_T_GET_ID => return Ok(Kind::Id),
        virtio_blk::VIRTIO_BLK_T_DISCARD if geometry.can_discard => Op::Discard,
        virtio_blk::VIRTIO_BLK_T_WRITE_ZEROES if geometry.can_write_zeroes => Op::WriteZeroes,
        _ => return Err(unsupported),
    };
    if op.is_change() && (read_only || geometry.read_only) {
        return Err(failed("a request would change a read-only disk"));
    }
    Ok(Kind::Io(op))
}

/// The ranges of a request, and how far they have been cut into pieces.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Work {
    op: Op,
    ranges: Vec<DiskRange>,
    /// Index of the range that is being cut, and the bytes of it that have been.
    range: usize,
    cut: u64,
    /// True once a flush has been cut.
    flushed: bool,
}

impl Work {
    /// Makes the work of a request. `data` has the bytes of a discard or write-zeroes.
    pub(super) fn of(
        op: Op,
        raw: &RawRequest,
        data: &[u8],
        geometry: &Geometry,
    ) -> Result<Work, Refusal> {
        let ranges = match op {
            Op::Read => vec![one_range(raw.sector, total(&raw.input), geometry)?],
            Op::Write => vec![one_range(raw.sector, total(&raw.output), geometry)?],
            Op::Discard | Op::WriteZeroes => many_ranges(op, data, geometry)?,
            _ => Vec::new(),
        };
        Ok(Work { op, ranges, range: 0, cut: 0, flushed: false })
    }

    pub(super) fn op(&self) -> Op {
        self.op
    }

    /// Returns the next piece, which [`Work::advance`] takes off.
    pub(super) fn peek(&self) -> Option<Piece> {
        if self.op == Op::Flush {
            let range = DiskRange { offset: 0, len: 0, no_unmap: false };
            return (!self.flushed).then_some(Piece { op: self.op, range, skip: 0 });
        }
        let range = self.ranges.get(self.range)?;
        let most = if self.op.has_bytes() { PIECE } else { PIECE_NOTED };
        let len = (range.len - self.cut).min(most);
        let range = DiskRange { offset: range.offset + self.cut, len, no_unmap: range.no_unmap };
        Some(Piece { op: self.op, range, skip: self.cut })
    }

    /// Takes the next piece off.
    pub(super) fn advance(&mut self) {
        self.flushed = true;
        let Some(piece) = self.peek() else { return };
        self.cut += piece.range.len;
        if self.ranges.get(self.range).is_none_or(|range| self.cut >= range.len) {
            (self.range, self.cut) = (self.range + 1, 0);
        }
    }

    /// Gives up the rest.
    pub(super) fn give_up(&mut self) {
        self.flushed = true;
        self.range = self.ranges.len();
    }
}

/// Judges the range of a read or a write.
fn one_range(sector: u64, len: u64, geometry: &Geometry) -> Result<DiskRange, Refusal> {
    let block = u64::from(geometry.block_size.max(1));
    if len == 0 || len > u32::MAX.into() {
        return Err(failed("a request moves no bytes, or 4 GiB and more"));
    }
    let offset = sector.saturating_mul(SECTOR);
    if offset.checked_add(len).is_none_or(|end| end > geometry.size) {
        return Err(failed("a request reaches beyond the end of the disk"));
    }
    if (offset | len) % block != 0 {
        return Err(failed("a request covers a block in part"));
    }
    Ok(DiskRange { offset, len, no_unmap: false })
}

/// Judges the ranges of a discard or write-zeroes.
fn many_ranges(op: Op, data: &[u8], geometry: &Geometry) -> Result<Vec<DiskRange>, Refusal> {
    if data.is_empty() || data.len() % RANGE_BYTES != 0 {
        return Err(failed("a discard or write-zeroes has no whole range"));
    }
    if data.len() / RANGE_BYTES > RANGES as usize {
        return Err(failed("a discard or write-zeroes has more ranges than the disk allows"));
    }
    let range = |bytes: &[u8]| {
        let word = |at: usize| bytes[at..at + 4].try_into().map_or(0, u32::from_le_bytes);
        let sector = u64::from(word(0)) | u64::from(word(4)) << 32;
        let (sectors, flags) = (word(8), word(12));
        let known = if op == Op::WriteZeroes { UNMAP } else { 0 };
        if flags & !known != 0 {
            return Err((Status::Unsupported, "a discard or write-zeroes has unknown flags"));
        }
        if sectors > RANGE_SECTORS {
            return Err(failed("a discard or write-zeroes is longer than the disk allows"));
        }
        let range = one_range(sector, u64::from(sectors) * SECTOR, geometry)?;
        Ok(DiskRange { no_unmap: op == Op::WriteZeroes && flags & UNMAP == 0, ..range })
    };
    data.chunks_exact(RANGE_BYTES).map(range).collect()
}

#[cfg(test)]
mod tests {
    use vm_memory::GuestAddress;

    use super::super::chain::Span;
    use super::*;

    fn raw(kind: u32, sector: u64, len: u32) -> RawRequest {
        let spans = vec![Span { at: GuestAddress(0), len }];
        let (output, input) = if kind == 0 { (Vec::new(), spans) } else { (spans, Vec::new()) };
        RawRequest { kind, sector, output, input, status: GuestAddress(0) }
    }

    fn cut(mut work: Work) -> Vec<Piece> {
        let next = || {
            let piece = work.peek()?;
            work.advance();
            Some(piece)
        };
        std::iter::from_fn(next).collect()
    }

    const DISK: Geometry = Geometry::new(1 << 30);

    #[test]
    fn a_long_read_is_cut_into_pieces_that_follow_each_other() {
        let work = Work::of(Op::Read, &raw(0, 8, (2 * PIECE + 512) as u32), &[], &DISK).unwrap();
        let pieces = cut(work);
        let plain = |p: &Piece| (p.range.offset, p.range.len, p.skip);
        let wanted = [(4096, PIECE, 0), (4096 + PIECE, PIECE, PIECE)];
        assert_eq!(pieces.iter().take(2).map(plain).collect::<Vec<_>>(), wanted);
        assert_eq!(plain(&pieces[2]), (4096 + 2 * PIECE, 512, 2 * PIECE));
        assert_eq!(pieces.len(), 3);
    }

    #[test]
    fn a_flush_is_one_piece() {
        let work = Work::of(Op::Flush, &raw(4, 0, 0), &[], &DISK).unwrap();
        assert_eq!(cut(work).len(), 1);
    }

    #[test]
    fn a_range_that_is_empty_unaligned_or_outside_is_refused() {
        let big = Geometry { block_size: 4096, ..DISK };
        for (sector, len, disk) in [
            (0, 0, DISK),
            (0, 511, DISK),
            (1 << 21, 512, DISK),
            ((1 << 21) - 1, 1024, DISK),
            (u64::MAX, 512, DISK),
            (u64::MAX / 512, 512, DISK),
            (1, 4096, big),
            (0, 512, big),
        ] {
            let work = Work::of(Op::Read, &raw(0, sector, len), &[], &disk);
            assert_eq!(work.unwrap_err().0, Status::Failed, "{sector} {len}");
        }
    }

    fn range(sector: u64, sectors: u32, flags: u32) -> Vec<u8> {
        [&sector.to_le_bytes()[..], &sectors.to_le_bytes(), &flags.to_le_bytes()].concat()
    }

    #[test]
    fn each_range_of_a_discard_or_write_zeroes_is_a_piece_of_its_own() {
        let data = [range(0, 8, 0), range(16, 8, UNMAP)].concat();
        let work = Work::of(Op::WriteZeroes, &raw(13, 0, 0), &data, &DISK).unwrap();
        let pieces = cut(work);
        let plain = |p: &Piece| (p.range.offset, p.range.len, p.range.no_unmap);
        let found: Vec<_> = pieces.iter().map(plain).collect();
        assert_eq!(found, [(0, 4096, true), (8192, 4096, false)]);
        let long = range(0, RANGE_SECTORS.min(1 << 20), 0);
        let work = Work::of(Op::Discard, &raw(11, 0, 0), &long, &DISK).unwrap();
        assert_eq!(cut(work).len(), 64);
    }

    #[test]
    fn ranges_that_are_no_ranges_are_refused() {
        let of = |op, data: &[u8]| Work::of(op, &raw(11, 0, 0), data, &DISK).map_err(|e| e.0);
        for data in [
            Vec::new(),
            vec![0; 15],
            range(0, 8, 0).repeat(RANGES as usize + 1),
            range(0, 0, 0),
            range(0, RANGE_SECTORS + 1, 0),
            range(1 << 21, 1, 0),
            range(u64::MAX, u32::MAX, 0),
        ] {
            assert_eq!(of(Op::Discard, &data), Err(Status::Failed), "{data:?}");
        }
        for (op, flags) in [(Op::Discard, UNMAP), (Op::WriteZeroes, 2), (Op::Discard, 1 << 31)] {
            assert_eq!(of(op, &range(0, 8, flags)), Err(Status::Unsupported));
        }
    }

    #[test]
    fn a_kind_that_the_device_does_not_have_is_unsupported() {
        let none = Geometry { can_discard: false, can_write_zeroes: false, ..DISK };
        for unknown in [2, 3, 5, 11, 13, 14, 15, 0x8000_0000, u32::MAX] {
            let kind = kind(&raw(unknown, 0, 0), &none, false);
            assert_eq!(kind.unwrap_err().0, Status::Unsupported, "{unknown}");
        }
        assert_eq!(kind(&raw(1, 0, 0), &DISK, true).unwrap_err().0, Status::Failed);
        assert_eq!(kind(&raw(4, 0, 0), &DISK, true), Ok(Kind::Io(Op::Flush)));
    }
}
