//! A timeline as JSON, for programs.
//!
//! ```json
//! {
//!   "name": "bring-up",
//!   "notes": [],
//!   "resolution_ns": 0,
//!   "clock_went_back": false,
//!   "summary": { "spans": 2, "ok": 2, "failed": 0, "skipped": 0, "cancelled": 0, "deferred": 0,
//!                "no_callback": 0, "unplaced": 0,
//!                "makespan_ns": 50, "makespan": { "least_ns": 50, "most_ns": 50 },
//!                "serial_sum_ns": 60, "serial_sum": { "least_ns": 60, "most_ns": 60 },
//!                "critical_path_ns": 50, "critical_path": { "least_ns": 50, "most_ns": 50 },
//!                "max_parallelism": 2 },
//!   "spans": [ { "name": "disk", "kind": "probe", "worker": "worker 0", "cpu": 0, "node": null,
//!                "queued_ns": 0, "start_ns": 0, "end_ns": 30, "outcome": "ok", "message": null,
//!                "released_by": null, "no_callback": false, "critical": true, "driver": "file",
//!                "driver_inferred": false, "asynchronous": false, "start_certainty": "measured",
//!                "end_certainty": "measured", "took": { "least_ns": 30, "most_ns": 30 },
//!                "nested_in": null, "may_be_nested": false } ],
//!   "unplaced": [],
//!   "edges": [ { "before": 0, "after": 1, "kind": "parent", "kept": true } ],
//!   "critical_path": [0, 1]
//! }
//! ```
//!
//! Times are whole nanoseconds since the timeline's zero. `before`, `after`, `nested_in` and the
//! numbers of `critical_path` are indexes into `spans`. Fields may be added; none changes its
//! meaning.
//!
//! A length of time has its bounds beside it: equal bounds mean that it was measured, and a null
//! `most_ns` that there is no upper bound. Without an upper bound the length itself is null. Runs
//! at unknown moments stand in `unplaced`, with `name`, `kind`, `worker`, `cpu`, `outcome`,
//! `message`, `driver`, `driver_inferred`, `asynchronous`, `took_ns` and `took`. If `resolution_ns`
//! isn't 0, stamps are cut off to that, and moments and `max_parallelism` are no more exact. If
//! `clock_went_back` is true, the clock was set back between spans, and moments show no order.

mod read;

use serde::{Serialize, Serializer};
use serde_json::Value;

use crate::analysis::{Comparison, Prediction, Side, WhatIf, caveats};
use crate::length::Length;
use crate::span::{Driver, Timeline};
use crate::units::ns;
pub use read::{ReadError, read};

/// The whole timeline, to embed in a larger document. It is read while it is written: a tree of
/// values would take many times the room of the timeline.
#[derive(Clone, Copy, Debug)]
pub struct View<'t>(pub &'t Timeline);

impl Serialize for View<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        view(self.0).serialize(to)
    }
}

/// Renders the whole timeline as one JSON object, indented, with a newline at its end.
pub fn render(t: &Timeline) -> String {
    let mut text = serde_json::to_string_pretty(&view(t))
        .expect("the view has string keys and no map or float that JSON could refuse");
    text.push('\n');
    text
}

