//! Runs jobs in rounds, in random order within a round, and gathers their figures.
//!
//! A machine gets warm, a neighbour wakes up, a file is cached: such a drift hits all variants of a
//! round about equally. So the ratios within rounds stay true, although the numbers don't. The
//! first round pays for cold caches and first allocations, and is dropped.
//!
//! The variants of one case are a group. They run close to each other.

use std::fmt;
use std::time::{Duration, Instant};

use fastrand::Rng;

use crate::job::Job;
use crate::line::{Line, metrics, unit};
use crate::record::Record;
use crate::stats::{PairedRatio, Summary};

/// A job, and the names of its records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cell {
    /// The run.
    pub job: Job,
    /// The records' case.
    pub case: String,
    /// The records' variant.
    pub variant: String,
    /// True if the allocations are counted too, in one short run of their own.
    pub count: bool,
}

impl Cell {
    fn step(&self, round: usize, plan: Plan) -> Step<'_> {
        Step { cell: self, round, rounds: plan.rounds }
    }
}

/// One metric of one variant in one case, with a value for each round that counts. The `i`th values
/// of two series of a call are a pair.
#[derive(Debug, Clone, PartialEq)]
pub struct Series {
    /// The case, as in [`Record::case`].
    pub case: String,
    /// The variant, as in [`Record::variant`].
    pub variant: String,
    /// The metric, as in [`Record::metric`].
    pub metric: String,
    /// Its unit.
    pub unit: String,
    /// The values, in the order of the rounds.
    pub values: Vec<f64>,
}

impl Series {
    /// Creates a series of known values.
    pub fn of(case: &str, variant: &str, metric: &str, values: &[f64]) -> Series {
        let unit = unit(metric).unwrap_or("x").to_owned();
        let [case, variant, metric] = [case, variant, metric].map(str::to_owned);
        Series { case, variant, metric, unit, values: values.to_vec() }
    }

    /// Returns the record of the summary. `None` if there are no values.
    pub fn record(&self, bench: &str) -> Option<Record> {
        let summary = Summary::of(&self.values)?;
        Some(Record::new(bench, &self.case, &self.variant, &self.metric, &self.unit, summary))
    }
}

/// A run that begins. Its `Display` is a line for a terminal.
#[derive(Debug, Clone, Copy)]
pub struct Step<'c> {
    cell: &'c Cell,
    /// Round 0 doesn't count. The one behind the last counts allocations.
    round: usize,
    rounds: usize,
}

impl fmt::Display for Step<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Step { cell, round, rounds } = self;
        match *round {
            0 => f.write_str("warm-up")?,
            round if round > *rounds => f.write_str("allocations")?,
            round => write!(f, "round {round} of {rounds}")?,
        }
        write!(f, ": {} on {}", cell.case, cell.variant)
    }
}

/// The number of rounds, and the order in them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// Number of rounds that count. One more is run before them.
    pub rounds: usize,
    /// Seed of the orders. The same seed repeats them.
    pub seed: u64,
}

/// Runs the cells of each group against each other, in an order drawn anew for each round. Returns
/// the series of all cells, in their order.
///
/// There are `plan.rounds` rounds, or as many as end within `budget`, and then the runs that count
/// allocations. One round that counts is always begun. If its time is over early, the groups behind
/// the first that haven't begun skip it.
///
/// `run_one` gets the job of a cell, or the one that counts its allocations, and the round. A cell
/// that its runtime can't run is left out from then on. `tell` is called before each run.
///
/// # Errors
/// The first error of a run ends all runs.
pub fn run<E>(
    plan: Plan,
    budget: Option<Duration>,
    groups: &[Vec<Cell>],
    mut run_one: impl FnMut(&Cell, &Job, usize) -> Result<Line, E>,
    mut tell: impl FnMut(Step<'_>),
) -> Result<Vec<Series>, E> {
    let (began, mut longest) = (Instant::now(), Duration::ZERO);
    let over = |round: usize| {
        // Half of the time is for the rounds that count.
        budget.is_some_and(|budget| began.elapsed() > if round == 0 { budget / 2 } else { budget })
    };
    let mut rng = Rng::with_seed(plan.seed);
    let entry = |cell| Entry { cell, able: true, lines: Vec::new() };
    let mut entries: Vec<Vec<Entry<'_>>> =
        groups.iter().map(|group| group.iter().map(entry).collect()).collect();
    let mut orders: Vec<Vec<usize>> = groups.iter().map(|g| (0..g.len()).collect()).collect();
    for round in 0..=plan.rounds {
        if round > 1 && budget.is_some_and(|budget| began.elapsed() + longest > budget) {
            break;
        }
        let since = Instant::now();
        for (number, group) in entries.iter_mut().enumerate() {
            // The whole group is late: a comparison of some of its variants would mislead.
            let late = number > 0 && over(round);
            rng.shuffle(&mut orders[number]);
            for &at in &orders[number] {
                let Entry { cell, able, lines } = &mut group[at];
                tell(cell.step(round, plan));
                if !*able || late {
                    continue;
                }
                let line = run_one(cell, &cell.job, round)?;
                *able = line.unsupported.is_none();
                if *able && round > 0 {
                    lines.push(line);
                }
            }
        }
        longest = longest.max(since.elapsed());
    }
    let mut series = Vec::new();
    for (number, group) in entries.iter().enumerate() {
        for Entry { cell, able, lines } in group {
            series.extend(series_of(cell, lines));
            if cell.count && *able && (number == 0 || !over(plan.rounds)) {
                tell(cell.step(plan.rounds + 1, plan));
                let line = run_one(cell, &cell.job.clone().counting(), plan.rounds + 1)?;
                series.extend(series_of(cell, &[line]));
            }
        }
    }
    Ok(series)
}

/// A cell and its results.
struct Entry<'c> {
    cell: &'c Cell,
    able: bool,
    /// Lines of the rounds that count.
    lines: Vec<Line>,
}

