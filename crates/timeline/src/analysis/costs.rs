//! Cost of each device and of each driver.

use super::nesting::Nesting;
use crate::length::Length;
use crate::span::Driver;
use crate::span::{SpanId, SpanKind, Timeline, Unplaced};
use std::cmp::Reverse;
use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

/// Cost of one device (or init function, or task) in a timeline, over all its spans.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Cost {
    /// Its name.
    pub name: String,
    /// Operation that ran.
    pub kind: SpanKind,
    /// The driver of its first span.
    pub driver: Option<Driver>,
    /// Its spans.
    pub spans: Vec<SpanId>,
    /// Number of runs, at known and unknown moments: more than one where a probe was tried again.
    pub times: usize,
    /// Time that it ran, without what ran inside it.
    pub own: Length,
    /// Time that it ran.
    pub took: Length,
    /// Share of the whole timeline's own time.
    pub share: Share,
    /// Time by which it could have been longer, or started later, without delaying the whole, if
    /// everything were asynchronous. Of several spans the least one counts. Not known if one of
    /// them is [unplaced](crate::span::Unplaced).
    pub slack: Length,
}

/// A part of a whole, as exact as the lengths that it is computed from. Its text is a percentage,
/// with the sign that a [`Length`] has, or `?`.
///
/// ```
/// use corewise_timeline::{Length, analysis::Share};
/// use std::time::Duration;
///
/// let ms = |n| Length::exact(Duration::from_millis(n));
/// assert_eq!(Share::of(ms(30), ms(10)).to_string(), "75.0 %");
/// let gap = Length::at_most(Duration::from_millis(30));
/// assert_eq!(Share::of(gap, ms(10)).to_string(), "≤75.0 %");
/// assert_eq!(Share::of(Length::UNKNOWN, ms(10)).to_string(), "?");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Share {
    least: f64,
    most: f64,
    told: Option<f64>,
}

impl Share {
    /// Returns the part that `own` has of itself and all the `others` together.
    pub fn of(own: Length, others: Length) -> Share {
        let part = |own: Duration, others: Duration| {
            let all = own.as_nanos().saturating_add(others.as_nanos());
            if all > 0 { own.as_nanos() as f64 / all as f64 } else { 0.0 }
        };
        let told = own.told().map(|told| part(told, others.told().unwrap_or(others.least())));
        Share {
            least: others.most().map_or(0.0, |others| part(own.least(), others)),
            most: own.most().map_or(1.0, |own| part(own, others.least())),
            told,
        }
    }

    /// Returns the lower bound, from 0 to 1.
    pub fn least(self) -> f64 {
        self.least
    }

    /// Returns the upper bound.
    pub fn most(self) -> f64 {
        self.most
    }

    /// Returns the number in its text. `None`: there is no such number.
    pub fn told(self) -> Option<f64> {
        self.told
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(told) = self.told else { return f.pad("?") };
        let percent = |part: f64| format!("{:.1} %", part * 100.0);
        let [least, told, most] = [self.least, told, self.most].map(percent);
        let sign = match () {
            () if least == most => "",
            () if told == most => "≤",
            () if told == least && told != percent(0.0) => "≥",
            () => "~",
        };
        f.pad(&format!("{sign}{told}"))
    }
}

impl Timeline {
    /// Returns the time by which each span could be later, or longer, without delaying the end, by
    /// index. Everything is taken to be asynchronous, with a worker for everything. Zero on the
    /// [critical path](Timeline::critical_path).
    pub fn slack(&self) -> Vec<Length> {
        super::tasks::slack(self)
    }

