//! The headlines: Corewise over each peer, pair by pair, and the peer against whom that is worst.

use corewise_bench::stats::PairedRatio;

use crate::results::{Better, Headline, OURS, Results, worst_of};
use crate::session::Idle;
use crate::workqueue::catalogue::{FORK_JOIN_POOL, FUTEX, OURS_SLEEPS, RUNTIMES};

/// What stands beside the ping-pong's headline: the worst of all placements and gaps, each kind of
/// worker against its own.
const PING_PONG: [(&str, &str, Idle, &str); 6] = [
    ("latency_p50", "pingpong_sleeping_p50_vs_best_peer", Idle::Sleeps, OURS_SLEEPS),
    ("latency_p99", "pingpong_sleeping_p99_vs_best_peer", Idle::Sleeps, OURS_SLEEPS),
    ("cpu_per_item", "pingpong_sleeping_cpu_vs_best_peer", Idle::Sleeps, OURS_SLEEPS),
    ("latency_p50", "pingpong_spinning_p50_vs_best_peer", Idle::Spins, OURS),
    ("latency_p99", "pingpong_spinning_p99_vs_best_peer", Idle::Spins, OURS),
    ("cpu_per_item", "pingpong_spinning_cpu_vs_best_peer", Idle::Spins, OURS),
];

/// All headlines that the results allow, the agreed ones last.
pub(crate) fn headlines(results: &Results) -> Vec<Headline> {
    let anybody = |_: &str| true;
    let native = |peer: &str| peer != FORK_JOIN_POOL;
    let only = |name: &'static str| move |peer: &str| peer == name;
    let mut all = Vec::new();
    let mut put = |metric, better, agreed, found: Option<(String, PairedRatio)>| {
        if let Some((against, ratio)) = found {
            all.push(Headline { metric, better, against, ratio, agreed });
        }
    };
    let rate = |case: &str, takes_part: &dyn Fn(&str) -> bool| {
        results.worst(case, "items_per_second", Better::Higher, takes_part)
    };
    use Better::{Higher, Lower};
    put("storm_boxed_vs_forkjoinpool", Higher, false, rate("storm/boxed", &only(FORK_JOIN_POOL)));
    put("storm_boxed_vs_tokio", Higher, false, rate("storm/boxed", &only("tokio")));
    let mimalloc = rate("storm/boxed/mimalloc", &anybody);
    put("storm_boxed_mimalloc_vs_best_peer", Higher, false, mimalloc);
    put("inside_vs_best_peer_but_forkjoinpool", Higher, false, rate("inside", &native));
    put("storm_reused_vs_best_peer", Higher, true, rate("storm/reused", &anybody));
    put("storm_boxed_vs_best_peer", Higher, true, rate("storm/boxed", &native));
    put("inside_vs_best_peer", Higher, true, rate("inside", &anybody));
    put("kernel_test_vs_best_peer", Higher, true, rate("kernel_test", &anybody));
    for (metric, name, kind, ours) in PING_PONG {
        let of_kind = |peer: &str| {
            let runtime = RUNTIMES.iter().find(|runtime| runtime.name == peer);
            runtime.is_some_and(|runtime| (runtime.idle == Idle::Sleeps) == (kind == Idle::Sleeps))
        };
        let cases = results.cases().filter(|case| case.starts_with("pingpong/"));
        let worst = cases.filter_map(|case| {
            let (peer, ratio) = results.worst_for(ours, case, metric, Lower, of_kind)?;
            Some((format!("{peer}, {case}"), ratio))
        });
        put(name, Lower, false, worst_of(worst));
    }
    let placements = ["pingpong/same/hot", "pingpong/cross/hot"];
    let sleeping = placements.iter().filter_map(|case| {
        let ratio = results.ratio(case, "latency_p50", OURS_SLEEPS, FUTEX)?;
        Some((format!("{FUTEX}, {case}"), ratio))
    });
    put("sleeping_p50_vs_futex", Lower, true, worst_of(sleeping));
    let mixes = ["mix/50", "mix/50/hint", "mix/80", "mix/80/hint"].iter().filter_map(|case| {
        let (peer, ratio) = results.worst(case, "short_p99", Lower, anybody)?;
        Some((format!("{peer}, {case}"), ratio))
    });
    put("blocking_mix_p99_vs_best_peer", Lower, true, worst_of(mixes));
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::tests::{find, results};

    #[test]
    fn the_best_peer_is_the_one_against_whom_ours_stands_worst() {
        let rate = "items_per_second";
        let headlines = headlines(&results(&[
            ("storm/boxed", "corewise", rate, &[10.0, 12.0, 20.0]),
            ("storm/boxed", "corewise-spawn", rate, &[90.0, 90.0, 90.0]),
            ("storm/boxed", "tokio", rate, &[1.0, 2.0, 2.0]),
            ("storm/boxed", "crossbeam", rate, &[5.0, 4.0, 10.0]),
            ("storm/boxed", "java-forkjoinpool", rate, &[40.0, 48.0, 80.0]),
        ]));
        let best = find(&headlines, "storm_boxed_vs_best_peer").unwrap();
        assert_eq!((best.against.as_str(), best.ratio.summary.median), ("crossbeam", 2.0));
        let java = find(&headlines, "storm_boxed_vs_forkjoinpool").unwrap();
        assert_eq!(java.ratio.summary.median, 0.25);
        assert_eq!(find(&headlines, "storm_boxed_vs_tokio").unwrap().ratio.summary.median, 10.0);
        assert!(find(&headlines, "inside_vs_best_peer").is_none(), "nothing was run of it");
    }

    #[test]
    fn where_lower_is_better_the_worst_case_counts_and_its_name_is_told() {
        let headlines = headlines(&results(&[
            ("mix/50", "corewise", "short_p99", &[10.0, 10.0]),
            ("mix/50", "tokio", "short_p99", &[100.0, 100.0]),
            ("mix/50/hint", "corewise", "short_p99", &[9.0, 9.0]),
            ("mix/50/hint", "tokio", "short_p99", &[30.0, 30.0]),
            ("mix/50/hint", "go-channel", "short_p99", &[18.0, 18.0]),
            ("pingpong/same/hot", "corewise-sleep", "latency_p50", &[11.0]),
            ("pingpong/same/hot", "futex", "latency_p50", &[10.0]),
            ("pingpong/cross/hot", "corewise-sleep", "latency_p50", &[100.0]),
            ("pingpong/cross/hot", "futex", "latency_p50", &[80.0]),
            ("pingpong/cross/hot", "corewise", "latency_p50", &[2.0]),
            ("pingpong/cross/hot", "tokio", "latency_p50", &[50.0]),
            ("pingpong/cross/hot", "rayon", "latency_p50", &[4.0]),
        ]));
        let sleeping = find(&headlines, "pingpong_sleeping_p50_vs_best_peer").unwrap();
        assert_eq!(sleeping.ratio.summary.median, 2.0, "against tokio, which sleeps too");
        let spinning = find(&headlines, "pingpong_spinning_p50_vs_best_peer").unwrap();
        assert_eq!(spinning.against, "rayon, pingpong/cross/hot");
        let mix = find(&headlines, "blocking_mix_p99_vs_best_peer").unwrap();
        assert_eq!(
            (mix.against.as_str(), mix.ratio.summary.median),
            ("go-channel, mix/50/hint", 0.5)
        );
        let ping = find(&headlines, "sleeping_p50_vs_futex").unwrap();
        assert_eq!(
            (ping.against.as_str(), ping.ratio.summary.median),
            ("futex, pingpong/cross/hot", 1.25)
        );
    }
}
