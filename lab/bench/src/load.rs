//! Other load of the machine during a measurement, which is printed beside the figures.

use procfs::process::Process;
use procfs::{CurrentSI, KernelStats};

/// CPU time so far, in the kernel's ticks: of all CPUs, idle or not; the busy part; the part that
/// the host stole. It also has that of this process and of the children for which it has waited.
type Ticks = [u64; 4];

/// CPU time in seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Spent {
    /// Time of all CPUs, idle or not.
    pub all: f64,
    /// Time that other processes used.
    pub others: f64,
    /// Time that the host took.
    pub stolen: f64,
}

/// CPU time since its creation.
#[derive(Debug)]
pub struct Load(Option<Ticks>);

impl Load {
    /// Begins to watch.
    pub fn watch() -> Load {
        Load(now())
    }

    /// Returns the CPU time since then, or `None` if the system doesn't report it.
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
    // The first two include guests' time.
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
