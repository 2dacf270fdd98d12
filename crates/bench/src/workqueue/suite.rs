//! The kernel's test for every scope and for `before`, interleaved, as records with headlines.

use corewise_topology::{AffinityScope, Machine};
use corewise_workqueue::WorkerPools;

use crate::error::BenchError;
use crate::paired::{self, Plan};
use crate::record::Record;
use crate::stats::{PairedRatio, Summary};
use crate::workqueue::before::LockedPools;
use crate::workqueue::kernel_test::{self, Outcome};
use crate::workqueue::variants::Corewise;

/// Name, unit, and where it stands.
type Metric = (&'static str, &'static str, fn(&Outcome) -> f64);

const METRICS: [Metric; 4] = [
    ("items_per_second", "items/s", |outcome| outcome.items_per_second),
    ("call_p50", "ns", |outcome| outcome.call_p50),
    ("call_p90", "ns", |outcome| outcome.call_p90),
    ("call_p95", "ns", |outcome| outcome.call_p95),
];

/// How large a run is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    /// Items per thread; the kernel's test has 50 000.
    pub items: usize,
    /// Rounds that count.
    pub rounds: usize,
    /// Seed of the order within rounds, and of the intervals.
    pub seed: u64,
}

/// What the suite found.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    /// Every metric of every variant, then the headlines.
    pub records: Vec<Record>,
    /// `cache_shard`'s items/s over those of `before`, pair by pair: higher is better.
    pub items_vs_before: PairedRatio,
    /// `before`'s median queueing call over that of `cache_shard`: higher is better.
    pub p50_vs_before: PairedRatio,
}

enum Variant {
    Before(LockedPools),
    Corewise(AffinityScope, Corewise),
}

impl Variant {
    /// Case and variant name of its records.
    fn names(&self) -> (String, &'static str) {
        match self {
            // Its pods are the caches.
            Variant::Before(_) => (case(AffinityScope::Cache), "before"),
            Variant::Corewise(scope, _) => (case(*scope), "corewise"),
        }
    }

    fn run(&self, machine: &Machine, items: usize) -> Result<Outcome, BenchError> {
        match self {
            Variant::Before(pools) => kernel_test::run(machine, pools, items),
            Variant::Corewise(_, queue) => kernel_test::run(machine, queue, items),
        }
    }
}

fn case(scope: AffinityScope) -> String {
    format!("kernel_test/{scope}")
}

/// Runs the suite. Blocks for about `rounds` times the number of scopes times the time of one run.
///
/// # Errors
/// A queue or a thread couldn't be had.
pub fn run(machine: &Machine, size: Size) -> Result<Report, BenchError> {
    if size.rounds == 0 {
        return Err(BenchError::Nothing { what: "rounds" });
    }
    let pools = WorkerPools::new(machine);
    let mut variants = vec![Variant::Before(LockedPools::new(machine)?)];
    for scope in AffinityScope::ALL {
        variants.push(Variant::Corewise(scope, Corewise::new(&pools, scope)?));
    }
    let plan = Plan { rounds: size.rounds, seed: size.seed };
    let results = paired::run(plan, &mut variants, |variant| variant.run(machine, size.items));
    let names: Vec<_> = variants.iter().map(Variant::names).collect();
    drop(variants);
    pools.shutdown();
    report(&names, &results?, size.seed)
}

