//! The sentences.

use corewise_topology::{AffinityScope, DEFAULT_SHARD_SIZE};

use crate::advice::question::{Against, Question, Verdict};
use crate::advice::{Advice, LEAST_ROUNDS, Layout};
use crate::names::Place;
use crate::report::show;

/// So many CPUs can't show what sharding is for.
const FEW_CPUS: usize = 4;
/// One in so many comparisons lies outside a 95 % interval by chance.
const IN_BY_CHANCE: usize = 20;

pub(super) fn advice(layout: &Layout, questions: &[Question]) -> Advice {
    Advice {
        lead: lead(layout, questions),
        findings: findings(questions),
        limits: limits(layout, questions),
    }
}

/// A place that isn't the reference, and where it did better or worse.
struct Tally {
    place: Place,
    better: Vec<usize>,
    worse: Vec<usize>,
    /// The product of its ratios: which of two did better all in all.
    product: f64,
}

fn tallies(questions: &[Question]) -> Vec<Tally> {
    let mut tallies: Vec<Tally> = Vec::new();
    for (n, question) in questions.iter().enumerate() {
        for against in &question.others {
            let position = tallies.iter().position(|tally| tally.place == against.place);
            let position = position.unwrap_or_else(|| {
                let place = against.place;
                tallies.push(Tally { place, better: vec![], worse: vec![], product: 1.0 });
                tallies.len() - 1
            });
            let tally = &mut tallies[position];
            tally.product *= against.ratio.summary.median;
            match against.verdict {
                Verdict::Better => tally.better.push(n),
                Verdict::Worse => tally.worse.push(n),
                Verdict::Noise => {}
            }
        }
    }
    tallies
}

fn lead(layout: &Layout, questions: &[Question]) -> String {
    // The reference of the comparison, if there was one.
    let mut with_others = questions.iter().filter(|question| !question.others.is_empty());
    let first = with_others.next().or(questions.first());
    let Some(reference) = first.and_then(|question| question.reference) else {
        return "No scope was measured in this run, so there is nothing to advise.".to_owned();
    };
    let known = named(reference);
    let others = compared(questions) > 0;
    if !others && questions.iter().any(|question| !question.alike.is_empty()) {
        return format!(
            "This machine can't tell the scopes apart: all that were measured are the same pods. \
             Leave {known}, and measure again on the machine where the program is to run."
        );
    }
    if !others {
        return format!("Only {known} was measured: there is nothing to compare it with.");
    }
    let rounds = questions.iter().map(|question| question.rounds).min().unwrap_or(0);
    if rounds < LEAST_ROUNDS {
        return format!(
            "{} {}: too few to tell a difference from noise, which takes {LEAST_ROUNDS}. Leave \
             {known} until a longer run says otherwise.",
            if rounds == 1 { "Only 1 round" } else { "Only few rounds" },
            if rounds == 1 { "counts".to_owned() } else { format!("count ({rounds})") },
        );
    }
    let all = tallies(questions);
    let best = |candidates: &mut dyn Iterator<Item = &Tally>| -> Option<usize> {
        let best = candidates.max_by(|a, b| {
            let by_count = a.better.len().cmp(&b.better.len());
            by_count.then(a.product.total_cmp(&b.product))
        })?;
        all.iter().position(|tally| tally.place == best.place)
    };
    let clear = best(&mut all.iter().filter(|t| !t.better.is_empty() && t.worse.is_empty()));
    if let Some(winner) = clear.map(|n| &all[n]) {
        return switch(layout, questions, winner, reference);
    }
    match best(&mut all.iter().filter(|tally| !tally.better.is_empty())).map(|n| &all[n]) {
        Some(mixed) => choose(questions, mixed, reference),
        None => keep(layout, questions, &all, reference),
    }
}

/// It is better somewhere and worse nowhere.
fn switch(layout: &Layout, questions: &[Question], winner: &Tally, reference: Place) -> String {
    format!(
        "Use {}{}: it did better than {} in {} of {}, by {}, and worse in none beyond the noise. {}",
        winner.place,
        alike_note(layout, questions, winner.place),
        named(reference),
        winner.better.len(),
        count(compared(questions), "comparison"),
        range_of(questions, &winner.better, winner.place),
        how(winner.place),
    ) + chance_note(questions, winner.better.len())
}

