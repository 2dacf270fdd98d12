//! The program: the records that programs read, and the tables that people read.
#![allow(clippy::unwrap_used)]

use corewise_bench::calls::priority::{may_be_real_time, run_delay};
use serde_json::Value;

use crate::Folder;

#[test]
fn the_records_of_the_kernel_test_end_with_the_headlines() {
    let folder = Folder::new();
    let args = ["workqueue", "--quick", "--json", "--rounds", "1"];
    let ran = folder.bench(args.iter().chain(&["--workload", "kernel_test"])).ok();
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
    for case in ["kernel_test/cache_shard", "kernel_test/cache"] {
        assert!(has(case, "items_per_second") && has(case, "call_p50"), "{case}\n{ran}");
    }
    assert!(has("kernel_test/cache_shard", "allocations_per_item"));
    assert_eq!(ran.stderr, "", "{ran}");
    assert_eq!(folder.list(), [""; 0], "something was left behind");
}

#[test]
fn the_records_of_calls_end_with_the_headlines() {
    let folder = Folder::new();
    let args = ["calls", "--quick", "--json", "--rounds", "1"];
    let workloads = ["--workload", "held_span", "--workload", "roundtrip"];
    let ran = folder.bench(args.iter().chain(&workloads)).ok();
    let records: Vec<Value> = serde_json::from_str(&ran.stdout).unwrap();
    assert!(records.iter().all(|record| record["bench"] == "calls"), "{ran}");
    let headlines: Vec<&Value> =
        records.iter().filter(|record| record["case"] == "headline").collect();
    let has_held = may_be_real_time() && run_delay().is_ok();
    let expected = ["held_span_p99_vs_before", "roundtrip_p50_vs_eventfd"];
    let expected = &expected[usize::from(!has_held)..];
    assert_eq!(records[records.len() - expected.len()..].iter().collect::<Vec<_>>(), headlines);
    for (record, metric) in headlines.iter().zip(expected) {
        assert_eq!((&record["metric"], &record["unit"]), (&(*metric).into(), &"ratio".into()));
    }
    let has = |case: &str, variant: &str, metric: &str| {
        records.iter().any(|record| {
            let name = record["case"].as_str().unwrap();
            name.starts_with(case) && record["variant"] == variant && record["metric"] == metric
        })
    };
    for variant in ["corewise", "before", "idle"] {
        assert_eq!(has("held_span/", variant, "held_p99"), has_held, "{variant}\n{ran}");
    }
    for case in ["roundtrip/hot", "roundtrip/cold", "roundtrip/busy"] {
        assert!(has(case, "corewise", "latency_p99") && has(case, "eventfd", "latency_p50"));
        assert!(has(case, "corewise", "allocations_per_item"), "{case}\n{ran}");
    }
    assert_eq!(ran.stderr, "", "{ran}");
}

#[test]
fn both_benchmarks_are_run_where_both_have_what_is_asked_for() {
    let folder = Folder::new();
    let args = ["--quick", "--rounds", "1"];
    let workloads = ["--workload", "pingpong/same/hot", "--workload", "broadcast/1"];
    let ran = folder.bench(args.iter().chain(&workloads)).ok();
    ran.says(&["workqueue\n", "pingpong/same/hot (1 runs)", "calls\n", "broadcast/1 (1 runs)"]);
}

#[test]
fn the_text_has_a_table_for_each_case_with_a_row_for_each_scope() {
    let folder = Folder::new();
    let args = ["--quick", "--rounds", "2", "--workload", "pingpong/same/hot"];
    let ran = folder.bench(args).ok();
    let ran = ran.says(&["pingpong/same/hot (2 runs)", "latency_p50", "before (cpu)", "futex"]);
    // The figure wasn't measured, so it isn't shown.
    assert!(!ran.stdout.contains("cache_shard_vs_before"), "{ran}");
}

#[test]
fn one_run_prints_one_line() {
    let folder = Folder::new();
    let words = [
        "workqueue",
        "case=storm/reused",
        "runtime=corewise/cpu",
        "items=1000",
        "ring=8",
        "count=1",
    ];
    let ran = folder.bench(["--run"].iter().chain(&words)).ok();
    let line: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!((&line["case"], &line["runtime"]), (&words[1][5..].into(), &words[2][8..].into()));
    let metrics = line["metrics"].as_object().unwrap();
    assert_eq!(metrics.keys().collect::<Vec<_>>(), ["allocations_per_item"]);
}

