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

use corewise_topology::AffinityScope;

use crate::names::{Better, CaseName, Place};
use crate::record::grouped;
use crate::report::show;
use crate::rounds::Series;
use crate::stats::PairedRatio;
pub use layout::Layout;

/// So many rounds a difference takes: six coins fall alike in 3 of 100 throws, five in 6.
pub const LEAST_ROUNDS: usize = 6;
/// One in so many comparisons lies outside a 95 % interval by chance.
const IN_BY_CHANCE: usize = 20;

/// What the values of Corewise's scopes say: what to do, then what was found, metric by metric, and which scopes the
/// machine can't tell apart. Other variants than `corewise`, and cases without a scope, are left out; so are metrics by
/// which nobody would choose a scope. `seed` is that of the intervals.
pub fn advise(layout: &Layout, series: &[Series], seed: u64) -> Vec<String> {
    let ours = series.iter().filter(|one| one.variant == "corewise" && decides(one));
    let ours = ours.filter_map(|one| {
        let CaseName { workload, place } = CaseName::of(&one.case);
        Some(Measured { workload, place: place?, series: one })
    });
    let ours: Vec<Measured<'_>> = ours.collect();
    let mut places: Vec<Place> = ours.iter().map(|one| one.place).collect();
    places.sort_by_key(|place| !place.is_default());
    // Those with the same pods together, the default first.
    let mut groups: Vec<Vec<Place>> = Vec::new();
    for place in places {
        match groups.iter_mut().find(|group| layout.same(group[0], place)) {
            Some(group) if group.contains(&place) => {}
            Some(group) => group.push(place),
            None => groups.push(vec![place]),
        }
    }
    let rounds = ours.iter().map(|one| one.series.values.len()).min().unwrap_or(0);
    let asked = grouped(&ours, |one| (&one.workload, &one.series.metric));
    let questions = asked.iter().filter_map(|(_, of)| Question::of(of, &groups, rounds, seed));
    let questions: Vec<Question> = questions.collect();
    let mut said = vec![lead(&questions, &groups, rounds)];
    said.extend(questions.iter().filter_map(|question| question.finding(groups[0][0])));
    let noise: Vec<String> = questions.iter().filter_map(Question::noise).collect();
    if !noise.is_empty() {
        said.push(format!("Within the noise: {}.", join(&noise)));
    }
    let alike: Vec<String> =
        groups.iter().filter(|group| group.len() > 1).map(|group| names(group)).collect();
    if !alike.is_empty() {
        said.push(format!(
            "The same pods here, so that only noise makes them differ: {}.",
            alike.join("; ")
        ));
    }
    said
}

/// Whether somebody would choose a scope by this metric. In a ping-pong and at a fixed rate, how many
/// items were done says nothing that the latency doesn't.
fn decides(series: &Series) -> bool {
    let (metric, is_rate) = (&*series.metric, series.unit.ends_with("/s"));
    let is_time = metric.ends_with("_p50") || metric.ends_with("_p99");
    match series.case.split('/').next() {
        Some("kernel_test") => is_rate || metric == "call_p50",
        Some("storm" | "oversubscribed" | "inside") => is_rate,
        Some("fan") => metric == "makespan_p50",
        Some("pingpong" | "mix") => is_time,
        _ => is_rate || is_time,
    }
}

/// One metric of one workload at one place.
struct Measured<'s> {
    workload: String,
    place: Place,
    series: &'s Series,
}

/// A place against the reference.
struct Against {
    place: Place,
    /// How many times better the place is; below 1 it is worse.
    ratio: PairedRatio,
    /// Whether it is better or worse beyond the noise.
    better: Option<bool>,
}

/// One metric of one workload: which places served better or worse than the reference.
struct Question {
    about: String,
    /// One at least.
    others: Vec<Against>,
}