/// How many of the questions had two places to choose from.
fn compared(questions: &[Question]) -> usize {
    questions.iter().filter(|question| !question.others.is_empty()).count()
}

/// Of many comparisons a few come out as differences by chance.
fn chance_note(questions: &[Question], found: usize) -> &'static str {
    let made: usize = questions.iter().map(|question| question.others.len()).sum();
    match found * IN_BY_CHANCE <= made {
        true => " So few of so many may be chance: repeat the run before you rely on it.",
        false => "",
    }
}

/// It is better here and worse there.
fn choose(questions: &[Question], mixed: &Tally, reference: Place) -> String {
    format!(
        "It depends on what a queue is for. Beyond the noise, {} did better than {} in {} of {} ({}), \
         and worse in {} ({}). For a queue of the first kind: {} Leave the others as they are.",
        mixed.place,
        named(reference),
        mixed.better.len(),
        count(compared(questions), "comparison"),
        list_of(questions, &mixed.better),
        mixed.worse.len(),
        list_of(questions, &mixed.worse),
        how(mixed.place),
    )
}

/// Nothing is better.
fn keep(layout: &Layout, questions: &[Question], all: &[Tally], reference: Place) -> String {
    let worse = all.iter().filter(|tally| !tally.worse.is_empty());
    let behind: Vec<String> = worse
        .map(|tally| {
            format!(
                "{}{} in {} of {}",
                tally.place,
                alike_note(layout, questions, tally.place),
                tally.worse.len(),
                compared(questions)
            )
        })
        .collect();
    let compared = count(compared(questions), "comparison");
    let keep = if reference.is_default() {
        format!("Leave {}: ", named(reference))
    } else {
        format!("Use {reference}: ")
    };
    let found = match behind.is_empty() {
        true => format!("whatever differs in {compared} is within the noise."),
        false => format!(
            "nothing did better beyond the noise in {compared}, and worse did {}.",
            join(&behind)
        ),
    };
    let call = match reference.is_default() {
        true => " It takes no call: a queue that names no scope has it.".to_owned(),
        false => format!(" {}", how(reference)),
    };
    format!("{keep}{found}{call}")
}

/// What was found beyond the noise, a sentence a metric; the rest in one.
fn findings(questions: &[Question]) -> Vec<String> {
    let mut findings = Vec::new();
    let mut noise = Vec::new();
    for question in questions {
        match (finding(question), question.reference) {
            (Some(finding), _) => findings.push(finding),
            (None, Some(_)) if !question.others.is_empty() => noise.push(about(question)),
            _ => {}
        }
    }
    if !noise.is_empty() {
        findings.push(format!("Within the noise: {}.", join(&noise)));
    }
    findings
}

fn finding(question: &Question) -> Option<String> {
    let reference = question.reference?;
    let about = about(question);
    let first = question.others.first()?;
    // The best by its median leads the others; the reference is ahead where even that is worse.
    let told = match first.verdict {
        Verdict::Better => format!(
            "{about}: {} served best, {} {reference} ({}), beyond the noise.",
            first.place,
            times(first.ratio.summary.median),
            interval(first, false),
        ),
        Verdict::Worse => format!(
            "{about}: {reference} served best, {} {}, the next one ({}), beyond the noise.",
            times(1.0 / first.ratio.summary.median),
            first.place,
            interval(first, true),
        ),
        Verdict::Noise => {
            let worse = question.others.iter().filter(|a| a.verdict == Verdict::Worse);
            let worse: Vec<String> = worse
                .map(|a| format!("{} ({} times)", a.place, ratio(1.0 / a.ratio.summary.median)))
                .collect();
            if worse.is_empty() {
                return None;
            }
            format!(
                "{about}: {reference} and {} served about alike; {reference} is ahead of {} \
                 beyond the noise.",
                first.place,
                join(&worse),
            )
        }
    };
    Some(told)
}

