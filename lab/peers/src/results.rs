//! Ratios of what rounds gave: Corewise over each peer, pair by pair, and the peer against
//! whom that is worst.

use corewise_bench::bench::Pairs;
use corewise_bench::names::Better;
use corewise_bench::record::Record;
use corewise_bench::rounds::Series;
use corewise_bench::stats::PairedRatio;

/// Ours, in all tables and headlines.
pub(crate) const OURS: &str = "corewise";

/// No peers: what a wake-up costs without a queue, the plain loop, and fio on the file itself.
pub(crate) fn is_floor(name: &str) -> bool {
    ["futex", "eventfd", "serial", "fio"].contains(&name)
}

/// What was asked for, where anything was run of it: of all cases and peers that take part those
/// against whom we stand worst.
fn headline(series: &[Series], ask: &Ask) -> Option<Headline> {
    let pairs = Pairs { series, seed: 1 };
    let takes_part = |one: &&Series| {
        let is_theirs =
            if ask.is_own { one.variant == ask.ours } else { !one.variant.starts_with(OURS) };
        is_theirs && one.metric == ask.theirs && (ask.takes)(&one.case, &one.variant)
    };
    let all = series.iter().filter(takes_part).filter_map(|one| {
        let ours = pairs.values(&one.case, ask.ours, ask.metric);
        let ones = vec![1.0; one.values.len()];
        let theirs = if ask.is_own { &ones } else { &one.values };
        let ratio = pairs.ratio(ours, Some(theirs))?;
        Some((format!("{}, {}", one.variant, one.case), ratio))
    });
    let (against, ratio) =
        all.max_by(|(_, a), (_, b)| ask.better.compare(a.summary.median, b.summary.median))?;
    Some(Headline { name: ask.name, better: ask.better, against, ratio, agreed: ask.agreed })
}

/// All headlines that the series allow.
pub(crate) fn headlines(series: &[Series], asked: &[Ask]) -> Vec<Headline> {
    asked.iter().filter_map(|ask| headline(series, ask)).collect()
}

/// What a headline is made of.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ask {
    pub(crate) name: &'static str,
    pub(crate) better: Better,
    /// One of the agreed ones; else it stands beside them.
    pub(crate) agreed: bool,
    pub(crate) metric: &'static str,
    /// The metric of the peer's that it is over.
    pub(crate) theirs: &'static str,
    /// It is no ratio, but the metric itself.
    pub(crate) is_own: bool,
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
        let (better, theirs) = (Better::Lower, metric);
        Ask { name, better, agreed: true, metric, theirs, is_own: false, ours: OURS, takes }
    }

    /// An agreed one of rates.
    pub(crate) const fn rate(name: &'static str, takes: fn(&str, &str) -> bool) -> Ask {
        Ask { better: Better::Higher, ..Ask::lower(name, "items_per_second", takes) }
    }

    /// An agreed metric of ours, by its own name, in which lower is better.
    pub(crate) const fn own(metric: &'static str, takes: fn(&str, &str) -> bool) -> Ask {
        Ask { is_own: true, ..Ask::lower(metric, metric, takes) }
    }

    /// Over another metric of the peer's.
    pub(crate) const fn over(self, theirs: &'static str) -> Ask {
        Ask { theirs, ..self }
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

/// The records of all headlines: intervals, with the ends as extremes, and what stands beside
/// first, the agreed ones at the end.
pub(crate) fn records(bench: &str, headlines: &[Headline]) -> Vec<Record> {
    let record = |case: &str, one: &Headline| Record {
        case: case.to_owned(),
        ..Record::headline(bench, one.name, &one.ratio)
    };
    let interval = |one: &Headline| Record::interval(bench, one.name, &one.ratio);
    let of = |case: &'static str, agreed: bool| {
        headlines.iter().filter(move |one| one.agreed == agreed).map(move |one| record(case, one))
    };
    headlines.iter().map(interval).chain(of("beside", false)).chain(of("headline", true)).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// What rounds that weren't run give: case, runtime, metric, and a value a round.
    pub(crate) fn of(cells: &[(&str, &str, &str, &[f64])], asked: &[Ask]) -> Vec<Headline> {
        let series = cells.iter().map(|one| Series::of(one.0, one.1, one.2, one.3));
        headlines(&series.collect::<Vec<_>>(), asked)
    }

    /// Against whom a headline is, and its median.
    pub(crate) fn find<'a>(headlines: &'a [Headline], name: &str) -> Option<(&'a str, f64)> {
        let found = headlines.iter().find(|headline| headline.name == name)?;
        Some((&found.against, found.ratio.summary.median))
    }

    #[test]
    fn a_peer_that_failed_is_compared_by_the_rounds_before_and_agreed_headlines_come_last() {
        let rate = "items_per_second";
        let cells = [
            ("inside", OURS, rate, &[10.0, 10.0, 90.0][..]),
            ("inside", "rayon", rate, &[10.0, 10.0 / 3.0]),
            ("inside", "futex", rate, &[99.0, 99.0, 99.0]),
        ];
        let ask = Ask::rate("x", |_, peer| !is_floor(peer));
        let found = of(&cells, &[ask, Ask { name: "y", ..ask }.beside()]);
        assert_eq!(find(&found, "x"), Some(("rayon, inside", 2.0)));
        assert_eq!(found[0].ratio.summary.runs, 2);
        let records = records("calls", &found);
        let cases: Vec<&str> = records.iter().map(|record| record.case.as_str()).collect();
        assert_eq!(cases, ["interval95", "interval95", "beside", "headline"]);
        let last = records.last().unwrap();
        assert_eq!((&*last.bench, &*last.metric, &*last.unit), ("calls", "x", "ratio"));
    }
}
