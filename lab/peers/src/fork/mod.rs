//! Fork and join: recursions, trees, sorts and maps by each library, compared with plain calls.
//!
//! # The words
//!
//! All numbers are whole and without a sign. A word that a case doesn't need is ignored.
//!
//! | word | means |
//! |---|---|
//! | `case` | the case |
//! | `runtime` | the library, one of those that the program knows |
//! | `workers` | threads that run parts, including the calling one if it takes part |
//! | `items` | size of the input, as the case says |
//! | `times` | number of times that a pass sums its tree |
//! | `passes` | measured passes, in one process; one that isn't measured comes before |
//! | `quick_steps` | steps of an item of a map, on average; a nanosecond or two each |
//! | `worker_cpu` | confine the whole process to that CPU, before the library starts a thread |
//! | `count` | 1: count allocations, and report `allocations_per_item` alone |
//!
//! # The cases
//!
//! * **`forks`**: `fib(items)` by a join for each call, and by plain calls, in turns, on one CPU,
//!   so no thread steals. `fork_ns`, `fork_cpu_ns`: the difference of the two, a fork.
//! * **`fib`**: `fib(items)` by a join for each call. An item is a fork.
//! * **`tree/SIZE/CPUS`**: the sum of a full binary tree of `items` nodes, each in an allocation of
//!   its own, by a join at each node that has children. SIZE is `1k`, `1m` or `16m`, CPUS is `one`
//!   or `all`. A pass sums a small tree a thousand times. An item is a node.
//! * **`sort`**: quicksort of `items` numbers of 32 bits, in no order; up to 4096 go to the
//!   language's own sort. An item is a number.
//! * **`map-tiny`**: a function of 20 ns of a million numbers. **`map-uneven`**: of 10 000 numbers,
//!   0 to 200 µs.
//! * **`inside`**: that of `lab/bench/src/workqueue/mod.rs`.
//!
//! # The metrics
//!
//! `makespan_p50`: the time from the call until all is done, including the hand-over to a worker,
//! if there is one; the median of the passes. `items_per_second`, `cpu_per_item`: see the cases.
//! `bound`, of plain calls alone: their time over the number of CPUs.

mod peers;
mod work;

use std::time::Duration;

use corewise_bench::bench::{Bench, Cases, On, Workload};
use corewise_bench::meter::{Meter, percentiles};
use corewise_bench::{BenchError, Job, Line, workqueue};
use corewise_sync::time;
use corewise_topology::{CpuSet, Machine};

use crate::programs::Tool;
use crate::results::{Ask, OURS, is_floor};
use crate::session::{Idle, Peers, Runtime, When};
use peers::Library;
use peers::chili::Chili;
use peers::ours::CorewiseForks;
use peers::rayon::Rayon;
use work::{Serial, Work};

/// Corewise, from a thread that isn't a worker.
const OUTSIDE: &str = "corewise-outside";
/// A goroutine a fork, which takes a microsecond or two.
const GOROUTINE: &str = "go-goroutine";
/// Plain calls.
const SERIAL: &str = "serial";

static BENCH: Bench = Bench {
    name: "fork",
    words: "workers producers items times passes quick_steps worker_cpu count",
    workloads: &[
        Workload { cases: Cases::These(CASES), quick: |parts, _| quick(parts), numbers, ..FORKS },
        Workload { cases: Cases::These("inside"), numbers: spawns_numbers, run: spawns, ..FORKS },
    ],
    counting: |job| job.passes = 1,
    headlines: |_| vec![],
};

const CASES: &str = "forks fib tree/1k/one tree/1k/all tree/1m/one tree/1m/all tree/16m/one \
                     tree/16m/all sort map-tiny map-uneven";

const FORKS: Workload = Workload {
    cases: Cases::These(""),
    quick: |_, _| false,
    numbers: |_, _, _| (),
    variants: |_, _| vec![],
    run: own,
};

