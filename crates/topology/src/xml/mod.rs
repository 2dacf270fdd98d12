//! The reader of hwloc's XML exports (`lstopo --of xml`), version 2.
//!
//! The format is that of hwloc's `hwloc2.dtd` and of the comments on `cpuset`, `complete_cpuset`
//! and `allowed_cpuset` in its manual. Version 3 differs in nothing that is read here, so it is
//! accepted too. The tree says which CPUs share a core, a cache, a package. Sets of CPUs are read
//! only for the machine, and for NUMA nodes, which hang beside the tree.

mod elements;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::cpuset::{CpuId, CpuSet};
use crate::error::TopologyError;
use crate::facts::{CLUSTER_LEVEL, Key, RawCpu, RawKind, RawMachine};
use crate::files::read_regular;
use crate::topology::{Source, Topology};
use elements::{Element, Elements, Step};

type Result<T, E = TopologyError> = std::result::Result<T, E>;

/// Largest number of bytes that are read. An export of 8192 CPUs has about 20 MB.
const MAX_FILE: u64 = 64 << 20;

/// Longest text of a set of CPUs: twice as long as that of 8192 CPUs.
const MAX_SET: usize = 8 << 10;

/// Longest name of a kind of cores.
const MAX_KIND: usize = 64;

impl Topology {
    /// Reads an XML export of hwloc 2, as `lstopo --of xml` writes it: cores, packages, unified and
    /// data caches from the tree, NUMA nodes with their local CPUs. Version 3 contains the same and
    /// is read too; exports of hwloc 1 have to be converted (`lstopo -i OLD.xml NEW.xml`).
    ///
    /// - CPUs in the machine's `complete_cpuset` without a PU are offline here. In hwloc they were
    ///   offline, or the exporting process was not allowed to use them and left them out (`lstopo
    ///   --disallowed` keeps them, and tells the two apart).
    /// - [`Topology::allowed`] is the `allowed_cpuset`, so such CPUs are in no pod.
    /// - If several NUMA nodes are at one place (memory of two kinds), a CPU's own is the lowest.
    /// - No CPU is isolated, since exports don't say.
    ///
    /// Only with the feature `xml` of this crate.
    ///
    /// # Errors
    /// If the file is unreadable, too long (64 MiB) or not such an export. The error names the file
    /// and the place. The time and memory of reading are bounded by the length, whatever the
    /// content.
    pub fn from_xml(file: impl AsRef<Path>) -> Result<Topology, TopologyError> {
        self::file(file.as_ref())
    }

    /// Reads an XML export of hwloc that is in memory, as [`Topology::from_xml`] does. `name`
    /// stands for it in errors and in [`Topology::source`]. Only with the feature `xml`.
    ///
    /// # Errors
    /// See [`Topology::from_xml`].
    pub fn from_xml_str(xml: &str, name: impl AsRef<Path>) -> Result<Topology, TopologyError> {
        topology(xml, name.as_ref())
    }
}

/// Reads the export in a file.
fn file(path: &Path) -> Result<Topology> {
    let text = read_regular(path, MAX_FILE)
        .map_err(|error| TopologyError::Read { path: path.to_owned(), error })?;
    topology(&text, path)
}

/// Reads an export; `name` stands for it in errors and as the source.
fn topology(text: &str, name: &Path) -> Result<Topology> {
    // Some editors begin a file with it.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut export = Export::default();
    let mut elements = Elements::new(text, name);
    let mut open = Vec::new();
    while let Some(step) = elements.step()? {
        match step {
            Step::Open(element) => {
                let frame = export
                    .open(&element, &open)
                    .map_err(|reason| elements.wrong(element.at, reason))?;
                open.push(frame);
            }
            Step::Close => {
                open.pop();
            }
        }
    }
    let Some(machine) = export.machine.take() else {
        let reason = "it has no <topology> with a machine; is it an export of lstopo?";
        return Err(elements.wrong(text.len(), reason));
    };
    let raw = export.into_raw(&machine);
    let topology = raw.into_topology(Source::Xml(name.to_owned()))?;
    match machine.allowed {
        Some(allowed) => topology.with_allowed(&allowed),
        None => Ok(topology),
    }
}

