//! The facts about one machine's CPUs, caches and nodes, whatever their source.

use std::fmt;
use std::path::PathBuf;

use crate::cpuset::{CpuId, CpuSet};
use crate::error::TopologyError;

/// The source of a [`Topology`]. [`Display`](fmt::Display) writes `live`, `sysfs:DIR`, `xml:FILE`
/// or `synthetic:SPEC`, the words that the program's `--from` takes; or `flat`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Source {
    /// The machine that this process runs on.
    Live,
    /// The machine that this process runs on, if only the number of usable CPUs is known: any that
    /// isn't Linux. Each CPU is a core, and all are in one package and one node. Their numbers are
    /// made up, and mean nothing to the system.
    Flat,
    /// A saved sysfs tree in this folder.
    Sysfs(PathBuf),
    /// An XML export of hwloc in this file (or under this name, if it was given as a text).
    Xml(PathBuf),
    /// A synthetic description.
    Synthetic(String),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Live => f.write_str("live"),
            Source::Flat => f.write_str("flat"),
            Source::Sysfs(dir) => write!(f, "sysfs:{}", dir.display()),
            Source::Xml(path) => write!(f, "xml:{}", path.display()),
            Source::Synthetic(description) => write!(f, "synthetic:{description}"),
        }
    }
}

/// One CPU (hardware thread).
///
/// `core`, `package` and `llc` are dense numbers from 0, in the order of the lowest CPU, and unique
/// in the whole machine. The firmware's own ids repeat in each package, or have gaps. `None` means
/// that the fact isn't known: the kernel reports nothing about an offline CPU.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Cpu {
    /// The kernel's number of this CPU.
    pub cpu: CpuId,
    /// Core of the hardware thread.
    pub core: Option<u32>,
    /// Package (socket) of the CPU.
    pub package: Option<u32>,
    /// Last-level cache: an index into [`Topology::llcs`].
    pub llc: Option<u32>,
    /// Cache below the last-level one, if that is an L2 or higher: a dense number. Cores that share
    /// it are a cluster, such as four efficient cores of a hybrid CPU.
    pub cluster: Option<u32>,
    /// Kind of its core: an index into [`Topology::kinds`]. `None` if all are of one kind.
    pub kind: Option<u32>,
    /// NUMA node, by the kernel's number.
    pub node: Option<u32>,
    /// True if it was online when the topology was read.
    pub online: bool,
}

/// One kind of cores of a machine that has several: a hybrid CPU, or big and little cores.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CoreKind {
    /// Dense number from 0, in the order of the lowest CPU: its index in [`Topology::kinds`].
    pub kind: u32,
    /// Name that the source gives it: `cpu_core`, `cpu_atom`, `capacity 446`, `IntelAtom`.
    pub name: String,
    /// CPUs with such cores. An offline CPU may be in no kind.
    pub cpus: CpuSet,
}

/// One NUMA node.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Node {
    /// Number of the node in the kernel. The numbers may have gaps.
    pub node: u32,
    /// CPUs whose local node it is, online or not. Empty for a node that has only memory.
    pub cpus: CpuSet,
}

/// One last-level cache, or its substitute.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Llc {
    /// Dense number of the cache.
    pub llc: u32,
    /// Level (3 for an L3), or `None` if the machine reports no cache for these CPUs, so that their
    /// package stands for it.
    pub level: Option<u32>,
    /// CPUs that share it.
    pub cpus: CpuSet,
    /// Number of its first part, if one cache of the hardware spans several NUMA nodes (sub-NUMA
    /// clustering) and is divided along them. `None` means that it is whole.
    pub part_of: Option<u32>,
}

/// The facts about one machine's CPUs, caches and NUMA nodes. They never change. Facts that change
/// (CPUs that go offline, a cpuset that is narrowed) are in the [`Machine`](crate::Machine) around
/// them.
///
/// One type serves the live machine, a saved sysfs tree, an XML export of hwloc and a synthetic
/// description:
///
/// ```
/// use corewise_topology::{CpuId, Topology};
///
/// let two_nodes = Topology::synthetic("numa:2 l3:1 core:36 pu:2")?;
/// assert_eq!(two_nodes.cpus().len(), 144);
/// let cpu = two_nodes.cpu(CpuId::new(73)).unwrap();
/// assert_eq!((cpu.core, cpu.node), (Some(36), Some(1)));
/// # Ok::<(), corewise_topology::TopologyError>(())
/// ```
///
/// # How facts that machines don't report are filled in
/// - **Last-level cache**: the highest level of unified or data cache that a CPU has, be it an L3,
///   an L2 or an L1. If no cache is reported, the package stands for it ([`Llc::level`] is `None`).
///   A cache that spans NUMA nodes (sub-NUMA clustering) is divided along them, as the kernel's
///   scheduler does. So the CPUs of an LLC have one node; [`Llc::part_of`] names the whole.
/// - **Kinds of cores**: on x86 those that sysfs lists as devices (`cpu_core`, `cpu_atom`,
///   `cpu_lowpower`), in an export of hwloc its `<cpukind>`s. Otherwise cores differ in kind if
///   their `cpu_capacity` differs by more than 5 %, as in the kernel's scheduler. A synthetic
///   description has one kind.
/// - **NUMA**: if no nodes are reported, there is a single node 0, as in hwloc and in kernels
///   without NUMA. If there is only one node, each CPU is in it.
/// - **Offline CPUs** have no facts but their node, if that. Each is alone in its pods of the
///   scopes below a node (as in the kernel). These pods come after all others, so that they don't
///   shift the numbers of the rest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    pub(crate) source: Source,
    // Sorted by CPU number, without repetition, never empty.
    pub(crate) cpus: Vec<Cpu>,
    // Sorted by node number.
    pub(crate) nodes: Vec<Node>,
    pub(crate) llcs: Vec<Llc>,
    pub(crate) kinds: Vec<CoreKind>,
    pub(crate) allowed: CpuSet,
    pub(crate) isolated: CpuSet,
}

