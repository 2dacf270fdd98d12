//! What else the machine does meanwhile: a figure that was measured beside others' work says so.

use std::fs;

/// CPU time of all CPUs so far, in the kernel's ticks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Ticks {
    all: u64,
    busy: u64,
    stolen: u64,
    /// Of this process and of the children that it has waited for.
    own: u64,
}

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
        // SAFETY: it takes a number.
        let ticks = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
        let per_second = if ticks > 0 { ticks as f64 } else { 100.0 };
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
    (fields.len() >= 4).then_some(Ticks { all: busy + idle + stolen, busy, stolen, own })
}

fn spent(before: Ticks, after: Ticks, per_second: f64) -> Spent {
    let since = |of: fn(&Ticks) -> u64| of(&after).saturating_sub(of(&before)) as f64 / per_second;
    let (busy, own) = (since(|ticks| ticks.busy), since(|ticks| ticks.own));
    let (all, stolen) = (since(|ticks| ticks.all), since(|ticks| ticks.stolen));
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
        assert_eq!(before, Ticks { all: 1_047, busy: 135, stolen: 7, own: 60 });
        let after = Ticks { all: 2_047, busy: 335, stolen: 17, own: 160 };
        assert_eq!(spent(before, after, 100.0), Spent { all: 10.0, others: 1.0, stolen: 0.1 });
        assert!(ticks("", own).is_none() && ticks("cpu  x\n", own).is_none());
        assert!(now().is_some(), "this machine has them");
    }
}