#[test]
fn the_records_of_a_shutdown_end_with_the_headlines() {
    let folder = Folder::new();
    let args = ["shutdown", "--quick", "--json", "--rounds", "1"];
    let workloads = ["flat/500", "wide/500", "azure"].map(|name| ["--workload", name]);
    let ran = folder.bench(args.iter().chain(workloads.as_flattened())).ok();
    let records: Vec<Value> = serde_json::from_str(&ran.stdout).unwrap();
    assert!(records.iter().all(|record| record["bench"] == "shutdown"), "{ran}");
    let headlines: Vec<&Value> =
        records.iter().filter(|record| record["case"] == "headline").collect();
    assert_eq!(records[records.len() - 3..].iter().collect::<Vec<_>>(), headlines);
    let expected = ["makespan_vs_critical_path", "no_slow_vs_serial", "azure_vs_serial"];
    for (record, metric) in headlines.iter().zip(expected) {
        assert_eq!((&record["metric"], &record["unit"]), (&metric.into(), &"ratio".into()));
    }
    let value = |case: &str, variant: &str, metric: &str| {
        let is_it = |record: &&Value| {
            (&record["case"], &record["variant"], &record["metric"])
                == (&case.into(), &variant.into(), &metric.into())
        };
        records.iter().find(is_it).and_then(|record| record["median"].as_f64())
    };
    for (case, has_before) in [
        ("flat/500/2", true),
        ("wide/500/24", false), // a quick call runs the old design on two webs only
        ("azure/serial", true),
        ("azure/async", true),
    ] {
        let path = value(case, "corewise", "critical_path").expect(case);
        let makespans = ["corewise", "before"].map(|variant| value(case, variant, "makespan_p50"));
        assert_eq!(makespans.map(|makespan| makespan.is_some()), [true, has_before], "{case}");
        for makespan in makespans.into_iter().flatten() {
            assert!(makespan >= path, "{case}: {makespan} ns of {path} ns at least");
        }
    }
    assert_eq!(value("flat/500/0", "corewise", "critical_path"), None);
    assert!(value("flat/500/0", "corewise", "threads").is_some());
}

#[test]
fn the_records_of_probes_end_with_the_headlines_and_no_time_is_below_its_bound() {
    let folder = Folder::new();
    let args = ["probe", "--quick", "--json", "--rounds", "1"];
    let workloads = ["--workload", "devices/3", "--workload", "overhead/100"];
    let ran = folder.bench(args.iter().chain(&workloads)).ok();
    let records: Vec<Value> = serde_json::from_str(&ran.stdout).unwrap();
    let last: Vec<&Value> = records[records.len() - 2..].iter().collect();
    for (record, metric) in last.iter().zip(["mean_cost_vs_before", "makespan_vs_bound"]) {
        assert_eq!((&record["case"], &record["metric"]), (&"headline".into(), &metric.into()));
        assert_eq!(record["unit"], "ratio");
    }
    let value = |case: &str, variant: &str, metric: &str| {
        let found = records.iter().find(|record| {
            record["case"] == case && record["variant"] == variant && record["metric"] == metric
        });
        found.and_then(|record| record["median"].as_f64())
    };
    for variant in ["corewise", "before", "nested", "threads"] {
        let of = |metric| value("devices/3", variant, metric).expect(metric);
        assert!(of("cost_max") >= of("cost_mean") && of("makespan_p50") >= of("cost_mean"));
        let overhead = value("overhead/100", variant, "overhead_per_device");
        assert_eq!(overhead.is_some(), variant != "threads", "{variant}");
    }
    assert_eq!(value("devices/3", "before", "cpus"), Some(1.0), "it is about one CPU");
    assert_eq!(ran.stderr, "", "{ran}");
}

