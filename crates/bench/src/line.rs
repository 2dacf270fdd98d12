//! The line that a run prints: what it measured.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// What one run measured, printed as one line of JSON.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Line {
    /// The case, as it was asked for.
    pub case: String,
    /// The runtime, as it was asked for.
    pub runtime: String,
    /// Why the runtime can't run this case; then there are no metrics.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unsupported: Option<String>,
    /// Value of each metric, by its name; see [`unit()`].
    #[serde(default)]
    pub metrics: BTreeMap<String, f64>,
}

impl Line {
    /// A line without metrics so far.
    pub fn new(case: &str, runtime: &str) -> Line {
        let (case, runtime) = (case.to_owned(), runtime.to_owned());
        Line { case, runtime, unsupported: None, metrics: BTreeMap::new() }
    }

    /// Adds a metric.
    pub fn set(&mut self, metric: &str, value: f64) {
        self.metrics.insert(metric.to_owned(), value);
    }

    /// As JSON, without the line's end.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("strings and numbers can always be written as JSON")
    }

    /// Reads the last line of a run's output that is one. Lines that runtimes print before are passed over.
    ///
    /// # Errors
    /// Says what is wrong with it.
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

/// The unit of a metric; `None` where there is no metric of that name. Units `*/s`: more is better;
/// of all others less is.
pub fn unit(metric: &str) -> Option<&'static str> {
    METRICS.iter().find(|(name, _)| *name == metric).map(|(_, unit)| *unit)
}

/// Every metric and its unit, in the order in which tables show them.
pub const METRICS: &[(&str, &str)] = &[
    ("bytes_per_second", "bytes/s"),
    ("items_per_second", "items/s"),
    ("call_p50", "ns"),
    ("call_p90", "ns"),
    ("call_p95", "ns"),
    ("call_p99", "ns"),
    ("latency_p50", "ns"),
    ("latency_p90", "ns"),
    ("latency_p99", "ns"),
    ("latency_p999", "ns"),
    ("latency_max", "ns"),
    ("makespan_p50", "ns"),
    ("makespan_p90", "ns"),
    ("makespan_p99", "ns"),
    ("critical_path", "ns"),
    ("short_p50", "ns"),
    ("short_p90", "ns"),
    ("short_p99", "ns"),
    ("short_p999", "ns"),
    ("short_max", "ns"),
    ("held_p50", "ns"),
    ("held_p99", "ns"),
    ("held_max", "ns"),
    ("calls_per_second", "calls/s"),
    ("wakeups_per_1000", "count"),
    ("read_p50", "ns"),
    ("read_p99", "ns"),
    ("replace_p50", "ns"),
    ("cpu_per_item", "ns"),
    ("cpu_seconds", "s"),
    ("voluntary_switches", "count"),
    ("threads", "count"),
    ("peak_rss", "bytes"),
    ("allocations_per_item", "count"),
    ("cost_mean", "ns"),
    ("cost_max", "ns"),
    ("bound", "ns"),
    ("overhead_per_device", "ns"),
    ("cpus", "count"),
    ("wait_p50", "ns"),
    ("wait_p99", "ns"),
    ("wait_p999", "ns"),
    ("wait_max", "ns"),
    ("waiting", "count"),
    ("resume_p50", "ns"),
    ("resume_p99", "ns"),
    ("overhead_ns_per_request", "ns"),
    ("up_time", "ns"),
    ("down_time", "ns"),
    ("cpu_per_gib", "ns"),
    ("memory", "bytes"),
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
