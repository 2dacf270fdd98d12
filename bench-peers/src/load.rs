//! How much of the machine was somebody else's while runs were made: a figure that was measured
//! beside others' work says so.

use std::fs;
use std::time::Instant;

/// CPU time so far, in the kernel's ticks of 10 ms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Ticks {
    /// Of the whole machine, not idle.
    busy: u64,
    /// Taken by the host.
    stolen: u64,
    /// Of this process and of the children that it has waited for.
    own: u64,
}

const TICKS_PER_SECOND: f64 = 100.0;

fn ticks(stat: &str, own: &str) -> Option<Ticks> {
    let fields: Vec<u64> =
        stat.lines().next()?.split_whitespace().skip(1).map_while(|n| n.parse().ok()).collect();
    // user, nice, system, idle, iowait, irq, softirq, steal
    let [user, nice, system, _, _, irq, softirq, stolen, ..] = *fields else { return None };
    // The second field is the name in parentheses, which may hold anything; utime is the 14th.
    let (_, behind) = own.rsplit_once(')')?;
    let times = behind.split_whitespace().skip(11).take(4).map(|n| n.parse::<u64>().unwrap_or(0));
    Some(Ticks { busy: user + nice + system + irq + softirq, stolen, own: times.sum() })
}

fn now() -> Option<Ticks> {
    let read = |file| fs::read_to_string(file).ok();
    ticks(&read("/proc/stat")?, &read("/proc/self/stat")?)
}

/// Watches from when it is made.
#[derive(Debug)]
pub(crate) struct Load {
    began: Instant,
    before: Option<Ticks>,
    cpus: usize,
}

impl Load {
    pub(crate) fn watch(cpus: usize) -> Load {
        Load { began: Instant::now(), before: now(), cpus }
    }

    /// Parts of all CPU time since then: what others used, and what the host took.
    pub(crate) fn foreign_and_stolen(&self) -> Option<(f64, f64)> {
        let all = self.began.elapsed().as_secs_f64() * self.cpus as f64 * TICKS_PER_SECOND;
        Some(parts(self.before?, now()?, all))
    }
}

fn parts(before: Ticks, after: Ticks, all: f64) -> (f64, f64) {
    let busy = after.busy.saturating_sub(before.busy);
    let foreign = busy.saturating_sub(after.own.saturating_sub(before.own));
    (foreign as f64 / all, after.stolen.saturating_sub(before.stolen) as f64 / all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_neither_idle_nor_own_is_foreign() {
        let stat = "cpu  100 10 20 900 5 3 2 7 0 0\ncpu0 1 2 3\n";
        let own = "12 (a (b) c) S 1 1 1 0 -1 0 0 0 0 0 30 20 5 5 20 0 9";
        let ticks = ticks(stat, own).unwrap();
        assert_eq!(ticks, Ticks { busy: 135, stolen: 7, own: 60 });
        let after = Ticks { busy: 335, stolen: 17, own: 160 };
        assert_eq!(parts(ticks, after, 1000.0), (0.1, 0.01));
    }

    #[test]
    fn this_machine_has_them() {
        assert!(Load::watch(1).foreign_and_stolen().is_some());
    }
}
