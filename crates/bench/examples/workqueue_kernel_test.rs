//! Prints the kernel's workqueue test on this machine, for each scope and for the old design:
//! `cargo run --release -p corewise-bench --example workqueue_kernel_test -- [ITEMS] [ROUNDS]`.
//! Records go to the standard output, what they mean to the standard error.
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::error::Error;

use corewise_bench::record::to_json;
use corewise_bench::stats::PairedRatio;
use corewise_bench::workqueue::suite::{self, Size};
use corewise_topology::Machine;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let mut number = |default| arguments.next().map_or(Ok(default), |text| text.parse());
    let size = Size { items: number(50_000)?, rounds: number(7)?, seed: 1 };
    let report = suite::run(&Machine::live()?, size)?;
    print!("{}", to_json(&report.records));
    say("items/s, cache_shard over before", &report.items_vs_before);
    say("median queueing call, before over cache_shard", &report.p50_vs_before);
    Ok(())
}

fn say(what: &str, ratio: &PairedRatio) {
    let (median, runs) = (ratio.summary.median, ratio.summary.runs);
    let noise = if ratio.is_beyond_noise() { "beyond the noise" } else { "within the noise" };
    let (low, high) = (ratio.low, ratio.high);
    eprintln!("{what}: {median:.2} (95 % interval {low:.2} to {high:.2}, {runs} pairs), {noise}");
}
