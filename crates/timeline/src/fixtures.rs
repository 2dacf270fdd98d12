//! Timelines for unit tests.

use std::time::Duration;

use crate::span::{EdgeKind, Span, SpanId, SpanKind, Timeline};

/// Returns `n` milliseconds.
pub(crate) const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// Creates spans `s0`, `s1` and so on by (worker, start, end) in milliseconds, and edges by index.
pub(crate) fn timeline(
    kind: SpanKind,
    spans: &[(&str, u64, u64)],
    edges: &[(usize, usize)],
) -> Timeline {
    let mut t = Timeline::new("t");
    for (i, &(worker, start, end)) in spans.iter().enumerate() {
        t.push(Span::new(format!("s{i}"), kind, ms(start), ms(end)).on(worker, None));
    }
    for &(before, after) in edges {
        t.push_edge(SpanId(before), SpanId(after), EdgeKind::Supplier);
    }
    t
}
