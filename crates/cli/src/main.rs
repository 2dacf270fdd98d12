//! The corewise program: `topo` shows a machine, `up` serves volumes.
// The one crate that prints.
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod args;
mod exit;
mod log;
mod manifest;
mod screen;
mod suggest;
mod topo;
mod units;
mod up;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    let cli = args::Cli::parse();
    log::start(cli.log.level());
    let run = || match cli.command {
        args::Command::Topo(args) => topo::run(&args),
        args::Command::Up(args) => up::run(args),
    };
    // A bug is a failure like any other: it has been told on stderr by now.
    exit::code(catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|_| {
        Err(exit::Failure::new("this is a bug in corewise; please report the lines above"))
    }))
}
