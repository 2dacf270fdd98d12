//! The map: where the blocks of a volume lie, and how much of each segment is in use. Plain data.

use std::collections::BTreeMap;

use crate::format::{Changes, Entry, Listed, Opening, Place, Whole};
use crate::range_map::{Piece, RangeMap};

impl Piece for Place {
    fn behind(&self, by: u64) -> Self {
        Place { skip: self.skip + by as u32, ..*self }
    }
}

/// A segment that the map points to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    /// The epoch of its writer, which is in its name.
    pub(crate) epoch: u64,
    /// What its frames are bound to.
    pub(crate) id: u128,
    /// Of the object.
    pub(crate) bytes: u64,
    /// Blocks of it that the map points to.
    pub(crate) live: u64,
}

/// What a record changes by now: of a move, only what is where it was.
fn still(places: &RangeMap<Place>, changes: &Changes) -> Vec<Entry> {
    if changes.moved.is_empty() {
        return changes.entries.clone();
    }
    let mut entries = Vec::new();
    for (entry, was) in changes.entries.iter().zip(&changes.moved) {
        for (start, len, found) in places.parts(entry.start, entry.len) {
            let by = start - entry.start;
            if found == Some(was.behind(by)) {
                let place = entry.place.map(|place| place.behind(by));
                entries.push(Entry { start, len, place });
            }
        }
    }
    entries
}

/// Where everything lies.
#[derive(Clone, Debug, Default)]
pub(crate) struct Map {
    pub(crate) places: RangeMap<Place>,
    pub(crate) segments: BTreeMap<u64, Segment>,
}

impl Map {
    /// As a record wants it. The segments that are no longer needed, with their epochs.
    pub(crate) fn apply(&mut self, seq: u64, epoch: u64, changes: &Changes) -> Vec<(u64, u64)> {
        let mut touched = Vec::new();
        if changes.bytes != 0 {
            let segment = Segment { epoch, id: changes.id, bytes: changes.bytes, live: 0 };
            self.segments.insert(seq, segment);
            touched.push(seq);
        }
        let segments = &mut self.segments;
        let places = &mut self.places;
        for entry in self::still(places, changes) {
            let lost = |blocks, place: &Place| {
                if let Some(segment) = segments.get_mut(&place.segment) {
                    segment.live = segment.live.saturating_sub(blocks);
                    touched.push(place.segment);
                }
            };
            match entry.place {
                Some(place) => {
                    places.put(entry.start, entry.len, place, lost);
                    if let Some(segment) = segments.get_mut(&place.segment) {
                        segment.live += entry.len;
                    }
                }
                None => places.cut(entry.start, entry.len, lost),
            }
        }
        touched.sort_unstable();
        touched.dedup();
        let dead = |segment: &u64| self.segments.get(segment).is_some_and(|found| found.live == 0);
        let dead: Vec<u64> = touched.into_iter().filter(dead).collect();
        let dead = dead.into_iter();
        dead.filter_map(|seq| self.segments.remove(&seq).map(|found| (seq, found.epoch))).collect()
    }

    /// What `whole` says.
    pub(crate) fn of(whole: &Whole) -> Self {
        let mut map = Self::default();
        for &Listed { segment, epoch, id, bytes } in &whole.segments {
            map.segments.insert(segment, Segment { epoch, id, bytes, live: 0 });
        }
        for entry in &whole.entries {
            let Some(place) = entry.place else { continue };
            map.places.put(entry.start, entry.len, place, |_, _| ());
            if let Some(segment) = map.segments.get_mut(&place.segment) {
                segment.live += entry.len;
            }
        }
        map
    }

    pub(crate) fn whole(&self, opening: Opening, epochs: Vec<u64>) -> Whole {
        let segments = self.segments.iter();
        let segments = segments.map(|(&segment, found)| Listed {
            segment,
            epoch: found.epoch,
            id: found.id,
            bytes: found.bytes,
        });
        let entries = self.places.iter();
        let entries =
            entries.map(|(start, len, place)| Entry { start, len, place: Some(*place) }).collect();
        Whole { opening, epochs, segments: segments.collect(), entries }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(segment: u64, skip: u32) -> Place {
        Place { segment, at: 64, stored: 100, skip }
    }

    fn changes(entries: &[(u64, u64, Option<Place>)]) -> Changes {
        let entries =
            entries.iter().map(|&(start, len, place)| Entry { start, len, place }).collect();
        Changes { bytes: 1000, id: 7, entries, ..Changes::default() }
    }

    #[test]
    fn a_segment_of_which_nothing_is_left_is_told_once_and_the_whole_map_gives_the_same_again() {
        let mut map = Map::default();
        assert_eq!(map.apply(2, 1, &changes(&[(0, 8, Some(place(2, 0)))])), []);
        assert_eq!(map.apply(3, 1, &changes(&[(2, 2, Some(place(3, 0)))])), []);
        assert_eq!(map.segments[&2].live, 6);
        let whole = map.whole(
            Opening { size: 0, lease: 0, through: 0, local: false, host: String::new() },
            vec![1],
        );
        let again = Map::of(&whole);
        assert_eq!(again.segments, map.segments);
        assert_eq!(again.places.parts(0, 9), map.places.parts(0, 9));
        assert_eq!(map.apply(4, 1, &changes(&[(0, 100, None)])), [(2, 1), (3, 1), (4, 1)]);
        assert!(map.segments.is_empty() && map.places.is_empty());
    }

    #[test]
    fn what_was_written_since_is_not_moved() {
        let mut map = Map::default();
        map.apply(2, 1, &changes(&[(0, 8, Some(place(2, 0)))]));
        map.apply(3, 1, &changes(&[(2, 2, Some(place(3, 0)))]));
        let mut moved = changes(&[(0, 8, Some(place(4, 0)))]);
        moved.moved = vec![place(2, 0)];
        assert_eq!(map.apply(4, 1, &moved), [(2, 1)]);
        let found: Vec<_> = map.places.parts(0, 8).into_iter().map(|(_, _, at)| at).collect();
        assert_eq!(found, [Some(place(4, 0)), Some(place(3, 0)), Some(place(4, 4))]);
    }
}
