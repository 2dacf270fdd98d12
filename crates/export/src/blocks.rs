//! Ranges of bytes against blocks of a device: which blocks a range covers whole, and which in
//! part. Pure.

use std::ops::Range;

/// Returns the whole blocks around a range.
pub fn around(offset: u64, len: u64, block: u64) -> Range<u64> {
    offset / block * block..(offset + len).next_multiple_of(block)
}

/// Returns the whole blocks inside a range, or `None` if there are none.
pub fn inside(offset: u64, len: u64, block: u64) -> Option<Range<u64>> {
    let range = offset.next_multiple_of(block)..(offset + len) / block * block;
    (range.start < range.end).then_some(range)
}

/// Returns the number of blocks that a range covers in part.
pub fn partial_blocks(offset: u64, len: u64, block: u64) -> u64 {
    let blocks = |range: Range<u64>| (range.end - range.start) / block;
    blocks(around(offset, len, block)) - inside(offset, len, block).map_or(0, blocks)
}

/// Returns the end of the piece of a request that begins at `from`. A piece ends at a multiple of
/// `piece`, and at both ends of a block that the request covers in part.
pub fn piece_end(from: u64, end: u64, piece: u64, block: u64) -> u64 {
    // The last multiples may lie beyond all offsets.
    let next = |of: u64| (from / of * of).saturating_add(of);
    if from % block != 0 {
        return end.min(next(block));
    }
    let to = end.min(next(piece.max(block)));
    let whole = to - to % block;
    if whole > from { whole } else { to }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_cut_where_it_covers_a_block_in_part() {
        assert_eq!(around(511, 2, 512), 0..1024);
        assert_eq!(around(512, 512, 512), 512..1024);
        assert_eq!(inside(511, 2, 512), None);
        assert_eq!(inside(1, 1024, 512), Some(512..1024));
        for (offset, len, count) in [(0, 512, 0), (1, 10, 1), (511, 2, 2), (0, 513, 1), (1, 511, 1)]
        {
            assert_eq!(partial_blocks(offset, len, 512), count, "{offset} {len}");
        }
        let pieces = |offset, end| {
            let mut ends = vec![offset];
            while *ends.last().unwrap() < end {
                ends.push(piece_end(*ends.last().unwrap(), end, 2048, 512));
            }
            ends
        };
        assert_eq!(pieces(0, 512), [0, 512]);
        assert_eq!(pieces(5, 10), [5, 10]);
        assert_eq!(pieces(511, 513), [511, 512, 513]);
        assert_eq!(pieces(511, 4100), [511, 512, 2048, 4096, 4100]);
        assert_eq!(pieces(512, 4096), [512, 2048, 4096]);
        // A block that is larger than a piece.
        assert_eq!(piece_end(0, 8192, 512, 4096), 4096);
    }
}
