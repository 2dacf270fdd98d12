//! The workloads of `corewise-bench` against other runtimes:
//! `cargo run --release -p bench-peers -- workqueue [--quick]`, or `calls`, or `shutdown`.
//!
//! Each run is a process of its own: this program again (`bench-peers run key=value...`, or `call`, or `down`)
//! for Corewise and the peers that are Rust, a file each under `workqueue/peers/` and
//! `calls/peers/`; programs that are built at first use for oneTBB, Go, Java, glommio and Seastar.
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod arguments;
mod calls;
mod counting;
mod load;
mod programs;
mod results;
mod rounds;
mod session;
mod shutdown;
mod table;
mod workqueue;

use std::error::Error;
use std::process::ExitCode;

use arguments::Command;
use corewise_bench::line::Line;

#[global_allocator]
static ALLOCATOR: counting::Counting = counting::Counting;

fn main() -> ExitCode {
    let done = match arguments::parse(std::env::args().skip(1)) {
        Ok(Command::Workqueue(options)) => workqueue::run(&options),
        Ok(Command::Calls(options)) => calls::run(&options),
        Ok(Command::Shutdown(options)) => shutdown::run(&options),
        Ok(Command::Run(words)) => workqueue::run::run(&words).map(print),
        Ok(Command::Call(words)) => calls::run::run(&words).map(print),
        Ok(Command::Down(words)) => shutdown::run::run(&words).map(print),
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

fn print(line: Line) {
    println!("{}", line.to_json());
}

fn complain(error: &dyn Error) {
    eprintln!("bench-peers: {error}");
    let mut cause = error.source();
    while let Some(error) = cause {
        eprintln!("  because: {error}");
        cause = error.source();
    }
}
