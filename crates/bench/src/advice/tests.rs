//! The advice from made-up runs.

use corewise_topology::{AffinityScope, Topology};

use super::{Advice, Layout, advise};
use crate::rounds::Series;

/// A machine on which every scope differs.
const LARGE: &str = "numa:2 l3:2 core:16 pu:2";
/// One on which few do.
const SMALL: &str = "l3:1 core:2 pu:1";

/// About 2 % of noise around a value, another for each number of the series.
fn around(value: f64, nth: usize, rounds: usize) -> Vec<f64> {
    let steps = [0.99, 1.015, 1.0, 1.02, 0.98, 1.005, 0.995, 1.01];
    (0..rounds).map(|round| value * steps[(round * 3 + nth * 5) % steps.len()]).collect()
}

/// The rates of workloads by scope, in eight rounds: a line each.
fn rates(text: &str) -> Vec<Series> {
    let line = |line: &str| -> Vec<Series> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let one = |(nth, pair): (usize, &[&str])| Series {
            case: format!("{}/{}", words[0], pair[0]),
            variant: "corewise".into(),
            metric: "items_per_second".into(),
            unit: "items/s".into(),
            values: around(pair[1].parse().unwrap(), nth, 8),
        };
        words[1..].chunks(2).enumerate().map(one).collect()
    };
    text.lines().flat_map(line).collect()
}

fn of(machine: &str, series: &[Series]) -> Advice {
    advise(&Layout::of(&Topology::synthetic(machine).unwrap(), &[4]), series, 1)
}

const NOTHING: &str =
    "Only cache_shard (the default) was measured: there is nothing to compare it with.";

#[test]
fn a_run_ends_in_one_advice() {
    for (machine, run, lead) in [
        (
            LARGE,
            "kernel_test cache_shard 1e6 cpu 2.05e6 cache 9e5",
            "Use cpu: it did better than cache_shard (the default) in 1 of 1 comparison, by 2.0",
        ),
        (
            LARGE,
            "inside cpu 1e6\nkernel_test cache_shard 1e6 cpu 2.05e6",
            "Use cpu: it did better than cache_shard (the default) in 1 of 1 comparison, by 2.0",
        ),
        (LARGE, "storm/reused cache_shard 1e6 cache_shard:4 1.4e6", "Use cache_shard:4: "),
        (
            LARGE,
            "kernel_test cache_shard 1e6 cpu 1.01e6 smt 0.99e6",
            "Leave cache_shard (the default): all differences in 1 comparison are within the noise. It \
             takes no call: a queue that names no scope has it.",
        ),
        (
            LARGE,
            "kernel_test cache_shard 2.05e6 cpu 1e6 smt 1.95e6",
            "Leave cache_shard (the default): nothing did better beyond the noise in 1 comparison, and worse did cpu in 1.",
        ),
        (
            LARGE,
            "storm/boxed cache_shard 1e6 cpu 2.05e6\ninside cache_shard 2.05e6 cpu 1e6",
            "It depends on what a queue is for. Beyond the noise, cpu did better than cache_shard \
             (the default) in 1 of 2 comparisons (storm/boxed), and worse in 1 (inside).",
        ),
        (LARGE, "kernel_test cache_shard 1e6", NOTHING),
        (LARGE, "kernel_test cache_shard 1e6 cpu 0", NOTHING),
        (LARGE, "", "No scope was measured"),
        (
            LARGE,
            "kernel_test numa 1e6 cpu 1e6",
            "Use numa: all differences in 1 comparison are within the noise. Build the queue with `Workqueue::builder(name).scope(AffinityScope::Numa)`.",
        ),
        // At a fixed rate the rate decides nothing.
        (LARGE, "mix/50 cache_shard 1e6 cpu 2.05e6", "No scope was measured"),
        (LARGE, "pingpong/free/hot cache_shard 1e6 cpu 2.05e6", "No scope was measured"),
        // Twice as fast, and yet the same pods: whatever that is, it is not the scope.
        (
            SMALL,
            "kernel_test cache_shard 1e6 cache 2.05e6",
            "This machine can't tell the scopes apart",
        ),
        // So a difference of the same size between others is noise too.
        (
            SMALL,
            "kernel_test cpu 1.95e6 cache 2.05e6 cache_shard 1e6",
            "Leave cache_shard (the default)",
        ),
        (
            SMALL,
            "kernel_test cpu 2.05e6 smt 2.05e6 cache 1e6 cache_shard 1e6",
            "Use cpu (here the same pods as smt): ",
        ),
    ] {
        let advice = of(machine, &rates(run));
        assert!(advice.lead.starts_with(lead), "{run}: {}", advice.lead);
    }
}

