//! The advice from made-up runs.

use corewise_topology::{AffinityScope, Topology};

use super::{Layout, advise};
use crate::rounds::Series;

/// A machine on which every scope differs.
const LARGE: &str = "numa:2 l3:2 core:16 pu:2";
/// One on which few do.
const SMALL: &str = "l3:1 core:2 pu:1";

/// The rates of workloads by scope, in eight rounds with about 2 % of noise: a line each.
fn rates(text: &str) -> Vec<Series> {
    let steps = [0.99, 1.015, 1.0, 1.02, 0.98, 1.005, 0.995, 1.01];
    let line = |line: &str| -> Vec<Series> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let one = |(nth, pair): (usize, &[&str])| {
            let (case, value) =
                (format!("{}/{}", words[0], pair[0]), pair[1].parse::<f64>().unwrap());
            let values = (0..8).map(|round| value * steps[(round * 3 + nth * 5) % steps.len()]);
            Series::of(&case, "corewise", "items_per_second", &values.collect::<Vec<_>>())
        };
        words[1..].chunks(2).enumerate().map(one).collect()
    };
    text.lines().flat_map(line).collect()
}

fn of(machine: &str, series: &[Series]) -> Vec<String> {
    advise(&Layout::of(&Topology::synthetic(machine).unwrap(), &[4]), series, 1)
}

const NOTHING: &str = "Leave cache_shard (the default): no other pods were measured";
const LEAVE: &str = "Leave cache_shard (the default): in ";
const BETTER: &str = "Use cpu: it did better than cache_shard (the default) in 1 of ";

#[test]
fn a_run_begins_with_one_advice() {
    for (machine, run, lead) in [
        (LARGE, "kernel_test cache_shard 1e6 cpu 2.05e6 cache 9e5", BETTER),
        (LARGE, "inside cpu 1e6\nkernel_test cache_shard 1e6 cpu 2.05e6", BETTER),
        (LARGE, "storm/reused cache_shard 1e6 cache_shard:4 1.4e6", "Use cache_shard:4: "),
        (LARGE, "kernel_test cache_shard 1e6 cpu 1.01e6 smt 0.99e6", LEAVE),
        (LARGE, "kernel_test cache_shard 2.05e6 cpu 1e6 smt 1.95e6", LEAVE),
        (LARGE, "storm/boxed cache_shard 1e6 cpu 2.05e6\ninside cache_shard 2.05e6 cpu 1e6", LEAVE),
        (LARGE, "kernel_test cache_shard 1e6", NOTHING),
        (LARGE, "kernel_test cache_shard 1e6 cpu 0", NOTHING),
        (LARGE, "", "No scope was measured"),
        (LARGE, "kernel_test numa 1e6 cpu 1e6", "Leave numa: in 1 comparison nothing did better"),
        // At a fixed rate the rate decides nothing.
        (LARGE, "mix/50 cache_shard 1e6 cpu 2.05e6", "No scope was measured"),
        (LARGE, "pingpong/free/hot cache_shard 1e6 cpu 2.05e6", "No scope was measured"),
        // Twice as fast, and yet the same pods: whatever that is, it is not the scope.
        (SMALL, "kernel_test cache_shard 1e6 cache 2.05e6", NOTHING),
        // So a difference of the same size between others is noise too.
        (SMALL, "kernel_test cpu 1.95e6 cache 2.05e6 cache_shard 1e6", LEAVE),
        (SMALL, "kernel_test cpu 2.05e6 smt 2.05e6 cache 1e6 cache_shard 1e6", "Use cpu or smt: "),
    ] {
        let said = of(machine, &rates(run));
        assert!(said[0].starts_with(lead), "{run}: {}", said[0]);
    }
}

#[test]
fn each_difference_is_told_with_its_size_and_its_call_and_what_is_alike() {
    let said = of(LARGE, &rates("kernel_test cache_shard 1e6 cpu 2.05e6 cache 9e5"));
    assert!(said[0].contains(".scope(AffinityScope::Cpu)`"), "{}", said[0]);
    let found = "kernel_test items_per_second: against cache_shard, cpu was 2.0";
    assert!(said[1].starts_with(found) && said[1].ends_with(", beyond the noise."), "{}", said[1]);
    assert_eq!(said.len(), 2, "this machine can show all of it");
    let said = of(LARGE, &rates("storm/reused cache_shard 1e6 cache_shard:4 1.4e6"));
    assert!(said[0].contains("`WorkerPools::builder(&machine).shard_size(4)`"));
    let said = of(SMALL, &rates("kernel_test cpu 2.05e6 smt 2.05e6 cache 1e6 cache_shard 1e6"));
    assert!(said[2].ends_with("differ: cache_shard or cache; cpu or smt."), "{said:?}");
}

#[test]
fn lower_times_are_better_and_others_queues_are_none_of_ours() {
    let mut series = rates("pingpong/hot cache_shard 51.25 cpu 25");
    series.iter_mut().for_each(|one| (one.metric, one.unit) = ("latency_p99".into(), "us".into()));
    let said = of(LARGE, &series);
    assert!(said[0].starts_with("Use cpu: ") && said[1].contains("cpu was 2.0"));
    series.iter_mut().for_each(|one| one.variant = "before".into());
    assert!(of(LARGE, &series)[0].starts_with("No scope was measured"));
}

#[test]
fn few_rounds_no_pairs_and_one_of_many_comparisons_tell_little() {
    let mut series = rates("kernel_test cache_shard 1e6 cpu 2.05e6");
    series.iter_mut().for_each(|one| one.values.truncate(5));
    let said = of(LARGE, &series);
    assert!(said[0].contains("5 rounds counted, too few"), "{}", said[0]);
    assert_eq!(said[1], "kernel_test items_per_second: within the noise.");
    series[1].values = vec![1e6; 3];
    assert!(of(LARGE, &series)[0].starts_with(NOTHING), "they aren't pairs");
    let scopes = AffinityScope::ALL.map(|scope| format!(" {} 1e6", scope.name())).concat();
    let line = |workload: &str| format!("{workload}{scopes}\n");
    let text = ["kernel_test", "storm/0", "storm/1", "storm/2", "storm/3", "storm/4"].map(line);
    let mut series = rates(&text.concat());
    let cpu = series.iter_mut().find(|one| one.case == "storm/3/cpu").unwrap();
    cpu.values.iter_mut().for_each(|value| *value *= 1.2);
    let said = of(LARGE, &series);
    assert!(said[0].starts_with("Use cpu: "), "{}", said[0]);
    assert!(said[0].ends_with("repeat the run before you rely on it."), "{}", said[0]);
}
