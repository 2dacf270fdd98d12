//! The workloads of `corewise-bench` against other runtimes:
//! `cargo run --release -p bench-peers -- workqueue [--quick]`.
//!
//! Each run is a process of its own: this program again (`bench-peers run key=value...`) for
//! Corewise and the peers that are Rust, a file each under `peers/`; programs that are built at
//! first use for oneTBB, Go and Java.
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod arguments;
mod counting;
mod peers;
mod run;
mod workqueue;

use std::error::Error;
use std::process::ExitCode;

use arguments::Command;

#[global_allocator]
static ALLOCATOR: counting::Counting = counting::Counting;

fn main() -> ExitCode {
    let done = match arguments::parse(std::env::args().skip(1)) {
        Ok(Command::Workqueue(options)) => workqueue::run(&options),
        Ok(Command::Run(words)) => run::run(&words).map(|line| println!("{}", line.to_json())),
        Ok(Command::Help) => {
            print!("{}", arguments::USAGE);
            Ok(())
        }
        Err(problem) => {
            eprint!("bench-peers: {problem}\n\n{}", arguments::USAGE);
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&*error);
            ExitCode::FAILURE
        }
    }
}

fn complain(error: &dyn Error) {
    eprintln!("bench-peers: {error}");
    let mut cause = error.source();
    while let Some(error) = cause {
        eprintln!("  because: {error}");
        cause = error.source();
    }
}
