//! The machine that this process runs on: its sysfs, and the part of it that the process may use.
//! Without Linux, the number of CPUs.

use std::path::Path;

use corewise_sync::sys;

use crate::cpuset::CpuSet;
use crate::error::TopologyError;
use crate::facts::{Key, RawCpu, RawMachine};
use crate::quota::{self, CpuQuota};
use crate::topology::{Source, Topology};
use crate::{affinity, cgroup, sysfs};

const SYSTEM: &str = "/sys/devices/system";

impl Topology {
    /// Reads the machine that this process runs on.
    ///
    /// Sysfs has the facts. The calling thread's affinity mask (which threads that it starts
    /// inherit) and the process's cgroup cpuset make [`Topology::allowed`]. If there is no sysfs at
    /// all (some sandboxes), the machine counts as flat: one core for each allowed CPU, one
    /// package, one node. On other systems than Linux it is flat too, and its CPUs are numbered
    /// from 0 ([`Source::Flat`]).
    ///
    /// Reads files, so it may block for a moment; never inside an atomic section.
    ///
    /// # Errors
    /// If a sysfs file is unreadable or has unexpected content, or no CPU may be used.
    pub fn live() -> Result<Topology, TopologyError> {
        if let Some(description) = sys::machine() {
            return described(&description).map(Topology::into_live);
        }
        if !sys::KERNEL_THREADS {
            return flat(None).into_topology(Source::Flat);
        }
        let mask = affinity::current_affinity()?;
        let mut raw = if has_sysfs() {
            sysfs::read(Path::new(SYSTEM), &affinity::proven(None).unwrap_or_default())?
        } else {
            flat(mask.as_ref())
        };
        if let Some(isolated) = cgroup::isolated() {
            raw.isolated = raw.isolated.union(&isolated);
        }
        let topology = raw.into_topology(Source::Live)?;
        match allowed(&topology.cpu_set(), &topology.online(), mask, cgroup::cpuset()) {
            Some(allowed) => topology.with_allowed(&allowed),
            None => Ok(topology),
        }
    }
}

/// Builds the machine that a simulator was given.
fn described(description: &str) -> Result<Topology, TopologyError> {
    match description.split_once(':') {
        Some(("sysfs", dir)) => Topology::from_sysfs(dir),
        #[cfg(feature = "xml")]
        Some(("xml", file)) => Topology::from_xml(file),
        Some(("synthetic", description)) => Topology::synthetic(description),
        _ => Topology::synthetic(description),
    }
}

fn has_sysfs() -> bool {
    Path::new(SYSTEM).join("cpu").is_dir()
}

/// The state that a source reports now. `None` means that it doesn't, and nothing changes.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct LiveState {
    pub(crate) running: Option<CpuSet>,
    pub(crate) allowed: Option<CpuSet>,
    pub(crate) isolated: Option<CpuSet>,
    pub(crate) quota: Option<Option<CpuQuota>>,
}

/// Returns the state that the system reports now about the CPUs of a topology that
/// [`Topology::live`] made.
pub(crate) fn state(topology: &Topology) -> Result<LiveState, TopologyError> {
    if sys::machine().is_some() {
        return Ok(LiveState::default());
    }
    let (running, isolated) =
        if has_sysfs() { sysfs::state(Path::new(SYSTEM))? } else { (None, None) };
    let isolated = match (isolated, cgroup::isolated()) {
        (Some(one), Some(other)) => Some(one.union(&other)),
        (one, other) => one.or(other),
    };
    let running = running.map(|running| {
        // A CPU missing from the list is offline, or the list is made up: threads that may use the
        // CPU tell.
        let missing = topology.allowed().difference(&running);
        if missing.is_empty() { running } else { running.union(&affinity::proven_of(&missing)) }
    });
    let online = running.clone().unwrap_or_else(|| topology.online());
    let mask = affinity::process_affinity(&online.intersection(topology.allowed()));
    let allowed = allowed(&topology.cpu_set(), &online, mask, cgroup::cpuset());
    Ok(LiveState { running, allowed, isolated, quota: Some(quota::quota()) })
}

/// Returns the CPUs that the process may use: its mask, less those that its cpuset excludes. A
/// cpuset lists online CPUs only, so it can't exclude an offline one. If it would leave nothing it
/// is ignored, since the process runs somewhere.
fn allowed(
    all: &CpuSet,
    online: &CpuSet,
    mask: Option<CpuSet>,
    cpuset: Option<CpuSet>,
) -> Option<CpuSet> {
    let narrowed = |mask: &CpuSet, cpuset: &CpuSet| {
        let narrowed = mask.difference(&online.difference(cpuset));
        narrowed.intersects(online).then_some(narrowed)
    };
    match (mask, cpuset) {
        (Some(mask), Some(cpuset)) => Some(narrowed(&mask, &cpuset).unwrap_or(mask)),
        (Some(mask), None) => Some(mask),
        (None, Some(cpuset)) => narrowed(all, &cpuset),
        (None, None) => None,
    }
}

/// Returns a machine of which only the usable CPUs are known.
fn flat(mask: Option<&CpuSet>) -> RawMachine {
    let count = || u32::try_from(sys::cpus()).unwrap_or(u32::MAX).min(CpuSet::MAX_CPU);
    let cpus = mask.cloned().unwrap_or_else(|| CpuSet::full(count()));
    let cpus = cpus.iter().map(|cpu| RawCpu {
        cpu,
        core: Some(Key::Lowest(cpu)),
        package: Some(Key::Ids(vec![0])),
        cache: None,
        cluster: None,
        kind: None,
        node: None,
        online: true,
    });
    RawMachine { cpus: cpus.collect(), nodes: Vec::new(), isolated: CpuSet::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(list: &str) -> CpuSet {
        list.parse().unwrap()
    }

    #[test]
    fn the_cpuset_narrows_the_mask_among_online_cpus_and_never_to_nothing() {
        let (all, online) = (set("0-7"), set("0-6"));
        for (mask, cpuset, wanted) in [
            (Some("0-7"), Some("0-3"), Some("0-3,7")),
            (Some("2-7"), Some("0-3"), Some("2-3,7")),
            (Some("2-3"), None, Some("2-3")),
            (None, Some("0-3"), Some("0-3,7")),
            (Some("4-7"), Some("0-3"), Some("4-7")),
            (None, Some("9"), None),
            (None, None, None),
        ] {
            let found = allowed(&all, &online, mask.map(set), cpuset.map(set));
            assert_eq!(found, wanted.map(set), "{mask:?} {cpuset:?}");
        }
    }

    #[test]
    fn a_machine_without_sysfs_is_flat() {
        let topology = flat(Some(&set("1,3"))).into_topology(Source::Live).unwrap();
        assert_eq!(topology.cpu_set(), set("1,3"));
        assert_eq!((topology.core_count(), topology.package_count()), (2, 1));
        assert_eq!((topology.llcs().len(), topology.nodes()[0].node), (1, 0));
        assert_eq!(topology.llcs()[0].level, None, "no cache is known");
    }
}