impl Question {
    /// `None` where there is nothing to compare. The reference is the first of the first group.
    fn of(of: &[&Measured<'_>], groups: &[Vec<Place>], rounds: usize, seed: u64) -> Option<Self> {
        let better = Better::of_unit(&of[0].series.unit);
        // `None` where one isn't there, they aren't pairs, or a value is 0.
        let ratio = |ours: Place, theirs: Place| {
            let values = |place| {
                let values = &*of.iter().find(|one| one.place == place)?.series.values;
                (!values.contains(&0.0)).then_some(values)
            };
            match (values(ours)?, values(theirs)?) {
                (ours, theirs) if ours.len() != theirs.len() => None,
                (ours, theirs) if better == Better::Higher => PairedRatio::of(ours, theirs, seed),
                (ours, theirs) => PairedRatio::of(theirs, ours, seed),
            }
        };
        let off = |ratio: &PairedRatio| ratio.summary.median.max(1.0 / ratio.summary.median) - 1.0;
        let twins = groups.iter().flat_map(|group| group[1..].iter().map(|twin| (*twin, group[0])));
        let floor = twins.filter_map(|(twin, first)| ratio(twin, first)).map(|of| off(&of));
        let floor = floor.fold(0.0, f64::max);
        let against = |place: Place| {
            let ratio = ratio(place, groups[0][0])?;
            let sure = rounds >= LEAST_ROUNDS && ratio.is_beyond_noise() && off(&ratio) > floor;
            let better = sure.then_some(ratio.summary.median > 1.0);
            Some(Against { place, ratio, better })
        };
        let others: Vec<_> = groups[1..].iter().filter_map(|group| against(group[0])).collect();
        let about = format!("{} {}", of[0].workload, of[0].series.metric);
        (!others.is_empty()).then_some(Question { about, others })
    }

    /// What is beyond the noise.
    fn finding(&self, reference: Place) -> Option<String> {
        let told = |Against { place, ratio, .. }: &Against| {
            let [median, low, high] = [ratio.summary.median, ratio.low, ratio.high].map(shown);
            format!("{place} was {median} times as good ({low} to {high})")
        };
        let sure = self.others.iter().filter(|one| one.better.is_some());
        let told: Vec<String> = sure.map(told).collect();
        let about = &self.about;
        (!told.is_empty())
            .then(|| format!("{about}: against {reference}, {}, beyond the noise.", join(&told)))
    }

    /// Its name where nothing is.
    fn noise(&self) -> Option<String> {
        self.others.iter().all(|one| one.better.is_none()).then(|| self.about.clone())
    }
}

/// What to do: the place that gained most and lost nowhere, or the reference.
fn lead(questions: &[Question], groups: &[Vec<Place>], rounds: usize) -> String {
    let Some(reference) = groups.first().map(|group| group[0]) else {
        return "No scope was measured in this run, so there is nothing to advise.".to_owned();
    };
    let known =
        format!("{reference}{}", if reference.is_default() { " (the default)" } else { "" });
    if questions.is_empty() {
        return format!(
            "Leave {known}: no other pods were measured, so there is nothing to compare it with."
        );
    }
    if rounds < LEAST_ROUNDS {
        return format!(
            "Leave {known}: {} counted, too few to tell a difference from noise, which takes {LEAST_ROUNDS}.",
            count(rounds, "round")
        );
    }
    let compared = count(questions.len(), "comparison");
    let ratios = |group: &[Place], better: bool| -> Vec<f64> {
        let all = questions.iter().flat_map(|question| &question.others);
        let of = all.filter(|one| one.place == group[0] && one.better == Some(better));
        of.map(|one| one.ratio.summary.median).collect()
    };
    let gain = |group: &Vec<Place>| ratios(group, true).iter().product::<f64>();
    let lost_nowhere = groups[1..].iter().filter(|group| ratios(group, false).is_empty());
    let best = lost_nowhere.max_by(|a, b| gain(a).total_cmp(&gain(b)));
    let Some((group, better)) =
        best.map(|group| (group, ratios(group, true))).filter(|(_, better)| !better.is_empty())
    else {
        let how = match reference.is_default() {
            true => "It takes no call: a queue that names no scope has it.".to_owned(),
            false => how(reference),
        };
        return format!(
            "Leave {known}: in {compared} nothing did better beyond the noise, and nowhere worse. {how}"
        );
    };
    let [least, most] =
        [f64::min, f64::max].map(|of| shown(better.iter().copied().fold(better[0], of)));
    let by = if least == most { least } else { format!("{least} to {most}") };
    let made: usize = questions.iter().map(|question| question.others.len()).sum();
    let chance = match better.len() * IN_BY_CHANCE <= made {
        true => " So few of so many may be chance: repeat the run before you rely on it.",
        false => "",
    };
    format!(
        "Use {}: it did better than {known} in {} of {compared}, by {by} times, and worse in none beyond the \
         noise. {}{chance}",
        names(group),
        better.len(),
        how(group[0]),
    )
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

/// Places with the same pods: `cpu or smt`.
fn names(group: &[Place]) -> String {
    group.iter().map(Place::to_string).collect::<Vec<_>>().join(" or ")
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
