//! What else the machine does meanwhile: a figure that was measured beside others' work says so.

use std::fs;

/// CPU time so far, in the kernel's ticks: of all CPUs, idle or not; busy; stolen by the host; and of this process and of
/// the children that it has waited for.
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
        let per_second = rustix::param::clock_ticks_per_second() as f64;
        Some(spent(self.0?, now()?, per_second)).filter(|spent| spent.all > 0.0)
    }
}

fn now() -> Option<Ticks> {
    let read = |file| fs::read_to_string(file).ok();
    ticks(&read("/proc/stat")?, &read("/proc/self/stat")?)
}

/// The first line of `/proc/stat`: user, nice, system, idle, iowait, irq, softirq, steal; guests' time
/// is in the first two.
fn ticks(stat: &str, own: &str) -> Option<Ticks> {
    let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let fields: Vec<u64> = line.split_whitespace().map_while(|word| word.parse().ok()).collect();
    let of = |at: usize| fields.get(at).copied().unwrap_or(0);
    let (idle, stolen) = (of(3) + of(4), of(7));
    let busy = of(0) + of(1) + of(2) + of(5) + of(6);
    // The second field is the name in parentheses, which may hold anything; utime is the 14th.
    let (_, behind) = own.rsplit_once(')')?;
    let times = behind.split_whitespace().skip(11).take(4).map(|n| n.parse::<u64>().unwrap_or(0));
    let own = times.sum();
    (fields.len() >= 4).then_some([busy + idle + stolen, busy, stolen, own])
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
    fn what_is_neither_idle_nor_own_is_others() {
        let stat = "cpu  100 10 20 900 5 3 2 7 0 0\ncpu0 1 2 3\n";
        let own = "12 (a (b) c) S 1 1 1 0 -1 0 0 0 0 0 30 20 5 5 20 0 9";
        let before = ticks(stat, own).unwrap();
        assert_eq!(before, [1_047, 135, 7, 60]);
        let after = [2_047, 335, 17, 160];
        assert_eq!(spent(before, after, 100.0), Spent { all: 10.0, others: 1.0, stolen: 0.1 });
        assert!(ticks("", own).is_none() && ticks("cpu  x\n", own).is_none());
        assert!(now().is_some(), "this machine has them");
    }
}
