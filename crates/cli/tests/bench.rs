//! `corewise bench`: the records that programs read, the tables and the advice that people read.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use common::Folder;
use serde_json::Value;

#[test]
fn the_records_of_the_kernel_test_end_with_the_headlines() {
    let folder = Folder::new();
    let args = ["bench", "workqueue", "--quick", "--json", "--rounds", "1"];
    let ran = folder.corewise(args.iter().chain(&["--workload", "kernel_test"])).ok();
    let records: Vec<Value> = serde_json::from_str(&ran.stdout).unwrap();
    for record in &records {
        let keys = record.as_object().unwrap().keys().map(String::as_str).collect::<Vec<_>>();
        let expected =
            ["bench", "case", "max", "median", "metric", "min", "runs", "unit", "variant"];
        let mut keys = keys;
        keys.sort_unstable();
        assert_eq!(keys, expected);
        assert_eq!(record["bench"], "workqueue");
        let variant = record["variant"].as_str().unwrap();
        assert!(["corewise", "before"].contains(&variant), "{variant}");
        assert_eq!(record["runs"], 1);
    }
    let last: Vec<&Value> = records.iter().rev().take(2).rev().collect();
    let expected = ["cache_shard_vs_before_items", "cache_shard_vs_before_p50"];
    for (record, metric) in last.iter().zip(expected) {
        assert_eq!((&record["case"], &record["variant"]), (&"headline".into(), &"corewise".into()));
        assert_eq!((&record["metric"], &record["unit"]), (&metric.into(), &"ratio".into()));
    }
    let has = |case: &str, metric: &str| {
        records.iter().any(|record| record["case"] == case && record["metric"] == metric)
    };
    for case in ["kernel_test/cache_shard", "kernel_test/cache", "kernel_test/inline/cache_shard"] {
        assert!(has(case, "items_per_second") && has(case, "call_p50"), "{case}\n{ran}");
    }
    assert!(has("kernel_test/cache_shard", "allocations_per_item"));
    assert_eq!(ran.stderr, "", "{ran}");
    assert_eq!(folder.list(), [""; 0], "something was left behind");
}

#[test]
fn the_text_has_a_table_for_each_case_and_ends_with_advice() {
    let folder = Folder::new();
    let args = ["bench", "--quick", "--rounds", "2", "--workload", "pingpong/same/hot"];
    let ran = folder.corewise(args).ok().says(&[
        "2 rounds",
        "pingpong/same/hot",
        "latency p50",
        "before (cpu)",
        "futex",
        "±",
        "Advice",
    ]);
    assert!(!ran.stdout.contains('\x1b'), "colours that nobody can see\n{ran}");
    assert!(ran.stdout.lines().all(|line| line.chars().count() <= 100), "{ran}");
    // Not measured, so not said.
    assert!(!ran.stdout.contains("Kernel's test"), "{ran}");
}

#[test]
fn one_run_prints_one_line() {
    let folder = Folder::new();
    let words = ["case=storm/reused", "runtime=corewise/cpu", "items=1000", "ring=8", "count=1"];
    let ran = folder.corewise(["bench", "--run"].iter().chain(&words)).ok();
    let line: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!((&line["case"], &line["runtime"]), (&words[0][5..].into(), &words[1][8..].into()));
    let metrics = line["metrics"].as_object().unwrap();
    assert_eq!(metrics.keys().collect::<Vec<_>>(), ["allocations_per_item"]);
}

#[test]
fn what_is_not_there_is_said_with_what_there_is() {
    let folder = Folder::new();
    let usage = |args: &[&str], said: &[&str]| {
        folder.corewise([&["bench"], args].concat()).code(2).complains(said);
    };
    usage(&["calls"], &["'calls'", "there is: workqueue"]);
    usage(&["workqeue"], &["did you mean 'workqueue'?"]);
    usage(&["--workload", "strom"], &["did you mean 'storm'?"]);
    usage(&["--workload", "disks"], &["kernel_test, storm"]);
    usage(&["--rounds", "0"], &["--rounds"]);
    let failed = |words: &[&str], said: &[&str]| {
        folder.corewise([&["bench", "--run"], words].concat()).code(1).complains(said);
    };
    failed(&["case=idle"], &["error: a run needs a runtime"]);
    failed(&["case=idle", "runtime=tokio"], &["error: no runtime 'tokio' here"]);
}