    /// Returns the cost of each device. The one with the most time of its own comes first (if no
    /// span has a place in time: with the most time); equal ones keep their order.
    pub fn costs(&self) -> Vec<Cost> {
        let nesting = Nesting::of(self);
        let slack = self.slack();
        let mut by_name: HashMap<(SpanKind, &str), usize> = HashMap::new();
        let mut costs: Vec<Cost> = Vec::new();
        for (id, span) in self.iter() {
            let at = *by_name.entry((span.kind, &span.name)).or_insert_with(|| {
                costs.push(Cost::of(&span.name, span.kind, span.driver.as_ref()));
                costs.len() - 1
            });
            let cost = &mut costs[at];
            let slack = slack[id.index()];
            if cost.times == 0 || slack.told() < cost.slack.told() {
                cost.slack = slack;
            }
            cost.spans.push(id);
            cost.times += 1;
            cost.own = cost.own + nesting.exclusive(id);
            cost.took = cost.took + span.took();
        }
        for Unplaced { name, kind, driver, took, .. } in self.unplaced() {
            let at = *by_name.entry((*kind, name)).or_insert_with(|| {
                costs.push(Cost::of(name, *kind, driver.as_ref()));
                costs.len() - 1
            });
            let cost = &mut costs[at];
            cost.times += 1;
            // All of it may be time of what ran inside it.
            cost.own = cost.own + took.or_less();
            cost.took = cost.took + *took;
            cost.slack = Length::UNKNOWN;
        }
        let by = |cost: &Cost| if self.spans().is_empty() { cost.took } else { cost.own };
        let told = |cost: &Cost| by(cost).told().unwrap_or_default();
        let all: Duration = costs.iter().map(told).sum();
        let least: Duration = costs.iter().map(|cost| by(cost).least()).sum();
        // If one has no upper bound, the others together have none either.
        let unbounded = costs.iter().filter(|cost| by(cost).most().is_none()).count();
        let most: Duration = costs.iter().filter_map(|cost| by(cost).most()).sum();
        for cost in &mut costs {
            let own = by(cost);
            let others = least.saturating_sub(own.least());
            let bounded = unbounded == usize::from(own.most().is_none());
            let others = match bounded {
                true => {
                    Length::between(others, most.saturating_sub(own.most().unwrap_or_default()))
                }
                false => Length::at_least(others),
            };
            let told = all.saturating_sub(own.told().unwrap_or_default());
            cost.share = Share::of(own, others.telling_any(told));
        }
        costs.sort_by_key(|cost| Reverse(told(cost)));
        costs
    }
}

impl Cost {
    fn of(name: &str, kind: SpanKind, driver: Option<&Driver>) -> Cost {
        Cost {
            name: name.to_owned(),
            kind,
            driver: driver.cloned(),
            spans: Vec::new(),
            times: 0,
            own: Length::ZERO,
            took: Length::ZERO,
            share: Share::default(),
            slack: Length::UNKNOWN,
        }
    }

    /// Returns its driver for people, with a mark if it is only the likeliest one. Empty: not
    /// known.
    pub(crate) fn driver_told(&self) -> String {
        self.driver.as_ref().map(Driver::to_string).unwrap_or_default()
    }
}

/// Cost of all the devices of one driver.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct DriverCost {
    /// The driver's name. Empty for spans whose driver isn't known.
    pub driver: String,
    /// Number of its spans.
    pub spans: usize,
    /// Number of spans for which this is only the [likeliest](Driver::is_inferred) driver. Lengths
    /// are at least those of the others.
    pub inferred: usize,
    /// Time that they ran, without what ran inside them.
    pub own: Length,
    /// The longest span, by its own time.
    pub longest: SpanId,
    /// Time that they would have taken if all else took no time and everything were asynchronous:
    /// the longest chain of them in the known graph.
    pub parallel: Length,
}