/// The kind of an `<object>`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Machine,
    Package,
    Core,
    Pu,
    NumaNode,
    /// A unified or data cache.
    Cache {
        level: u32,
    },
    /// Objects that say nothing about placement: groups, dies, instruction caches.
    Plain,
    /// Objects without CPUs below them: caches of memory, devices.
    Other,
}

/// An element that has begun and not ended.
#[derive(Clone, Copy, Debug)]
enum Frame {
    Topology,
    /// An object, with a number of its own.
    Object(Kind, i64),
    /// A `<cpukind>`.
    CpuKind,
    /// Any other element.
    Beside,
}

/// The sets of the machine itself. A set that an export leaves out is `None`.
#[derive(Debug)]
struct MachineSets {
    cpus: Option<CpuSet>,
    complete: Option<CpuSet>,
    allowed: Option<CpuSet>,
}

/// A NUMA node: its number, its present CPUs, and all its CPUs with offline ones.
#[derive(Debug)]
struct NumaNode {
    node: u32,
    cpus: CpuSet,
    complete: CpuSet,
}

/// The parts of an export that have been read.
#[derive(Default)]
struct Export {
    machine: Option<MachineSets>,
    cpus: Vec<RawCpu>,
    seen: CpuSet,
    nodes: Vec<NumaNode>,
    seen_nodes: BTreeSet<u32>,
    /// CPUs of the `<cpukind>` that was begun last.
    cpu_kind: CpuSet,
    kinds: BTreeMap<CpuId, RawKind>,
    objects: i64,
}

impl Export {
    /// Handles the beginning of an element. The error says what is wrong with it.
    fn open(&mut self, element: &Element, open: &[Frame]) -> std::result::Result<Frame, String> {
        match (element.name.as_str(), open.last()) {
            ("topology", None) => {
                version(element.get("version"))?;
                Ok(Frame::Topology)
            }
            (other, None) => {
                Err(format!("expected <topology>, found <{other}>; is it an export of lstopo?"))
            }
            ("object", Some(Frame::Beside | Frame::CpuKind)) => {
                Err("an <object> must be inside <topology> or another object".into())
            }
            ("object", Some(&parent)) => self.object(element, parent, open),
            ("cpukind", Some(Frame::Topology)) => {
                self.cpu_kind = set(element, "cpuset")?.unwrap_or_default();
                Ok(Frame::CpuKind)
            }
            ("info", Some(Frame::CpuKind)) => {
                self.core_kind(element);
                Ok(Frame::Beside)
            }
            _ => Ok(Frame::Beside),
        }
    }

    fn object(
        &mut self,
        element: &Element,
        parent: Frame,
        open: &[Frame],
    ) -> std::result::Result<Frame, String> {
        let kind = kind(element)?;
        match (parent, kind) {
            (Frame::Topology, Kind::Machine) if self.machine.is_some() => {
                return Err("it has a second machine; an export has one".into());
            }
            (Frame::Topology, Kind::Machine) => {
                self.machine = Some(MachineSets {
                    cpus: set(element, "cpuset")?,
                    complete: set(element, "complete_cpuset")?,
                    allowed: set(element, "allowed_cpuset")?,
                });
            }
            (Frame::Topology, _) => return Err("the outermost object must be a Machine".into()),
            (_, Kind::Machine) => return Err("a Machine must not be inside another object".into()),
            (_, Kind::Other | Kind::NumaNode) => {}
            (Frame::Object(Kind::Pu | Kind::NumaNode | Kind::Other, _), _) => {
                return Err(
                    "an object with CPUs must not be inside a PU, a memory or a device".into()
                );
            }
            _ => {}
        }
        self.objects += 1;
        match kind {
            Kind::Pu => self.processing_unit(element, open)?,
            Kind::NumaNode => self.numa_node(element)?,
            _ => {}
        }
        Ok(Frame::Object(kind, self.objects))
    }

