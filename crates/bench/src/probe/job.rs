//! One run: a case, a design, and every number that the program which runs it must know.

use std::fmt;
use std::time::Duration;

use crate::error::BenchError;
use crate::line::Line;
use crate::meter::Allocations;
use crate::probe::case::Case;
use crate::probe::device::Pattern;
use crate::probe::run;
use crate::process;
use crate::words::{self, BadJob, Effort};

/// One run. See the [module above](crate::probe) for what each number means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    /// Which case.
    pub case: Case,
    /// On what: `corewise`, `before`, `nested`, `threads`.
    pub runtime: String,
    /// What a probe does.
    pub pattern: Pattern,
    /// How often all devices are brought up.
    pub passes: usize,
}

/// CPU time of all probes of one pass.
const MOST_BURNT: Duration = Duration::from_secs(5);
const MOST_BURNT_QUICK: Duration = Duration::from_secs(2);
/// A run has as many passes as come to about that much CPU time, so that a run of three devices isn't
/// over at once.
const BURNT_IN_ALL: Duration = Duration::from_millis(500);

impl Job {
    /// The run of a case.
    pub fn new(case: Case, runtime: &str, effort: Effort) -> Job {
        let most = if effort == Effort::Quick { MOST_BURNT_QUICK } else { MOST_BURNT };
        let devices = case.devices();
        let (pattern, passes) = match case {
            Case::Overhead(_) => (Pattern::NOTHING, 10),
            _ => {
                let pattern = Pattern::of(devices, most);
                let pass = pattern.cpu().as_secs_f64() * devices as f64;
                (pattern, (BURNT_IN_ALL.as_secs_f64() / pass).round().max(1.0) as usize)
            }
        };
        Job { case, runtime: runtime.to_owned(), pattern, passes }
    }
}

impl process::Job for Job {
    fn asked(&self) -> (&dyn fmt::Display, &str) {
        (&self.case, &self.runtime)
    }

    fn numbers(&self) -> Vec<(&'static str, u64)> {
        let whole = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        vec![
            ("pieces", u64::from(self.pattern.pieces)),
            ("burn_ns", whole(self.pattern.burn)),
            ("wait_ns", whole(self.pattern.wait)),
            ("passes", self.passes as u64),
        ]
    }

    fn from_words<W: AsRef<str>>(words: impl IntoIterator<Item = W>) -> Result<Job, BadJob> {
        let (mut pattern, mut passes) = (Pattern::NOTHING, 1);
        let (case, runtime) = words::read(words, |key, value| {
            match key {
                "pieces" => pattern.pieces = u32::try_from(value).ok()?,
                "burn_ns" => pattern.burn = Duration::from_nanos(value),
                "wait_ns" => pattern.wait = Duration::from_nanos(value),
                "passes" => passes = usize::try_from(value).ok()?,
                _ => return None,
            }
            Some(())
        })?;
        if passes == 0 {
            return Err(BadJob::needs("a pass"));
        }
        Ok(Job { case, runtime, pattern, passes })
    }

    fn run_own(&self, _allocations: Option<Allocations>) -> Result<Option<Line>, BenchError> {
        run::run_own(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::Job as _;

    #[test]
    fn what_is_written_is_read_back_for_every_case() {
        for case in Case::all() {
            for effort in [Effort::Full, Effort::Quick] {
                let job = Job::new(case, "corewise", effort);
                assert_eq!(Job::from_words(job.to_words()), Ok(job), "{case}");
            }
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (words, named) in [
            ("runtime=x", "case"),
            ("case=devices/3", "runtime"),
            ("case=disks runtime=x", "disks"),
            ("case=devices/3 runtime=x fast=1", "fast=1"),
            ("case=devices/3 runtime=x passes=0", "a pass"),
        ] {
            let problem = Job::from_words(words.split(' ')).unwrap_err().to_string();
            assert!(problem.contains(named), "{words}: {problem}");
        }
    }
}
