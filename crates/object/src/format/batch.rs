//! Writes that aren't in the store yet, and the segment and the record that they become.
//!
//! Their chunks lie in a [`RangeMap`]: a map from ranges of blocks to pieces, which are cut where a
//! later one overlaps them.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::codec::Codec;
use super::frame::{FRAME_BLOCKS, FrameAddress};
use super::objects::{BLOCK, BlockPlace, Changes, HEAD, Head, Kind, MapEntry, Writer};

/// Content that was written to a range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Chunk {
    Data(Bytes),
    Zero,
}

impl Chunk {
    /// Returns the blocks that it counts for, of `len` blocks: zeroes are one a request.
    pub(crate) fn blocks(&self, len: u64) -> usize {
        match self {
            Chunk::Data(_) => len as usize,
            Chunk::Zero => 1,
        }
    }

    /// Returns the bytes of data in `len` blocks.
    pub(crate) fn bytes(&self, len: u64) -> u64 {
        match self {
            Chunk::Data(_) => len * BLOCK,
            Chunk::Zero => 0,
        }
    }
}

impl Piece for Chunk {
    fn behind(&self, by: u64) -> Self {
        match self {
            Chunk::Data(data) => Chunk::Data(data.slice((by * BLOCK) as usize..)),
            Chunk::Zero => Chunk::Zero,
        }
    }
}

/// Writes that become durable together.
#[derive(Clone, Debug, Default)]
pub(crate) struct Batch {
    pub(crate) chunks: RangeMap<Chunk>,
    /// Blocks of data that were written, including those that were overwritten since; zeroes count
    /// as one a request.
    pub(crate) blocks: usize,
    /// The number of its last change in the volume's whole history.
    pub(crate) through: u64,
    /// New size of the volume in bytes. 0: unchanged.
    pub(crate) size: u64,
}

/// A segment, with the content of its record. Without a head, the segment lies in its record.
pub(crate) type BuiltSegment = (Vec<Bytes>, Changes);

impl Batch {
    /// Builds the segment and the content of its record. Without data there is no segment; up to
    /// `inline` blocks of data lie in the record.
    pub(crate) fn segment(
        &self,
        seq: u64,
        writer: &Writer,
        codec: &Codec,
        inline: u64,
    ) -> BuiltSegment {
        let mut out = SegmentBuilder::new(seq, codec);
        (out.changes.through, out.changes.size) = (self.through, self.size);
        for (start, len, chunk) in self.chunks.iter() {
            match chunk {
                // A piece that was cut at its end keeps the bytes behind it.
                Chunk::Data(data) => out.add(start, data.slice(..(len * BLOCK) as usize)),
                Chunk::Zero => out.changes.entries.push(MapEntry { start, len, place: None }),
            }
        }
        if out.blocks() <= inline { out.behind_record() } else { out.finish(writer) }
    }
}

/// A segment under construction.
pub(crate) struct SegmentBuilder<'a> {
    codec: &'a Codec,
    seq: u64,
    /// The data of each entry that has any, in the order of the entries.
    frames: Vec<Vec<Bytes>>,
    changes: Changes,
}

impl<'a> SegmentBuilder<'a> {
    pub(crate) fn new(seq: u64, codec: &'a Codec) -> Self {
        let changes = Changes { id: codec.random(), ..Changes::default() };
        Self { codec, seq, frames: Vec::new(), changes }
    }

    /// Adds whole blocks from the block `start` on.
    pub(crate) fn add(&mut self, mut start: u64, mut data: Bytes) {
        while !data.is_empty() {
            let blocks = data.len() as u64 / BLOCK;
            let goes_on = |last: &&mut MapEntry| {
                last.place.is_some() && last.start + last.len == start && last.len < FRAME_BLOCKS
            };
            let last = self.changes.entries.last_mut().filter(goes_on);
            let here = match (last, self.frames.last_mut()) {
                (Some(last), Some(frame)) => {
                    let here = blocks.min(FRAME_BLOCKS - last.len);
                    last.len += here;
                    frame.push(data.split_to((here * BLOCK) as usize));
                    here
                }
                _ => {
                    let here = blocks.min(FRAME_BLOCKS);
                    // The address is known once all are there.
                    let place = Some(BlockPlace { segment: self.seq, at: 0, stored: 0, skip: 0 });
                    self.changes.entries.push(MapEntry { start, len: here, place });
                    self.frames.push(vec![data.split_to((here * BLOCK) as usize)]);
                    here
                }
            };
            start += here;
        }
    }

    /// Returns the number of blocks of data.
    fn blocks(&self) -> u64 {
        let data = self.changes.entries.iter().filter(|entry| entry.place.is_some());
        data.map(|entry| entry.len).sum()
    }

    /// Builds the segment as an object of its own.
    pub(crate) fn finish(self, writer: &Writer) -> BuiltSegment {
        let sealed = self.codec.seal.is_some();
        let head = Head::new(Kind::Segment, (self.seq, *writer), sealed, &[]).encode();
        self.built(vec![Bytes::copy_from_slice(&head)], HEAD as u64)
    }

