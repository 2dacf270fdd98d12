//! The kernel's workqueue test: Corewise's default scope and the peers, interleaved.

use std::error::Error;

use corewise_bench::BenchError;
use corewise_bench::paired::{self, Plan};
use corewise_bench::record::Record;
use corewise_bench::workqueue::kernel_test::{self, Outcome};
use corewise_bench::workqueue::suite::{self, Size};
use corewise_bench::workqueue::variants::Corewise;
use corewise_topology::{AffinityScope, Machine};
use corewise_workqueue::WorkerPools;

use crate::peers::crossbeam::ChannelPool;

const CASE: &str = "kernel_test";

enum Variant {
    Corewise(Corewise),
    Crossbeam(ChannelPool),
}

impl Variant {
    fn name(&self) -> &'static str {
        match self {
            Variant::Corewise(_) => "corewise",
            Variant::Crossbeam(_) => "crossbeam-channel",
        }
    }

    fn run(&self, machine: &Machine, items: usize) -> Result<Outcome, BenchError> {
        match self {
            Variant::Corewise(queue) => kernel_test::run(machine, queue, items),
            Variant::Crossbeam(pool) => kernel_test::run(machine, pool, items),
        }
    }
}

/// Runs it on this machine; the records of every variant, then the headline.
pub(crate) fn run(size: Size) -> Result<Vec<Record>, Box<dyn Error>> {
    let machine = Machine::live()?;
    let pools = WorkerPools::new(&machine);
    let mut variants = [
        Variant::Corewise(Corewise::new(&pools, AffinityScope::default())?),
        Variant::Crossbeam(ChannelPool::new(machine.online().len())?),
    ];
    let plan = Plan { rounds: size.rounds, seed: size.seed };
    let results = paired::run(plan, &mut variants, |variant| variant.run(&machine, size.items));
    let names = variants.each_ref().map(Variant::name);
    drop(variants);
    pools.shutdown();
    Ok(records(&names, &results?, size.seed)?)
}

/// The first variant is Corewise, the others are its peers.
fn records(names: &[&str], results: &[Vec<Outcome>], seed: u64) -> Result<Vec<Record>, BenchError> {
    let mut records = Vec::new();
    for (name, outcomes) in names.iter().zip(results) {
        records.extend(suite::records_of(CASE, name, outcomes));
    }
    let ours = &results[0];
    // The best peer is the one against whom our ratio is the lowest.
    let ratios = results[1..]
        .iter()
        .filter_map(|peer| suite::ratio(ours, peer, |outcome| outcome.items_per_second, seed));
    let worst = ratios.min_by(|a, b| a.summary.median.total_cmp(&b.summary.median));
    let worst = worst.ok_or(BenchError::Nothing { what: "rounds" })?;
    records.push(Record::headline("workqueue", "kernel_test_vs_best_peer", &worst));
    Ok(records)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_headline_is_against_the_best_peer() {
        let outcome = |items_per_second| {
            vec![Outcome { items_per_second, call_p50: 1.0, call_p90: 1.0, call_p95: 1.0 }]
        };
        let results = [outcome(100.0), outcome(50.0), outcome(200.0)];
        let records = records(&["corewise", "slow", "fast"], &results, 1).unwrap();
        let headline = records.last().unwrap();
        assert_eq!(headline.metric, "kernel_test_vs_best_peer");
        assert_eq!(headline.median, 0.5);
    }

    #[test]
    fn every_variant_has_its_records_on_the_live_machine() {
        let records = run(Size { items: 30, rounds: 2, seed: 1 }).unwrap();
        for variant in ["corewise", "crossbeam-channel"] {
            let of_variant = records.iter().filter(|r| r.variant == variant && r.case == CASE);
            assert_eq!(of_variant.count(), 4, "{variant}");
        }
        assert_eq!(records.iter().filter(|r| r.case == "headline").count(), 1);
    }
}
