//! `corewise topo`: the CPUs, caches and nodes of a machine, and the pods of every affinity scope.

mod report;
mod svg;
mod text;

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::Path;

use corewise::timeline::markup;
use corewise::topology::{AffinityScope, Pods, Topology};
use corewise_server::units;

use crate::args::{self, Source};
use crate::exit::Failure;
use crate::{screen, whole_file};
use report::Report;

/// Reads a machine and prints it.
pub(crate) fn run(args: &args::Topo) -> Result<(), Failure> {
    let topology = read(&args.from)?;
    let pods = Pods::new(&topology, args.shard_size);
    if pods.shard_size_was_zero() {
        screen::warning(format_args!("--shard-size 0 is read as 1: a shard needs a core"));
    }
    if let Some(path) = &args.svg {
        return picture(path, &topology, &pods, args.scope.unwrap_or_default());
    }
    let report = Report::new(&topology, &pods);
    let mut out = anstream::stdout().lock();
    if args.json {
        let json = crate::escape::pretty(&report)?;
        writeln!(out, "{json}")?;
    } else {
        write!(out, "{}", text::render(&report, &remarks(&topology), screen::width()))?;
    }
    Ok(out.flush()?)
}

/// Draws a machine into a file, or onto stdout.
fn picture(
    path: &Path,
    topology: &Topology,
    pods: &Pods,
    scope: AffinityScope,
) -> Result<(), Failure> {
    let picture = svg::render(topology, pods, scope);
    // This isn't anstream's stdout, which would search the picture for colours.
    let mut out = std::io::stdout().lock();
    if path == Path::new("-") {
        out.write_all(picture.as_bytes())?;
        return Ok(out.flush()?);
    }
    whole_file::write(path, &picture).map_err(|why| {
        Failure::new(format!("cannot write the picture '{}': {why}", path.display()))
    })?;
    let pods = count(pods.scope(scope).len(), "pod");
    Ok(writeln!(out, "drew {pods} of scope {scope} to {}", path.display())?)
}

/// Returns groups of caches that are divided alike, in the order of their first cache. A group has
/// the caches' numbers, the cores of each cache, and the cores of each shard.
fn alike<'c>(
    caches: impl Iterator<Item = (u32, u32, &'c [u32])>,
) -> Vec<(Vec<u32>, u32, &'c [u32])> {
    // Machines have many caches of few sizes.
    let mut alike: BTreeMap<(u32, &[u32]), Vec<u32>> = BTreeMap::new();
    for (llc, cores, shards) in caches {
        alike.entry((cores, shards)).or_default().push(llc);
    }
    let mut rows: Vec<_> =
        alike.into_iter().map(|((cores, shards), caches)| (caches, cores, shards)).collect();
    rows.sort_by_key(|(caches, ..)| caches.first().copied());
    rows
}

/// Returns remarks about details that the table doesn't show: kinds of cores, shared lower caches,
/// memory without CPUs, divided caches.
fn remarks(topology: &Topology) -> Vec<String> {
    let mut remarks = Vec::new();
    let kinds: Vec<String> = topology
        .kinds()
        .iter()
        .map(|kind| format!("{} (CPUs {})", markup::printable(&kind.name), kind.cpus))
        .collect();
    if !kinds.is_empty() {
        remarks.push(format!("kinds of cores, in shards of their own: {}", kinds.join(", ")));
    }
    let mut clusters: BTreeMap<u32, BTreeSet<u32>> = BTreeMap::new();
    for cpu in topology.cpus() {
        if let (Some(cluster), Some(core)) = (cpu.cluster, cpu.core) {
            clusters.entry(cluster).or_default().insert(core);
        }
    }
    let mut of_size: BTreeMap<usize, usize> = BTreeMap::new();
    for cluster in clusters.values().filter(|cores| cores.len() > 1) {
        *of_size.entry(cluster.len()).or_default() += 1;
    }
    let sizes: Vec<String> = of_size
        .into_iter()
        .rev()
        .map(|(cores, n)| format!("{} of {cores} cores", count(n, "cluster")))
        .collect();
    if !sizes.is_empty() {
        let sizes = sizes.join(", ");
        remarks.push(format!("{sizes} with a lower cache in common: no shard cuts one"));
    }
    let without = topology.nodes().iter().filter(|node| node.cpus.is_empty());
    let without: Vec<u32> = without.map(|node| node.node).collect();
    if !without.is_empty() {
        let (nodes, have) = if without.len() == 1 { ("node", "has") } else { ("nodes", "have") };
        remarks.push(format!("NUMA {nodes} {} {have} memory only", units::list(without)));
    }
    let mut parts: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for llc in topology.llcs() {
        if let Some(first) = llc.part_of {
            parts.entry(first).or_default().push(llc.llc);
        }
    }
    if !parts.is_empty() {
        let parts: Vec<String> = parts.into_values().map(units::list).collect();
        remarks.push(format!(
            "caches {}: one each in the hardware, divided along its NUMA nodes (sub-NUMA clustering)",
            parts.join("; ")
        ));
    }
    remarks
}

fn count(n: usize, noun: &str) -> String {
    units::count(n as u64, noun)
}

fn read(source: &Source) -> Result<Topology, Failure> {
    let (read, help) = match source {
        Source::Live => (Topology::live(), None),
        Source::Sysfs(dir) => (
            Topology::from_sysfs(dir),
            Some("a saved tree needs sys/devices/system/cpu with its cpuN folders"),
        ),
        Source::Xml(file) => (
            Topology::from_xml(file),
            Some("'lstopo --of xml' writes such a file, and converts older exports"),
        ),
        Source::Synthetic(spec) => (
            Topology::synthetic(spec),
            Some("write levels from the outside in, such as synthetic:'numa:2 l3:1 core:36 pu:2'"),
        ),
    };
    read.map_err(|error| {
        let failure = Failure::new(format!("cannot read the topology: {error}"));
        match help {
            Some(help) => failure.help(help),
            None => failure,
        }
    })
}
