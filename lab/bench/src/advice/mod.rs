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
mod shards;
#[cfg(test)]
mod tests;

use corewise_topology::AffinityScope;

use crate::names::{Better, CaseName, Place};
use crate::record::grouped;
use crate::report::show;
use crate::rounds::Series;
use crate::stats::PairedRatio;
pub use layout::Layout;
pub use shards::shard_size;

/// So many rounds a difference takes: six coins fall alike in 3 of 100 throws, five in 6.
pub const LEAST_ROUNDS: usize = 6;
/// One in so many comparisons lies outside a 95 % interval by chance.
const IN_BY_CHANCE: usize = 20;

/// Whether a headline with this unit shows a difference, in words.
pub fn verdict(ratio: &PairedRatio, unit: &str) -> &'static str {
    match ratio.summary.runs < LEAST_ROUNDS {
        _ if unit != "ratio" => "no ratio",
        true => "too few rounds to rule out noise",
        false if ratio.is_beyond_noise() => "beyond the noise",
        false => "within the noise",
    }
}

/// What the values of Corewise's scopes say: what to do, then what was found, metric by metric, and which scopes the
/// machine can't tell apart. Other variants than `corewise`, and cases without a scope, are left out; so are metrics by
/// which nobody would choose a scope. `seed` is that of the intervals.
pub fn advise(layout: &Layout, series: &[Series], seed: u64) -> Vec<String> {
    let ours = series.iter().filter(|one| one.variant == "corewise" && decides(one));
    let ours: Vec<(String, Place, &Series)> = ours
        .filter_map(|one| {
            let CaseName { workload, place } = CaseName::of(&one.case);
            Some((format!("{workload} {}", one.metric), place?, one))
        })
        .collect();
    let mut places: Vec<Place> = ours.iter().map(|(_, place, _)| *place).collect();
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
    let rounds = ours.iter().map(|(.., one)| one.values.len()).min().unwrap_or(0);
    let mut found = Vec::new();
    for (about, of) in grouped(&ours, |(about, ..)| about) {
        let better = Better::of_unit(&of[0].2.unit);
        // `None` where one isn't there, they aren't pairs, or a value is 0.
        let ratio = |ours: Place, theirs: Place| {
            let values = |wanted| {
                let (.., one) = of.iter().find(|(_, place, _)| *place == wanted)?;
                (!one.values.contains(&0.0)).then_some(&*one.values)
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
        found.extend(groups[1..].iter().filter_map(|group| {
            let ratio = ratio(group[0], groups[0][0])?;
            let sure = rounds >= LEAST_ROUNDS && ratio.is_beyond_noise() && off(&ratio) > floor;
            let better = sure.then_some(ratio.summary.median > 1.0);
            Some(Found { about, place: group[0], ratio, better })
        }));
    }
    let mut said = vec![lead(&found, &groups, rounds)];
    for (about, found) in grouped(&found, |one| one.about) {
        let sure = found.iter().filter(|one| one.better.is_some());
        let told = sure.map(|Found { place, ratio, .. }| {
            let [median, low, high] = [ratio.summary.median, ratio.low, ratio.high].map(shown);
            format!("{place} was {median} times as good ({low} to {high})")
        });
        let told: Vec<String> = told.collect();
        said.push(match told.is_empty() {
            true => format!("{about}: within the noise."),
            false => {
                format!("{about}: against {}, {}, beyond the noise.", groups[0][0], told.join(", "))
            }
        });
    }
    let alike: Vec<String> =
        groups.iter().filter(|group| group.len() > 1).map(|group| names(group)).collect();
    if !alike.is_empty() {
        let alike = alike.join("; ");
        said.push(format!("The same pods here, so that only noise makes them differ: {alike}."));
    }
    said
}

/// A place against the reference, in one metric of one workload.
struct Found<'a> {
    about: &'a String,
    place: Place,
    /// How many times better the place is; below 1 it is worse.
    ratio: PairedRatio,
    /// Whether it is better or worse beyond the noise.
    better: Option<bool>,
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

/// What to do: the place that gained most and lost nowhere, or the reference.
fn lead(found: &[Found<'_>], groups: &[Vec<Place>], rounds: usize) -> String {
    let Some(reference) = groups.first().map(|group| group[0]) else {
        return "No scope was measured in this run, so there is nothing to advise.".to_owned();
    };
    let known =
        format!("{reference}{}", if reference.is_default() { " (the default)" } else { "" });
    if found.is_empty() {
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
    let compared = count(found.len(), "comparison");
    let ratios = |group: &[Place], better: bool| -> Vec<f64> {
        let of = found.iter().filter(|one| one.place == group[0] && one.better == Some(better));
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
    let chance = match better.len() * IN_BY_CHANCE <= found.len() {
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
            // Debug: an expression of Rust.
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
