//! The workloads of `corewise-bench` against other runtimes, interleaved in one process:
//! `cargo run --release -p bench-peers -- workqueue [--items N] [--rounds N] [--seed N]`.
//!
//! Prints the records as JSON. Each peer runs in its best mode, in a file of its own under
//! `peers/`.
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod arguments;
mod peers;
mod workqueue;

use std::process::ExitCode;

use arguments::Command;

fn main() -> ExitCode {
    let size = match arguments::parse(std::env::args().skip(1)) {
        Ok(Command::Workqueue(size)) => size,
        Ok(Command::Help) => {
            print!("{}", arguments::USAGE);
            return ExitCode::SUCCESS;
        }
        Err(problem) => {
            eprint!("bench-peers: {problem}\n\n{}", arguments::USAGE);
            return ExitCode::from(2);
        }
    };
    match workqueue::run(size) {
        Ok(records) => {
            print!("{}", corewise_bench::record::to_json(&records));
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("bench-peers: {error}");
            let mut cause = error.source();
            while let Some(error) = cause {
                eprintln!("  because: {error}");
                cause = error.source();
            }
            ExitCode::FAILURE
        }
    }
}
