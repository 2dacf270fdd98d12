//! Decisions as pure functions over plain numbers.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::format::{BlockPlace, Segment, SegmentTotals};
use crate::store::StoreRoom;

/// Number of records behind a whole map that are always few, by default.
pub(crate) const FEW: u64 = 64;
/// Number of records behind a whole map that are always many: an opening reads them all.
const MANY: u64 = 1024;

/// Returns true if the whole map is to be written: `records` came since the last one, with
/// `entries`, and it would have `places`. So a large map isn't written for few changes, and an
/// opening has few records to read.
pub(crate) fn map_is_due(records: u64, few: u64, entries: u64, places: u64) -> bool {
    records >= MANY || records >= few && entries >= places / 4
}

/// Bytes of a store that are reserved from data: room for a segment that is made by moving, as much
/// for the map, and for records.
const KEPT: u64 = 16 << 20;

/// Returns the bytes of room that are reserved for operations that free room: a fraction of a small
/// store.
pub(crate) fn kept(room: StoreRoom) -> u64 {
    KEPT.min(room.total / 8)
}

/// Returns the bytes of data that may be accepted, if `pending` bytes wait for the store already.
pub(crate) fn budget(room: StoreRoom, pending: u64) -> u64 {
    room.free.saturating_sub(kept(room).saturating_add(pending))
}

/// Approximate bytes of a map for each piece.
const PIECE: u64 = 40;

/// Returns true if a new map frees room, in a store that has little: it lets `dead` bytes of
/// records be deleted.
pub(crate) fn map_gives_room(dead: u64, places: u64) -> bool {
    dead > places * PIECE
}

/// Bytes of a segment that are fetched by one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) segment: u64,
    pub(crate) from: u32,
    pub(crate) to: u32,
}

impl Span {
    pub(crate) fn has(&self, place: &BlockPlace) -> bool {
        self.segment == place.segment && self.from <= place.at && place.at + place.stored <= self.to
    }
}

/// Maximum bytes that one request fetches.
const SPAN: u32 = 4 << 20;
/// Gap between two frames, in bytes, up to which one request fetches both.
const GAP: u32 = 64 << 10;

/// Returns the requests that fetch frames: one for frames near each other.
pub(crate) fn spans(places: &[BlockPlace]) -> Vec<Span> {
    let mut frames: Vec<(u64, u32, u32)> =
        places.iter().map(|place| (place.segment, place.at, place.at + place.stored)).collect();
    frames.sort_unstable();
    let mut spans: Vec<Span> = Vec::new();
    for (segment, from, to) in frames {
        match spans.last_mut() {
            Some(last)
                if last.segment == segment
                    && from <= last.to.saturating_add(GAP)
                    && to - last.from <= SPAN =>
            {
                last.to = last.to.max(to);
            }
            _ => spans.push(Span { segment, from, to }),
        }
    }
    spans
}

/// Parameters of compaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Compaction {
    /// Bytes of garbage that are tolerated, beside half of what is in use.
    pub(crate) slack: u64,
    /// Number of segments that are tolerated, however small they are.
    pub(crate) few: u64,
    /// Blocks of a typical segment.
    pub(crate) segment: u64,
    /// Bytes that are moved in a second, while there isn't too much garbage.
    pub(crate) rate: u64,
}

/// Pieces of the map that may be examined for each block that is moved.
pub(crate) const SCANNED: u64 = 64;

/// Returns the bytes of garbage at which compaction begins: half of what is in use, and a little.
pub(crate) fn garbage_allowed(sum: SegmentTotals, how: Compaction) -> u64 {
    sum.used / 2 + how.slack
}

/// Returns true if there is so much garbage that writes have to wait for compaction.
pub(crate) fn is_behind((garbage, allowed): (u64, u64)) -> bool {
    garbage / 2 > allowed
}

/// Returns how long moving `bytes` bytes should take. Zero, if there is half as much garbage again
/// as allowed.
pub(crate) fn pace(bytes: u64, how: Compaction, (garbage, allowed): (u64, u64)) -> Duration {
    if garbage > allowed + allowed / 2 {
        return Duration::ZERO;
    }
    Duration::from_secs_f64(bytes as f64 / how.rate as f64)
}

