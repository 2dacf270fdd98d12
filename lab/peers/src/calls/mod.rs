//! The workloads for cross-CPU calls on all runtimes.

mod peers;

use corewise_bench::calls::BENCH;
use corewise_bench::calls::roundtrip::run as run_on;
use corewise_bench::meter::Meter;
use corewise_bench::{BenchError, Job, Line};
use corewise_topology::Machine;

use crate::programs::Tool;
use crate::results::{Ask, OURS, is_floor};
use crate::session::{Idle, Peers, Runtime, When};
use peers::Targets;
use peers::channels::channels;
use peers::rayon::rayon;
use peers::tokio::tokio;

/// The floor, which has no call and isn't a peer.
const EVENTFD: &str = "eventfd";

/// All runtimes.
const RUNTIMES: [Runtime; 12] = [
    Runtime::of(OURS, Tool::Rust, Idle::Hesitates, When::Always),
    Runtime::of(EVENTFD, Tool::Rust, Idle::Sleeps, When::Always),
    Runtime::of("crossbeam", Tool::Rust, Idle::Hesitates, When::Usually),
    Runtime::of("kanal", Tool::Rust, Idle::Hesitates, When::Usually),
    Runtime::of("std-mpsc", Tool::Rust, Idle::Sleeps, When::Usually),
    Runtime::of("tokio", Tool::Rust, Idle::Sleeps, When::Usually),
    Runtime::of("rayon", Tool::Rust, Idle::Hesitates, When::Usually),
    Runtime::of("go-channel", Tool::GoCalls, Idle::Sleeps, When::Usually),
    Runtime::of("glommio", Tool::Glommio, Idle::Sleeps, When::Usually),
    Runtime::of("glommio-spins", Tool::Glommio, Idle::Spins, When::Usually),
    Runtime::of("seastar", Tool::Seastar, Idle::Hesitates, When::Usually),
    Runtime::of("seastar-poll-mode", Tool::Seastar, Idle::Spins, When::Usually),
];

pub(crate) static PEERS: Peers = Peers {
    bench: &BENCH,
    runtimes: &RUNTIMES,
    // The eventfd wakes one thread, and rayon can't run a function on a chosen thread.
    takes: |name, parts| match name {
        EVENTFD => parts[0] == "roundtrip",
        "rayon" => parts[0] == "broadcast",
        _ => true,
    },
    // Sizes between one and all show nothing about peers. A waiter that holds its core is
    // compared with the old design, not with peers.
    full: |parts, _, on| match parts {
        ["broadcast", cpus] => *cpus == on.cpus.len().to_string(),
        _ => parts[0] == "roundtrip",
    },
    quick: |parts| matches!(parts, ["roundtrip", "hot" | "cold"]),
    allocates: |_| false,
    adapt: |job, parts, on| {
        job.items = match parts {
            ["roundtrip", "hot"] => on.pick(20_000, 5_000),
            ["roundtrip", "cold"] => on.pick(1_000, 150),
            // If ordinary work comes first, a call takes some milliseconds.
            ["roundtrip", "busy"] => on.pick(300, 60),
            _ => on.pick(500, 100),
        };
    },
    small: |job| job.items = (job.items / 10).max(1),
    counts: |runtime, _| runtime.tool == Tool::Rust,
    headlines: &[
        Ask::lower("roundtrip_p50_vs_eventfd", "latency_p50", |case, peer| {
            (case == HOT || case == COLD) && peer == EVENTFD
        })
        .beside(),
        Ask::lower("roundtrip_p99_vs_best_peer", "latency_p99", as_ours).beside(),
        Ask::lower("roundtrip_cpu_vs_best_peer", "cpu_per_item", as_ours).beside(),
        Ask::lower("busy_p50_vs_best_peer", "latency_p50", busy).beside(),
        Ask::lower("busy_p99_vs_best_peer", "latency_p99", busy).beside(),
        Ask::lower("broadcast_p50_vs_best_peer", "latency_p50", |case, peer| {
            case.starts_with("broadcast/") && !spins(peer) && !is_floor(peer)
        })
        .beside(),
        Ask::lower("cold_p50_vs_spinning_peer", "latency_p50", |case, peer| {
            case == COLD && spins(peer)
        })
        .beside(),
        Ask::lower("roundtrip_p50_vs_best_peer", "latency_p50", as_ours),
    ],
    files: None,
    run: peer,
};