fn view(t: &Timeline) -> TimelineView<'_> {
    let path = t.critical_path();
    let critical = path.marks(t);
    let s = t.summary();
    TimelineView {
        name: t.name(),
        notes: t.notes(),
        resolution_ns: ns(t.resolution()),
        clock_went_back: t.clock_went_back(),
        summary: SummaryView {
            spans: s.spans,
            ok: s.ok,
            failed: s.failed,
            skipped: s.skipped,
            cancelled: s.cancelled,
            deferred: s.deferred,
            no_callback: s.no_callback,
            unplaced: s.unplaced,
            makespan_ns: told(s.makespan),
            makespan: s.makespan.into(),
            serial_sum_ns: told(s.serial_sum),
            serial_sum: s.serial_sum.into(),
            critical_path_ns: told(s.critical_path),
            critical_path: s.critical_path.into(),
            max_parallelism: Some(s.max_parallelism)
                .filter(|_| s.unplaced < s.spans || s.spans == 0),
        },
        spans: t
            .iter()
            .map(|(id, span)| SpanView {
                name: &span.name,
                kind: span.kind.as_str(),
                worker: Some(span.worker.as_str()).filter(|w| !w.is_empty()),
                cpu: span.cpu,
                node: span.node,
                queued_ns: ns(span.queued),
                start_ns: ns(span.start),
                end_ns: ns(span.end),
                outcome: span.outcome.as_str(),
                message: span.outcome.message(),
                released_by: span.released_by.as_deref(),
                no_callback: span.no_callback,
                critical: critical[id.index()],
                driver: span.driver.as_ref().map(Driver::name),
                driver_inferred: span.driver.as_ref().is_some_and(Driver::is_inferred),
                asynchronous: span.asynchronous,
                start_certainty: span.start_certainty.as_str(),
                end_certainty: span.end_certainty.as_str(),
                took: span.took().into(),
                nested_in: span.nested_in.map(|id| id.index()).filter(|&i| i < t.spans().len()),
                may_be_nested: span.may_be_nested,
            })
            .collect(),
        unplaced: t
            .unplaced()
            .iter()
            .map(|u| UnplacedView {
                name: &u.name,
                kind: u.kind.as_str(),
                worker: Some(u.worker.as_str()).filter(|w| !w.is_empty()),
                cpu: u.cpu,
                outcome: u.outcome.as_str(),
                message: u.outcome.message(),
                driver: u.driver.as_ref().map(Driver::name),
                driver_inferred: u.driver.as_ref().is_some_and(Driver::is_inferred),
                asynchronous: u.asynchronous,
                took_ns: told(u.took),
                took: u.took.into(),
            })
            .collect(),
        edges: t
            .edges()
            .iter()
            .map(|edge| EdgeView {
                before: edge.before.index(),
                after: edge.after.index(),
                kind: edge.kind.as_str(),
                kept: t.is_kept(edge),
            })
            .collect(),
        critical_path: path.spans.iter().map(|id| id.index()).collect(),
    }
}

/// Returns the number of a length. `None`: it has no upper bound.
pub(crate) fn told(length: Length) -> Option<u64> {
    length.most().and(length.told()).map(ns)
}

/// The bounds of a length.
#[derive(Clone, Copy, Serialize)]
pub(crate) struct Bounds {
    least_ns: u64,
    most_ns: Option<u64>,
}

impl From<Length> for Bounds {
    fn from(length: Length) -> Bounds {
        Bounds { least_ns: ns(length.least()), most_ns: length.most().map(ns) }
    }
}

#[derive(Serialize)]
struct TimelineView<'a> {
    name: &'a str,
    notes: &'a [String],
    resolution_ns: u64,
    clock_went_back: bool,
    summary: SummaryView,
    spans: Vec<SpanView<'a>>,
    unplaced: Vec<UnplacedView<'a>>,
    edges: Vec<EdgeView>,
    critical_path: Vec<usize>,
}

#[derive(Serialize)]
struct SummaryView {
    spans: usize,
    ok: usize,
    failed: usize,
    skipped: usize,
    cancelled: usize,
    deferred: usize,
    no_callback: usize,
    unplaced: usize,
    makespan_ns: Option<u64>,
    makespan: Bounds,
    serial_sum_ns: Option<u64>,
    serial_sum: Bounds,
    critical_path_ns: Option<u64>,
    critical_path: Bounds,
    max_parallelism: Option<usize>,
}

