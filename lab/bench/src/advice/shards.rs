//! The shard size that a machine's measured costs recommend.

use corewise_costs::{Costs, Distance, Target};
use corewise_topology::{DEFAULT_SHARD_SIZE, shard_layout};

use super::{count, how};
use crate::names::Place;
use crate::report::show;

/// Lines of its pool that an item of a storm takes from other CPUs, as the simulator counts them
/// (`lab/simulate/counts.toml`, `storm/reused`), rounded.
const LINES: f64 = 5.0;
/// The share of the time that each CPU is busy.
const LOAD: f64 = 0.5;

/// The price of an item in a shard of some cores, in nanoseconds.
struct Price {
    cores: u32,
    cpus: u32,
    /// The price of one access to a line for which all CPUs of the shard contend.
    line: f64,
    /// The share of items that find all CPUs of the shard busy.
    handed_over: f64,
    /// The whole price.
    item: f64,
}

/// Recommends the size of a cache shard, in sentences with the figures behind it.
/// `docs/machine.md` has the rule. `None` where the costs don't tell how many cores share a cache,
/// or have no contended line or no wake-up.
pub fn shard_size(costs: &Costs) -> Option<String> {
    let machine = costs.machine.as_ref()?;
    let cores = machine.cores.checked_div(machine.last_level_caches).filter(|cores| *cores > 0)?;
    if cores < DEFAULT_SHARD_SIZE {
        return Some(format!(
            "Shard size: it makes no difference here. The CPUs that share a last-level cache have \
             {}, fewer than a shard of {DEFAULT_SHARD_SIZE}, so they are one shard.",
            count(cores as usize, "core"),
        ));
    }
    let wake = costs.wake(Distance::Cache, Target::Idle, 20.0)?;
    let wake = wake.call_ns.p50 + wake.latency_ns.p50;
    let threads = machine.threads_per_core.max(1);
    let price = |one: &corewise_costs::Contended| {
        let (line, handed_over) = (one.each_ns.p50, all_busy(one.cpus));
        let item = LINES * line + handed_over * wake;
        Price { cores: one.cpus / threads, cpus: one.cpus, line, handed_over, item }
    };
    let prices = costs.contended.iter().map(price);
    let prices: Vec<Price> = prices.filter(|one| (2..=cores).contains(&one.cores)).collect();
    let best = prices.iter().min_by(|a, b| a.item.total_cmp(&b.item))?;
    let default = shard_layout(cores, DEFAULT_SHARD_SIZE);
    let advice = match shard_layout(cores, best.cores).shards() == default.shards() {
        true => "as by default.".to_owned(),
        false => {
            format!("not {DEFAULT_SHARD_SIZE}, the default. {}", how(Place::shards(best.cores)),)
        }
    };
    let others = prices.iter().filter(|one| one.cores != best.cores);
    let others = others.map(|one| format!("{} with {}", show(one.item, "ns"), one.cores));
    let others: Vec<String> = others.collect();
    let compared = match others.is_empty() {
        true => String::new(),
        false => format!(", against {}", others.join(", ")),
    };
    Some(format!(
        "Shard size: {} cores, {advice} An item takes {LINES} lines of its shard, each for {} where \
         {} CPUs contend for it. At half load {:.1} % of the items find all of these busy, and are \
         handed to another shard by a wake-up of {}. That is {} an item{compared}.",
        best.cores,
        show(best.line, "ns"),
        best.cpus,
        best.handed_over * 100.0,
        show(wake, "ns"),
        show(best.item, "ns"),
    ))
}

/// The probability that an item finds all of so many CPUs busy at [`LOAD`]: Erlang's C formula.
fn all_busy(cpus: u32) -> f64 {
    let load = LOAD * f64::from(cpus);
    let lost = (1..=cpus).fold(1.0, |lost, n| load * lost / (f64::from(n) + load * lost));
    lost / (1.0 - LOAD * (1.0 - lost))
}

#[cfg(test)]
mod tests {
    use corewise_costs::{Contended, EXAMPLE, Figure, Machine};

    use super::*;

    /// Costs of so many cores that share one cache, where each further CPU at a line makes an
    /// access so much longer.
    fn costs(cores: u32, line: f64) -> Costs {
        let mut costs = Costs::read(EXAMPLE).unwrap();
        let known =
            Machine { cores, last_level_caches: 1, threads_per_core: 1, ..Machine::default() };
        costs.machine = Some(known);
        let figure = |ns: f64| Figure { p10: ns, p50: ns, p90: ns, p99: None };
        let one = |cpus: u32| Contended { cpus, each_ns: figure(line * f64::from(cpus)) };
        costs.contended = [1, 2, 4, 8, 16, 32].map(one).into_iter().collect();
        costs
    }

    #[test]
    fn a_shard_is_as_large_as_contended_lines_and_wake_ups_make_cheapest() {
        // A wake-up takes 1.4 + 4.0 µs. With 25 ns a CPU an item costs 2.05, 1.44, 1.32 and 2.05 µs
        // in shards of 2, 4, 8 and 16.
        let text = shard_size(&costs(32, 25.0)).unwrap();
        assert!(text.starts_with("Shard size: 8 cores, as by default. "), "{text}");
        assert!(text.contains("5.9 % of the items") && text.contains("5.40 µs"), "{text}");
        let with = |cores, line, best: &str| {
            let text = shard_size(&costs(cores, line)).unwrap();
            assert!(text.starts_with(&format!("Shard size: {best} cores, not 8")), "{text}");
            assert!(text.contains(&format!(".shard_size({best})`")), "{text}");
        };
        with(32, 5.0, "16");
        with(32, 0.1, "32");
        with(32, 50.0, "4");
        with(16, 0.1, "16");
    }

    #[test]
    fn the_size_makes_no_difference_where_fewer_cores_share_a_cache_than_a_shard_has() {
        for cores in [1, 2, 7] {
            let text = shard_size(&costs(cores, 25.0)).unwrap();
            assert!(text.starts_with("Shard size: it makes no difference here."), "{text}");
        }
        let mut of_two_caches = costs(8, 25.0);
        of_two_caches.machine.as_mut().unwrap().last_level_caches = 2;
        assert!(shard_size(&of_two_caches).unwrap().contains("4 cores, fewer"));
    }

    #[test]
    fn siblings_contend_and_count_as_one_core() {
        let mut of_siblings = costs(16, 25.0);
        of_siblings.machine.as_mut().unwrap().threads_per_core = 2;
        let text = shard_size(&of_siblings).unwrap();
        assert!(text.starts_with("Shard size: 4 cores") && text.contains("8 CPUs"), "{text}");
    }

    #[test]
    fn costs_that_know_no_cores_recommend_nothing() {
        let mut unknown = costs(32, 25.0);
        unknown.contended.clear();
        assert_eq!(shard_size(&unknown), None);
        unknown.machine = None;
        assert_eq!(shard_size(&unknown), None);
    }

    #[test]
    fn a_single_cpu_is_busy_for_its_load_and_all_of_many_seldom() {
        for (cpus, busy) in [(1, 0.5), (2, 0.3333), (8, 0.0590), (16, 0.0090)] {
            assert!((all_busy(cpus) - busy).abs() < 2e-4, "{cpus}: {}", all_busy(cpus));
        }
    }
}
