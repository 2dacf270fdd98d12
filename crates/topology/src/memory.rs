//! The memory of the machine, and the part that the process's cgroups and its own limits leave to
//! it: `memory.max` of cgroup version 2, `memory.limit_in_bytes` of version 1, `RLIMIT_AS`,
//! `RLIMIT_DATA`.
//!
//! Formats: `proc(5)`, the kernel's `admin-guide/cgroup-v2.rst`,
//! `admin-guide/cgroup-v1/memory.rst`.

use std::path::Path;

use crate::cgroup::{self, Controller};
use crate::files;

/// Returns the bytes of memory that this process may use: the least of several limits. These are
/// the machine's memory, the limits of the process's cgroup and of those above, and what
/// `RLIMIT_AS` and `RLIMIT_DATA` let it map beside its present mappings. Returns `None` if the
/// system doesn't say. Reads files, so it may block.
pub fn memory() -> Option<u64> {
    let text = |path: &Path| files::text(path).ok().flatten();
    let machine = text(Path::new("/proc/meminfo")).and_then(|info| total(&info));
    let chains = cgroup::tables().map_or_else(Vec::new, |(memberships, mounts)| {
        cgroup::chains(&memberships, &mounts, Controller::Memory)
    });
    let limits = chains.iter().flatten().flat_map(|group| {
        ["memory.max", "memory.limit_in_bytes"].map(|file| text(&group.join(file)))
    });
    let own = |file: &str| text(&Path::new("/proc/self").join(file)).unwrap_or_default();
    let mapped = to_be_mapped(&own("limits"), &own("status"));
    limits.flatten().filter_map(|text| limit(&text)).chain(machine).chain(mapped).min()
}

/// Returns the bytes that a process may map beside its present mappings, from `/proc/PID/limits`
/// and `status`. Two limits make an allocation, and with it the process, fail: that of its address
/// space, and that of its private writable memory, which contains heaps and stacks.
fn to_be_mapped(limits: &str, status: &str) -> Option<u64> {
    let limit = |name: &str| {
        let line = limits.lines().find_map(|line| line.strip_prefix(name))?;
        // Soft, hard, unit; `unlimited` is no number.
        line.split_ascii_whitespace().next()?.parse::<u64>().ok()
    };
    let used = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().strip_suffix("kB")?.trim_end().parse::<u64>().ok()?.checked_mul(1024)
    };
    [("Max address space", "VmSize:"), ("Max data size", "VmData:")]
        .into_iter()
        .filter_map(|(name, by)| Some(limit(name)?.saturating_sub(used(by)?)))
        .min()
}

/// Returns the machine's memory, from `/proc/meminfo`.
fn total(info: &str) -> Option<u64> {
    let line = info.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix("kB")?.trim_end().parse::<u64>().ok()?.checked_mul(1024)
}

/// Parses a limit in bytes; returns `None` for `max`.
fn limit(text: &str) -> Option<u64> {
    text.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_of_the_machine_and_the_limit_of_a_group_are_read() {
        let info = "MemTotal:       24576 kB\nMemFree:        1000 kB\n";
        assert_eq!(total(info), Some(24 << 20));
        assert_eq!(total("MemFree: 1 kB\n"), None);
        assert_eq!(limit("536870912\n"), Some(512 << 20));
        assert_eq!(limit("max\n"), None);
    }

    #[test]
    fn limits_of_the_process_leave_what_it_has_not_mapped_yet() {
        let limits = |space: &str, data: &str| {
            format!(
                "Limit                     Soft Limit           Hard Limit           Units     \n\
                 Max cpu time              unlimited            unlimited            seconds   \n\
                 Max data size             {data}            unlimited            bytes     \n\
                 Max address space         {space}            unlimited            bytes     \n"
            )
        };
        let status = "Name:\tcorewise\nVmSize:\t  513060 kB\nVmData:\t   18004 kB\n";
        let left = |space, data| to_be_mapped(&limits(space, data), status);
        assert_eq!(left("unlimited", "unlimited"), None);
        assert_eq!(left("1536000000", "unlimited"), Some(1_536_000_000 - 513_060 * 1024));
        assert_eq!(left("1536000000", "409600000"), Some(409_600_000 - 18_004 * 1024));
        assert_eq!(left("1000", "unlimited"), Some(0), "it has more than that already");
        assert_eq!(to_be_mapped("", ""), None);
    }

    #[test]
    fn this_process_may_use_some_memory() {
        assert!(memory().is_some_and(|bytes| bytes > 1 << 20));
    }
}
