//! Workloads for workqueues, and their runtimes.
//!
//! 1. [`runtime`] has the traits that the workloads need, and [`tiny`] the item of the storms.
//! 2. Each workload has a file. [`meter`](crate::meter) measures their costs.
//! 3. [`variants`] has Corewise's queues, [`before`] the old design, one locked list per cache, and
//!    `floor` no queue at all.
//!
//! # The words
//!
//! All numbers are whole and without a sign. A word that a case doesn't need is ignored.
//!
//! | word | means |
//! |---|---|
//! | `case` | the case |
//! | `runtime` | the runtime, one of those that the program knows |
//! | `workers` | number of threads that run items; more only if items block |
//! | `producers` | threads that queue from outside |
//! | `items` | items of a pass, in all or as the case says |
//! | `passes` | measured passes, in one process, on one runtime |
//! | `ring` | reused items of each producer |
//! | `gap_us` | microseconds that the client sleeps before each ping |
//! | `client_cpu`, `worker_cpu` | CPU of the client, or of the only worker; else it isn't pinned |
//! | `rate` | items per second, open loop |
//! | `block_us`, `short_us` | time that a blocking item sleeps, and time that the others spin |
//! | `hint` | 1: use the runtime's own way to say that an item blocks |
//! | `rest_ms` | milliseconds of rest |
//! | `seed` | seed of random choices |
//! | `count` | 1: count allocations, and report `allocations_per_item` alone |
//!
//! # The line
//!
//! ```json
//! {"case":"storm/boxed","runtime":"tokio","metrics":{"items_per_second":1.9e6}}
//! ```
//!
//! It is the last line of the standard output that begins with a brace; the exit code is 0.
//! `metrics` maps names to numbers, and [`metrics`](crate::line::metrics()) has all names with
//! their units. A runtime that can't do a case prints
//! `{"case":...,"runtime":...,"unsupported":"WHY"}`.
//!
//! Every run reports as many of these metrics as it can:
//!
//! - `cpu_seconds`: user and system time of all threads of the process, by `getrusage`, over the
//!   measured passes;
//! - `cpu_per_item` (ns): that time by all items of all passes;
//! - `voluntary_switches`: `ru_nvcsw` of the process over the measured passes, **per million
//!   items** (in `idle` as such);
//! - `peak_rss`: `ru_maxrss` in bytes, at the end.
//!
//! With several passes a rate is that of the middle pass. Before the first measured pass there is
//! one over a tenth of the items that isn't measured. The Java program warms up for as long as its
//! compiler needs.
//!
//! # The cases
//!
//! **(a) `kernel_test`**: `producers` threads are pinned to one online CPU each. Each makes one
//! item (reusable, if the runtime has those). It repeats these steps `items` times: it notes the
//! time, queues the item, notes the time, and sleeps on a futex until the item has run. `call_*` is
//! the time of the queueing call. `latency_*` runs from before the call to after the sleep.
//! `items_per_second` counts all items, from the first thread's start to the end of a flush after
//! the last.
//!
//! **(b) `storm/reused`, `storm/boxed`**, each also `/striped`: `producers` threads queue
//! `items / producers` each (the first ones take the rest). An item holds 16 bytes, a number and a
//! pointer to a count, and takes one from the count. The last one wakes the waiter, which sleeps on
//! a futex. All items share one count. With `/striped` each producer has one on a cache line of its
//! own, and the last item of each counts in another.
//!
//! `reused`: each producer has a ring of `ring` items, made before the clock starts, and queues
//! them in turn. A queueing is refused if the item is still queued. It doesn't count, and the
//! producer yields and tries that item again. `boxed`: each item is a closure, with no handle.
//! `items_per_second` runs from the release of the producers to the waiter's waking.
//!
//! **(c) `inside`**: as `storm/boxed`, but one task queues all `items`, from within. The clock runs
//! from the queueing of that task.
//!
//! **`fan`** does this `items` times, one after another: a task queues 64, and each of these queues
//! 64 that only count. The waiter sleeps until all 4161 have run, then flushes. `makespan_*` is the
//! time of one such tree. `items_per_second` counts tasks, all 4161.
//!
//! **(d) `pingpong/PLACEMENT/GAP`**: one client from outside makes `items` pings. For each it
//! sleeps `gap_us` (with a timer slack of one nanosecond, if not 0). It notes the time, queues an
//! item, sleeps on a futex until the item has run, and notes the time. `free`: there are `workers`
//! workers, and no thread is pinned. `same`, `cross`: there is one worker, pinned to `worker_cpu`,
//! and the client is pinned to `client_cpu`. `latency_*` is the time of a ping; the 99.9th
//! percentile of fewer than 5 000 pings isn't reported. `cpu_per_item` is per ping, client
//! included. The runtime `futex` is the floor: a bare thread that sleeps on a futex and wakes the
//! client.
//!
//! **(e) `mix/LOAD`, `mix/LOAD/hint`** is an open loop. One producer queues `items` closures at
//! intended times, and waits for each by yielding its CPU. The gaps are exponential with the mean
//! `1 / rate`. One item in ten, at random, sleeps `block_us`; the others spin `short_us`. Both come
//! from Vigna's SplitMix64, seeded with `seed` as the counter. For each item there is one number
//! for the gap, `-ln(1 - (r >> 11) / 2^53) / rate` seconds, and then one for the kind: the item
//! blocks if `r % 10 == 0`.
//!
//! `short_*` runs from the intended time of a short item to its end. `rate` is LOAD % of the rate
//! of `workers` workers that block for a tenth of the items and make no more threads. `threads` is
//! the number of threads of the process at the end, less those that it had before the runtime was
//! built. `items_per_second` counts all items, until the last has run. `cpu_per_item` is without
//! the producer's own.
//!
//! **(f) `oversubscribed/reused`, `oversubscribed/boxed`**: the storm with four producers a CPU.
//!
//! **(g) `idle`**: `items` items wake all workers, which then have 100 ms to go to sleep. Then come
//! `rest_ms` of rest. The metrics are `cpu_seconds` and `voluntary_switches` of the rest, and
//! `threads`.
//!
//! # Names in records
//!
//! `case` is the case's text. For Corewise's and `before`'s own variants the scope follows it, and
//! the shard size where it isn't the default: `storm/reused/cache_shard`,
//! `storm/reused/cache_shard:4`, `kernel_test/cache` for `before`. `metric` and `unit` are those of
//! the line.

