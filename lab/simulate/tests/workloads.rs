//! Each workload runs to its end on a small simulated machine, and with `--long` again to the same
//! figures.

#![cfg(sim)]

use std::process::Command;

const FOUR: &str = "l3:1 core:4 pu:1";

/// Runs the program, and returns the line of JSON that it prints.
fn simulate(machine: &str, words: &str) -> serde_json::Value {
    let program = std::env::var_os("COREWISE_SIMULATE");
    let mut command = Command::new(program.expect("cargo xtask test --only workloads names it"));
    command.args(["--json", "--fields", "0", "--machine", machine]);
    command.args(words.split_whitespace());
    let output = command.output().expect("it can be started");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words}: {said}");
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{words}: {error}"))
}

/// Returns a metric of a run on four cores. It checks that the metric is there, above 0, and the
/// same each time. In short mode there is one run: `counts` checks that runs are the same.
fn measured(words: &str, metric: &str) -> f64 {
    let line = simulate(FOUR, words);
    if std::env::var_os("COREWISE_LONG").is_some() {
        assert_eq!(line, simulate(FOUR, words), "{words}: the same seed gives the same figures");
    }
    let value = line["metrics"][metric].as_f64();
    let value = value.unwrap_or_else(|| panic!("{words}: no {metric} in {line}"));
    assert!(value > 0.0, "{words}: {line}");
    value
}

fn all_run(workloads: &[(&str, &str)]) {
    for (words, metric) in workloads {
        measured(words, metric);
    }
}

#[test]
fn workqueues_run() {
    let rate = "items_per_second";
    all_run(&[
        ("case=storm/reused runtime=corewise workers=4 producers=2 items=5000 ring=512", rate),
        (
            "case=storm/reused/striped runtime=corewise/cpu workers=4 producers=4 items=5000 ring=512",
            rate,
        ),
        ("case=storm/boxed runtime=corewise workers=4 producers=2 items=5000", rate),
        ("case=storm/boxed runtime=before workers=4 producers=2 items=1000", rate),
        ("case=inside runtime=corewise workers=4 items=5000", rate),
        ("case=fan runtime=corewise workers=4 items=2", "makespan_p50"),
        ("case=kernel_test runtime=corewise workers=4 producers=4 items=300", "latency_p50"),
        ("case=pingpong/free/hot runtime=corewise workers=4 items=300", "latency_p50"),
        ("case=pingpong/free/500us runtime=futex workers=4 items=50 gap_us=500", "latency_p50"),
        ("case=idle runtime=corewise workers=4 items=100 rest_ms=20", "threads"),
    ]);
}

#[test]
fn the_mix_runs() {
    let mix = "case=mix/50 runtime=corewise workers=4 items=500 rate=20000 block_us=1000 short_us=1 seed=1";
    all_run(&[(mix, "short_p50"), (&format!("{mix} hint=1"), "short_p50")]);
}

#[test]
fn calls_run() {
    let latency = "latency_p50";
    all_run(&[
        ("calls case=roundtrip/hot runtime=corewise items=500 client_cpu=3", latency),
        (
            "calls case=roundtrip/cold runtime=corewise-future items=50 gap_us=1000 client_cpu=3",
            latency,
        ),
        ("calls case=roundtrip/busy runtime=corewise items=20 gap_us=1000 client_cpu=3", latency),
        ("calls case=broadcast/4 runtime=corewise items=50 gap_us=1000 client_cpu=3", latency),
        (
            "calls case=broadcast/synthetic/8 runtime=corewise items=20 gap_us=1000 client_cpu=3",
            latency,
        ),
        ("calls case=load/burst runtime=corewise items=2000 client_cpu=3", "items_per_second"),
        ("calls case=load/waiters runtime=corewise items=500 client_cpu=3", "items_per_second"),
        ("calls case=reads runtime=corewise items=20000 gap_us=100 client_cpu=3", "read_p50"),
        (
            "--real-time calls case=held_span/priority runtime=corewise length_ms=60 tick_us=4000 interval_ms=20",
            "held_max",
        ),
    ]);
}

#[test]
fn the_block_layer_runs() {
    let rate = "items_per_second";
    all_run(&[
        ("blockmq case=tags/4/128 runtime=corewise items=5000", rate),
        ("blockmq case=tags/4/2 runtime=mutex_list items=2000", rate),
        ("blockmq case=quiesce/load runtime=corewise items=10 depth=4 gap_us=1000", "resume_p50"),
        ("blockmq case=freeze/load runtime=corewise items=10 depth=4 gap_us=1000", "resume_p50"),
        ("blockmq case=quiesce_all/4 runtime=corewise items=10 depth=4 gap_us=1000", "resume_p50"),
        ("blockmq case=seqread/3/1000/ordinary runtime=corewise depth=4 length_ms=5", rate),
        ("--real-time blockmq case=seqread/3/1000/fifo runtime=spin depth=4 length_ms=5", rate),
        ("blockmq case=null/randread/32/1 runtime=corewise length_ms=5", rate),
        ("blockmq case=memory/randwrite/4/2 runtime=corewise length_ms=2", rate),
    ]);
}

#[test]
fn devices_come_up_and_go_down() {
    all_run(&[
        (
            "probe case=devices/5 runtime=corewise pieces=4 burn_ns=100000 wait_ns=100000",
            "makespan_p50",
        ),
        (
            "probe case=devices/5 runtime=before pieces=4 burn_ns=100000 wait_ns=100000",
            "makespan_p50",
        ),
        (
            "probe case=devices/5 runtime=threads pieces=4 burn_ns=100000 wait_ns=100000",
            "makespan_p50",
        ),
        ("probe case=overhead/100 runtime=nested", "overhead_per_device"),
        (
            "shutdown case=flat/500/2 runtime=corewise quick_steps=16000 shortest_ms=10 longest_ms=50",
            "makespan_p50",
        ),
        ("shutdown case=azure/async runtime=serial", "makespan_p50"),
    ]);
}

/// Checks a queue's limit with two shards, whose items take turns. Items inside the limit waited
/// for items that weren't.
#[test]
fn the_old_shutdown_of_long_chains_ends_on_many_cores() {
    let words = "shutdown case=deep/5000/0 runtime=before quick_steps=16000";
    let line = simulate("l3:1 core:16 pu:1", words);
    assert!(line["metrics"]["makespan_p50"].as_f64() > Some(0.0), "{line}");
}

#[test]
fn waits_for_the_system_itself_are_refused_with_the_reason() {
    for words in [
        "calls case=roundtrip/hot runtime=eventfd",
        "calls case=reads runtime=rwlock",
        "blockmq case=file/randread/1/1 runtime=corewise",
        "blockmq case=null/randread/1/1 runtime=fio",
        "blockmq case=seqread/3/1000/ordinary runtime=before",
    ] {
        let line = simulate(FOUR, words);
        let why = line["unsupported"].as_str();
        assert!(why.is_some_and(|why| why.contains("simulated")), "{words}: {line}");
    }
    let unprivileged = simulate(FOUR, "blockmq case=seqread/2/1000/fifo runtime=corewise");
    assert!(unprivileged["unsupported"].is_string(), "{unprivileged}");
}
