//! The numbers of a timeline: makespan, serial sum, critical path, parallelism.

use crate::analysis::{Nesting, chain};
use crate::length::Length;
use crate::span::{Certainty, Outcome, Span, SpanId, Timeline};
use std::ops::Add;
use std::time::Duration;

/// The chain of spans that bounds a timeline from below; see
/// [`Timeline::critical_path`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CriticalPath {
    /// The spans of the chain, first to last. Empty for an empty timeline.
    pub spans: Vec<SpanId>,
    /// Time from the timeline's origin to the end of the last span: the spans' run times, and the
    /// time before and between them that no worker could have shortened.
    pub length: Length,
}

impl CriticalPath {
    /// Returns a flag for each span of `t`, by index: true if it is on the path.
    pub(crate) fn marks(&self, t: &Timeline) -> Vec<bool> {
        let mut marks = vec![false; t.spans().len()];
        for id in &self.spans {
            marks[id.0] = true;
        }
        marks
    }
}

/// The numbers of a timeline that a heading shows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Summary {
    /// Number of spans, at known moments and at unknown ones.
    pub spans: usize,
    /// Number of spans that ended well.
    pub ok: usize,
    /// Number of spans that failed.
    pub failed: usize,
    /// Number of spans that were skipped.
    pub skipped: usize,
    /// Number of spans that were cancelled.
    pub cancelled: usize,
    /// Number of spans that were put off, to be tried again.
    pub deferred: usize,
    /// Number of spans without a callback.
    pub no_callback: usize,
    /// See [`Timeline::makespan`].
    pub makespan: Length,
    /// See [`Timeline::serial_sum`].
    pub serial_sum: Length,
    /// See [`Timeline::critical_path`].
    pub critical_path: Length,
    /// Largest number of spans that ran at one moment.
    pub max_parallelism: usize,
    /// True if more may have run at once. A span may have run longer than its bar, or beside the
    /// one that seems to contain it, or the [clock went back](Timeline::clock_went_back).
    pub open_ended: bool,
    /// Number of spans without a known place in time; see [`Unplaced`](crate::span::Unplaced).
    pub unplaced: usize,
    /// See [`Timeline::resolution`]. Unless it is zero, `max_parallelism` is approximate.
    pub resolution: Duration,
}

impl Timeline {
    /// Returns the moment at which the first span could have started: the earliest `queued`. Zero
    /// when empty.
    pub fn origin(&self) -> Duration {
        self.spans().iter().map(|s| s.queued).min().unwrap_or_default()
    }

    /// Returns the moment at which the last span was over. Zero when empty.
    pub fn finish(&self) -> Duration {
        self.spans().iter().map(|s| s.end).max().unwrap_or_default()
    }

    /// Returns the time from the [origin](Timeline::origin) to the end of the last span. Zero when
    /// empty.
    pub fn makespan(&self) -> Length {
        let drawn = self.finish().saturating_sub(self.origin());
        let over = |end: fn(&Span) -> Duration| self.spans().iter().map(end).max();
        let began = |start: fn(&Span) -> Duration| self.spans().iter().map(start).min();
        let between = |began: Option<Duration>, over: Option<Duration>| {
            over.unwrap_or_default().saturating_sub(began.unwrap_or_default())
        };
        let shortest = between(began(|s| began_within(s).1), over(|s| over_within(s).0));
        let longest = between(began(|s| began_within(s).0), over(|s| over_within(s).1));
        // A span that took longer than the clock had run began before its zero, or the clock is
        // wrong.
        let longest = self.spans().iter().filter_map(before_zero).fold(longest, Duration::max);
        let shortest = shortest.saturating_sub(self.resolution());
        let longest = longest.saturating_add(self.resolution());
        if self.clock_went_back() {
            let longest = self.spans().iter().map(|span| span.took().least()).max();
            return Length::at_least(longest.unwrap_or_default()).telling_any(drawn);
        }
        let ends = |s: &Span| s.end_certainty != Certainty::Assumed;
        match self.unplaced().is_empty() && self.spans().iter().all(ends) {
            true => Length::between(shortest, longest).telling(drawn),
            // Each of them ran within the makespan, or the makespan was longer.
            false => {
                let longest = self.unplaced().iter().map(|u| u.took.least()).max();
                Length::at_least(shortest.max(longest.unwrap_or_default()))
            }
        }
    }