    fn processing_unit(
        &mut self,
        element: &Element,
        open: &[Frame],
    ) -> std::result::Result<(), String> {
        let cpu = CpuId::new(os_index(element)?);
        if set(element, "cpuset")?.is_some_and(|cpus| cpus != CpuSet::from_iter([cpu])) {
            return Err(format!("its cpuset must hold PU {cpu} alone"));
        }
        let machine = self.machine.as_ref().and_then(|machine| machine.cpus.as_ref());
        if machine.is_some_and(|cpus| !cpus.contains(cpu)) {
            return Err(format!("PU {cpu} is not in the cpuset of the machine"));
        }
        if !self.seen.insert(cpu) {
            return Err(format!("PU {cpu} is defined twice"));
        }
        let around = |wanted: fn(Kind) -> bool| {
            open.iter().rev().find_map(|frame| match frame {
                Frame::Object(kind, number) if wanted(*kind) => Some(Key::Ids(vec![*number])),
                _ => None,
            })
        };
        let mut caches: Vec<(u32, i64)> = open
            .iter()
            .filter_map(|frame| match frame {
                Frame::Object(Kind::Cache { level }, number) => Some((*level, *number)),
                _ => None,
            })
            .collect();
        caches.sort_unstable();
        let cache = caches.pop();
        let below = caches.pop().filter(|&(level, _)| level >= CLUSTER_LEVEL);
        self.cpus.push(RawCpu {
            cpu,
            // If cores were left out, each PU stands for one, as in synthetic descriptions.
            core: Some(around(|kind| kind == Kind::Core).unwrap_or(Key::Lowest(cpu))),
            package: around(|kind| kind == Kind::Package)
                .or_else(|| around(|kind| kind == Kind::Machine)),
            cache: cache.map(|(level, number)| (level, Key::Ids(vec![number]))),
            cluster: below.map(|(_, number)| Key::Ids(vec![number])),
            kind: None,
            node: None,
            online: true,
        });
        Ok(())
    }

    /// Handles the name of a `<cpukind>`. Kinds that differ only in their frequency, as favoured
    /// cores do, are one.
    fn core_kind(&mut self, info: &Element) {
        let kind = match (info.get("name"), info.get("value")) {
            (Some("CoreType"), Some(name)) if name.len() <= MAX_KIND => {
                RawKind::Name(name.to_owned())
            }
            (Some("LinuxCapacity"), Some(capacity)) => match capacity.parse() {
                Ok(capacity) => RawKind::Capacity(capacity),
                Err(_) => return,
            },
            _ => return,
        };
        for cpu in &std::mem::take(&mut self.cpu_kind) {
            self.kinds.entry(cpu).or_insert_with(|| kind.clone());
        }
    }

    fn numa_node(&mut self, element: &Element) -> std::result::Result<(), String> {
        let node = os_index(element)?;
        if !self.seen_nodes.insert(node) {
            return Err(format!("NUMA node {node} is defined twice"));
        }
        let Some(cpus) = set(element, "cpuset")? else {
            return Err(format!("NUMA node {node} has no cpuset"));
        };
        let complete = set(element, "complete_cpuset")?.unwrap_or_default().union(&cpus);
        self.nodes.push(NumaNode { node, cpus, complete });
        Ok(())
    }

    /// Adds the CPUs that have no PU, and to all of them their nodes.
    fn into_raw(mut self, machine: &MachineSets) -> RawMachine {
        let sets = machine.cpus.iter().chain(&machine.complete);
        let known = sets.fold(CpuSet::new(), |known, set| known.union(set));
        self.cpus.extend(known.difference(&self.seen).iter().map(|cpu| RawCpu {
            cpu,
            core: None,
            package: None,
            cache: None,
            cluster: None,
            kind: None,
            node: None,
            online: false,
        }));

        // A CPU's own node is the one with the fewest CPUs around it and, if there are several
        // (memory of two kinds), the lowest.
        let mut of_cpu = vec![None; CpuSet::MAX_CPU as usize + 1];
        let mut claim = |sets: fn(&NumaNode) -> &CpuSet| {
            self.nodes.sort_by_key(|node| (sets(node).len(), node.node));
            for node in &self.nodes {
                for cpu in sets(node) {
                    of_cpu[cpu.index()].get_or_insert(node.node);
                }
            }
        };
        claim(|node| &node.cpus);
        claim(|node| &node.complete);
        for cpu in &mut self.cpus {
            cpu.node = of_cpu[cpu.cpu.index()];
            cpu.kind = self.kinds.get(&cpu.cpu).cloned();
        }
        let nodes = self.seen_nodes.into_iter().collect();
        RawMachine { cpus: self.cpus, nodes, isolated: CpuSet::new() }
    }
}

