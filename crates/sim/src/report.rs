//! Where the time went: line transfers by place in the code and distance, wake-ups, switches, waits.

use std::fmt;
use std::panic::Location;

use rustc_hash::FxHashMap;

use crate::machine::Distance;

/// A place in the code that touches shared memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Site(pub &'static Location<'static>);

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let file = self.0.file();
        let short = file.find("crates/").map_or(file, |start| &file[start..]);
        write!(f, "{short}:{}", self.0.line())
    }
}

/// What one place in the code did.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct SiteCount {
    /// Accesses by the distance of their line: here, core, cache, node, far.
    pub accesses: [u64; 5],
    /// Nanoseconds that they took.
    pub time: f64,
}

impl SiteCount {
    /// Accesses whose line was elsewhere.
    pub fn transfers(&self) -> u64 {
        self.accesses[1..].iter().sum()
    }
}

/// All that is counted.
#[derive(Debug, Clone, Default)]
pub struct Tally {
    /// By place in the code.
    pub sites: FxHashMap<Site, SiteCount>,
    /// Wake-ups by the distance between the CPUs of waker and woken.
    pub wakes: [u64; 5],
    /// Threads that left a CPU, and of those, the ones that would have gone on.
    pub switches: u64,
    /// See above.
    pub preemptions: u64,
    /// Threads that waited for one CPU and were taken to another one.
    pub migrations: u64,
    /// Threads that were made.
    pub spawned: u64,
    /// Membarrier calls.
    pub membarriers: u64,
    /// Allocations.
    pub allocations: u64,
    /// Pages that the system gave for them.
    pub faults: u64,
    /// Nanoseconds that threads which could run waited for a CPU.
    pub waiting: f64,
    /// Nanoseconds of spin hints.
    pub spinning: f64,
}

impl Tally {
    pub(crate) fn access(&mut self, site: Site, from: Distance, time: f64) {
        let count = self.sites.entry(site).or_default();
        count.accesses[from as usize] += 1;
        count.time += time;
    }

    pub(crate) fn wake(&mut self, distance: Distance) {
        self.wakes[distance as usize] += 1;
    }

    pub(crate) fn waited(&mut self, time: f64) {
        self.waiting += time;
    }

    /// Accesses whose line was elsewhere.
    pub fn transfers(&self) -> u64 {
        self.sites.values().map(SiteCount::transfers).sum()
    }

    /// The places that took most time first.
    pub fn hottest(&self) -> Vec<(Site, SiteCount)> {
        let mut sites: Vec<_> = self.sites.iter().map(|(site, count)| (*site, *count)).collect();
        sites.sort_by(|(a_site, a), (b_site, b)| {
            b.time.total_cmp(&a.time).then_with(|| a_site.to_string().cmp(&b_site.to_string()))
        });
        sites
    }

    /// What was counted since `earlier`, which is an older copy of it.
    pub fn since(&self, earlier: &Tally) -> Tally {
        let mut sites = FxHashMap::default();
        for (site, count) in &self.sites {
            let before = earlier.sites.get(site).copied().unwrap_or_default();
            let accesses = std::array::from_fn(|at| count.accesses[at] - before.accesses[at]);
            sites.insert(*site, SiteCount { accesses, time: count.time - before.time });
        }
        Tally {
            sites,
            wakes: std::array::from_fn(|at| self.wakes[at] - earlier.wakes[at]),
            switches: self.switches - earlier.switches,
            preemptions: self.preemptions - earlier.preemptions,
            migrations: self.migrations - earlier.migrations,
            spawned: self.spawned - earlier.spawned,
            membarriers: self.membarriers - earlier.membarriers,
            allocations: self.allocations - earlier.allocations,
            faults: self.faults - earlier.faults,
            waiting: self.waiting - earlier.waiting,
            spinning: self.spinning - earlier.spinning,
        }
    }
}
