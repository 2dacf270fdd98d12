//! What else the machine does while it is measured.

use std::time::Duration;

use corewise_costs::Noise as Record;
use corewise_topology::Machine;
use rustix::time::{ClockId, clock_gettime};

use super::lab::Lab;

/// Of all CPUs' time: more than a quiet machine's own housekeeping.
const OTHERS_PERCENT: f64 = 3.0;
/// Of all CPUs' time.
const STEAL_PERCENT: f64 = 1.0;
/// A second; a kernel's own threads come and go more seldom.
const LOST_PER_SECOND: f64 = 20.0;

/// Counts from its beginning.
#[derive(Debug)]
pub(super) struct Noise {
    before: Option<Ticks>,
    own: Duration,
}

/// CPU time of all CPUs, in the kernel's ticks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Ticks {
    all: u64,
    busy: u64,
    steal: u64,
}

impl Noise {
    pub(super) fn begin() -> Noise {
        Noise { before: ticks(&stat()), own: own() }
    }

    /// `cpus` of them were measured.
    pub(super) fn end(self, lab: &Lab<'_>, machine: &Machine, cpus: usize) -> Record {
        let after = ticks(&stat());
        let own = own().saturating_sub(self.own).as_secs_f64() * ticks_per_second();
        let mut record = Record {
            involuntary_switches_per_second: round(lab.lost_per_second()),
            ..Record::default()
        };
        let mut said = Vec::new();
        match self.before.zip(after) {
            Some((before, after)) if after.all > before.all => {
                let all = (after.all - before.all) as f64;
                let busy = after.busy.saturating_sub(before.busy) as f64;
                record.others_percent = round((busy - own).max(0.0) / all * 100.0);
                let steal = after.steal.saturating_sub(before.steal) as f64;
                record.steal_percent = round(steal / all * 100.0);
            }
            _ => said.push("the system doesn't tell what else ran".to_owned()),
        }
        if let Some(quota) = machine.cpu_quota().filter(|quota| quota.cpus() < cpus as f64) {
            said.push(format!("the process may use {} CPUs' time of {cpus}", round(quota.cpus())));
        }
        if record.others_percent > OTHERS_PERCENT {
            said.push(format!(
                "other processes took {} % of the CPUs' time",
                record.others_percent
            ));
        }
        if record.steal_percent > STEAL_PERCENT {
            said.push(format!("the hypervisor took {} % of the CPUs' time", record.steal_percent));
        }
        if record.involuntary_switches_per_second > LOST_PER_SECOND {
            let often = record.involuntary_switches_per_second;
            said.push(format!("a measuring thread lost its CPU {often} times a second"));
        }
        record.quiet = said.is_empty();
        record.said = said.join("; ");
        record
    }
}

fn round(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

fn stat() -> String {
    std::fs::read_to_string("/proc/stat").unwrap_or_default()
}

/// CPU time of this process.
fn own() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    let seconds = Duration::from_secs(u64::try_from(time.tv_sec).unwrap_or(0));
    seconds + Duration::from_nanos(u64::try_from(time.tv_nsec).unwrap_or(0))
}

fn ticks_per_second() -> f64 {
    // SAFETY: it takes a number.
    let ticks = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    if ticks > 0 { ticks as f64 } else { 100.0 }
}

/// The first line of `/proc/stat`: user, nice, system, idle, iowait, irq, softirq, steal; guests' time
/// is in the first two.
fn ticks(stat: &str) -> Option<Ticks> {
    let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let fields: Vec<u64> = line.split_whitespace().map_while(|word| word.parse().ok()).collect();
    let of = |at: usize| fields.get(at).copied().unwrap_or(0);
    let (idle, steal) = (of(3) + of(4), of(7));
    let busy = of(0) + of(1) + of(2) + of(5) + of(6);
    (fields.len() >= 4).then_some(Ticks { all: busy + idle + steal, busy, steal })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_those_of_all_cpus() {
        let stat = "cpu  10 2 3 100 5 1 1 7 4 0\ncpu0 1 1 1 1 1 1 1 1 1 1\n";
        assert_eq!(ticks(stat), Some(Ticks { all: 129, busy: 17, steal: 7 }));
        assert_eq!(ticks("cpu  1 2 3 4\n"), Some(Ticks { all: 10, busy: 6, steal: 0 }));
        assert_eq!(ticks(""), None);
        assert_eq!(ticks("cpu  x\n"), None);
    }
}
