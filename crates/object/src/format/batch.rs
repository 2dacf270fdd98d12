//! Writes that aren't in the store yet, and the segment and the record that they become.

use bytes::Bytes;

use super::codec::Codec;
use super::objects::{BLOCK, Changes, Entry, FRAME_BLOCKS, HEAD, Head, Kind, Place, Spot, Writer};
use super::range_map::{Piece, RangeMap};

/// What was written to a range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Chunk {
    Data(Bytes),
    Zero,
}

impl Chunk {
    /// What it counts for, of so many blocks: zeroes are one a request.
    pub(crate) fn blocks(&self, len: u64) -> usize {
        match self {
            Chunk::Data(_) => len as usize,
            Chunk::Zero => 1,
        }
    }

    /// Bytes of data in so many blocks.
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
    /// Blocks of data that came, also those that others have overwritten since; of zeroes, one a request.
    pub(crate) blocks: usize,
    /// The number of its last change in the volume's whole history.
    pub(crate) through: u64,
    /// Bytes of the volume from then on; 0: as before.
    pub(crate) size: u64,
}

/// A segment, with what its record says of it. Without a head, it lies in its record.
pub(crate) type Built = (Vec<Bytes>, Changes);

impl Batch {
    /// The segment, and what its record says. Where there is no data there is no segment; up to `inline` blocks of it lie in the record.
    pub(crate) fn segment(&self, seq: u64, writer: &Writer, codec: &Codec, inline: u64) -> Built {
        let mut out = SegmentBuilder::new(seq, codec);
        (out.changes.through, out.changes.size) = (self.through, self.size);
        for (start, len, chunk) in self.chunks.iter() {
            match chunk {
                // A piece that was cut in front keeps the bytes behind its end.
                Chunk::Data(data) => out.add(start, data.slice(..(len * BLOCK) as usize)),
                Chunk::Zero => out.changes.entries.push(Entry { start, len, place: None }),
            }
        }
        if out.blocks() <= inline { out.behind_record() } else { out.finish(writer) }
    }
}

/// A segment under construction.
pub(crate) struct SegmentBuilder<'a> {
    codec: &'a Codec,
    seq: u64,
    /// The data of each entry that has any, in their order.
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
            let goes_on = |last: &&mut Entry| {
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
                    // Where it lies is known once all are there.
                    let place = Some(Place { segment: self.seq, at: 0, stored: 0, skip: 0 });
                    self.changes.entries.push(Entry { start, len: here, place });
                    self.frames.push(vec![data.split_to((here * BLOCK) as usize)]);
                    here
                }
            };
            start += here;
        }
    }

    /// Blocks of data.
    fn blocks(&self) -> u64 {
        let data = self.changes.entries.iter().filter(|entry| entry.place.is_some());
        data.map(|entry| entry.len).sum()
    }

    /// As an object of its own.
    pub(crate) fn finish(self, writer: &Writer) -> Built {
        let sealed = self.codec.seal.is_some();
        let head = Head::new(Kind::Segment, (self.seq, *writer), sealed, &[]).encode();
        self.built(vec![Bytes::copy_from_slice(&head)], HEAD as u64)
    }

    /// As what lies behind its record's body, which is as long whatever the places in it are.
    fn behind_record(mut self) -> Built {
        self.changes.in_record = !self.frames.is_empty();
        let body = self.codec.stored(self.changes.encode().len());
        self.built(Vec::new(), (HEAD + body) as u64)
    }

    /// The frames behind so many bytes of the object, which begins with `payload`.
    fn built(self, mut payload: Vec<Bytes>, mut bytes: u64) -> Built {
        let Self { codec, seq, frames, mut changes } = self;
        if frames.is_empty() {
            return (Vec::new(), changes);
        }
        let entries = changes.entries.iter_mut().filter(|entry| entry.place.is_some());
        for (entry, mut frame) in entries.zip(frames) {
            let at = u32::try_from(bytes).expect("a segment is small");
            let spot = Spot { id: changes.id, at, start: entry.start };
            let stored = codec.frame(&spot, &mut frame, &mut payload);
            entry.place = Some(Place { segment: seq, at, stored, skip: 0 });
            bytes += u64::from(stored);
        }
        (changes.segment, changes.bytes) = (seq, bytes);
        (payload, changes)
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
                let spot = Spot { id: changes.id, at: place.at, start: entry.start };
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
}
