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
#[cfg(test)]
mod tests;

use corewise_topology::{AffinityScope, DEFAULT_SHARD_SIZE};

use crate::names::{Better, CaseName, MetricName, Place};
use crate::record::grouped;
use crate::report::show;
use crate::rounds::Series;
use crate::stats::{PairedRatio, median};
pub use layout::Layout;

/// So many rounds a difference takes: six coins fall alike in 3 of 100 throws, five in 6.
pub const LEAST_ROUNDS: usize = 6;
/// So many CPUs can't show what sharding is for.
const FEW_CPUS: usize = 4;
/// One in so many comparisons lies outside a 95 % interval by chance.
const IN_BY_CHANCE: usize = 20;

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
    let ours = series.iter().filter(|one| one.variant == "corewise" && decides(one));
    let ours = ours.filter_map(|one| {
        let CaseName { workload, place } = CaseName::of(&one.case);
        Some((workload, place?, one))
    });
    let asked = grouped(ours, |(workload, _, one)| (workload.clone(), &one.metric));
    let questions = asked.into_iter().map(|((workload, metric), measured)| {
        let better = Better::of_unit(&measured[0].2.unit);
        let values: Vec<_> =
            measured.iter().map(|(_, place, one)| (*place, &*one.values)).collect();
        Question::of(layout, workload, metric, better, &values, seed)
    });
    let run = Run { layout, questions: questions.collect() };
    Advice { lead: run.lead(), findings: run.findings(), limits: run.limits() }
}

/// Whether somebody would choose a scope by this metric. In a ping-pong and at a fixed rate, how many
/// items were done says nothing that the latency doesn't.
fn decides(series: &Series) -> bool {
    let is_rate = series.unit.ends_with("/s");
    let MetricName { stem, percentile } = MetricName::of(&series.metric);
    let (middle, tail) = (percentile == Some(50.0), percentile == Some(99.0));
    match series.case.split('/').next() {
        Some("kernel_test") => is_rate || stem == "call" && middle,
        Some("storm" | "oversubscribed" | "inside") => is_rate,
        Some("fan") => stem == "makespan" && middle,
        Some("pingpong" | "mix") => middle || tail,
        _ => is_rate || middle || tail,
    }
}

/// A place against the one that it is compared with.
struct Against {
    place: Place,
    /// How many times better the place is; below 1 it is worse.
    ratio: PairedRatio,
    /// Whether it is better or worse beyond the noise.
    better: Option<bool>,
}

/// One metric of one workload: which place served best, and against whom that holds.
struct Question {
    workload: String,
    metric: String,
    /// Of the shortest series.
    rounds: usize,
    /// What the others are compared with: the default, or the first one that was measured.
    reference: Place,
    /// All others whose pods differ, the best median first.
    others: Vec<Against>,
    /// By how much places with the same pods were off, at most: 0.03 is 3 %.
    floor: f64,
    /// The places with the same pods of which more than one was measured.
    alike: Vec<Vec<Place>>,
}

impl Question {
    /// With the values of each place, one at least.
    fn of(
        layout: &Layout,
        workload: String,
        metric: &str,
        better: Better,
        values: &[(Place, &[f64])],
        seed: u64,
    ) -> Question {
        // Those with the same pods together, the default first in its group.
        let mut groups: Vec<Vec<(Place, &[f64])>> = Vec::new();
        for &one in values {
            match groups.iter_mut().find(|group| layout.same(group[0].0, one.0)) {
                Some(group) if one.0.is_default() => group.insert(0, one),
                Some(group) => group.push(one),
                None => groups.push(vec![one]),
            }
        }
        // `None` where they aren't pairs, or a value is 0.
        let ratio = |ours: &[f64], theirs: &[f64]| {
            let is_one =
                ours.len() == theirs.len() && !ours.contains(&0.0) && !theirs.contains(&0.0);
            match better {
                _ if !is_one => None,
                Better::Higher => PairedRatio::of(ours, theirs, seed),
                Better::Lower => PairedRatio::of(theirs, ours, seed),
            }
        };
        let off = |ratio: &PairedRatio| ratio.summary.median.max(1.0 / ratio.summary.median) - 1.0;
        let again =
            groups.iter().flat_map(|group| group[1..].iter().map(|one| (one.1, group[0].1)));
        let again = again.filter_map(|(one, first)| ratio(one, first)).map(|ratio| off(&ratio));
        let floor = again.fold(0.0, f64::max);
        let rounds = values.iter().map(|(_, values)| values.len()).min().unwrap_or(0);
        let default = groups.iter().position(|group| group[0].0.is_default());
        let reference = groups[default.unwrap_or(0)][0];
        let mut others: Vec<(Against, f64)> = Vec::new();
        for &(place, of_place) in groups.iter().map(|group| &group[0]) {
            let Some(ratio) = ratio(of_place, reference.1).filter(|_| place != reference.0) else {
                continue;
            };
            let sure = rounds >= LEAST_ROUNDS && ratio.is_beyond_noise() && off(&ratio) > floor;
            let better = sure.then_some(ratio.summary.median > 1.0);
            others.push((Against { place, ratio, better }, median(of_place).unwrap_or(0.0)));
        }
        others.sort_by(|(_, a), (_, b)| better.compare(*a, *b));
        let alike = groups.iter().filter(|group| group.len() > 1);
        Question {
            workload,
            metric: metric.to_owned(),
            rounds,
            reference: reference.0,
            others: others.into_iter().map(|(against, _)| against).collect(),
            floor,
            alike: alike.map(|group| group.iter().map(|(place, _)| *place).collect()).collect(),
        }
    }

