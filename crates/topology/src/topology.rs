//! The facts about one machine's CPUs, caches and nodes, whatever they were learnt from.

use std::fmt;
use std::path::PathBuf;

use crate::cpuset::{CpuId, CpuSet};
use crate::error::TopologyError;

/// What a [`Topology`] was learnt from. [`Display`](fmt::Display) writes `live`, `sysfs:DIR`,
/// `xml:FILE` or `synthetic:SPEC`, the words that the program's `--from` takes; or `flat`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Source {
    /// The machine that this process runs on.
    Live,
    /// The machine that this process runs on, of which nothing is known but how many CPUs the
    /// process may use: any that isn't Linux. Each CPU is a core, and all are in one package and
    /// one node. Their numbers are made up, and mean nothing to the system.
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
/// `core`, `package` and `llc` are dense numbers from 0, given in the order of the lowest CPU, and
/// unique in the whole machine: the firmware's own ids repeat in each package, or have gaps. `None`
/// means that it is not known: the kernel reports nothing about a CPU that is offline.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Cpu {
    /// The kernel's number of this CPU.
    pub cpu: CpuId,
    /// The core whose hardware thread it is.
    pub core: Option<u32>,
    /// The package (socket) that it is in.
    pub package: Option<u32>,
    /// Its last-level cache: an index into [`Topology::llcs`].
    pub llc: Option<u32>,
    /// The cache below the last-level one, where that is an L2 or higher: a dense number. Cores
    /// that share it are a cluster, such as four efficient cores of a hybrid CPU.
    pub cluster: Option<u32>,
    /// The kind of its core: an index into [`Topology::kinds`]. `None` where all are of one kind.
    pub kind: Option<u32>,
    /// The kernel's number of the NUMA node that it is in.
    pub node: Option<u32>,
    /// Whether it was online when the topology was read.
    pub online: bool,
}

/// One kind of cores of a machine that has several: a hybrid CPU, or big and little cores.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CoreKind {
    /// A dense number from 0, given in the order of the lowest CPU: its index in
    /// [`Topology::kinds`].
    pub kind: u32,
    /// What the source calls it: `cpu_core`, `cpu_atom`, `capacity 446`, `IntelAtom`.
    pub name: String,
    /// The CPUs of such cores. One that is offline may be in none.
    pub cpus: CpuSet,
}

/// One NUMA node.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Node {
    /// The kernel's number of the node. Nodes may have gaps in their numbers.
    pub node: u32,
    /// The CPUs whose local node it is, online or not. Empty for a node that has only memory.
    pub cpus: CpuSet,
}

/// One last-level cache, or what stands for it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Llc {
    /// Its dense number.
    pub llc: u32,
    /// Its level (3 for an L3), or `None` where the machine reports no cache for these CPUs, and
    /// their package stands for it.
    pub level: Option<u32>,
    /// The CPUs that share it.
    pub cpus: CpuSet,
    /// Where one cache of the hardware spans several NUMA nodes (sub-NUMA clustering), it is
    /// divided along them: the number of its first part. `None`: it is whole.
    pub part_of: Option<u32>,
}

