//! The map: where the blocks of a volume lie, and how much of each segment is in use. Plain data.

use std::collections::{BTreeMap, HashMap};

use super::objects::{Changes, Entry, Listed, Opening, Place, Taken, Whole};
use super::range_map::{Piece, RangeMap};
use super::segments::{Kept, Segment, Segments};

impl Piece for Place {
    fn behind(&self, by: u64) -> Self {
        Place { skip: self.skip + by as u32, ..*self }
    }

    fn goes_on(&self, by: u64, next: &Self) -> bool {
        self.behind(by) == *next
    }
}

/// What a record changes by now: of a move, only what is where it was.
fn still(places: &RangeMap<Place>, changes: &Changes) -> Vec<Entry> {
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
                entries.extend(moved.map(|(start, len, place)| Entry { start, len, place }));
            }
        }
    }
    entries
}

/// The bit in the number of a segment, in the map of a clone, that is an ancestor's.
const SHARED: u64 = 1 << 62;

/// Where everything lies.
#[derive(Clone, Debug, Default)]
pub(crate) struct Map {
    pub(crate) places: RangeMap<Place>,
    pub(crate) segments: Segments,
    /// The snapshots, by their numbers: those of the records by which they were taken.
    pub(crate) snapshots: BTreeMap<u64, Taken>,
}

