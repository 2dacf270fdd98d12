//! Figures of the simulated machine.

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

/// Returns the CPU time of the calling thread.
pub(crate) fn thread_cpu() -> Duration {
    Duration::from_nanos(corewise_sim::thread_time())
}

/// Returns the number of threads.
pub(crate) fn threads() -> Option<u64> {
    Some(corewise_sim::threads() as u64)
}

/// Returns the nanoseconds for which the calling thread has been ready to run without running.
///
/// # Errors
/// None.
pub fn run_delay() -> io::Result<u64> {
    Ok(corewise_sim::run_delay())
}
