//! The workqueue's workloads on all runtimes.

mod peers;

use async_executor::{Executor, StaticExecutor};
use corewise_bench::meter::Meter;
use corewise_bench::workqueue::{BENCH, run as run_on, run_reused};
use corewise_bench::{BenchError, Job, Line};
use corewise_topology::Machine;
use corewise_workqueue::Idle as Idling;

use crate::programs::Tool;
use crate::results::{Ask, OURS, is_floor};
use crate::session::{Idle, Peers, Runtime, When};
use peers::crossbeam::Crossbeam;
use peers::executor::Smol;
use peers::ours::{self, Spawning};
use peers::rayon::Rayon;
use peers::tokio::Tokio;

/// Corewise with a handle for each closure, as tokio has.
const OURS_SPAWN: &str = "corewise-spawn";
/// Corewise with workers that sleep at once, in the ping-pong.
const OURS_SLEEPS: &str = "corewise-sleep";
/// Corewise with workers that spin for long, in the ping-pong.
const OURS_SPINS: &str = "corewise-spin";
/// The floor of the ping-pong.
const FUTEX: &str = "futex";
/// Java's pool, reported apart in cases in which its collector does the allocator's work.
const FORK_JOIN_POOL: &str = "java-forkjoinpool";

/// All runtimes.
const RUNTIMES: [Runtime; 15] = [
    Runtime::of(OURS, Tool::Rust, Idle::Hesitates, When::Always),
    Runtime::of(OURS_SPAWN, Tool::Rust, Idle::Hesitates, When::Thorough),
    Runtime::of(OURS_SLEEPS, Tool::Rust, Idle::Sleeps, When::Always),
    Runtime::of(OURS_SPINS, Tool::Rust, Idle::Spins, When::Thorough),
    Runtime::of(FUTEX, Tool::Rust, Idle::Sleeps, When::Always),
    Runtime::of("tokio", Tool::Rust, Idle::Sleeps, When::Usually),
    Runtime::of("tokio-block-in-place", Tool::Rust, Idle::Sleeps, When::Thorough),
    Runtime::of("rayon", Tool::Rust, Idle::Spins, When::Usually),
    Runtime::of("async-executor-static", Tool::Rust, Idle::Sleeps, When::Usually),
    Runtime::of("async-executor", Tool::Rust, Idle::Sleeps, When::Thorough),
    Runtime::of("crossbeam", Tool::Rust, Idle::Hesitates, When::Usually),
    Runtime::of("tbb", Tool::Tbb, Idle::Spins, When::Usually),
    Runtime::of("go-channel", Tool::Go, Idle::Sleeps, When::Usually),
    Runtime::of("go-goroutine", Tool::Go, Idle::Sleeps, When::Thorough),
    Runtime::of(FORK_JOIN_POOL, Tool::Java, Idle::Sleeps, When::Usually),
];

