//! Reads back what [`render`](super::render) wrote.

use crate::length::Length;
use crate::span::Driver;
use crate::span::{Certainty, EdgeKind, Outcome, Span, SpanId, SpanKind, Timeline, Unplaced};
use serde::Deserialize;
use std::fmt;
use std::time::Duration;

/// The error of a text that holds no timelines.
#[derive(Debug)]
pub struct ReadError {
    what: String,
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "not a timeline in JSON, as 'corewise up --timeline FILE.json' writes: {}",
            self.what
        )
    }
}

impl std::error::Error for ReadError {}

/// Reads one timeline or a list of them. Fields that this version doesn't know are skipped. Fields
/// that an older version didn't write get the values that they had then.
///
/// # Errors
///
/// If `text` is no JSON, lacks a field that was there from the beginning, has a word that this
/// version doesn't know, or an edge to a span that isn't there.
pub fn read(text: &str) -> Result<Vec<Timeline>, ReadError> {
    let views: Views = serde_json::from_str(text).map_err(|e| ReadError { what: e.to_string() })?;
    let views = match views {
        Views::Many(views) => views,
        Views::One(view) => vec![view],
    };
    views.into_iter().map(timeline).collect()
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Views {
    Many(Vec<TimelineView>),
    One(TimelineView),
}

#[derive(Deserialize)]
struct TimelineView {
    name: String,
    #[serde(default)]
    notes: Vec<String>,
    #[serde(default)]
    resolution_ns: u64,
    #[serde(default)]
    clock_went_back: bool,
    spans: Vec<SpanView>,
    #[serde(default)]
    unplaced: Vec<UnplacedView>,
    edges: Vec<EdgeView>,
}

#[derive(Deserialize)]
struct SpanView {
    name: String,
    kind: String,
    worker: Option<String>,
    cpu: Option<u32>,
    node: Option<u32>,
    queued_ns: u64,
    start_ns: u64,
    end_ns: u64,
    outcome: String,
    message: Option<String>,
    released_by: Option<String>,
    #[serde(default)]
    no_callback: bool,
    driver: Option<String>,
    #[serde(default)]
    asynchronous: bool,
    start_certainty: Option<String>,
    end_certainty: Option<String>,
    took: Option<Bounds>,
    nested_in: Option<usize>,
    #[serde(default)]
    may_be_nested: bool,
    #[serde(default)]
    driver_inferred: bool,
}

#[derive(Deserialize)]
struct UnplacedView {
    name: String,
    kind: String,
    worker: Option<String>,
    cpu: Option<u32>,
    outcome: String,
    message: Option<String>,
    driver: Option<String>,
    #[serde(default)]
    driver_inferred: bool,
    asynchronous: bool,
    took: Bounds,
}

#[derive(Clone, Copy, Deserialize)]
struct Bounds {
    least_ns: u64,
    most_ns: Option<u64>,
}

#[derive(Deserialize)]
struct EdgeView {
    before: usize,
    after: usize,
    kind: String,
}

fn timeline(view: TimelineView) -> Result<Timeline, ReadError> {
    let mut t = Timeline::new(view.name);
    t.set_resolution(Duration::from_nanos(view.resolution_ns));
    t.set_clock_went_back(view.clock_went_back);
    for note in view.notes {
        t.note(note);
    }
    let known = view.spans.len();
    let mut ids: Vec<Option<SpanId>> = Vec::with_capacity(known);
    for view in view.spans {
        let span = self::span(view)?;
        // Older versions gave runs without a known moment a made-up place.
        ids.push(match span.start_certainty {
            Certainty::Assumed => {
                t.push_unplaced(displaced(span));
                None
            }
            _ => Some(t.push(span)),
        });
    }
    for span in t.spans_mut() {
        span.nested_in = span.nested_in.and_then(|outer| *ids.get(outer.index())?);
    }
    for view in view.unplaced {
        t.push_unplaced(unplaced(view)?);
    }
    for edge in view.edges {
        if edge.before >= known || edge.after >= known {
            let (before, after) = (edge.before, edge.after);
            let what = format!("an edge from span {before} to span {after} of {known} spans");
            return Err(ReadError { what });
        }
        let kind =
            word("edge", &edge.kind, &[EdgeKind::Parent, EdgeKind::Supplier], |k| k.as_str())?;
        if let (Some(before), Some(after)) = (ids[edge.before], ids[edge.after]) {
            t.push_edge(before, after, kind);
        }
    }
    Ok(t)
}

/// Turns a span without a known start into an unplaced run.
fn displaced(span: Span) -> Unplaced {
    let took = match span.drawn() {
        // Older versions drew a shutdown with an unknown end this way.
        Duration::ZERO => Length::UNKNOWN,
        took => Length::exact(took),
    };
    Unplaced {
        worker: span.worker,
        cpu: span.cpu,
        outcome: span.outcome,
        driver: span.driver,
        asynchronous: span.asynchronous,
        ..Unplaced::new(span.name, span.kind, took)
    }
}

fn unplaced(view: UnplacedView) -> Result<Unplaced, ReadError> {
    let ns = Duration::from_nanos;
    let took = match (ns(view.took.least_ns), view.took.most_ns.map(ns)) {
        (least, Some(most)) => Length::between(least, most),
        (least, None) => Length::at_least(least),
    };
    Ok(Unplaced {
        worker: view.worker.unwrap_or_default(),
        cpu: view.cpu,
        outcome: outcome(&view.outcome, view.message)?,
        driver: driver(view.driver, view.driver_inferred),
        asynchronous: view.asynchronous,
        ..Unplaced::new(view.name, kind(&view.kind)?, took)
    })
}

fn driver(name: Option<String>, inferred: bool) -> Option<Driver> {
    name.map(|name| if inferred { Driver::inferred(name) } else { Driver::from(name) })
}

fn kind(text: &str) -> Result<SpanKind, ReadError> {
    let kinds = [SpanKind::Probe, SpanKind::Shutdown, SpanKind::Initcall, SpanKind::Task];
    word("kind", text, &kinds, |k| k.as_str())
}

fn outcome(text: &str, message: Option<String>) -> Result<Outcome, ReadError> {
    let message = message.unwrap_or_default();
    let outcomes = [
        Outcome::Ok,
        Outcome::Failed(message.clone()),
        Outcome::Skipped(message.clone()),
        Outcome::Cancelled,
        Outcome::Deferred(message),
    ];
    word("outcome", text, &outcomes, Outcome::as_str)
}

fn span(view: SpanView) -> Result<Span, ReadError> {
    use Certainty::{Assumed, Inferred, Measured, UpperBound};
    let ns = Duration::from_nanos;
    let mut span = Span::new(view.name, kind(&view.kind)?, ns(view.start_ns), ns(view.end_ns));
    span.worker = view.worker.unwrap_or_default();
    span.cpu = view.cpu;
    span.node = view.node;
    span.queued = ns(view.queued_ns);
    span.outcome = outcome(&view.outcome, view.message)?;
    span.released_by = view.released_by;
    span.no_callback = view.no_callback;
    span.driver = driver(view.driver, view.driver_inferred);
    span.asynchronous = view.asynchronous;
    let sure = |text: Option<String>| match text {
        None => Ok(Measured),
        Some(text) => {
            word("certainty", &text, &[Measured, Inferred, UpperBound, Assumed], |c| c.as_str())
        }
    };
    span.start_certainty = sure(view.start_certainty)?;
    span.end_certainty = sure(view.end_certainty)?;
    if let Some(Bounds { least_ns: least, most_ns: Some(most) }) = view.took {
        let told = span.took();
        let other = (told.least(), told.most()) != (ns(least), Some(ns(most)));
        span.took_between = other.then(|| (ns(least), ns(most)));
    }
    span.nested_in = view.nested_in.map(SpanId);
    span.may_be_nested = view.may_be_nested;
    Ok(span)
}

/// Returns the one of `known` that is written as `word`.
fn word<T: Clone>(
    what: &str,
    text: &str,
    known: &[T],
    written: impl Fn(&T) -> &'static str,
) -> Result<T, ReadError> {
    let found = known.iter().find(|known| written(known) == text);
    found.cloned().ok_or_else(|| ReadError { what: format!("no {what} is called '{text}'") })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn everything() -> Timeline {
        let ms = Duration::from_millis;
        let mut t = Timeline::new("bring-up");
        let message = || "no \"such\" file".to_owned();
        let outcomes = [
            Outcome::Ok,
            Outcome::Failed(message()),
            Outcome::Skipped(message()),
            Outcome::Cancelled,
            Outcome::Deferred(message()),
        ];
        for (i, outcome) in outcomes.into_iter().enumerate() {
            let mut span = Span::new(format!("d{i}"), SpanKind::Probe, ms(5), ms(9));
            if i > 0 {
                span = span.on("w", Some(3));
                span.queued = ms(2);
                span.node = Some(1);
                span.released_by = Some("d0".into());
                span.driver = Some("file".into());
                span.asynchronous = true;
                span.start_certainty = Certainty::Inferred;
                span.end_certainty = Certainty::UpperBound;
                span.nested_in = Some(SpanId(0));
                span.no_callback = true;
            }
            span.outcome = outcome;
            t.push(span);
        }
        t.push_edge(SpanId(0), SpanId(1), EdgeKind::Parent);
        t.push_edge(SpanId(1), SpanId(2), EdgeKind::Supplier);
        let mut ticks = Span::new("ticks", SpanKind::Initcall, ms(1), ms(5));
        ticks.took_between = Some((ms(0), ms(8)));
        t.push(ticks);
        for took in [Length::UNKNOWN, Length::exact(ms(7)), Length::between(ms(3), ms(5))] {
            let mut somewhen = Unplaced::new("somewhen", SpanKind::Probe, took);
            somewhen.worker = "w".into();
            somewhen.cpu = Some(3);
            somewhen.outcome = Outcome::Deferred(message());
            somewhen.driver = Some(Driver::inferred("file"));
            somewhen.asynchronous = true;
            t.push_unplaced(somewhen);
        }
        t.note("order only");
        t
    }

    #[test]
    fn spans_that_an_older_version_placed_by_guess_are_unplaced() {
        let text = r#"{"name": "x", "edges": [{"before": 0, "after": 1, "kind": "parent"}],
            "spans": [
            {"name": "a", "kind": "probe", "worker": null, "cpu": null, "node": null,
             "queued_ns": 1, "start_ns": 1, "end_ns": 2, "outcome": "ok", "message": null,
             "released_by": null, "start_certainty": "assumed", "end_certainty": "assumed"},
            {"name": "b", "kind": "probe", "worker": null, "cpu": null, "node": null,
             "queued_ns": 1, "start_ns": 1, "end_ns": 2, "outcome": "ok", "message": null,
             "released_by": null, "nested_in": 0}]}"#;
        let t = &read(text).expect("it is whole")[0];
        let ns = Duration::from_nanos;
        assert_eq!(t.unplaced(), [Unplaced::new("a", SpanKind::Probe, ns(1).into())]);
        assert_eq!(t.spans(), [Span::new("b", SpanKind::Probe, ns(1), ns(2))]);
        assert!(t.edges().is_empty());
    }

    #[test]
    fn a_written_timeline_is_read_back_whole() {
        let t = everything();
        let text = super::super::render(&t);
        assert_eq!(read(&text).expect("it was written so"), std::slice::from_ref(&t));
        let list = format!("[{text},{text}]");
        assert_eq!(read(&list).expect("a list too"), [t.clone(), t]);
        assert_eq!(read("[]").expect("an empty one"), []);
    }

    #[test]
    fn a_file_of_an_older_version_lacks_fields_and_one_of_a_newer_has_more() {
        let text = r#"{"name": "x", "colour": "red", "edges": [], "spans": [{"name": "a",
            "kind": "probe", "worker": null, "cpu": null, "node": null, "queued_ns": 1,
            "start_ns": 1, "end_ns": 2, "outcome": "ok", "message": null, "released_by": null}]}"#;
        let t = &read(text).expect("enough")[0];
        let ns = Duration::from_nanos;
        assert_eq!(t.spans(), [Span::new("a", SpanKind::Probe, ns(1), ns(2))]);
    }

    #[test]
    fn a_document_that_is_not_a_timeline_is_refused_with_the_reason() {
        let good = super::super::render(&everything());
        let bad_edge = good.replace("\"after\": 2", "\"after\": 9");
        let bad_word = good.replace("\"skipped\",", "\"lost\",");
        for (text, says) in [
            ("", "EOF"),
            ("{}", "did not match"),
            (&bad_edge, "span 9 of 6"),
            (&bad_word, "no outcome is called 'lost'"),
        ] {
            let error = read(text).expect_err(says).to_string();
            assert!(error.contains(says) && error.contains("corewise up"), "{error}");
        }
    }
}
