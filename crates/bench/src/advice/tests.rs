//! The advice from made-up runs.

use corewise_topology::{AffinityScope, Topology};

use super::{Advice, Layout, advise};
use crate::rounds::Series;

/// A machine on which every scope differs, and a small one on which few do.
fn large() -> Layout {
    let spec = "numa:2 l3:2 core:16 pu:2";
    Layout::of(&Topology::synthetic(spec).unwrap(), &[4])
}

fn small() -> Layout {
    Layout::of(&Topology::synthetic("l3:1 core:2 pu:1").unwrap(), &[4])
}

/// About 2 % of noise around a value, another for each number of the series.
fn around(value: f64, nth: usize, rounds: usize) -> Vec<f64> {
    let steps = [0.99, 1.015, 1.0, 1.02, 0.98, 1.005, 0.995, 1.01];
    (0..rounds).map(|round| value * steps[(round * 3 + nth * 5) % steps.len()]).collect()
}

/// The rates of a workload by scope.
fn rates(workload: &str, rounds: usize, of: &[(&str, f64)]) -> Vec<Series> {
    let series = of.iter().enumerate().map(|(nth, (scope, value))| Series {
        case: format!("{workload}/{scope}"),
        variant: "corewise".into(),
        metric: "items_per_second".into(),
        unit: "items/s".into(),
        values: around(*value, nth, rounds),
    });
    series.collect()
}

fn all(advice: &Advice) -> String {
    advice.sentences().collect::<Vec<_>>().join("\n")
}

#[test]
fn a_clear_winner_is_named_with_its_call_and_its_size() {
    let series = rates("kernel_test", 8, &[("cache_shard", 1e6), ("cpu", 2.05e6), ("cache", 9e5)]);
    let advice = advise(&large(), &series, 1);
    assert!(
        advice.lead.starts_with("Use cpu: it did better than cache_shard (the default) in 1 of 1")
    );
    assert!(advice.lead.contains(".scope(AffinityScope::Cpu)`"), "{}", advice.lead);
    let found = &advice.findings[0];
    let start = "kernel_test items_per_second: against cache_shard, cpu was 2.0";
    assert!(found.starts_with(start), "{found}");
    assert_eq!(advice.limits, [""; 0], "this machine can show all of it");
}

#[test]
fn what_was_measured_in_one_place_only_is_no_comparison() {
    let mut series = rates("inside", 8, &[("cpu", 1e6)]);
    series.extend(rates("kernel_test", 8, &[("cache_shard", 1e6), ("cpu", 2.05e6)]));
    let advice = advise(&large(), &series, 1);
    assert!(advice.lead.contains("cache_shard (the default) in 1 of 1 comparison, by 2.0"));
    assert_eq!(advice.findings.len(), 1);
}

#[test]
fn a_shard_size_is_a_call_of_the_pools() {
    let series = rates("storm/reused", 8, &[("cache_shard", 1e6), ("cache_shard:4", 1.4e6)]);
    let advice = advise(&large(), &series, 1);
    assert!(advice.lead.starts_with("Use cache_shard:4: "), "{}", advice.lead);
    assert!(advice.lead.contains("`WorkerPools::builder(&machine).shard_size(4)`"));
}

#[test]
fn lower_times_are_better() {
    let mut series = rates("pingpong/hot", 8, &[("cache_shard", 51.25), ("cpu", 25.0)]);
    for one in &mut series {
        one.metric = "latency_p99".into();
        one.unit = "us".into();
    }
    let advice = advise(&large(), &series, 1);
    assert!(advice.lead.starts_with("Use cpu: "), "{}", advice.lead);
    assert!(advice.findings[0].contains("cpu was 2.0"), "{}", advice.findings[0]);
}

#[test]
fn at_a_fixed_rate_the_rate_decides_nothing() {
    for workload in ["mix/50", "pingpong/free/hot", "idle"] {
        let decides = workload == "idle";
        let series = rates(workload, 8, &[("cache_shard", 1e6), ("cpu", 2.05e6)]);
        assert_eq!(advise(&large(), &series, 1).lead.starts_with("Use cpu"), decides);
    }
}

#[test]
fn what_lies_within_the_noise_leaves_the_default() {
    let series = rates("kernel_test", 8, &[("cache_shard", 1e6), ("cpu", 1.01e6), ("smt", 0.99e6)]);
    let advice = advise(&large(), &series, 1);
    assert_eq!(
        advice.lead,
        "Leave cache_shard (the default): whatever differs in 1 comparison is within the noise. It \
         takes no call: a queue that names no scope has it."
    );
    assert_eq!(advice.findings, ["Within the noise: kernel_test items_per_second."]);
}

#[test]
fn a_tie_is_noise() {
    let mut series = rates("kernel_test", 8, &[("cache_shard", 1e6), ("cpu", 1e6)]);
    series[1].values = series[0].values.clone();
    let advice = advise(&large(), &series, 1);
    assert!(advice.lead.starts_with("Leave cache_shard (the default): whatever differs"));
}

