//! The nesting of spans, and the time of a span without those inside it.

use super::tasks::TimeBound;
use crate::length::Length;
use crate::span::{Span, SpanId, SpanKind, Timeline};
use std::cmp::Reverse;
use std::time::Duration;

/// Limit of open spans that are examined. No kernel nests deeper, and a made-up log of partly
/// overlapping spans would take very long.
const DEPTH: usize = 64;

/// Limit of candidates for an outer span that are examined, for the same reason.
const AT_ONCE: usize = 512;

/// The span inside which each span of a timeline ran. The probe of a controller runs inside the
/// init function that registered its driver, the probe of a child inside its parent's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Nesting {
    /// Outer spans, by index. `None`: it ran inside no other span.
    parents: Vec<Option<SpanId>>,
    exclusive: Vec<Length>,
    /// Own times by the length of the bars.
    drawn: Vec<Duration>,
    /// Total time of all spans; a nested one counts once.
    sum: Length,
}

impl Nesting {
    /// Takes the nesting that the spans [state](Span::nested_in). A span that states nothing is
    /// inside the smallest containing span of the same known worker, as a worker runs one thing at
    /// a time. A span that was asynchronous, or overlaps others only in part, stands alone.
    pub(crate) fn of(t: &Timeline) -> Nesting {
        let mut parents: Vec<Option<SpanId>> =
            t.iter().map(|(id, span)| said(t, id, span)).collect();
        let one_worker = |span: &Span| !span.asynchronous && !span.worker.is_empty();
        let mut order: Vec<SpanId> =
            t.iter().filter(|(_, s)| one_worker(s)).map(|(id, _)| id).collect();
        let key = |id: &SpanId| {
            let span = t.span(*id);
            (&span.worker, span.start, Reverse(span.end), *id)
        };
        order.sort_by(|a, b| key(a).cmp(&key(b)));

        let mut open: Vec<SpanId> = Vec::new();
        for id in order {
            let span = t.span(id);
            // A span that has ended, or is another worker's, can't contain one that starts later.
            while open.last().is_some_and(|&top| !is_open(t.span(top), span)) {
                open.pop();
            }
            // A span that overlaps in part stays open: nested ones may follow.
            let outer = open.iter().rev().take(DEPTH);
            let inside = outer.into_iter().find(|&&outer| contains(t.span(outer), span));
            // A kernel's init functions never run inside one another: their clocks disagree.
            let inside = inside.filter(|&&outer| !are_initcalls(t.span(outer), span));
            parents[id.index()] = parents[id.index()].or(inside.copied());
            open.push(id);
        }

        let mut drawn: Vec<Duration> = t.spans().iter().map(Span::drawn).collect();
        let mut exclusive: Vec<Length> = t.spans().iter().map(Span::took).collect();
        for (id, span) in t.iter() {
            if let Some(parent) = parents[id.index()] {
                let around = t.span(parent);
                let inside = span.end.min(around.end).saturating_sub(span.start);
                let left = &mut drawn[parent.index()];
                *left = left.saturating_sub(inside);
                let took = span.took();
                let inside = match took.is_exact() {
                    true => Length::exact(inside),
                    false => Length::between(took.least().min(inside), inside),
                };
                exclusive[parent.index()] = exclusive[parent.index()] - inside;
            }
        }
        let all: Length = exclusive.iter().copied().sum();
        let [twice, beside] = perhaps(t, &parents, &mut exclusive);
        let mut sum = all - twice + beside;
        // A span without a place in time may have run inside any of them, or around them. So may
        // those before and after a moment at which the clock went back.
        if t.clock_went_back() || t.unplaced().iter().any(|u| u.kind != SpanKind::Shutdown) {
            for (own, span) in exclusive.iter_mut().zip(t.spans()).filter(|(_, s)| hosts(s)) {
                *own = span.took().or_less();
            }
            sum = exclusive.iter().copied().sum();
        }
        Nesting { parents, exclusive, drawn, sum }
    }

    /// Returns the span inside which `id` ran.
    ///
    /// # Panics
    ///
    /// If `id` came from a larger timeline.
    pub(crate) fn parent(&self, id: SpanId) -> Option<SpanId> {
        self.parents[id.index()]
    }

    /// Returns the total time of all spans; a nested one counts once.
    pub(crate) fn sum(&self) -> Length {
        self.sum
    }

    /// Returns the total time by the length of the bars.
    pub(crate) fn drawn_sum(&self) -> Duration {
        self.drawn.iter().sum()
    }

    /// Returns the time of `id` without what ran inside it.
    ///
    /// # Panics
    ///
    /// If `id` came from a larger timeline.
    pub(crate) fn exclusive(&self, id: SpanId) -> Length {
        self.exclusive[id.index()]
    }

