//! The report of a torture.

use std::fmt;

use super::check::{Check, Failure};

/// The acts and findings on one machine.
#[derive(Debug, Clone)]
pub(crate) struct Phase {
    /// The machine, in the words of the program's `--from`.
    pub(crate) machine: String,
    /// Duration in seconds.
    pub(crate) seconds: f64,
    /// Threads that called: one for each CPU.
    pub(crate) callers: usize,
    /// Number of calls of each kind.
    pub(crate) kinds: Vec<(&'static str, u64)>,
    /// Calls that were accepted, one for each CPU that was reached.
    pub(crate) accepted: u64,
    /// Functions run, by their own count.
    pub(crate) ran: u64,
    /// Times that a CPU refused because it was offline.
    pub(crate) refused: u64,
    /// Handlers that panicked, on purpose.
    pub(crate) panics: u64,
    /// CPUs taken out and in for calls alone.
    pub(crate) leaves: u64,
    /// CPUs taken out and in by the machine's mask.
    pub(crate) follows: u64,
    /// Times that the system took a CPU offline and online.
    pub(crate) plugs: u64,
    /// Reason why the system took none; `None` if it did, or wasn't to.
    pub(crate) not_plugged: Option<String>,
    /// The checks that failed.
    pub(super) failures: Vec<Failure>,
}

/// The findings of a torture.
#[derive(Debug, Clone)]
pub(crate) struct Report {
    /// Seed of each thread's choices.
    pub(crate) seed: u64,
    /// One phase for each machine.
    pub(crate) phases: Vec<Phase>,
}

impl Report {
    /// Returns true if any check failed.
    pub(crate) fn failed(&self) -> bool {
        self.phases.iter().any(|phase| !phase.failures.is_empty())
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}: {:.1} s, {} callers", self.machine, self.seconds, self.callers)?;
        for (name, times) in &self.kinds {
            writeln!(f, "  {times:>10}  {name}")?;
        }
        let lines = [
            (self.accepted, "calls accepted, one for each CPU reached"),
            (self.refused, "refused, the CPU being offline"),
            (self.ran, "functions run"),
            (self.panics, "of them panicked, on purpose"),
            (self.leaves, "times a CPU left and joined for calls alone"),
            (self.follows, "times by the machine's mask"),
            (self.plugs, "times by the system"),
        ];
        for (number, what) in lines {
            writeln!(f, "  {number:>10}  {what}")?;
        }
        if let Some(why) = &self.not_plugged {
            writeln!(f, "  the system took no CPU: {why}")?;
        }
        if self.failures.is_empty() {
            return writeln!(f, "  all {} checks held", Check::ALL.len());
        }
        for failure in &self.failures {
            writeln!(f, "  FAILED {} times: {}", failure.times, failure.check)?;
            for found in &failure.first {
                writeln!(f, "    {found}")?;
            }
        }
        Ok(())
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for phase in &self.phases {
            phase.fmt(f)?;
        }
        writeln!(f, "seed {}", self.seed)
    }
}