pub mod before;
mod floor;
mod idle;
mod inside;
mod kernel_test;
mod mix;
mod pingpong;
pub mod runtime;
mod storm;
pub mod tiny;
pub mod variants;

#[cfg(test)]
mod inline_tests;

use corewise_topology::{AffinityScope, Machine};
use corewise_workqueue::Idle;

use crate::bench::{Bench, On, Variant};
use crate::meter::Meter;
use crate::names::Place;
use crate::{BenchError, Job, Line};
use before::LockedPools;
use floor::futex;
use runtime::{Reuse, Spawn};
use variants::Corewise;

/// Shard sizes beside the default. A size is run if it gives pods that no earlier one has.
pub const SHARD_SIZES: [u32; 4] = [2, 4, 16, 32];

/// `corewise-bench workqueue`. The headlines compare the default scope with the old design in the
/// kernel's test. More is better in both.
pub static BENCH: Bench = Bench {
    name: "workqueue",
    words: "workers producers items passes ring gap_us rate block_us short_us hint rest_ms \
            seed count client_cpu worker_cpu",
    workloads: &[
        kernel_test::WORKLOAD,
        storm::WORKLOAD,
        inside::WORKLOAD,
        inside::FAN_OUT,
        pingpong::WORKLOAD,
        mix::WORKLOAD,
        storm::OVERSUBSCRIBED,
        idle::WORKLOAD,
    ],
    counting: |job| (job.items, job.passes) = (job.items.min(100_000), 1),
    headlines: |pairs| {
        let ours = |metric| pairs.values("kernel_test/cache_shard", "corewise", metric);
        let theirs = |metric| pairs.values("kernel_test/cache", "before", metric);
        let items = pairs.ratio(ours("items_per_second"), theirs("items_per_second"));
        let p50 = pairs.ratio(theirs("call_p50"), ours("call_p50"));
        vec![("cache_shard_vs_before_items", items), ("cache_shard_vs_before_p50", p50)]
    },
};

/// Reused items of each producer of a storm. Workers run as many in the few milliseconds for which
/// a producer may lose its CPU. With fewer items, producers wait for a free item and workers for
/// the next one, and the benchmark measures the switches. A peer's queue of plain values has no
/// such bound.
const RING: usize = 16_384;

/// Sets the numbers that most cases have.
fn base(job: &mut Job, on: &On) {
    (job.workers, job.producers, job.ring) = (on.cpus.len().max(1), 2, RING);
    (job.items, job.passes) = (on.pick(1_000_000, 500_000), on.pick(5, 1));
}