pub(crate) static PEERS: Peers = Peers {
    bench: &BENCH,
    runtimes: &[
        Runtime::of(OURS, Tool::Rust, Idle::Hesitates, When::Always),
        Runtime::of(OUTSIDE, Tool::Rust, Idle::Hesitates, When::Always),
        Runtime::of(SERIAL, Tool::Rust, Idle::Sleeps, When::Always),
        Runtime::of("rayon", Tool::Rust, Idle::Spins, When::Usually),
        Runtime::of("chili", Tool::Rust, Idle::Sleeps, When::Usually),
        Runtime::of("forte", Tool::Forte, Idle::Sleeps, When::Usually),
        Runtime::of("tbb", Tool::Tbb, Idle::Spins, When::Usually),
        Runtime::of(GOROUTINE, Tool::Go, Idle::Sleeps, When::Thorough),
        Runtime::of("go-channel", Tool::Go, Idle::Sleeps, When::Usually),
        Runtime::of("java-fork-join", Tool::Java, Idle::Sleeps, When::Thorough),
        Runtime::of("java-forkjoinpool", Tool::Java, Idle::Sleeps, When::Usually),
    ],
    takes: |name, parts| match parts {
        ["inside"] => !matches!(name, OUTSIDE | SERIAL | "chili" | "forte" | "java-fork-join"),
        _ if matches!(name, "go-channel" | "java-forkjoinpool") => false,
        ["forks"] => name != SERIAL,
        _ => true,
    },
    full: |_, _, _| true,
    quick,
    allocates: |_| false,
    adapt: |job, parts, on| match parts {
        ["inside"] => (crate::workqueue::PEERS.adapt)(job, parts, on),
        ["tree", "16m", _] if job.runtime == GOROUTINE => job.passes = 1,
        _ if job.runtime == GOROUTINE => job.passes = job.passes.min(3),
        _ => {}
    },
    small: |job| {
        job.items = if job.case.starts_with("f") { job.items.min(20) } else { job.items / 16 };
        job.passes = 1;
    },
    counts: |runtime, parts| runtime.tool == Tool::Rust && parts == ["forks"],
    headlines: &[
        Ask::lower("fib_cpu_vs_best_peer", "cpu_per_item", |case, peer| {
            case == "fib" && !is_floor(peer)
        })
        .beside(),
        Ask::lower("tree_small_outside_vs_serial", "makespan_p50", small_serial)
            .of(OUTSIDE)
            .beside(),
        Ask::lower("map_uneven_vs_bound", "makespan_p50", |case, peer| {
            case == "map-uneven" && peer == SERIAL
        })
        .over("bound")
        .beside(),
        Ask::lower("tree_large_vs_bound", "makespan_p50", |case, peer| {
            large(case) && peer == SERIAL
        })
        .over("bound")
        .beside(),
        Ask::own("fork_ns", |case, _| case == "forks"),
        Ask::lower("fib_vs_best_peer", "makespan_p50", |case, peer| {
            case == "fib" && !is_floor(peer)
        }),
        Ask::lower("tree_small_vs_serial", "makespan_p50", small_serial),
        Ask::lower("tree_large_vs_best_peer", "makespan_p50", |case, peer| {
            large(case) && !is_floor(peer)
        }),
        Ask::lower("sort_vs_best_peer", "makespan_p50", |case, peer| {
            case == "sort" && !is_floor(peer)
        }),
        Ask::lower("map_vs_best_peer", "makespan_p50", |case, peer| {
            case.starts_with("map-") && !is_floor(peer)
        }),
        Ask::rate("inside_vs_best_peer", |case, _| case == "inside"),
    ],
    files: None,
    run: peer,
};

fn large(case: &str) -> bool {
    case.starts_with("tree/") && !case.starts_with("tree/1k/")
}

fn small_serial(case: &str, peer: &str) -> bool {
    case.starts_with("tree/1k/") && peer == SERIAL
}

/// Returns true if a quick call runs a case: those of the headlines, without the largest trees.
fn quick(parts: &[&str]) -> bool {
    !matches!(parts, ["tree", "16m", _] | ["tree", "1m", "one"])
}

fn numbers(job: &mut Job, parts: &[&str], on: &On) {
    job.workers = on.cpus.len().max(1);
    if let ["forks"] | ["tree", _, "one"] = parts {
        (job.workers, job.worker_cpu) = (1, on.cpus.iter().next());
    }
    (job.items, job.passes) = match parts {
        ["forks" | "fib"] => (on.pick(32, 30), on.pick(10, 5)),
        ["tree", "1k", _] => ((1 << 10) - 1, on.pick(10, 5)),
        ["tree", "1m", _] => ((1 << 20) - 1, on.pick(10, 5)),
        ["tree", ..] => ((1 << 24) - 1, 5),
        ["sort"] => (on.pick(10_000_000, 1_000_000), 5),
        ["map-tiny"] => (1_000_000, on.pick(10, 5)),
        _ => (on.pick(10_000, 1_000), 3),
    };
    job.times = if parts.contains(&"1k") { 1_000 } else { 1 };
    job.quick_steps = if parts == ["map-tiny"] { TINY } else { UNEVEN };
}

