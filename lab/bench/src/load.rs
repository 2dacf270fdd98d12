//! What else the machine does meanwhile: a figure that was measured beside others' work says so.

use procfs::process::Process;
use procfs::{CurrentSI, KernelStats};

/// CPU time so far, in the kernel's ticks: of all CPUs, idle or not; busy; stolen by the host; and
/// of this process and of the children that it has waited for.
type Ticks = [u64; 4];

/// CPU time in seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Spent {
    /// Of all CPUs, idle or not.
    pub all: f64,
    /// What other processes used.
    pub others: f64,
    /// What the host took.
    pub stolen: f64,
}

/// Watches from when it is made.
#[derive(Debug)]
pub struct Load(Option<Ticks>);

impl Load {
    /// From now on.
    pub fn watch() -> Load {
        Load(now())
    }

    /// What was used since then; `None` where the system doesn't tell.
    pub fn spent(&self) -> Option<Spent> {
        let per_second = procfs::ticks_per_second() as f64;
        Some(spent(self.0?, now()?, per_second)).filter(|spent| spent.all > 0.0)
    }
}

fn now() -> Option<Ticks> {
    let all = KernelStats::current().ok()?.total;
    let own = Process::myself().and_then(|own| own.stat()).ok()?;
    let [iowait, irq, softirq, stolen] =
        [all.iowait, all.irq, all.softirq, all.steal].map(Option::unwrap_or_default);
    // Guests' time is in the first two.
    let busy = all.user + all.nice + all.system + irq + softirq;
    let own = own.utime + own.stime + (own.cutime + own.cstime).unsigned_abs();
    Some([busy + all.idle + iowait + stolen, busy, stolen, own])
}

fn spent(before: Ticks, after: Ticks, per_second: f64) -> Spent {
    let since = |at: usize| after[at].saturating_sub(before[at]) as f64 / per_second;
    let [all, busy, stolen, own] = std::array::from_fn(since);
    Spent { all, others: (busy - own).max(0.0), stolen }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_time_that_is_not_own_is_others() {
        let spent = spent([1_047, 135, 7, 60], [2_047, 335, 17, 160], 100.0);
        assert_eq!(spent, Spent { all: 10.0, others: 1.0, stolen: 0.1 });
        assert!(now().is_some(), "this machine has them");
    }
}
