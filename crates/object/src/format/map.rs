//! The map: the address of each block of a volume, and the use of each segment. Plain data.
//! [`Segments`] are those that it points to.

use std::collections::{BTreeMap, HashMap};

use super::batch::{Piece, RangeMap};
use super::objects::{
    BlockPlace, Changes, MapEntry, Opening, SegmentRecord, SnapshotRecord, WholeMap,
};
use crate::format::names;

impl Piece for BlockPlace {
    fn behind(&self, by: u64) -> Self {
        BlockPlace { skip: self.skip + by as u32, ..*self }
    }

    fn goes_on(&self, by: u64, next: &Self) -> bool {
        self.behind(by) == *next
    }
}

/// Returns the current changes of a record: of a move, only blocks that are still at their previous
/// address.
fn still(places: &RangeMap<BlockPlace>, changes: &Changes) -> Vec<MapEntry> {
    if changes.moved.is_empty() {
        return changes.entries.clone();
    }
    let mut new = RangeMap::default();
    for entry in &changes.entries {
        if let Some(place) = entry.place {
            new.put(entry.start, entry.len, place, |_, _| ());
        }
    }
    let mut entries = Vec::new();
    for was in &changes.moved {
        for (start, len, found) in places.parts(was.start, was.len) {
            let Some(place) = was.place else { continue };
            if found == Some(place.behind(start - was.start)) {
                let moved = new.parts(start, len).into_iter();
                let moved = moved.filter(|(_, _, place)| place.is_some());
                entries.extend(moved.map(|(start, len, place)| MapEntry { start, len, place }));
            }
        }
    }
    entries
}

/// Bit in a segment's number, in the map of a clone, that marks an ancestor's segment.
const SHARED: u64 = 1 << 62;

/// Addresses of all blocks.
#[derive(Clone, Debug, Default)]
pub(crate) struct Map {
    pub(crate) places: RangeMap<BlockPlace>,
    pub(crate) segments: Segments,
    /// The snapshots, by the numbers of the records by which they were taken.
    pub(crate) snapshots: BTreeMap<u64, SnapshotRecord>,
}

impl Map {
    /// Applies record `seq`. Returns the segments that are no longer needed.
    pub(crate) fn apply(&mut self, seq: u64, epoch: u64, changes: &Changes) -> Vec<Segment> {
        let mut touched = Vec::new();
        if changes.segment != 0 {
            let ours =
                |entry: &&MapEntry| entry.place.is_some_and(|at| at.segment == changes.segment);
            let blocks = changes.entries.iter().filter(ours).map(|entry| entry.len).sum();
            let &Changes { bytes, id, in_record, .. } = changes;
            let (home, number, born, live) = (0, changes.segment, seq, 0);
            let segment = Segment { home, number, epoch, born, id, in_record, bytes, blocks, live };
            self.segments.insert(number, segment);
            touched.push(changes.segment);
        }
        let segments = &mut self.segments;
        let places = &mut self.places;
        for entry in self::still(places, changes) {
            let lost = |blocks: u64, place: &BlockPlace| {
                segments.change(place.segment, -(blocks as i64));
                touched.push(place.segment);
            };
            match entry.place {
                Some(place) => {
                    places.put(entry.start, entry.len, place, lost);
                    segments.change(place.segment, entry.len as i64);
                }
                None => places.cut(entry.start, entry.len, lost),
            }
        }
        touched.sort_unstable();
        touched.dedup();
        touched.retain(|number| self.segments.get(*number).is_some_and(|found| found.live == 0));
        let dead = touched.into_iter();
        let mut dead: Vec<Segment> =
            dead.filter_map(|number| self.segments.remove(number, seq)).collect();
        if let Some(taken) = &changes.taken {
            self.snapshots.insert(seq, taken.clone());
        }
        if changes.dropped != 0 {
            self.snapshots.remove(&changes.dropped);
        }
        if changes.taken.is_some() || changes.dropped != 0 {
            dead.extend(self.segments.snapshots(self.snapshots.keys().copied()));
        }
        // Only the ancestor deletes its own segments.
        dead.retain(|segment| segment.home == 0);
        dead
    }