    /// Returns the own time of `id` as one number.
    pub(super) fn own(&self, id: SpanId, taking: TimeBound) -> Duration {
        let (own, drawn) = (self.exclusive[id.index()], self.drawn[id.index()]);
        match taking {
            TimeBound::Drawn => drawn,
            TimeBound::Least => own.least().min(drawn),
            TimeBound::Most => own.most().map_or(drawn, |most| most.max(drawn)),
        }
    }

    /// Returns the spans directly inside each span, by index, in the order of their starts.
    pub(crate) fn children(&self, t: &Timeline) -> Vec<Vec<SpanId>> {
        let mut children = vec![Vec::new(); self.parents.len()];
        for (id, _) in t.iter() {
            if let Some(parent) = self.parents[id.index()] {
                children[parent.index()].push(id);
            }
        }
        for inside in &mut children {
            inside.sort_by_key(|&id| (t.span(id).start, t.span(id).end, id));
        }
        children
    }
}

/// Widens the own times of two spans to what is possible, if one may have run inside the other.
/// Stamps that are cut off leave that open near the ends of a span. Without a thread's name it is
/// open for [many](Span::may_be_nested). Returns the time that may have been counted twice, and the
/// time that may have been counted once too little, as spans ran beside those that seem to contain
/// them.
fn perhaps(t: &Timeline, parents: &[Option<SpanId>], exclusive: &mut [Length]) -> [Length; 2] {
    let unit = t.resolution();
    let [mut twice, mut beside] = [Length::ZERO; 2];
    let open_to = |span: &Span| !unit.is_zero() || span.may_be_nested;
    if !t.spans().iter().any(open_to) {
        return [twice, beside];
    }
    // A computed start is late by the time that printing took.
    let late = unit.max(Duration::from_micros(20));
    let can = |kinds: [SpanKind; 2]| {
        let of_kind = t.iter().filter(move |(_, s)| kinds.contains(&s.kind));
        let mut ids: Vec<SpanId> = of_kind.map(|(id, _)| id).collect();
        ids.sort_by_key(|&id| (t.span(id).start, id));
        ids
    };
    // Each span counts as inside itself.
    let inside = |id: SpanId, outer: SpanId| {
        let around = |id: &SpanId| parents[id.index()];
        std::iter::successors(Some(id), around).take(DEPTH).any(|id| id == outer)
    };
    let mut hosts = can([SpanKind::Initcall, SpanKind::Probe]).into_iter().peekable();
    let mut open: Vec<SpanId> = Vec::new();
    for id in can([SpanKind::Probe, SpanKind::Task]) {
        let span = t.span(id);
        if !open_to(span) {
            continue;
        }
        while let Some(host) = hosts.next_if(|&host| t.span(host).start < span.start + late) {
            open.push(host);
        }
        open.retain(|&host| t.span(host).end + unit > span.start);
        if open.len() > AT_ONCE {
            open.drain(..open.len() - AT_ONCE);
        }
        let around = |host: &SpanId| {
            let outer = t.span(*host);
            let may = (span.end < outer.end + unit || span.end <= outer.end)
                && outer.took().most().is_none_or(|most| span.took().least() <= most);
            let threads = [&outer.worker, &span.worker];
            let apart = threads[0] != threads[1] && threads.iter().all(|w| !w.is_empty());
            let related = inside(*host, id) || inside(id, *host);
            may && !apart && !related
        };
        let took = span.took().or_less();
        let mut found = false;
        for host in open.iter().copied().filter(|host| around(host)) {
            let own = &mut exclusive[host.index()];
            *own = *own - took;
            found = true;
        }
        if let Some(parent) = parents[id.index()].filter(|_| span.seems_nested()) {
            let around = t.span(parent);
            let inside = Length::at_most(span.end.min(around.end).saturating_sub(span.start));
            let own = &mut exclusive[parent.index()];
            *own = (*own + inside).within(around.took());
            beside = beside + inside;
        }
        if !found {
            continue;
        }
        // If several ran side by side inside one parent, they take more than it: then nothing is
        // gained.
        twice = twice + took;
        if let Some(parent) = parents[id.index()] {
            let own = &mut exclusive[parent.index()];
            *own = (*own + took).within(t.span(parent).took());
        }
    }
    [twice, beside]
}

/// Returns the outer span that a span states, if that is possible: it exists, and had begun by
/// then.
fn said(t: &Timeline, id: SpanId, span: &Span) -> Option<SpanId> {
    let outer = span.nested_in.filter(|outer| outer.index() < t.spans().len())?;
    let around = t.span(outer);
    // A strict order, so that no two are inside each other.
    let comes_first =
        (around.start, Reverse(around.end), outer) < (span.start, Reverse(span.end), id);
    let begins = span.start < around.end || around.end == around.start;
    (comes_first && begins).then_some(outer)
}

