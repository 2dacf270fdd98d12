//! Two timelines side by side.

use super::costs::Cost;
use crate::length::Length;
use crate::span::{SpanKind, Timeline};
use std::cmp::Reverse;
use std::collections::HashMap;
use std::time::Duration;

/// One device (or init function, or task) in two timelines.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Pair {
    /// Its name.
    pub name: String,
    /// Operation that ran.
    pub kind: SpanKind,
    /// Cost in the first timeline. `None`: it isn't there.
    pub a: Option<Side>,
    /// Cost in the second timeline. `None`: it isn't there.
    pub b: Option<Side>,
}

/// Cost of one device in one timeline, over all its spans.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Side {
    /// Number of runs: more than one where a probe was tried again.
    pub spans: usize,
    /// Time that it ran, without what ran inside it.
    pub own: Length,
    /// Time that it ran.
    pub took: Length,
    what_ran_inside: bool,
}

impl Side {
    /// Returns the time that is compared; see [`Comparison::what_ran_inside`].
    pub fn time(self) -> Length {
        if self.what_ran_inside { self.took } else { self.own }
    }
}

impl Pair {
    /// Returns the nanoseconds by which the second one is longer. A device that isn't there takes
    /// none. `None`: one of the two times isn't known.
    pub(crate) fn change_ns(&self) -> Option<i128> {
        let ns = |side: Option<Side>| {
            Some(side.map_or(Some(Duration::ZERO), |s| s.time().told())?.as_nanos() as i128)
        };
        Some(ns(self.b)? - ns(self.a)?)
    }

    /// Returns true if both times, and so the change, are known exactly.
    pub fn is_exact(&self) -> bool {
        [self.a, self.b].into_iter().flatten().all(|side| side.time().is_exact())
    }
}

/// Two timelines, device by device.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Comparison {
    /// Each device of either timeline. The greatest change comes first, whichever its direction;
    /// equal ones keep the order of the first timeline, then of the second.
    pub pairs: Vec<Pair>,
    /// True if times include what ran inside. That is so if one of the timelines has something
    /// [unplaced](crate::span::Unplaced), and so the runs inside it aren't known. Otherwise each
    /// time is a device's own.
    pub what_ran_inside: bool,
    /// Number of devices in the first timeline only.
    pub only_a: usize,
    /// Number of devices in the second timeline only.
    pub only_b: usize,
}

/// Lays `a` and `b` side by side. Spans belong to one device if name and kind agree.
pub fn compare(a: &Timeline, b: &Timeline) -> Comparison {
    let mut pairs: Vec<Pair> = Vec::new();
    let mut at: HashMap<(SpanKind, String), usize> = HashMap::new();
    let what_ran_inside = [a, b].iter().any(|t| !t.unplaced().is_empty());
    let side =
        |cost: &Cost| Side { spans: cost.times, own: cost.own, took: cost.took, what_ran_inside };
    let first_came = |t: &Timeline| {
        let mut costs = t.costs();
        costs.sort_by_key(|cost| cost.spans.first().map_or(usize::MAX, |id| id.index()));
        costs
    };
    for cost in first_came(a) {
        at.insert((cost.kind, cost.name.clone()), pairs.len());
        let a = Some(side(&cost));
        pairs.push(Pair { name: cost.name, kind: cost.kind, a, b: None });
    }
    for cost in first_came(b) {
        let b = Some(side(&cost));
        match at.get(&(cost.kind, cost.name.clone())) {
            Some(&i) => pairs[i].b = b,
            None => pairs.push(Pair { name: cost.name, kind: cost.kind, a: None, b }),
        }
    }
    let only = |f: fn(&Pair) -> bool| pairs.iter().filter(|p| f(p)).count();
    let (only_a, only_b) = (only(|p| p.b.is_none()), only(|p| p.a.is_none()));
    pairs.sort_by_key(|pair| Reverse(pair.change_ns().map_or(0, i128::unsigned_abs)));
    Comparison { pairs, what_ran_inside, only_a, only_b }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::ms;
    use crate::span::Span;

    fn timeline(spans: &[(&str, u64, u64)]) -> Timeline {
        let mut t = Timeline::new("t");
        for &(name, start, end) in spans {
            t.push(Span::new(name, SpanKind::Probe, ms(start), ms(end)).on("w", None));
        }
        t
    }

    #[test]
    fn each_device_is_laid_beside_itself_and_the_greatest_change_comes_first() {
        let a = timeline(&[("same", 0, 5), ("gone", 5, 7), ("slower", 7, 9), ("faster", 9, 29)]);
        let b = timeline(&[("new", 0, 3), ("same", 3, 8), ("faster", 8, 9), ("slower", 9, 20)]);
        let c = compare(&a, &b);
        let told: Vec<_> = c
            .pairs
            .iter()
            .map(|p| (p.name.as_str(), p.change_ns().map(|ns| ns / 1_000_000)))
            .collect();
        let changes = [("faster", -19), ("slower", 9), ("new", 3), ("gone", -2), ("same", 0)];
        assert_eq!(told, changes.map(|(name, change)| (name, Some(change))));
        assert_eq!((c.only_a, c.only_b), (1, 1));
    }

    #[test]
    fn spans_of_one_name_and_kind_are_tries_of_one_device() {
        let mut a = timeline(&[("d", 0, 1), ("d", 2, 4), ("d", 5, 9)]);
        a.push(Span::new("d", SpanKind::Shutdown, ms(10), ms(11)));
        let c = compare(&a, &timeline(&[("d", 0, 1)]));
        let told = |side: Option<Side>| side.map(|s| (s.spans, s.time().known()));
        assert_eq!(told(c.pairs[0].a), Some((3, Some(ms(7)))));
        assert_eq!(told(c.pairs[0].b), Some((1, Some(ms(1)))));
        assert_eq!((c.pairs.len(), c.only_a), (2, 1));
    }

    #[test]
    fn where_it_is_not_known_what_ran_inside_what_the_whole_times_are_compared() {
        let mut a = timeline(&[("outer", 0, 10)]);
        a.push(Span::new("inner", SpanKind::Probe, ms(1), ms(9)).on("w", None));
        let outer = compare(&a, &a).pairs[0].a.expect("it is in both");
        assert_eq!(outer.time(), ms(2));
        let mut b = Timeline::new("b");
        for (name, took) in [("outer", Length::exact(ms(10))), ("inner", Length::UNKNOWN)] {
            b.push_unplaced(crate::span::Unplaced::new(name, SpanKind::Probe, took));
        }
        let c = compare(&a, &b);
        assert!(c.what_ran_inside);
        let changes: Vec<_> = c.pairs.iter().map(|p| (p.name.as_str(), p.change_ns())).collect();
        assert_eq!(changes, [("outer", Some(0)), ("inner", None)]);
    }
}
