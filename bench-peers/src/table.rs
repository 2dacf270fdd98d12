//! Tables for people: a case each, the best runtime first, and the headlines.

use std::fmt::Write;

use corewise_bench::names::Better;
use corewise_bench::record::Record;
use corewise_bench::report::show;

use crate::results::Headline;
use crate::session::{Idle, Peers};

/// All tables; the records are in the order of their cases.
pub(crate) fn tables(peers: &Peers, records: &[Record], headlines: &[Headline]) -> String {
    let mut text = String::new();
    for of_case in records.chunk_by(|a, b| a.case == b.case) {
        table(peers, &mut text, of_case);
    }
    headline_table(&mut text, headlines);
    text
}

fn table(peers: &Peers, text: &mut String, records: &[Record]) {
    let case = &records[0].case;
    let columns = (peers.columns)(case.split('/').next().unwrap_or(case));
    let of = |variant: &str, metric: &str| {
        records.iter().find(|record| record.variant == variant && record.metric == metric)
    };
    let mut rows: Vec<&Record> = records.iter().filter(|one| one.metric == columns[0]).collect();
    let Some(runs) = rows.first().map(|first| first.runs) else { return };
    rows.sort_by(|a, b| Better::of_unit(&a.unit).compare(a.median, b.median));
    let _ = write!(text, "\n{:<30}{:>26}", format!("{case} ({runs} runs)"), columns[0]);
    for column in &columns[1..] {
        let _ = write!(text, "{column:>21}");
    }
    text.push('\n');
    for first in rows {
        let name = first.variant.as_str();
        let mark = match peers.runtimes.iter().find(|one| one.name == name).map(|one| one.idle) {
            Some(Idle::Spins) => " (spins)",
            Some(Idle::Hesitates) => " (spins a bit)",
            _ => "",
        };
        let label = format!("  {name}{mark}");
        let value = format!(
            "{} [{}..{}]",
            show(first.median, &first.unit),
            show(first.min, &first.unit),
            show(first.max, &first.unit)
        );
        let _ = write!(text, "{label:<30}{value:>26}");
        for column in &columns[1..] {
            let value = of(name, column).map_or("-".to_owned(), |r| show(r.median, &r.unit));
            let _ = write!(text, "{value:>21}");
        }
        text.push('\n');
    }
}

fn headline_table(text: &mut String, headlines: &[Headline]) {
    for headline in headlines {
        let ratio = &headline.ratio;
        let better = headline.better.words();
        let _ = write!(
            text,
            "{}{:<38}{:>7.2}  [{:.2}..{:.2}]  {better}, {} pairs, against {}{}",
            if std::ptr::eq(headline, &headlines[0]) { "\n" } else { "" },
            headline.name,
            ratio.summary.median,
            ratio.low,
            ratio.high,
            ratio.summary.runs,
            headline.against,
            if ratio.is_beyond_noise() { "" } else { " (within the noise)" },
        );
        text.push('\n');
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use corewise_bench::line::unit;
    use corewise_bench::stats::{PairedRatio, Summary};

    fn record(case: &str, variant: &str, metric: &str, median: f64) -> Record {
        let summary = Summary { median, min: median / 2.0, max: median * 2.0, runs: 3 };
        Record::new("workqueue", case, variant, metric, unit(metric).unwrap(), summary)
    }

    #[test]
    fn the_best_comes_first_and_spinning_peers_are_marked() {
        let records = [
            record("storm/boxed", "corewise", "items_per_second", 2e6),
            record("storm/boxed", "rayon", "items_per_second", 5e6),
            record("storm/boxed", "rayon", "cpu_per_item", 250.0),
            record("pingpong/same/hot", "corewise", "latency_p50", 4_000.0),
            record("pingpong/same/hot", "tokio", "latency_p50", 3_000.0),
        ];
        let ratio = PairedRatio::of(&[2.0, 2.0], &[1.0, 1.0], 1).unwrap();
        let headline = Headline {
            name: "inside_vs_best_peer",
            better: Better::Higher,
            against: "rayon".to_owned(),
            ratio,
            agreed: true,
        };
        let text = tables(&crate::workqueue::PEERS, &records, &[headline]);
        let at = |what: &str| text.find(what).unwrap_or_else(|| panic!("{what} in {text}"));
        assert!(at("rayon (spins)") < at("  corewise "));
        assert!(at("tokio") < text.rfind("  corewise ").unwrap());
        assert!(text.contains("5.00 M/s [2.50 M/s..10.0 M/s]"), "{text}");
        assert!(text.contains("250 ns") && text.contains("3.00 µs"));
        assert!(text.contains("2.00  [2.00..2.00]  higher is better, 2 pairs, against rayon\n"));
    }
}
