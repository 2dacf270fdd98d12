//! Prometheus's text format, as families of metrics with their samples.
//!
//! The format is written by hand: it is a line a sample, and the existing crate leaves the escaping
//! of labels to its users.

use std::fmt::Write as _;

use super::disks::{OpCounts, Times};

/// The upper ends of a histogram's buckets, in seconds.
const BOUNDS: [f64; 20] = [
    1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 5e-2, 0.1, 0.25, 0.5,
    1.0, 2.5, 5.0, 10.0, 30.0,
];

pub(super) type Labels<'a> = &'a [(&'a str, &'a str)];
/// The counts of all operations, each with its name.
type NamedOps<'a> = [(&'static str, &'a OpCounts); 7];
/// A family of metrics: its name or the end of it, its help, and the function that returns its
/// value.
pub(super) type MetricFamily<T, V> = (&'static str, &'static str, fn(&T) -> V);
/// A family of metrics like [`MetricFamily`], with its kind after its name.
pub(super) type MetricFamilyWithKind<T> = (&'static str, &'static str, &'static str, fn(&T) -> f64);

/// The text of metrics: one family after the other, each with all its samples after its head.
#[derive(Default)]
pub(super) struct Exposition(pub(super) String);

impl Exposition {
    pub(super) fn family(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to a String can't fail, here and below.
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    pub(super) fn sample(&mut self, name: &str, labels: Labels<'_>, value: f64) {
        self.0.push_str(name);
        for (n, (label, value)) in labels.iter().enumerate() {
            let _ = write!(self.0, "{}{label}=\"", if n == 0 { '{' } else { ',' });
            for c in value.chars() {
                match c {
                    '\\' => self.0.push_str("\\\\"),
                    '"' => self.0.push_str("\\\""),
                    '\n' => self.0.push_str("\\n"),
                    c => self.0.push(c),
                }
            }
            self.0.push('"');
        }
        let _ = writeln!(self.0, "{} {value}", if labels.is_empty() { "" } else { "}" });
    }

    /// Writes a family with one sample for each of `all`.
    pub(super) fn samples<'a, T: 'a>(
        &mut self,
        (name, kind, help): (&str, &str, &str),
        all: impl IntoIterator<Item = &'a T>,
        sample: impl Fn(&'a T) -> (Vec<(&'a str, &'a str)>, f64),
    ) {
        self.family(name, kind, help);
        for one in all {
            let (labels, value) = sample(one);
            self.sample(name, &labels, value);
        }
    }

    pub(super) fn histogram(&mut self, name: &str, labels: Labels<'_>, times: &Times) {
        let mut counts = [0; BOUNDS.len()];
        let (mut all, mut sum) = (0, 0.0);
        for &(end, count) in &times.histogram {
            all += count;
            sum += end * count as f64;
            if let Some(bucket) = BOUNDS.iter().position(|bound| end <= *bound) {
                counts[bucket] += count;
            }
        }
        let mut below = 0;
        let ends = BOUNDS.iter().zip(counts).map(|(bound, count)| {
            below += count;
            (bound.to_string(), below)
        });
        for (end, count) in ends.chain([("+Inf".to_string(), all)]) {
            let labels = [labels, &[("le", end.as_str())]].concat();
            self.sample(&format!("{name}_bucket"), &labels, count as f64);
        }
        self.sample(&format!("{name}_sum"), labels, sum);
        self.sample(&format!("{name}_count"), labels, all as f64);
    }

    /// Writes the times of the last minute by operation for each of `all`. Operations without
    /// requests in that time are left out.
    pub(super) fn last_minute(&mut self, of: &str, what: &str, all: &[(&str, NamedOps<'_>)]) {
        let name = format!("corewise_{of}_last_minute_duration_seconds");
        let help = format!("Shows how long the requests {what} took in the last minute.");
        self.family(&name, "gauge", &help);
        let ops = all.iter().flat_map(|(one, ops)| ops.iter().map(move |(op, of)| (*one, *op, of)));
        for (one, op, last) in ops.filter_map(|(n, op, of)| Some((n, op, of.last_minute.as_ref()?)))
        {
            for (quantile, seconds) in [
                ("0.5", last.p50_seconds),
                ("0.99", last.p99_seconds),
                ("0.999", last.p999_seconds),
                ("1", last.longest_seconds),
            ] {
                let Some(seconds) = seconds else { continue };
                self.sample(&name, &[(of, one), ("op", op), ("quantile", quantile)], seconds);
            }
        }
    }

    /// Writes requests, errors, bytes and times by operation for each of `all`. Operations without
    /// requests are left out.
    pub(super) fn by_op(&mut self, of: &str, what: &str, all: &[(&str, NamedOps<'_>)]) {
        let counters: [MetricFamily<OpCounts, u64>; 3] = [
            ("requests", "Counts the requests", |op| op.requests),
            ("errors", "Counts the failed requests", |op| op.errors),
            ("bytes", "Adds up the bytes of the successful requests", |op| op.bytes),
        ];
        let used = || {
            all.iter().flat_map(|(name, ops)| {
                ops.iter().filter(|(_, op)| op.requests != 0).map(move |(op, of)| (*name, *op, *of))
            })
        };
        for (counter, help, value) in counters {
            let name = format!("corewise_{of}_{counter}_total");
            self.family(&name, "counter", &format!("{help} {what}."));
            for (one, op, of_op) in used() {
                self.sample(&name, &[(of, one), ("op", op)], value(of_op) as f64);
            }
        }
        let name = format!("corewise_{of}_request_duration_seconds");
        self.family(&name, "histogram", &format!("Counts the requests {what} by their duration."));
        for (one, op, of_op) in used() {
            self.histogram(&name, &[(of, one), ("op", op)], &of_op.latency);
        }
    }
}