fn report(
    names: &[(String, &'static str)],
    results: &[Vec<Outcome>],
    seed: u64,
) -> Result<Report, BenchError> {
    let mut records = Vec::new();
    for ((case, variant), outcomes) in names.iter().zip(results) {
        records.extend(records_of(case, variant, outcomes));
    }
    let nothing = BenchError::Nothing { what: "rounds" };
    let of = |case: String, variant: &str| {
        let found = names.iter().position(|(c, v)| *c == case && *v == variant);
        found.map_or(&[][..], |position| &results[position])
    };
    let ours = of(case(AffinityScope::CacheShard), "corewise");
    let before = of(case(AffinityScope::Cache), "before");
    let (Some(items_vs_before), Some(p50_vs_before)) = (
        ratio(ours, before, |outcome| outcome.items_per_second, seed),
        ratio(before, ours, |outcome| outcome.call_p50, seed),
    ) else {
        return Err(nothing);
    };
    records.push(Record::headline("workqueue", "cache_shard_vs_before_items", &items_vs_before));
    records.push(Record::headline("workqueue", "cache_shard_vs_before_p50", &p50_vs_before));
    Ok(Report { records, items_vs_before, p50_vs_before })
}

/// The ratio of one metric of two variants, pair by pair; `None` where there are no pairs.
pub fn ratio(
    over: &[Outcome],
    under: &[Outcome],
    metric: impl Fn(&Outcome) -> f64,
    seed: u64,
) -> Option<PairedRatio> {
    let over: Vec<f64> = over.iter().map(&metric).collect();
    let under: Vec<f64> = under.iter().map(&metric).collect();
    PairedRatio::of(&over, &under, seed)
}

/// The records of one variant's outcomes.
pub fn records_of(case: &str, variant: &str, outcomes: &[Outcome]) -> Vec<Record> {
    METRICS
        .iter()
        .filter_map(|(metric, unit, of)| {
            let values: Vec<f64> = outcomes.iter().map(of).collect();
            let summary = Summary::of(&values)?;
            Some(Record::new("workqueue", case, variant, metric, unit, summary))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(items_per_second: f64, call_p50: f64) -> Outcome {
        Outcome { items_per_second, call_p50, call_p90: 2.0 * call_p50, call_p95: 3.0 * call_p50 }
    }

    #[test]
    fn headlines_are_ratios_of_pairs_in_which_higher_is_better() {
        let names = [
            (case(AffinityScope::Cache), "before"),
            (case(AffinityScope::Cache), "corewise"),
            (case(AffinityScope::CacheShard), "corewise"),
        ];
        let results = [
            vec![outcome(100.0, 600.0), outcome(10.0, 6_000.0)],
            vec![outcome(1.0, 1.0); 2],
            vec![outcome(500.0, 100.0), outcome(50.0, 1_000.0)],
        ];
        let report = report(&names, &results, 1).unwrap();
        assert_eq!(report.items_vs_before.summary.median, 5.0);
        assert_eq!(report.p50_vs_before.summary.median, 6.0);
        assert_eq!(report.records.len(), 3 * 4 + 2);
        let headline = report.records.last().unwrap();
        assert_eq!(headline.metric, "cache_shard_vs_before_p50");
        assert_eq!((headline.median, headline.runs), (6.0, 2));
    }

    #[test]
    fn the_suite_runs_every_scope_and_before_on_the_live_machine() {
        let machine = Machine::live().unwrap();
        let report = run(&machine, Size { items: 40, rounds: 2, seed: 1 }).unwrap();
        for scope in AffinityScope::ALL {
            let of_scope = report.records.iter().filter(|r| r.case == case(scope));
            let ours: Vec<_> = of_scope.filter(|r| r.variant == "corewise").collect();
            assert_eq!(ours.len(), 4, "{scope}");
            assert!(ours.iter().all(|r| r.runs == 2 && r.min > 0.0), "{ours:?}");
        }
        let before = report.records.iter().filter(|r| r.variant == "before").count();
        assert_eq!(before, 4);
        let headlines = report.records.iter().filter(|r| r.case == "headline").count();
        assert_eq!(headlines, 2);
    }

    #[test]
    fn no_rounds_are_refused() {
        let machine = Machine::synthetic("core:1 pu:1").unwrap();
        let refused = run(&machine, Size { items: 1, rounds: 0, seed: 1 });
        assert!(matches!(refused, Err(BenchError::Nothing { what: "rounds" })));
    }
}
