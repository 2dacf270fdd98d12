//! One run, as text: all that the program which runs it must know.

use std::fmt;

use crate::blockmq::case::{Case, Class, Device, Load};
use crate::blockmq::run;
use crate::error::BenchError;
use crate::line::Line;
use crate::meter::Allocations;
use crate::process;
use crate::words::{self, BadJob, Effort};

/// Bytes of a request.
const BYTES: u32 = 4096;
/// Reads in flight for each completion thread.
const DEPTH: u32 = 4;

/// One run. See the [module above](crate::blockmq) for what each number means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    /// Which case.
    pub case: Case,
    /// On what: `corewise`, `before`, `mutex`, `spin`, `unchecked`, `corewise-polling`, `fio`.
    pub runtime: String,
    /// Requests, or holds, of the measured pass.
    pub items: usize,
    /// Bytes of a request.
    pub bytes: u32,
    /// Requests that are in flight, for each completion thread.
    pub depth: u32,
    /// Microseconds before each hold, and in it.
    pub gap_us: u32,
    /// Milliseconds for which a load is kept up.
    pub length_ms: u32,
    /// Count allocations, and report them alone.
    pub count: bool,
}

impl Job {
    /// The run of a case.
    pub fn new(case: Case, runtime: &str, effort: Effort) -> Job {
        let pick = |full: usize, short: usize| if effort == Effort::Quick { short } else { full };
        let items = match case {
            // Where allocations are counted; else it takes as long as it is told.
            Case::SeqRead { .. } => 20_000,
            Case::Io(Load { device: Device::File, .. }) => 20_000,
            Case::Io(_) => 1_000_000,
            Case::Hold { .. } | Case::QuiesceAll { .. } => pick(1_000, 200),
            Case::Tags { submitters, depth } if depth < submitters.into() => pick(50_000, 20_000),
            Case::Tags { .. } => pick(2_000_000, 500_000),
        };
        let length_ms = match (effort, case) {
            (Effort::Quick, Case::SeqRead { .. }) => 200,
            (Effort::Quick, _) => 400,
            (Effort::Full, _) => 1_000,
        };
        let runtime = runtime.to_owned();
        let (bytes, depth, gap_us) = (BYTES, DEPTH, 1_000);
        Job { case, runtime, items, bytes, depth, gap_us, length_ms, count: false }
    }
}

impl process::Job for Job {
    fn asked(&self) -> (&dyn fmt::Display, &str) {
        (&self.case, &self.runtime)
    }

    fn numbers(&self) -> Vec<(&'static str, u64)> {
        vec![
            ("items", self.items as u64),
            ("bytes", u64::from(self.bytes)),
            ("depth", u64::from(self.depth)),
            ("gap_us", u64::from(self.gap_us)),
            ("length_ms", u64::from(self.length_ms)),
            ("count", u64::from(self.count)),
        ]
    }

    fn from_words<W: AsRef<str>>(words: impl IntoIterator<Item = W>) -> Result<Job, BadJob> {
        let none = Case::published(Class::Ordinary);
        let mut job =
            Job { items: 1, depth: 1, gap_us: 0, length_ms: 0, ..Job::new(none, "", Effort::Full) };
        (job.case, job.runtime) = words::read(words, |key, value| {
            let small = || u32::try_from(value).ok();
            match key {
                "items" => job.items = usize::try_from(value).ok()?,
                "bytes" => job.bytes = small()?,
                "depth" => job.depth = small()?,
                "gap_us" => job.gap_us = small()?,
                "length_ms" => job.length_ms = small()?,
                "count" => job.count = value != 0,
                _ => return None,
            }
            Some(())
        })?;
        if job.items == 0 || job.depth == 0 {
            return Err(BadJob::needs("an item, and one in flight"));
        }
        if job.bytes == 0 || !job.bytes.is_multiple_of(512) {
            return Err(BadJob::needs("requests of whole blocks of 512 bytes"));
        }
        Ok(job)
    }

    fn is_counting(&self) -> bool {
        self.count
    }

    fn counting(self) -> Job {
        Job { count: true, ..self }
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
        for case in Class::ALL.into_iter().flat_map(Case::all) {
            for effort in [Effort::Full, Effort::Quick] {
                let job = Job::new(case, "corewise", effort);
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
            ("case=freeze/load", "runtime"),
            ("case=freeze runtime=x", "freeze"),
            ("case=freeze/load runtime=x fast=1", "fast=1"),
            ("case=freeze/load runtime=x items=0", "an item"),
            ("case=freeze/load runtime=x bytes=100", "512"),
        ] {
            let problem = Job::from_words(words.split(' ')).unwrap_err().to_string();
            assert!(problem.contains(named), "{words}: {problem}");
        }
    }
}