#[test]
fn what_was_found_and_what_cannot_be_is_told_with_its_size_and_its_call() {
    let advice = of(LARGE, &rates("kernel_test cache_shard 1e6 cpu 2.05e6 cache 9e5"));
    assert!(advice.lead.contains(".scope(AffinityScope::Cpu)`"), "{}", advice.lead);
    let found = &advice.findings[0];
    let start = "kernel_test items_per_second: against cache_shard, cpu was 2.0";
    assert!(found.starts_with(start) && found.ends_with(", beyond the noise."), "{found}");
    assert_eq!(advice.limits, [""; 0], "this machine can show all of it");
    let advice = of(LARGE, &rates("storm/reused cache_shard 1e6 cache_shard:4 1.4e6"));
    assert!(advice.lead.contains("`WorkerPools::builder(&machine).shard_size(4)`"));
    let alike = "kernel_test cpu 2.05e6 smt 2.05e6 cache 1e6 cache_shard 1e6";
    let text = of(SMALL, &rates(alike)).sentences().collect::<Vec<_>>().join("\n");
    for part in ["cpu and smt; cache_shard and cache", "one shard here", "With 2 CPUs"] {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn lower_times_are_better_and_others_queues_are_none_of_ours() {
    let mut series = rates("pingpong/hot cache_shard 51.25 cpu 25");
    for one in &mut series {
        (one.metric, one.unit) = ("latency_p99".into(), "us".into());
    }
    let advice = of(LARGE, &series);
    assert!(advice.lead.starts_with("Use cpu: ") && advice.findings[0].contains("cpu was 2.0"));
    series.iter_mut().for_each(|one| one.variant = "before".into());
    assert!(of(LARGE, &series).lead.starts_with("No scope was measured"));
}

#[test]
fn few_rounds_no_pairs_and_a_tie_tell_nothing() {
    let mut series = rates("kernel_test cache_shard 1e6 cpu 2.05e6");
    for rounds in (1..6).rev() {
        series.iter_mut().for_each(|one| one.values.truncate(rounds));
        let advice = of(LARGE, &series);
        assert!(advice.lead.contains("too few to tell"), "{}", advice.lead);
        assert_eq!(advice.findings, ["Within the noise: kernel_test items_per_second."]);
    }
    series[1].values = vec![1e6; 3];
    assert_eq!(of(LARGE, &series).lead, NOTHING, "they aren't pairs");
    let mut tie = rates("kernel_test cache_shard 1e6 cpu 1e6");
    tie[1].values = tie[0].values.clone();
    assert!(of(LARGE, &tie).lead.starts_with("Leave cache_shard (the default): all differences"));
}

#[test]
fn one_difference_among_many_comparisons_may_be_chance() {
    let scopes = AffinityScope::ALL.map(|scope| format!(" {} 1e6", scope.name())).concat();
    let line = |workload: &str| format!("{workload}{scopes}\n");
    let text = ["kernel_test", "storm/0", "storm/1", "storm/2", "storm/3", "storm/4"].map(line);
    let mut series = rates(&text.concat());
    let cpu = series.iter_mut().find(|one| one.case == "storm/3/cpu").unwrap();
    cpu.values.iter_mut().for_each(|value| *value *= 1.2);
    let advice = of(LARGE, &series);
    assert!(advice.lead.starts_with("Use cpu: "), "{}", advice.lead);
    assert!(advice.lead.ends_with("repeat the run before you rely on it."), "{}", advice.lead);
}
