//! What `corewise timeline --json` prints; docs/timeline.md describes it.

use corewise::timeline::analysis::compare;
use corewise::timeline::kernel_log::{Bound, KernelLog};
use corewise::timeline::{Length, Timeline, json as render};
use serde_json::{Value, json};

use super::args::Args;
use super::asked::Predicted;
use super::report::pairs;
use super::source::Log;

/// One document for all logs.
pub(super) fn document(args: &Args, logs: &[Log], predicted: &[Vec<Predicted>]) -> Value {
    let each = |(log, predicted): (&Log, &Vec<Predicted>)| {
        let timelines: Vec<Value> = log
            .timelines
            .iter()
            .enumerate()
            .map(|(i, t)| timeline(args, t, predicted.iter().filter(|p| p.of == i)))
            .collect();
        json!({
            "log": log.name,
            "kernel_log": log.kernel.as_ref().map(kernel),
            "timelines": timelines,
        })
    };
    let logs_view: Vec<Value> = logs.iter().zip(predicted).map(each).collect();
    let mut document = json!({ "logs": logs_view });
    if let (true, [a, b]) = (args.compare, logs) {
        let view = |(a, b): (&Timeline, &Timeline)| {
            let mut view = render::comparison(&compare(a, b));
            view["timelines"] = json!([a.name(), b.name()]);
            view
        };
        document["comparison"] = pairs(a, b).into_iter().map(view).collect();
    }
    document
}

fn timeline<'p>(
    args: &Args,
    t: &Timeline,
    predicted: impl Iterator<Item = &'p Predicted>,
) -> Value {
    let predicted: Vec<Value> = predicted
        .map(|p| {
            let mut view = render::prediction(&p.asked, &p.prediction);
            view["timeline"] = render::value(&p.prediction.timeline);
            view
        })
        .collect();
    json!({
        "timeline": render::value(t),
        "analysis": render::analysis(t, args.top),
        "predicted": predicted,
    })
}

fn kernel(log: &KernelLog) -> Value {
    let ns = |time: std::time::Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    let told = |length: Length| length.most().and(length.told()).map(ns);
    let bounds = |length: Length| json!({ "least_ns": ns(length.least()), "most_ns": length.most().map(ns) });
    let deferrals: Vec<Value> = log
        .deferrals
        .iter()
        .map(|d| {
            let bound_ns = match d.bound {
                Bound::At(at) => Some(ns(at)),
                Bound::Never | Bound::Somewhen => None,
            };
            json!({
                "device": d.device, "driver": d.driver, "attempts": d.attempts,
                "by_driver": d.by_driver, "first_ns": d.first.map(ns), "last_ns": d.last.map(ns),
                "total_ns": told(d.total), "total": bounds(d.total),
                "bound": d.bound != Bound::Never, "bound_ns": bound_ns, "reasons": d.reasons,
            })
        })
        .collect();
    let split = log.deferred_probe.as_ref().map(|split| {
        let shares: Vec<Value> = split
            .shares
            .iter()
            .map(|(device, times, took)| {
                json!({
                    "device": device, "times": times, "took_ns": told(*took), "took": bounds(*took),
                })
            })
            .collect();
        json!({
            "span": split.span.index(), "total_ns": told(split.total), "total": bounds(split.total),
            "rest_ns": told(split.rest),
            "shares": shares,
        })
    });
    let edges: Vec<Value> = log
        .graph
        .edges()
        .iter()
        .map(|e| {
            json!({
                "supplier": e.supplier, "consumer": e.consumer, "kind": e.kind.as_str(),
                "source": e.source.as_str(),
            })
        })
        .collect();
    let suspicious: Vec<Value> = log
        .suspicious
        .iter()
        .map(|line| json!({ "line": line.line, "text": line.text, "why": line.why }))
        .collect();
    let counts = |pairs: Vec<(&'static str, u64)>| -> Value {
        pairs
            .into_iter()
            .filter(|(_, n)| *n > 0)
            .map(|(k, n)| (k.to_owned(), Value::from(n)))
            .collect()
    };
    let maybe = |time: Option<std::time::Duration>| time.map(ns);
    let boots: Vec<Value> = log
        .boots
        .iter()
        .map(|b| {
            json!({
                "first_line": b.first_line, "lines": b.lines, "from_ns": maybe(b.from),
                "to_ns": maybe(b.to), "initcalls": b.initcalls, "probes": b.probes,
                "shutdowns": b.shutdowns, "kernel": b.kernel,
            })
        })
        .collect();
    json!({
        "lines": log.lines,
        "boots": boots,
        "kernel": log.kernel,
        "machine": log.machine,
        "command_line": log.command_line,
        "forms": counts(log.forms.iter().map(|&(form, n)| (form.as_str(), n)).collect()),
        "prefixes": counts(log.prefixes.iter().map(|&(prefix, n)| (prefix.as_str(), n)).collect()),
        "notes": log.notes,
        "drivers": log.drivers,
        "dependencies": edges,
        "deferrals": deferrals,
        "deferred_probe": split,
        "suspicious": suspicious,
        "suspicious_total": log.suspicious_total,
    })
}
