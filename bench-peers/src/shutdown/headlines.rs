//! The headlines: Corewise over each peer, pair by pair, and the peer against whom that is worst.

use corewise_bench::shutdown::case::Case;
use corewise_bench::stats::PairedRatio;

use crate::results::{Better, Headline, Results, worst_of};
use crate::shutdown::catalogue::SERIAL;

/// All headlines that the results allow.
///
/// * `makespan_vs_best_peer`: of the webs with slow devices.
/// * `no_slow_vs_best_peer`: of those without.
/// * `azure_vs_best_peer`: of the published machine.
pub(crate) fn headlines(results: &Results) -> Vec<Headline> {
    let worst = |takes: fn(Case) -> bool| {
        let of_case = |case: &String| {
            case.parse().ok().filter(|case| takes(*case))?;
            let is_peer = |name: &str| name != SERIAL;
            let (peer, ratio) = results.worst(case, "makespan_p50", Better::Lower, is_peer)?;
            Some((format!("{peer}, {case}"), ratio))
        };
        worst_of(results.cases().filter_map(of_case))
    };
    let found: [(&'static str, Option<(String, PairedRatio)>); 3] = [
        ("azure_vs_best_peer", worst(|case| matches!(case, Case::Azure(_)))),
        ("no_slow_vs_best_peer", worst(|case| case.slow() == Some(0))),
        ("makespan_vs_best_peer", worst(|case| case.slow().is_some_and(|slow| slow > 0))),
    ];
    let headline = |(metric, found): (&'static str, Option<(String, PairedRatio)>)| {
        let (against, ratio) = found?;
        Some(Headline { metric, better: Better::Lower, against, ratio, agreed: true })
    };
    found.into_iter().filter_map(headline).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::OURS;
    use crate::results::tests::{find, results};

    #[test]
    fn the_worst_peer_on_the_worst_web_counts_and_the_plain_loop_is_no_peer() {
        let time = "makespan_p50";
        let headlines = headlines(&results(&[
            ("flat/500/24", OURS, time, &[100.0]),
            ("flat/500/24", "tokio", time, &[200.0]),
            ("deep/500/24", OURS, time, &[90.0]),
            ("deep/500/24", "rayon", time, &[100.0]),
            ("flat/500/0", OURS, time, &[10.0]),
            ("flat/500/0", "serial", time, &[1.0]),
            ("flat/500/0", "tokio", time, &[100.0]),
        ]));
        let slow = find(&headlines, "makespan_vs_best_peer").unwrap();
        assert_eq!((slow.against.as_str(), slow.ratio.summary.median), ("rayon, deep/500/24", 0.9));
        let quick = find(&headlines, "no_slow_vs_best_peer").unwrap();
        assert_eq!(
            (quick.against.as_str(), quick.ratio.summary.median),
            ("tokio, flat/500/0", 0.1)
        );
        assert!(find(&headlines, "azure_vs_best_peer").is_none(), "nothing was run of it");
    }
}