fn corewise(place: Place, count: bool) -> Variant {
    Variant { name: "corewise", runtime: format!("corewise/{place}"), place: Some(place), count }
}

/// Returns the variant of the old design, whose pods are the caches.
fn before(count: bool) -> Variant {
    Variant { place: Some(Place::of(AffinityScope::Cache)), count, ..Variant::of("before") }
}

/// Returns the default, and every scope and shard size whose pods no earlier one has. If the case
/// `decides` on the default scope, a scope with the same pods as the default is run too. It shows
/// the noise.
fn with_scopes(on: &On, decides: bool, count: bool) -> Vec<Variant> {
    let mut places = vec![Place::default()];
    let scopes = AffinityScope::ALL.map(Place::of).into_iter();
    for place in scopes.chain(SHARD_SIZES.map(Place::shards)) {
        if !places.iter().any(|known| on.layout.same(*known, place)) {
            places.push(place);
        }
    }
    if decides {
        let mut alike = [AffinityScope::Cache, AffinityScope::System].map(Place::of).into_iter();
        places.extend(alike.find(|place| on.layout.same(*place, Place::default())));
    }
    places.into_iter().map(|place| corewise(place, count)).collect()
}

fn with_before(on: &On, decides: bool, count: bool) -> Vec<Variant> {
    [with_scopes(on, decides, count), vec![before(count)]].concat()
}

/// Runs a job on a runtime that takes closures and signals. The line reports a case that it can't
/// run. A program makes the [`Meter`] first, and then the runtime as the job says.
///
/// # Errors
/// The workload couldn't be run.
pub fn run<R: Spawn>(
    job: &Job,
    machine: &Machine,
    runtime: &R,
    meter: &mut Meter,
) -> Result<Line, BenchError> {
    match job.parts()[..] {
        ["kernel_test"] => {
            kernel_test::run(job, machine, meter, |done| runtime.signal(done), || runtime.flush())
        }
        ["storm" | "oversubscribed", "reused", ..] => {
            Ok(job.cannot("it has no items that can be queued again"))
        }
        ["storm" | "oversubscribed", ..] => storm::boxed(job, runtime, meter),
        ["inside"] => inside::inside(job, runtime, meter),
        ["fan"] => inside::fan(job, runtime, meter),
        ["pingpong", ..] => pingpong::run(job, machine, meter, |done| Ok(runtime.signal(done))),
        ["mix", _, "hint"] if !R::HAS_HINT => {
            Ok(job.cannot("it can't be told that an item blocks"))
        }
        ["mix", ..] => mix::run(job, runtime, meter),
        _ => idle::run(job, runtime, meter),
    }
}

/// Runs a job as [`run`] does, on a runtime whose items can be queued again.
///
/// # Errors
/// The workload couldn't be run.
pub fn run_reused<R: Reuse>(
    job: &Job,
    machine: &Machine,
    runtime: &R,
    meter: &mut Meter,
) -> Result<Line, BenchError> {
    match job.parts()[..] {
        [_, "reused", ..] => storm::reused(job, runtime, meter),
        _ => run(job, machine, runtime, meter),
    }
}

/// Runs a job on Corewise (`corewise`, `corewise/SCOPE[:SHARD]`), on the old design (`before`), or
/// on the floor of the ping-pong (`futex`).
fn own(job: &Job, meter: &mut Meter) -> Result<Line, BenchError> {
    let machine = &Machine::live()?;
    let place = match job.runtime.as_str() {
        "before" => {
            let pools = match job.worker_cpu {
                Some(cpu) => LockedPools::on(machine, cpu)?,
                None => LockedPools::new(machine)?,
            };
            return run_reused(job, machine, pools.handle(), meter);
        }
        "futex" if job.case.starts_with("pingpong/") => {
            let signal = |done| futex(machine, job.worker_cpu, done);
            return pingpong::run(job, machine, meter, signal);
        }
        "futex" => return Ok(job.cannot("it has no queue")),
        "corewise" => Some(Place::default()),
        other => other.strip_prefix("corewise/").and_then(|place| place.parse().ok()),
    };
    let Some(place) = place else { return job.unknown() };
    let runtime = Corewise::new(job, machine, place, Idle::default())?;
    run_reused(job, machine, runtime.queue(), meter)
}

#[cfg(test)]
mod tests {
    use corewise_topology::CpuId;

    use super::*;
    use crate::bench::Effort;
    use crate::workqueue::inline_tests::Inline;
    use corewise_topology::Topology;

