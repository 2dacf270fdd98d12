//! What the simulated machine has done so far.

use std::io;
use std::time::Duration;

use super::Usage;

impl Usage {
    /// Marks the moment for the simulator's report, too.
    pub(crate) fn now() -> Usage {
        let switches = corewise_sim::mark();
        let cpu = Duration::from_nanos(corewise_sim::process_time());
        Usage { cpu, voluntary_switches: switches, peak_rss: 0 }
    }
}

/// CPU time of the calling thread.
pub(crate) fn thread_cpu() -> Duration {
    Duration::from_nanos(corewise_sim::thread_time())
}

/// How many threads there are.
pub(crate) fn threads() -> Option<u64> {
    Some(corewise_sim::threads() as u64)
}

/// How long the thread that made it has been ready to run without running. No other thread may read
/// it.
#[derive(Debug)]
pub struct RunDelay(());

impl RunDelay {
    /// Of the calling thread.
    ///
    /// # Errors
    /// None.
    pub fn of_this_thread() -> io::Result<RunDelay> {
        Ok(RunDelay(()))
    }

    /// In all, so far, in nanoseconds.
    ///
    /// # Errors
    /// None.
    pub fn read(&self) -> io::Result<u64> {
        Ok(corewise_sim::run_delay())
    }
}
