//! Facts that keep each other from coming about.
//!
//! Each fact counts the facts that keep it, and comes about once enough of them have. The time
//! grows with the number of facts and of such links: each fact comes about once.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ptr::NonNull;

use crate::fork::record::Fork;
use crate::pwq::limit::LimitSlot;
use crate::pwq::queue_core::QueueCore;
use crate::task::header::{Header, Queued};

/// A group's key, and the pool's index in it.
pub(crate) type PoolKey = (NonNull<()>, usize);
/// The instances of a queue that have a colour.
pub(super) type Colour = (NonNull<QueueCore>, u8);

/// A fact that may come about. The pointers are only compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Fact {
    /// The wait with this number ends.
    Wait(u64),
    /// The item that runs comes to its end.
    Item(NonNull<Header>),
    /// The run of a stolen fork comes to its end.
    Fork(NonNull<Fork>),
    /// All instances of the colour come to their end.
    Colour(Colour),
    /// A place under a limit becomes free.
    Place(NonNull<LimitSlot<Queued>>),
    /// A worker of the pool itself becomes free.
    Worker(PoolKey),
    /// A worker comes for the items in the pool.
    Taken(PoolKey),
}

/// The number of keeping facts that have to come about before a fact does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rule {
    All,
    Any,
    /// Any one of several facts, kept or not. `changes` counts the changes by outside threads to
    /// the state behind this rule.
    OneOf {
        all: usize,
        changes: u64,
    },
    /// A rule that nothing keeps.
    Free,
}

#[derive(Default)]
pub(super) struct Graph {
    nodes: HashMap<Fact, Node>,
}

#[derive(Default)]
struct Node {
    kept_by: Vec<Fact>,
    keeps: Vec<Fact>,
    /// The rule of the fact; [`Rule::All`] unless one was set.
    rule: Option<Rule>,
    /// Number of facts that still have to come about.
    missing: usize,
}

/// Facts that don't come about because of each other, and of nothing else. Two that are equal were
/// read from the same state, which lasted from the one reading to the other.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Circle(BTreeMap<Fact, (Option<Rule>, Vec<Fact>)>);

impl Graph {
    /// `before` keeps `fact`.
    pub(super) fn after(&mut self, fact: Fact, before: Fact) {
        self.node(fact).kept_by.push(before);
        self.node(before).keeps.push(fact);
    }

    /// Sets the rule of a fact, if none was set.
    pub(super) fn rule(&mut self, fact: Fact, rule: impl FnOnce() -> Rule) {
        self.node(fact).rule.get_or_insert_with(rule);
    }

    fn node(&mut self, fact: Fact) -> &mut Node {
        self.nodes.entry(fact).or_default()
    }

    /// Lets all facts come about that can.
    pub(super) fn run(&mut self) {
        let mut comes = Vec::new();
        for (fact, node) in &mut self.nodes {
            let kept_by = node.kept_by.len();
            node.missing = match node.rule.unwrap_or(Rule::All) {
                Rule::All => kept_by,
                Rule::Any => kept_by.min(1),
                Rule::OneOf { all, .. } => (kept_by + 1).saturating_sub(all).min(kept_by),
                Rule::Free => 0,
            };
            if node.missing == 0 {
                comes.push(*fact);
            }
        }
        while let Some(fact) = comes.pop() {
            for kept in std::mem::take(&mut self.node(fact).keeps) {
                let node = self.node(kept);
                if node.missing == 1 {
                    comes.push(kept);
                }
                node.missing = node.missing.saturating_sub(1);
            }
        }
    }

    /// Returns true if it can't come about.
    pub(super) fn is_stuck(&self, fact: Fact) -> bool {
        self.nodes.get(&fact).is_some_and(|node| node.missing > 0)
    }

    /// Returns facts that can't come about and need only each other: among the needs of `from` if
    /// that can't come about, else among all.
    pub(super) fn circle(&self, from: Fact) -> Circle {
        let mut region = BTreeSet::new();
        if self.is_stuck(from) {
            self.reach(from, &mut region, |node| &node.kept_by);
        } else {
            region.extend(self.nodes.keys().copied().filter(|fact| self.is_stuck(*fact)));
        }
        // No search from an earlier one has come to the last one from which a search began. So all
        // that need it need each other.
        let (mut seen, mut last) = (BTreeSet::new(), None);
        for fact in region.iter().copied() {
            if !seen.contains(&fact) {
                last = Some(fact);
                self.reach(fact, &mut seen, |node| &node.keeps);
            }
        }
        let mut circle = BTreeSet::new();
        last.into_iter().for_each(|last| self.reach(last, &mut circle, |node| &node.kept_by));
        let of_it = |fact: Fact| {
            let node = &self.nodes[&fact];
            let mut kept_by: Vec<_> =
                node.kept_by.iter().copied().filter(|by| circle.contains(by)).collect();
            kept_by.sort_unstable();
            (fact, (node.rule, kept_by))
        };
        Circle(circle.iter().copied().map(of_it).collect())
    }

    /// Adds the facts that can't come about and are reached from this one to `seen`.
    fn reach(
        &self,
        from: Fact,
        seen: &mut BTreeSet<Fact>,
        next: impl for<'n> Fn(&'n Node) -> &'n [Fact],
    ) {
        let mut found = vec![from];
        while let Some(fact) = found.pop() {
            if seen.insert(fact) {
                let next = next(&self.nodes[&fact]).iter().copied();
                found.extend(next.filter(|fact| self.is_stuck(*fact)));
            }
        }
    }

    pub(super) fn kept_by(&self, fact: Fact) -> &[Fact] {
        self.nodes.get(&fact).map_or(&[], |node| &node.kept_by)
    }
}

impl Circle {
    pub(super) fn has(&self, fact: Fact) -> bool {
        self.0.contains_key(&fact)
    }
}
