//! What a timeline tells beyond its spans, as JSON.

use super::{Bounds, told};
use crate::analysis::{Comparison, Prediction, Side, WhatIf, caveats};
use crate::driver::Driver;
use crate::span::Timeline;
use crate::units::ns;
use serde::Serialize;
use serde_json::Value;

/// What [`analysis`](crate::analysis) finds out of `t`, as one JSON object:
///
/// ```json
/// {
///   "edges": 2, "edges_not_kept": 0,
///   "concurrency": { "exact": true, "mean": 1.2, "most": 2, "most_at_ns": 0, "time_at_ns": [0, 40, 10] },
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
/// Lengths are as in a [timeline](super); a share of what nobody knows is null; a slack that isn't
/// exact is null. Where nothing has a place in time there are `costs` only, without shares and
/// slack: `concurrency` is null, and the lists are empty.
///
/// `costs` are the `top` worst devices, `drivers` the `top` worst drivers (an empty name: not
/// known), `what_if` is all asynchronous with so many workers, and `caveats` what its readers have
/// to know. Numbers of `spans` and `longest` are indexes into the timeline's spans; of a driver's
/// spans `inferred` have it only as their likeliest; `time_at_ns[n]` is for how long n ran at once,
/// were each to take as long as its bar (where that is how it was: `exact`).
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

/// A prediction's numbers, as in an [`analysis`]: `name`, `makespan_ns`, `work_ns`, `bound_ns`, and
/// the bounds of each. No schedule is shorter than the lower one of `bound`.
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

/// A comparison as one JSON object: `only_a`, `only_b`, and in `pairs`, the greatest change first,
/// `name`, `kind`, `change_ns` (null: not known), whether that is `exact`, and for `a` and `b` null or
/// `spans`, `own_ns`, `own`, `took_ns` and `took` as in an [`analysis`]. The change is that of the own
/// time, or where `what_ran_inside` is true of the whole: then nobody knows what ran inside what.
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
    use super::*;
    use crate::analysis::compare;
    use crate::span::{EdgeKind, Span, SpanKind};
    use serde_json::json;
    use std::time::Duration;

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