pub(crate) static PEERS: Peers = Peers {
    bench: &BENCH,
    runtimes: &RUNTIMES,
    takes,
    // All cases that peers take part in, except the gap of 100 µs, which shows nothing that the
    // other two don't. Rest takes long and varies little, so it runs only if it is asked for.
    full: |parts, named, _| named || parts != ["idle"],
    quick: |parts| {
        matches!(
            parts,
            ["kernel_test"]
                | ["storm", _]
                | ["inside"]
                | ["pingpong", "same" | "cross", "hot"]
                | ["mix", "50", ..]
        )
    },
    allocates: |parts| matches!(parts, ["storm", "boxed"] | ["inside"]),
    // Many short runs vary less than a few long ones.
    adapt: |job, parts, on| match parts {
        ["kernel_test", ..] => job.items = on.pick(50_000, 10_000),
        ["storm", ..] | ["inside"] => {
            (job.items, job.passes) = (on.pick(1_000_000, 300_000), on.pick(2, 3));
        }
        ["oversubscribed", ..] => job.passes = 1,
        ["pingpong", _, "hot"] => job.items = on.pick(10_000, 2_000),
        ["pingpong", ..] => job.items = 500,
        // The open loop takes a second, or a third.
        ["mix", ..] => job.items = job.rate as usize / on.pick(1, 3),
        _ => {}
    },
    small: |job| {
        (job.items, job.passes, job.rest_ms) = ((job.items / 10).max(1), 1, job.rest_ms / 10);
    },
    counts: |runtime, parts| {
        let workload = matches!(parts[0], "storm" | "inside");
        workload && matches!(runtime.tool, Tool::Rust | Tool::Go)
    },
    headlines: &[
        Ask::rate("storm_boxed_vs_forkjoinpool", |case, peer| {
            case == "storm/boxed" && peer == FORK_JOIN_POOL
        })
        .beside(),
        Ask::rate("storm_boxed_vs_tokio", |case, peer| case == "storm/boxed" && peer == "tokio")
            .beside(),
        Ask::rate("storm_boxed_mimalloc_vs_best_peer", |case, _| case == "storm/boxed/mimalloc")
            .beside(),
        Ask::rate("inside_vs_best_peer_but_forkjoinpool", |case, peer| {
            case == "inside" && peer != FORK_JOIN_POOL
        })
        .beside(),
        Ask::rate("storm_reused_vs_best_peer", |case, _| case == "storm/reused"),
        Ask::rate("storm_boxed_vs_best_peer", |case, peer| {
            case == "storm/boxed" && peer != FORK_JOIN_POOL
        }),
        Ask::rate("inside_vs_best_peer", |case, _| case == "inside"),
        Ask::rate("kernel_test_vs_best_peer", |case, _| case == "kernel_test"),
        // The worst of all placements and gaps counts, and each kind of worker is compared with its
        // own kind.
        Ask::lower("pingpong_sleeping_p50_vs_best_peer", "latency_p50", sleeping)
            .of(OURS_SLEEPS)
            .beside(),
        Ask::lower("pingpong_sleeping_p99_vs_best_peer", "latency_p99", sleeping)
            .of(OURS_SLEEPS)
            .beside(),
        Ask::lower("pingpong_sleeping_cpu_vs_best_peer", "cpu_per_item", sleeping)
            .of(OURS_SLEEPS)
            .beside(),
        Ask::lower("pingpong_spinning_p50_vs_best_peer", "latency_p50", spinning).beside(),
        Ask::lower("pingpong_spinning_p99_vs_best_peer", "latency_p99", spinning).beside(),
        Ask::lower("pingpong_spinning_cpu_vs_best_peer", "cpu_per_item", spinning).beside(),
        Ask::lower("sleeping_p50_vs_futex", "latency_p50", |case, peer| {
            matches!(case, "pingpong/same/hot" | "pingpong/cross/hot") && peer == FUTEX
        })
        .of(OURS_SLEEPS),
        Ask::lower("blocking_mix_p99_vs_best_peer", "short_p99", |case, peer| {
            case.starts_with("mix/") && !is_floor(peer)
        }),
    ],
    files: None,
    run: peer,
};

/// Returns true if a runtime has a way of its own to run this case.
fn takes(name: &str, parts: &[&str]) -> bool {
    if matches!(name, OURS_SLEEPS | OURS_SPINS) {
        return parts[0] == "pingpong";
    }
    let queues = !matches!(name, FUTEX | "tokio-block-in-place");
    match parts {
        ["storm" | "oversubscribed", "reused", ..] => {
            matches!(name, OURS | "crossbeam" | "go-channel")
        }
        ["storm" | "oversubscribed" | "inside" | "fan", ..] => queues,
        _ if name == OURS_SPAWN => false,
        ["pingpong", placement, _] => {
            name != "tokio-block-in-place" && (*placement == "free" || name != "go-goroutine")
        }
        ["mix", _, "hint"] => !matches!(name, FUTEX | "rayon" | "crossbeam" | "tbb"),
        _ => queues,
    }
}

/// Returns true if an idle worker of the peer sleeps at once, or `None` if this isn't a peer.
fn sleeps(peer: &str) -> Option<bool> {
    let runtime = RUNTIMES.iter().find(|runtime| runtime.name == peer && !is_floor(peer))?;
    Some(runtime.idle == Idle::Sleeps)
}

fn sleeping(case: &str, peer: &str) -> bool {
    case.starts_with("pingpong/") && sleeps(peer) == Some(true)
}

fn spinning(case: &str, peer: &str) -> bool {
    case.starts_with("pingpong/") && sleeps(peer) == Some(false)
}

