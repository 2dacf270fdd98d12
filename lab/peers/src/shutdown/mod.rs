//! The shutdown of a web of devices on all runtimes.

mod peers;

use corewise_bench::meter::Meter;
use corewise_bench::shutdown::{BENCH, run as run_on, slow};
use corewise_bench::{BenchError, Job, Line};

use crate::programs::Tool;
use crate::results::{Ask, OURS, is_floor};
use crate::session::{Idle, Peers, Runtime, When};
use peers::{rayon, tokio};

/// The plain loop, which isn't a peer: the reference of all cases without slow callbacks.
const SERIAL: &str = "serial";

/// Divisor of the sleeps in the round that is dropped.
const DROPPED_PART: u32 = 20;

/// The benchmark, with headlines of the published machine, of the webs without slow devices, and of
/// those with some.
pub(crate) static PEERS: Peers = Peers {
    bench: &BENCH,
    runtimes: &[
        Runtime::of(OURS, Tool::Rust, Idle::Hesitates, When::Always),
        Runtime::of(SERIAL, Tool::Rust, Idle::Sleeps, When::Always),
        Runtime::of("tokio", Tool::Rust, Idle::Sleeps, When::Usually),
        Runtime::of("rayon", Tool::Rust, Idle::Hesitates, When::Usually),
    ],
    // The sum of all sleeps is known, and takes long.
    takes: |name, parts| name != SERIAL || matches!(parts, ["azure", _] | [_, _, "0"]),
    // Webs with two slow devices are left out: they add nothing to those with none and with many.
    full: |parts, named, _| named || !matches!(parts, [_, _, "2"]),
    quick: |parts| {
        matches!(parts, ["azure", _] | ["flat" | "deep" | "stacked", "5000", "0" | "24"])
    },
    allocates: |_| false,
    adapt: |_, _, _| (),
    small: |job| {
        job.passes = 1;
        job.shortest_ms = (job.shortest_ms / DROPPED_PART).max(1);
        job.longest_ms = (job.longest_ms / DROPPED_PART).max(1);
    },
    counts: |_, _| false,
    headlines: &[
        Ask::lower("azure_vs_best_peer", "makespan_p50", |case, peer| {
            slow(case).is_none() && !is_floor(peer)
        }),
        Ask::lower("no_slow_vs_best_peer", "makespan_p50", |case, peer| {
            slow(case) == Some(0) && !is_floor(peer)
        }),
        Ask::lower("makespan_vs_best_peer", "makespan_p50", |case, peer| {
            slow(case).is_some_and(|slow| slow > 0) && !is_floor(peer)
        }),
    ],
    files: None,
    run: peer,
};

fn peer(job: &Job, meter: &mut Meter) -> Result<Line, BenchError> {
    match job.runtime.as_str() {
        "tokio" => run_on(job, meter, tokio::prepare),
        "rayon" => run_on(job, meter, rayon::prepare),
        _ => job.unknown(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::tests::{find, of as headlines_of};
    use crate::session::tests::{names, run_all};

    /// Runs every case. Each run checks the order.
    #[test]
    fn everybody_shuts_every_small_web_down_in_order() {
        let small = |job: &mut Job| {
            (PEERS.small)(job);
            (job.shortest_ms, job.longest_ms) = (1, 20);
        };
        run_all(
            "shutdown",
            |cell| cell.case.contains("/500/") || cell.case.starts_with("azure"),
            small,
        );
    }

    #[test]
    fn everybody_takes_part_and_the_plain_loop_where_it_is_short() {
        let all = |line: &str, case: &str| names(&format!("shutdown {line}"), case);
        assert_eq!(all("", "flat/500/0"), [OURS, SERIAL, "tokio", "rayon"]);
        assert_eq!(all("", "flat/500/24"), [OURS, "tokio", "rayon"]);
        assert!(all("", "flat/500/2").is_empty() && all("--quick", "flat/500/0").is_empty());
        assert_eq!(all("--quick --workload flat/500/2 --peers ray", "flat/500/2"), [OURS, "rayon"]);
    }

    #[test]
    fn the_worst_peer_on_the_worst_web_counts_and_the_plain_loop_is_no_peer() {
        let time = "makespan_p50";
        let headlines = headlines_of(
            &[
                ("flat/500/24", OURS, time, &[100.0]),
                ("flat/500/24", "tokio", time, &[200.0]),
                ("deep/500/24", OURS, time, &[90.0]),
                ("deep/500/24", "rayon", time, &[100.0]),
                ("flat/500/0", OURS, time, &[10.0]),
                ("flat/500/0", "serial", time, &[1.0]),
                ("flat/500/0", "tokio", time, &[100.0]),
            ],
            PEERS.headlines,
        );
        assert_eq!(find(&headlines, "makespan_vs_best_peer"), Some(("rayon, deep/500/24", 0.9)));
        assert_eq!(find(&headlines, "no_slow_vs_best_peer"), Some(("tokio, flat/500/0", 0.1)));
        assert_eq!(find(&headlines, "azure_vs_best_peer"), None, "nothing was run of it");
    }
}
