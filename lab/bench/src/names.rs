//! The names in a record: the workload, the scope, and the better direction. They are read from any
//! record, even of a case that this program doesn't have.
//!
//! A case is `WORKLOAD[/PARAMETER...][/SCOPE]`: `kernel_test/cache_shard`, `storm/boxed/cpu`. A
//! scope of another shard size than the default is written `cache_shard:4`. A peer has no scope.

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

use corewise_topology::{AffinityScope, CpuSet, DEFAULT_SHARD_SIZE, Pods, Topology};

use crate::record::Record;

/// The CPUs on which a queue's work may run: its scope, and the pools' shard size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Place {
    /// The queue's scope.
    pub scope: AffinityScope,
    /// The shard size of its pools, in cores. It matters to scope `cache_shard` only.
    pub shard_size: u32,
}

impl Place {
    /// Returns the place of a scope, with the default shard size.
    pub fn of(scope: AffinityScope) -> Place {
        Place { scope, shard_size: DEFAULT_SHARD_SIZE }
    }

    /// Returns the place of scope `cache_shard`, with shards of about this number of cores.
    pub fn shards(cores: u32) -> Place {
        Place { scope: AffinityScope::CacheShard, shard_size: cores }
    }

    /// Returns true for a queue's default.
    pub fn is_default(self) -> bool {
        self == Place::default()
    }
}

impl Default for Place {
    fn default() -> Place {
        Place::of(AffinityScope::default())
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.scope, self.shard_size) {
            (AffinityScope::CacheShard, cores) if cores != DEFAULT_SHARD_SIZE => {
                write!(f, "{}:{cores}", self.scope)
            }
            _ => write!(f, "{}", self.scope),
        }
    }
}

impl FromStr for Place {
    type Err = ();

    /// Reads the text that `Display` writes. The error means only that it isn't a place.
    fn from_str(text: &str) -> Result<Place, ()> {
        if let Some(("cache_shard", cores)) = text.split_once(':') {
            let cores = cores.parse().map_err(|_| ())?;
            return Ok(Place::shards(cores));
        }
        text.parse().map(Place::of).map_err(|_| ())
    }
}

/// Returns true if a user's word names a case: by the whole name, or by its first segments.
pub fn matches(word: &str, case: &str) -> bool {
    let word = CaseName::of(word).workload;
    case.strip_prefix(word.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// The parts of a case's name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CaseName {
    /// The workload with its parameters, without the scope: `storm/boxed`.
    pub workload: String,
    /// The scope, if there is one.
    pub place: Option<Place>,
}

impl CaseName {
    /// Splits a case's name. The first segment is the workload, whatever its name.
    pub fn of(name: &str) -> CaseName {
        let mut place = None;
        let kept = name.split('/').enumerate().filter(|(n, segment)| {
            let found = if *n == 0 { None } else { segment.parse().ok() };
            place = place.or(found);
            found.is_none()
        });
        let workload = kept.map(|(_, segment)| segment).collect::<Vec<_>>().join("/");
        CaseName { workload, place }
    }
}

/// The case of a call's headlines.
pub const HEADLINE: &str = "headline";
/// The case of further ratios, which aren't agreed headlines.
pub const BESIDE: &str = "beside";
/// The case of the 95 % intervals of the ratios: `min` and `max` are its ends.
pub const INTERVAL: &str = "interval95";

/// Returns true for a case of headlines, further ratios or intervals: one that is no workload.
pub fn sums_up(case: &str) -> bool {
    [HEADLINE, BESIDE, INTERVAL].contains(&case)
}

/// The order of two values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Better {
    /// The larger value is better: a rate.
    Higher,
    /// The smaller value is better: a time, a cost.
    Lower,
}

impl Better {
    /// Returns the order of a unit: a rate per second is better high. For a ratio, the name decides
    /// ([`Better::of_headline`]).
    pub fn of_unit(unit: &str) -> Better {
        if unit.ends_with("/s") { Better::Higher } else { Better::Lower }
    }

    /// Returns the order of a headline by its name: ratios of times and costs are better low.
    /// `None` if the name doesn't tell.
    pub fn of_headline(record: &Record) -> Option<Better> {
        const LOWER: &str = "_p50 _p99 cpu cost span p999 latency makespan _vs_serial no_slow azure exports \
            fib_ tree_ sort_ map_ _vs_bound";
        const HIGHER: &str =
            "items storm inside fan_ kernel_test oversubscribed iops seqread odirect";
        let has = |words: &str| words.split(' ').any(|word| record.metric.contains(word));
        match () {
            // This ratio is before's time over ours.
            () if record.metric == "cache_shard_vs_before_p50" => Some(Better::Higher),
            () if record.unit != "ratio" => Some(Better::of_unit(&record.unit)),
            () if has(LOWER) => Some(Better::Lower),
            () if has(HIGHER) => Some(Better::Higher),
            () => None,
        }
    }

    /// Compares two values, the better one first.
    pub fn compare(self, a: f64, b: f64) -> Ordering {
        match self {
            Better::Higher => b.total_cmp(&a),
            Better::Lower => a.total_cmp(&b),
        }
    }

