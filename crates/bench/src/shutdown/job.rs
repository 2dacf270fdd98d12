//! One run, as text: all that the program which runs it must know.

use std::fmt;

use crate::error::BenchError;
use crate::line::Line;
use crate::meter::Allocations;
use crate::process;
use crate::shutdown::case::{Case, Shape};
use crate::shutdown::run;
use crate::words::{self, BadJob, Effort};

/// Steps of a quick callback: about 10 µs.
const QUICK_STEPS: u32 = 16_000;
/// The shortest and the longest slow callback, in milliseconds.
const SLOW_MS: (u32, u32) = (100, 5_000);
/// The same for a look.
const LOOK_SLOW_MS: (u32, u32) = (10, 500);

/// One run. See the [module above](crate::shutdown) for what each number means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    /// Which case.
    pub case: Case,
    /// On what: `corewise`, `serial`, `before`, `tokio`.
    pub runtime: String,
    /// Shutdowns that are measured.
    pub passes: usize,
    /// Steps of a quick callback.
    pub quick_steps: u32,
    /// The shortest slow callback, in milliseconds.
    pub shortest_ms: u32,
    /// The longest one.
    pub longest_ms: u32,
    /// Of which devices are slow.
    pub seed: u64,
}

impl Job {
    /// The run of a case.
    pub fn new(case: Case, runtime: &str, effort: Effort) -> Job {
        let quick = effort == Effort::Quick;
        let passes = match case {
            // Some tenths of a second of them.
            Case::Graph { slow: 0, devices, .. } => {
                (if quick { 25_000 } else { 100_000 } / devices.max(1)).clamp(2, 50)
            }
            _ => 1,
        };
        let (shortest_ms, longest_ms) = if quick { LOOK_SLOW_MS } else { SLOW_MS };
        let runtime = runtime.to_owned();
        Job { case, runtime, passes, quick_steps: QUICK_STEPS, shortest_ms, longest_ms, seed: 1 }
    }
}

impl process::Job for Job {
    fn asked(&self) -> (&dyn fmt::Display, &str) {
        (&self.case, &self.runtime)
    }

    fn numbers(&self) -> Vec<(&'static str, u64)> {
        vec![
            ("passes", self.passes as u64),
            ("quick_steps", u64::from(self.quick_steps)),
            ("shortest_ms", u64::from(self.shortest_ms)),
            ("longest_ms", u64::from(self.longest_ms)),
            ("seed", self.seed),
        ]
    }

    fn from_words<W: AsRef<str>>(words: impl IntoIterator<Item = W>) -> Result<Job, BadJob> {
        let none = Case::Graph { shape: Shape::Flat, devices: 1, slow: 0 };
        let mut job = Job { passes: 1, quick_steps: 0, ..Job::new(none, "", Effort::Full) };
        (job.case, job.runtime) = words::read(words, |key, value| {
            let small = || u32::try_from(value).ok();
            match key {
                "passes" => job.passes = usize::try_from(value).ok()?,
                "quick_steps" => job.quick_steps = small()?,
                "shortest_ms" => job.shortest_ms = small()?,
                "longest_ms" => job.longest_ms = small()?,
                "seed" => job.seed = value,
                _ => return None,
            }
            Some(())
        })?;
        if job.passes == 0 {
            return Err(BadJob::needs("a pass"));
        }
        if job.shortest_ms == 0 || job.longest_ms < job.shortest_ms {
            return Err(BadJob::needs("slow callbacks of a millisecond or more, the longest last"));
        }
        Ok(job)
    }

    fn run_own(&self, _: Option<Allocations>) -> Result<Option<Line>, BenchError> {
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
                assert_eq!(Job::from_words(job.to_words()), Ok(job.clone()), "{case}");
                assert!(!job.counting().is_counting());
            }
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (words, named) in [
            ("runtime=x", "case"),
            ("case=flat/5/0", "runtime"),
            ("case=flat/5 runtime=x", "flat/5"),
            ("case=flat/5/0 runtime=x fast=1", "fast=1"),
            ("case=flat/5/0 runtime=x passes=0", "a pass"),
            ("case=flat/5/0 runtime=x shortest_ms=0", "millisecond"),
            ("case=flat/5/0 runtime=x shortest_ms=7 longest_ms=6", "longest"),
        ] {
            let problem = Job::from_words(words.split(' ')).unwrap_err().to_string();
            assert!(problem.contains(named), "{words}: {problem}");
        }
    }
}