    fn about(&self) -> String {
        format!("{} {}", self.workload, self.metric)
    }

    /// What was found beyond the noise.
    fn finding(&self) -> Option<String> {
        let sure = self.others.iter().filter(|against| against.better.is_some());
        let told: Vec<String> = sure
            .map(|Against { place, ratio, .. }| {
                let [median, low, high] = [ratio.summary.median, ratio.low, ratio.high].map(shown);
                format!("{place} was {median} times as good ({low} to {high})")
            })
            .collect();
        (!told.is_empty()).then(|| {
            let (about, reference) = (self.about(), self.reference);
            format!("{about}: against {reference}, {}, beyond the noise.", join(&told))
        })
    }
}

/// A place that isn't the reference, and the questions in which it did better or worse.
struct Tally<'q> {
    place: Place,
    better: Vec<&'q Question>,
    worse: Vec<&'q Question>,
    /// Its ratios where it was better.
    ratios: Vec<f64>,
    /// The product of all its ratios: which of two did better all in all.
    product: f64,
}

/// All questions of a run on a machine.
struct Run<'l> {
    layout: &'l Layout,
    questions: Vec<Question>,
}

impl Run<'_> {
    /// Those with two places to choose from.
    fn compared(&self) -> impl Iterator<Item = &Question> {
        self.questions.iter().filter(|question| !question.others.is_empty())
    }

    fn tallies(&self) -> Vec<Tally<'_>> {
        let all =
            self.questions.iter().flat_map(|q| q.others.iter().map(move |against| (q, against)));
        let tally = |(place, of): (Place, Vec<(_, &Against)>)| {
            let which = |better| of.iter().filter(move |(_, a)| a.better == Some(better));
            Tally {
                place,
                better: which(true).map(|(q, _)| *q).collect(),
                worse: which(false).map(|(q, _)| *q).collect(),
                ratios: which(true).map(|(_, a)| a.ratio.summary.median).collect(),
                product: of.iter().map(|(_, against)| against.ratio.summary.median).product(),
            }
        };
        grouped(all, |(_, against)| against.place).into_iter().map(tally).collect()
    }

    fn lead(&self) -> String {
        let Some(first) = self.compared().next().or(self.questions.first()) else {
            return "No scope was measured in this run, so there is nothing to advise.".to_owned();
        };
        let (reference, known) = (first.reference, named(first.reference));
        let compared = count(self.compared().count(), "comparison");
        if self.compared().next().is_none() {
            return match self.questions.iter().all(|question| question.alike.is_empty()) {
                true => format!("Only {known} was measured: there is nothing to compare it with."),
                false => format!(
                    "This machine can't tell the scopes apart: all that were measured are the same pods. \
                     Leave {known}, and measure again on the machine where the program is to run."
                ),
            };
        }
        let rounds = self.questions.iter().map(|question| question.rounds).min().unwrap_or(0);
        if rounds < LEAST_ROUNDS {
            return format!(
                "Only {} counted: too few to tell a difference from noise, which takes {LEAST_ROUNDS}. Leave \
                 {known} until a longer run says otherwise.",
                count(rounds, "round")
            );
        }
        let all = self.tallies();
        let best = |clear: bool| {
            let better =
                all.iter().filter(|t| !t.better.is_empty() && (!clear || t.worse.is_empty()));
            better.max_by(|a, b| {
                a.better.len().cmp(&b.better.len()).then(a.product.total_cmp(&b.product))
            })
        };
        if let Some(Tally { place, better, ratios, .. }) = best(true) {
            let range =
                ratios.iter().fold((f64::INFINITY, 0.0_f64), |(l, m), r| (l.min(*r), m.max(*r)));
            let made: usize = self.questions.iter().map(|question| question.others.len()).sum();
            let chance = match better.len() * IN_BY_CHANCE <= made {
                true => " So few of so many may be chance: repeat the run before you rely on it.",
                false => "",
            };
            return format!(
                "Use {place}{}: it did better than {known} in {} of {compared}, by {}, and worse in none \
                 beyond the noise. {}{chance}",
                self.same_as(*place),
                better.len(),
                match range.1 - range.0 < 0.005 {
                    true => format!("{} times", shown(range.0)),
                    false => format!("{} to {} times", shown(range.0), shown(range.1)),
                },
                how(*place),
            );
        }
        if let Some(Tally { place, better, worse, .. }) = best(false) {
            return format!(
                "It depends on what a queue is for. Beyond the noise, {place} did better than {known} in {} of \
                 {compared} ({}), and worse in {} ({}). For a queue of the first kind: {} Leave the others as they \
                 are.",
                better.len(),
                workloads(better),
                worse.len(),
                workloads(worse),
                how(*place),
            );
        }
        let behind = all.iter().filter(|tally| !tally.worse.is_empty()).map(
            |Tally { place, worse, .. }| {
                format!("{place}{} in {}", self.same_as(*place), worse.len())
            },
        );
        let behind: Vec<String> = behind.collect();
        let found = match behind.is_empty() {
            true => format!("all differences in {compared} are within the noise"),
            false => format!(
                "nothing did better beyond the noise in {compared}, and worse did {}",
                join(&behind)
            ),
        };
        match reference.is_default() {
            true => format!(
                "Leave {known}: {found}. It takes no call: a queue that names no scope has it."
            ),
            false => format!("Use {reference}: {found}. {}", how(reference)),
        }
    }

    /// A sentence for each metric with a difference beyond the noise; the rest in one.
    fn findings(&self) -> Vec<String> {
        let mut findings: Vec<String> = self.compared().filter_map(Question::finding).collect();
        let noise = self.compared().filter(|question| question.finding().is_none());
        let noise: Vec<String> = noise.map(Question::about).collect();
        if !noise.is_empty() {
            findings.push(format!("Within the noise: {}.", join(&noise)));
        }
        findings
    }

    /// What the machine or the run can't show.
    fn limits(&self) -> Vec<String> {
        let mut limits = Vec::new();
        let alike = grouped(self.questions.iter().flat_map(|q| &q.alike), |group| *group);
        if !alike.is_empty() {
            let names = |(group, _): &(&Vec<Place>, _)| {
                join(&group.iter().map(Place::to_string).collect::<Vec<_>>())
            };
            let floor = self.questions.iter().map(|question| question.floor).fold(0.0, f64::max);
            limits.push(format!(
                "The same pods here, so that only noise makes them differ: {}. In this run they were \
                 off by up to {:.1} %.",
                alike.iter().map(names).collect::<Vec<_>>().join("; "),
                floor * 100.0
            ));
        }
        if self.layout.same(Place::default(), Place::of(AffinityScope::Cache)) {
            limits.push(format!(
                "Each last-level cache is one shard here, so this run says nothing about sharding: that \
                 takes a cache that many more than {DEFAULT_SHARD_SIZE} cores share."
            ));
        }
        if self.layout.cpus() < FEW_CPUS {
            limits.push(format!(
                "With {} the threads that queue and the workers share the same few CPUs: this \
                 machine can't show the cost when many cores want the same line.",
                count(self.layout.cpus(), "CPU")
            ));
        }
        limits
    }

    /// ` (here the same pods as smt)`.
    fn same_as(&self, place: Place) -> String {
        let mut groups = self.questions.iter().flat_map(|question| &question.alike);
        let Some(group) = groups.find(|group| group.contains(&place)) else { return String::new() };
        let same: Vec<String> =
            group.iter().filter(|other| **other != place).map(Place::to_string).collect();
        format!(" (here the same pods as {})", join(&same))
    }
}

fn named(place: Place) -> String {
    format!("{place}{}", if place.is_default() { " (the default)" } else { "" })
}

/// The calls that ask for a place.
fn how(place: Place) -> String {
    match place.scope {
        AffinityScope::CacheShard if !place.is_default() => format!(
            "Build the pools with `WorkerPools::builder(&machine).shard_size({})`.",
            place.shard_size
        ),
        scope => format!(
            "Build the queue with `Workqueue::builder(name).scope(AffinityScope::{scope:?})`."
        ),
    }
}

/// The workloads of these questions, each once.
fn workloads(questions: &[&Question]) -> String {
    let told = grouped(questions, |question| question.workload.clone());
    join(&told.into_iter().map(|(workload, _)| workload).collect::<Vec<_>>())
}

/// Three digits.
fn shown(ratio: f64) -> String {
    show(ratio, "ratio")
}

fn count(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

/// `a`, `a and b`, `a, b and c`.
fn join(items: &[String]) -> String {
    match items {
        [] => String::new(),
        [one] => one.clone(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}
