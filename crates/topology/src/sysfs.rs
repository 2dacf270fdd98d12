//! Reader of the `devices/system` level of a sysfs tree, live or saved.
//!
//! Files: `Documentation/ABI/stable/sysfs-devices-system-cpu` and `.../sysfs-devices-node` of the
//! Linux kernel. A missing file is a fact that isn't reported. A file that can't be read, or has
//! unexpected content, is an error that names it.

use crate::cpuset::CpuId;
use std::fs;
use std::path::{Path, PathBuf};

use crate::cpuset::CpuSet;
use crate::error::TopologyError;
use crate::facts::{CLUSTER_LEVEL, Key, RawCpu, RawKind, RawMachine};
use crate::files::{is_absent, text};
use crate::topology::{Source, Topology};

type Result<T, E = TopologyError> = std::result::Result<T, E>;

impl Topology {
    /// Reads a saved sysfs tree. `dir` holds `sys/devices/system` (a copied root, or an unpacked
    /// archive of `hwloc-gather-topology`), or `devices/system` (a copied `/sys`), or `cpu` (the
    /// `devices/system` level itself). Each CPU is allowed; [`Topology::with_allowed`] narrows
    /// that.
    ///
    /// # Errors
    /// If `dir` is no sysfs tree, has no CPU, or holds a file with unexpected content; the error
    /// names the file.
    pub fn from_sysfs(dir: impl AsRef<Path>) -> Result<Topology, TopologyError> {
        let dir = dir.as_ref();
        let raw = read(&system_dir(dir)?, &CpuSet::new())?;
        raw.into_topology(Source::Sysfs(dir.to_owned()))
    }
}

/// Returns the `devices/system` of the saved tree in `dir`.
pub(crate) fn system_dir(dir: &Path) -> Result<PathBuf> {
    ["sys/devices/system", "devices/system", ""]
        .into_iter()
        .map(|inner| dir.join(inner))
        .find(|system| system.join("cpu").is_dir())
        .ok_or_else(|| TopologyError::NotSysfs { path: dir.to_owned() })
}

/// Returns the CPUs that are online now, if the tree lists them, and those that are isolated.
///
/// Only the list counts: the `online` file of a CPU that is being brought up says 0 for a moment
/// longer than the kernel takes to announce it.
pub(crate) fn state(system: &Path) -> Result<(Option<CpuSet>, Option<CpuSet>)> {
    let cpu_dir = system.join("cpu");
    Ok((cpu_list(&cpu_dir, "online")?, cpu_list(&cpu_dir, "isolated")?))
}

/// Reads the tree at `system` (a `devices/system`). The CPUs in `proven` are known to be online,
/// whatever files say: in a container some are made up (LXCFS numbers the CPUs in `online` from 0).
pub(crate) fn read(system: &Path, proven: &CpuSet) -> Result<RawMachine> {
    let cpu_dir = system.join("cpu");
    // CPUs that are possible but not present have no thread and no facts; they don't count.
    let present = match cpu_list(&cpu_dir, "present")? {
        Some(present) => present,
        None => numbered(&cpu_dir, "cpu")?.into_iter().map(CpuId::new).collect(),
    };
    let present = present.union(proven);
    let online = cpu_list(&cpu_dir, "online")?;
    let isolated = cpu_list(&cpu_dir, "isolated")?.unwrap_or_default();
    let nodes = nodes(&system.join("node"))?;
    let kinds = kinds(system)?;

    let cpus = present.iter().map(|cpu| {
        let dir = cpu_dir.join(format!("cpu{cpu}"));
        // Either file may be missing from a saved tree; the boot CPU often has none of its own.
        let online = proven.contains(cpu)
            || online.as_ref().is_none_or(|online| online.contains(cpu))
                && text(&dir.join("online"))?.as_deref() != Some("0");
        let mut raw = raw_cpu(cpu, &dir, online, &nodes)?;
        let named = kinds.iter().find(|(_, cpus)| cpus.contains(cpu));
        raw.kind = match named {
            Some((name, _)) => Some(RawKind::Name(name.clone())),
            None => capacity(&dir)?,
        };
        Ok(raw)
    });
    let cpus = cpus.collect::<Result<_>>()?;
    Ok(RawMachine { cpus, nodes: nodes.into_iter().map(|(node, _)| node).collect(), isolated })
}

