//! Runs jobs in rounds, and gathers what their lines say.

use std::time::{Duration, Instant};

use crate::advice::Series;
use crate::line::{Line, METRICS};
use crate::paired::{self, Plan};
use crate::process::Job;
use crate::record::Record;
use crate::stats::PairedRatio;

/// A job, and what its records are called.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cell<J> {
    /// The run.
    pub job: J,
    /// The records' case.
    pub case: String,
    /// The records' variant.
    pub variant: String,
    /// Whether the allocations are counted too, in one short run of their own.
    pub count: bool,
}

impl<J> Cell<J> {
    fn step(&self, done: usize, all: usize, round: usize) -> Step<'_> {
        Step { case: &self.case, variant: &self.variant, done, all, round }
    }
}

/// How far a call is.
#[derive(Debug, Clone, Copy)]
pub struct Step<'c> {
    /// The case of the run that begins.
    pub case: &'c str,
    /// Its variant.
    pub variant: &'c str,
    /// Runs so far.
    pub done: usize,
    /// Runs in all, unless the time is over before.
    pub all: usize,
    /// 0: the round that doesn't count; the one behind the last counts allocations.
    pub round: usize,
}

/// Runs the cells of each group against each other: `plan.rounds` rounds, or as many as come to an
/// end within `budget`, and then the runs that count allocations. One round that counts is always
/// begun; where the time is over in its middle, all groups but the first do without the rest of it.
/// A cell that its runtime can't run is left out from then on. The series of all cells, in their
/// order.
///
/// # Errors
/// The first error of a run ends everything.
pub fn run<J: Job, E>(
    plan: Plan,
    budget: Option<Duration>,
    groups: &[Vec<Cell<J>>],
    mut run_one: impl FnMut(&J) -> Result<Line, E>,
    mut tell: impl FnMut(Step<'_>),
) -> Result<Vec<Series>, E> {
    let cells: usize = groups.iter().map(Vec::len).sum();
    let counting = groups.iter().flatten().filter(|cell| cell.count).count();
    let all = cells * (plan.rounds + 1) + counting;
    let (began, mut done) = (Instant::now(), 0);
    // When the round began that is on, and how long the longest before it was.
    let pace = std::cell::Cell::new((began, Duration::ZERO));
    let next_round = || {
        let ((since, longest), now) = (pace.get(), Instant::now());
        pace.set((now, longest.max(now - since)));
    };
    let entry = |number: usize| move |cell| Entry { cell, able: true, first: number == 0 };
    let numbered = groups.iter().enumerate();
    let mut entries: Vec<Vec<Entry<'_, J>>> =
        numbered.map(|(number, group)| group.iter().map(entry(number)).collect()).collect();
    let another = |_| {
        next_round();
        budget.is_none_or(|budget| began.elapsed() + pace.get().1 <= budget)
    };
    let over = |round: usize| {
        // Half of the time is for what counts.
        budget.is_some_and(|budget| began.elapsed() > if round == 0 { budget / 2 } else { budget })
    };
    let results = paired::run(plan, &mut entries, another, |entry| {
        let round = done / cells.max(1);
        if done == cells {
            // Nobody asks before this one.
            next_round();
        }
        tell(entry.cell.step(done, all, round));
        done += 1;
        if !entry.able || (!entry.first && over(round)) {
            return Ok(None);
        }
        let line = run_one(&entry.cell.job)?;
        entry.able = line.unsupported.is_none();
        Ok(entry.able.then_some(line))
    })?;
    let mut series = Vec::new();
    for (cells, results) in entries.iter().zip(results) {
        for (Entry { cell, able, first }, lines) in cells.iter().zip(results) {
            let lines: Vec<Line> = lines.into_iter().flatten().collect();
            series.extend(series_of(cell, &lines));
            if cell.count && *able && (*first || !over(plan.rounds)) {
                tell(cell.step(done, all, plan.rounds + 1));
                let line = run_one(&cell.job.clone().counting())?;
                series.extend(series_of(cell, &[line]));
            }
            done += usize::from(cell.count);
        }
    }
    Ok(series)
}

/// A cell, while it is run.
struct Entry<'c, J> {
    cell: &'c Cell<J>,
    able: bool,
    /// Of the first group, which is run whatever time it takes.
    first: bool,
}

