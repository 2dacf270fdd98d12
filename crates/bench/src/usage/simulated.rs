//! What the simulated machine has done so far.

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
