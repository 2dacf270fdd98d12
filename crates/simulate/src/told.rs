//! What a run tells.

use std::time::Duration;

use corewise_bench::line::Line;
use corewise_sim::{Distance, Outcome, Tally};

use crate::Args;

/// Prints the line of the benchmark, and where the time went.
pub(crate) fn tell<T>(args: &Args, line: &Line, outcome: &Outcome<T>, took: Duration) {
    if args.json {
        println!("{}", line.to_json());
        return;
    }
    println!("{} {} on '{}'", line.case, line.runtime, args.machine);
    if let Some(why) = &line.unsupported {
        println!("  not run: {why}");
    }
    for (metric, value) in &line.metrics {
        println!("  {metric:24} {value:.1}");
    }
    let whole = (outcome.time, outcome.tally.clone());
    let (time, tally) = outcome.between.clone().unwrap_or(whole);
    println!(
        "In the measured {time:.1?}, simulated in {took:.1?}, {} lines touched:",
        outcome.lines
    );
    counts(&tally);
    places(&tally, args.sites);
}

fn counts(tally: &Tally) {
    let by = |counts: &[u64; 5]| {
        let told = Distance::ALL.iter().zip(counts).filter(|(_, count)| **count > 0);
        told.map(|(distance, count)| format!("{count} {}", distance.word()))
            .collect::<Vec<_>>()
            .join(", ")
    };
    println!("  line transfers {}, wake-ups {}", tally.transfers(), by(&tally.wakes));
    println!(
        "  switches {}, of these preempted {}, moved {}; threads made {}; allocations {}, new pages {}; membarriers {}",
        tally.switches,
        tally.preemptions,
        tally.migrations,
        tally.spawned,
        tally.allocations,
        tally.faults,
        tally.membarriers,
    );
    println!(
        "  waited for a CPU {:.1?}, spun {:.1?}",
        Duration::from_nanos(tally.waiting as u64),
        Duration::from_nanos(tally.spinning as u64)
    );
}

fn places(tally: &Tally, most: usize) {
    println!("  {:>12} {:>10} {:>10}  place", "time", "accesses", "elsewhere");
    for (site, count) in tally.hottest().into_iter().take(most) {
        let time = Duration::from_nanos(count.time as u64);
        let accesses: u64 = count.accesses.iter().sum();
        println!(
            "  {:>12} {accesses:>10} {:>10}  {site}",
            format!("{time:.1?}"),
            count.transfers()
        );
    }
}
