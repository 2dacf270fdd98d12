//! Prediction of a run with other workers, without an order, or with a faster device.

use super::replay::replay;
use super::tasks::{ScheduledTask, schedule};
use super::tasks::{TimeBound, as_sure_as, tasks};
use crate::length::Length;
use crate::span::{Span, SpanId, SpanKind, Timeline};
use crate::units::verb;
use std::time::Duration;

/// The assumptions of a prediction. Without any, the prediction is the run as it was.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct WhatIf {
    workers: Option<usize>,
    all_async: bool,
    factors: Vec<(SpanId, f64)>,
}

impl WhatIf {
    /// Creates an empty set of assumptions.
    pub fn new() -> WhatIf {
        WhatIf::default()
    }

    /// Makes everything but init functions asynchronous: only the known graph says what comes
    /// before what, and there is a worker for everything that is ready.
    #[must_use]
    pub fn all_async(mut self) -> WhatIf {
        self.all_async = true;
        self
    }

    /// Makes everything but init functions asynchronous, with `workers` workers (0 counts as 1).
    #[must_use]
    pub fn workers(mut self, workers: usize) -> WhatIf {
        self.workers = Some(workers.max(1));
        self.all_async()
    }

    /// Scales each of `spans` by `factor`, without what ran inside it. A factor below 0, or that is
    /// no number, counts as 0. The last entry for a span counts.
    #[must_use]
    pub fn scaled(mut self, spans: impl IntoIterator<Item = SpanId>, factor: f64) -> WhatIf {
        let factor = if factor.is_finite() { factor.max(0.0) } else { 0.0 };
        self.factors.extend(spans.into_iter().map(|id| (id, factor)));
        self
    }

    /// Returns the usual predictions with their names: all asynchronous with 1, 2, 4, 8, 16 and 32
    /// workers, and with one for everything.
    pub(crate) fn usual() -> Vec<(String, WhatIf)> {
        let some = [1usize, 2, 4, 8, 16, 32].into_iter().map(|n| {
            let workers = if n == 1 { "worker" } else { "workers" };
            (format!("{n} {workers}"), WhatIf::new().workers(n))
        });
        some.chain([("any number".to_owned(), WhatIf::new().all_async())]).collect()
    }

    /// Returns the [usual](WhatIf::usual) predictions of `t`. Those that more workers don't improve
    /// are one entry, such as `16 workers or more`.
    pub(crate) fn usual_of(t: &Timeline) -> Vec<(String, Prediction)> {
        let mut all: Vec<(String, Prediction)> =
            WhatIf::usual().into_iter().map(|(name, what_if)| (name, what_if.predict(t))).collect();
        let takes = |p: &Prediction| p.timeline.finish();
        let Some(best) = all.last().map(|(_, p)| takes(p)) else { return all };
        // A thousandth is no difference that could be measured.
        let enough = |p: &Prediction| takes(p) <= best + best / 1000;
        let settled = all.iter().rposition(|(_, p)| !enough(p)).map_or(0, |i| i + 1);
        if settled + 1 < all.len() {
            all.truncate(settled + 1);
            if let Some((name, _)) = all.last_mut() {
                name.push_str(" or more");
            }
        }
        all
    }

    /// Returns true if everything is scheduled anew. Otherwise the run is repeated, possibly with
    /// other times.
    pub(crate) fn schedules_anew(&self) -> bool {
        self.all_async
    }

    /// Returns true if there are no assumptions.
    pub fn is_empty(&self) -> bool {
        *self == WhatIf::default()
    }

    /// Predicts the run of `t` under these assumptions.
    ///
    /// If only some spans take another time, the run is repeated: the same workers run the same
    /// spans in the same order, and the time between them passes again. If all is asynchronous, it
    /// is scheduled anew, by list scheduling with the longest remaining chain first:
    ///
    /// * dependencies that were [kept](Timeline::is_kept) in the run hold, others don't;
    /// * a nested span starts when the outer one has progressed as far as it had then;
    /// * init functions keep the order of their worker, with the time that passed between them;
    /// * a span inside nothing that waited for nothing known is ready no sooner than it was, as
    ///   something outside the timeline started it. Shutdowns are excepted: a loop calls them.
    ///
    /// A span keeps its duration: another one that runs beside it makes it no slower. If the
    /// duration is known by bounds only, the schedule is made with each of them, and the results
    /// have bounds, too. [Unplaced](crate::span::Unplaced) runs take no part. The time is linear in
    /// spans plus edges, but for a logarithm.
    ///
    /// # Panics
    ///
    /// If [`scaled`](WhatIf::scaled) was given an id of a larger timeline.
    pub fn predict(&self, t: &Timeline) -> Prediction {
        let mut factors = vec![1.0; t.spans().len()];
        for &(id, factor) in &self.factors {
            factors[id.index()] = factor;
        }
        let factor = |id: SpanId| factors[id.index()];
        if self.all_async { self.scheduled(t, factor) } else { repeated(t, factor) }
    }