    /// Returns the sum of all run times: the time that the same work takes one after another,
    /// provided that running in parallel made none of it slower or faster. A span that ran inside
    /// another one counts once, plus the time by which it outlived that one. An
    /// [unplaced](crate::span::Unplaced) one may have run inside another one, or by itself.
    pub fn serial_sum(&self) -> Length {
        let nesting = Nesting::of(self);
        let drawn = nesting.drawn_sum();
        let placed = nesting.sum().telling(drawn);
        self.unplaced().iter().map(|u| u.took.or_less()).fold(placed, Add::add)
    }

    /// Returns the chain of spans that no number of workers makes shorter: only shorter spans or
    /// fewer dependencies do. This is the chain that ends last if everything is asynchronous and
    /// there is a worker for everything. Its length is what
    /// [`WhatIf::all_async`](crate::analysis::WhatIf::all_async) predicts and never exceeds the
    /// makespan, and none of its spans has any [slack](Timeline::slack).
    ///
    /// * Its spans are joined by edges that were [kept](Timeline::is_kept). They are also joined by
    ///   nesting and order: the probe inside an init function, the next init function of a thread.
    /// * The chain may begin with a span that waited for nothing known and was ready late, as
    ///   something outside the timeline started it. That time counts.
    /// * Of equal chains, the one whose last span is longer wins, then the one that was pushed
    ///   first.
    ///
    /// The time is linear in spans plus edges, but for a logarithm. There is no recursion.
    pub fn critical_path(&self) -> CriticalPath {
        let (spans, length) = chain(self);
        // The bounds of a chain are sums of bounds. Those of the whole may be closer.
        let bounded = self.has_order();
        CriticalPath {
            spans,
            length: if bounded { length.within(self.makespan()) } else { length },
        }
    }

    /// Returns true if a span may have run longer than its bar, or beside the one that seems to
    /// contain it. Then more spans may have run at once than it seems.
    pub(crate) fn is_open_ended(&self) -> bool {
        if self.clock_went_back() {
            return true;
        }
        let last = self.spans().iter().map(|span| span.start).max().unwrap_or_default();
        self.spans().iter().any(|span| match span.took().most() {
            _ if span.seems_nested() => true,
            // A difference below the resolution of the kernel's stamps shows nothing.
            Some(most) => most > span.drawn() + Duration::from_micros(1),
            // The last span to begin overlaps no later one.
            None => span.start < last,
        })
    }

    /// Computes all the numbers at once.
    pub fn summary(&self) -> Summary {
        let count = |f: fn(&Outcome) -> bool| {
            let placed = self.spans().iter().map(|s| &s.outcome);
            placed.chain(self.unplaced().iter().map(|u| &u.outcome)).filter(|o| f(o)).count()
        };
        Summary {
            spans: self.spans().len() + self.unplaced().len(),
            ok: count(Outcome::is_ok),
            failed: count(|o| matches!(o, Outcome::Failed(_))),
            skipped: count(|o| matches!(o, Outcome::Skipped(_))),
            cancelled: count(|o| matches!(o, Outcome::Cancelled)),
            deferred: count(|o| matches!(o, Outcome::Deferred(_))),
            no_callback: self.spans().iter().filter(|s| s.no_callback).count(),
            makespan: self.makespan(),
            serial_sum: self.serial_sum(),
            critical_path: self.critical_path().length,
            max_parallelism: self.concurrency().most,
            open_ended: self.is_open_ended(),
            unplaced: self.unplaced().len(),
            resolution: self.resolution(),
        }
    }
}

