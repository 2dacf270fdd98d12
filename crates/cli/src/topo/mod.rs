//! `corewise topo`: a machine's CPUs, caches, nodes, and the pods of every affinity scope.

mod report;
mod text;

use std::io::Write;

use corewise::topology::{Pods, Topology};

use crate::args::{self, Source};
use crate::exit::Failure;
use crate::screen;
use report::Report;

/// Reads the machine and prints it.
pub(crate) fn run(args: &args::Topo) -> Result<(), Failure> {
    let topology = read(&args.from)?;
    let pods = Pods::new(&topology, args.shard_size);
    if pods.shard_size_was_zero() {
        screen::warning(format_args!("a shard needs a core: --shard-size 0 is taken as 1"));
    }
    let report = Report::new(&topology, &pods);
    let mut out = anstream::stdout().lock();
    if args.json {
        let json = serde_json::to_string_pretty(&report)
            .map_err(|error| Failure::new(format!("cannot write JSON: {error}")))?;
        writeln!(out, "{json}")?;
    } else {
        write!(out, "{}", text::render(&report, screen::width()))?;
    }
    Ok(out.flush()?)
}

fn read(source: &Source) -> Result<Topology, Failure> {
    let (read, help) = match source {
        Source::Live => (Topology::live(), None),
        Source::Sysfs(dir) => (
            Topology::from_sysfs(dir),
            Some("a saved tree holds sys/devices/system/cpu with its cpuN folders"),
        ),
        Source::Synthetic(spec) => (
            Topology::synthetic(spec),
            Some("such as synthetic:'numa:2 l3:1 core:36 pu:2', from the outside in"),
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
