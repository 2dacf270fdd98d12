//! One run: a case, a runtime, and every number that the program which runs it must know.
//! [`mod@crate::workqueue`] says what each means.

use std::fmt;

use corewise_topology::CpuSet;

use crate::error::BenchError;
use crate::line::Line;
use crate::meter::Allocations;
use crate::process;
use crate::words::{self, BadJob, Effort};
use crate::workqueue::case::{Case, Items, Placement};
use crate::workqueue::run;

/// One run. See the [module above](crate::workqueue) for what each number means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    /// Which case.
    pub case: Case,
    /// On what: `corewise/cache_shard`, `before`, `tokio`.
    pub runtime: String,
    /// Worker threads.
    pub workers: usize,
    /// Threads that queue from outside.
    pub producers: usize,
    /// Items of a pass; what counts as one depends on the case.
    pub items: usize,
    /// Measured passes; the metrics are of the middle one where they are rates.
    pub passes: usize,
    /// Reused items of each producer.
    pub ring: usize,
    /// Microseconds that the client of a ping-pong sleeps before each ping.
    pub gap_us: u32,
    /// The CPU of the client, where it is pinned.
    pub client_cpu: Option<u32>,
    /// The CPU of the worker, where it is pinned.
    pub worker_cpu: Option<u32>,
    /// Items per second of an open loop.
    pub rate: u64,
    /// Microseconds that a blocking item sleeps.
    pub block_us: u32,
    /// Microseconds that a short item spins.
    pub short_us: u32,
    /// Whether blocking items say that they block.
    pub hint: bool,
    /// Milliseconds of rest.
    pub rest_ms: u64,
    /// Seed of what is random.
    pub seed: u64,
    /// Count allocations, and report them alone.
    pub count: bool,
}

/// Reused items of each producer of a storm: as many as workers run while a producer that lost its
/// CPU waits for it again, some milliseconds. With fewer, producers wait for a free item and workers
/// for the next one, and the switches are measured; a peer's queue of plain values has no such bound.
const RING: usize = 16_384;

impl Job {
    /// The run of a case on a machine with these CPUs online.
    pub fn new(case: Case, runtime: &str, cpus: &CpuSet, effort: Effort) -> Job {
        let quick = effort == Effort::Quick;
        let pick = |full: usize, short: usize| if quick { short } else { full };
        let workers = cpus.len().max(1);
        let mut job = Job {
            case,
            runtime: runtime.to_owned(),
            workers,
            producers: 2,
            items: pick(1_000_000, 500_000),
            passes: pick(5, 1),
            ring: RING,
            gap_us: 0,
            client_cpu: None,
            worker_cpu: None,
            rate: 0,
            block_us: 0,
            short_us: 0,
            hint: false,
            rest_ms: 0,
            seed: 1,
            count: false,
        };
        match case {
            Case::KernelTest { .. } => {
                (job.producers, job.items, job.passes) = (workers, pick(50_000, 10_000), 1);
            }
            Case::Storm { .. } => {}
            Case::Oversubscribed { .. } => job.producers = 4 * workers,
            Case::Inside => job.producers = 1,
            Case::Fan => (job.producers, job.items, job.passes) = (1, pick(500, 100), 1),
            Case::PingPong { placement, gap_us } => {
                (job.producers, job.passes, job.gap_us) = (1, 1, gap_us);
                job.items = if gap_us == 0 { pick(20_000, 4_000) } else { pick(2_000, 400) };
                // The first CPU is where others' work lands most often: interrupts, for one.
                let (first, last) = (cpus.first(), cpus.last());
                match placement {
                    Placement::Free => {}
                    Placement::Same => (job.client_cpu, job.worker_cpu) = (last, last),
                    Placement::Cross => (job.client_cpu, job.worker_cpu) = (last, first),
                }
                if placement != Placement::Free {
                    job.workers = 1;
                }
            }
            Case::Mix { load, hint } => {
                (job.producers, job.passes, job.hint) = (1, 1, hint);
                (job.block_us, job.short_us) = (1_000, 1);
                // A worker that blocks for each tenth item does 10 000 a second.
                job.rate = 10_000 * workers as u64 * u64::from(load) / 100;
                let per_second = usize::try_from(job.rate).unwrap_or(usize::MAX);
                // Two seconds, or 0.3.
                job.items = per_second.saturating_mul(pick(20, 3)) / 10;
            }
            Case::Idle => {
                (job.producers, job.items, job.passes) = (1, 10_000, 1);
                job.rest_ms = if quick { 300 } else { 10_000 };
            }
        }
        job
    }

    /// Whether items are made once and queued again and again.
    pub fn reuses(&self) -> bool {
        matches!(
            self.case,
            Case::Storm { items: Items::Reused, .. }
                | Case::Oversubscribed { items: Items::Reused }
        )
    }
}

