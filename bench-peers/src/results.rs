//! What rounds gave, and ratios of it: Corewise over each peer, pair by pair, and the peer against
//! whom that is worst.

use std::collections::BTreeMap;

use corewise_bench::line::Line;
use corewise_bench::names::Better;
use corewise_bench::record::Record;
use corewise_bench::stats::PairedRatio;

/// Ours, in all tables and headlines.
pub(crate) const OURS: &str = "corewise";

/// No peers: what a wake-up costs without a queue, the plain loop, and fio on the file itself.
pub(crate) fn is_floor(name: &str) -> bool {
    ["futex", "eventfd", "serial", "fio"].contains(&name)
}

/// What the rounds gave: for each case and runtime, one line a round, or none where a run failed.
#[derive(Debug, Default)]
pub(crate) struct Results(BTreeMap<String, BTreeMap<String, Vec<Option<Line>>>>);

impl Results {
    pub(crate) fn add(&mut self, case: &str, runtime: &str, line: Option<Line>) {
        let of_case = self.0.entry(case.to_owned()).or_default();
        of_case.entry(runtime.to_owned()).or_default().push(line);
    }

    /// The lines of a runtime in a case, round by round.
    pub(crate) fn lines(&self, case: &str, runtime: &str) -> &[Option<Line>] {
        self.0.get(case).and_then(|of| of.get(runtime)).map_or(&[], Vec::as_slice)
    }

    /// Ours over theirs in the rounds in which both have the metric.
    fn ratio(&self, case: &str, metric: &str, ours: &str, peer: &str) -> Option<PairedRatio> {
        let value = |line: &Option<Line>| line.as_ref()?.metrics.get(metric).copied();
        let pairs = self.lines(case, ours).iter().zip(self.lines(case, peer));
        let (ours, theirs): (Vec<f64>, Vec<f64>) =
            pairs.filter_map(|(ours, theirs)| Some((value(ours)?, value(theirs)?))).unzip();
        PairedRatio::of(&ours, &theirs, 1)
    }

    /// What was asked for, where anything was run of it: of all cases and peers that take part those against whom we
    /// stand worst.
    fn headline(&self, ask: &Ask) -> Option<Headline> {
        let ratio = |case: &String, peer: &String| {
            let takes_part = !peer.starts_with(OURS) && (ask.takes)(case, peer);
            let ratio = takes_part.then(|| self.ratio(case, ask.metric, ask.ours, peer))??;
            Some((format!("{peer}, {case}"), ratio))
        };
        let of_case = |(case, of): (&String, &BTreeMap<String, _>)| {
            of.keys().filter_map(|peer| ratio(case, peer)).collect::<Vec<_>>()
        };
        let all = self.0.iter().flat_map(of_case);
        let (against, ratio) =
            all.max_by(|(_, a), (_, b)| ask.better.compare(a.summary.median, b.summary.median))?;
        Some(Headline { name: ask.name, better: ask.better, against, ratio, agreed: ask.agreed })
    }

    /// All headlines that the results allow.
    pub(crate) fn headlines(&self, asked: &[Ask]) -> Vec<Headline> {
        asked.iter().filter_map(|ask| self.headline(ask)).collect()
    }
}

/// What a headline is made of.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ask {
    pub(crate) name: &'static str,
    pub(crate) better: Better,
    /// One of the agreed ones; else it stands beside them.
    pub(crate) agreed: bool,
    pub(crate) metric: &'static str,
    /// Which of ours.
    pub(crate) ours: &'static str,
    /// Whether a peer takes part in a case.
    pub(crate) takes: fn(case: &str, peer: &str) -> bool,
}

impl Ask {
    /// An agreed one, in which lower is better.
    pub(crate) const fn lower(
        name: &'static str,
        metric: &'static str,
        takes: fn(&str, &str) -> bool,
    ) -> Ask {
        Ask { name, better: Better::Lower, agreed: true, metric, ours: OURS, takes }
    }

    /// An agreed one of rates.
    pub(crate) const fn rate(name: &'static str, takes: fn(&str, &str) -> bool) -> Ask {
        Ask { better: Better::Higher, ..Ask::lower(name, "items_per_second", takes) }
    }

    pub(crate) const fn beside(self) -> Ask {
        Ask { agreed: false, ..self }
    }

    pub(crate) const fn of(self, ours: &'static str) -> Ask {
        Ask { ours, ..self }
    }
}

/// A ratio, what it says, and against whom.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Headline {
    pub(crate) name: &'static str,
    pub(crate) better: Better,
    /// The peer and the case that it comes from.
    pub(crate) against: String,
    pub(crate) ratio: PairedRatio,
    pub(crate) agreed: bool,
}

/// The records of all headlines: intervals, with the ends as extremes, and what stands beside first, the agreed ones at
/// the end.
pub(crate) fn records(bench: &str, headlines: &[Headline]) -> Vec<Record> {
    let record = |case: &str, one: &Headline| Record {
        case: case.to_owned(),
        ..Record::headline(bench, one.name, &one.ratio)
    };
    let interval = |one: &Headline| Record {
        min: one.ratio.low,
        max: one.ratio.high,
        ..record("interval95", one)
    };
    let of = |case: &'static str, agreed: bool| {
        headlines.iter().filter(move |one| one.agreed == agreed).map(move |one| record(case, one))
    };
    headlines.iter().map(interval).chain(of("beside", false)).chain(of("headline", true)).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Results of rounds that weren't run: case, runtime, metric, and a value a round.
    pub(crate) fn results(cells: &[(&str, &str, &str, &[f64])]) -> Results {
        let mut results = Results::default();
        for (case, runtime, metric, values) in cells {
            for value in *values {
                let mut line = Line::new(case, runtime);
                line.set(metric, *value);
                // A value below zero stands for a run that failed.
                results.add(case, runtime, (*value >= 0.0).then_some(line));
            }
        }
        results
    }

    /// Against whom a headline is, and its median.
    pub(crate) fn find<'a>(headlines: &'a [Headline], name: &str) -> Option<(&'a str, f64)> {
        let found = headlines.iter().find(|headline| headline.name == name)?;
        Some((&found.against, found.ratio.summary.median))
    }

    #[test]
    fn a_run_that_failed_leaves_its_round_out_of_the_pairs() {
        let rate = "items_per_second";
        let results = results(&[
            ("inside", OURS, rate, &[10.0, -1.0, 30.0]),
            ("inside", "rayon", rate, &[10.0, 1.0, 10.0]),
            ("inside", "futex", rate, &[99.0, 99.0, 99.0]),
        ]);
        let found = results.headlines(&[Ask::rate("x", |_, peer| !is_floor(peer))]);
        assert_eq!(find(&found, "x"), Some(("rayon, inside", 2.0)));
        assert_eq!(found[0].ratio.summary.runs, 2);
    }

    #[test]
    fn the_agreed_headlines_are_the_last_records_and_have_their_interval_before() {
        let ratio = PairedRatio::of(&[10.0, 20.0], &[10.0, 10.0], 1).unwrap();
        let headline = |name, agreed| {
            let against = "rayon".to_owned();
            Headline { name, better: Better::Higher, against, ratio, agreed }
        };
        let records = records("calls", &[headline("a", true), headline("b", false)]);
        let cases: Vec<&str> = records.iter().map(|record| record.case.as_str()).collect();
        assert_eq!(cases, ["interval95", "interval95", "beside", "headline"]);
        let last = records.last().unwrap();
        assert_eq!((last.metric.as_str(), last.unit.as_str()), ("a", "ratio"));
        assert_eq!(last.bench, "calls");
    }
}
