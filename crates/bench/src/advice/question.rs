//! One metric of one workload: which place served best, and against whom that holds.

use crate::advice::{LEAST_ROUNDS, Layout};
use crate::names::{Better, Place};
use crate::stats::{PairedRatio, median};

/// A place against the one that it is compared with.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Against {
    pub(super) place: Place,
    /// How many times better the place is; below 1 it is worse.
    pub(super) ratio: PairedRatio,
    pub(super) verdict: Verdict,
}

/// What may be said of a ratio.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Better,
    Worse,
    Noise,
}

/// One metric of one workload, and what was found.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Question {
    pub(super) workload: String,
    pub(super) metric: String,
    pub(super) better: Better,
    /// The rounds of the shortest series.
    pub(super) rounds: usize,
    /// What the others are compared with: the default, or the first one that was measured.
    pub(super) reference: Option<Place>,
    /// All others whose pods differ, the best median first.
    pub(super) others: Vec<Against>,
    /// By how much places with the same pods were off, at most: 0.03 is 3 %.
    pub(super) floor: f64,
    /// The places with the same pods of which more than one was measured.
    pub(super) alike: Vec<Vec<Place>>,
}

impl Question {
    pub(super) fn new(workload: String, metric: &str, better: Better) -> Question {
        Question {
            workload,
            metric: metric.to_owned(),
            better,
            rounds: 0,
            reference: None,
            others: Vec::new(),
            floor: 0.0,
            alike: Vec::new(),
        }
    }

    /// With the values of each place.
    pub(super) fn answer(
        mut self,
        layout: &Layout,
        values: &[(Place, &[f64])],
        seed: u64,
    ) -> Question {
        self.rounds = values.iter().map(|(_, values)| values.len()).min().unwrap_or(0);
        let groups = groups(layout, values);
        for group in groups.iter().filter(|group| group.len() > 1) {
            self.alike.push(group.iter().map(|(place, _)| *place).collect());
            for (_, again) in &group[1..] {
                if let Some(ratio) = self.ratio(again, group[0].1, seed) {
                    self.floor = self.floor.max(off(&ratio));
                }
            }
        }
        let default = groups.iter().position(|group| group.iter().any(|(p, _)| p.is_default()));
        let Some(reference) = groups.get(default.unwrap_or(0)).map(|group| group[0]) else {
            return self;
        };
        self.reference = Some(reference.0);
        let mut others: Vec<(Against, f64)> = Vec::new();
        for group in groups.iter().filter(|group| group[0].0 != reference.0) {
            let (place, of_place) = group[0];
            let Some(ratio) = self.ratio(of_place, reference.1, seed) else { continue };
            let verdict = self.verdict(&ratio);
            others.push((Against { place, ratio, verdict }, median(of_place).unwrap_or(0.0)));
        }
        others.sort_by(|(_, a), (_, b)| match self.better {
            Better::Higher => b.total_cmp(a),
            Better::Lower => a.total_cmp(b),
        });
        self.others = others.into_iter().map(|(against, _)| against).collect();
        self
    }

    /// How many times better `ours` is than `theirs`; `None` where they aren't pairs, or a value is
    /// 0.
    fn ratio(&self, ours: &[f64], theirs: &[f64], seed: u64) -> Option<PairedRatio> {
        if ours.len() != theirs.len() || ours.contains(&0.0) || theirs.contains(&0.0) {
            return None;
        }
        match self.better {
            Better::Higher => PairedRatio::of(ours, theirs, seed),
            Better::Lower => PairedRatio::of(theirs, ours, seed),
        }
    }

    fn verdict(&self, ratio: &PairedRatio) -> Verdict {
        let sure = self.rounds >= LEAST_ROUNDS && ratio.is_beyond_noise();
        match () {
            () if !sure || off(ratio) <= self.floor => Verdict::Noise,
            () if ratio.summary.median > 1.0 => Verdict::Better,
            () => Verdict::Worse,
        }
    }

    /// Of the reference, of one place: what was found.
    pub(super) fn against(&self, place: Place) -> Option<&Against> {
        self.others.iter().find(|against| against.place == place)
    }
}

/// By what part a ratio is off from 1, in whichever direction.
fn off(ratio: &PairedRatio) -> f64 {
    let median = ratio.summary.median;
    median.max(1.0 / median) - 1.0
}

/// The places that were measured, those with the same pods together: the default first in its group,
/// then as they came.
fn groups<'v>(layout: &Layout, values: &[(Place, &'v [f64])]) -> Vec<Vec<(Place, &'v [f64])>> {
    let mut groups: Vec<Vec<(Place, &[f64])>> = Vec::new();
    for &(place, of_place) in values {
        match groups.iter_mut().find(|group| layout.same(group[0].0, place)) {
            Some(group) if place.is_default() => group.insert(0, (place, of_place)),
            Some(group) => group.push((place, of_place)),
            None => groups.push(vec![(place, of_place)]),
        }
    }
    groups
}