/// The facts about one machine's CPUs, caches and NUMA nodes. It never changes; what changes (CPUs
/// that go offline, a cpuset that is narrowed) is in the [`Machine`](crate::Machine) around it.
///
/// One type for the live machine, a saved sysfs tree, an XML export of hwloc and a synthetic
/// description:
///
/// ```
/// use corewise_topology::{CpuId, Topology};
///
/// let two_nodes = Topology::synthetic("numa:2 l3:1 core:36 pu:2")?;
/// assert_eq!(two_nodes.cpus().len(), 144);
/// assert_eq!(two_nodes.cpu(CpuId::new(73)).map(|cpu| (cpu.core, cpu.node)), Some((Some(36), Some(1))));
/// # Ok::<(), corewise_topology::TopologyError>(())
/// ```
///
/// # How facts that machines don't report are filled in
/// - **Last-level cache**: the highest level of unified or data cache that a CPU has, be it an L3,
///   an L2 or an L1. Where no cache is reported, the package stands for it ([`Llc::level`] is
///   `None`). A cache that spans NUMA nodes (sub-NUMA clustering) is divided along them, as the
///   kernel's scheduler does, so that whatever shares an LLC has one node; [`Llc::part_of`] says
///   so.
/// - **Kinds of cores**: on x86 those that sysfs lists as devices (`cpu_core`, `cpu_atom`,
///   `cpu_lowpower`), in an export of hwloc its `<cpukind>`s; else cores whose `cpu_capacity`
///   differs by more than 5 %, as the kernel's scheduler distinguishes them. A synthetic
///   description has one kind.
/// - **NUMA**: where no nodes are reported, there is a single node 0, as in hwloc and in kernels
///   without NUMA. Where there is one node only, each CPU is in it.
/// - **Offline CPUs** have no facts but their node, if that. Each is alone in its pods of the
///   scopes below a node (as in the kernel), and these pods come after all others, so that they
///   don't shift the numbers of the rest.
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
    /// The same machine seen by a process that may use only `allowed`. Pods made from the result
    /// consist of these CPUs alone (see [`Pods`](crate::Pods) for why).
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

    /// The same machine as the one that the process runs on: a simulated one is.
    pub(crate) fn into_live(self) -> Topology {
        Topology { source: Source::Live, ..self }
    }

    /// The same machine with these CPUs isolated instead of those that the source says.
    pub fn with_isolated(mut self, isolated: &CpuSet) -> Topology {
        self.isolated = self.cpu_set().intersection(isolated);
        self
    }

    /// What the facts were learnt from.
    pub fn source(&self) -> &Source {
        &self.source
    }

    /// Whether this is the machine that the process runs on, so that its CPU numbers mean something
    /// to the kernel.
    pub(crate) fn is_live(&self) -> bool {
        self.source == Source::Live
    }

    /// All CPUs, online or not, allowed or not, by rising number. Never empty.
    pub fn cpus(&self) -> &[Cpu] {
        &self.cpus
    }

    /// The facts about one CPU, if there is such a CPU.
    pub fn cpu(&self, cpu: CpuId) -> Option<&Cpu> {
        self.cpus.binary_search_by_key(&cpu, |known| known.cpu).ok().map(|at| &self.cpus[at])
    }

    /// The numbers of all CPUs, online or not, allowed or not.
    pub fn cpu_set(&self) -> CpuSet {
        self.cpus.iter().map(|cpu| cpu.cpu).collect()
    }

    /// The CPUs that were online when the topology was read.
    pub fn online(&self) -> CpuSet {
        self.cpus.iter().filter(|cpu| cpu.online).map(|cpu| cpu.cpu).collect()
    }

    /// The CPUs that the process may use: its affinity mask and cpuset. It may hold offline CPUs.
    pub fn allowed(&self) -> &CpuSet {
        &self.allowed
    }

    /// The CPUs that the administrator set apart from general work (`isolcpus=`, isolated cpuset
    /// partitions). May be empty, and may hold CPUs that aren't allowed.
    pub fn isolated(&self) -> &CpuSet {
        &self.isolated
    }

    /// The NUMA nodes by rising number. Never empty.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// One NUMA node, if there is such a node.
    pub fn node(&self, node: u32) -> Option<&Node> {
        self.nodes.binary_search_by_key(&node, |known| known.node).ok().map(|at| &self.nodes[at])
    }

    /// The last-level caches; [`Cpu::llc`] is an index into them.
    pub fn llcs(&self) -> &[Llc] {
        &self.llcs
    }

    /// The kinds of cores of a machine that has several; [`Cpu::kind`] is an index into them. Empty
    /// for a machine of one kind.
    pub fn kinds(&self) -> &[CoreKind] {
        &self.kinds
    }

    /// How many cores are known.
    pub fn core_count(&self) -> usize {
        // Dense numbers: the highest tells.
        self.cpus.iter().filter_map(|cpu| cpu.core).max().map_or(0, |core| core as usize + 1)
    }

    /// How many packages are known.
    pub fn package_count(&self) -> usize {
        self.cpus.iter().filter_map(|cpu| cpu.package).max().map_or(0, |last| last as usize + 1)
    }
}