fn version(version: Option<&str>) -> std::result::Result<(), String> {
    match version.map(|version| version.split('.').next().unwrap_or(version)) {
        Some("2" | "3") => Ok(()),
        None => {
            Err("it has no version, so it is an export of hwloc 1; convert it with 'lstopo -i \
                     OLD.xml NEW.xml' of hwloc 2"
                .into())
        }
        Some(_) => Err(format!(
            "it has version '{}', but only exports of versions 2 and 3 can be read",
            version.unwrap_or_default()
        )),
    }
}

fn kind(element: &Element) -> std::result::Result<Kind, String> {
    let Some(name) = element.get("type") else { return Err("the object has no type".into()) };
    Ok(match name {
        "Machine" => Kind::Machine,
        "Package" => Kind::Package,
        "Core" => Kind::Core,
        "PU" => Kind::Pu,
        "NUMANode" => Kind::NumaNode,
        // hwloc treats the last three as groups too.
        "Group" | "Die" | "Tile" | "Module" | "Cluster" => Kind::Plain,
        "MemCache" | "Misc" | "Bridge" | "PCIDev" | "OSDev" => Kind::Other,
        _ => return cache(name, element),
    })
}

/// Parses `L3Cache`, `L1iCache`; the attributes `depth` and `cache_type` must agree.
fn cache(name: &str, element: &Element) -> std::result::Result<Kind, String> {
    let unknown = || format!("unknown type of object '{name}'");
    let inner = name.strip_prefix('L').and_then(|name| name.strip_suffix("Cache"));
    let inner = inner.ok_or_else(unknown)?;
    let (digits, instruction) = match inner.strip_suffix('i') {
        Some(digits) => (digits, true),
        None => (inner, false),
    };
    let level = digits.parse().ok().filter(|level| (1..=5).contains(level)).ok_or_else(unknown)?;
    let agrees = match element.get("cache_type") {
        Some("0" | "1") => !instruction,
        Some("2") => instruction,
        Some(_) => false,
        None => true,
    };
    if !agrees || element.get("depth").is_some_and(|depth| depth != digits) {
        return Err(format!("its depth or cache_type doesn't match {name}"));
    }
    Ok(if instruction { Kind::Plain } else { Kind::Cache { level } })
}

fn os_index(element: &Element) -> std::result::Result<u32, String> {
    let kind = element.get("type").unwrap_or_default();
    let Some(text) = element.get("os_index") else {
        return Err(format!("the {kind} has no os_index, which is its number"));
    };
    let number = text.parse().ok().filter(|&number| number <= CpuSet::MAX_CPU);
    number.ok_or_else(|| {
        format!("os_index '{text}' of the {kind}: expected a number from 0 to {}", CpuSet::MAX_CPU)
    })
}

/// Parses a set of CPUs, such as `0x0000000f,,0x00000001`: words of 32 bits, the highest first. A
/// word that is left out is 0.
fn set(element: &Element, name: &str) -> std::result::Result<Option<CpuSet>, String> {
    let Some(text) = element.get(name) else { return Ok(None) };
    if text.len() > MAX_SET {
        return Err(format!("{name} is longer than that of any machine"));
    }
    let words = text.split(',').map(|word| if word.is_empty() { "0" } else { word });
    let set = CpuSet::from_mask(&words.collect::<Vec<_>>().join(","));
    set.map(Some).map_err(|error| match error {
        TopologyError::CpuList { item, reason, .. } => {
            format!("{name} contains '{item}': {reason}")
        }
        other => format!("{name}: {other}"),
    })
}