    fn scheduled(&self, t: &Timeline, factor: impl Fn(SpanId) -> f64) -> Prediction {
        let of = |taking| tasks(t, taking, &factor);
        let work = |taking| sum(of(taking).iter().map(|task| task.work));
        let bound = |taking| {
            let tasks = of(taking);
            let longest = tasks.iter().map(|task| task.release.saturating_add(task.rank)).max();
            let work = sum(tasks.iter().map(|task| task.work));
            let evenly = self.workers.map_or(0, |n| work.div_ceil(n as u64));
            longest.unwrap_or(0).max(evenly)
        };
        let end = |placed: &[ScheduledTask]| placed.iter().map(|p| p.end).max().unwrap_or(0);
        let mut timeline = Timeline::new(t.name());
        for ((_, span), place) in t.iter().zip(&schedule(&of(TimeBound::Drawn), self.workers)) {
            let mut span = span.clone();
            span.worker = format!("worker {}", place.worker);
            span.cpu = None;
            span.queued = Duration::from_nanos(place.ready);
            span.start = Duration::from_nanos(place.start);
            span.end = Duration::from_nanos(place.end);
            span.released_by = place.released_by.map(|i| t.spans()[i].name.clone());
            timeline.push(predicted(span));
        }
        let mut timeline = finish(t, timeline);
        for caveat in caveats(t) {
            timeline.note(format!("predicted: {caveat}"));
        }
        // The bounds of a chain are sums of bounds. If nothing takes longer than it did and nothing
        // waits for a worker, the bounds of the run itself may be closer.
        let bounded = self.workers.is_none() && self.factors.iter().all(|&(_, by)| by <= 1.0);
        let whole = Some(t.makespan()).filter(|_| bounded && t.has_order());
        let within = |length: Length| whole.map_or(length, |whole| length.within(whole));
        Prediction {
            makespan: within(as_sure_as(t, |taking| end(&schedule(&of(taking), self.workers)))),
            work: as_sure_as(t, work),
            bound: within(as_sure_as(t, bound)),
            timeline,
        }
    }
}

/// Sums times without overflow: a broken stamp may have any value.
fn sum(times: impl Iterator<Item = u64>) -> u64 {
    times.fold(0, u64::saturating_add)
}

/// Predicts a run that is repeated. If the nesting isn't known, the result lies between the run as
/// it seems to have been and the one in which those spans ran beside each other.
fn repeated(t: &Timeline, factor: impl Fn(SpanId) -> f64) -> Prediction {
    let seeming = repeated_as_nested(t, &factor);
    if !t.spans().iter().any(Span::seems_nested) {
        return seeming;
    }
    let mut apart = t.clone();
    for span in apart.spans_mut().iter_mut().filter(|span| span.seems_nested()) {
        span.nested_in = None;
        span.worker.clear();
    }
    let apart = repeated_as_nested(&apart, factor);
    Prediction {
        makespan: seeming.makespan.or_as(apart.makespan),
        work: seeming.work.or_as(apart.work),
        bound: seeming.bound.or_as(apart.bound),
        timeline: seeming.timeline,
    }
}

fn repeated_as_nested(t: &Timeline, factor: impl Fn(SpanId) -> f64) -> Prediction {
    let mut timeline = Timeline::new(t.name());
    for ((_, span), (start, end)) in t.iter().zip(replay(t, factor)) {
        let mut span = span.clone();
        let waited = span.waited();
        span.start = Duration::from_nanos(start);
        span.end = Duration::from_nanos(end);
        // The wait for a worker isn't known to change.
        span.queued = span.start.saturating_sub(waited);
        timeline.push(predicted(span));
    }
    let timeline = finish(t, timeline);
    Prediction {
        makespan: timeline.makespan(),
        work: timeline.serial_sum(),
        bound: timeline.critical_path().length,
        timeline,
    }
}