    /// Returns `higher is better` or `lower is better`.
    pub fn words(self) -> &'static str {
        match self {
            Better::Higher => "higher is better",
            Better::Lower => "lower is better",
        }
    }
}

/// The pods of each scope and shard size.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// Each place with the CPUs of its pods.
    places: Vec<(Place, Vec<CpuSet>)>,
}

impl Layout {
    /// Creates the layout of a machine: each scope with the default shard size, and `cache_shard`
    /// with these sizes too.
    pub fn of(topology: &Topology, shard_sizes: &[u32]) -> Layout {
        let mut places: Vec<Place> = AffinityScope::ALL.map(Place::of).to_vec();
        places.extend(shard_sizes.iter().map(|&cores| Place::shards(cores)));
        let pods_of = |place: Place| {
            let pods = Pods::new(topology, place.shard_size);
            pods.scope(place.scope).iter().map(|pod| pod.cpus.clone()).collect()
        };
        Layout { places: places.into_iter().map(|place| (place, pods_of(place))).collect() }
    }

    /// Returns true if both places have the same pods: then only noise makes them differ.
    pub fn same(&self, a: Place, b: Place) -> bool {
        a == b || self.find(a).is_some_and(|pods| self.find(b) == Some(pods))
    }

    fn find(&self, place: Place) -> Option<&[CpuSet]> {
        self.places.iter().find(|(known, _)| *known == place).map(|(_, pods)| pods.as_slice())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_case_is_workload_parameters_and_scope() {
        let of = |name| {
            let case = CaseName::of(name);
            (case.workload, case.place)
        };
        let four = Some(Place::shards(4));
        assert_eq!(of("kernel_test"), ("kernel_test".into(), None));
        assert_eq!(of("storm/boxed/cache_shard:4"), ("storm/boxed".into(), four));
        let cpu = Some(Place::of(AffinityScope::Cpu));
        assert_eq!(of("pingpong/cpu/hot"), ("pingpong/hot".into(), cpu));
        assert_eq!(of("cpu"), ("cpu".into(), None), "a workload of that name");
    }

    #[test]
    fn a_word_names_a_case_or_all_that_begin_with_it() {
        for word in ["storm", "storm/boxed", "storm/boxed/cpu"] {
            assert!(matches(word, "storm/boxed"), "{word}");
        }
        for word in ["sto", "", "storm/boxed/striped", "boxed"] {
            assert!(!matches(word, "storm/boxed"), "{word}");
        }
    }

    #[test]
    fn a_place_is_read_back_from_what_it_writes() {
        for place in AffinityScope::ALL.map(Place::of).into_iter().chain([Place::shards(4)]) {
            assert_eq!(place.to_string().parse(), Ok(place));
        }
        assert_eq!(Place::shards(DEFAULT_SHARD_SIZE), Place::default());
        assert!("cache_shard:".parse::<Place>().is_err() && "llc".parse::<Place>().is_err());
    }

    #[test]
    fn rates_are_better_high_and_times_low() {
        assert_eq!(Better::of_unit("items/s"), Better::Higher);
        assert_eq!(Better::of_unit("ns"), Better::Lower);
        let headline = |metric: &str| {
            let one = (1.0, 1.0, 1.0);
            Better::of_headline(&Record::made_up(HEADLINE, "corewise", metric, "ratio", one))
        };
        // The two headlines whose names look alike, and differ in the numerator.
        for metric in
            "cache_shard_vs_before_p50 cache_shard_vs_before_items storm_reused_vs_best_peer \
                       inside_vs_best_peer fan_vs_best_peer kernel_test_vs_best_peer odirect_vs_fio"
                .split_whitespace()
        {
            assert_eq!(headline(metric), Some(Better::Higher), "{metric}");
        }
        for metric in
            "sleeping_p50_vs_futex blocking_mix_p99_vs_best_peer makespan_vs_critical_path \
                       no_slow_vs_serial azure_vs_serial exports_1000_up_vs_best_peer \
                       fib_vs_best_peer tree_large_vs_best_peer sort_vs_best_peer map_vs_best_peer"
                .split_whitespace()
        {
            assert_eq!(headline(metric), Some(Better::Lower), "{metric}");
        }
        assert_eq!(headline("something"), None);
    }

    #[test]
    fn places_with_the_same_pods_are_the_same() {
        let topology = Topology::synthetic("l3:1 core:2 pu:1").unwrap();
        let layout = Layout::of(&topology, &[2, 4]);
        let of = Place::of;
        assert!(layout.same(of(AffinityScope::Cpu), of(AffinityScope::Smt)));
        assert!(layout.same(of(AffinityScope::Cache), Place::default()));
        assert!(layout.same(Place::shards(4), of(AffinityScope::System)));
        assert!(!layout.same(of(AffinityScope::Cpu), Place::default()));
        assert!(!layout.same(Place::shards(3), Place::default()), "it isn't known");
    }
}