impl Map {
    /// As record `seq` wants it. The segments that are no longer needed.
    pub(crate) fn apply(&mut self, seq: u64, epoch: u64, changes: &Changes) -> Vec<Segment> {
        let mut touched = Vec::new();
        if changes.segment != 0 {
            let ours = |entry: &&Entry| entry.place.is_some_and(|at| at.segment == changes.segment);
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
            let lost = |blocks: u64, place: &Place| {
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
        // An ancestor's is the ancestor's.
        dead.retain(|segment| segment.home == 0);
        dead
    }

    /// Whether record `seq` may be deleted, where record `mapped` is that of the newest whole map: it is in front of that, no writer began with it,
    /// and no data that somebody needs lies in it.
    pub(crate) fn spares(&self, seq: u64, mapped: u64, epochs: &[u64]) -> bool {
        let has_data = self.segments.needed(seq).is_some_and(|segment| segment.in_record);
        seq < mapped && !epochs.contains(&seq) && !has_data
    }

    /// The snapshot of this name, or number.
    pub(crate) fn find(&self, name: &str) -> Option<(u64, Taken)> {
        let mut all = self.snapshots.iter();
        let found = all.find(|(number, taken)| taken.name == name || number.to_string() == name);
        found.map(|(number, taken)| (*number, taken.clone()))
    }

    /// That there is no snapshot of this name, and which there are.
    pub(crate) fn lacks(&self, name: &str) -> String {
        const SHOWN: usize = 8;
        let newest: Vec<&str> =
            self.snapshots.values().rev().map(|taken| taken.name.as_str()).take(SHOWN).collect();
        let more = match self.snapshots.len().saturating_sub(SHOWN) {
            0 => String::new(),
            more => format!(", and {more} older ones"),
        };
        let there = match newest.is_empty() {
            true => "none".to_owned(),
            false => newest.join(", "),
        };
        format!("there is no snapshot '{name}'; there are: {there}{more}")
    }

    /// What a clone begins with: all of it lies at its parent's, or at the parent's ancestors'.
    pub(crate) fn shared(mut whole: Whole) -> Self {
        let mut numbers = HashMap::new();
        for (n, listed) in (1..).zip(&mut whole.segments) {
            numbers.insert(listed.number, SHARED | n);
            listed.number = SHARED | n;
            (listed.segment.home, listed.segment.born) = (listed.segment.home + 1, 0);
        }
        for place in whole.entries.iter_mut().filter_map(|entry| entry.place.as_mut()) {
            // A place in no segment stays in none: a read of it says so.
            place.segment = numbers.get(&place.segment).copied().unwrap_or(SHARED);
        }
        Self::of(&whole)
    }

    /// What `whole` says.
    pub(crate) fn of(whole: &Whole) -> Self {
        let snapshots = whole.snapshots.iter().cloned().collect();
        let mut map = Self { snapshots, ..Self::default() };
        map.segments.snapshots(map.snapshots.keys().copied());
        for &Listed { number, segment, died } in &whole.segments {
            match died {
                0 => map.segments.insert(number, Segment { live: 0, ..segment }),
                died => map.segments.keep(number, Kept { segment, died }),
            }
        }
        for entry in &whole.entries {
            let Some(place) = entry.place else { continue };
            map.places.put(entry.start, entry.len, place, |_, _| ());
            map.segments.change(place.segment, entry.len as i64);
        }
        map
    }

    pub(crate) fn whole(&self, opening: Opening, epochs: Vec<u64>) -> Whole {
        let live = self.segments.iter();
        let live = live.map(|(number, segment)| Listed { number, segment: *segment, died: 0 });
        let kept = self.segments.kept();
        let kept = kept.map(|(number, &Kept { segment, died })| Listed { number, segment, died });
        let entries = self.places.iter();
        let entries =
            entries.map(|(start, len, place)| Entry { start, len, place: Some(*place) }).collect();
        let snapshots = self.snapshots.iter().map(|(number, taken)| (*number, taken.clone()));
        let (segments, snapshots) = (live.chain(kept).collect(), snapshots.collect());
        Whole { opening, epochs, segments, snapshots, entries }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::format::Sum;

    fn place(segment: u64, skip: u32) -> Place {
        Place { segment, at: 64, stored: 100, skip }
    }

    fn entries(of: &[(u64, u64, Option<Place>)]) -> Vec<Entry> {
        of.iter().map(|&(start, len, place)| Entry { start, len, place }).collect()
    }

    fn changes(segment: u64, of: &[(u64, u64, Option<Place>)]) -> Changes {
        Changes { segment, bytes: 1000, id: 7, entries: entries(of), ..Changes::default() }
    }

    /// The numbers of the segments that are no longer needed.
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
        assert_eq!(map.segments.sum(), Sum::default());
        assert!(map.places.is_empty());
    }

    #[test]
    fn what_was_written_since_is_not_moved() {
        let mut map = Map::default();
        map.apply(2, 1, &changes(2, &[(0, 8, Some(place(2, 0)))]));
        map.apply(3, 1, &changes(3, &[(2, 2, Some(place(3, 0)))]));
        let mut moved = changes(4, &[(0, 8, Some(place(4, 0)))]);
        moved.moved = entries(&[(0, 8, Some(place(2, 0)))]);
        assert_eq!(dead(&mut map, 4, &moved), [2]);
        let found: Vec<_> = map.places.parts(0, 8).into_iter().map(|(_, _, at)| at).collect();
        assert_eq!(found, [Some(place(4, 0)), Some(place(3, 0)), Some(place(4, 4))]);
    }

    #[test]
    fn whatever_is_written_and_moved_the_counts_agree_with_the_map_and_blocks_are_where_they_were_put()
     {
        const BLOCKS: u64 = 40;
        let mut random = fastrand::Rng::with_seed(1);
        for _ in 0..50 {
            let mut map = Map::default();
            // Which write each block is of. The first block of a frame says it.
            let mut model = [None; BLOCKS as usize];
            let mut lies: BTreeMap<(u64, u32), u64> = BTreeMap::new();
            let mut old: Vec<Entry> = Vec::new();
            for number in 1..40 {
                let start = random.u64(0..BLOCKS);
                let len = random.u64(1..=(BLOCKS - start).min(8));
                let mut made = changes(number, &[]);
                if random.bool() {
                    lies.insert((number, 0), number << 8);
                    let at = Place { segment: number, at: 0, stored: 100, skip: 0 };
                    made.entries = entries(&[(start, len, Some(at))]);
                    for by in 0..len {
                        model[(start + by) as usize] = Some(number << 8 | by);
                    }
                } else {
                    // Some pieces, as they are or were a while ago.
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
                        let place = Place { segment: number, at, stored: 100, skip: 0 };
                        made.entries.push(Entry { place: Some(place), ..*was });
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
        assert_eq!(map.segments.sum(), Sum { stored: 1000, used: 1000, live: 8, count: 1 });
    }
}
