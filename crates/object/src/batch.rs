//! Writes that aren't in the store yet, and the segment and the record that they become.

use bytes::Bytes;

use crate::codec::{Codec, Spot};
use crate::format::{BLOCK, Changes, Entry, FRAME_BLOCKS, HEAD, Head, Kind, Place};
use crate::log::Writer;
use crate::range_map::{Piece, RangeMap};

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

impl Batch {
    /// The segment, and what its record says. Where there is no data there is no segment.
    pub(crate) fn segment(
        &self,
        seq: u64,
        writer: &Writer,
        codec: &Codec,
    ) -> (Vec<Bytes>, Changes) {
        let mut out = Segment::new(seq, writer, codec);
        (out.changes.through, out.changes.size) = (self.through, self.size);
        for (start, len, chunk) in self.chunks.iter() {
            match chunk {
                // A piece that was cut in front keeps the bytes behind its end.
                Chunk::Data(data) => out.add(start, data.slice(..(len * BLOCK) as usize)),
                Chunk::Zero => {
                    out.end_frame();
                    out.changes.entries.push(Entry { start, len, place: None });
                }
            }
        }
        out.finish()
    }
}

/// A segment under construction.
pub(crate) struct Segment<'a> {
    codec: &'a Codec,
    seq: u64,
    payload: Vec<Bytes>,
    bytes: u64,
    /// First block and data of the frame that isn't full.
    start: u64,
    blocks: u64,
    frame: Vec<Bytes>,
    changes: Changes,
}

impl<'a> Segment<'a> {
    pub(crate) fn new(seq: u64, writer: &Writer, codec: &'a Codec) -> Self {
        let sealed = codec.seal.is_some();
        let head = Head::new(Kind::Segment, (seq, *writer), sealed, &[]).encode();
        let changes = Changes { id: codec.random(), ..Changes::default() };
        Self {
            codec,
            seq,
            payload: vec![Bytes::copy_from_slice(&head)],
            bytes: HEAD as u64,
            start: 0,
            blocks: 0,
            frame: Vec::new(),
            changes,
        }
    }

    /// Adds whole blocks from the block `start` on.
    pub(crate) fn add(&mut self, mut start: u64, mut data: Bytes) {
        while !data.is_empty() {
            if start != self.start + self.blocks || self.blocks == FRAME_BLOCKS {
                self.end_frame();
                self.start = start;
            }
            let here = (data.len() as u64 / BLOCK).min(FRAME_BLOCKS - self.blocks);
            self.frame.push(data.split_to((here * BLOCK) as usize));
            self.blocks += here;
            start += here;
        }
    }

    /// What comes next begins a frame.
    pub(crate) fn end_frame(&mut self) {
        if self.blocks == 0 {
            return;
        }
        let at = u32::try_from(self.bytes).expect("a segment is small");
        let spot = Spot { id: self.changes.id, at, start: self.start };
        let stored = self.codec.frame(&spot, &mut self.frame, &mut self.payload);
        let place = Place { segment: self.seq, at, stored, skip: 0 };
        let entry = Entry { start: self.start, len: self.blocks, place: Some(place) };
        self.changes.entries.push(entry);
        self.bytes += u64::from(stored);
        self.blocks = 0;
    }

    pub(crate) fn finish(mut self) -> (Vec<Bytes>, Changes) {
        self.end_frame();
        if self.payload.len() == 1 {
            return (Vec::new(), self.changes);
        }
        (self.changes.segment, self.changes.bytes) = (self.seq, self.bytes);
        (self.payload, self.changes)
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
        let (payload, changes) = batch.segment(7, &WRITER, &codec);
        let all: Bytes = payload.concat().into();
        assert_eq!(changes.bytes, all.len() as u64);
        let ranges: Vec<_> = changes.entries.iter().map(|entry| (entry.start, entry.len)).collect();
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

    #[test]
    fn zeroes_alone_need_no_segment() {
        let mut batch = Batch::default();
        batch.chunks.put(0, 1 << 40, Chunk::Zero, |_, _| ());
        let codec = Codec::default();
        let (payload, changes) = batch.segment(7, &WRITER, &codec);
        assert!(payload.is_empty() && changes.segment == 0 && changes.entries.len() == 1);
    }
}