const HOT: &str = "roundtrip/hot";
const COLD: &str = "roundtrip/cold";

fn spins(peer: &str) -> bool {
    RUNTIMES.iter().any(|runtime| runtime.name == peer && runtime.idle == Idle::Spins)
}

/// Returns true if the peer is comparable in this case. Back to back, any peer may spin. With a
/// pause between calls, a peer that spins through it keeps two CPUs busy and is never woken, so it
/// is compared apart.
fn as_ours(case: &str, peer: &str) -> bool {
    !is_floor(peer) && (case == HOT || case == COLD && !spins(peer))
}

fn busy(case: &str, peer: &str) -> bool {
    case == "roundtrip/busy" && !is_floor(peer) && !spins(peer)
}

fn peer(job: &Job, meter: &mut Meter) -> Result<Line, BenchError> {
    let machine = &Machine::live()?;
    let to = &Targets::of(job, machine)?;
    let name = &*job.runtime;
    let line = match (name, job.parts()[0]) {
        ("crossbeam", _) => run_on(job, machine, meter, || {
            let bounded = crossbeam_channel::bounded;
            channels(to, name, bounded, |to, value| to.send(value).is_ok(), |from| from.recv().ok())
        })?,
        ("kanal", _) => run_on(job, machine, meter, || {
            let bounded = kanal::bounded;
            channels(to, name, bounded, |to, value| to.send(value).is_ok(), |from| from.recv().ok())
        })?,
        ("std-mpsc", _) => run_on(job, machine, meter, || {
            let bounded = std::sync::mpsc::sync_channel;
            channels(to, name, bounded, |to, value| to.send(value).is_ok(), |from| from.recv().ok())
        })?,
        ("tokio", _) => run_on(job, machine, meter, || tokio(to))?,
        ("rayon", "broadcast") => run_on(job, machine, meter, || rayon(to))?,
        ("rayon", "roundtrip") => job.cannot("it has no call to one thread"),
        _ => return job.unknown(),
    };
    Ok(line)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::tests::{find, of as headlines_of};
    use crate::session::tests::{names, run_all};

    /// Runs every case. The run itself checks each answer.
    #[test]
    fn every_rust_runtime_answers_a_few_calls_of_each_of_its_cases() {
        let few = |job: &mut Job| (job.items, job.gap_us) = (50, job.gap_us.min(10));
        run_all("calls", |_| true, few);
    }

    #[test]
    fn each_peer_runs_the_cases_that_it_supports() {
        let all = |line: &str, case: &str| names(&format!("calls {line}"), case);
        let has = |case: &str, name: &str| all("", case).contains(&name.to_owned());
        assert!(has("roundtrip/busy", EVENTFD) && !has("roundtrip/busy", "rayon"));
        assert!(has("broadcast/4", "rayon") && !has("broadcast/4", EVENTFD));
        assert!(all("", "broadcast/2").is_empty() && all("--quick", "roundtrip/busy").is_empty());
        let asked = "--quick --peers glommio,tokio --workload roundtrip/busy";
        let expected = [OURS, EVENTFD, "tokio", "glommio", "glommio-spins"];
        assert_eq!(all(asked, "roundtrip/busy"), expected);
        assert!(all(asked, "roundtrip/hot").is_empty());
    }

    #[test]
    fn the_worst_of_hot_and_cold_counts_and_peers_that_spin_through_a_pause_stand_apart() {
        let p50 = "latency_p50";
        let headlines = headlines_of(
            &[
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
            ],
            PEERS.headlines,
        );
        let agreed = headlines.last().unwrap();
        assert_eq!(agreed.name, "roundtrip_p50_vs_best_peer");
        assert_eq!(agreed.against, "crossbeam, roundtrip/cold");
        assert!(agreed.agreed && headlines.iter().filter(|one| one.agreed).count() == 1);
        let of = |name: &str| find(&headlines, name).map(|(_, median)| median);
        assert_eq!(of("roundtrip_p50_vs_eventfd"), Some(1.1));
        assert_eq!(of("cold_p50_vs_spinning_peer"), Some(5.0));
        assert_eq!(of("broadcast_p50_vs_best_peer"), Some(0.75));
        assert_eq!(of("busy_p50_vs_best_peer"), None, "nothing was run of it");
    }
}
