//! Selection of the spans to show when there are too many for all of them.

use crate::length::Length;
use crate::path::CriticalPath;
use crate::span::{Outcome, Span, SpanId, SpanKind, Timeline};

/// Number of spans without a callback that are shown one by one. More are folded into one line.
pub(crate) const FOLD_ABOVE: usize = 4;

/// The spans that are shown, and counts of the rest.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Selection {
    /// The spans to show, by start.
    pub(crate) shown: Vec<SpanId>,
    /// Spans without a callback that were folded.
    pub(crate) folded: HiddenSpans,
    /// Other spans for which there was no room.
    pub(crate) left_out: HiddenSpans,
}

/// A group of spans that are not shown.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct HiddenSpans {
    pub(crate) count: usize,
    /// Number of them that did not end well.
    pub(crate) not_ok: usize,
    /// The sum of their run times.
    pub(crate) took: Length,
    /// The longest of them.
    pub(crate) longest: Length,
}

impl HiddenSpans {
    pub(crate) fn add(&mut self, took: Length, ok: bool) {
        self.count += 1;
        self.not_ok += usize::from(!ok);
        self.took = self.took + took;
        if took.told() > self.longest.told() || took.told().is_none() {
            self.longest = took;
        }
    }
}

/// Returns true if a span must be shown whatever it took: it failed, or never ran. A span that
/// found nothing to do, or is tried again, isn't urgent.
pub(crate) fn is_urgent(span: &Span) -> bool {
    needs_seeing(&span.outcome, span.took(), span.kind)
}

/// Returns true for a run that must be shown, even if it has no place in time.
pub(crate) fn needs_seeing(outcome: &Outcome, took: Length, kind: SpanKind) -> bool {
    match outcome {
        Outcome::Failed(_) | Outcome::Cancelled => true,
        Outcome::Skipped(_) => took == Length::ZERO && kind != SpanKind::Initcall,
        _ => false,
    }
}

/// Picks at most `rows` spans: first those that failed (up to half the room), then the critical
/// path, then the longest. Within each group, the longest come first.
pub(crate) fn select(t: &Timeline, path: &CriticalPath, rows: usize) -> Selection {
    let on_path = path.marks(t);
    let folds = |id: SpanId| t.span(id).no_callback && t.span(id).outcome.is_ok();
    let fold = t.iter().filter(|&(id, _)| folds(id)).count() > FOLD_ABOVE;

    let mut selection = Selection::default();
    let mut candidates: Vec<SpanId> = Vec::new();
    for (id, span) in t.iter() {
        if fold && folds(id) {
            selection.folded.add(span.took(), true);
        } else {
            candidates.push(id);
        }
    }
    if candidates.len() > rows {
        let longest_first = |&id: &SpanId| (std::cmp::Reverse(t.span(id).drawn()), id);
        candidates.sort_by_key(longest_first);
        let mut not_ok_left = rows / 2;
        // Cached, so that each key is computed once; longest span first.
        candidates.sort_by_cached_key(|&id| {
            let urgent = not_ok_left > 0 && is_urgent(t.span(id));
            not_ok_left -= usize::from(urgent);
            if urgent {
                0
            } else if on_path[id.0] {
                1
            } else {
                2
            }
        });
        for id in candidates.drain(rows..) {
            selection.left_out.add(t.span(id).took(), t.span(id).outcome.is_ok());
        }
    }
    candidates.sort_by_key(|&id| (t.span(id).start, t.span(id).queued, id));
    selection.shown = candidates;
    selection
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::ms;
    use crate::span::EdgeKind;

    fn shown(t: &Timeline, rows: usize) -> Vec<String> {
        let ids = select(t, &t.critical_path(), rows).shown;
        ids.into_iter().map(|id| t.span(id).name.clone()).collect()
    }

    #[test]
    fn everything_is_shown_when_there_is_room() {
        let mut t = Timeline::new("t");
        t.push(Span::new("late", SpanKind::Probe, ms(5), ms(6)));
        t.push(Span::new("early", SpanKind::Probe, ms(1), ms(2)));
        assert_eq!(shown(&t, 2), ["early", "late"]);
    }

    #[test]
    fn failures_then_the_critical_path_then_the_longest_are_kept() {
        let mut t = Timeline::new("t");
        let a = t.push(Span::new("path-a", SpanKind::Probe, ms(0), ms(6)));
        let b = t.push(Span::new("path-b", SpanKind::Probe, ms(6), ms(12)));
        t.push_edge(a, b, EdgeKind::Supplier);
        t.push(Span::new("long", SpanKind::Probe, ms(0), ms(10)));
        t.push(Span::new("middle", SpanKind::Probe, ms(0), ms(8)));
        for i in 0..5 {
            let mut bad = Span::new(format!("bad-{i}"), SpanKind::Probe, ms(0), ms(1));
            bad.outcome = Outcome::Failed("no".into());
            t.push(bad);
        }
        let picked = select(&t, &t.critical_path(), 5);
        let names: Vec<&str> = picked.shown.iter().map(|&id| t.span(id).name.as_str()).collect();
        assert_eq!(names, ["path-a", "long", "bad-0", "bad-1", "path-b"]);
        assert_eq!((picked.left_out.count, picked.left_out.not_ok), (4, 3));
        assert_eq!(picked.left_out.longest, ms(8));
    }

    #[test]
    fn many_spans_without_a_callback_are_folded_and_few_are_not() {
        let mut t = Timeline::new("t");
        t.push(Span::new("real", SpanKind::Probe, ms(0), ms(6)));
        for i in 0..=FOLD_ABOVE {
            if i == FOLD_ABOVE {
                assert_eq!(shown(&t, 40).len(), 1 + FOLD_ABOVE);
            }
            let mut bus = Span::new(format!("bus-{i}"), SpanKind::Probe, ms(1), ms(1));
            bus.no_callback = true;
            t.push(bus);
        }
        assert_eq!(shown(&t, 40), ["real"]);
        assert_eq!(select(&t, &t.critical_path(), 40).folded.count, FOLD_ABOVE + 1);
    }
}