fn raw_cpu(cpu: CpuId, dir: &Path, online: bool, nodes: &[(u32, CpuSet)]) -> Result<RawCpu> {
    let topology = dir.join("topology");
    let listed = nodes.iter().find(|(_, cpus)| cpus.contains(cpu)).map(|(node, _)| *node);
    let node = match listed {
        Some(node) => Some(node),
        // Nodes list online CPUs only; an offline CPU often keeps the link to its node.
        None => numbered(dir, "node")?.first().copied(),
    };
    let (cache, cluster) = caches(cpu, &dir.join("cache"))?;
    let mut raw = RawCpu {
        cpu,
        core: core(cpu, &topology)?,
        package: package(cpu, &topology)?,
        cache,
        cluster,
        kind: None,
        node,
        online,
    };
    if online {
        // Some sandboxes report CPUs and nothing about them. Such CPUs are cores of their own, in
        // one package.
        raw.core.get_or_insert(Key::Lowest(cpu));
        raw.package.get_or_insert(Key::Ids(vec![0]));
    }
    Ok(raw)
}

/// Reads the core. The list of its threads comes first: `core_id` repeats in each package, and in
/// some machines in each die of a package.
fn core(cpu: CpuId, topology: &Path) -> Result<Option<Key>> {
    for name in ["core_cpus", "thread_siblings"] {
        if let Some(key) = sharers(cpu, topology, &format!("{name}_list"), name)? {
            return Ok(Some(key));
        }
    }
    let Some(core) = number(&topology.join("core_id"))? else { return Ok(None) };
    let die = number(&topology.join("die_id"))?.unwrap_or(0);
    let package = number(&topology.join("physical_package_id"))?.unwrap_or(0);
    Ok(Some(Key::Ids(vec![package, die, core])))
}

/// Reads the package. Here too the list comes first: some architectures report -1 as each id.
fn package(cpu: CpuId, topology: &Path) -> Result<Option<Key>> {
    for name in ["package_cpus", "core_siblings"] {
        if let Some(key) = sharers(cpu, topology, &format!("{name}_list"), name)? {
            return Ok(Some(key));
        }
    }
    Ok(number(&topology.join("physical_package_id"))?.map(|id| Key::Ids(vec![id])))
}

/// Reads the kinds of cores. x86 kernels have separate performance counters (`intel_pmu`) for each
/// of several kinds: a device `cpu_NAME` each, beside `system`.
fn kinds(system: &Path) -> Result<Vec<(String, CpuSet)>> {
    let devices = system.parent().filter(|_| system.ends_with("devices/system"));
    let Some(devices) = devices else { return Ok(Vec::new()) };
    let mut kinds = Vec::new();
    for name in ["cpu_core", "cpu_atom", "cpu_lowpower"] {
        if let Some(cpus) = cpu_list(&devices.join(name), "cpus")? {
            kinds.push((name.to_owned(), cpus));
        }
    }
    Ok(kinds)
}

/// Reads the speed of a CPU, if the kernel knows that CPUs differ: on ARM and RISC-V.
fn capacity(cpu: &Path) -> Result<Option<RawKind>> {
    let path = cpu.join("cpu_capacity");
    let Some(capacity) = number(&path)? else { return Ok(None) };
    match u32::try_from(capacity) {
        Ok(capacity) => Ok(Some(RawKind::Capacity(capacity))),
        Err(_) => Err(content(path, capacity.to_string(), &"expected a capacity such as 1024")),
    }
}

/// The level and the key of a cache.
type Cache = (u32, Key);

/// Reads the unified or data cache of the highest level whose sharers are known, and the one below
/// that.
fn caches(cpu: CpuId, cache: &Path) -> Result<(Option<Cache>, Option<Key>)> {
    // By rising level.
    let mut known: Vec<Cache> = Vec::new();
    for index in numbered(cache, "index")? {
        let dir = cache.join(format!("index{index}"));
        let Some(level) = number(&dir.join("level"))? else { continue };
        let level = u32::try_from(level).map_err(|_| TopologyError::Content {
            path: dir.join("level"),
            found: level.to_string(),
            reason: "expected a cache level such as 3".into(),
        })?;
        let kind = text(&dir.join("type"))?.unwrap_or_default();
        if kind.eq_ignore_ascii_case("instruction") {
            continue;
        }
        let Err(at) = known.binary_search_by_key(&level, |(level, _)| *level) else { continue };
        if let Some(key) = sharers(cpu, &dir, "shared_cpu_list", "shared_cpu_map")? {
            known.insert(at, (level, key));
        }
    }
    let last = known.pop();
    let below = known.pop().filter(|(level, _)| *level >= CLUSTER_LEVEL);
    Ok((last, below.map(|(_, key)| key)))
}