/// Steps of an item of `map-tiny`: 20 ns.
const TINY: u32 = 30;
/// Steps of an item of 100 µs, on average.
const UNEVEN: u32 = 60_000;

fn spawns_numbers(job: &mut Job, parts: &[&str], on: &On) {
    let workload = workqueue::BENCH.workload(parts[0]).expect("it has that");
    (workload.numbers)(job, parts, on);
}

/// `inside` on Corewise.
fn spawns(job: &Job, meter: &mut Meter) -> Result<Line, BenchError> {
    let workload = workqueue::BENCH.workload(&job.case).expect("it has that");
    (workload.run)(job, meter)
}

fn own(job: &Job, meter: &mut Meter) -> Result<Line, BenchError> {
    confine(job)?;
    match &*job.runtime {
        OURS => run_on(job, &CorewiseForks::new(job, false)?, meter),
        OUTSIDE => run_on(job, &CorewiseForks::new(job, true)?, meter),
        SERIAL => {
            let mut line = run_on(job, &Serial, meter)?;
            if let Some(time) = line.metrics.get("makespan_p50").copied() {
                line.set("bound", time / job.workers as f64);
            }
            Ok(line)
        }
        _ => job.unknown(),
    }
}

fn peer(job: &Job, meter: &mut Meter) -> Result<Line, BenchError> {
    match (&*job.runtime, &*job.case) {
        (_, "inside") => (crate::workqueue::PEERS.run)(job, meter),
        ("rayon", _) => run_on(job, &Rayon::new(job)?, meter),
        ("chili", _) => run_on(job, &Chili::new(job), meter),
        _ => job.unknown(),
    }
}

/// Confines the process to the CPU that the job names. Its threads inherit that.
fn confine(job: &Job) -> Result<(), BenchError> {
    let Some(cpu) = job.worker_cpu else { return Ok(()) };
    Machine::live()?.pin_current_thread(&CpuSet::from_iter([cpu]))?;
    Ok(())
}

/// Runs a case on a library, and by plain calls too if the difference is reported.
fn run_on<L: Library>(job: &Job, library: &L, meter: &mut Meter) -> Result<Line, BenchError> {
    let work = Work::new(&job.case, job.items, job.times, job.quick_steps.into());
    // The library's types allow a part to outlive this call.
    let work: &'static Work = Box::leak(Box::new(work.ok_or(BenchError::WrongAnswer)?));
    let (items, is_difference) = (work.items(), job.case == "forks");
    let (mut makespans, mut plain, mut plain_meter) = (vec![], vec![], Meter::new(false, None));
    pass(work, library)?;
    for _ in 0..job.passes {
        meter.pass(items, || timed(work, library, &mut makespans))?;
        if is_difference {
            plain_meter.pass(items, || timed(work, &Serial, &mut plain))?;
        }
    }
    let mut line = job.line();
    percentiles(&mut line, "makespan", &mut makespans, &[50.0]);
    let mut line = meter.finish(line);
    if is_difference && !job.count {
        let mut calls = job.line();
        percentiles(&mut calls, "makespan", &mut plain, &[50.0]);
        let calls = plain_meter.finish(calls);
        let more = |metric: &str| line.metrics[metric] - calls.metrics[metric];
        let (wall, cpu) = (more("makespan_p50") / items as f64, more("cpu_per_item"));
        line.set("fork_ns", wall);
        line.set("fork_cpu_ns", cpu);
    }
    Ok(line)
}

