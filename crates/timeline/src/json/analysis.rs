//! What a timeline tells beyond its spans, as JSON.

use super::ns;
use crate::analysis::{Comparison, Prediction, Side, WhatIf};
use crate::model::Timeline;
use serde::Serialize;
use serde_json::Value;

/// What [`analysis`](crate::analysis) finds out of `t`, as one JSON object:
///
/// ```json
/// {
///   "edges": 2, "edges_not_kept": 0,
///   "concurrency": { "mean": 1.2, "most": 2, "most_at_ns": 0, "time_at_ns": [0, 40, 10] },
///   "costs": [ { "name": "disk", "kind": "probe", "driver": "file", "spans": [0], "own_ns": 30,
///                "took_ns": 30, "share": 0.5, "slack_ns": 0 } ],
///   "drivers": [ { "driver": "file", "spans": 1, "own_ns": 30, "longest": 0, "parallel_ns": 30 } ],
///   "what_if": [ { "name": "2 workers", "makespan_ns": 30, "work_ns": 60, "bound_ns": 30 } ]
/// }
/// ```
///
/// `costs` are the `top` worst devices, `drivers` the `top` worst drivers (an empty name: not
/// known), `what_if` is all asynchronous with so many workers. Numbers of `spans` and `longest` are
/// indexes into the timeline's spans; `time_at_ns[n]` is for how long n ran at once.
pub fn analysis(t: &Timeline, top: usize) -> Value {
    let c = t.concurrency();
    let costs = t.costs();
    let drivers = match t.spans().iter().any(|s| s.driver.is_some()) {
        true => t.driver_costs(top),
        false => Vec::new(),
    };
    let view = AnalysisView {
        edges: t.edges().len(),
        edges_not_kept: t.edges_not_kept().count(),
        concurrency: ConcurrencyView {
            mean: c.mean,
            most: c.most,
            most_at_ns: ns(c.most_at),
            time_at_ns: c.time_at.iter().map(|&time| ns(time)).collect(),
        },
        costs: costs
            .iter()
            .take(top)
            .map(|cost| CostView {
                name: &cost.name,
                kind: cost.kind.as_str(),
                driver: cost.spans.first().and_then(|&id| t.span(id).driver.as_deref()),
                spans: cost.spans.iter().map(|id| id.index()).collect(),
                own_ns: ns(cost.own),
                took_ns: ns(cost.took),
                share: cost.share,
                slack_ns: ns(cost.slack),
            })
            .collect(),
        drivers: drivers
            .iter()
            .map(|cost| DriverView {
                driver: &cost.driver,
                spans: cost.spans,
                own_ns: ns(cost.own),
                longest: cost.longest.index(),
                parallel_ns: ns(cost.parallel),
            })
            .collect(),
        what_if: WhatIf::usual()
            .into_iter()
            .map(|(name, what_if)| prediction(&name, &what_if.predict(t)))
            .collect(),
    };
    value(&view)
}

/// A prediction's numbers: `name`, `makespan_ns`, `work_ns`, `bound_ns`.
pub fn prediction(name: &str, p: &Prediction) -> Value {
    let (makespan_ns, work_ns, bound_ns) = (ns(p.makespan), ns(p.work), ns(p.bound));
    value(&PredictionView { name, makespan_ns, work_ns, bound_ns })
}

/// A comparison as one JSON object: `only_a`, `only_b`, and in `pairs`, the greatest change first,
/// `name`, `kind`, `change_ns`, and for `a` and `b` `{ "spans": 1, "own_ns": 30 }` or null.
pub fn comparison(c: &Comparison) -> Value {
    let side =
        |side: Option<Side>| side.map(|side| SideView { spans: side.spans, own_ns: ns(side.own) });
    value(&ComparisonView {
        only_a: c.only_a,
        only_b: c.only_b,
        pairs: c
            .pairs
            .iter()
            .map(|pair| PairView {
                name: &pair.name,
                kind: pair.kind.as_str(),
                change_ns: pair.change_ns().clamp(i64::MIN.into(), i64::MAX.into()) as i64,
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
    concurrency: ConcurrencyView,
    costs: Vec<CostView<'a>>,
    drivers: Vec<DriverView<'a>>,
    what_if: Vec<Value>,
}

#[derive(Serialize)]
struct ConcurrencyView {
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
    spans: Vec<usize>,
    own_ns: u64,
    took_ns: u64,
    share: f64,
    slack_ns: u64,
}

#[derive(Serialize)]
struct DriverView<'a> {
    driver: &'a str,
    spans: usize,
    own_ns: u64,
    longest: usize,
    parallel_ns: u64,
}

#[derive(Serialize)]
struct PredictionView<'a> {
    name: &'a str,
    makespan_ns: u64,
    work_ns: u64,
    bound_ns: u64,
}

#[derive(Serialize)]
struct ComparisonView<'a> {
    only_a: usize,
    only_b: usize,
    pairs: Vec<PairView<'a>>,
}

#[derive(Serialize)]
struct PairView<'a> {
    name: &'a str,
    kind: &'static str,
    change_ns: i64,
    a: Option<SideView>,
    b: Option<SideView>,
}

#[derive(Serialize)]
struct SideView {
    spans: usize,
    own_ns: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::compare;
    use crate::{EdgeKind, Span, SpanKind};
    use serde_json::json;
    use std::time::Duration;

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
            json!({ "mean": 1.0, "most": 1, "most_at_ns": 0, "time_at_ns": [0, 40] })
        );
        assert_eq!(
            value["costs"],
            json!([{ "name": "disk", "kind": "probe", "driver": "file", "spans": [0], "own_ns": 30,
                     "took_ns": 30, "share": 0.75, "slack_ns": 0 }])
        );
        let driver =
            json!({ "driver": "file", "spans": 1, "own_ns": 30, "longest": 0, "parallel_ns": 30 });
        assert_eq!(value["drivers"], json!([driver]));
        assert_eq!((&value["edges"], &value["edges_not_kept"]), (&json!(1), &json!(0)));
        assert_eq!(
            value["what_if"][0],
            json!({ "name": "1 worker", "makespan_ns": 40, "work_ns": 40, "bound_ns": 40 })
        );
        let two = comparison(&compare(&t, &Timeline::new("empty")));
        assert_eq!(
            two["pairs"][0],
            json!({ "name": "disk", "kind": "probe", "change_ns": -30,
                    "a": { "spans": 1, "own_ns": 30 }, "b": null })
        );
        assert_eq!((&two["only_a"], &two["only_b"]), (&json!(2), &json!(0)));
    }
}
