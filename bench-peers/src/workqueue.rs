//! The kernel's workqueue test: Corewise's default scope and the peers, interleaved.

use std::error::Error;

use corewise_bench::BenchError;
use corewise_bench::paired::{self, Plan};
use corewise_bench::record::Record;
use corewise_bench::stats::{PairedRatio, Summary};
use corewise_bench::workqueue::case::Case;
use corewise_bench::workqueue::job::{Effort, Job};
use corewise_bench::workqueue::kernel_test;
use corewise_bench::workqueue::line::{Line, unit};
use corewise_bench::workqueue::meter::Meter;
use corewise_bench::workqueue::variants::Corewise;
use corewise_topology::Machine;

use crate::arguments::Size;
use crate::peers::crossbeam::ChannelPool;

const CASE: Case = Case::KernelTest { inline: false };

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

    fn run(&self, machine: &Machine, items: usize) -> Result<Line, BenchError> {
        let job = Job::new(CASE, self.name(), &machine.online(), Effort::Full);
        let job = Job { items, ..job };
        let mut meter = Meter::new(&job, None);
        match self {
            Variant::Corewise(own) => kernel_test::run(&job, machine, own.handle(), &mut meter),
            Variant::Crossbeam(pool) => kernel_test::run(&job, machine, pool, &mut meter),
        }
    }
}

/// Runs it on this machine; the records of every variant, then the headline.
pub(crate) fn run(size: Size) -> Result<Vec<Record>, Box<dyn Error>> {
    let machine = Machine::live()?;
    let mut variants = [vec![
        Variant::Corewise(Corewise::new(&machine, Default::default())?),
        Variant::Crossbeam(ChannelPool::new(machine.online().len())?),
    ]];
    let plan = Plan { rounds: size.rounds, seed: size.seed };
    let run = |variant: &mut Variant| variant.run(&machine, size.items);
    let results = paired::run(plan, &mut variants, |_| true, run)?;
    let names: Vec<&str> = variants[0].iter().map(Variant::name).collect();
    Ok(records(&names, &results[0], size.seed)?)
}

/// The first variant is Corewise, the others are its peers.
fn records(names: &[&str], results: &[Vec<Line>], seed: u64) -> Result<Vec<Record>, BenchError> {
    let mut records = Vec::new();
    for (name, lines) in names.iter().zip(results) {
        let metrics = lines.first().into_iter().flat_map(|line| line.metrics.keys());
        records.extend(metrics.filter_map(|metric| {
            let values: Vec<f64> = lines.iter().map(|line| line.metrics[metric]).collect();
            let (unit, summary) = (unit(metric)?, Summary::of(&values)?);
            Some(Record::new("workqueue", &CASE.to_string(), name, metric, unit, summary))
        }));
    }
    let rates = |lines: &[Line]| -> Vec<f64> {
        lines.iter().map(|line| line.metrics["items_per_second"]).collect()
    };
    let ours = rates(&results[0]);
    // The best peer is the one against whom our ratio is the lowest.
    let ratios = results[1..].iter().filter_map(|peer| PairedRatio::of(&ours, &rates(peer), seed));
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
            let mut line = Line::new("kernel_test", "x");
            line.set("items_per_second", items_per_second);
            vec![line]
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
            let of_variant = records.iter().filter(|r| r.variant == variant);
            assert!(of_variant.count() > 3, "{variant}");
        }
        assert_eq!(records.iter().filter(|r| r.case == "headline").count(), 1);
    }
}
