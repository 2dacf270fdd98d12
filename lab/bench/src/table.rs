//! Records as tables for people: a workload each, the best runtime first.

use std::fmt::Write;

use crate::line::metrics;
use crate::names::Better;
use crate::record::{Record, show};

/// Largest number of metrics in a table. The records have all.
const MOST_COLUMNS: usize = 6;

/// Returns the table of some records, whose rows `label` names. The metrics of `first` are the
/// first columns.
pub fn table(
    title: &str,
    records: &[&Record],
    first: &[&str],
    label: impl Fn(&Record) -> String,
) -> String {
    let has = |metric: &str| records.iter().any(|record| record.metric == metric);
    let mut columns: Vec<&str> = Vec::new();
    for metric in first.iter().copied().chain(metrics().map(|(metric, _)| metric)) {
        if columns.len() < MOST_COLUMNS && has(metric) && !columns.contains(&metric) {
            columns.push(metric);
        }
    }
    let Some(leading) = columns.first() else { return String::new() };
    let mut rows: Vec<&Record> =
        records.iter().copied().filter(|one| one.metric == *leading).collect();
    let runs = rows.iter().map(|one| one.runs).max().unwrap_or_default();
    let heads: String = columns[1..].iter().map(|column| format!("{column:>21}")).collect();
    let title = format!("{title} ({runs} runs)");
    let mut text = format!("\n{title:<34}{leading:>26}{heads}\n");
    rows.sort_by(|a, b| Better::of_unit(&a.unit).compare(a.median, b.median));
    for row in rows {
        let [median, min, max] = [row.median, row.min, row.max].map(|value| show(value, &row.unit));
        let (label, value) = (format!("  {}", label(row)), format!("{median} [{min}..{max}]"));
        let others = columns[1..].iter().map(|column| {
            let same = |one: &&&Record| {
                (&one.case, &one.variant) == (&row.case, &row.variant) && one.metric == *column
            };
            let found = records.iter().find(same);
            format!("{:>21}", found.map_or("-".to_owned(), |one| show(one.median, &one.unit)))
        });
        // Writing to a String can't fail.
        let _ = writeln!(text, "{label:<34}{value:>26}{}", others.collect::<String>());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_comes_first_and_what_was_not_measured_is_a_dash() {
        let of = |variant, metric, unit, median: f64| {
            Record::made_up("storm/boxed", variant, metric, unit, (median / 2.0, median, median))
        };
        let records = [
            of("corewise", "items_per_second", "items/s", 2e6),
            of("rayon", "items_per_second", "items/s", 5e6),
            of("rayon", "cpu_per_item", "ns", 250.0),
        ];
        let records: Vec<&Record> = records.iter().collect();
        let text = table("storm/boxed", &records, &[], |record| record.variant.clone());
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[1].starts_with("storm/boxed (7 runs)"), "{text}");
        assert!(lines[2].starts_with("  rayon") && lines[2].ends_with("250 ns"), "{text}");
        assert!(lines[2].contains("5.00 M/s [2.50 M/s..5.00 M/s]"), "{text}");
        assert!(lines[3].starts_with("  corewise") && lines[3].ends_with(" -"), "{text}");
        assert_eq!(table("none", &[], &[], |_| String::new()), "");
    }
}