/// Adds the time of a pass, in nanoseconds.
fn timed<L: Library>(
    work: &'static Work,
    library: &L,
    makespans: &mut Vec<u64>,
) -> Result<Duration, BenchError> {
    let took = pass(work, library)?;
    makespans.push(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
    Ok(took)
}

/// Does the work once, verifies the result, and returns its time.
fn pass<L: Library>(work: &'static Work, library: &L) -> Result<Duration, BenchError> {
    let blank = work.blank();
    let began = time::now();
    let output = library.run(move |here| work.pass::<L::Forks>(here, blank));
    let took = time::now() - began;
    if work.is_right(&output) { Ok(took) } else { Err(BenchError::WrongAnswer) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::tests::{find, of as headlines_of};
    use crate::session::tests::{names, run_all};
    use work::Output;

    /// Runs every case. Each pass verifies its result.
    #[test]
    fn every_library_does_small_work_of_each_case() {
        run_all(
            "fork",
            |_| true,
            |job| {
                // The number isn't a multiple of a block or of a half, and is large enough to be
                // split.
                job.items = if job.case.starts_with("f") { 10 } else { job.items.min(5_003) };
                (job.times, job.passes, job.quick_steps, job.worker_cpu) = (2, 2, 3, None);
            },
        );
    }

    #[test]
    fn a_wrong_result_is_found() {
        for (case, wrong) in [
            ("fib", Output::Number(54)),
            ("tree/1k/one", Output::Number(0)),
            ("sort", Output::Sorted((0..10).rev().collect())),
            ("sort", Output::Sorted(vec![1; 10])),
            ("map-tiny", Output::Mapped(vec![0; 10])),
            ("map-uneven", Output::Mapped(vec![])),
        ] {
            let work = Work::new(case, 10, 1, 1).unwrap();
            assert!(!work.is_right(&wrong), "{case}");
            assert!(work.is_right(&work.pass::<Serial>(&mut (), work.blank())), "{case}");
        }
        assert!(Work::new("inside", 1, 1, 1).is_none());
    }

    #[test]
    fn who_cannot_spawn_takes_no_part_in_it_and_one_cpu_is_one_worker() {
        let all = |line: &str, case: &str| names(&format!("fork {line}"), case);
        let fast = ["rayon", "chili", "forte", "tbb"];
        let slow = ["go-goroutine", "java-fork-join"];
        assert_eq!(all("", "fib"), [&[OURS, OUTSIDE, SERIAL], &fast[..], &slow].concat());
        assert_eq!(all("", "forks"), [&[OURS, OUTSIDE], &fast[..], &slow].concat());
        let spawn = [OURS, "rayon", "tbb", "go-goroutine", "go-channel", "java-forkjoinpool"];
        assert_eq!(all("", "inside"), spawn);
        assert!(all("--quick", "fib").ends_with(&fast.map(str::to_owned)));
        assert!(all("--quick", "tree/16m/all").is_empty());
        let cells = crate::session::tests::cells("fork");
        for cell in cells.iter().flatten() {
            let is_one = cell.case == "forks" || cell.case.ends_with("/one");
            assert_eq!(cell.job.worker_cpu.is_some(), is_one, "{}", cell.case);
            assert_eq!(cell.job.workers, if is_one { 1 } else { 4 });
        }
    }

    #[test]
    fn plain_calls_are_no_peer_and_what_a_fork_takes_is_no_ratio() {
        let time = "makespan_p50";
        let headlines = headlines_of(
            &[
                ("forks", OURS, "fork_ns", &[4.0, 6.0]),
                ("forks", OUTSIDE, "fork_ns", &[40.0, 60.0]),
                ("forks", "rayon", "fork_ns", &[12.0, 12.0]),
                ("fib", OURS, time, &[5.0, 5.0]),
                ("fib", SERIAL, time, &[1.0, 1.0]),
                ("fib", "rayon", time, &[20.0, 20.0]),
                ("fib", "chili", time, &[10.0, 10.0]),
                ("tree/1k/all", OURS, time, &[6.0]),
                ("tree/1k/all", OUTSIDE, time, &[12.0]),
                ("tree/1k/all", SERIAL, time, &[6.0]),
                ("map-uneven", OURS, time, &[6.0]),
                ("map-uneven", SERIAL, time, &[10.0]),
                ("map-uneven", SERIAL, "bound", &[5.0]),
            ],
            PEERS.headlines,
        );
        let of = |name: &str| find(&headlines, name);
        assert_eq!(of("fork_ns"), Some(("corewise, forks", 5.0)));
        assert_eq!(of("fib_vs_best_peer"), Some(("chili, fib", 0.5)));
        assert_eq!(of("tree_small_vs_serial"), Some(("serial, tree/1k/all", 1.0)));
        assert_eq!(of("tree_small_outside_vs_serial").unwrap().1, 2.0);
        assert_eq!(of("map_uneven_vs_bound"), Some(("serial, map-uneven", 1.2)));
        assert_eq!(of("map_vs_best_peer"), None, "only plain calls were run of it");
    }
}