    /// Returns the run of a case and its words, on a machine with this number of CPUs.
    pub(super) fn job(words: &str, cpus: u32) -> Job {
        let mut words = words.split(' ');
        let topology = Topology::synthetic(&format!("core:{cpus} pu:1")).unwrap();
        let on = On::made_up(&topology, Effort::Full);
        let job = BENCH.job(words.next().unwrap(), "x", &on);
        let changed = job.to_words().into_iter().chain(words.map(str::to_owned));
        Job::from_words(&BENCH, changed).unwrap()
    }

    #[test]
    fn the_numbers_follow_the_machine() {
        assert_eq!(job("oversubscribed/boxed", 4).producers, 16);
        assert_eq!(job("mix/50", 4).rate, 20_000);
        let kernel_test = job("kernel_test", 4);
        assert_eq!((kernel_test.producers, kernel_test.items), (4, 50_000));
        let cross = job("pingpong/cross/500us", 4);
        assert_eq!((cross.workers, cross.gap_us), (1, 500));
        assert_eq!(
            (cross.client_cpu, cross.worker_cpu),
            (Some(CpuId::new(3)), Some(CpuId::new(0)))
        );
    }

    #[test]
    fn each_item_of_a_pass_and_of_the_tenth_before_is_queued_until_it_is_accepted() {
        let storm = "items=100 passes=2 ring=7";
        for (words, cpus, counted) in [
            ("kernel_test items=50".to_owned(), 3, [3 * (5 + 50), 0, 2]),
            (format!("storm/reused {storm}"), 1, [2 * (10 + 100 + 100), 0, 3]),
            (format!("storm/reused/striped {storm}"), 1, [2 * (10 + 100 + 100), 0, 3]),
            (format!("oversubscribed/reused {storm}"), 1, [2 * (10 + 100 + 100), 0, 3]),
            (format!("storm/boxed {storm}"), 1, [10 + 100 + 100, 0, 3]),
            (format!("storm/boxed/striped {storm}"), 1, [10 + 100 + 100, 0, 3]),
            ("inside items=20 passes=1".to_owned(), 1, [2, 2 + 20, 2]),
            ("fan items=2".to_owned(), 1, [3, 3 * 4160, 3]),
            ("pingpong/cross/500us items=10".to_owned(), 2, [1 + 10, 0, 0]),
            ("mix/80 items=300 block_us=0".to_owned(), 2, [330, 0, 2]),
            ("idle items=7 rest_ms=1".to_owned(), 1, [7, 0, 1]),
        ] {
            let machine = Machine::synthetic(&format!("core:{cpus} pu:1")).unwrap();
            let (runtime, meter) = (Inline::default(), &mut Meter::new(false, None));
            let line = run_reused(&job(&words, cpus), &machine, &runtime, meter).unwrap();
            assert_eq!(runtime.counted(), counted, "{words}");
            let at_most = |less: &str, more: &str| {
                line.metrics.get(less).zip(line.metrics.get(more)).is_none_or(|(a, b)| a <= b)
            };
            assert!(at_most("call_p50", "latency_p50") && at_most("short_p99", "short_max"));
            assert!(!line.metrics.contains_key("latency_p999"), "of few pings");
        }
    }

    #[test]
    fn a_panic_in_the_queue_is_an_error_and_nobody_hangs() {
        let machine = Machine::synthetic("core:2 pu:1").unwrap();
        let signal = |_| || panic!("on purpose");
        let job = job("kernel_test items=50", 2);
        let ran = kernel_test::run(&job, &machine, &mut Meter::new(false, None), signal, || ());
        assert!(matches!(ran, Err(BenchError::Panicked)));
    }

    #[test]
    fn scopes_and_shard_sizes_that_differ_are_run_and_one_twice() {
        let names = |machine: &str| -> Vec<String> {
            let on = On::made_up(&Topology::synthetic(machine).unwrap(), Effort::Full);
            let groups = BENCH.cells(&on, |case, _| case == "kernel_test");
            groups[0].iter().map(|cell| format!("{} {}", cell.case, cell.variant)).collect()
        };
        let cases = |of: &[&str]| -> Vec<String> {
            let ours = of.iter().map(|place| format!("kernel_test/{place} corewise"));
            ours.chain(["kernel_test/cache before".to_owned()]).collect()
        };
        let large = ["cache_shard", "cpu", "smt", "cache", "cache_shard:2", "cache_shard:4"];
        assert_eq!(names("l3:1 core:16 pu:2"), cases(&large));
        assert_eq!(names("l3:1 core:2 pu:1"), cases(&["cache_shard", "cpu", "cache"]));
    }
}
