//! Puts spans on lanes: one lane a worker, and as many rows in a lane as overlapping spans need.

use crate::span::{Span, SpanId, Timeline};
use crate::units::ns;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

/// The spans that one worker ran.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Lane {
    /// The worker's name. If it isn't known, this is the CPU's name, else `no callback` or
    /// `unknown worker`.
    pub name: String,
    /// Rows in which no two spans overlap. The first row holds all that fits into it, then the
    /// second, and so on.
    pub rows: Vec<LaneRow>,
}

/// Rule that puts a lane's spans into rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RowPacking {
    /// First row that is free: as few rows as possible.
    Tight,
    /// Last row, or a new one below it, by start: a later span never stands above an earlier one.
    Stairs,
}

/// Spans of one lane that do not overlap, by start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LaneRow {
    /// The spans, by start.
    pub spans: Vec<SpanId>,
}

impl Timeline {
    /// Returns the spans by worker. Lanes come in natural order of their names (`cpu 2` before
    /// `cpu 10`). Within a lane, spans that overlap (one probe inside another) stand in different
    /// rows.
    pub fn lanes(&self) -> Vec<Lane> {
        self.lanes_with(RowPacking::Tight, time, |_| true)
    }

    /// Returns the [`lanes`](Timeline::lanes) of the spans that `stands` keeps. `extent` returns
    /// the room (from, to) that a span needs in its row, so that a renderer can keep room for
    /// labels.
    pub(crate) fn lanes_with(
        &self,
        pack: RowPacking,
        extent: impl Fn(&Span) -> (u64, u64),
        stands: impl Fn(SpanId) -> bool,
    ) -> Vec<Lane> {
        let mut by_name: BTreeMap<NaturalKey, (String, Vec<SpanId>)> = BTreeMap::new();
        for (id, span) in self.iter().filter(|&(id, _)| stands(id)) {
            let name = lane_name(span);
            by_name.entry(natural_key(&name)).or_insert_with(|| (name, Vec::new())).1.push(id);
        }
        let lane = |(name, ids): (String, Vec<SpanId>)| Lane {
            name,
            rows: match pack {
                RowPacking::Tight => self.tight(ids, &extent),
                RowPacking::Stairs => self.stairs(ids, &extent),
            },
        };
        by_name.into_values().map(lane).collect()
    }

    /// Puts each span, by its start, into the last row if that is free, else into a new one.
    fn stairs(&self, mut ids: Vec<SpanId>, extent: &impl Fn(&Span) -> (u64, u64)) -> Vec<LaneRow> {
        let order = |&id: &SpanId| (self.span(id).start, self.span(id).end, id);
        ids.sort_by_key(order);
        let mut rows: Vec<LaneRow> = Vec::new();
        let mut until = 0;
        for id in ids {
            let (from, to) = extent(self.span(id));
            match rows.last_mut().filter(|_| until <= from) {
                Some(row) => row.spans.push(id),
                None => rows.push(LaneRow { spans: vec![id] }),
            }
            until = to;
        }
        rows
    }

    /// Puts each span, in the order in which their rooms begin, into the first row that is free.
    fn tight(&self, mut ids: Vec<SpanId>, extent: &impl Fn(&Span) -> (u64, u64)) -> Vec<LaneRow> {
        ids.sort_by_cached_key(|&id| (extent(self.span(id)), id));
        let mut rows: Vec<LaneRow> = Vec::new();
        // Rows by the moment at which they become free, and free rows by index.
        let mut busy: BinaryHeap<Reverse<(u64, usize)>> = BinaryHeap::new();
        let mut free: BinaryHeap<Reverse<usize>> = BinaryHeap::new();
        for id in ids {
            let (from, to) = extent(self.span(id));
            while busy.peek().is_some_and(|Reverse((until, _))| *until <= from) {
                free.extend(busy.pop().map(|Reverse((_, row))| Reverse(row)));
            }
            let row = free.pop().map_or(rows.len(), |Reverse(row)| row);
            if row == rows.len() {
                rows.push(LaneRow::default());
            }
            rows[row].spans.push(id);
            busy.push(Reverse((to, row)));
        }
        rows
    }
}

/// Returns the room of a span of which only the time counts.
pub(crate) fn time(span: &Span) -> (u64, u64) {
    (ns(span.start), ns(span.end))
}

