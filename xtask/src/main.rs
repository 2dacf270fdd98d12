//! The project's own tasks: `cargo xtask test` runs every test, `cargo xtask sim` a workload on a
//! simulated machine.
#![allow(clippy::print_stdout, clippy::print_stderr)] // a program for the terminal

mod all;
mod args;
mod asan;
mod backend;
mod book;
mod crates;
mod deb;
mod oldest;
mod programs;
mod run;
mod s3;
mod sim;
mod steps;
mod tally;
mod targets;
mod workspace;

use args::{Args, Task};
use std::process::ExitCode;

fn main() -> ExitCode {
    let args = match Args::parse(std::env::args().skip(1)) {
        Ok(args) => args,
        Err(message) => {
            eprintln!("xtask: {message}\nTry `cargo xtask --help`.");
            return ExitCode::from(2);
        }
    };
    match args.task {
        Task::Help => {
            print!("{}", args::HELP);
            ExitCode::SUCCESS
        }
        Task::List => {
            for step in steps::ALL {
                println!("{:<9} {}", step.name, step.what);
            }
            ExitCode::SUCCESS
        }
        Task::Sim => match sim::run(&args.words) {
            Ok(code) => code,
            Err(message) => {
                eprintln!("xtask: {message}");
                ExitCode::FAILURE
            }
        },
        Task::Deb => built(run::Run::new("deb", true, true).and_then(|mut run| {
            let program = steps::optimised(&mut run)?;
            deb::build(&mut run, &program)
        })),
        Task::Book => built(run::Run::new("book", false, true).and_then(|mut run| {
            if !book::is_possible() {
                return Err("mdbook isn't there: `cargo install mdbook` brings it".to_string());
            }
            book::build(&mut run)
        })),
        Task::Test if all::all(&args) => ExitCode::SUCCESS,
        Task::Test => ExitCode::FAILURE,
    }
}

/// Prints the path of something that was built, or the reason why it wasn't.
fn built(path: Result<std::path::PathBuf, String>) -> ExitCode {
    match path {
        Ok(path) => {
            println!("{}", path.display());
            ExitCode::SUCCESS
        }
        Err(message) => {
            eprintln!("xtask: {message}");
            ExitCode::FAILURE
        }
    }
}
