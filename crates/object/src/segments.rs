//! The segments that a map points to, how much of each is in use, and how much of all. Plain data.

use std::collections::BTreeMap;

/// A segment that the map points to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    /// The epoch of its writer, which is in its name.
    pub(crate) epoch: u64,
    /// What its frames are bound to.
    pub(crate) id: u128,
    /// Of the object.
    pub(crate) bytes: u64,
    /// Blocks that lay in it when it was published.
    pub(crate) blocks: u64,
    /// Blocks of it that the map points to.
    pub(crate) live: u64,
}

impl Segment {
    /// Bytes of it that are in use: in proportion, since a block has no size of its own.
    fn used(&self) -> u64 {
        match self.blocks {
            0 => 0,
            blocks => self.bytes.saturating_mul(self.live) / blocks,
        }
    }
}

/// Bytes of segments, and how many of them are in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sum {
    pub(crate) stored: u64,
    pub(crate) used: u64,
    /// Blocks that are in use.
    pub(crate) live: u64,
}

impl Sum {
    pub(crate) fn garbage(&self) -> u64 {
        self.stored.saturating_sub(self.used)
    }
}

/// What a volume's data takes in its store, in bytes, as the map has it that the store has: what is on its way there, or deleted and
/// not gone yet, isn't counted, nor are records and maps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoreSpace {
    /// Objects with data.
    pub segments: u64,
    /// Bytes of these objects, compressed as they are.
    pub stored: u64,
    /// Those of them that the volume has in use: in proportion to blocks, as a block has no size of its own.
    pub used: u64,
    /// The rest, which compaction gives back where it is much.
    pub garbage: u64,
}

/// All segments, by their numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Segments {
    all: BTreeMap<u64, Segment>,
    sum: Sum,
}

impl Segments {
    pub(crate) fn get(&self, segment: u64) -> Option<&Segment> {
        self.all.get(&segment)
    }

    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &Segment)> {
        self.all.iter().map(|(number, segment)| (*number, segment))
    }

    pub(crate) fn sum(&self) -> Sum {
        self.sum
    }

    pub(crate) fn space(&self) -> StoreSpace {
        let Sum { stored, used, .. } = self.sum;
        StoreSpace { segments: self.len() as u64, stored, used, garbage: self.sum.garbage() }
    }

    pub(crate) fn insert(&mut self, number: u64, segment: Segment) {
        self.sum.stored += segment.bytes;
        self.sum.used += segment.used();
        self.sum.live += segment.live;
        self.all.insert(number, segment);
    }

    pub(crate) fn remove(&mut self, number: u64) -> Option<Segment> {
        let segment = self.all.remove(&number)?;
        self.sum.stored -= segment.bytes;
        self.sum.used -= segment.used();
        self.sum.live -= segment.live;
        Some(segment)
    }

    /// The map points to so many blocks more, or fewer.
    pub(crate) fn change(&mut self, number: u64, by: i64) {
        let Some(segment) = self.all.get_mut(&number) else { return };
        self.sum.used -= segment.used();
        self.sum.live -= segment.live;
        segment.live = segment.live.saturating_add_signed(by);
        self.sum.used += segment.used();
        self.sum.live += segment.live;
    }
}