    /// Returns true if record `seq` may be deleted, where record `mapped` is that of the newest
    /// whole map. Such a record precedes that, is no writer's first, and has no data that is
    /// needed.
    pub(crate) fn spares(&self, seq: u64, mapped: u64, epochs: &[u64]) -> bool {
        let has_data = self.segments.needed(seq).is_some_and(|segment| segment.in_record);
        seq < mapped && !epochs.contains(&seq) && !has_data
    }

    /// Returns the snapshot of this name, or number.
    pub(crate) fn find(&self, name: &str) -> Option<(u64, SnapshotRecord)> {
        let mut all = self.snapshots.iter();
        let found = all.find(|(number, taken)| taken.name == name || number.to_string() == name);
        found.map(|(number, taken)| (*number, taken.clone()))
    }

    /// Returns a message that there is no snapshot of this name, with a list of those that exist.
    pub(crate) fn lacks(&self, name: &str) -> String {
        const SHOWN: usize = 8;
        let newest: Vec<&str> =
            self.snapshots.values().rev().map(|taken| taken.name.as_str()).take(SHOWN).collect();
        let more = match self.snapshots.len().saturating_sub(SHOWN) {
            0 => String::new(),
            more => format!(", and {more} older ones"),
        };
        match newest.is_empty() {
            true => format!("there is no snapshot '{name}': the volume has no snapshots"),
            false => {
                let there = newest.join(", ");
                format!("there is no snapshot '{name}'; the snapshots are: {there}{more}")
            }
        }
    }

    /// Returns the map that a clone begins with: all of it lies at its parent's prefix, or at the
    /// prefixes of the parent's ancestors.
    pub(crate) fn shared(mut whole: WholeMap) -> Self {
        let mut numbers = HashMap::new();
        for (n, listed) in (1..).zip(&mut whole.segments) {
            numbers.insert(listed.number, SHARED | n);
            listed.number = SHARED | n;
            (listed.segment.home, listed.segment.born) = (listed.segment.home + 1, 0);
        }
        for place in whole.entries.iter_mut().filter_map(|entry| entry.place.as_mut()) {
            // An address in no segment stays in none: reading it reports that.
            place.segment = numbers.get(&place.segment).copied().unwrap_or(SHARED);
        }
        Self::of(&whole)
    }

    /// Returns the map that `whole` describes.
    pub(crate) fn of(whole: &WholeMap) -> Self {
        let snapshots = whole.snapshots.iter().cloned().collect();
        let mut map = Self { snapshots, ..Self::default() };
        map.segments.snapshots(map.snapshots.keys().copied());
        for &SegmentRecord { number, segment, died } in &whole.segments {
            match died {
                0 => map.segments.insert(number, Segment { live: 0, ..segment }),
                died => map.segments.keep(number, KeptSegment { segment, died }),
            }
        }
        for entry in &whole.entries {
            let Some(place) = entry.place else { continue };
            map.places.put(entry.start, entry.len, place, |_, _| ());
            map.segments.change(place.segment, entry.len as i64);
        }
        map
    }

    pub(crate) fn whole(&self, opening: Opening, epochs: Vec<u64>) -> WholeMap {
        let live = self.segments.iter();
        let live =
            live.map(|(number, segment)| SegmentRecord { number, segment: *segment, died: 0 });
        let kept = self.segments.kept();
        let kept = kept.map(|(number, &KeptSegment { segment, died })| SegmentRecord {
            number,
            segment,
            died,
        });
        let entries = self.places.iter();
        let entries = entries
            .map(|(start, len, place)| MapEntry { start, len, place: Some(*place) })
            .collect();
        let snapshots = self.snapshots.iter().map(|(number, taken)| (*number, taken.clone()));
        let (segments, snapshots) = (live.chain(kept).collect(), snapshots.collect());
        WholeMap { opening, epochs, segments, snapshots, entries }
    }
}