/// Returns the segments to compact, with about `most` blocks in use. If there is much garbage,
/// those with the smallest part in use; if there are many segments, the smallest ones. Otherwise
/// none.
pub(crate) fn victims<'a>(
    sum: SegmentTotals,
    all: impl Iterator<Item = (u64, &'a Segment)>,
    how: Compaction,
    most: u64,
) -> BTreeSet<u64> {
    let wasteful = sum.garbage() > garbage_allowed(sum, how);
    // On average, each has less than a quarter of its size.
    let many = sum.count > how.few + 4 * sum.live / how.segment;
    let mut all: Vec<(u64, &Segment)> = match (wasteful, many) {
        (true, _) => all.filter(|(_, segment)| segment.live < segment.blocks).collect(),
        (_, true) => all.collect(),
        _ => return BTreeSet::new(),
    };
    let share = |of: &Segment| (of.live << 20) / of.blocks.max(1);
    all.sort_by_key(|(_, of)| if wasteful { share(of) } else { of.live });
    let mut blocks = 0;
    let chosen = all.into_iter().take_while(|(_, segment)| {
        let first = blocks == 0;
        blocks += segment.live;
        first || blocks <= most
    });
    let chosen: BTreeSet<u64> = chosen.map(|(number, _)| number).collect();
    // One small segment would become another one.
    if wasteful || chosen.len() > 1 { chosen } else { BTreeSet::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOW: Compaction = Compaction { slack: 100, few: 3, segment: 100, rate: 1000 };

    /// Returns the indexes that are chosen from segments with the given blocks and blocks in use.
    fn chosen(all: &[(u64, u64)], most: u64) -> Vec<u64> {
        let segment = |&(blocks, live)| Segment {
            home: 0,
            number: 2,
            epoch: 1,
            born: 2,
            id: 1,
            in_record: false,
            bytes: blocks * 10,
            blocks,
            live,
        };
        let all: Vec<Segment> = all.iter().map(segment).collect();
        let stored = all.iter().map(|one| one.bytes).sum();
        let live = all.iter().map(|one| one.live).sum();
        let sum = SegmentTotals { stored, used: live * 10, live, count: all.len() as u64 };
        let all = all.iter().enumerate().map(|(n, one)| (n as u64, one));
        victims(sum, all, HOW, most).into_iter().collect()
    }

    #[test]
    fn segments_of_which_the_smallest_part_is_in_use_are_gathered_where_there_is_much_garbage() {
        assert_eq!(chosen(&[(100, 90), (100, 30), (100, 100), (10, 1)], 100), [0; 0]);
        assert_eq!(chosen(&[(100, 90), (100, 20), (100, 40), (10, 1)], 60), [1, 3]);
        assert_eq!(chosen(&[(100, 90), (100, 20), (100, 40), (10, 1)], 61), [1, 2, 3]);
        // One is moved in any case: otherwise none ever would be.
        assert_eq!(chosen(&[(100, 50), (100, 51)], 10), [0]);
    }

    #[test]
    fn small_segments_are_gathered_where_there_are_many() {
        assert_eq!(chosen(&[(100, 100), (1, 1), (2, 2), (3, 3)], 100), [0; 0]);
        assert_eq!(chosen(&[(10, 10), (1, 1), (2, 2), (3, 3), (4, 4)], 5), [1, 2]);
    }

    #[test]
    fn compaction_keeps_its_pace_unless_there_is_far_too_much_garbage() {
        assert_eq!(pace(500, HOW, (150, 100)), Duration::from_millis(500));
        assert_eq!(pace(500, HOW, (151, 100)), Duration::ZERO);
        assert!(!is_behind((200, 100)) && is_behind((202, 100)));
    }

    #[test]
    fn frames_that_lie_near_each_other_are_fetched_by_one_request() {
        let place = |segment, at| BlockPlace { segment, at, stored: 100, skip: 0 };
        let places = [place(2, 500), place(1, 0), place(1, 100), place(1, 100), place(1, 9 << 20)];
        let spans = spans(&places);
        let span = |segment, from, to| Span { segment, from, to };
        assert_eq!(spans, [span(1, 0, 200), span(1, 9 << 20, (9 << 20) + 100), span(2, 500, 600)]);
        assert!(places.iter().all(|place| spans.iter().any(|span| span.has(place))));
    }

    #[test]
    fn a_large_map_is_not_written_for_little_but_the_log_stays_short() {
        assert!(!map_is_due(FEW - 1, FEW, 1000, 10));
        assert!(map_is_due(FEW, FEW, 1000, 10));
        assert!(!map_is_due(FEW, FEW, 1000, 1 << 20));
        assert!(map_is_due(MANY, FEW, 1000, 1 << 20));
    }
}
