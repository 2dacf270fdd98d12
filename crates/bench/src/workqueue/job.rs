//! One run: a case, a runtime, and every number that the program which runs it must know.
//!
//! As text it is words `key=value`, which a program in any language reads without a table of its
//! own; [`mod@crate::workqueue`] says what each means.

use std::fmt;

use corewise_topology::CpuSet;

use crate::process;
use crate::workqueue::case::{Case, Items, Placement};

/// How thorough.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effort {
    /// Runs long enough for figures to be published.
    Full,
    /// A look: shorter runs.
    Quick,
}

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

    /// Reads what [`to_words`](process::Job::to_words) writes. A key that is left out is 0, or none; `case` and
    /// `runtime` must be there.
    ///
    /// # Errors
    /// Says which word isn't understood.
    pub fn from_words<W: AsRef<str>>(words: impl IntoIterator<Item = W>) -> Result<Job, BadJob> {
        let (mut case, mut runtime) = (None, None);
        let mut job = Job::new(Case::Idle, "", &CpuSet::new(), Effort::Full);
        (job.workers, job.producers, job.items, job.passes) = (1, 1, 1, 1);
        (job.ring, job.rest_ms) = (1, 0);
        for word in words {
            let word = word.as_ref();
            let bad = || BadJob(format!("'{word}' is no word of a run: key=value is"));
            let (key, value) = word.split_once('=').ok_or_else(bad)?;
            let number = || value.parse::<u64>().map_err(|_| bad());
            let size = || value.parse::<usize>().map_err(|_| bad());
            let small = || value.parse::<u32>().map_err(|_| bad());
            match key {
                "case" => case = Some(value.parse::<Case>().map_err(|no| BadJob(no.to_string()))?),
                "runtime" => runtime = Some(value.to_owned()),
                "workers" => job.workers = size()?,
                "producers" => job.producers = size()?,
                "items" => job.items = size()?,
                "passes" => job.passes = size()?,
                "ring" => job.ring = size()?,
                "gap_us" => job.gap_us = small()?,
                "client_cpu" => job.client_cpu = Some(small()?),
                "worker_cpu" => job.worker_cpu = Some(small()?),
                "rate" => job.rate = number()?,
                "block_us" => job.block_us = small()?,
                "short_us" => job.short_us = small()?,
                "hint" => job.hint = number()? != 0,
                "rest_ms" => job.rest_ms = number()?,
                "seed" => job.seed = number()?,
                "count" => job.count = number()? != 0,
                _ => return Err(bad()),
            }
        }
        job.case = case.ok_or_else(|| BadJob("a run needs a case".to_owned()))?;
        job.runtime = runtime.ok_or_else(|| BadJob("a run needs a runtime".to_owned()))?;
        let least = [job.workers, job.producers, job.items, job.passes, job.ring];
        if least.contains(&0) {
            return Err(BadJob("a run needs a worker, a producer, an item and a pass".to_owned()));
        }
        Ok(job)
    }
}

impl process::Job for Job {
    fn to_words(&self) -> Vec<String> {
        let mut words = vec![format!("case={}", self.case), format!("runtime={}", self.runtime)];
        let flag = u64::from;
        let numbers = [
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
        words.extend(numbers.map(|(key, value)| format!("{key}={value}")));
        let cpus = [("client_cpu", self.client_cpu), ("worker_cpu", self.worker_cpu)];
        words.extend(cpus.iter().filter_map(|(key, cpu)| Some(format!("{key}={}", (*cpu)?))));
        words
    }

    fn counting(mut self) -> Job {
        self.items = self.items.min(100_000);
        (self.passes, self.count) = (1, true);
        self
    }

    fn name(&self) -> String {
        format!("{} on {}", self.case, self.runtime)
    }
}

/// A run isn't understood.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadJob(String);

impl fmt::Display for BadJob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BadJob {}

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
