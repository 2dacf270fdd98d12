//! Records: a measurement prints one per metric, and its numbers for people.

use serde::{Deserialize, Serialize};

use crate::line::unit;
use crate::names::{HEADLINE, INTERVAL};
use crate::stats::{PairedRatio, Summary};

/// One metric of one variant in one case. `corewise-bench` and `bench-peers` print arrays of these.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// The benchmark: `workqueue`, `calls`, ...
    pub bench: String,
    /// The workload and its parameters; `headline` for the records that sum a call up, `interval95`
    /// for their intervals.
    pub case: String,
    /// `corewise`, `before` (the published old design), or a peer's name.
    pub variant: String,
    /// The measured quantity.
    pub metric: String,
    /// The metric's unit; `ratio` for headlines.
    pub unit: String,
    /// The median of the runs.
    pub median: f64,
    /// The smallest run.
    pub min: f64,
    /// The largest run.
    pub max: f64,
    /// Number of runs that count (the dropped first round doesn't).
    pub runs: usize,
}

impl Record {
    /// Creates a record of a summary.
    pub fn new(
        bench: &str,
        case: &str,
        variant: &str,
        metric: &str,
        unit: &str,
        summary: Summary,
    ) -> Record {
        let [bench, case, variant, metric, unit] =
            [bench, case, variant, metric, unit].map(str::to_owned);
        let Summary { median, min, max, runs } = summary;
        Record { bench, case, variant, metric, unit, median, min, max, runs }
    }

    /// Creates a headline: a ratio of pairs of runs of the same call, or a metric by its [own
    /// name](unit()).
    pub fn headline(bench: &str, metric: &str, ratio: &PairedRatio) -> Record {
        let unit = unit(metric).unwrap_or("ratio");
        Record::new(bench, HEADLINE, "corewise", metric, unit, ratio.summary)
    }

    /// Creates the record of the 95 % interval of a headline's median, from `min` to `max`.
    pub fn interval(bench: &str, metric: &str, ratio: &PairedRatio) -> Record {
        let headline = Record::headline(bench, metric, ratio);
        Record { case: INTERVAL.to_owned(), min: ratio.low, max: ratio.high, ..headline }
    }
}

/// Writes the records as a JSON array, one record per line.
pub fn to_json(records: &[Record]) -> String {
    let mut text = String::from("[");
    for (n, record) in records.iter().enumerate() {
        text.push_str(if n == 0 { "\n  " } else { ",\n  " });
        let json = serde_json::to_string(record);
        text.push_str(&json.expect("strings and numbers can always be written as JSON"));
    }
    text.push_str(if records.is_empty() { "]\n" } else { "\n]\n" });
    text
}

/// Writes `value` in its unit: `6.81 M/s`, `12.3 µs`, `31.0 MiB`, `1.42`.
///
/// Units known by name are times (`ns`, `us`, `ms`, `s`), `bytes`, rates (`.../s`), `count` and
/// `ratio`. Any other unit follows the number unchanged.
pub fn show(value: f64, unit: &str) -> String {
    match unit {
        "ns" => time(value),
        "us" => time(value * 1e3),
        "ms" => time(value * 1e6),
        "s" => time(value * 1e9),
        "bytes/s" => scaled(value, 1e3, &["B/s", "kB/s", "MB/s", "GB/s", "TB/s"]),
        "bytes" => scaled(value, 1024.0, &["B", "KiB", "MiB", "GiB", "TiB"]),
        "ratio" => digits(value),
        "count" => scaled(value, 1e3, &["", "k", "M", "G", "T"]),
        _ if unit.ends_with("/s") => scaled(value, 1e3, &["/s", "k/s", "M/s", "G/s", "T/s"]),
        _ => format!("{} {unit}", digits(value)),
    }
}

fn time(ns: f64) -> String {
    // Minutes and hours of a measurement are harder to compare than seconds.
    scaled(ns, 1e3, &["ns", "µs", "ms", "s"])
}

/// Writes the value in the largest unit that leaves at least 1. Each unit is `step` of the one
/// before.
fn scaled(value: f64, step: f64, units: &[&str]) -> String {
    let mut value = value;
    let mut at = 0;
    // 999.6 would be rounded to a fourth digit.
    while value.abs() >= step * 0.9995 && at + 1 < units.len() {
        value /= step;
        at += 1;
    }
    let number = digits(value);
    match units[at] {
        "" => number,
        unit => format!("{number} {unit}"),
    }
}

/// Writes three significant digits, and very large and very small numbers with a power of ten.
fn digits(value: f64) -> String {
    let size = value.abs();
    match size {
        _ if !value.is_finite() => "not a number".to_owned(),
        0.0 => "0".to_owned(),
        _ if !(0.001..99_999.5).contains(&size) => format!("{value:.2e}"),
        _ if size < 0.9995 => format!("{value:.3}"),
        _ if size < 9.995 => format!("{value:.2}"),
        _ if size < 99.95 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

#[cfg(test)]
impl Record {
    /// Creates a record of no run, for tests of code that reads records. `(min, median, max)`.
    pub(crate) fn made_up(
        case: &str,
        variant: &str,
        metric: &str,
        unit: &str,
        (min, median, max): (f64, f64, f64),
    ) -> Record {
        let summary = Summary { median, min, max, runs: 7 };
        Record::new("workqueue", case, variant, metric, unit, summary)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_written_with_the_agreed_keys_in_their_order_and_read_back() {
        let ratio = PairedRatio::of(&[2.0, 3.0], &[1.0, 1.0], 1).unwrap();
        let records = [Record::headline("calls", "x", &ratio)];
        let text = to_json(&records);
        assert_eq!(
            text,
            "[\n  {\"bench\":\"calls\",\"case\":\"headline\",\"variant\":\"corewise\",\"metric\":\"x\",\
             \"unit\":\"ratio\",\"median\":2.5,\"min\":2.0,\"max\":3.0,\"runs\":2}\n]\n"
        );
        assert_eq!(serde_json::from_str::<Vec<Record>>(&text).unwrap(), records);
        assert_eq!(to_json(&[]), "[]\n");
    }

    #[test]
    fn three_digits_and_a_fitting_unit() {
        for (value, unit, shown) in [
            (6_810_000.0, "items/s", "6.81 M/s"),
            (0.0, "items/s", "0 /s"),
            (999_960.0, "items/s", "1.00 M/s"),
            (1e300, "items/s", "1.00e288 T/s"),
            (90.0, "ns", "90.0 ns"),
            (12_345.0, "ns", "12.3 µs"),
            (1.5, "s", "1.50 s"),
            (0.25, "us", "250 ns"),
            (0.8, "ratio", "0.800"),
            (31.0 * 1024.0 * 1024.0, "bytes", "31.0 MiB"),
            (640e6, "bytes/s", "640 MB/s"),
            (1.0, "count", "1.00"),
            (0.004, "count", "0.004"),
            (1e-9, "count", "1.00e-9"),
            (1.417, "ratio", "1.42"),
            (-2.0, "ratio", "-2.00"),
            (7.0, "apples", "7.00 apples"),
            (f64::NAN, "ratio", "not a number"),
        ] {
            assert_eq!(show(value, unit), shown);
        }
    }
}
