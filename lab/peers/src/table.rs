//! Tables for people: a case each, the best runtime first, and the headlines.

use std::fmt::Write;

use corewise_bench::record::Record;
use corewise_bench::stats::Summary;
use corewise_bench::table;

use crate::results::{Headline, OURS};
use crate::session::{Idle, Peers};

/// Returns all tables. The records are in the order of their cases.
pub(crate) fn tables(peers: &Peers, records: &[Record], headlines: &[Headline]) -> String {
    let of_cases = records.chunk_by(|a, b| a.case == b.case);
    let mut text: String = of_cases.map(|of_case| table(peers, of_case)).collect();
    for (number, Headline { name, better, against, ratio, .. }) in headlines.iter().enumerate() {
        let above = if number == 0 { "\n" } else { "" };
        // The headline is the metric itself, not a ratio.
        let is_own = against.starts_with(OURS);
        let noise = if is_own || ratio.is_beyond_noise() { "" } else { " (within the noise)" };
        let (kind, of) = if is_own { ("runs", "of") } else { ("pairs", "against") };
        let (better, Summary { median, runs, .. }) = (better.words(), ratio.summary);
        let _ = writeln!(
            text,
            "{above}{name:<38}{median:>7.2}  [{:.2}..{:.2}]  {better}, {runs} {kind}, {of} {against}{noise}",
            ratio.low, ratio.high,
        );
    }
    text
}

fn table(peers: &Peers, records: &[Record]) -> String {
    let case = &records[0].case;
    // The metrics of the headlines come first.
    let asked = peers
        .headlines
        .iter()
        .filter(|ask| peers.runtimes.iter().any(|runtime| (ask.takes)(case, runtime.name)));
    let first: Vec<&str> = asked.map(|ask| ask.metric).collect();
    let label = |record: &Record| {
        let idle = peers.runtimes.iter().find(|one| one.name == record.variant).map(|one| one.idle);
        let mark = match idle {
            Some(Idle::Spins) => " (spins)",
            Some(Idle::Hesitates) => " (spins a bit)",
            _ => "",
        };
        format!("{}{mark}", record.variant)
    };
    table::table(case, &records.iter().collect::<Vec<_>>(), &first, label)
}

#[cfg(test)]
mod tests {
    use super::*;
    use corewise_bench::line::unit;
    use corewise_bench::names::Better;
    use corewise_bench::stats::PairedRatio;

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
