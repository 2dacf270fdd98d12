//! What rounds gave, and ratios of it: Corewise over each peer, pair by pair, and the peer against
//! whom that is worst.

use std::collections::BTreeMap;

use corewise_bench::line::Line;
use corewise_bench::record::Record;
use corewise_bench::stats::PairedRatio;

/// Ours, in all tables and headlines.
pub(crate) const OURS: &str = "corewise";
/// No peers: what a wake-up costs without a queue.
const FLOORS: [&str; 2] = ["futex", "eventfd"];

/// What the rounds gave: for each case and runtime, one line a round, or none where a run failed.
#[derive(Debug, Default)]
pub(crate) struct Results(BTreeMap<String, BTreeMap<String, Vec<Option<Line>>>>);

impl Results {
    /// The cases, by their names.
    pub(crate) fn cases(&self) -> impl Iterator<Item = &String> {
        self.0.keys()
    }

    pub(crate) fn add(&mut self, case: &str, runtime: &str, line: Option<Line>) {
        let of_case = self.0.entry(case.to_owned()).or_default();
        of_case.entry(runtime.to_owned()).or_default().push(line);
    }

    /// The lines of a runtime in a case, round by round.
    pub(crate) fn lines(&self, case: &str, runtime: &str) -> &[Option<Line>] {
        self.0.get(case).and_then(|of| of.get(runtime)).map_or(&[], Vec::as_slice)
    }

    /// Ours over theirs in the rounds in which both have the metric.
    pub(crate) fn ratio(
        &self,
        case: &str,
        metric: &str,
        ours: &str,
        peer: &str,
    ) -> Option<PairedRatio> {
        let value = |line: &Option<Line>| line.as_ref()?.metrics.get(metric).copied();
        let pairs = self.lines(case, ours).iter().zip(self.lines(case, peer));
        let (ours, theirs): (Vec<f64>, Vec<f64>) =
            pairs.filter_map(|(ours, theirs)| Some((value(ours)?, value(theirs)?))).unzip();
        PairedRatio::of(&ours, &theirs, 1)
    }

    /// The peer against whom we stand worst, of those that `takes_part` lets through.
    pub(crate) fn worst(
        &self,
        case: &str,
        metric: &str,
        better: Better,
        takes_part: impl Fn(&str) -> bool,
    ) -> Option<(String, PairedRatio)> {
        self.worst_for(OURS, case, metric, better, takes_part)
    }

    pub(crate) fn worst_for(
        &self,
        ours: &str,
        case: &str,
        metric: &str,
        better: Better,
        takes_part: impl Fn(&str) -> bool,
    ) -> Option<(String, PairedRatio)> {
        let peers = self.0.get(case)?.keys();
        let peers =
            peers.filter(|peer| !peer.starts_with(OURS) && !FLOORS.contains(&peer.as_str()));
        let ratios = peers
            .filter(|peer| takes_part(peer))
            .filter_map(|peer| Some((peer.clone(), self.ratio(case, metric, ours, peer)?)));
        ratios.max_by(|(_, a), (_, b)| better.badness(a).total_cmp(&better.badness(b)))
    }
}

/// Which way a ratio is good.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Better {
    Higher,
    Lower,
}

impl Better {
    fn badness(self, ratio: &PairedRatio) -> f64 {
        match self {
            Better::Higher => -ratio.summary.median,
            Better::Lower => ratio.summary.median,
        }
    }
}

/// A ratio, what it says, and against whom.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Headline {
    pub(crate) metric: &'static str,
    pub(crate) better: Better,
    /// The peer and the case that it comes from.
    pub(crate) against: String,
    pub(crate) ratio: PairedRatio,
    /// One of the agreed ones; else it stands beside them.
    pub(crate) agreed: bool,
}

/// Of ratios in which lower is better.
pub(crate) fn worst_of(
    ratios: impl Iterator<Item = (String, PairedRatio)>,
) -> Option<(String, PairedRatio)> {
    let badness = |ratio: &PairedRatio| Better::Lower.badness(ratio);
    ratios.max_by(|(_, a), (_, b)| badness(a).total_cmp(&badness(b)))
}

impl Headline {
    /// Its records: the interval, where it is asked for, is a record with the ends as extremes.
    fn records(&self, bench: &str) -> [Record; 2] {
        let record = Record::headline(bench, self.metric, &self.ratio);
        let interval = Record {
            case: "interval95".to_owned(),
            min: self.ratio.low,
            max: self.ratio.high,
            ..record.clone()
        };
        let case = if self.agreed { "headline" } else { "beside" };
        [interval, Record { case: case.to_owned(), ..record }]
    }
}

/// The records of all headlines: intervals and what stands beside first, the agreed ones at the
/// end.
pub(crate) fn records(bench: &str, headlines: &[Headline]) -> Vec<Record> {
    let pairs: Vec<[Record; 2]> = headlines.iter().map(|one| one.records(bench)).collect();
    let (intervals, own): (Vec<Record>, Vec<Record>) =
        pairs.into_iter().map(|[interval, own]| (interval, own)).unzip();
    let (agreed, beside): (Vec<Record>, Vec<Record>) =
        own.into_iter().partition(|record| record.case == "headline");
    [intervals, beside, agreed].concat()
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

    pub(crate) fn find<'a>(headlines: &'a [Headline], metric: &str) -> Option<&'a Headline> {
        headlines.iter().find(|headline| headline.metric == metric)
    }

    #[test]
    fn a_run_that_failed_leaves_its_round_out_of_the_pairs() {
        let rate = "items_per_second";
        let results = results(&[
            ("inside", OURS, rate, &[10.0, -1.0, 30.0]),
            ("inside", "rayon", rate, &[10.0, 1.0, 10.0]),
            ("inside", "futex", rate, &[99.0, 99.0, 99.0]),
        ]);
        let (peer, ratio) = results.worst("inside", rate, Better::Higher, |_| true).unwrap();
        assert_eq!((peer.as_str(), ratio.summary.runs, ratio.summary.median), ("rayon", 2, 2.0));
    }

    #[test]
    fn the_agreed_headlines_are_the_last_records_and_have_their_interval_before() {
        let ratio = PairedRatio::of(&[10.0, 20.0], &[10.0, 10.0], 1).unwrap();
        let headline = |metric, agreed| {
            let against = "rayon".to_owned();
            Headline { metric, better: Better::Higher, against, ratio, agreed }
        };
        let records = records("calls", &[headline("a", true), headline("b", false)]);
        let cases: Vec<&str> = records.iter().map(|record| record.case.as_str()).collect();
        assert_eq!(cases, ["interval95", "interval95", "beside", "headline"]);
        let last = records.last().unwrap();
        assert_eq!((last.metric.as_str(), last.unit.as_str()), ("a", "ratio"));
        assert_eq!(last.bench, "calls");
    }
}