/// Reads the nodes with the CPUs that they list. Empty if the machine reports no NUMA.
fn nodes(dir: &Path) -> Result<Vec<(u32, CpuSet)>> {
    numbered(dir, "node")?
        .into_iter()
        .map(|node| {
            let dir = dir.join(format!("node{node}"));
            let cpus = match cpu_list(&dir, "cpulist")? {
                Some(cpus) => Some(cpus),
                None => cpu_mask(&dir, "cpumap")?,
            };
            Ok((node, cpus.unwrap_or_default()))
        })
        .collect()
}

/// Returns the key of the CPUs that share an object with a CPU: the lowest one, from a list or, in
/// old trees, a mask. A set that lacks the CPU itself is ignored.
fn sharers(cpu: CpuId, dir: &Path, list: &str, mask: &str) -> Result<Option<Key>> {
    let believed = |set: &CpuSet| set.contains(cpu);
    let mut set = cpu_list(dir, list)?.filter(believed);
    if set.is_none() {
        set = cpu_mask(dir, mask)?.filter(believed);
    }
    Ok(set.and_then(|set| set.first()).map(Key::Lowest))
}

fn cpu_mask(dir: &Path, name: &str) -> Result<Option<CpuSet>> {
    let path = dir.join(name);
    let Some(mask) = text(&path)? else { return Ok(None) };
    match CpuSet::from_mask(&mask) {
        Ok(set) => Ok(Some(set)),
        Err(error) => Err(content(path, mask, &error)),
    }
}

fn cpu_list(dir: &Path, name: &str) -> Result<Option<CpuSet>> {
    let path = dir.join(name);
    let Some(list) = text(&path)? else { return Ok(None) };
    match list.parse() {
        Ok(set) => Ok(Some(set)),
        Err(error) => Err(content(path, list, &error)),
    }
}

fn number(path: &Path) -> Result<Option<i64>> {
    let Some(text) = text(path)? else { return Ok(None) };
    match text.parse() {
        Ok(number) => Ok(Some(number)),
        Err(_) => Err(TopologyError::Content {
            path: path.to_owned(),
            found: text,
            reason: "expected a whole number".into(),
        }),
    }
}

/// Returns the numbers `N` of the entries `prefixN` of a folder, sorted and each once; empty if
/// there is no such folder.
fn numbered(dir: &Path, prefix: &str) -> Result<Vec<u32>> {
    let read = |error| TopologyError::Read { path: dir.to_owned(), error };
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if is_absent(&error) => return Ok(Vec::new()),
        Err(error) => return Err(read(error)),
    };
    let mut numbers = Vec::new();
    for entry in entries {
        let name = entry.map_err(read)?.file_name();
        // `cpufreq`, `cpuidle` and the like are no CPUs.
        let number = name.to_str().and_then(|name| name.strip_prefix(prefix));
        if let Some(number) = number.and_then(|digits| digits.parse::<u32>().ok()) {
            if number > CpuSet::MAX_CPU {
                return Err(content(
                    dir.join(&name),
                    name.to_string_lossy().into_owned(),
                    &format!("the highest number is {}", CpuSet::MAX_CPU),
                ));
            }
            numbers.push(number);
        }
    }
    numbers.sort_unstable();
    numbers.dedup();
    Ok(numbers)
}

fn content(path: PathBuf, found: String, reason: &dyn ToString) -> TopologyError {
    TopologyError::Content { path, found, reason: reason.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cpu_that_is_proven_to_be_online_is_so_whatever_the_lists_say() {
        let tree = tempfile::tempdir().unwrap();
        for (file, text) in [
            ("online", "0"),
            ("present", "0-5"),
            ("cpu5/online", "0"),
            ("cpu5/topology/core_cpus_list", "1,5"),
            ("cpu1/topology/core_cpus_list", "1,5"),
        ] {
            let file = tree.path().join("cpu").join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        }
        let topology = |proven: &str| {
            let raw = read(tree.path(), &proven.parse().unwrap()).unwrap();
            raw.into_topology(Source::Live).unwrap()
        };
        assert_eq!(topology("").online().to_string(), "0");
        let found = topology("1,5,24");
        assert_eq!(found.online().to_string(), "0-1,5,24");
        assert_eq!(found.cpu_set().to_string(), "0-5,24");
        let core = |cpu| found.cpu(CpuId::new(cpu)).unwrap().core.unwrap();
        assert_eq!(core(1), core(5));
        assert_ne!(core(1), core(24), "of which nothing is known but that it runs");
    }
}