impl Timeline {
    /// Returns the cost of each driver, the one with the most time first, at most `most` of them.
    /// Unplaced runs are left out, as their nesting isn't known. Each cost is a prediction of its
    /// own, so a large number takes a while: spans times drivers.
    pub fn driver_costs(&self, most: usize) -> Vec<DriverCost> {
        let nesting = Nesting::of(self);
        let mut by_name: HashMap<&str, Vec<SpanId>> = HashMap::new();
        for (id, span) in self.iter() {
            by_name.entry(span.driver.as_ref().map_or("", Driver::name)).or_default().push(id);
        }
        let inferred = |id| self.span(id).driver.as_ref().is_some_and(Driver::is_inferred);
        let own = |&id: &SpanId| match (nesting.exclusive(id), inferred(id)) {
            (own, true) => own.or_less(),
            (own, false) => own,
        };
        let own = |ids: &[SpanId]| ids.iter().map(own).sum::<Length>();
        let mut drivers: Vec<(&str, Vec<SpanId>)> = by_name.into_iter().collect();
        drivers.sort_by_key(|(driver, ids)| (Reverse(own(ids).told()), *driver));
        drivers.truncate(most);
        let parallel = |ids: &[SpanId]| super::tasks::chain_of(self, ids);
        let cost = |(driver, ids): (&str, Vec<SpanId>)| {
            let named: Vec<SpanId> = ids.iter().copied().filter(|&id| !inferred(id)).collect();
            let inferred = ids.len() - named.len();
            let longest = ids
                .iter()
                .copied()
                .max_by_key(|&id| (nesting.exclusive(id).told(), Reverse(id)))?;
            Some(DriverCost {
                driver: driver.to_owned(),
                spans: ids.len(),
                inferred,
                own: own(&ids),
                longest,
                parallel: match inferred {
                    0 => parallel(&ids),
                    _ => parallel(&ids).or_as(parallel(&named)),
                },
            })
        };
        drivers.into_iter().filter_map(cost).collect()
    }
}

impl DriverCost {
    /// Returns its name for people, with a mark if it is only the likeliest one for some of the
    /// spans.
    pub(crate) fn driver_told(&self) -> String {
        match self.driver.is_empty() {
            true => "(not known)".to_owned(),
            false if self.inferred > 0 => Driver::inferred(&self.driver).to_string(),
            false => self.driver.clone(),
        }
    }
}

/// Cost of all spans of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct KindCost {
    /// Number of spans.
    pub spans: usize,
    /// Time that they ran, without what ran inside them.
    pub own: Length,
    /// Time that they would have taken if all else took no time and everything were asynchronous:
    /// the longest chain of them in the known graph.
    pub parallel: Length,
}

