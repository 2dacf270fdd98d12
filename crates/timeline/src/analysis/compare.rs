//! Two timelines side by side.

use super::costs::Cost;
use crate::model::{SpanKind, Timeline};
use std::cmp::Reverse;
use std::collections::HashMap;
use std::time::Duration;

/// One device (or init function, or task) in two timelines.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Pair {
    /// Its name.
    pub name: String,
    /// What was done.
    pub kind: SpanKind,
    /// What it cost in the first one; `None` where it isn't there.
    pub a: Option<Side>,
    /// What it cost in the second one.
    pub b: Option<Side>,
}

/// What one device cost in one timeline, all its spans together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Side {
    /// How many spans it had: more than one where a probe was tried again.
    pub spans: usize,
    /// How long they ran, what ran inside them apart.
    pub own: Duration,
}

impl Pair {
    /// Nanoseconds by which the second one is longer; what isn't there takes none.
    pub fn change_ns(&self) -> i128 {
        let ns = |side: Option<Side>| side.map_or(0, |s| s.own.as_nanos() as i128);
        ns(self.b) - ns(self.a)
    }
}

/// Two timelines, device by device.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Comparison {
    /// Each that is in one of them, the greatest change first, whichever its direction; of equal
    /// ones in the order of the first timeline, then of the second.
    pub pairs: Vec<Pair>,
    /// How many are in the first one only.
    pub only_a: usize,
    /// How many are in the second one only.
    pub only_b: usize,
}

/// Lays `a` and `b` side by side. Spans are one device's where name and kind agree.
pub fn compare(a: &Timeline, b: &Timeline) -> Comparison {
    let mut pairs: Vec<Pair> = Vec::new();
    let mut at: HashMap<(SpanKind, String), usize> = HashMap::new();
    let side = |cost: &Cost| Side { spans: cost.spans.len(), own: cost.own };
    let first_came = |t: &Timeline| {
        let mut costs = t.costs();
        costs.sort_by_key(|cost| cost.spans.first().copied());
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
    pairs.sort_by_key(|pair| Reverse(pair.change_ns().unsigned_abs()));
    Comparison { pairs, only_a, only_b }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Span;

    fn timeline(spans: &[(&str, u64, u64)]) -> Timeline {
        let ms = Duration::from_millis;
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
        let told: Vec<_> =
            c.pairs.iter().map(|p| (p.name.as_str(), p.change_ns() / 1_000_000)).collect();
        let changes = [("faster", -19), ("slower", 9), ("new", 3), ("gone", -2), ("same", 0)];
        assert_eq!(told, changes);
        assert_eq!((c.only_a, c.only_b), (1, 1));
    }

    #[test]
    fn tries_are_counted_and_summed() {
        let a = timeline(&[("d", 0, 1), ("d", 2, 4), ("d", 5, 9)]);
        let c = compare(&a, &timeline(&[("d", 0, 1)]));
        let ms = Duration::from_millis;
        assert_eq!(c.pairs[0].a, Some(Side { spans: 3, own: ms(7) }));
        assert_eq!(c.pairs[0].b, Some(Side { spans: 1, own: ms(1) }));
    }

    #[test]
    fn one_name_of_two_kinds_is_two() {
        let mut a = timeline(&[("d", 0, 1)]);
        let ms = Duration::from_millis;
        a.push(Span::new("d", SpanKind::Shutdown, ms(1), ms(2)));
        assert_eq!(compare(&a, &Timeline::new("t")).pairs.len(), 2);
    }
}
