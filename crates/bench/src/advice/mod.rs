//! What a run says about the scope and the shard size to choose, in sentences.
//!
//! [`advise`] is a pure function of the measured values, round by round, and of which scopes are the
//! same pods on this machine. It calls something a difference only where
//!
//! * the 95 % interval of the ratio of pairs excludes 1,
//! * the ratio is off by more than 5 %, and by more than two scopes with *the same pods* were off in
//!   this very run (nothing but the noise can make those differ),
//! * and at least [`LEAST_ROUNDS`] rounds count: with fewer, all of them fall on one side by chance
//!   in more than 5 of 100 runs.

mod layout;
mod question;
#[cfg(test)]
mod tests;
mod words;

pub use layout::Layout;

use crate::names::{Better, CaseName, MetricName, Place};
use crate::record::Record;
use crate::stats::Summary;
use question::Question;

/// So many rounds a difference takes: six coins fall alike in 3 of 100 throws, five in 6.
pub const LEAST_ROUNDS: usize = 6;

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
    /// The record of its summary; `None` where there are no values.
    pub fn record(&self, bench: &str) -> Option<Record> {
        let summary = Summary::of(&self.values)?;
        Some(Record::new(bench, &self.case, &self.variant, &self.metric, &self.unit, summary))
    }
}

#[cfg(test)]
impl Series {
    /// Of no run: for the tests of what is made from series.
    pub(crate) fn made_up(case: &str, variant: &str, metric: &str, values: [f64; 2]) -> Series {
        Series {
            case: case.to_owned(),
            variant: variant.to_owned(),
            metric: metric.to_owned(),
            unit: "x".to_owned(),
            values: values.into(),
        }
    }
}

/// What a run says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Advice {
    /// What to do, in a few sentences.
    pub lead: String,
    /// What was found, workload by workload.
    pub findings: Vec<String>,
    /// What this run can't show.
    pub limits: Vec<String>,
}

impl Advice {
    /// All its sentences, in order.
    pub fn sentences(&self) -> impl Iterator<Item = &str> {
        let rest = self.findings.iter().chain(&self.limits);
        std::iter::once(self.lead.as_str()).chain(rest.map(String::as_str))
    }
}

/// What the values of Corewise's scopes say. Other variants than `corewise`, and cases without a
/// scope, are left out; so are metrics by which nobody would choose a scope. `seed` is that of the
/// intervals.
pub fn advise(layout: &Layout, series: &[Series], seed: u64) -> Advice {
    let questions = questions(layout, series, seed);
    words::advice(layout, &questions)
}

/// The values of a metric, round by round, for each place that was measured.
type Values<'s> = Vec<(Place, &'s [f64])>;

/// What each workload's deciding metrics say, in the order in which they were measured.
fn questions(layout: &Layout, series: &[Series], seed: u64) -> Vec<Question> {
    let mut gathered: Vec<(Question, Values<'_>)> = Vec::new();
    for one in series.iter().filter(|one| one.variant == "corewise" && decides(one)) {
        let case = CaseName::of(&one.case);
        let Some(place) = case.place else { continue };
        let position = gathered.iter().position(|(question, _)| {
            question.workload == case.workload && question.metric == one.metric
        });
        let position = position.unwrap_or_else(|| {
            gathered.push((
                Question::new(case.workload, &one.metric, Better::of_unit(&one.unit)),
                Vec::new(),
            ));
            gathered.len() - 1
        });
        gathered[position].1.push((place, &one.values));
    }
    gathered.into_iter().map(|(question, values)| question.answer(layout, &values, seed)).collect()
}

/// Whether somebody would choose a scope by this metric. In a ping-pong and at a fixed rate, how many
/// items were done says nothing that the latency doesn't.
fn decides(series: &Series) -> bool {
    let is_rate = series.unit.ends_with("/s");
    let MetricName { stem, percentile } = MetricName::of(&series.metric);
    match series.case.split('/').next() {
        Some("kernel_test") => is_rate || (stem == "call" && percentile == Some(50.0)),
        Some("storm" | "oversubscribed" | "inside") => is_rate,
        Some("fan") => stem == "makespan" && percentile == Some(50.0),
        Some("pingpong" | "mix") => percentile.is_some_and(|p| p == 50.0 || p == 99.0),
        _ => is_rate || percentile.is_some_and(|p| p == 50.0 || p == 99.0),
    }
}