#[derive(Serialize)]
struct SpanView<'a> {
    name: &'a str,
    kind: &'a str,
    worker: Option<&'a str>,
    cpu: Option<u32>,
    node: Option<u32>,
    queued_ns: u64,
    start_ns: u64,
    end_ns: u64,
    outcome: &'a str,
    message: Option<&'a str>,
    released_by: Option<&'a str>,
    no_callback: bool,
    critical: bool,
    driver: Option<&'a str>,
    driver_inferred: bool,
    asynchronous: bool,
    start_certainty: &'static str,
    end_certainty: &'static str,
    took: Bounds,
    nested_in: Option<usize>,
    may_be_nested: bool,
}

#[derive(Serialize)]
struct UnplacedView<'a> {
    name: &'a str,
    kind: &'a str,
    worker: Option<&'a str>,
    cpu: Option<u32>,
    outcome: &'a str,
    message: Option<&'a str>,
    driver: Option<&'a str>,
    driver_inferred: bool,
    asynchronous: bool,
    took_ns: Option<u64>,
    took: Bounds,
}

#[derive(Serialize)]
struct EdgeView {
    before: usize,
    after: usize,
    kind: &'static str,
    kept: bool,
}

/// Returns the [`analysis`](crate::analysis) of `t` as one JSON object:
///
/// ```json
/// {
///   "edges": 2, "edges_not_kept": 0,
///   "concurrency": { "exact": true, "mean": 1.2, "most": 2, "most_at_ns": 0,
///                    "time_at_ns": [0, 40, 10] },
///   "costs": [ { "name": "disk", "kind": "probe", "driver": "file", "driver_inferred": false,
///                "spans": [0], "times": 1,
///                "own_ns": 30, "own": { "least_ns": 30, "most_ns": 30 },
///                "took_ns": 30, "took": { "least_ns": 30, "most_ns": 30 },
///                "share": 0.5, "share_between": [ 0.5, 0.5 ], "slack_ns": 0 } ],
///   "drivers": [ { "driver": "file", "spans": 1, "inferred": 0, "longest": 0,
///                  "own_ns": 30, "own": { "least_ns": 30, "most_ns": 30 },
///                  "parallel_ns": 30, "parallel": { "least_ns": 30, "most_ns": 30 } } ],
///   "what_if": [ { "name": "2 workers",
///                  "makespan_ns": 30, "makespan": { "least_ns": 30, "most_ns": 30 },
///                  "work_ns": 60, "work": { "least_ns": 60, "most_ns": 60 },
///                  "bound_ns": 30, "bound": { "least_ns": 30, "most_ns": 30 } } ],
///   "caveats": [ "a span with an unknown starter starts no sooner" ]
/// }
/// ```
///
/// Lengths are as in a [timeline](super). An unknown share is null, and so is a slack that isn't
/// exact. If nothing has a place in time, there are only `costs`, without shares and slack:
/// `concurrency` is null, and the lists are empty.
///
/// `costs` are the `top` worst devices, `drivers` the `top` worst drivers (an empty name: not
/// known). `what_if` predicts all asynchronous with each number of workers. `caveats` are sentences
/// that readers of the predictions need. Numbers of `spans` and `longest` are indexes into the
/// timeline's spans. `inferred` counts the spans of which a driver is only the likeliest.
/// `time_at_ns[n]` is the time for which n ran at once, if each took as long as its bar (`exact`:
/// that is how it was).
pub fn analysis(t: &Timeline, top: usize) -> Value {
    let placed = t.unplaced().is_empty() || !t.spans().is_empty();
    let c = t.concurrency();
    let costs = t.costs();
    let drivers = match t.spans().iter().any(|s| s.driver.is_some()) {
        true => t.driver_costs(top),
        false => Vec::new(),
    };
    let view = AnalysisView {
        edges: t.edges().len(),
        edges_not_kept: t.edges_not_kept().count(),
        concurrency: placed.then(|| ConcurrencyView {
            exact: t.is_exact(),
            mean: c.mean,
            most: c.most,
            most_at_ns: ns(c.most_at),
            time_at_ns: c.time_at.iter().map(|&time| ns(time)).collect(),
        }),
        costs: costs
            .iter()
            .take(top)
            .map(|cost| CostView {
                name: &cost.name,
                kind: cost.kind.as_str(),
                driver: cost.driver.as_ref().map(Driver::name),
                driver_inferred: cost.driver.as_ref().is_some_and(Driver::is_inferred),
                spans: cost.spans.iter().map(|id| id.index()).collect(),
                times: cost.times,
                own_ns: told(cost.own),
                own: cost.own.into(),
                took_ns: told(cost.took),
                took: cost.took.into(),
                share: cost.share.told().filter(|_| placed),
                share_between: placed.then(|| [cost.share.least(), cost.share.most()]),
                slack_ns: cost.slack.known().map(ns),
            })
            .collect(),
        drivers: drivers
            .iter()
            .map(|cost| DriverView {
                driver: &cost.driver,
                spans: cost.spans,
                inferred: cost.inferred,
                longest: cost.longest.index(),
                own_ns: told(cost.own),
                own: cost.own.into(),
                parallel_ns: told(cost.parallel),
                parallel: cost.parallel.into(),
            })
            .collect(),
        what_if: WhatIf::usual()
            .into_iter()
            .filter(|_| placed)
            .map(|(name, what_if)| prediction(&name, &what_if.predict(t)))
            .collect(),
        caveats: if placed { caveats(t) } else { Vec::new() },
    };
    value(&view)
}

