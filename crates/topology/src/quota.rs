//! The CPU time that the process's cgroups leave to it: `cpu.max` of cgroup version 2,
//! `cpu.cfs_quota_us` of version 1.
//!
//! A group's quota holds for all groups below it. So the least quota of the process's group and of
//! those above it counts, as far as they can be seen. If no file is found, there is no quota.
//!
//! Formats: the kernel's `admin-guide/cgroup-v2.rst`, `scheduler/sched-bwc.rst`.

use std::fmt;
use std::path::Path;
use std::time::Duration;

use crate::cgroup::{self, Controller};
use crate::files;

/// The CPU time that a process may use in each period, over all its threads. After that the kernel
/// stops them until the next period.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CpuQuota {
    /// Time in each period. Neither field is zero.
    time: Duration,
    period: Duration,
}

impl CpuQuota {
    /// Creates a quota of `time` in each `period`. Returns `None` if one of them is zero: no such
    /// quota exists.
    pub fn new(time: Duration, period: Duration) -> Option<CpuQuota> {
        (!time.is_zero() && !period.is_zero()).then_some(CpuQuota { time, period })
    }

    /// Returns the number of CPUs that the quota is worth.
    pub fn cpus(self) -> f64 {
        self.time.as_nanos() as f64 / self.period.as_nanos() as f64
    }

    /// Returns the number of threads that may compute all the time without being stopped:
    /// [`cpus`](CpuQuota::cpus) rounded down, but at least 1. The rule is that of
    /// [`std::thread::available_parallelism`].
    pub fn whole_cpus(self) -> usize {
        let whole = self.time.as_nanos() / self.period.as_nanos();
        usize::try_from(whole).unwrap_or(usize::MAX).max(1)
    }

    /// Returns true if this quota leaves less than the other.
    fn is_less(self, other: CpuQuota) -> bool {
        let product = |a: Duration, b: Duration| a.as_nanos().saturating_mul(b.as_nanos());
        product(self.time, other.period) < product(other.time, self.period)
    }
}

impl fmt::Display for CpuQuota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rounded = (self.cpus() * 100.0).round() / 100.0;
        // Debug: lengths of time.
        write!(f, "{rounded} CPUs ({:?} in each {:?})", self.time, self.period)
    }
}

/// Returns the quota of this process, if it has one that can be seen.
pub(crate) fn quota() -> Option<CpuQuota> {
    let (memberships, mounts) = cgroup::tables()?;
    find(&memberships, &mounts)
}

fn find(memberships: &str, mounts: &str) -> Option<CpuQuota> {
    let groups = cgroup::chains(memberships, mounts, Controller::Cpu);
    let quotas = groups.iter().flatten().filter_map(|group| read_group(group));
    quotas.reduce(|least, other| if other.is_less(least) { other } else { least })
}

fn read_group(dir: &Path) -> Option<CpuQuota> {
    let read = |name: &str| files::text(&dir.join(name)).ok().flatten();
    if let Some(text) = read("cpu.max") {
        return parse(&text);
    }
    // Version 1, where -1 means no quota.
    let (quota, period) = (read("cpu.cfs_quota_us")?, read("cpu.cfs_period_us")?);
    parse(&format!("{} {}", quota.trim(), period.trim()))
}

