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

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    let cli = args::Cli::parse();
    log::start(cli.log.level());
    exit::code(match cli.command {
        args::Command::Topo(args) => topo::run(&args),
        args::Command::Up(args) => up::run(args),
    })
}
