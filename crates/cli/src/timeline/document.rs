//! The document of `corewise timeline --json`, which docs/timeline.md describes.
//!
//! The document is written as a stream: a log with 250 000 spans as a tree of values takes
//! gigabytes.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use corewise::kernel_log::{BootSummary, Bound, Deferral, GraphEdge, KernelLog, Split};
use corewise::timeline::analysis::compare;
use corewise::timeline::{Driver, Length, Timeline, json as render};
use serde::{Serialize, Serializer};
use serde_json::{Value, json};

use super::report::pairs;
use super::source::Log;
use super::what_if::NamedPrediction;
use crate::args::timeline::Args;

/// Writes one document for all logs, with a newline at its end.
pub(super) fn write(
    out: &mut impl io::Write,
    args: &Args,
    logs: &[Log],
    predicted: &[Vec<NamedPrediction>],
) -> io::Result<()> {
    let both = logs.iter().zip(predicted);
    let document = Document {
        logs: both.map(|(log, predicted)| LogView { args, log, predicted }).collect(),
        comparison: match (args.compare, logs) {
            (true, [a, b]) => Some(comparison(a, b)),
            _ => None,
        },
    };
    let mut out = io::BufWriter::new(out);
    serde_json::to_writer_pretty(&mut out, &document)?;
    io::Write::write_all(&mut out, b"\n")?;
    io::Write::flush(&mut out)
}

fn comparison(a: &Log, b: &Log) -> Vec<Value> {
    let view = |(a, b): (&Timeline, &Timeline)| {
        let mut view = render::comparison(&compare(a, b));
        view["timelines"] = json!([a.name(), b.name()]);
        view
    };
    pairs(a, b).into_iter().map(view).collect()
}

#[derive(Serialize)]
struct Document<'a> {
    logs: Vec<LogView<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    comparison: Option<Vec<Value>>,
}

/// One log. Each part is made when it is written.
struct LogView<'a> {
    args: &'a Args,
    log: &'a Log,
    predicted: &'a [NamedPrediction],
}

impl Serialize for LogView<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Fields<'a> {
            log: &'a str,
            kernel_log: Option<KernelView<'a>>,
            timelines: Vec<TimelineView<'a>>,
        }
        let timelines = self.log.timelines.iter().enumerate();
        let timelines = timelines.map(|(of, timeline)| TimelineView {
            args: self.args,
            timeline,
            predicted: self.predicted.iter().filter(|p| p.of == of).collect(),
        });
        let fields = Fields {
            log: &self.log.name,
            kernel_log: self.log.kernel.as_ref().map(KernelView::of),
            timelines: timelines.collect(),
        };
        fields.serialize(to)
    }
}

struct TimelineView<'a> {
    args: &'a Args,
    timeline: &'a Timeline,
    predicted: Vec<&'a NamedPrediction>,
}

impl Serialize for TimelineView<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Fields<'a> {
            timeline: render::View<'a>,
            analysis: Value,
            predicted: Vec<PredictedView<'a>>,
        }
        let fields = Fields {
            timeline: render::View(self.timeline),
            analysis: render::analysis(self.timeline, self.args.top),
            predicted: self
                .predicted
                .iter()
                .map(|p| PredictedView {
                    numbers: render::prediction(&p.asked, &p.prediction),
                    timeline: render::View(&p.prediction.timeline),
                })
                .collect(),
        };
        fields.serialize(to)
    }
}

#[derive(Serialize)]
struct PredictedView<'a> {
    #[serde(flatten)]
    numbers: Value,
    timeline: render::View<'a>,
}

#[derive(Serialize)]
struct KernelView<'a> {
    lines: u64,
    boots: Vec<BootView<'a>>,
    kernel: Option<&'a str>,
    machine: Option<&'a str>,
    command_line: Option<&'a str>,
    forms: BTreeMap<&'static str, u64>,
    prefixes: BTreeMap<&'static str, u64>,
    notes: &'a [String],
    drivers: BTreeMap<&'a str, DriverView<'a>>,
    dependencies: Vec<DependencyView<'a>>,
    deferrals: Vec<DeferralView<'a>>,
    deferred_probe: Option<SplitView<'a>>,
    suspicious: Vec<SuspiciousView<'a>>,
    suspicious_total: u64,
}