/// Parses `150000 100000`: the quota and the period in microseconds. A first word of `max` means
/// none.
fn parse(text: &str) -> Option<CpuQuota> {
    let mut parts =
        text.split_whitespace().map(|part| part.parse().ok().map(Duration::from_micros));
    let (time, period) = (parts.next()??, parts.next()??);
    if parts.next().is_some() { None } else { CpuQuota::new(time, period) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn micros(time: u64, period: u64) -> Option<CpuQuota> {
        CpuQuota::new(Duration::from_micros(time), Duration::from_micros(period))
    }

    /// Creates a hierarchy with these files, and returns its line in `mountinfo`.
    fn tree(kind: &str, root: &str, files: &[(&str, &str)]) -> (tempfile::TempDir, String) {
        let dir = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let (kind, options) = kind.split_once(' ').unwrap_or((kind, "rw"));
        let line =
            format!("31 23 0:28 {root} {} rw - {kind} none {options}\n", dir.path().display());
        (dir, line)
    }

    #[test]
    fn a_quota_is_worth_whole_cpus_rounded_down_and_at_least_one() {
        for (time, whole) in [(1_000, 1), (99_999, 1), (100_000, 1), (199_999, 1), (250_000, 2)] {
            assert_eq!(micros(time, 100_000).unwrap().whole_cpus(), whole, "{time}");
        }
        let quota = micros(150_000, 100_000).unwrap();
        assert_eq!(quota.to_string(), "1.5 CPUs (150ms in each 100ms)");
        assert!(micros(0, 100_000).is_none() && micros(1, 0).is_none());
    }

    #[test]
    fn version_2_takes_the_least_of_the_group_and_of_those_above_it() {
        let (_dir, mounts) = tree(
            "cgroup2",
            "/",
            &[
                ("pod/cpu.max", "200000 100000\n"),
                ("pod/a/cpu.max", "max 100000\n"),
                ("pod/b/cpu.max", "50000 10000\n"),
                ("pod/c/cpu.max", "30000 20000\n"),
                ("free/cpu.max", "max 100000\n"),
            ],
        );
        for (group, wanted) in [
            ("/pod/a", micros(200_000, 100_000)),
            ("/pod/b", micros(200_000, 100_000)),
            ("/pod/c", micros(30_000, 20_000)),
            ("/pod/c/without", micros(30_000, 20_000)),
            ("/free", None),
            ("/", None),
        ] {
            assert_eq!(find(&format!("0::{group}\n"), &mounts), wanted, "{group}");
        }
    }

    #[test]
    fn version_1_reads_the_hierarchy_of_the_cpu_controller_and_no_other() {
        let (_dir, mounts) = tree(
            "cgroup rw,cpu,cpuacct",
            "/",
            &[
                ("cpu.cfs_quota_us", "-1\n"),
                ("cpu.cfs_period_us", "100000\n"),
                ("a/cpu.cfs_quota_us", "350000\n"),
                ("a/cpu.cfs_period_us", "100000\n"),
                ("a/b/cpu.cfs_quota_us", "-1\n"),
                ("a/b/cpu.cfs_period_us", "100000\n"),
            ],
        );
        let (_other, cpuset) = tree("cgroup rw,cpuset", "/", &[("x/cpuset.cpus", "0\n")]);
        let mounts = cpuset + &mounts;
        let found = |text: &str| find(text, &mounts);
        assert_eq!(found("5:cpuset:/x\n4:cpu,cpuacct:/a/b\n0::/\n"), micros(350_000, 100_000));
        assert_eq!(found("5:cpuset:/a\n4:cpu,cpuacct:/\n"), None);
        assert_eq!(found("4:cpuacct:/a\n"), None, "that is another controller");
    }

    #[test]
    fn where_both_versions_are_mounted_the_one_with_the_controller_says_it() {
        let (_two, unified) = tree("cgroup2", "/", &[("s/cgroup.procs", "")]);
        let (_one, legacy) = tree(
            "cgroup rw,cpu",
            "/",
            &[("s/cpu.cfs_quota_us", "100000"), ("s/cpu.cfs_period_us", "50000")],
        );
        let found = find("1:cpu:/s\n0::/s\n", &(unified + &legacy));
        assert_eq!(found, micros(100_000, 50_000));
    }

    #[test]
    fn a_malformed_quota_is_no_quota() {
        for text in
            ["", "\n", "max\n", "max 100000\n", "-1 100000", "5", "1 2 3", "0 100000", "1 0"]
        {
            assert_eq!(parse(text), None, "{text:?}");
        }
        assert_eq!(find("", ""), None);
    }
}