impl Topology {
    /// Returns the same machine seen by a process that may use only `allowed`. Pods made from the
    /// result consist of these CPUs alone (see [`Pods`](crate::Pods) for why).
    ///
    /// # Errors
    /// [`TopologyError::NoCpu`] if the topology has none of these CPUs.
    pub fn with_allowed(mut self, allowed: &CpuSet) -> Result<Topology, TopologyError> {
        let known = self.cpu_set();
        self.allowed = known.intersection(allowed);
        if self.allowed.is_empty() {
            return Err(TopologyError::NoCpu {
                reason: format!(
                    "the allowed CPUs are '{allowed}', but the topology has CPUs '{known}'"
                ),
            });
        }
        Ok(self)
    }

    /// Returns the topology marked as that of the process's machine, as for a simulated one.
    pub(crate) fn into_live(self) -> Topology {
        Topology { source: Source::Live, ..self }
    }

    /// Returns the same machine with these CPUs isolated instead of those that the source reports.
    pub fn with_isolated(mut self, isolated: &CpuSet) -> Topology {
        self.isolated = self.cpu_set().intersection(isolated);
        self
    }

    /// Returns the source of the facts.
    pub fn source(&self) -> &Source {
        &self.source
    }

    /// Returns true if the process runs on this machine, so that its CPU numbers mean something to
    /// the kernel.
    pub(crate) fn is_live(&self) -> bool {
        self.source == Source::Live
    }

    /// Returns all CPUs, online or not, allowed or not, by rising number. Never empty.
    pub fn cpus(&self) -> &[Cpu] {
        &self.cpus
    }

    /// Returns the facts about one CPU, if there is such a CPU.
    pub fn cpu(&self, cpu: CpuId) -> Option<&Cpu> {
        self.cpus.binary_search_by_key(&cpu, |known| known.cpu).ok().map(|at| &self.cpus[at])
    }

    /// Returns the numbers of all CPUs, online or not, allowed or not.
    pub fn cpu_set(&self) -> CpuSet {
        self.cpus.iter().map(|cpu| cpu.cpu).collect()
    }

    /// Returns the CPUs that were online when the topology was read.
    pub fn online(&self) -> CpuSet {
        self.cpus.iter().filter(|cpu| cpu.online).map(|cpu| cpu.cpu).collect()
    }

    /// Returns the CPUs that the process may use: its affinity mask and cpuset. It may hold offline
    /// CPUs.
    pub fn allowed(&self) -> &CpuSet {
        &self.allowed
    }

    /// Returns the CPUs that the administrator set apart from general work (`isolcpus=`, isolated
    /// cpuset partitions). May be empty, and may hold CPUs that aren't allowed.
    pub fn isolated(&self) -> &CpuSet {
        &self.isolated
    }

    /// Returns the NUMA nodes by rising number. Never empty.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Returns one NUMA node, if there is such a node.
    pub fn node(&self, node: u32) -> Option<&Node> {
        self.nodes.binary_search_by_key(&node, |known| known.node).ok().map(|at| &self.nodes[at])
    }

    /// Returns the last-level caches; [`Cpu::llc`] is an index into them.
    pub fn llcs(&self) -> &[Llc] {
        &self.llcs
    }

    /// Returns the kinds of cores of a machine that has several; [`Cpu::kind`] is an index into
    /// them. Empty for a machine of one kind.
    pub fn kinds(&self) -> &[CoreKind] {
        &self.kinds
    }

    /// Returns the number of known cores.
    pub fn core_count(&self) -> usize {
        // The numbers are dense, so the highest gives their count.
        self.cpus.iter().filter_map(|cpu| cpu.core).max().map_or(0, |core| core as usize + 1)
    }

    /// Returns the number of known packages.
    pub fn package_count(&self) -> usize {
        self.cpus.iter().filter_map(|cpu| cpu.package).max().map_or(0, |last| last as usize + 1)
    }
}