/// Marks the times of a moved span as no more exact than before.
fn predicted(mut span: Span) -> Span {
    if let Some((least, most)) = span.took_between {
        let drawn = span.drawn();
        span.took_between = Some((least.min(drawn), most.max(drawn)));
    }
    span
}

/// Adds the edges, the notes and the resolution of `t`.
fn finish(t: &Timeline, mut timeline: Timeline) -> Timeline {
    timeline.set_resolution(t.resolution());
    timeline.set_clock_went_back(t.clock_went_back());
    for edge in t.edges() {
        timeline.push_edge(edge.before, edge.after, edge.kind);
    }
    for note in t.notes() {
        timeline.note(note);
    }
    timeline
}

/// Returns the sentences that a reader of a prediction with everything asynchronous needs.
pub(crate) fn caveats(t: &Timeline) -> Vec<String> {
    let mut caveats: Vec<String> = Vec::new();
    match (t.edges().len(), t.edges_not_kept().count()) {
        (0, _) => {
            caveats.push("no dependency is known, so nothing waits: this is the best case".into())
        }
        (_, 0) => {}
        (all, not) => caveats.push(format!(
            "{not} of {} {} not kept in this run ({}), and so {} for nothing",
            if all == 1 { "1 dependency".to_owned() } else { format!("{all} dependencies") },
            verb(not, "was", "were"),
            verb(not, "it is nested, or broke a cycle", "they are nested, or broke cycles"),
            verb(not, "counts", "count")
        )),
    }
    if is_boot(t) {
        let idle = t.concurrency().time_at.first().copied().unwrap_or_default();
        let makespan = t.finish().saturating_sub(t.origin());
        let idle = 100.0 * idle.as_secs_f64() / makespan.as_secs_f64().max(1e-12);
        let about = if t.is_exact() { "" } else { "~" };
        caveats.push(format!(
            "init functions keep their order, and {about}{idle:.0}\u{a0}% of the time no span of the log ran"
        ));
    }
    if t.spans().iter().any(|s| s.kind != SpanKind::Shutdown) {
        caveats.push("a span with an unknown starter starts no sooner".into());
    }
    caveats
}

/// Returns true if the timeline has init functions beside devices.
pub(crate) fn is_boot(t: &Timeline) -> bool {
    t.spans().iter().any(|s| s.kind == SpanKind::Initcall)
}