/// Returns the name of the lane on which a span is drawn.
pub(crate) fn lane_name(span: &Span) -> String {
    match (span.worker.is_empty(), span.cpu) {
        (false, _) => span.worker.clone(),
        (true, Some(cpu)) => format!("CPU {cpu}"),
        // Without a callback, no worker ran it.
        (true, None) if span.no_callback => "no callback".to_owned(),
        (true, None) => "unknown worker".to_owned(),
    }
}

/// A name cut into texts and numbers, which compare as numbers.
type NaturalKey = Vec<(String, u64)>;

fn natural_key(name: &str) -> NaturalKey {
    let mut key = NaturalKey::new();
    let mut rest = name;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
        let (text, tail) = rest.split_at(digits);
        let end = tail.find(|c: char| !c.is_ascii_digit()).unwrap_or(tail.len());
        let (number, tail) = tail.split_at(end);
        // The text keeps the digits as well, so that `w1` and `w01` stay two names.
        let value = number.parse().unwrap_or(u64::MAX);
        key.push((text.to_owned(), value));
        if value == u64::MAX || number.starts_with('0') {
            key.push((number.to_owned(), 0));
        }
        rest = tail;
    }
    key
}

#[cfg(test)]
mod tests {
    use super::RowPacking;
    use crate::span::{Span, SpanKind, Timeline};
    use std::time::Duration;

    fn push(t: &mut Timeline, worker: &str, cpu: Option<u32>, start: u64, end: u64) -> usize {
        let ms = Duration::from_millis;
        t.push(Span::new("x", SpanKind::Probe, ms(start), ms(end)).on(worker, cpu)).index()
    }

    fn names(t: &Timeline) -> Vec<String> {
        t.lanes().into_iter().map(|l| l.name).collect()
    }

    #[test]
    fn lanes_are_in_natural_order_and_named_after_what_is_known() {
        let mut t = Timeline::new("t");
        for (worker, cpu) in [
            ("w10", None),
            ("w2", None),
            ("w02", None),
            // Numbers that are too long to parse.
            ("w99999999999999999999999", None),
            ("w99999999999999999999998", None),
            ("", Some(3)),
            ("", None),
            ("main", Some(0)),
        ] {
            push(&mut t, worker, cpu, 0, 1);
        }
        push(&mut t, "main", Some(1), 1, 2);
        let found = names(&t);
        assert_eq!(found[..6], ["CPU 3", "main", "unknown worker", "w2", "w02", "w10"]);
        assert_eq!(found.len(), 8);
        assert_eq!(t.lanes()[1].rows.len(), 1, "a worker on two CPUs is one lane");
    }

    #[test]
    fn spans_that_overlap_stand_in_different_rows() {
        let mut t = Timeline::new("t");
        let outer = push(&mut t, "w", None, 0, 10);
        let inner = push(&mut t, "w", None, 2, 5);
        let later = push(&mut t, "w", None, 10, 12);
        let rows: Vec<Vec<usize>> = t.lanes()[0]
            .rows
            .iter()
            .map(|row| row.spans.iter().map(|s| s.index()).collect())
            .collect();
        assert_eq!(rows, [vec![outer, later], vec![inner]]);
    }

    #[test]
    fn in_stairs_no_later_span_stands_above_an_earlier_one() {
        let mut t = Timeline::new("t");
        for (start, end) in [(0, 10), (10, 11), (11, 12), (40, 41), (40, 40), (41, 90)] {
            push(&mut t, "w", None, start, end);
        }
        // Each span needs 20 for its label.
        let extent = |span: &Span| {
            let (from, to) = super::time(span);
            (from / 1_000_000, to / 1_000_000 + 20)
        };
        let lanes = t.lanes_with(RowPacking::Stairs, extent, |_| true);
        let rows = lanes[0].rows.iter();
        let rows: Vec<Vec<usize>> =
            rows.map(|row| row.spans.iter().map(|s| s.index()).collect()).collect();
        assert_eq!(rows, [vec![0], vec![1], vec![2, 4], vec![3], vec![5]]);
        let tight = t.lanes_with(RowPacking::Tight, extent, |_| true);
        assert_eq!(tight[0].rows.len(), 3, "fewer rows, in no order");
    }

    #[test]
    fn a_number_too_long_to_parse_still_makes_a_lane_of_its_own() {
        let mut t = Timeline::new("t");
        push(&mut t, "w99999999999999999999999", None, 0, 1);
        push(&mut t, "w99999999999999999999998", None, 0, 1);
        assert_eq!(names(&t).len(), 2);
    }
}