impl process::Job for Job {
    fn asked(&self) -> (&dyn fmt::Display, &str) {
        (&self.case, &self.runtime)
    }

    fn numbers(&self) -> Vec<(&'static str, u64)> {
        let flag = u64::from;
        let mut numbers = vec![
            ("workers", self.workers as u64),
            ("producers", self.producers as u64),
            ("items", self.items as u64),
            ("passes", self.passes as u64),
            ("ring", self.ring as u64),
            ("gap_us", u64::from(self.gap_us)),
            ("rate", self.rate),
            ("block_us", u64::from(self.block_us)),
            ("short_us", u64::from(self.short_us)),
            ("hint", flag(self.hint)),
            ("rest_ms", self.rest_ms),
            ("seed", self.seed),
            ("count", flag(self.count)),
        ];
        let cpus = [("client_cpu", self.client_cpu), ("worker_cpu", self.worker_cpu)];
        let cpus = cpus.into_iter().filter_map(|(key, cpu)| Some((key, u64::from(cpu?))));
        numbers.extend(cpus);
        numbers
    }

    fn from_words<W: AsRef<str>>(words: impl IntoIterator<Item = W>) -> Result<Job, BadJob> {
        let mut job = Job::new(Case::Idle, "", &CpuSet::new(), Effort::Full);
        (job.workers, job.producers, job.items, job.passes) = (1, 1, 1, 1);
        (job.ring, job.rest_ms) = (1, 0);
        (job.case, job.runtime) = words::read(words, |key, value| {
            let size = || usize::try_from(value).ok();
            let small = || u32::try_from(value).ok();
            match key {
                "workers" => job.workers = size()?,
                "producers" => job.producers = size()?,
                "items" => job.items = size()?,
                "passes" => job.passes = size()?,
                "ring" => job.ring = size()?,
                "gap_us" => job.gap_us = small()?,
                "client_cpu" => job.client_cpu = Some(small()?),
                "worker_cpu" => job.worker_cpu = Some(small()?),
                "rate" => job.rate = value,
                "block_us" => job.block_us = small()?,
                "short_us" => job.short_us = small()?,
                "hint" => job.hint = value != 0,
                "rest_ms" => job.rest_ms = value,
                "seed" => job.seed = value,
                "count" => job.count = value != 0,
                _ => return None,
            }
            Some(())
        })?;
        let least = [job.workers, job.producers, job.items, job.passes, job.ring];
        if least.contains(&0) {
            return Err(BadJob::needs("a worker, a producer, an item and a pass"));
        }
        Ok(job)
    }

    fn is_counting(&self) -> bool {
        self.count
    }

    fn counting(mut self) -> Job {
        self.items = self.items.min(100_000);
        (self.passes, self.count) = (1, true);
        self
    }

    fn run_own(&self, allocations: Option<Allocations>) -> Result<Option<Line>, BenchError> {
        run::run_own(self, allocations)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::Job as _;

    #[test]
    fn what_is_written_is_read_back_for_every_case() {
        let cpus = CpuSet::full(4);
        for case in Case::all() {
            for effort in [Effort::Full, Effort::Quick] {
                let job = Job::new(case, "corewise/cpu", &cpus, effort);
                assert_eq!(Job::from_words(job.to_words()), Ok(job.clone()), "{case}");
                let counting = job.counting();
                assert_eq!(Job::from_words(counting.to_words()), Ok(counting));
            }
        }
    }

    #[test]
    fn the_numbers_follow_the_machine() {
        let cpus = CpuSet::full(4);
        let job = |case: &str| Job::new(case.parse().unwrap(), "x", &cpus, Effort::Full);
        assert_eq!(job("oversubscribed/boxed").producers, 16);
        assert_eq!(job("mix/50").rate, 20_000);
        assert_eq!((job("kernel_test").producers, job("kernel_test").items), (4, 50_000));
        let cross = job("pingpong/cross/500us");
        assert_eq!((cross.workers, cross.gap_us), (1, 500));
        assert_eq!((cross.client_cpu, cross.worker_cpu), (Some(3), Some(0)));
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (words, named) in [
            ("runtime=x", "case"),
            ("case=idle", "runtime"),
            ("case=storms runtime=x", "storms"),
            ("case=idle runtime=x fast=1", "fast=1"),
            ("case=idle runtime=x items=many", "items=many"),
            ("case=idle runtime=x items=0", "an item"),
            ("case=idle runtime", "'runtime'"),
        ] {
            let problem = Job::from_words(words.split(' ')).unwrap_err().to_string();
            assert!(problem.contains(named), "{words}: {problem}");
        }
    }
}
