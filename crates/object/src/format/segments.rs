//! The segments that a map points to, how much of each is in use, and how much of all. Plain data.

use std::collections::BTreeMap;

use super::names;

/// A segment that the map points to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    /// Whose it is: 0: the volume's own; else that of an ancestor, by its place in [`Origin::homes`](crate::format::Origin), from 1 on.
    pub(crate) home: u32,
    /// Its number in its name: the map's own, unless it is an ancestor's.
    pub(crate) number: u64,
    /// The epoch of its writer, which is in its name.
    pub(crate) epoch: u64,
    /// The record by which it came; 0: it is an ancestor's, and was there from the beginning.
    pub(crate) born: u64,
    /// What its frames are bound to.
    pub(crate) id: u128,
    /// Whether it lies in its record, behind the body: it is no object of its own.
    pub(crate) in_record: bool,
    /// Of the object.
    pub(crate) bytes: u64,
    /// Blocks that lay in it when it was published.
    pub(crate) blocks: u64,
    /// Blocks of it that the map points to.
    pub(crate) live: u64,
}

impl Segment {
    /// The object where it lies.
    pub(crate) fn name(&self) -> String {
        if self.in_record {
            names::record(self.number)
        } else {
            names::segment(self.number, self.epoch)
        }
    }

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
    /// Segments.
    pub(crate) count: u64,
}

impl Sum {
    fn add(&mut self, segment: &Segment) {
        self.stored += segment.bytes;
        self.used += segment.used();
        self.live += segment.live;
        self.count += 1;
    }

    fn take(&mut self, segment: &Segment) {
        self.stored -= segment.bytes;
        self.used -= segment.used();
        self.live -= segment.live;
        self.count -= 1;
    }

    pub(crate) fn garbage(&self) -> u64 {
        self.stored.saturating_sub(self.used)
    }
}

/// What a volume's data takes in its store, in bytes, as the map has it that the store has: what is on its way there, or deleted and
/// not gone yet, isn't counted, nor are records without data and maps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoreSpace {
    /// Objects with data.
    pub segments: u64,
    /// Bytes of these objects, compressed as they are.
    pub stored: u64,
    /// Those of them that the volume has in use: in proportion to blocks, as a block has no size of its own.
    pub used: u64,
    /// Those that aren't in use, and can't be given back before snapshots are deleted.
    pub snapshots: u64,
    /// The rest, which compaction gives back where it is much.
    pub garbage: u64,
    /// Bytes that the volume has in use in segments of those that it is a clone of; `stored` has none of them.
    pub shared: u64,
}

/// All segments, by their numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Segments {
    all: BTreeMap<u64, Segment>,
    /// Those that the map points to no more, and that a snapshot needs.
    kept: BTreeMap<u64, Kept>,
    /// The newest snapshot; 0: none.
    newest: u64,
    loose: Sum,
    held: Sum,
    /// Of ancestors' segments.
    shared: Sum,
    /// Of kept ones that are the volume's own.
    kept_sum: Sum,
}

/// A segment that only snapshots need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kept {
    pub(crate) segment: Segment,
    /// The record since which the map doesn't point to it.
    pub(crate) died: u64,
}

impl Kept {
    /// Whether a snapshot with this number has it.
    fn is_in(&self, snapshot: u64) -> bool {
        snapshot != 0 && (self.segment.born..self.died).contains(&snapshot)
    }
}

impl Segments {
    pub(crate) fn get(&self, segment: u64) -> Option<&Segment> {
        self.all.get(&segment)
    }

    /// One that the map or a snapshot needs.
    pub(crate) fn needed(&self, segment: u64) -> Option<&Segment> {
        self.get(segment).or_else(|| self.kept.get(&segment).map(|kept| &kept.segment))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &Segment)> {
        self.all.iter().map(|(number, segment)| (*number, segment))
    }

    pub(crate) fn kept(&self) -> impl Iterator<Item = (u64, &Kept)> {
        self.kept.iter().map(|(number, kept)| (*number, kept))
    }

    /// Those that no snapshot holds: moving what lies there gives space back.
    pub(crate) fn loose(&self) -> impl Iterator<Item = (u64, &Segment)> {
        self.iter().filter(|(_, segment)| segment.home == 0 && !self.holds(segment))
    }

    /// Of those that no snapshot holds.
    pub(crate) fn sum(&self) -> Sum {
        self.loose
    }

    pub(crate) fn space(&self) -> StoreSpace {
        let (loose, held) = (self.loose, self.held);
        StoreSpace {
            segments: loose.count + held.count + self.kept_sum.count,
            stored: loose.stored + held.stored + self.kept_sum.stored,
            used: loose.used + held.used,
            snapshots: held.garbage() + self.kept_sum.stored,
            garbage: loose.garbage(),
            shared: self.shared.used,
        }
    }

    /// Whether the volume needs nothing of its ancestors any more.
    pub(crate) fn is_alone(&self) -> bool {
        self.shared.count == 0 && self.kept.values().all(|kept| kept.segment.home == 0)
    }

    fn holds(&self, segment: &Segment) -> bool {
        segment.born <= self.newest
    }

    fn count(&mut self, segment: Segment, is: bool) {
        let sum = match segment.home {
            0 if self.holds(&segment) => &mut self.held,
            0 => &mut self.loose,
            _ => &mut self.shared,
        };
        if is { sum.add(&segment) } else { sum.take(&segment) }
    }

    pub(crate) fn insert(&mut self, number: u64, segment: Segment) {
        self.count(segment, true);
        self.all.insert(number, segment);
    }

    /// One that the map points to no more since record `died`. It, if no snapshot needs it.
    pub(crate) fn remove(&mut self, number: u64, died: u64) -> Option<Segment> {
        let segment = self.all.remove(&number)?;
        self.count(segment, false);
        let kept = Kept { segment, died };
        if kept.is_in(self.newest) {
            self.keep(number, kept);
            return None;
        }
        Some(segment)
    }

    pub(crate) fn keep(&mut self, number: u64, kept: Kept) {
        if kept.segment.home == 0 {
            self.kept_sum.add(&Segment { live: 0, ..kept.segment });
        }
        self.kept.insert(number, kept);
    }

    /// These are the snapshots from now on. The segments that none of them needs, and the map neither.
    pub(crate) fn snapshots(
        &mut self,
        all: impl DoubleEndedIterator<Item = u64> + Clone,
    ) -> Vec<Segment> {
        self.newest = all.clone().next_back().unwrap_or(0);
        (self.loose, self.held, self.shared) = Default::default();
        let segments: Vec<Segment> = self.all.values().copied().collect();
        segments.into_iter().for_each(|segment| self.count(segment, true));
        let gone = |kept: &Kept| !all.clone().any(|snapshot| kept.is_in(snapshot));
        let gone = self.kept.iter().filter(|(_, kept)| gone(kept));
        let gone: Vec<(u64, Segment)> =
            gone.map(|(number, kept)| (*number, kept.segment)).collect();
        for (number, segment) in &gone {
            self.kept.remove(number);
            if segment.home == 0 {
                self.kept_sum.take(&Segment { live: 0, ..*segment });
            }
        }
        gone.into_iter().map(|(_, segment)| segment).collect()
    }

    /// The map points to so many blocks more, or fewer.
    pub(crate) fn change(&mut self, number: u64, by: i64) {
        let Some(&segment) = self.all.get(&number) else { return };
        let live = segment.live.saturating_add_signed(by);
        self.count(segment, false);
        self.insert(number, Segment { live, ..segment });
    }
}