/// Returns a prediction's numbers, as in an [`analysis`]: `name`, `makespan_ns`, `work_ns`,
/// `bound_ns`, and the bounds of each. No schedule is shorter than the lower bound of `bound`.
pub fn prediction(name: &str, p: &Prediction) -> Value {
    value(&PredictionView {
        name,
        makespan_ns: told(p.makespan),
        makespan: p.makespan.into(),
        work_ns: told(p.work),
        work: p.work.into(),
        bound_ns: told(p.bound),
        bound: p.bound.into(),
    })
}

/// Returns a comparison as one JSON object: `only_a`, `only_b`, and `pairs`, the greatest change
/// first. A pair has `name`, `kind`, `change_ns` (null: not known), whether that is `exact`, and
/// `a` and `b`. Each of those is null or has `spans`, `own_ns`, `own`, `took_ns` and `took` as in
/// an [`analysis`]. The change is that of the own time. If `what_ran_inside` is true, the nesting
/// isn't known, and the change is that of the whole time.
pub fn comparison(c: &Comparison) -> Value {
    let side = |side: Option<Side>| {
        side.map(|side| SideView {
            spans: side.spans,
            own_ns: told(side.own),
            own: side.own.into(),
            took_ns: told(side.took),
            took: side.took.into(),
        })
    };
    value(&ComparisonView {
        only_a: c.only_a,
        only_b: c.only_b,
        what_ran_inside: c.what_ran_inside,
        pairs: c
            .pairs
            .iter()
            .map(|pair| PairView {
                name: &pair.name,
                kind: pair.kind.as_str(),
                change_ns: pair
                    .change_ns()
                    .map(|ns| ns.clamp(i64::MIN.into(), i64::MAX.into()) as i64),
                exact: pair.is_exact(),
                a: side(pair.a),
                b: side(pair.b),
            })
            .collect(),
    })
}

fn value(view: &impl Serialize) -> Value {
    serde_json::to_value(view).expect("the view has string keys and nothing that JSON could refuse")
}

#[derive(Serialize)]
struct AnalysisView<'a> {
    edges: usize,
    edges_not_kept: usize,
    concurrency: Option<ConcurrencyView>,
    costs: Vec<CostView<'a>>,
    drivers: Vec<DriverView<'a>>,
    what_if: Vec<Value>,
    caveats: Vec<String>,
}

#[derive(Serialize)]
struct ConcurrencyView {
    exact: bool,
    mean: f64,
    most: usize,
    most_at_ns: u64,
    time_at_ns: Vec<u64>,
}