/// Returns the earliest and the latest moment at which a span could have started.
fn began_within(s: &Span) -> (Duration, Duration) {
    match s.took_between {
        // The start was computed as the end minus the duration.
        Some((least, most)) if s.start_certainty == Certainty::Inferred && s.queued == s.start => {
            let (earliest, latest) = (s.end.saturating_sub(most), s.end.saturating_sub(least));
            (earliest.min(s.start), latest.max(s.start))
        }
        _ => (s.queued, s.queued),
    }
}

/// Returns the maximum duration of a span whose computed start would lie before the clock's zero.
fn before_zero(s: &Span) -> Option<Duration> {
    let (_, most) = s.took_between?;
    (s.start_certainty == Certainty::Inferred && most > s.end).then_some(most)
}

/// Returns the earliest and the latest moment at which a span was over.
fn over_within(s: &Span) -> (Duration, Duration) {
    match (s.end_certainty, s.took_between) {
        (Certainty::UpperBound, None) => (s.start, s.end),
        (Certainty::UpperBound, Some((least, most))) => {
            let over = |took| s.start.saturating_add(took);
            (over(least).min(s.end), over(most).max(s.end))
        }
        _ => (s.end, s.end),
    }
}

#[cfg(test)]
mod tests {
    use crate::fixtures::{ms, timeline};
    use crate::span::{Outcome, Span, SpanId, SpanKind, Timeline};
    use std::time::Duration;

    /// Creates spans by (start, end) and edges by index, as a shutdown: only edges decide when a
    /// span can start.
    fn shutdown(spans: &[(u64, u64)], edges: &[(usize, usize)]) -> Timeline {
        let spans: Vec<_> = spans.iter().map(|&(start, end)| ("", start, end)).collect();
        timeline(SpanKind::Shutdown, &spans, edges)
    }

    fn path(t: &Timeline) -> Vec<usize> {
        t.critical_path().spans.iter().map(|s| s.index()).collect()
    }

    #[test]
    fn an_empty_timeline_has_zero_of_everything() {
        assert_eq!(Timeline::new("t").summary(), crate::path::Summary::default());
    }

    #[test]
    fn a_chain_goes_through_spans_without_length_and_of_equal_chains_the_longer_end_wins() {
        type Spans<'a> = &'a [(u64, u64)];
        type Edges<'a> = &'a [(usize, usize)];
        let cases: [(Spans<'_>, Edges<'_>, &[usize], u64); 4] = [
            // 0 runs, 3 and 1 are completed on the spot, 2 runs. The ids are out of order.
            (&[(0, 5), (5, 5), (5, 9), (5, 5)], &[(0, 3), (3, 1), (1, 2)], &[0, 3, 1, 2], 9),
            // 3 leads into the cycle of 1 and 2, which leads to 0.
            (
                &[(5, 8), (5, 5), (5, 5), (0, 5)],
                &[(3, 1), (1, 2), (2, 1), (2, 0)],
                &[3, 1, 2, 0],
                8,
            ),
            // The longer end wins, then the one that was pushed first.
            (&[(0, 2), (2, 6), (0, 6)], &[(0, 1)], &[2], 6),
            (&[(0, 5), (1, 6)], &[], &[0], 5),
        ];
        for (spans, edges, found, length) in cases {
            let t = shutdown(spans, edges);
            assert_eq!(path(&t), found, "{spans:?}");
            assert_eq!(t.critical_path().length, ms(length), "{spans:?}");
        }
    }

    #[test]
    fn the_serial_sum_counts_a_nested_span_once() {
        let mut t = shutdown(&[(0, 10), (12, 14)], &[]);
        for (start, end, outer) in [(2, 9, 0), (9, 11, 0), (20, 24, 77)] {
            let mut nested = Span::new("n", SpanKind::Probe, ms(start), ms(end));
            nested.nested_in = Some(SpanId(outer));
            t.push(nested);
        }
        // The third span ran on for a millisecond after the one around it was over. The outer one
        // of the last span isn't there.
        assert_eq!(t.serial_sum(), ms(13 + 4));
    }