/// A segment that the map points to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    /// Owner of the segment. 0: the volume itself. Otherwise an ancestor, by its index in
    /// [`Origin::homes`](crate::format::Origin), from 1 on.
    pub(crate) home: u32,
    /// Number in the segment's name: the map's own, unless it is an ancestor's.
    pub(crate) number: u64,
    /// The epoch of its writer, which is in its name.
    pub(crate) epoch: u64,
    /// The record by which it was published. 0: it is an ancestor's, and existed from the
    /// beginning.
    pub(crate) born: u64,
    /// Random id that its frames are bound to.
    pub(crate) id: u128,
    /// True if it lies in its record, behind the body: it is no object of its own.
    pub(crate) in_record: bool,
    /// Bytes of the object.
    pub(crate) bytes: u64,
    /// Blocks in it when it was published.
    pub(crate) blocks: u64,
    /// Blocks of it that the map points to.
    pub(crate) live: u64,
}

impl Segment {
    /// Returns the name of the object that contains it.
    pub(crate) fn name(&self) -> String {
        if self.in_record {
            names::record(self.number)
        } else {
            names::segment(self.number, self.epoch)
        }
    }

    /// Returns the bytes in use, in proportion to blocks, as a block has no size of its own.
    fn used(&self) -> u64 {
        match self.blocks {
            0 => 0,
            blocks => self.bytes.saturating_mul(self.live) / blocks,
        }
    }
}

/// Total bytes of segments, and how many of them are in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SegmentTotals {
    pub(crate) stored: u64,
    pub(crate) used: u64,
    /// Blocks that are in use.
    pub(crate) live: u64,
    /// Number of segments.
    pub(crate) count: u64,
}

impl SegmentTotals {
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

/// The space that a volume's data takes in its store, in bytes, according to the map in the store.
/// Data on its way, objects that are being deleted, records without data and maps aren't counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoreSpace {
    /// Objects with data.
    pub segments: u64,
    /// Bytes of these objects, compressed as they are.
    pub stored: u64,
    /// Bytes that the volume uses, in proportion to blocks, as a block has no size of its own.
    pub used: u64,
    /// Bytes that aren't in use, and can't be freed before snapshots are deleted.
    pub snapshots: u64,
    /// Bytes of the rest, which compaction frees if there is much of it.
    pub garbage: u64,
    /// Bytes that the volume uses in segments of its ancestors. `stored` doesn't include them.
    pub shared: u64,
}

/// All segments, by their numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Segments {
    all: BTreeMap<u64, Segment>,
    /// Segments that the map no longer points to, and that a snapshot needs.
    kept: BTreeMap<u64, KeptSegment>,
    /// The newest snapshot; 0: none.
    newest: u64,
    loose: SegmentTotals,
    held: SegmentTotals,
    /// Totals of ancestors' segments.
    shared: SegmentTotals,
    /// Totals of kept segments that are the volume's own.
    kept_sum: SegmentTotals,
}

/// A segment that only snapshots need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeptSegment {
    pub(crate) segment: Segment,
    /// The record since which the map doesn't point to it.
    pub(crate) died: u64,
}

impl KeptSegment {
    /// Returns true if a snapshot with this number has it.
    fn is_in(&self, snapshot: u64) -> bool {
        snapshot != 0 && (self.segment.born..self.died).contains(&snapshot)
    }
}

impl Segments {
    pub(crate) fn get(&self, segment: u64) -> Option<&Segment> {
        self.all.get(&segment)
    }

    /// Returns a segment that the map or a snapshot needs.
    pub(crate) fn needed(&self, segment: u64) -> Option<&Segment> {
        self.get(segment).or_else(|| self.kept.get(&segment).map(|kept| &kept.segment))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &Segment)> {
        self.all.iter().map(|(number, segment)| (*number, segment))
    }

