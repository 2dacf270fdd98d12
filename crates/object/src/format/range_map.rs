//! A map from ranges of blocks to pieces, which are cut where a later one overlaps them. Plain data.

use std::collections::BTreeMap;

/// What stands for a range of blocks.
pub(crate) trait Piece: Clone {
    /// What stands for the rest of its range, from the block `by` on.
    fn behind(&self, by: u64) -> Self;

    /// Whether `next` is just what stands from the block `by` on, so that both can be one.
    fn goes_on(&self, _by: u64, _next: &Self) -> bool {
        false
    }
}

/// Ranges that don't overlap, in order.
#[derive(Clone, Debug)]
pub(crate) struct RangeMap<P> {
    /// By the first block: how many, and what stands for them.
    ranges: BTreeMap<u64, (u64, P)>,
}

impl<P> Default for RangeMap<P> {
    fn default() -> Self {
        Self { ranges: BTreeMap::new() }
    }
}

impl<P: Piece> RangeMap<P> {
    /// How many ranges there are.
    pub(crate) fn len(&self) -> usize {
        self.ranges.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// First block, number of blocks, and what stands for them, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, u64, &P)> {
        self.ranges.iter().map(|(start, (len, piece))| (*start, *len, piece))
    }

    /// Those that begin at a block or behind it, as `iter`.
    pub(crate) fn iter_from(&self, block: u64) -> impl Iterator<Item = (u64, u64, &P)> {
        self.ranges.range(block..).map(|(start, (len, piece))| (*start, *len, piece))
    }

    /// Empties a range. `lost` is told of each piece that was there, and of how many blocks.
    pub(crate) fn cut(&mut self, start: u64, len: u64, mut lost: impl FnMut(u64, &P)) {
        if len == 0 {
            return;
        }
        let end = start + len;
        let mut rest = None;
        if let Some((&first, (had, piece))) = self.ranges.range_mut(..start).next_back() {
            let stop = first + *had;
            if stop > start {
                lost(stop.min(end) - start, piece);
                *had = start - first;
                if stop > end {
                    rest = Some((stop - end, piece.behind(end - first)));
                }
            }
        }
        while let Some((&first, _)) = self.ranges.range(start..end).next() {
            let Some((had, piece)) = self.ranges.remove(&first) else { break };
            let stop = first + had;
            lost(stop.min(end) - first, &piece);
            if stop > end {
                rest = Some((stop - end, piece.behind(end - first)));
            }
        }
        if let Some(rest) = rest {
            self.ranges.insert(end, rest);
        }
    }

    /// Puts a piece in the place of all that was there, which `lost` is told.
    pub(crate) fn put(&mut self, start: u64, mut len: u64, piece: P, lost: impl FnMut(u64, &P)) {
        self.cut(start, len, lost);
        if len == 0 {
            return;
        }
        let end = start + len;
        if self.ranges.get(&end).is_some_and(|(_, next)| piece.goes_on(len, next)) {
            len += self.ranges.remove(&end).map_or(0, |(more, _)| more);
        }
        if let Some((&first, (had, before))) = self.ranges.range_mut(..start).next_back() {
            if first + *had == start && before.goes_on(*had, &piece) {
                *had += len;
                return;
            }
        }
        self.ranges.insert(start, (len, piece));
    }

    /// What a range consists of, gaps and all, in order: first block, number of blocks, and what stands for them.
    pub(crate) fn parts(&self, start: u64, len: u64) -> Vec<(u64, u64, Option<P>)> {
        let end = start + len;
        let mut parts = Vec::new();
        let mut at = start;
        let before = self.ranges.range(..start).next_back();
        for (&first, (had, piece)) in before.into_iter().chain(self.ranges.range(start..end)) {
            let stop = (first + had).min(end);
            if stop <= at {
                continue;
            }
            if first > at {
                parts.push((at, first - at, None));
                at = first;
            }
            parts.push((at, stop - at, Some(piece.behind(at - first))));
            at = stop;
        }
        if at < end {
            parts.push((at, end - at, None));
        }
        parts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The block that a piece began with, and how far behind it this is.
    #[derive(Clone, Debug, PartialEq)]
    struct Mark(u32, u64);

    impl Piece for Mark {
        fn behind(&self, by: u64) -> Self {
            Mark(self.0, self.1 + by)
        }

        fn goes_on(&self, by: u64, next: &Self) -> bool {
            self.behind(by) == *next
        }
    }

    #[test]
    fn ranges_agree_with_an_array_of_blocks() {
        let mut random = fastrand::Rng::with_seed(1);
        for _ in 0..200 {
            let mut map = RangeMap::default();
            let mut model = vec![None; 64];
            for n in 0..40 {
                let start = random.u64(0..64);
                let len = random.u64(0..=64 - start);
                let range = start as usize..(start + len) as usize;
                let had = model[range.clone()].iter().flatten().count() as u64;
                let mut lost = 0;
                if random.u8(0..3) == 0 {
                    map.cut(start, len, |blocks, _| lost += blocks);
                    model[range].fill(None);
                } else {
                    // Some go on with their neighbours, and are one with them.
                    let mark = Mark(n % 2, start);
                    map.put(start, len, mark.clone(), |blocks, _| lost += blocks);
                    for (by, block) in model[range].iter_mut().enumerate() {
                        *block = Some(mark.behind(by as u64));
                    }
                }
                assert_eq!(lost, had);
                let all: Vec<_> = map.iter().collect();
                assert!(all.windows(2).all(|two| {
                    let [(first, len, piece), (second, _, next)] = two else { return true };
                    first + len < *second || !piece.goes_on(*len, next)
                }));
                let (from, to) = (random.u64(0..32), random.u64(32..=64));
                let mut seen = Vec::new();
                for (first, len, piece) in map.parts(from, to - from) {
                    assert_eq!(first, from + seen.len() as u64);
                    seen.extend((0..len).map(|by| piece.as_ref().map(|piece| piece.behind(by))));
                }
                assert_eq!(seen, model[from as usize..to as usize]);
            }
        }
    }
}