#[derive(Serialize)]
struct CostView<'a> {
    name: &'a str,
    kind: &'static str,
    driver: Option<&'a str>,
    driver_inferred: bool,
    spans: Vec<usize>,
    times: usize,
    own_ns: Option<u64>,
    own: Bounds,
    took_ns: Option<u64>,
    took: Bounds,
    share: Option<f64>,
    share_between: Option<[f64; 2]>,
    slack_ns: Option<u64>,
}

#[derive(Serialize)]
struct DriverView<'a> {
    driver: &'a str,
    spans: usize,
    inferred: usize,
    longest: usize,
    own_ns: Option<u64>,
    own: Bounds,
    parallel_ns: Option<u64>,
    parallel: Bounds,
}

#[derive(Serialize)]
struct PredictionView<'a> {
    name: &'a str,
    makespan_ns: Option<u64>,
    makespan: Bounds,
    work_ns: Option<u64>,
    work: Bounds,
    bound_ns: Option<u64>,
    bound: Bounds,
}

#[derive(Serialize)]
struct ComparisonView<'a> {
    only_a: usize,
    only_b: usize,
    what_ran_inside: bool,
    pairs: Vec<PairView<'a>>,
}

#[derive(Serialize)]
struct PairView<'a> {
    name: &'a str,
    kind: &'static str,
    change_ns: Option<i64>,
    exact: bool,
    a: Option<SideView>,
    b: Option<SideView>,
}

#[derive(Serialize)]
struct SideView {
    spans: usize,
    own_ns: Option<u64>,
    own: Bounds,
    took_ns: Option<u64>,
    took: Bounds,
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::{Value, json};

    use super::*;
    use crate::analysis::compare;
    use crate::length::Length;
    use crate::span::{Certainty, EdgeKind, Outcome, Span, SpanKind, Timeline, Unplaced};

    #[test]
    fn every_field_of_the_model_is_there_and_names_are_escaped() {
        let ns = Duration::from_nanos;
        let mut t = Timeline::new("bring-up");
        let mut disk = Span::new("disk \"0\"\n", SpanKind::Probe, ns(5), ns(30)).on("w0", Some(3));
        disk.queued = ns(2);
        disk.node = Some(1);
        disk.driver = Some("file".into());
        disk.outcome = Outcome::Failed("no such file".into());
        let disk = t.push(disk);
        let mut volume = Span::new("volume", SpanKind::Shutdown, ns(30), ns(30));
        volume.released_by = Some("disk".into());
        volume.no_callback = true;
        volume.start_certainty = Certainty::Inferred;
        volume.end_certainty = Certainty::UpperBound;
        volume.asynchronous = true;
        volume.nested_in = Some(disk);
        let volume = t.push(volume);
        t.push_edge(disk, volume, EdgeKind::Supplier);
        let mut somewhen = Unplaced::new("somewhen", SpanKind::Probe, Length::exact(ns(7)));
        somewhen.worker = "w1".into();
        t.push_unplaced(somewhen);
        t.note("order only");

        let text = super::render(&t);
        assert!(text.ends_with("}\n"));
        let value: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(
            value,
            json!({
                "name": "bring-up",
                "notes": ["order only"],
                "resolution_ns": 0,
                "clock_went_back": false,
                "summary": {
                    "spans": 3, "ok": 2, "failed": 1, "skipped": 0, "cancelled": 0, "deferred": 0,
                    "no_callback": 1, "unplaced": 1,
                    // The unplaced run may have been the last, or after the last.
                    "makespan_ns": null, "makespan": { "least_ns": 28, "most_ns": null },
                    "serial_sum_ns": 32, "serial_sum": { "least_ns": 0, "most_ns": 32 },
                    "critical_path_ns": null, "critical_path": { "least_ns": 0, "most_ns": null },
                    "max_parallelism": 1
                },
                "spans": [
                    { "name": "disk \"0\"\n", "kind": "probe", "worker": "w0", "cpu": 3, "node": 1,
                      "queued_ns": 2, "start_ns": 5, "end_ns": 30, "outcome": "failed",
                      "message": "no such file", "released_by": null, "no_callback": false,
                      "critical": true, "driver": "file", "asynchronous": false,
                      "start_certainty": "measured", "end_certainty": "measured",
                      "took": { "least_ns": 25, "most_ns": 25 }, "nested_in": null,
                      "may_be_nested": false, "driver_inferred": false },
                    { "name": "volume", "kind": "shutdown", "worker": null, "cpu": null,
                      "node": null, "queued_ns": 30, "start_ns": 30, "end_ns": 30, "outcome": "ok",
                      "message": null, "released_by": "disk", "no_callback": true,
                      "critical": false, "driver": null, "asynchronous": true,
                      "start_certainty": "inferred", "end_certainty": "upper_bound",
                      "took": { "least_ns": 0, "most_ns": 0 }, "nested_in": 0,
                      "may_be_nested": false, "driver_inferred": false }
                ],
                "unplaced": [
                    { "name": "somewhen", "kind": "probe", "worker": "w1", "cpu": null,
                      "outcome": "ok", "message": null, "driver": null, "driver_inferred": false,
                      "asynchronous": false, "took_ns": 7, "took": { "least_ns": 7, "most_ns": 7 } }
                ],
                "edges": [ { "before": 0, "after": 1, "kind": "supplier", "kept": true } ],
                "critical_path": [0]
            })
        );
    }

