//! Data that the page's script draws, as JSON that may stand inside a script element.
//!
//! Times are nanoseconds from the timeline's origin. Keys are short, as there are many spans. The
//! script uses the same ones.

use crate::analysis::Nesting;
use crate::lanes::lane_name;
use crate::span::{Certainty, Span, SpanId, Timeline};
use crate::units::{isolate, ns, printable};
use serde::Serialize;
use std::borrow::Cow;
use std::collections::HashMap;
use std::time::Duration;

/// Bits of `f`.
const CHAIN: u32 = 1;
const NO_CALLBACK: u32 = 2;
const ASYNC: u32 = 4;
const START_SOFT: u32 = 8;
const END_SOFT: u32 = 16;
const MAYBE_INSIDE: u32 = 32;

pub(super) fn json(timelines: &[&Timeline]) -> String {
    let views: Vec<TimelineView<'_>> = timelines.iter().map(|t| view(t)).collect();
    let text = serde_json::to_string(&views)
        .expect("the view has string keys and no map or float that JSON could refuse");
    // In JSON these stand only inside strings, where an escape means the same.
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '<' => out.push_str("\\u003c"),
            '>' => out.push_str("\\u003e"),
            '&' => out.push_str("\\u0026"),
            c => out.push(c),
        }
    }
    out
}

#[derive(Serialize)]
struct TimelineView<'a> {
    name: Cow<'a, str>,
    /// The timeline's origin, in the timeline's own time.
    origin: u64,
    length: u64,
    lanes: Vec<String>,
    spans: Vec<SpanView<'a>>,
    /// Kept edges as pairs of indexes: the predecessor, and the span that waited for it.
    edges: Vec<[usize; 2]>,
    path: Vec<usize>,
    most: usize,
    /// Moments from which the given number ran.
    steps: Vec<(u64, usize)>,
}

#[derive(Serialize)]
struct SpanView<'a> {
    /// Name.
    n: Cow<'a, str>,
    /// Kind.
    k: &'static str,
    /// Lane, by index.
    l: usize,
    /// Queued, start, end.
    q: u64,
    s: u64,
    e: u64,
    /// Outcome, and its message.
    o: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    m: Option<Cow<'a, str>>,
    /// Driver.
    #[serde(skip_serializing_if = "Option::is_none")]
    d: Option<Cow<'a, str>>,
    /// CPU and node, in words.
    #[serde(skip_serializing_if = "Option::is_none")]
    c: Option<String>,
    /// Released by.
    #[serde(skip_serializing_if = "Option::is_none")]
    b: Option<Cow<'a, str>>,
    /// Outer span, by index.
    #[serde(skip_serializing_if = "Option::is_none")]
    p: Option<usize>,
    /// Time in words, unless it is exactly the length of its bar.
    #[serde(skip_serializing_if = "Option::is_none")]
    h: Option<String>,
    /// The own time to sort by, if it is less, and the own time in words.
    #[serde(skip_serializing_if = "Option::is_none")]
    w: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    v: Option<String>,
    /// Slack in words, if there is any.
    #[serde(skip_serializing_if = "Option::is_none")]
    y: Option<String>,
    /// Flags.
    f: u32,
    /// Certainty of start and end, unless both are measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    u: Option<[&'static str; 2]>,
}

/// Makes text safe for the script to set as text, anywhere in a line.
fn shown(text: &str) -> Cow<'_, str> {
    match printable(text) {
        Cow::Borrowed(text) => isolate(text),
        Cow::Owned(text) => isolate(&text).into_owned().into(),
    }
}

fn view(t: &Timeline) -> TimelineView<'_> {
    let origin = t.origin();
    let at = |moment: Duration| ns(moment.saturating_sub(origin));
    let path = t.critical_path();
    let critical = path.marks(t);
    let nesting = Nesting::of(t);
    let slack = t.slack();
    let lanes: Vec<String> = t.lanes().into_iter().map(|lane| lane.name).collect();
    let by_name: HashMap<&str, usize> =
        lanes.iter().enumerate().map(|(i, name)| (name.as_str(), i)).collect();
    let mut spans = Vec::with_capacity(t.spans().len());
    for (id, span) in t.iter() {
        let own = nesting.exclusive(id);
        spans.push(SpanView {
            n: shown(&span.name),
            k: span.kind.as_str(),
            l: by_name.get(lane_name(span).as_str()).copied().unwrap_or(0),
            q: at(span.queued),
            s: at(span.start),
            e: at(span.end),
            o: span.outcome.as_str(),
            m: span.outcome.message().map(shown),
            d: span.driver.as_ref().map(|driver| shown(&driver.to_string()).into_owned().into()),
            c: place(span),
            b: span.released_by.as_deref().map(shown),
            p: nesting.parent(id).map(SpanId::index),
            h: Some(span.took()).filter(|took| !took.is_exact()).map(|took| took.to_string()),
            w: own.told().map(ns).filter(|_| own != span.took()),
            v: Some(own.to_string()).filter(|_| own != span.took()),
            y: slack[id.index()]
                .told()
                .filter(|s| !s.is_zero())
                .map(|_| slack[id.index()].to_string()),
            f: flags(span, critical[id.index()]),
            u: certainty(span),
        });
    }
    let kept = t.edges().iter().filter(|edge| t.is_kept(edge));
    let concurrency = t.concurrency();
    TimelineView {
        name: shown(t.name()),
        origin: ns(origin),
        length: ns(t.finish().saturating_sub(origin)),
        spans,
        edges: kept.map(|edge| [edge.before.index(), edge.after.index()]).collect(),
        path: path.spans.iter().map(|id| id.index()).collect(),
        most: concurrency.most,
        steps: concurrency.steps.into_iter().map(|(from, n)| (at(from), n)).collect(),
        lanes: lanes.iter().map(|lane| shown(lane).into_owned()).collect(),
    }
}

fn place(span: &Span) -> Option<String> {
    let cpu = span.cpu.map(|cpu| format!("CPU {cpu}"));
    let node = span.node.map(|node| format!("asked for node {node}"));
    let parts: Vec<String> = [cpu, node].into_iter().flatten().collect();
    Some(parts.join(", ")).filter(|text| !text.is_empty())
}

fn flags(span: &Span, critical: bool) -> u32 {
    let soft = |how: Certainty| how != Certainty::Measured;
    [
        (critical, CHAIN),
        (span.no_callback, NO_CALLBACK),
        (span.asynchronous, ASYNC),
        (soft(span.start_certainty), START_SOFT),
        (soft(span.end_certainty), END_SOFT),
        (span.seems_nested(), MAYBE_INSIDE),
    ]
    .into_iter()
    .filter_map(|(is, bit)| is.then_some(bit))
    .sum()
}

fn certainty(span: &Span) -> Option<[&'static str; 2]> {
    let both = [span.start_certainty, span.end_certainty];
    let measured = both.iter().all(|how| *how == Certainty::Measured);
    (!measured).then(|| both.map(Certainty::words))
}