/// What the machine or the run can't show.
fn limits(layout: &Layout, questions: &[Question]) -> Vec<String> {
    let mut limits = Vec::new();
    let mut alike: Vec<&[Place]> = Vec::new();
    for group in questions.iter().flat_map(|question| &question.alike) {
        if !alike.contains(&group.as_slice()) {
            alike.push(group);
        }
    }
    let floor = questions.iter().map(|question| question.floor).fold(0.0, f64::max);
    if !alike.is_empty() {
        let names =
            alike.iter().map(|group| join(&group.iter().map(Place::to_string).collect::<Vec<_>>()));
        limits.push(format!(
            "The same pods here, so that only noise makes them differ: {}. In this run they were \
             off by up to {:.1} %.",
            names.collect::<Vec<_>>().join("; "),
            floor * 100.0
        ));
    }
    if layout.same(Place::default(), Place::of(AffinityScope::Cache)) {
        limits.push(format!(
            "Each last-level cache is one shard here, so this run says nothing about sharding: that \
             takes a cache that many more than {DEFAULT_SHARD_SIZE} cores share."
        ));
    }
    if layout.cpus() < FEW_CPUS {
        limits.push(format!(
            "With {} the threads that queue and the workers share the same few CPUs: what it costs \
             when many cores want the same line can't be seen here.",
            count(layout.cpus(), "CPU")
        ));
    }
    limits
}

fn about(question: &Question) -> String {
    format!("{} {}", question.workload, question.metric)
}

/// `the default cache_shard`, or the name alone.
fn named(place: Place) -> String {
    match place.is_default() {
        true => format!("{place} (the default)"),
        false => place.to_string(),
    }
}

/// ` (here the same pods as smt)`.
fn alike_note(layout: &Layout, questions: &[Question], place: Place) -> String {
    let mut groups = questions.iter().flat_map(|question| &question.alike);
    let Some(group) = groups.find(|group| group.iter().any(|p| layout.same(*p, place))) else {
        return String::new();
    };
    let same: Vec<String> = group.iter().filter(|p| **p != place).map(Place::to_string).collect();
    format!(" (here the same pods as {})", join(&same))
}

/// The calls that ask for a place.
fn how(place: Place) -> String {
    let variant = match place.scope {
        AffinityScope::Cpu => "Cpu",
        AffinityScope::Smt => "Smt",
        AffinityScope::Cache => "Cache",
        AffinityScope::CacheShard => "CacheShard",
        AffinityScope::Numa => "Numa",
        AffinityScope::System => "System",
    };
    let scope = format!("`Workqueue::builder(name).scope(AffinityScope::{variant})`");
    match place.scope {
        AffinityScope::CacheShard if !place.is_default() => format!(
            "Build the pools with `WorkerPools::builder(&machine).shard_size({})`.",
            place.shard_size
        ),
        _ => format!("Build the queue with {scope}."),
    }
}

/// The workloads of these questions, each once.
fn list_of(questions: &[Question], which: &[usize]) -> String {
    let mut told: Vec<String> = Vec::new();
    for &n in which {
        if !told.contains(&questions[n].workload) {
            told.push(questions[n].workload.clone());
        }
    }
    join(&told)
}

/// `1.42 times`, or `1.42 to 6.3 times`.
fn range_of(questions: &[Question], which: &[usize], place: Place) -> String {
    let against = which.iter().filter_map(|&n| questions[n].against(place));
    let ratios = against.map(|against| against.ratio.summary.median);
    let (least, most) =
        ratios.fold((f64::INFINITY, 0.0_f64), |(least, most), one| (least.min(one), most.max(one)));
    match most - least < 0.005 {
        true => format!("{} times", ratio(least)),
        false => format!("{} to {} times", ratio(least), ratio(most)),
    }
}

fn times(of: f64) -> String {
    format!("{} times as good as", ratio(of))
}

/// Three digits.
fn ratio(of: f64) -> String {
    show(of, "ratio")
}

/// The ends of the interval; turned over where the ratio is.
fn interval(against: &Against, over: bool) -> String {
    let ratio = &against.ratio;
    let (low, high) =
        if over { (1.0 / ratio.high, 1.0 / ratio.low) } else { (ratio.low, ratio.high) };
    format!("{} to {}", self::ratio(low), self::ratio(high))
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