/// A series for each metric that every line has.
fn series_of<J>(cell: &Cell<J>, lines: &[Line]) -> Vec<Series> {
    let of = |&(metric, unit): &(&str, &str)| {
        let values: Option<Vec<f64>> =
            lines.iter().map(|line| line.metrics.get(metric).copied()).collect();
        let values = values.filter(|values| !values.is_empty())?;
        let (case, variant) = (cell.case.clone(), cell.variant.clone());
        Some(Series { case, variant, metric: metric.to_owned(), unit: unit.to_owned(), values })
    };
    METRICS.iter().filter_map(of).collect()
}

/// The values of one metric of one variant in one case.
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

/// The ratio of two lists of values, pair by pair; `None` where one is missing.
pub fn ratio(over: Option<&[f64]>, under: Option<&[f64]>, seed: u64) -> Option<PairedRatio> {
    let (over, under) = (over?, under?);
    let pairs = over.len().min(under.len());
    PairedRatio::of(&over[..pairs], &under[..pairs], seed)
}

/// Of some ratios the one that is worst, where less is better.
pub fn worst(ratios: impl IntoIterator<Item = PairedRatio>) -> Option<PairedRatio> {
    ratios.into_iter().max_by(|a, b| a.summary.median.total_cmp(&b.summary.median))
}

/// A headline: its name, and the ratio that it is.
pub type Headline = (&'static str, PairedRatio);

/// Those headlines that were measured.
pub fn measured<const N: usize>(all: [(&'static str, Option<PairedRatio>); N]) -> Vec<Headline> {
    all.into_iter().filter_map(|(name, ratio)| Some((name, ratio?))).collect()
}

/// The records of all series of a benchmark, headlines last.
pub fn records(bench: &str, series: &[Series], headlines: &[Headline]) -> Vec<Record> {
    let mut records: Vec<Record> = series.iter().filter_map(|one| one.record(bench)).collect();
    records.extend(headlines.iter().map(|(name, of)| Record::headline(bench, name, of)));
    records
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::words::Effort;
    use crate::workqueue::case::Case;
    use crate::workqueue::job;
    use corewise_topology::CpuSet;

    fn cell(case: Case, runtime: &str) -> Cell<job::Job> {
        let job = job::Job::new(case, runtime, &CpuSet::full(2), Effort::Quick);
        let variant = runtime.to_owned();
        Cell { job, case: case.to_string(), variant, count: case == Case::Inside }
    }

    fn groups() -> Vec<Vec<Cell<job::Job>>> {
        vec![vec![cell(Case::Inside, "a"), cell(Case::Inside, "b")], vec![cell(Case::Fan, "a")]]
    }

    fn answer(job: &job::Job) -> Result<Line, ()> {
        let mut line = job.line();
        if job.runtime == "b" {
            line.unsupported = Some("no".to_owned());
        } else if job.count {
            line.set("allocations_per_item", 1.0);
        } else {
            line.set("items_per_second", job.items as f64);
        }
        Ok(line)
    }

    #[test]
    fn values_come_round_by_round_and_allocations_once() {
        let plan = Plan { rounds: 3, seed: 1 };
        let mut steps = Vec::new();
        let tell = |step: Step<'_>| steps.push((step.round, step.done, step.all));
        let series = run(plan, None, &groups(), answer, tell).unwrap();
        let rate = values(&series, "inside", "a", "items_per_second");
        assert_eq!(rate, Some(&[5e5; 3][..]));
        assert_eq!(values(&series, "inside", "a", "allocations_per_item"), Some(&[1.0][..]));
        assert_eq!(values(&series, "fan", "a", "allocations_per_item"), None);
        assert!(series.iter().all(|one| one.variant == "a"), "b can't");
        assert_eq!(steps.first(), Some(&(0, 0, 14)));
        assert_eq!(steps.last(), Some(&(4, 12, 14)));
        assert_eq!(ratio(rate, rate, 1).unwrap().summary.median, 1.0);
        assert!(ratio(rate, None, 1).is_none());
    }

    #[test]
    fn a_spent_budget_leaves_one_round_that_counts() {
        let plan = Plan { rounds: 30, seed: 1 };
        let series = run(plan, Some(Duration::ZERO), &groups(), answer, |_| ()).unwrap();
        let rate = values(&series, "inside", "a", "items_per_second");
        assert_eq!(rate.unwrap().len(), 1);
        assert_eq!(values(&series, "fan", "a", "items_per_second"), None);
    }
}
