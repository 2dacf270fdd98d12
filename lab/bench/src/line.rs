//! The line that a run prints, with its measured values.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The measured values of one run, printed as one line of JSON.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Line {
    /// The case, as in the job.
    pub case: String,
    /// The runtime, as in the job.
    pub runtime: String,
    /// The reason that the runtime can't run this case. Then there are no metrics.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unsupported: Option<String>,
    /// Value of each metric, by its name; see [`unit()`].
    #[serde(default)]
    pub metrics: BTreeMap<String, f64>,
}

impl Line {
    /// Creates a line without metrics.
    pub fn new(case: &str, runtime: &str) -> Line {
        let (case, runtime) = (case.to_owned(), runtime.to_owned());
        Line { case, runtime, unsupported: None, metrics: BTreeMap::new() }
    }

    /// Adds a metric.
    pub fn set(&mut self, metric: &str, value: f64) {
        self.metrics.insert(metric.to_owned(), value);
    }

    /// Writes the line as JSON, without the line's end.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("strings and numbers can always be written as JSON")
    }

    /// Reads the last line of JSON in a run's output. Lines that runtimes print before are skipped.
    ///
    /// # Errors
    /// There is no such line, or it isn't understood.
    pub fn last_of(output: &str) -> Result<Line, String> {
        let last = output.lines().rfind(|line| line.starts_with('{'));
        let last = last.ok_or_else(|| "it printed no line of JSON".to_owned())?;
        let line: Line =
            serde_json::from_str(last).map_err(|error| format!("it printed '{last}': {error}"))?;
        match line.metrics.iter().find(|(name, value)| unit(name).is_none() || !value.is_finite()) {
            Some((name, value)) => Err(format!("it printed '{name}' as {value}")),
            None => Ok(line),
        }
    }
}

/// Returns the unit of a metric, or `None` if there is no metric of that name. More is better for
/// units `*/s`, and less for all others.
pub fn unit(metric: &str) -> Option<&'static str> {
    metrics().find(|(name, _)| *name == metric).map(|(_, unit)| unit)
}

/// Returns every metric and its unit, in the order of the tables.
pub fn metrics() -> impl Iterator<Item = (&'static str, &'static str)> {
    let named = |(unit, names): &(&'static str, &'static str)| {
        let unit = *unit;
        names.split_whitespace().map(move |name| (name, unit))
    };
    METRICS.iter().flat_map(named)
}

const METRICS: &[(&str, &str)] = &[
    ("bytes/s", "bytes_per_second"),
    ("items/s", "items_per_second"),
    ("ns", "call_p50 call_p90 call_p95 call_p99"),
    ("ns", "latency_p50 latency_p90 latency_p99 latency_p999 latency_max"),
    ("ns", "fork_ns fork_cpu_ns"),
    ("ns", "makespan_p50 makespan_p90 makespan_p99 critical_path"),
    ("ns", "short_p50 short_p90 short_p99 short_p999 short_max held_p50 held_p99 held_max"),
    ("calls/s", "calls_per_second"),
    ("count", "wakeups_per_1000"),
    ("ns", "read_p50 read_p99 replace_p50 cpu_per_item"),
    ("s", "cpu_seconds"),
    ("count", "voluntary_switches threads"),
    ("bytes", "peak_rss"),
    ("count", "allocations_per_item"),
    ("ns", "cost_mean cost_max bound overhead_per_device"),
    ("count", "cpus"),
    ("ns", "wait_p50 wait_p99 wait_p999 wait_max"),
    ("count", "waiting"),
    ("ns", "resume_p50 resume_p99 overhead_ns_per_request up_time down_time cpu_per_gib"),
    ("bytes", "memory"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_read_back_whatever_was_printed_before() {
        let mut line = Line::new("storm/boxed", "tokio");
        line.set("items_per_second", 2.5e6);
        let json = line.to_json();
        assert_eq!(
            json,
            "{\"case\":\"storm/boxed\",\"runtime\":\"tokio\",\"metrics\":{\"items_per_second\":2500000.0}}"
        );
        assert_eq!(Line::last_of(&format!("warming up\n{json}\n")), Ok(line));
        let no = Line { unsupported: Some("no".to_owned()), ..Line::new("idle", "x") };
        assert_eq!(Line::last_of(&no.to_json()), Ok(no));
    }

    #[test]
    fn a_malformed_line_is_reported() {
        assert!(Line::last_of("nothing\n").unwrap_err().contains("no line"));
        assert!(Line::last_of("{}").unwrap_err().contains("case"));
        let unknown = "{\"case\":\"idle\",\"runtime\":\"x\",\"metrics\":{\"speed\":1}}";
        assert!(Line::last_of(unknown).unwrap_err().contains("speed"));
    }
}
