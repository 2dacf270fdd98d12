//! Counts of a run: line transfers by place in the code and distance, wake-ups, switches, waits.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::panic::Location;

use rustc_hash::FxHashMap;

use crate::machine::Distance;

/// A place in the code that touches shared memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Site(pub &'static Location<'static>);

impl Hash for Site {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // Each access is a lookup, and a hash of the file's name would cost more than all the rest.
        (u64::from(self.0.line()) << 32 | u64::from(self.0.column())).hash(state);
    }
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let file = self.0.file();
        write!(f, "{}:{}", from_root(file).unwrap_or(file), self.0.line())
    }
}

/// Returns the path of a crate's file from the root of the workspace. `None` of other files.
pub fn from_root(file: &str) -> Option<&str> {
    let start = ["crates/", "lab/"].iter().find_map(|folder| file.find(folder))?;
    Some(&file[start..])
}

/// Counts of one place in the code.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct SiteCount {
    /// Accesses by the distance of their line: here, core, cache, node, far.
    pub accesses: [u64; 5],
    /// Nanoseconds of the accesses whose line was elsewhere.
    pub waited: f64,
}

impl SiteCount {
    fn add(&mut self, from: Distance, time: f64) {
        self.accesses[from as usize] += 1;
        if from != Distance::Here {
            self.waited += time;
        }
    }

    /// Adds another place's counts.
    pub fn sum(&mut self, other: &SiteCount) {
        for (sum, count) in self.accesses.iter_mut().zip(other.accesses) {
            *sum += count;
        }
        self.waited += other.waited;
    }

    fn since(&self, earlier: &SiteCount) -> SiteCount {
        let accesses = std::array::from_fn(|at| self.accesses[at] - earlier.accesses[at]);
        SiteCount { accesses, waited: self.waited - earlier.waited }
    }

    /// Returns the number of accesses whose line was elsewhere.
    pub fn transfers(&self) -> u64 {
        self.accesses[1..].iter().sum()
    }
}

/// All counts of a run.
#[derive(Debug, Clone, Default)]
pub struct Tally {
    /// Counts of each place in the code.
    pub sites: FxHashMap<Site, SiteCount>,
    /// Wake-ups by the distance between the CPUs of waker and woken.
    pub wakes: [u64; 5],
    /// Threads that left a CPU.
    pub switches: u64,
    /// Threads that left a CPU although they were runnable.
    pub preemptions: u64,
    /// Threads that waited for one CPU and were taken to another one.
    pub migrations: u64,
    /// Membarrier calls.
    pub membarriers: u64,
    /// Allocations.
    pub allocations: u64,
    /// Pages that the system gave for them.
    pub faults: u64,
    /// Nanoseconds for which runnable threads waited for a CPU.
    pub waiting: f64,
    /// Nanoseconds of spin hints.
    pub spinning: f64,
    /// Nanoseconds of waits for mutexes, asleep or not.
    pub lock_waits: f64,
    /// Nanoseconds of switches from one thread to another.
    pub switching: f64,
}

impl Tally {
    pub(crate) fn access(&mut self, site: Site, from: Distance, time: f64) {
        let count = self.sites.entry(site).or_default();
        count.add(from, time);
    }

    pub(crate) fn wake(&mut self, distance: Distance) {
        self.wakes[distance as usize] += 1;
    }

    pub(crate) fn waited(&mut self, time: f64) {
        self.waiting += time;
    }

    /// Returns the number of accesses whose line was elsewhere.
    pub fn transfers(&self) -> u64 {
        self.sites.values().map(SiteCount::transfers).sum()
    }

    /// Returns the counts since `earlier`, an older copy.
    pub fn since(&self, earlier: &Tally) -> Tally {
        let mut sites = FxHashMap::default();
        for (site, count) in &self.sites {
            let before = earlier.sites.get(site).copied().unwrap_or_default();
            sites.insert(*site, count.since(&before));
        }
        Tally {
            sites,
            wakes: std::array::from_fn(|at| self.wakes[at] - earlier.wakes[at]),
            switches: self.switches - earlier.switches,
            preemptions: self.preemptions - earlier.preemptions,
            migrations: self.migrations - earlier.migrations,
            membarriers: self.membarriers - earlier.membarriers,
            allocations: self.allocations - earlier.allocations,
            faults: self.faults - earlier.faults,
            waiting: self.waiting - earlier.waiting,
            spinning: self.spinning - earlier.spinning,
            lock_waits: self.lock_waits - earlier.lock_waits,
            switching: self.switching - earlier.switching,
        }
    }
}
