//! What is decided, over plain numbers.

use crate::format::Place;

/// Records behind a whole map that are always few, as a rule.
pub(crate) const FEW: u64 = 64;
/// Records behind a whole map that are always many: so many are read when a volume is opened.
const MANY: u64 = 1024;

/// Whether the whole map is to be written: `records` came since the last one, with `entries`; it would have `places`. So that a large
/// map isn't written for little, and few records have to be read when the volume is opened.
pub(crate) fn map_is_due(records: u64, few: u64, entries: u64, places: u64) -> bool {
    records >= MANY || records >= few && entries >= places / 4
}

/// Bytes of a segment that are fetched by one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) segment: u64,
    pub(crate) from: u32,
    pub(crate) to: u32,
}

impl Span {
    pub(crate) fn has(&self, place: &Place) -> bool {
        self.segment == place.segment && self.from <= place.at && place.at + place.stored <= self.to
    }
}

/// Most bytes that one request fetches.
const SPAN: u32 = 4 << 20;
/// Bytes between two frames that are fetched rather than asked for apart.
const GAP: u32 = 64 << 10;

/// The requests by which frames are fetched: those that lie near each other by one.
pub(crate) fn spans(places: &[Place]) -> Vec<Span> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_that_lie_near_each_other_are_fetched_by_one_request() {
        let place = |segment, at| Place { segment, at, stored: 100, skip: 0 };
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