#[test]
fn a_default_that_is_ahead_says_of_whom() {
    let series = rates("kernel_test", 8, &[("cache_shard", 2.05e6), ("cpu", 1e6), ("smt", 1.95e6)]);
    let advice = advise(&large(), &series, 1);
    assert!(advice.lead.starts_with("Leave cache_shard (the default): nothing did better"));
    assert!(advice.lead.contains("and worse did cpu in 1."), "{}", advice.lead);
    assert!(advice.findings[0].contains("cpu was 0.48"), "{:?}", advice.findings);
}

#[test]
fn better_here_and_worse_there_is_told_as_a_choice() {
    let mut series = rates("storm/boxed", 8, &[("cache_shard", 1e6), ("cpu", 2.05e6)]);
    series.extend(rates("inside", 8, &[("cache_shard", 2.05e6), ("cpu", 1e6)]));
    let advice = advise(&large(), &series, 1);
    assert!(advice.lead.starts_with("It depends"), "{}", advice.lead);
    assert!(advice.lead.contains("in 1 of 2 comparisons (storm/boxed)"), "{}", advice.lead);
    assert!(advice.lead.contains("and worse in 1 (inside)"), "{}", advice.lead);
}

#[test]
fn one_variant_only_leaves_nothing_to_compare() {
    let advice = advise(&large(), &rates("kernel_test", 8, &[("cache_shard", 1e6)]), 1);
    assert_eq!(
        advice.lead,
        "Only cache_shard (the default) was measured: there is nothing to compare it with."
    );
    assert!(advise(&large(), &[], 1).lead.starts_with("No scope was measured"));
    let mut peers = rates("kernel_test", 8, &[("cache_shard", 1e6), ("cpu", 2.05e6)]);
    peers.iter_mut().for_each(|one| one.variant = "before".into());
    assert!(advise(&large(), &peers, 1).lead.starts_with("No scope was measured"));
}

#[test]
fn scopes_with_the_same_pods_are_never_told_apart_and_show_the_noise() {
    // Twice as fast, and yet the same pods: whatever that is, it is not the scope.
    let same = rates("kernel_test", 8, &[("cache_shard", 1e6), ("cache", 2.05e6)]);
    let advice = advise(&small(), &same, 1);
    assert!(advice.lead.starts_with("This machine can't tell the scopes apart"), "{}", advice.lead);
    assert_eq!(advice.findings, [""; 0]);

    // So a difference of the same size between others is noise too.
    let of = [("cpu", 1.95e6), ("cache", 2.05e6), ("cache_shard", 1e6)];
    let advice = advise(&small(), &rates("kernel_test", 8, &of), 1);
    assert!(advice.lead.starts_with("Leave cache_shard (the default)"), "{}", advice.lead);

    let of = [("cpu", 2.05e6), ("smt", 2.05e6), ("cache", 1e6), ("cache_shard", 1e6)];
    let advice = advise(&small(), &rates("kernel_test", 8, &of), 1);
    assert!(advice.lead.starts_with("Use cpu (here the same pods as smt): "), "{}", advice.lead);
    assert!(advice.limits[0].contains("cpu and smt; cache_shard and cache"), "{:?}", advice.limits);
    let text = all(&advice);
    assert!(text.contains("one shard here") && text.contains("With 2 CPUs"), "{text}");
}

#[test]
fn few_rounds_tell_nothing() {
    for rounds in 1..6 {
        let series = rates("kernel_test", rounds, &[("cache_shard", 1e6), ("cpu", 2.05e6)]);
        let advice = advise(&large(), &series, 1);
        assert!(advice.lead.contains("too few to tell"), "{}", advice.lead);
        assert_eq!(advice.findings, ["Within the noise: kernel_test items_per_second."]);
    }
}

#[test]
fn one_difference_among_many_comparisons_may_be_chance() {
    let scopes = AffinityScope::ALL.map(|scope| (scope.name(), 1e6));
    let mut series = rates("kernel_test", 8, &scopes);
    for n in 0..5 {
        series.extend(rates(&format!("storm/{n}"), 8, &scopes));
    }
    let cpu = series.iter_mut().find(|one| one.case == "storm/3/cpu").unwrap();
    cpu.values.iter_mut().for_each(|value| *value *= 1.2);
    let advice = advise(&large(), &series, 1);
    assert!(advice.lead.starts_with("Use cpu: "), "{}", advice.lead);
    assert!(advice.lead.ends_with("repeat the run before you rely on it."), "{}", advice.lead);
}

#[test]
fn values_that_make_no_ratio_are_left_out() {
    let mut series = rates("kernel_test", 8, &[("cache_shard", 1e6), ("cpu", 0.0)]);
    let nothing =
        "Only cache_shard (the default) was measured: there is nothing to compare it with.";
    assert_eq!(advise(&large(), &series, 1).lead, nothing);
    series[1].values = vec![1e6; 3];
    assert_eq!(advise(&large(), &series, 1).lead, nothing, "they aren't pairs");
}

#[test]
fn a_run_without_the_default_names_the_first_as_what_it_is() {
    let series = rates("kernel_test", 8, &[("numa", 1e6), ("cpu", 1e6)]);
    let advice = advise(&large(), &series, 1);
    assert!(advice.lead.starts_with("Use numa: whatever differs"), "{}", advice.lead);
    assert!(advice.lead.ends_with(".scope(AffinityScope::Numa)`."), "{}", advice.lead);
}
