//! The account of a run's time: an item's share of each count, by file and field.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use corewise_bench::line::Line;
use corewise_sim::{Distance, Site, SiteCount, Tally};
use serde::Serialize;

use crate::names::Names;

/// Counts by distance, without zeros.
pub(crate) type ByDistance = BTreeMap<&'static str, f64>;

/// An item's share of a run's events and time.
#[derive(Debug, Serialize)]
pub(crate) struct Account {
    /// Items of the measured pass.
    pub(crate) items: f64,
    /// Virtual time of the measured pass.
    pub(crate) nanoseconds: f64,
    /// Lines from another CPU, by its distance.
    pub(crate) transfers: ByDistance,
    /// Woken threads, by the distance of their CPU from the waker's.
    pub(crate) wakeups: ByDistance,
    /// Nanoseconds by their use.
    pub(crate) time: Time,
    /// Threads that left their CPU.
    pub(crate) switches: f64,
    /// Threads that left their CPU but could have gone on.
    pub(crate) preemptions: f64,
    /// Threads that moved to another CPU while they waited for one.
    pub(crate) migrations: f64,
    pub(crate) allocations: f64,
    /// Pages that the system had to give.
    pub(crate) faults: f64,
    pub(crate) membarriers: f64,
    /// Types' fields, those with the longest waits first.
    pub(crate) fields: Vec<Field>,
}

/// Nanoseconds an item.
#[derive(Debug, Serialize)]
pub(crate) struct Time {
    /// CPU time, if the benchmark reports it. It includes the next four.
    pub(crate) cpu: Option<f64>,
    /// Waits for cache lines.
    pub(crate) lines: f64,
    /// Spin hints, including those of spin locks.
    pub(crate) spinning: f64,
    /// Switches from one thread to another.
    pub(crate) switching: f64,
    /// Waits for mutexes. They use no CPU time while the thread sleeps.
    pub(crate) locks: f64,
    /// Waits of runnable threads for a CPU. They use no CPU time.
    pub(crate) waiting_for_a_cpu: f64,
}

/// The costs of accesses to one field, an item.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Field {
    /// `crate::file.field`, or `file:line`.
    pub(crate) name: String,
    pub(crate) accesses: f64,
    pub(crate) transfers: ByDistance,
    /// Nanoseconds of waits for those lines.
    pub(crate) nanoseconds: f64,
}

impl Account {
    /// Creates the account of a tally over this number of items, in this virtual time. With `named`
    /// it reads the sources for the names of fields. Else a field's name is its place in the code.
    pub(crate) fn of(
        tally: &Tally,
        time: Duration,
        items: f64,
        line: &Line,
        named: bool,
    ) -> Account {
        let each = |count: u64| count as f64 / items;
        let mut fields = BTreeMap::new();
        let mut called = Called { names: named.then(Names::default), ..Called::default() };
        for (site, count) in &tally.sites {
            let sum: &mut SiteCount = fields.entry(called.name(*site)).or_default();
            sum.sum(count);
        }
        let mut all = SiteCount::default();
        fields.values().for_each(|count| all.sum(count));
        let fields = fields.into_iter().map(|(name, count)| Field {
            name,
            accesses: each(count.accesses.iter().sum()),
            transfers: by_distance(&count.accesses, items, Distance::Core),
            nanoseconds: count.waited / items,
        });
        let mut fields: Vec<Field> = fields.collect();
        // Equal times are sorted by name: the sort is stable, and the map has an order.
        fields.sort_by(|a, b| b.nanoseconds.total_cmp(&a.nanoseconds));
        Account {
            items,
            nanoseconds: time.as_nanos() as f64,
            transfers: by_distance(&all.accesses, items, Distance::Core),
            wakeups: by_distance(&tally.wakes, items, Distance::Here),
            time: Time {
                cpu: line.metrics.get("cpu_per_item").copied(),
                lines: all.waited / items,
                spinning: tally.spinning / items,
                switching: tally.switching / items,
                locks: tally.lock_waits / items,
                waiting_for_a_cpu: tally.waiting / items,
            },
            switches: each(tally.switches),
            preemptions: each(tally.preemptions),
            migrations: each(tally.migrations),
            allocations: each(tally.allocations),
            faults: each(tally.faults),
            membarriers: each(tally.membarriers),
            fields,
        }
    }
}

/// Returns the items of one pass: the number by which the benchmark divided its CPU time, else the
/// number in its words, else 1.
pub(crate) fn items(line: &Line, words: &[String]) -> f64 {
    let number = |key: &str| {
        words.iter().find_map(|word| word.strip_prefix(key)?.strip_prefix('=')?.parse::<f64>().ok())
    };
    let passes = number("passes").unwrap_or(1.0);
    let metric = |name: &str| line.metrics.get(name).filter(|value| **value > 0.0);
    let told = metric("cpu_seconds").zip(metric("cpu_per_item"));
    let all = told.map(|(seconds, each)| (seconds * 1e9 / each).round() / passes);
    all.or(number("items")).unwrap_or(1.0).max(1.0)
}

pub(crate) fn by_distance(counts: &[u64; 5], items: f64, from: Distance) -> ByDistance {
    let counted = Distance::ALL.iter().zip(counts).filter(|(d, count)| **d >= from && **count > 0);
    counted.map(|(distance, count)| (distance.word(), *count as f64 / items)).collect()
}

/// Returns the sum over all distances.
pub(crate) fn sum<K>(counts: &BTreeMap<K, f64>) -> f64 {
    counts.values().sum()
}

/// Names of places, kept once they are found.
#[derive(Debug, Default)]
struct Called {
    /// The names of fields, if they are wanted.
    names: Option<Names>,
    known: BTreeMap<String, String>,
}

impl Called {
    fn name(&mut self, site: Site) -> String {
        let place = site.0;
        let known = self.known.entry(place.to_string());
        let names = &mut self.names;
        let name = || {
            if place.file() == crate::allocator::FILE {
                return "(allocator)".to_owned();
            }
            if place.file().ends_with("sim/src/memory.rs") {
                return "(allocator's lock)".to_owned();
            }
            let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
            let named = names
                .as_mut()
                .and_then(|names| names.of(&root, place.file(), place.line(), place.column()));
            named.unwrap_or_else(|| site.to_string())
        };
        known.or_insert_with(name).clone()
    }
}
