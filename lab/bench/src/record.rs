//! What a measurement prints: one record per metric.

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
    /// What was measured.
    pub metric: String,
    /// The metric's unit; `ratio` for headlines.
    pub unit: String,
    /// The middle of the runs.
    pub median: f64,
    /// The smallest run.
    pub min: f64,
    /// The largest run.
    pub max: f64,
    /// How many runs count (the dropped first round doesn't).
    pub runs: usize,
}

impl Record {
    /// A record of a summary.
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

    /// A headline: a ratio of pairs of runs of the same call, or a metric by its [own name](unit()).
    pub fn headline(bench: &str, metric: &str, ratio: &PairedRatio) -> Record {
        let unit = unit(metric).unwrap_or("ratio");
        Record::new(bench, HEADLINE, "corewise", metric, unit, ratio.summary)
    }

    /// The 95 % interval of a headline's median: its ends are `min` and `max`.
    pub fn interval(bench: &str, metric: &str, ratio: &PairedRatio) -> Record {
        let headline = Record::headline(bench, metric, ratio);
        Record { case: INTERVAL.to_owned(), min: ratio.low, max: ratio.high, ..headline }
    }
}

/// The records as a JSON array, one record per line.
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

/// The items by a key, in the order in which each came first.
pub(crate) fn grouped<T, K: PartialEq>(
    items: impl IntoIterator<Item = T>,
    key: impl Fn(&T) -> K,
) -> Vec<(K, Vec<T>)> {
    let mut groups: Vec<(K, Vec<T>)> = Vec::new();
    for item in items {
        let key = key(&item);
        match groups.iter_mut().find(|(known, _)| *known == key) {
            Some((_, group)) => group.push(item),
            None => groups.push((key, vec![item])),
        }
    }
    groups
}

#[cfg(test)]
impl Record {
    /// Of no run: for the tests of what is made from records. `(min, median, max)`.
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
}
