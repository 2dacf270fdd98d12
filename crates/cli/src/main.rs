//! The `corewise` program: the one crate that prints, parses flags and knows exit codes.
//!
//! ```text
//! corewise topo                     # CPUs, caches, nodes, and the pods of every affinity scope
//! corewise topo --svg shards.svg    # the same as a picture
//! corewise up                       # serve a few volumes over NBD from a temporary folder
//! corewise up disks.toml            # serve the volumes of a manifest (docs/manifest.md)
//! corewise up --for 5s --timeline up.svg
//! corewise dump                     # pools and queues of a running `up`
//! corewise dump --monitor           # their counters and rates every second
//! corewise top                      # all of it on the terminal; clients, events: a part of it
//! corewise health                   # its state, and what to do if it isn't ok
//! corewise mirror data --take-back  # resync a leg that works again
//! corewise snapshot data monday     # take a snapshot of a volume in an object store
//! corewise checkpoint data monday   # remember what changes from now on
//! corewise backup data --to monday.backup
//! corewise add more.toml            # add volumes and exports to a running `up`
//! corewise remove data --mode soft
//! corewise reload --dry-run         # show what changed in its manifest
//! corewise attach nbd://host/data    # make an export a disk of this machine
//! corewise timeline dmesg.txt       # show the probes and shutdowns in a kernel log
//! ```
//!
//! In reading order: `args` defines every flag. `up` runs a server (`corewise_server`) with its
//! signals and its terminal. `client` talks to a running server over its control socket, for
//! `dump` (also `health`), `watch`, and `change` (also mirrors, snapshots and checkpoints).
//! `attach` drives the kernel's NBD client. `backup` copies a device over NBD, and restores it.
//! `topo` shows a machine, `timeline` the times in a kernel log. `exit` alone knows exit codes,
//! and `screen` how to write to a terminal.
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod args;
mod attach;
mod backup;
mod change;
mod client;
mod dump;
mod escape;
mod exit;
mod log;
mod screen;
mod streams;
mod timeline;
mod tls_files;
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
        args::Command::Overlay(args) => change::overlay(&args),
        args::Command::Snapshot(args) => change::snapshot(&args),
        args::Command::Checkpoint(args) => change::checkpoint(&args),
        args::Command::Backup(args) => backup::backup(&args),
        args::Command::Restore(args) => backup::restore(&args),
        args::Command::Clients(args) => watch::clients(&args),
        args::Command::Disconnect(args) => watch::disconnect(&args),
        args::Command::Events(args) => watch::events(&args),
        args::Command::Top(args) => watch::top(&args),
        args::Command::Add(args) => change::add(&args),
        args::Command::Remove(args) => change::remove(&args),
        args::Command::Grow(args) => change::grow(&args),
        args::Command::Reload(args) => change::reload(&args),
        args::Command::Attach(args) => attach::attach(&args),
        args::Command::Detach(args) => attach::detach(&args),
        args::Command::Timeline(args) => timeline::run(&args),
        args::Command::Completions(args) => completions(&args),
        args::Command::Man(args) => man(&args),
    };
    // A bug is a failure like any other: the panic hook has printed it.
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