    pub(crate) fn kept(&self) -> impl Iterator<Item = (u64, &KeptSegment)> {
        self.kept.iter().map(|(number, kept)| (*number, kept))
    }

    /// Returns the segments that no snapshot holds: moving their data frees space.
    pub(crate) fn loose(&self) -> impl Iterator<Item = (u64, &Segment)> {
        self.iter().filter(|(_, segment)| segment.home == 0 && !self.holds(segment))
    }

    /// Returns the totals of segments that no snapshot holds.
    pub(crate) fn sum(&self) -> SegmentTotals {
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

    /// Returns true if the volume needs no segment of its ancestors any more.
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

    /// Removes a segment that the map no longer points to since record `died`. Returns it, if no
    /// snapshot needs it.
    pub(crate) fn remove(&mut self, number: u64, died: u64) -> Option<Segment> {
        let segment = self.all.remove(&number)?;
        self.count(segment, false);
        let kept = KeptSegment { segment, died };
        if kept.is_in(self.newest) {
            self.keep(number, kept);
            return None;
        }
        Some(segment)
    }

    pub(crate) fn keep(&mut self, number: u64, kept: KeptSegment) {
        if kept.segment.home == 0 {
            self.kept_sum.add(&Segment { live: 0, ..kept.segment });
        }
        self.kept.insert(number, kept);
    }

    /// Sets the snapshots. Returns the segments that neither a snapshot nor the map needs.
    pub(crate) fn snapshots(
        &mut self,
        all: impl DoubleEndedIterator<Item = u64> + Clone,
    ) -> Vec<Segment> {
        self.newest = all.clone().next_back().unwrap_or(0);
        (self.loose, self.held, self.shared) = Default::default();
        let segments: Vec<Segment> = self.all.values().copied().collect();
        segments.into_iter().for_each(|segment| self.count(segment, true));
        let gone = |kept: &KeptSegment| !all.clone().any(|snapshot| kept.is_in(snapshot));
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

    /// Changes the number of blocks that the map points to.
    pub(crate) fn change(&mut self, number: u64, by: i64) {
        let Some(&segment) = self.all.get(&number) else { return };
        let live = segment.live.saturating_add_signed(by);
        self.count(segment, false);
        self.insert(number, Segment { live, ..segment });
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::format::SegmentTotals;

    fn place(segment: u64, skip: u32) -> BlockPlace {
        BlockPlace { segment, at: 64, stored: 100, skip }
    }

    fn entries(of: &[(u64, u64, Option<BlockPlace>)]) -> Vec<MapEntry> {
        of.iter().map(|&(start, len, place)| MapEntry { start, len, place }).collect()
    }

    fn changes(segment: u64, of: &[(u64, u64, Option<BlockPlace>)]) -> Changes {
        Changes { segment, bytes: 1000, id: 7, entries: entries(of), ..Changes::default() }
    }

    /// Returns the numbers of the segments that are no longer needed.
    fn dead(map: &mut Map, seq: u64, changes: &Changes) -> Vec<u64> {
        map.apply(seq, 1, changes).into_iter().map(|segment| segment.number).collect()
    }

    fn opening() -> Opening {
        let host = String::new();
        Opening { size: 0, lease: 0, through: 0, local: false, outdated: None, host, origin: None }
    }

    #[test]
    fn a_segment_of_which_nothing_is_left_is_told_once_and_the_whole_map_gives_the_same_again() {
        let mut map = Map::default();
        assert_eq!(dead(&mut map, 2, &changes(2, &[(0, 8, Some(place(2, 0)))])), [0; 0]);
        assert_eq!(dead(&mut map, 3, &changes(3, &[(2, 2, Some(place(3, 0)))])), [0; 0]);
        assert_eq!(map.segments.get(2).unwrap().live, 6);
        let whole = map.whole(opening(), vec![1]);
        let again = Map::of(&whole);
        assert_eq!(again.segments, map.segments);
        assert_eq!(again.places.parts(0, 9), map.places.parts(0, 9));
        assert_eq!(dead(&mut map, 4, &changes(4, &[(0, 100, None)])), [2, 3, 4]);
        assert_eq!(map.segments.sum(), SegmentTotals::default());
        assert!(map.places.is_empty());
    }

    #[test]
    fn whatever_is_written_and_moved_the_counts_agree_with_the_map_and_blocks_are_where_they_were_put()
     {
        const BLOCKS: u64 = 40;
        let mut random = fastrand::Rng::with_seed(1);
        for _ in 0..50 {
            let mut map = Map::default();
            // The write that each block belongs to, told by the first block of a frame.
            let mut model = [None; BLOCKS as usize];
            let mut lies: BTreeMap<(u64, u32), u64> = BTreeMap::new();
            let mut old: Vec<MapEntry> = Vec::new();
            for number in 1..40 {
                let start = random.u64(0..BLOCKS);
                let len = random.u64(1..=(BLOCKS - start).min(8));
                let mut made = changes(number, &[]);
                if random.bool() {
                    lies.insert((number, 0), number << 8);
                    let at = BlockPlace { segment: number, at: 0, stored: 100, skip: 0 };
                    made.entries = entries(&[(start, len, Some(at))]);
                    for by in 0..len {
                        model[(start + by) as usize] = Some(number << 8 | by);
                    }
                } else {
                    // Some pieces, with their current or earlier addresses.
                    if random.bool() {
                        let now = map.places.iter().map(|(start, len, at)| (start, len, Some(*at)));
                        old = entries(&now.collect::<Vec<_>>());
                    }
                    let some = old.iter().filter(|_| random.u8(0..3) == 0);
                    made.moved = some.copied().collect();
                    for (at, was) in (0..).zip(&made.moved) {
                        let found = was.place.unwrap();
                        let first = lies[&(found.segment, found.at)] + u64::from(found.skip);
                        lies.insert((number, at), first);
                        let place = BlockPlace { segment: number, at, stored: 100, skip: 0 };
                        made.entries.push(MapEntry { place: Some(place), ..*was });
                    }
                    if made.moved.is_empty() {
                        continue;
                    }
                }
                map.apply(number, 1, &made);
                assert_eq!(Map::of(&map.whole(opening(), vec![1])).segments, map.segments);
                let mut found = Vec::new();
                for (_, len, place) in map.places.parts(0, BLOCKS) {
                    found.extend((0..len).map(|by| {
                        let place = place.as_ref()?;
                        assert!(map.segments.get(place.segment).is_some(), "it is gone");
                        Some(lies[&(place.segment, place.at)] + u64::from(place.skip) + by)
                    }));
                }
                assert_eq!(found, model);
            }
        }
    }

    #[test]
    fn what_was_moved_side_by_side_is_one_piece_again() {
        let mut map = Map::default();
        map.apply(2, 1, &changes(2, &[(0, 8, Some(place(2, 0)))]));
        map.apply(3, 1, &changes(3, &[(2, 2, Some(place(3, 0)))]));
        assert_eq!(map.places.len(), 3);
        let mut moved = changes(4, &[(0, 8, Some(place(4, 0)))]);
        let was = [(0, 2, Some(place(2, 0))), (2, 2, Some(place(3, 0))), (4, 4, Some(place(2, 4)))];
        moved.moved = entries(&was);
        assert_eq!(dead(&mut map, 4, &moved), [2, 3]);
        assert_eq!(map.places.parts(0, 8), [(0, 8, Some(place(4, 0)))]);
        assert_eq!(map.places.len(), 1);
        assert_eq!(
            map.segments.sum(),
            SegmentTotals { stored: 1000, used: 1000, live: 8, count: 1 }
        );
    }
}
