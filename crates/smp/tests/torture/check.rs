//! Checks of the torture, and their findings.

use std::fmt;

use corewise_sync::Mutex;
use corewise_sync::atomic::{AtomicU64, Ordering};

/// One rule that the torture holds calls to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Check {
    /// Writes of the caller before the call are seen by the handler.
    Entry,
    /// Writes of the handler are seen after the wait.
    Exit,
    /// An accepted call runs exactly once on each CPU, and on no other.
    Once,
    /// The call runs on the thread, and the CPU, that was asked for.
    Cpu,
    /// Handlers of one CPU never overlap.
    Overlap,
    /// One caller's calls to one CPU run in its order, of those waited for and of those not.
    Order,
    /// The answer is that of the handler.
    Value,
    /// Each CPU that was asked for is reached or skipped, and one that never leaves is reached.
    Reach,
    /// A CPU that has left runs nothing, and the calls that it accepted have run by then.
    Dead,
    /// Every wait ends, and every call runs, in time.
    Lost,
    /// Each function and each answer is dropped exactly once.
    Leak,
    /// The targets count as many calls as handlers have run.
    Counts,
    /// Handlers run in an atomic section.
    Section,
    /// A CPU leaves and joins at the right places.
    Plug,
}

impl Check {
    /// The list of all checks.
    pub(super) const ALL: [Check; 14] = [
        Check::Entry,
        Check::Exit,
        Check::Once,
        Check::Cpu,
        Check::Overlap,
        Check::Order,
        Check::Value,
        Check::Reach,
        Check::Dead,
        Check::Lost,
        Check::Leak,
        Check::Counts,
        Check::Section,
        Check::Plug,
    ];
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Check::Entry => "a handler didn't see a write from before its call",
            Check::Exit => "the caller didn't see a handler's write after the wait",
            Check::Once => "a call didn't run exactly once",
            Check::Cpu => "a call ran on the wrong CPU",
            Check::Overlap => "two handlers of one CPU overlapped",
            Check::Order => "calls of one caller to one CPU ran out of order",
            Check::Value => "an answer was wrong",
            Check::Reach => "a CPU was left out or refused without cause",
            Check::Dead => {
                "a call ran on a CPU that had left, or after a leave that should have waited for it"
            }
            Check::Lost => "a wait did not end, or a call did not run, in time",
            Check::Leak => "a function or an answer wasn't dropped exactly once",
            Check::Counts => "the targets counted other calls than were run",
            Check::Section => "a handler wasn't in an atomic section",
            Check::Plug => "a CPU could not be taken out or in",
        })
    }
}

/// A check that failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Failure {
    /// The check.
    pub(super) check: Check,
    /// Number of failures.
    pub(super) times: u64,
    /// Descriptions of the first few.
    pub(super) first: Vec<String>,
}

/// Number of failures of a check that are described.
const DESCRIBED: usize = 3;

/// Findings so far.
pub(super) struct Findings {
    /// A: number of failures by check; it orders nothing.
    times: [AtomicU64; Check::ALL.len()],
    /// L: is the lock; guards the descriptions of the first ones.
    first: Mutex<Vec<(Check, String)>>,
}

impl Findings {
    pub(super) fn new() -> Findings {
        Findings { times: Check::ALL.map(|_| AtomicU64::new(0)), first: Mutex::new(Vec::new()) }
    }

    /// Counts a failure.
    #[cold]
    pub(super) fn fail(&self, check: Check, found: impl FnOnce() -> String) {
        let before = self.times[check as usize].fetch_add(1, Ordering::Relaxed);
        if before < DESCRIBED as u64 {
            self.first.lock().push((check, found()));
        }
    }

    /// Counts a failure if the condition doesn't hold.
    pub(super) fn expect(&self, check: Check, holds: bool, found: impl FnOnce() -> String) {
        if !holds {
            self.fail(check, found);
        }
    }

    pub(super) fn failures(&self) -> Vec<Failure> {
        let first = self.first.lock();
        let failed = Check::ALL.into_iter().filter_map(|check| {
            let times = self.times[check as usize].load(Ordering::Relaxed);
            let of_it = first.iter().filter(|(its, _)| *its == check);
            let first = of_it.map(|(_, found)| found.clone()).collect();
            (times > 0).then_some(Failure { check, times, first })
        });
        failed.collect()
    }
}