/// A predicted run.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Prediction {
    /// Time that it would have taken, from the run's [origin](Timeline::origin).
    pub makespan: Length,
    /// The time of all spans together; nested ones count once.
    pub work: Length,
    /// Lower bound of every schedule with that many workers: the longest chain, or the work spread
    /// evenly. If the run was only repeated, this is the longest chain, which that run may be far
    /// from.
    pub bound: Length,
    /// The run that was predicted. Its times count from the run's origin; spans and edges keep
    /// their ids. Beside the run's own notes it has those that a reader of a schedule needs, such
    /// as that no dependency is known.
    pub timeline: Timeline,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{ms, timeline};
    use crate::span::{EdgeKind, Span};

    /// Creates three devices that are shut down one after another. The third one is the parent of
    /// the second.
    fn serial() -> Timeline {
        let mut t = Timeline::new("shutdown");
        for (name, start, end) in [("a", 10, 40), ("b", 40, 60), ("c", 60, 65)] {
            t.push(Span::new(name, SpanKind::Shutdown, ms(start), ms(end)).on("main", None));
        }
        t.push_edge(SpanId(1), SpanId(2), EdgeKind::Parent);
        t
    }

    fn told(p: &Prediction) -> [Duration; 3] {
        [p.makespan, p.work, p.bound].map(|length| length.known().expect("each of them is exact"))
    }

    #[test]
    fn what_is_different_changes_the_makespan_and_its_bound() {
        let t = serial();
        for (what_if, found) in [
            (WhatIf::new(), [55, 55, 30]),
            (WhatIf::new().all_async(), [30, 55, 30]),
            (WhatIf::new().workers(1), [55, 55, 55]),
            (WhatIf::new().workers(2), [30, 55, 30]),
        ] {
            assert_eq!(told(&what_if.predict(&t)), found.map(ms), "{what_if:?}");
            assert_eq!(what_if.predict(&Timeline::new("t")).makespan, Duration::ZERO);
        }
        let p = WhatIf::new().all_async().predict(&t);
        assert_eq!(p.timeline.edges_not_kept().count(), 0);
        assert_eq!(p.timeline.span(SpanId(2)).released_by.as_deref(), Some("b"));
        assert_eq!(p.timeline.lanes().len(), 2);
        let a = t.find("a");
        for (what_if, makespan) in [
            (WhatIf::new().scaled(a, 0.5), 40),
            (WhatIf::new().scaled(a, f64::NAN), 25),
            // With everything asynchronous, the other chain is left.
            (WhatIf::new().all_async().scaled(a, 0.5), 25),
        ] {
            assert_eq!(what_if.predict(&t).makespan, ms(makespan), "{what_if:?}");
        }
    }

    #[test]
    fn the_task_with_the_longest_chain_goes_first() {
        // Three tasks of 2 each, and a chain of 1 and 5, which would end at 8 if taken last.
        let spans = [("", 0, 2), ("", 2, 4), ("", 4, 6), ("", 6, 7), ("", 7, 12)];
        let t = timeline(SpanKind::Shutdown, &spans, &[(3, 4)]);
        assert_eq!(WhatIf::new().workers(2).predict(&t).makespan, ms(6));
    }

    #[test]
    fn probes_leave_the_init_function_that_they_ran_in() {
        let mut t = Timeline::new("boot");
        let mut push = |name: &str, kind, start, end| {
            t.push(Span::new(name, kind, ms(start), ms(end)).on("pid 1", None));
        };
        push("nvme_init", SpanKind::Initcall, 0, 70);
        push("nvme0", SpanKind::Probe, 5, 35);
        push("nvme1", SpanKind::Probe, 35, 65);
        push("later_init", SpanKind::Initcall, 72, 80);
        let p = WhatIf::new().all_async().predict(&t);
        let at = |i: usize| (p.timeline.spans()[i].start, p.timeline.spans()[i].end);
        assert_eq!(at(0), (ms(0), ms(10)));
        assert_eq!((at(1), at(2)), ((ms(5), ms(35)), (ms(5), ms(35))));
        assert_eq!(at(3), (ms(12), ms(20)));
        assert_eq!(p.makespan, ms(35));
    }

    #[test]
    fn workers_that_make_it_no_better_are_one_row() {
        let names = |t: &Timeline| -> Vec<String> {
            WhatIf::usual_of(t).into_iter().map(|(name, _)| name).collect()
        };
        assert_eq!(names(&serial()), ["1 worker", "2 workers or more"]);
        assert_eq!(names(&Timeline::new("t")), ["1 worker or more"]);
        let mut wide = Timeline::new("t");
        for i in 0..40 {
            wide.push(Span::new("x", SpanKind::Shutdown, ms(i), ms(i + 10)));
        }
        assert_eq!(names(&wide).len(), 7);
    }

    #[test]
    fn two_probes_a_second_apart_start_no_sooner_than_they_were_ready() {
        let mut t = Timeline::new("boot");
        let us = Duration::from_micros;
        for start in [0, 1_000_000] {
            t.push(Span::new("x", SpanKind::Probe, us(start), us(start + 5)));
        }
        for (name, p) in WhatIf::usual_of(&t) {
            assert_eq!(p.makespan, t.makespan(), "{name}");
            assert_eq!(p.bound, us(1_000_005), "{name}");
        }
        // The span that bounds it has no slack.
        let path = t.critical_path();
        assert_eq!((path.spans, path.length), (vec![SpanId(1)], us(1_000_005).into()));
        assert_eq!(t.slack(), [us(1_000_000).into(), Length::ZERO]);
    }

    #[test]
    fn a_prediction_from_bounds_is_a_bound() {
        let mut t = Timeline::new("shutdown");
        for (name, start, end) in [("a", 10, 40), ("b", 40, 60)] {
            let mut span = Span::new(name, SpanKind::Shutdown, ms(start), ms(end));
            span.end_certainty = crate::span::Certainty::UpperBound;
            t.push(span);
        }
        assert_eq!(t.makespan(), Length::between(ms(30), ms(50)));
        let p = WhatIf::new().all_async().predict(&t);
        assert_eq!((p.makespan, p.bound), (Length::at_most(ms(30)), Length::at_most(ms(30))));
        assert_eq!(p.work, Length::at_most(ms(50)));
        assert_eq!(t.critical_path().length, Length::at_most(ms(30)));
        assert_eq!(t.makespan().times(p.makespan), "≥1.00x");
    }
}