#[test]
fn the_records_of_the_block_layer_end_with_the_headlines_and_each_variant_has_read() {
    let folder = Folder::new();
    let args = ["blockmq", "--quick", "--json", "--rounds", "1"];
    let workloads = ["--workload", "seqread/8/1000/ordinary", "--workload", "quiesce"];
    let ran = folder.bench(args.iter().chain(&workloads)).ok();
    let records: Vec<Value> = serde_json::from_str(&ran.stdout).unwrap();
    let last: Vec<&Value> = records[records.len() - 2..].iter().collect();
    for (record, metric) in last.iter().zip(["seqread_vs_before", "seqread_vs_unchecked"]) {
        assert_eq!((&record["case"], &record["metric"]), (&"headline".into(), &metric.into()));
        assert_eq!(record["unit"], "ratio");
    }
    for variant in ["corewise", "before", "mutex", "unchecked"] {
        let found = records.iter().find(|record| {
            record["case"] == "seqread/8/1000/ordinary"
                && record["variant"] == variant
                && record["metric"] == "bytes_per_second"
        });
        assert!(found.unwrap()["median"].as_f64().unwrap() > 0.0, "{variant}");
    }
    let has = |metric: &str| records.iter().any(|record| record["metric"] == metric);
    assert!(has("allocations_per_item") && has("resume_p50") && has("waiting"), "{ran}");
    assert_eq!(ran.stderr, "", "{ran}");
}

#[test]
fn random_requests_to_null_and_to_a_file_go_through_the_layer_and_through_fio() {
    let folder = Folder::new();
    let args = ["blockmq", "--quick", "--json", "--rounds", "1"];
    let workloads = ["--workload", "null/randread/32/1", "--workload", "file/randread/32/1"];
    let ran = folder.bench(args.iter().chain(&workloads)).ok();
    let records: Vec<Value> = serde_json::from_str(&ran.stdout).unwrap();
    let value = |case: &str, variant: &str, metric: &str| {
        let found = records.iter().find(|record| {
            record["case"] == case && record["variant"] == variant && record["metric"] == metric
        });
        found.and_then(|record| record["median"].as_f64())
    };
    let null = |metric| value("null/randread/32/1", "corewise", metric).expect(metric);
    assert!(null("items_per_second") > 0.0 && null("latency_p99") > 0.0);
    // A CPU that hadn't submitted before has its boxes to make, once.
    let allocations = null("allocations_per_item");
    assert!(allocations < 1e-3, "{allocations}");
    let headline = |metric| value("headline", "corewise", metric);
    assert_eq!(headline("overhead_ns_per_request"), Some(null("overhead_ns_per_request")));
    assert_eq!(headline("allocations_per_item"), Some(allocations));
    // There need be no fio here, and no way past the page cache.
    let rate = |variant| value("file/randread/32/1", variant, "items_per_second");
    let both = rate("corewise").is_some() && rate("fio").is_some();
    for metric in ["file_iops_vs_fio", "file_p99_vs_fio"] {
        assert_eq!(headline(metric).is_some(), both, "{metric}");
    }
    assert_eq!(ran.stderr, "", "{ran}");
}

#[test]
fn unknown_names_are_answered_with_the_known_ones() {
    let folder = Folder::new();
    let usage = |args: &[&str], said: &[&str]| {
        folder.bench(args).code(2).complains(said);
    };
    usage(
        &["disks"],
        &["'disks'", "[possible values: workqueue, calls, probe, shutdown, blockmq]"],
    );
    usage(&["workqeue"], &["a similar value exists: 'workqueue'"]);
    usage(&["--rounds", "0"], &["--rounds"]);
    let failed = |words: &[&str], said: &[&str]| {
        folder.bench([&["--run"], words].concat()).code(1).complains(said);
    };
    let none = |args: &[&str], said: &str| {
        folder.bench(args).code(1).complains(&[said, "leave out the benchmark's name"]);
    };
    none(&["calls", "--workload", "storm"], "no such workload: storm");
    none(&["--workload", "held_span", "--workload", "held"], "no such workload: held;");
    failed(&["disks"], &["error: no benchmark 'disks' here"]);
    failed(&["workqueue", "case=idle"], &["error: a run needs a runtime"]);
    failed(&["calls", "case=roundtrip/hot"], &["error: a run needs a runtime"]);
    failed(&["shutdown", "case=flat/5/6", "runtime=x"], &["error: there is no case 'flat/5/6'"]);
    failed(&["workqueue", "case=idle", "runtime=tokio"], &["error: no runtime 'tokio' here"]);
}