impl KernelView<'_> {
    fn of(log: &KernelLog) -> KernelView<'_> {
        let suspicious = log.suspicious.iter();
        let counts = |counts: Vec<(&'static str, u64)>| {
            counts.into_iter().filter(|(_, n)| *n > 0).collect::<BTreeMap<_, _>>()
        };
        KernelView {
            lines: log.lines,
            boots: log.boots.iter().map(BootView::of).collect(),
            kernel: log.kernel.as_deref(),
            machine: log.machine.as_deref(),
            command_line: log.command_line.as_deref(),
            forms: counts(log.forms.iter().map(|&(form, n)| (form.as_str(), n)).collect()),
            prefixes: counts(log.prefixes.iter().map(|&(p, n)| (p.as_str(), n)).collect()),
            notes: &log.notes,
            drivers: log.drivers.iter().map(|(d, driver)| (&**d, DriverView::of(driver))).collect(),
            dependencies: log.graph.edges().iter().map(DependencyView::of).collect(),
            deferrals: log.deferrals.iter().map(DeferralView::of).collect(),
            deferred_probe: log.deferred_probe.as_ref().map(SplitView::of),
            suspicious: suspicious
                .map(|s| SuspiciousView { line: s.line, text: &s.text, why: s.why })
                .collect(),
            suspicious_total: log.suspicious_total,
        }
    }
}

#[derive(Serialize)]
struct DriverView<'a> {
    driver: &'a str,
    driver_inferred: bool,
}

impl DriverView<'_> {
    fn of(driver: &Driver) -> DriverView<'_> {
        DriverView { driver: driver.name(), driver_inferred: driver.is_inferred() }
    }
}

#[derive(Serialize)]
struct BootView<'a> {
    first_line: u64,
    lines: u64,
    from_ns: Option<u64>,
    to_ns: Option<u64>,
    initcalls: usize,
    probes: usize,
    shutdowns: usize,
    kernel: Option<&'a str>,
}

impl BootView<'_> {
    fn of(b: &BootSummary) -> BootView<'_> {
        BootView {
            first_line: b.first_line,
            lines: b.lines,
            from_ns: b.from.map(ns),
            to_ns: b.to.map(ns),
            initcalls: b.initcalls,
            probes: b.probes,
            shutdowns: b.shutdowns,
            kernel: b.kernel.as_deref(),
        }
    }
}

#[derive(Serialize)]
struct DependencyView<'a> {
    supplier: &'a str,
    consumer: &'a str,
    kind: &'static str,
    source: &'static str,
}

impl DependencyView<'_> {
    fn of(edge: &GraphEdge) -> DependencyView<'_> {
        DependencyView {
            supplier: &edge.supplier,
            consumer: &edge.consumer,
            kind: edge.kind.as_str(),
            source: edge.source.as_str(),
        }
    }
}

#[derive(Serialize)]
struct DeferralView<'a> {
    device: &'a str,
    driver: Option<&'a str>,
    driver_inferred: bool,
    attempts: usize,
    by_driver: usize,
    first_ns: Option<u64>,
    last_ns: Option<u64>,
    total_ns: Option<u64>,
    total: Bounds,
    bound: bool,
    bound_ns: Option<u64>,
    reasons: &'a [String],
}

impl DeferralView<'_> {
    fn of(d: &Deferral) -> DeferralView<'_> {
        DeferralView {
            device: &d.device,
            driver: d.driver.as_ref().map(Driver::name),
            driver_inferred: d.driver.as_ref().is_some_and(Driver::is_inferred),
            attempts: d.attempts,
            by_driver: d.by_driver,
            first_ns: d.first.map(ns),
            last_ns: d.last.map(ns),
            total_ns: told(d.total),
            total: Bounds::of(d.total),
            bound: d.bound != Bound::Never,
            bound_ns: match d.bound {
                Bound::At(at) => Some(ns(at)),
                Bound::Never | Bound::Somewhen => None,
            },
            reasons: &d.reasons,
        }
    }
}

#[derive(Serialize)]
struct SplitView<'a> {
    span: usize,
    total_ns: Option<u64>,
    total: Bounds,
    rest_ns: Option<u64>,
    rest: Bounds,
    shares: Vec<ShareView<'a>>,
}

impl SplitView<'_> {
    fn of(split: &Split) -> SplitView<'_> {
        SplitView {
            span: split.span.index(),
            total_ns: told(split.total),
            total: Bounds::of(split.total),
            rest_ns: told(split.rest),
            rest: Bounds::of(split.rest),
            shares: split
                .shares
                .iter()
                .map(|share| ShareView {
                    device: &share.device,
                    times: share.times,
                    took_ns: told(share.took),
                    took: Bounds::of(share.took),
                })
                .collect(),
        }
    }
}

#[derive(Serialize)]
struct ShareView<'a> {
    device: &'a str,
    times: usize,
    took_ns: Option<u64>,
    took: Bounds,
}

#[derive(Serialize)]
struct SuspiciousView<'a> {
    line: u64,
    text: &'a str,
    why: &'static str,
}

#[derive(Serialize)]
struct Bounds {
    least_ns: u64,
    most_ns: Option<u64>,
}

impl Bounds {
    fn of(length: Length) -> Bounds {
        Bounds { least_ns: ns(length.least()), most_ns: length.most().map(ns) }
    }
}

/// Returns a length that has an upper bound as a number, and `None` for any other.
fn told(length: Length) -> Option<u64> {
    length.most().and(length.told()).map(ns)
}

fn ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
