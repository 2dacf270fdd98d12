//! The headlines: Corewise over each peer, pair by pair, and the peer against whom that is worst.

use corewise_bench::stats::PairedRatio;

use crate::calls::catalogue::{EVENTFD, RUNTIMES};
use crate::results::{Better, Headline, OURS, Results, worst_of};
use crate::session::Idle;

const HOT: &str = "roundtrip/hot";
const COLD: &str = "roundtrip/cold";
const BUSY: &str = "roundtrip/busy";

/// All headlines that the results allow, the agreed one last.
pub(crate) fn headlines(results: &Results) -> Vec<Headline> {
    let mut all = Vec::new();
    let mut put = |metric, agreed, found: Option<(String, PairedRatio)>| {
        if let Some((against, ratio)) = found {
            all.push(Headline { metric, better: Better::Lower, against, ratio, agreed });
        }
    };
    let worst = |metric: &'static str, cases: &[&str], takes_part: fn(&str, &str) -> bool| {
        let of_case = |case: &&str| {
            let takes_part = |peer: &str| takes_part(case, peer);
            let (peer, ratio) = results.worst(case, metric, Better::Lower, takes_part)?;
            Some((format!("{peer}, {case}"), ratio))
        };
        worst_of(cases.iter().filter_map(of_case))
    };
    let floor = [HOT, COLD].iter().filter_map(|case| {
        let ratio = results.ratio(case, "latency_p50", OURS, EVENTFD)?;
        Some((format!("{EVENTFD}, {case}"), ratio))
    });
    put("roundtrip_p50_vs_eventfd", false, worst_of(floor));
    let broadcasts: Vec<&str> =
        results.cases().filter(|case| case.starts_with("broadcast/")).map(String::as_str).collect();
    put("roundtrip_p99_vs_best_peer", false, worst("latency_p99", &[HOT, COLD], as_ours));
    put("roundtrip_cpu_vs_best_peer", false, worst("cpu_per_item", &[HOT, COLD], as_ours));
    put("busy_p50_vs_best_peer", false, worst("latency_p50", &[BUSY], as_ours));
    put("busy_p99_vs_best_peer", false, worst("latency_p99", &[BUSY], as_ours));
    put("broadcast_p50_vs_best_peer", false, worst("latency_p50", &broadcasts, as_ours));
    put("cold_p50_vs_spinning_peer", false, worst("latency_p50", &[COLD], |_, peer| spins(peer)));
    put("roundtrip_p50_vs_best_peer", true, worst("latency_p50", &[HOT, COLD], as_ours));
    all
}

fn spins(peer: &str) -> bool {
    RUNTIMES.iter().any(|runtime| runtime.name == peer && runtime.idle == Idle::Spins)
}

/// Back to back everybody may spin for as long as it likes. With a pause between, a peer that spins through
/// it keeps two CPUs for itself and is never woken: it is compared apart.
fn as_ours(case: &str, peer: &str) -> bool {
    case == HOT || !spins(peer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::tests::{find, results};

    #[test]
    fn the_worst_of_hot_and_cold_counts_and_who_spins_through_a_pause_is_apart() {
        let p50 = "latency_p50";
        let headlines = headlines(&results(&[
            (HOT, OURS, p50, &[200.0, 200.0]),
            (HOT, EVENTFD, p50, &[50_000.0, 50_000.0]),
            (HOT, "crossbeam", p50, &[400.0, 400.0]),
            (HOT, "seastar-poll-mode", p50, &[250.0, 250.0]),
            (COLD, OURS, p50, &[55.0, 55.0]),
            (COLD, EVENTFD, p50, &[50.0, 50.0]),
            (COLD, "crossbeam", p50, &[60.0, 60.0]),
            (COLD, "glommio-spins", p50, &[11.0, 11.0]),
            ("broadcast/2", OURS, p50, &[60.0, 60.0]),
            ("broadcast/2", "rayon", p50, &[80.0, 80.0]),
        ]));
        let agreed = headlines.last().unwrap();
        assert_eq!(agreed.metric, "roundtrip_p50_vs_best_peer");
        assert_eq!(agreed.against, "crossbeam, roundtrip/cold");
        assert!(agreed.agreed && headlines.iter().filter(|one| one.agreed).count() == 1);
        let of = |metric: &str| find(&headlines, metric).unwrap().ratio.summary.median;
        assert_eq!(of("roundtrip_p50_vs_eventfd"), 1.1);
        assert_eq!(of("cold_p50_vs_spinning_peer"), 5.0);
        assert_eq!(of("broadcast_p50_vs_best_peer"), 0.75);
        assert!(find(&headlines, "busy_p50_vs_best_peer").is_none(), "nothing was run of it");
    }

    #[test]
    fn back_to_back_who_spins_counts_too() {
        let p50 = "latency_p50";
        let headlines = headlines(&results(&[
            (HOT, OURS, p50, &[200.0]),
            (HOT, "crossbeam", p50, &[400.0]),
            (HOT, "seastar-poll-mode", p50, &[250.0]),
        ]));
        assert_eq!(headlines.last().unwrap().against, "seastar-poll-mode, roundtrip/hot");
    }
}