fn peer(job: &Job, meter: &mut Meter) -> Result<Line, BenchError> {
    let machine = Machine::live()?;
    let line = match &*job.runtime {
        "corewise-spawn" => {
            let ours = ours::idling(job, &machine, Idling::default())?;
            run_on(job, &machine, &Spawning(ours.queue().clone()), meter)?
        }
        "corewise-sleep" => {
            let ours = ours::idling(job, &machine, Idling::Sleep)?;
            run_on(job, &machine, ours.queue(), meter)?
        }
        "corewise-spin" => {
            let ours = ours::idling(job, &machine, ours::SPINS)?;
            run_on(job, &machine, ours.queue(), meter)?
        }
        "tokio" => run_on(job, &machine, &Tokio::<false>::new(job)?, meter)?,
        "tokio-block-in-place" => run_on(job, &machine, &Tokio::<true>::new(job)?, meter)?,
        "rayon" => run_on(job, &machine, &Rayon::new(job)?, meter)?,
        "async-executor" => {
            let executor = Smol::<&'static Executor<'static>>::new(job)?;
            run_on(job, &machine, &executor, meter)?
        }
        "async-executor-static" => {
            let executor = Smol::<&'static StaticExecutor>::new(job)?;
            run_on(job, &machine, &executor, meter)?
        }
        "crossbeam" => run_reused(job, &machine, &Crossbeam::new(job)?, meter)?,
        _ => return job.unknown(),
    };
    Ok(line)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::tests::{find, of as headlines_of};
    use crate::session::tests::{cells, names, run_all};

    #[test]
    fn every_rust_runtime_runs_a_few_items_of_each_of_its_cases() {
        run_all(
            "workqueue",
            |_| true,
            |job| {
                job.items = job.items.min(60);
                job.block_us = job.block_us.min(10);
                job.rest_ms = 1;
            },
        );
    }

    #[test]
    fn a_run_has_ours_in_every_case_and_a_look_what_the_headlines_need() {
        let with = |line: &str, case: &str| names(&format!("workqueue {line}"), case);
        assert!(cells("workqueue").iter().all(|of| of.iter().any(|one| one.job.runtime == OURS)));
        let boxed = with("", "storm/boxed").len();
        assert_eq!(with("", "storm/boxed/mimalloc").len(), boxed - 3, "the native ones");
        assert_eq!(with("", "storm/reused").len(), 3);
        assert!(with("", "storm/reused/mimalloc").is_empty());
        let cases = |line: &str| -> Vec<String> {
            let groups = cells(&format!("workqueue --quick {line}"));
            groups.iter().map(|group| group[0].case.clone()).collect()
        };
        let pings = ["pingpong/same/hot", "pingpong/cross/hot", "mix/50", "mix/50/hint"];
        let first = ["kernel_test", "storm/reused", "storm/boxed", "inside"];
        assert_eq!(cases(""), [first, pings].concat());
        assert!(!with("--quick", "storm/boxed").contains(&"go-goroutine".to_owned()));
        // Peers and workloads are chosen by beginnings; a case's whole name is that case.
        let asked = with("--workload storm/boxed --peers go", "storm/boxed");
        assert_eq!(asked, [OURS, "go-channel", "go-goroutine"]);
        assert_eq!(cases("--workload storm/boxed/mimalloc"), ["storm/boxed/mimalloc"]);
        assert_eq!(cases("--workload insid"), ["inside", "inside/mimalloc"]);
    }

    #[test]
    fn the_best_peer_is_the_one_against_whom_ours_stands_worst() {
        let rate = "items_per_second";
        let headlines = headlines_of(
            &[
                ("storm/boxed", "corewise", rate, &[10.0, 12.0, 20.0]),
                ("storm/boxed", "corewise-spawn", rate, &[90.0, 90.0, 90.0]),
                ("storm/boxed", "tokio", rate, &[1.0, 2.0, 2.0]),
                ("storm/boxed", "crossbeam", rate, &[5.0, 4.0, 10.0]),
                ("storm/boxed", "java-forkjoinpool", rate, &[40.0, 48.0, 80.0]),
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
            ],
            PEERS.headlines,
        );
        let of = |name: &str| find(&headlines, name);
        assert_eq!(of("storm_boxed_vs_best_peer"), Some(("crossbeam, storm/boxed", 2.0)));
        assert_eq!(of("storm_boxed_vs_forkjoinpool").unwrap().1, 0.25);
        assert_eq!(of("storm_boxed_vs_tokio").unwrap().1, 10.0);
        assert_eq!(of("inside_vs_best_peer"), None, "nothing was run of it");
        let cross = |peer| format!("{peer}, pingpong/cross/hot");
        let sleeping = of("pingpong_sleeping_p50_vs_best_peer");
        assert_eq!(sleeping, Some((&*cross("tokio"), 2.0)), "which sleeps too");
        assert_eq!(of("pingpong_spinning_p50_vs_best_peer").unwrap().0, cross("rayon"));
        assert_eq!(of("blocking_mix_p99_vs_best_peer"), Some(("go-channel, mix/50/hint", 0.5)));
        assert_eq!(of("sleeping_p50_vs_futex"), Some((&*cross("futex"), 1.25)));
    }
}
