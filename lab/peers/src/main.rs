//! The workloads of `corewise-bench` against other runtimes:
//! `cargo run --release -p bench-peers -- workqueue [--quick]`, or `calls`, `shutdown`, `fork` or
//! `nbd`.
//!
//! Each run is a process of its own. For Corewise and the peers in Rust it is this program again
//! (`bench-peers run BENCHMARK key=value...`). oneTBB, Go, Java, glommio, Forte and Seastar have
//! programs that are built at first use. A run of `nbd` starts a server.
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod arguments;
mod calls;
mod fork;
mod nbd;
mod programs;
mod results;
mod session;
mod shutdown;
mod table;
mod workqueue;

use std::process::ExitCode;

use clap::Parser;
use corewise_bench::counting::Counting;
use corewise_bench::with_causes;

use arguments::Options;
use session::Peers;

#[global_allocator]
static ALLOCATOR: Counting = Counting::system();

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let done = match words.as_slice() {
        [run, bench, words @ ..] if run == "run" => {
            session::one(peers(bench), words).map(|line| println!("{}", line.to_json()))
        }
        _ => {
            let options = Options::parse();
            session::run(peers(&options.bench), &options)
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench-peers: {}", with_causes(&*error));
            ExitCode::FAILURE
        }
    }
}

/// Returns the benchmark of this name.
fn peers(bench: &str) -> &'static Peers {
    match bench {
        "calls" => &calls::PEERS,
        "shutdown" => &shutdown::PEERS,
        "fork" => &fork::PEERS,
        "nbd" => &nbd::PEERS,
        _ => &workqueue::PEERS,
    }
}