    /// Builds the segment as data behind its record's body, which has the same length whatever
    /// addresses are in it.
    fn behind_record(mut self) -> BuiltSegment {
        self.changes.in_record = !self.frames.is_empty();
        let body = self.codec.stored(self.changes.encode().len());
        self.built(Vec::new(), (HEAD + body) as u64)
    }

    /// Puts the frames behind the first `bytes` bytes of the object, which begins with `payload`.
    fn built(self, mut payload: Vec<Bytes>, mut bytes: u64) -> BuiltSegment {
        let Self { codec, seq, frames, mut changes } = self;
        if frames.is_empty() {
            return (Vec::new(), changes);
        }
        let entries = changes.entries.iter_mut().filter(|entry| entry.place.is_some());
        for (entry, mut frame) in entries.zip(frames) {
            let at = u32::try_from(bytes).expect("a segment is small");
            let spot = FrameAddress { id: changes.id, at, start: entry.start };
            let stored = codec.frame(&spot, &mut frame, &mut payload);
            entry.place = Some(BlockPlace { segment: seq, at, stored, skip: 0 });
            bytes += u64::from(stored);
        }
        (changes.segment, changes.bytes) = (seq, bytes);
        (payload, changes)
    }
}

/// The content of a range of blocks.
pub(crate) trait Piece: Clone {
    /// Returns the content of the rest of its range, from the block `by` on.
    fn behind(&self, by: u64) -> Self;

    /// Returns true if `next` is exactly its content from the block `by` on, so that both can be
    /// merged.
    fn goes_on(&self, _by: u64, _next: &Self) -> bool {
        false
    }
}

/// An ordered map of ranges that don't overlap.
#[derive(Clone, Debug)]
pub(crate) struct RangeMap<P> {
    /// Ranges by their first block: length and content.
    ranges: BTreeMap<u64, (u64, P)>,
}

impl<P> Default for RangeMap<P> {
    fn default() -> Self {
        Self { ranges: BTreeMap::new() }
    }
}

impl<P: Piece> RangeMap<P> {
    /// Returns the number of ranges.
    pub(crate) fn len(&self) -> usize {
        self.ranges.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Returns first block, number of blocks and content of each range, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, u64, &P)> {
        self.ranges.iter().map(|(start, (len, piece))| (*start, *len, piece))
    }

    /// Returns the ranges that begin at a block or behind it, as `iter`.
    pub(crate) fn iter_from(&self, block: u64) -> impl Iterator<Item = (u64, u64, &P)> {
        self.ranges.range(block..).map(|(start, (len, piece))| (*start, *len, piece))
    }

    /// Empties a range. `lost` gets each piece that was there, and its number of blocks.
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

    /// Replaces a range by a piece. `lost` gets what was there.
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

    /// Returns the parts of a range, including gaps, in order: first block, number of blocks, and
    /// content.
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

    const WRITER: Writer = Writer { epoch: 1, nonce: 9 };

    fn data(blocks: u64, with: u8) -> Bytes {
        vec![with; (blocks * BLOCK) as usize].into()
    }

    #[test]
    fn neighbours_share_frames_and_each_entry_finds_its_data() {
        let mut batch = Batch::default();
        batch.chunks.put(10, 30, Chunk::Data(data(30, 1)), |_, _| ());
        batch.chunks.put(40, 5, Chunk::Data(data(5, 2)), |_, _| ());
        batch.chunks.put(45, 1, Chunk::Zero, |_, _| ());
        batch.chunks.put(12, 1, Chunk::Data(data(1, 3)), |_, _| ());
        let codec = Codec::default();
        for inline in [0, 35] {
            let (payload, changes) = batch.segment(7, &WRITER, &codec, inline);
            assert_eq!(changes.in_record, inline != 0);
            let in_front = if inline == 0 { 0 } else { HEAD + changes.encode().len() };
            let all: Bytes = [vec![0; in_front], payload.concat()].concat().into();
            assert_eq!(changes.bytes, all.len() as u64);
            let ranges: Vec<_> =
                changes.entries.iter().map(|entry| (entry.start, entry.len)).collect();
            assert_eq!(ranges, [(10, 32), (42, 3), (45, 1)]);
            let mut found = Vec::new();
            for entry in &changes.entries {
                let Some(place) = entry.place else { continue };
                let spot = FrameAddress { id: changes.id, at: place.at, start: entry.start };
                let frame = all.slice(place.at as usize..(place.at + place.stored) as usize);
                found.extend_from_slice(&codec.data(&spot, &frame).unwrap());
            }
            let expected = [data(2, 1), data(1, 3), data(27, 1), data(5, 2)].concat();
            assert!(found == expected);
            assert_eq!(changes.entries[2].place, None);
        }
    }

    #[test]
    fn zeroes_alone_need_no_segment() {
        let mut batch = Batch::default();
        batch.chunks.put(0, 1 << 40, Chunk::Zero, |_, _| ());
        let codec = Codec::default();
        let (payload, changes) = batch.segment(7, &WRITER, &codec, 64);
        assert!(payload.is_empty() && changes.segment == 0 && changes.entries.len() == 1);
    }

    /// The block that a piece began with, and the distance of this part from it.
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
                    // Some pieces continue their neighbours, and are merged with them.
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
