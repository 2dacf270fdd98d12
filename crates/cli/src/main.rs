//! The `corewise` program: the one crate that prints, parses flags and knows exit codes.
//!
//! ```text
//! corewise topo                    # CPUs, caches, nodes, and the pods of every affinity scope
//! corewise topo --svg shards.svg    # or as a picture
//! corewise up                      # serve a few volumes over NBD from a temporary folder
//! corewise up disks.toml           # serve those of a manifest; docs/manifest.md describes it
//! corewise up --for 5s --timeline up.svg
//! corewise dump                    # the pools and queues of a running `up`
//! corewise dump --monitor          # what they do, every second
//! corewise top                     # the same and more, on the terminal; clients, events: a part of it
//! corewise health                  # whether it is ok, and what to do where it isn't
//! corewise mirror data --take-back  # a leg of a mirror is well again
//! corewise snapshot data monday    # a volume in an object store, as it is now
//! corewise add more.toml           # volumes and exports for a running `up`
//! corewise remove data --mode soft
//! corewise reload --dry-run        # what changed in its manifest
//! corewise timeline dmesg.txt      # what a kernel log says of probes and shutdowns
//! ```
//!
//! In reading order: `args` defines every flag, `up` runs a server (`corewise_server`) with its
//! signals and its terminal, `client` asks a running one over its control socket, for `dump` (and
//! `health`) and `watch`, and for `change` (mirrors and snapshots too), which changes it,
//! `topo` shows a machine, `timeline` what a kernel's log says of one; `exit` alone knows exit
//! codes, `screen` how to write to a terminal.
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod args;
mod change;
mod client;
mod dump;
mod escape;
mod exit;
mod log;
mod screen;
mod streams;
mod timeline;
mod topo;
mod up;
mod watch;
mod whole_file;

use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = args::parse();
    let bars = streams::Bars::default();
    log::start(&cli.log, bars.clone());
    let run = || match cli.command {
        args::Command::Topo(args) => topo::run(&args),
        args::Command::Up(args) => up::run(args, bars),
        args::Command::Dump(args) => dump::run(&args),
        args::Command::Health(args) => dump::health(&args),
        args::Command::Mirror(args) => change::mirror(&args),
        args::Command::Snapshot(args) => change::snapshot(&args),
        args::Command::Clients(args) => watch::clients(&args),
        args::Command::Disconnect(args) => watch::disconnect(&args),
        args::Command::Events(args) => watch::events(&args),
        args::Command::Top(args) => watch::top(&args),
        args::Command::Add(args) => change::add(&args),
        args::Command::Remove(args) => change::remove(&args),
        args::Command::Grow(args) => change::grow(&args),
        args::Command::Reload(args) => change::reload(&args),
        args::Command::Timeline(args) => timeline::run(&args),
        args::Command::Completions(args) => completions(&args),
        args::Command::Man(args) => man(&args),
    };
    // A bug is a failure like any other: it has been told on stderr by now.
    exit::code(catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|_| {
        Err(exit::Failure::new("this is a bug in corewise; please report it with the lines above"))
    }))
}

/// Prints the completions of a shell.
fn completions(args: &args::Completions) -> Result<(), exit::Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut args::command(), "corewise", &mut script);
    std::io::stdout()
        .write_all(&script)
        .map_err(|error| exit::Failure::new(format!("cannot write to stdout: {error}")))
}

/// Writes a page of section 1 for the program and for each of its commands.
fn man(args: &args::ManPages) -> Result<(), exit::Failure> {
    let folder = args.folder.display();
    std::fs::create_dir_all(&args.folder)
        .and_then(|()| clap_mangen::generate_to(args::command(), &args.folder))
        .map_err(|error| {
            exit::Failure::new(format!("cannot write the pages to '{folder}': {error}"))
        })
}
