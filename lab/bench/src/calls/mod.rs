//! Workloads for cross-CPU calls, and their runtimes.
//!
//! [`roundtrip`] measures callers. `eventfd` is the floor of a round trip. [`priority`] has the
//! priorities of threads.
//!
//! # The words
//!
//! All numbers are whole and without a sign. A word that a case doesn't need is ignored.
//!
//! | word | means |
//! |---|---|
//! | `case` | the case |
//! | `runtime` | the runtime, one of those that the program knows |
//! | `items` | calls of the measured pass |
//! | `gap_us` | microseconds that the client sleeps before each call |
//! | `client_cpu` | the CPU of the client |
//! | `server_cpu` | the CPU of the called thread |
//! | `length_ms` | length of the run, if it isn't given in calls |
//! | `tick_us` | period in which an urgent task wants its core |
//! | `interval_ms` | interval of which the longest wait counts |
//! | `seed` | seed of random choices |
//! | `count` | 1: count allocations, and report `allocations_per_item` alone |
//!
//! # The cases
//!
//! **`held_span/priority`** runs for `length_ms`; see `held`. It needs real-time priorities.
//! `held_*` are the longest waits of an urgent task in `interval_ms` on one CPU, over all intervals
//! and CPUs. `calls_per_second` is of all callers. The runtimes are `before`, `corewise`, and
//! `idle`, which has no callers.
//!
//! **`roundtrip/hot`, `roundtrip/cold`, `roundtrip/busy`**: one client is pinned to `client_cpu`.
//! It makes a thread that is pinned to `server_cpu` add one to a number, and waits for the answer.
//! It does so `items` times, after a tenth of them that aren't measured. `hot`: the calls are back
//! to back. `cold`: the client sleeps `gap_us` before each. `busy`: as `cold`, while a thread of
//! ordinary priority burns `server_cpu`. `latency_*` runs from before the call until the answer is
//! there.
//!
//! **`reads`**: one thread reads a value all the time on `client_cpu`, another replaces it every
//! `gap_us` on `server_cpu`. Runtimes: `corewise` (its read-mostly cell), `arc_swap`, `rwlock`.
//!
//! **`load/burst`, `load/waiters`**: `items` calls to `server_cpu` whose functions take 2 µs each.
//! `burst`: one client sends a thousand and waits for the last to have run. `waiters`: eight
//! clients wait for each of theirs. `wakeups_per_1000` is the number of pushes that found the queue
//! empty, per thousand calls.
//!
//! **`broadcast/N`**: as `roundtrip/cold`, but the number goes to N CPUs, all online ones from the
//! first. The answer is the sum of theirs. **`broadcast/synthetic/N`**: the same on a made-up
//! machine with N CPUs, whose threads share the real ones.

mod eventfd;
mod held;
mod load;
pub mod priority;
mod reads;
pub mod roundtrip;

use corewise_smp::{Priority, Smp, StartError};
use corewise_topology::{CpuId, Machine};

use crate::bench::{Bench, On, worst};
use crate::job::Job;

/// `corewise-bench calls`. One headline is the ratio of urgent tasks' longest waits to those of the
/// old design. The other is the ratio of a call and its answer to a ping, hot or cold, whichever is
/// worse. Less is better in both.
pub static BENCH: Bench = Bench {
    name: "calls",
    words: "items gap_us client_cpu server_cpu length_ms tick_us interval_ms seed count",
    workloads: &[
        held::WORKLOAD,
        roundtrip::WORKLOAD,
        roundtrip::BROADCAST,
        load::WORKLOAD,
        reads::WORKLOAD,
    ],
    counting: |job| (job.gap_us, job.length_ms) = (0, job.length_ms.min(100)),
    headlines: |pairs| {
        let held = pairs.over("held_span/priority", "held_p99", "before");
        let paces = ["roundtrip/hot", "roundtrip/cold"];
        let round =
            worst(paces.iter().filter_map(|pace| pairs.over(pace, "latency_p50", "eventfd")));
        vec![("held_span_p99_vs_before", held), ("roundtrip_p50_vs_eventfd", round)]
    },
};

/// Sets the numbers that all cases have.
fn base(job: &mut Job, on: &On) {
    // Other work, such as interrupts, is most often on the first CPU. So the client is on the
    // last one.
    (job.client_cpu, job.server_cpu) = (on.cpus.last(), on.cpus.first().unwrap_or(CpuId::new(0)));
    job.length_ms = on.pick(6_000, 1_500);
}

/// Starts call targets as they are measured: ahead of ordinary work, like the peers' threads for a
/// broadcast or an interrupt. On a synthetic machine, whose threads share the real CPUs, they have
/// no priority.
fn targets(machine: &Machine) -> Result<Smp, StartError> {
    let priority =
        if machine.is_synthetic() { Priority::Plain } else { Priority::OF_INTERRUPT_THREADS };
    Smp::builder(machine).priority(priority).build()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::Effort;
    use corewise_topology::Topology;

    /// Returns a short run of a case, on a machine with this number of CPUs.
    pub(super) fn job(case: &str, cpus: u32) -> Job {
        let topology = Topology::synthetic(&format!("core:{cpus} pu:1")).unwrap();
        BENCH.job(case, "x", &On::made_up(&topology, Effort::Quick))
    }

    #[test]
    fn broadcasts_double_until_all_are_called() {
        let sizes = |cpus: u32| {
            let topology = Topology::synthetic(&format!("core:{cpus} pu:1")).unwrap();
            let cases = BENCH.cases(&On::made_up(&topology, Effort::Full));
            let sizes =
                cases.iter().filter_map(|case| case.strip_prefix("broadcast/")?.parse().ok());
            sizes.collect::<Vec<u32>>()
        };
        assert_eq!(sizes(12), [1, 2, 4, 8, 12]);
        assert_eq!(sizes(2), [1, 2]);
        assert_eq!(sizes(1), [1]);
    }
}
