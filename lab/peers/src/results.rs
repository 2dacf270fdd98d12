//! Ratios of the rounds' values: Corewise over each peer, pair by pair, and the peer with the
//! worst ratio.

use corewise_bench::bench::Pairs;
use corewise_bench::names::Better;
use corewise_bench::record::Record;
use corewise_bench::rounds::Series;
use corewise_bench::stats::PairedRatio;

/// The name of Corewise's runtime in all tables and headlines.
pub(crate) const OURS: &str = "corewise";

/// Returns true for a lower bound that isn't a peer: a wake-up without a queue, the plain loop, and
/// fio on the file itself.
pub(crate) fn is_floor(name: &str) -> bool {
    ["futex", "eventfd", "serial", "fio"].contains(&name)
}

/// Returns the worst ratio over all cases and peers that take part, or `None` if none of them was
/// run.
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

/// Returns all headlines that the series allow.
pub(crate) fn headlines(series: &[Series], asked: &[Ask]) -> Vec<Headline> {
    asked.iter().filter_map(|ask| headline(series, ask)).collect()
}

/// The definition of a headline.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ask {
    pub(crate) name: &'static str,
    pub(crate) better: Better,
    /// True for an agreed headline. Other ones are printed beside them.
    pub(crate) agreed: bool,
    pub(crate) metric: &'static str,
    /// The peer's metric, by which ours is divided.
    pub(crate) theirs: &'static str,
    /// True if the headline is our metric itself, not a ratio.
    pub(crate) is_own: bool,
    /// The variant of ours.
    pub(crate) ours: &'static str,
    /// Function that returns true if a peer takes part in a case.
    pub(crate) takes: fn(case: &str, peer: &str) -> bool,
}

impl Ask {
    /// Creates an agreed headline, of which lower is better.
    pub(crate) const fn lower(
        name: &'static str,
        metric: &'static str,
        takes: fn(&str, &str) -> bool,
    ) -> Ask {
        let (better, theirs) = (Better::Lower, metric);
        Ask { name, better, agreed: true, metric, theirs, is_own: false, ours: OURS, takes }
    }

    /// Creates an agreed headline of rates.
    pub(crate) const fn rate(name: &'static str, takes: fn(&str, &str) -> bool) -> Ask {
        Ask { better: Better::Higher, ..Ask::lower(name, "items_per_second", takes) }
    }

    /// Creates an agreed headline that is a metric of ours by its own name. Lower is better.
    pub(crate) const fn own(metric: &'static str, takes: fn(&str, &str) -> bool) -> Ask {
        Ask { is_own: true, ..Ask::lower(metric, metric, takes) }
    }

    /// Divides by another metric of the peer.
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

/// A ratio, with its name and its peer.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Headline {
    pub(crate) name: &'static str,
    pub(crate) better: Better,
    /// The peer and the case of the ratio.
    pub(crate) against: String,
    pub(crate) ratio: PairedRatio,
    pub(crate) agreed: bool,
}

/// Returns the records of all headlines. Intervals, whose ends are the extremes, and headlines that
/// aren't agreed come first.
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

    /// Returns the headlines of made-up values: case, runtime, metric, and a value a round.
    pub(crate) fn of(cells: &[(&str, &str, &str, &[f64])], asked: &[Ask]) -> Vec<Headline> {
        let series = cells.iter().map(|one| Series::of(one.0, one.1, one.2, one.3));
        headlines(&series.collect::<Vec<_>>(), asked)
    }

    /// Returns the peer of a headline, and its median.
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
