//! What the kernel tells of the machine.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use corewise_costs::Machine;
use corewise_topology::{CpuId, CpuSet, Topology};
use procfs::process::Process;
use procfs::{CpuInfo, Current, Meminfo};

use crate::bench::Effort;

use super::Plan;

fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

/// The machine of these CPUs.
pub(super) fn machine(topology: &Topology, cpus: &[CpuId], plan: &Plan, took: Duration) -> Machine {
    let known: Vec<_> = cpus.iter().filter_map(|cpu| topology.cpu(*cpu)).collect();
    let count = |key: fn(&corewise_topology::Cpu) -> Option<u32>| {
        let mut numbers: Vec<u32> = known.iter().filter_map(|cpu| key(cpu)).collect();
        numbers.sort_unstable();
        numbers.dedup();
        u32::try_from(numbers.len()).unwrap_or(u32::MAX)
    };
    let mut threads: BTreeMap<u32, u32> = BTreeMap::new();
    for core in known.iter().filter_map(|cpu| cpu.core) {
        *threads.entry(core).or_default() += 1;
    }
    let cpuinfo = CpuInfo::current().ok();
    let cpuinfo = cpuinfo.as_ref();
    let first = cpus.first().copied().unwrap_or(CpuId::new(0));
    Machine {
        cpu_model: cpuinfo.and_then(|info| info.model_name(0)).unwrap_or_default().to_owned(),
        architecture: std::env::consts::ARCH.to_owned(),
        cpus: cpus.iter().copied().collect::<CpuSet>().to_string(),
        cpu_count: u32::try_from(cpus.len()).unwrap_or(u32::MAX),
        cores: count(|cpu| cpu.core),
        threads_per_core: threads.values().copied().max().unwrap_or(1),
        last_level_caches: count(|cpu| cpu.llc),
        last_level_cache_bytes: last_level_cache_bytes(first),
        nodes: count(|cpu| cpu.node),
        packages: count(|cpu| cpu.package),
        kernel: format!("Linux {}", read("/proc/sys/kernel/osrelease")),
        hypervisor: hypervisor(cpuinfo.and_then(|info| info.flags(0)).unwrap_or_default()),
        clock_source: read("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
        idle_driver: read("/sys/devices/system/cpu/cpuidle/current_driver"),
        governor: read(&format!("/sys/devices/system/cpu/cpu{first}/cpufreq/scaling_governor")),
        libc: libc_version(),
        date: plan.date.clone(),
        commit: plan.commit.clone(),
        effort: match plan.effort {
            Effort::Full => "full".to_owned(),
            Effort::Quick => "quick".to_owned(),
        },
        took_seconds: (took.as_secs_f64() * 10.0).round() / 10.0,
    }
}

/// Bytes of the highest cache of a CPU; 0 where the system doesn't tell.
pub(super) fn last_level_cache_bytes(cpu: CpuId) -> u64 {
    let folder = format!("/sys/devices/system/cpu/cpu{cpu}/cache");
    let caches = (0..8).map(|index| format!("{folder}/index{index}"));
    let caches = caches.filter_map(|cache| {
        let level: u32 = read(&format!("{cache}/level")).parse().ok()?;
        Some((level, size(&read(&format!("{cache}/size")))?))
    });
    caches.max_by_key(|(level, _)| *level).map_or(0, |(_, bytes)| bytes)
}

/// Bytes of `32768K`.
fn size(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match &text[digits.len()..] {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        _ => return None,
    };
    Some(digits.parse::<u64>().ok()? << shift)
}

/// Bytes of memory that may be taken without pressing others: what is available, and no more than
/// the process's cgroups (version 2) allow.
pub(super) fn available_bytes() -> u64 {
    let memory = Meminfo::current().ok();
    let available = memory.and_then(|memory| memory.mem_available).unwrap_or(0);
    // A limit is a number, or the word "max". In a container its own group is the root.
    let groups = Process::myself().and_then(|own| own.cgroups());
    let groups = groups.map_or_else(|_| Vec::new(), |groups| groups.0);
    let own = groups.iter().find(|group| group.hierarchy == 0);
    let own = own.map_or("", |group| group.pathname.trim_start_matches('/'));
    let limits = Path::new(own)
        .ancestors()
        .map(|group| format!("/sys/fs/cgroup/{}/memory.max", group.display()));
    limits.filter_map(|file| read(&file).parse().ok()).fold(available, u64::min)
}

/// As the firmware calls it. Empty on bare metal.
fn hypervisor(flags: Vec<&str>) -> String {
    let [vendor, product] =
        ["sys_vendor", "product_name"].map(|name| read(&format!("/sys/class/dmi/id/{name}")));
    match format!("{vendor} {product}").trim() {
        _ if !flags.contains(&"hypervisor") => String::new(),
        "" => "unnamed".to_owned(),
        named => named.to_owned(),
    }
}

#[cfg(target_env = "gnu")]
fn libc_version() -> String {
    // SAFETY: it takes nothing, and gives a text that ends in a 0 and lives as long as the program.
    let version = unsafe { std::ffi::CStr::from_ptr(libc::gnu_get_libc_version()) };
    format!("glibc {}", version.to_string_lossy())
}

#[cfg(not(target_env = "gnu"))]
fn libc_version() -> String {
    if cfg!(target_env = "musl") { "musl".to_owned() } else { String::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_are_read_as_the_kernel_writes_them() {
        assert!(available_bytes() > 0, "this one runs somewhere");
        assert_eq!(size("32768K"), Some(32 << 20));
        assert_eq!(
            (size("1M"), size("512"), size(""), size("3X")),
            (Some(1 << 20), Some(512), None, None)
        );
    }
}