impl Timeline {
    /// Returns the cost of all placed spans of `kind`. In a boot, that of the probes alone.
    pub fn kind_cost(&self, kind: SpanKind) -> KindCost {
        let nesting = Nesting::of(self);
        let ids: Vec<SpanId> =
            self.iter().filter(|(_, span)| span.kind == kind).map(|(id, _)| id).collect();
        KindCost {
            spans: ids.len(),
            own: ids.iter().map(|&id| nesting.exclusive(id)).sum(),
            parallel: super::tasks::chain_of(self, &ids),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::ms;
    use crate::span::{Certainty, EdgeKind, Span};

    fn push(t: &mut Timeline, name: &str, driver: &str, start: u64, end: u64) -> SpanId {
        let mut span = Span::new(name, SpanKind::Probe, ms(start), ms(end)).on("w", None);
        span.driver = Some(driver).filter(|driver| !driver.is_empty()).map(Into::into);
        t.push(span)
    }

    #[test]
    fn a_device_that_was_tried_again_is_one_with_all_its_time() {
        let mut t = Timeline::new("t");
        push(&mut t, "disk", "", 0, 3);
        push(&mut t, "pci", "", 3, 10);
        push(&mut t, "disk", "", 4, 9);
        let costs = t.costs();
        let told: Vec<_> = costs.iter().map(|c| (c.name.as_str(), c.spans.len(), c.own)).collect();
        assert_eq!(told, [("disk", 2, ms(8).into()), ("pci", 1, ms(2).into())]);
        assert_eq!(costs[0].took, ms(8));
        assert_eq!(costs[1].took, ms(7));
        assert_eq!(costs[0].share.to_string(), "80.0 %");
    }

    #[test]
    fn a_share_is_no_surer_than_what_it_is_made_of() {
        let mut t = Timeline::new("t");
        for (name, end, certainty) in [
            ("gap", 30, Certainty::UpperBound),
            ("exact", 10, Certainty::Measured),
            ("last", 0, Certainty::Assumed),
        ] {
            let mut span = Span::new(name, SpanKind::Shutdown, ms(0), ms(end));
            span.end_certainty = certainty;
            t.push(span);
        }
        let shares = |t: &Timeline| -> Vec<String> {
            t.costs().iter().map(|cost| cost.share.to_string()).collect()
        };
        // The last one may have taken any time, so the others' shares are open.
        assert_eq!(shares(&t), ["≤75.0 %", "~25.0 %", "?"]);
        let t = t.filtered(|name, _| name != "last");
        assert_eq!(shares(&t), ["≤75.0 %", "≥25.0 %"]);
        let t = t.filtered(|name, _| name != "gap");
        assert_eq!(shares(&t), ["100.0 %"]);
    }

    #[test]
    fn a_span_that_nothing_waits_for_has_slack() {
        let mut t = Timeline::new("t");
        let a = push(&mut t, "a", "", 0, 10);
        let b = push(&mut t, "b", "", 10, 15);
        // It waited for a worker only.
        let mut c = Span::new("c", SpanKind::Probe, ms(15), ms(19)).on("w", None);
        c.queued = ms(0);
        let c = t.push(c);
        t.push_edge(a, b, EdgeKind::Supplier);
        let slack: Vec<_> = t.costs().into_iter().map(|c| (c.name, c.slack.known())).collect();
        let told = [("a", 0), ("b", 0), ("c", 11)].map(|(n, s)| (n.to_owned(), Some(ms(s))));
        assert_eq!(slack, told);
        assert!(!t.critical_path().spans.contains(&c));
    }

    #[test]
    fn the_probes_of_a_boot_are_told_apart_from_what_ran_them() {
        let mut t = Timeline::new("boot");
        t.push(Span::new("init", SpanKind::Initcall, ms(0), ms(30)).on("w", None));
        push(&mut t, "a", "", 5, 15);
        push(&mut t, "b", "", 15, 28);
        let told = KindCost { spans: 2, own: ms(23).into(), parallel: ms(13).into() };
        assert_eq!(t.kind_cost(SpanKind::Probe), told);
        assert_eq!(t.kind_cost(SpanKind::Shutdown).spans, 0);
    }

    #[test]
    fn a_driver_in_parallel_takes_its_longest_or_its_longest_chain() {
        let mut t = Timeline::new("t");
        let a = push(&mut t, "a", "nvme", 0, 10);
        let between = push(&mut t, "x", "pci", 10, 30);
        let b = push(&mut t, "b", "nvme", 30, 35);
        push(&mut t, "c", "nvme", 35, 47);
        push(&mut t, "d", "", 47, 48);
        t.push_edge(a, between, EdgeKind::Supplier);
        t.push_edge(between, b, EdgeKind::Supplier);
        let drivers = t.driver_costs(9);
        let told: Vec<_> =
            drivers.iter().map(|d| (d.driver.as_str(), d.spans, d.own, d.parallel)).collect();
        let row = |driver, n, own, parallel| (driver, n, ms(own).into(), ms(parallel).into());
        assert_eq!(told, [row("nvme", 3, 27, 15), row("pci", 1, 20, 20), row("", 1, 1, 1)]);
        assert_eq!(t.span(drivers[0].longest).name, "c");
        assert_eq!(t.driver_costs(1).len(), 1);
    }

    #[test]
    fn an_unplaced_run_costs_its_duration_and_may_contain_others() {
        let mut t = Timeline::new("t");
        for (name, took) in [("a", 5), ("b", 9), ("a", 6)] {
            t.push_unplaced(Unplaced::new(name, SpanKind::Probe, ms(took).into()));
        }
        let costs = t.costs();
        assert_eq!((costs[0].name.as_str(), costs[0].times), ("a", 2));
        assert_eq!(costs[0].took, ms(11));
        assert_eq!((costs[0].own, costs[0].slack), (Length::at_most(ms(11)), Length::UNKNOWN));
        assert!(t.driver_costs(9).is_empty());
    }
}
