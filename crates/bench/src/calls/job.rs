//! One run: a case, a runtime, and every number that the program which runs it must know.

use std::fmt;

use corewise_topology::CpuSet;

use crate::calls::case::{Case, Pace};
use crate::calls::run;
use crate::error::BenchError;
use crate::line::Line;
use crate::meter::Allocations;
use crate::process;
use crate::words::{self, BadJob, Effort};

const TICK_US: u32 = 4_000;
const INTERVAL_MS: u32 = 20;

/// One run. See the [module above](crate::calls) for what each number means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    /// Which case.
    pub case: Case,
    /// On what: `corewise`, `eventfd`, `tokio`.
    pub runtime: String,
    /// Calls of the measured pass.
    pub items: usize,
    /// Microseconds that the client sleeps before each call.
    pub gap_us: u32,
    /// The client's CPU.
    pub client_cpu: u32,
    /// The called CPU.
    pub server_cpu: u32,
    /// How long the run takes, in milliseconds, where it isn't so many calls.
    pub length_ms: u64,
    /// Microseconds between two moments at which an urgent task wants its core.
    pub tick_us: u32,
    /// Milliseconds of which the longest wait counts.
    pub interval_ms: u32,
    /// Of what is random.
    pub seed: u64,
    /// Count allocations, and report them alone.
    pub count: bool,
}

impl Job {
    /// The run of a case on a machine with these CPUs online.
    pub fn new(case: Case, runtime: &str, cpus: &CpuSet, effort: Effort) -> Job {
        let quick = effort == Effort::Quick;
        let pick = |full: usize, short: usize| if quick { short } else { full };
        let (items, gap_us) = match case {
            Case::HeldSpan(_) => (1, 0),
            Case::RoundTrip(Pace::Hot) => (pick(40_000, 8_000), 0),
            Case::RoundTrip(_) => (pick(2_000, 300), 1_000),
            Case::Broadcast { .. } => (pick(1_000, 150), 1_000),
            Case::Reads => (pick(20_000_000, 4_000_000), 1_000),
            Case::Load(_) => (pick(100_000, 20_000), 0),
        };
        // The first CPU is where others' work lands most often: interrupts, for one. It disturbs
        // the client less than those that wait for it.
        let (first, last) = (cpus.first().unwrap_or(0), cpus.last().unwrap_or(0));
        Job {
            case,
            runtime: runtime.to_owned(),
            items,
            gap_us,
            client_cpu: last,
            server_cpu: first,
            length_ms: pick(6_000, 1_500) as u64,
            tick_us: TICK_US,
            interval_ms: INTERVAL_MS,
            seed: 1,
            count: false,
        }
    }
}

impl process::Job for Job {
    fn asked(&self) -> (&dyn fmt::Display, &str) {
        (&self.case, &self.runtime)
    }

    fn numbers(&self) -> Vec<(&'static str, u64)> {
        vec![
            ("items", self.items as u64),
            ("gap_us", u64::from(self.gap_us)),
            ("client_cpu", u64::from(self.client_cpu)),
            ("server_cpu", u64::from(self.server_cpu)),
            ("length_ms", self.length_ms),
            ("tick_us", u64::from(self.tick_us)),
            ("interval_ms", u64::from(self.interval_ms)),
            ("seed", self.seed),
            ("count", u64::from(self.count)),
        ]
    }

    fn from_words<W: AsRef<str>>(words: impl IntoIterator<Item = W>) -> Result<Job, BadJob> {
        let mut job = Job::new(Case::RoundTrip(Pace::Hot), "", &CpuSet::new(), Effort::Full);
        (job.items, job.length_ms) = (1, 0);
        (job.case, job.runtime) = words::read(words, |key, value| {
            let small = || u32::try_from(value).ok();
            match key {
                "items" => job.items = usize::try_from(value).ok()?,
                "gap_us" => job.gap_us = small()?,
                "client_cpu" => job.client_cpu = small()?,
                "server_cpu" => job.server_cpu = small()?,
                "length_ms" => job.length_ms = value,
                "tick_us" => job.tick_us = small()?,
                "interval_ms" => job.interval_ms = small()?,
                "seed" => job.seed = value,
                "count" => job.count = small()? != 0,
                _ => return None,
            }
            Some(())
        })?;
        if job.items == 0 {
            return Err(BadJob::needs("a call"));
        }
        Ok(job)
    }

    fn is_counting(&self) -> bool {
        self.count
    }

    fn counting(mut self) -> Job {
        (self.gap_us, self.length_ms, self.count) = (0, self.length_ms.min(100), true);
        self
    }

    fn run_own(&self, allocations: Option<Allocations>) -> Result<Option<Line>, BenchError> {
        run::run_own(self, allocations)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calls::case::Way;
    use crate::process::Job as _;

    #[test]
    fn what_is_written_is_read_back_for_every_case() {
        for case in Case::all(4, Way::Lock) {
            for effort in [Effort::Full, Effort::Quick] {
                let job = Job::new(case, "corewise", &CpuSet::full(4), effort);
                assert_eq!(Job::from_words(job.to_words()), Ok(job.clone()), "{case}");
                let counting = job.counting();
                assert_eq!(Job::from_words(counting.to_words()), Ok(counting));
            }
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (words, named) in [
            ("runtime=x", "case"),
            ("case=roundtrip/hot", "runtime"),
            ("case=storms runtime=x", "storms"),
            ("case=roundtrip/hot runtime=x fast=1", "fast=1"),
            ("case=roundtrip/hot runtime=x items=many", "items=many"),
            ("case=roundtrip/hot runtime=x items=0", "a call"),
            ("case=roundtrip/hot runtime", "'runtime'"),
        ] {
            let problem = Job::from_words(words.split(' ')).unwrap_err().to_string();
            assert!(problem.contains(named), "{words}: {problem}");
        }
    }
}