/// Returns true if other spans may have run inside it.
fn hosts(span: &Span) -> bool {
    span.kind != SpanKind::Shutdown
}

fn are_initcalls(one: &Span, other: &Span) -> bool {
    one.kind == SpanKind::Initcall && other.kind == SpanKind::Initcall
}

fn is_open(outer: &Span, span: &Span) -> bool {
    outer.worker == span.worker && span.start < outer.end
}

/// Returns true if `span` lies in `outer`. A span of no length at the very beginning of another one
/// came before it.
fn contains(outer: &Span, span: &Span) -> bool {
    let begins = outer.start < span.start || (outer.start == span.start && span.start < span.end);
    begins && span.end <= outer.end
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{ms, timeline};
    use crate::span::Unplaced;

    #[test]
    fn a_span_is_inside_the_smallest_one_of_its_worker_that_contains_it() {
        type Spans<'a> = &'a [(&'a str, u64, u64)];
        type Nestings<'a> = &'a [(Option<usize>, u64)];
        let cases: [(Spans<'_>, Nestings<'_>); 6] = [
            (
                &[("w", 0, 10), ("w", 2, 5), ("w", 3, 4), ("w", 6, 9), ("w", 10, 12)],
                &[(None, 4), (Some(0), 2), (Some(1), 1), (Some(0), 3), (None, 2)],
            ),
            // Other workers, and unknown ones.
            (&[("w", 0, 10), ("v", 2, 5)], &[(None, 10), (None, 3)]),
            (&[("", 0, 10), ("", 2, 5)], &[(None, 10), (None, 3)]),
            // Two that overlap in part, which may contain others.
            (
                &[("w", 0, 10), ("w", 5, 15), ("w", 11, 12), ("w", 6, 7)],
                &[(None, 10), (None, 8), (Some(1), 1), (Some(1), 1)],
            ),
            // Spans without length are nested only where they are surrounded.
            (
                &[("w", 5, 5), ("w", 5, 9), ("w", 7, 7), ("w", 9, 9)],
                &[(None, 0), (None, 4), (Some(1), 0), (None, 0)],
            ),
            // Of equal intervals, the later one is inside.
            (&[("w", 5, 9), ("w", 5, 9)], &[(None, 0), (Some(0), 4)]),
        ];
        for (spans, found) in cases {
            let t = timeline(SpanKind::Probe, spans, &[]);
            let nesting = Nesting::of(&t);
            for ((id, _), &(parent, own)) in t.iter().zip(found) {
                assert_eq!(nesting.parent(id), parent.map(SpanId), "{id:?} of {spans:?}");
                assert_eq!(nesting.exclusive(id), ms(own), "{id:?} of {spans:?}");
            }
        }
    }

    #[test]
    fn declared_nesting_counts_unless_it_is_impossible() {
        let mut t = Timeline::new("t");
        // Spans by worker, start, end and the outer span that they state.
        let spans = [
            ("", 0, 10, Some(1)),
            ("", 2, 12, Some(0)),
            ("", 3, 4, Some(9)),
            ("w", 0, 9, None),
            ("w", 1, 2, Some(0)),
            ("w", 3, 4, None),
        ];
        for (worker, start, end, outer) in spans {
            let mut span = Span::new("x", SpanKind::Probe, ms(start), ms(end)).on(worker, None);
            span.nested_in = outer.map(SpanId);
            span.asynchronous = start == 3;
            t.push(span);
        }
        let nesting = Nesting::of(&t);
        let parents: Vec<_> = t.iter().map(|(id, _)| nesting.parent(id).map(|p| p.0)).collect();
        assert_eq!(parents, [None, Some(0), None, None, Some(0), None]);
        // The time after the outer span's end isn't its time.
        assert_eq!(nesting.exclusive(SpanId(0)), ms(1));
    }

    #[test]
    fn own_time_is_no_surer_than_the_time_taken_off() {
        let mut t = Timeline::new("t");
        let outer = t.push(Span::new("o", SpanKind::Initcall, ms(0), ms(10)).on("w", None));
        let mut inner = Span::new("i", SpanKind::Probe, ms(1), ms(5)).on("w", None);
        inner.took_between = Some((ms(0), ms(8)));
        let inner = t.push(inner);
        let nesting = Nesting::of(&t);
        assert_eq!(nesting.exclusive(outer), Length::between(ms(6), ms(10)));
        assert_eq!(nesting.own(outer, TimeBound::Drawn), ms(6));
        assert_eq!(nesting.own(inner, TimeBound::Most), ms(8));
        // Another run may have been inside as well.
        t.push_unplaced(Unplaced::new("u", SpanKind::Probe, Length::exact(ms(3))));
        assert_eq!(Nesting::of(&t).exclusive(outer), Length::at_most(ms(10)));
    }
}