    #[test]
    fn an_empty_timeline_is_an_object_too() {
        let value: Value = serde_json::from_str(&super::render(&Timeline::new("x"))).unwrap();
        assert_eq!(value["spans"], json!([]));
        assert_eq!(value["summary"]["makespan_ns"], json!(0));
    }

    fn exact(ns: u64) -> Value {
        json!({ "least_ns": ns, "most_ns": ns })
    }

    #[test]
    fn every_number_of_the_analysis_is_there() {
        let ns = Duration::from_nanos;
        let mut t = Timeline::new("t");
        let mut disk = Span::new("disk", SpanKind::Probe, ns(0), ns(30)).on("w", None);
        disk.driver = Some("file".into());
        let disk = t.push(disk);
        let volume = t.push(Span::new("volume", SpanKind::Probe, ns(30), ns(40)).on("w", None));
        t.push_edge(disk, volume, EdgeKind::Parent);
        let value = analysis(&t, 1);
        assert_eq!(
            value["concurrency"],
            json!({ "exact": true, "mean": 1.0, "most": 1, "most_at_ns": 0, "time_at_ns": [0, 40] })
        );
        assert_eq!(
            value["costs"],
            json!([{ "name": "disk", "kind": "probe", "driver": "file", "driver_inferred": false,
                     "spans": [0], "times": 1,
                     "own_ns": 30, "own": exact(30), "took_ns": 30, "took": exact(30),
                     "share": 0.75, "share_between": [0.75, 0.75], "slack_ns": 0 }])
        );
        let driver = json!({ "driver": "file", "spans": 1, "inferred": 0, "longest": 0, "own_ns": 30,
                             "own": exact(30), "parallel_ns": 30, "parallel": exact(30) });
        assert_eq!(value["drivers"], json!([driver]));
        assert_eq!((&value["edges"], &value["edges_not_kept"]), (&json!(1), &json!(0)));
        assert_eq!(
            value["what_if"][0],
            json!({ "name": "1 worker", "makespan_ns": 40, "makespan": exact(40), "work_ns": 40,
                    "work": exact(40), "bound_ns": 40, "bound": exact(40) })
        );
        let two = comparison(&compare(&t, &Timeline::new("empty")));
        assert_eq!(
            two["pairs"][0],
            json!({ "name": "disk", "kind": "probe", "change_ns": -30, "exact": true,
                    "a": { "spans": 1, "own_ns": 30, "own": exact(30),
                           "took_ns": 30, "took": exact(30) }, "b": null })
        );
        assert_eq!((&two["only_a"], &two["only_b"]), (&json!(2), &json!(0)));
    }
}
