//! The memory that the machine has, and that the process's cgroups leave to it: `memory.max` of cgroup version 2,
//! `memory.limit_in_bytes` of version 1.
//!
//! Formats: `proc(5)`, the kernel's `admin-guide/cgroup-v2.rst`, `admin-guide/cgroup-v1/memory.rst`.

use std::path::Path;

use crate::cgroup::{self, Controller};
use crate::sysfs;

/// How many bytes of memory this process may use: those of the machine or, where that is less, the limit of its cgroup or of one
/// above it. `None` where the system doesn't say. Reads files, so it may block.
pub fn memory() -> Option<u64> {
    let text = |path: &Path| sysfs::text(path).ok().flatten();
    let machine = text(Path::new("/proc/meminfo")).and_then(|info| total(&info));
    let chains = cgroup::tables().map_or_else(Vec::new, |(memberships, mounts)| {
        cgroup::chains(&memberships, &mounts, Controller::Memory)
    });
    let limits = chains.iter().flatten().flat_map(|group| {
        ["memory.max", "memory.limit_in_bytes"].map(|file| text(&group.join(file)))
    });
    limits.flatten().filter_map(|text| limit(&text)).chain(machine).min()
}

/// The machine's memory, of `/proc/meminfo`.
fn total(info: &str) -> Option<u64> {
    let line = info.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix("kB")?.trim_end().parse::<u64>().ok()?.checked_mul(1024)
}

/// A limit in bytes; `None` for `max`.
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
    fn this_process_may_use_some_memory() {
        assert!(memory().is_some_and(|bytes| bytes > 1 << 20));
    }
}