/// Returns a series for each metric that all lines have.
fn series_of(cell: &Cell, lines: &[Line]) -> Vec<Series> {
    let of = |(metric, _): (&str, &str)| {
        let values: Option<Vec<f64>> =
            lines.iter().map(|line| line.metrics.get(metric).copied()).collect();
        let values = values.filter(|values| !values.is_empty())?;
        Some(Series::of(&cell.case, &cell.variant, metric, &values))
    };
    metrics().filter_map(of).collect()
}

/// Returns the values of one metric of one variant in one case.
pub fn values<'s>(
    series: &'s [Series],
    case: &str,
    variant: &str,
    metric: &str,
) -> Option<&'s [f64]> {
    let found = series
        .iter()
        .find(|one| one.case == case && one.variant == variant && one.metric == metric)?;
    Some(&found.values)
}

/// A headline: its name and its ratio.
pub type Headline = (&'static str, PairedRatio);

/// Returns the records of all series of a benchmark, then the headlines' intervals, then the
/// headlines.
pub fn records(bench: &str, series: &[Series], headlines: &[Headline]) -> Vec<Record> {
    let mut records: Vec<Record> = series.iter().filter_map(|one| one.record(bench)).collect();
    records.extend(headlines.iter().map(|(name, of)| Record::interval(bench, name, of)));
    records.extend(headlines.iter().map(|(name, of)| Record::headline(bench, name, of)));
    records
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workqueue::BENCH;

    fn cell(case: &str, runtime: &str) -> Cell {
        let job = Job::plain(&BENCH, case, runtime);
        let variant = runtime.to_owned();
        Cell { job, case: case.to_owned(), variant, count: case == "inside" }
    }

    fn groups() -> Vec<Vec<Cell>> {
        vec![vec![cell("inside", "a"), cell("inside", "b")], vec![cell("fan", "a")]]
    }

    fn answer(job: &Job) -> Result<Line, ()> {
        let mut line = job.line();
        if job.runtime == "b" {
            line.unsupported = Some("no".to_owned());
        } else if job.count {
            line.set("allocations_per_item", 1.0);
        } else {
            line.set("items_per_second", 5e5);
        }
        Ok(line)
    }

    #[test]
    fn values_come_round_by_round_and_allocations_once() {
        let plan = Plan { rounds: 3, seed: 1 };
        let mut steps = Vec::new();
        let tell = |step: Step<'_>| steps.push(step.to_string());
        let series = run(plan, None, &groups(), |_, job, _| answer(job), tell).unwrap();
        let rate = values(&series, "inside", "a", "items_per_second");
        assert_eq!(rate, Some(&[5e5; 3][..]));
        assert_eq!(values(&series, "inside", "a", "allocations_per_item"), Some(&[1.0][..]));
        assert_eq!(values(&series, "fan", "a", "allocations_per_item"), None);
        assert!(series.iter().all(|one| one.variant == "a"), "b can't");
        assert_eq!(steps.len(), 4 * 3 + 1, "{steps:?}");
        assert_eq!((&*steps[2], &*steps[5]), ("warm-up: fan on a", "round 1 of 3: fan on a"));
        assert_eq!(steps[12], "allocations: inside on a");
    }

    #[test]
    fn a_spent_budget_leaves_one_round_that_counts() {
        let plan = Plan { rounds: 30, seed: 1 };
        let series =
            run(plan, Some(Duration::ZERO), &groups(), |_, job, _| answer(job), |_| ()).unwrap();
        let rate = values(&series, "inside", "a", "items_per_second");
        assert_eq!(rate.unwrap().len(), 1);
        assert_eq!(values(&series, "fan", "a", "items_per_second"), None);
    }

    /// Returns the runs of two groups, of three variants and one, in their order: number, and
    /// round.
    fn traced(plan: Plan) -> Vec<(usize, usize)> {
        let cells = ["0", "1", "2", "3"].map(|runtime| cell("fan", runtime));
        let groups = [cells[..3].to_vec(), cells[3..].to_vec()];
        let mut order = Vec::new();
        let run_one = |_: &Cell, job: &Job, round: usize| {
            order.push((job.runtime.parse().unwrap(), round));
            answer(job)
        };
        run(plan, None, &groups, run_one, |_| ()).unwrap();
        order
    }

    #[test]
    fn each_round_has_each_variant_once_group_by_group_in_an_order_that_its_seed_repeats() {
        let plan = Plan { rounds: 20, seed: 5 };
        let order = traced(plan);
        for (number, round) in order.chunks(4).enumerate() {
            assert!(round.iter().all(|(_, of)| *of == number));
            assert_eq!(round[3].0, 3, "the other group comes behind");
            let mut variants: Vec<usize> = round[..3].iter().map(|(variant, _)| *variant).collect();
            variants.sort_unstable();
            assert_eq!(variants, [0, 1, 2]);
        }
        let of = |round: usize| order[4 * round..][..3].iter().map(|(variant, _)| *variant);
        assert!((1..20).any(|round| !of(round).eq(of(0))), "one order for all rounds");
        assert_eq!(order, traced(plan));
        assert_ne!(order, traced(Plan { seed: 6, ..plan }));
    }

    #[test]
    fn the_first_error_ends_the_run() {
        let mut runs = 0;
        let run_one = |_: &Cell, job: &Job, _: usize| {
            runs += 1;
            if runs == 3 { Err(()) } else { answer(job) }
        };
        let result = run(Plan { rounds: 9, seed: 1 }, None, &groups(), run_one, |_| ());
        assert_eq!((result, runs), (Err(()), 3));
    }
}