    #[test]
    fn a_chain_of_a_hundred_thousand_needs_no_stack() {
        let n = 100_000;
        let spans: Vec<(u64, u64)> = (0..n).map(|i| (i, i + 1)).collect();
        let edges: Vec<(usize, usize)> = (1..n as usize).map(|i| (i - 1, i)).collect();
        let t = shutdown(&spans, &edges);
        assert_eq!(t.critical_path().spans.len(), n as usize);
        assert_eq!(t.critical_path().length, t.makespan());
    }

    #[test]
    fn nested_spans_are_joined_to_their_outer_span() {
        let mut t = Timeline::new("boot");
        let call = t.push(Span::new("init", SpanKind::Initcall, ms(0), ms(10)));
        let mut probe = Span::new("disk", SpanKind::Probe, ms(2), ms(9));
        probe.nested_in = Some(call);
        t.push(probe);
        assert_eq!(path(&t), [0, 1]);
        assert_eq!(t.critical_path().length, ms(9));
    }

    #[test]
    fn the_path_agrees_with_trying_every_chain() {
        let mut rng = fastrand::Rng::with_seed(1);
        let mut random = |below: u64| rng.u64(..below);
        for _ in 0..300 {
            let n = 1 + random(8) as usize;
            let spans: Vec<(u64, u64)> = (0..n)
                .map(|_| {
                    let start = random(12);
                    (start, start + random(6))
                })
                .collect();
            let edges: Vec<(usize, usize)> = (0..random(16))
                .map(|_| (random(n as u64) as usize, random(n as u64) as usize))
                .filter(|(a, b)| a < b)
                .collect();
            let t = shutdown(&spans, &edges);
            let longest = (0..n).map(|i| longest_from(&t, i)).max().unwrap();
            let found = t.critical_path();
            assert_eq!(found.length, longest, "spans {spans:?} edges {edges:?}");
            assert_eq!(found.spans.iter().map(|&s| t.span(s).drawn()).sum::<Duration>(), longest);
            for pair in found.spans.windows(2) {
                assert!(
                    t.edges().iter().any(|e| [e.before, e.after] == pair[..] && t.is_kept(e)),
                    "{pair:?} is no kept edge"
                );
            }
        }
    }

    fn longest_from(t: &Timeline, i: usize) -> Duration {
        let rest = t.edges().iter().filter(|e| e.before.index() == i && t.is_kept(e));
        let rest = rest.map(|e| longest_from(t, e.after.index())).max().unwrap_or_default();
        t.spans()[i].drawn() + rest
    }

    #[test]
    fn the_makespan_begins_when_the_first_span_could_have_started() {
        let mut t = Timeline::new("t");
        let mut span = Span::new("a", SpanKind::Probe, ms(5), ms(8));
        span.queued = ms(2);
        t.push(span);
        assert_eq!(t.makespan(), ms(6));
    }

    #[test]
    fn the_summary_counts_each_outcome() {
        let mut t = Timeline::new("t");
        for outcome in [
            Outcome::Ok,
            Outcome::Failed("no".into()),
            Outcome::Skipped("late".into()),
            Outcome::Cancelled,
            Outcome::Deferred("clk".into()),
        ] {
            let mut span = Span::new("a", SpanKind::Probe, ms(0), ms(1));
            span.outcome = outcome;
            span.no_callback = span.outcome.is_ok();
            t.push(span);
        }
        let s = t.summary();
        assert_eq!((s.spans, s.ok, s.failed, s.skipped), (5, 1, 1, 1));
        assert_eq!((s.cancelled, s.deferred), (1, 1));
        assert_eq!(s.no_callback, 1);
    }
}
