//! The runs of the example programs: each ends by itself, with success, and prints what it should.

use std::path::PathBuf;
use std::process::Command;

/// Runs an example that cargo has built beside this test, and returns what it printed.
fn run(example: &str, arguments: &[&str]) -> String {
    let test = std::env::current_exe().expect("a test knows its own program");
    // .../debug/deps/examples-0123 -> .../debug/examples/NAME
    let folder = test.parent().and_then(|deps| deps.parent()).map(|debug| debug.join("examples"));
    let program: PathBuf = folder.expect("cargo's layout").join(example);
    let output = Command::new(&program).args(arguments).output().unwrap_or_else(|error| {
        panic!(
            "{}: {error}: examples are built by `cargo test -p corewise` without `--test`, or by \
             `cargo build -p corewise --examples`",
            program.display()
        )
    });
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let complaints = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{example} ended with {}: {said}{complaints}", output.status);
    said
}

#[test]
fn the_graph_is_built_in_parallel_and_like_one_by_one() {
    let said = run("build_graph", &[]);
    assert!(said.contains("\n  server") || said.contains("  server |"), "{said}");
    assert!(said.contains("17 targets in "), "{said}");
}

#[test]
fn the_crawler_finds_every_page_within_its_limits() {
    let said = run("crawler", &[]);
    assert!(said.contains("60 of 60 pages, 9 of them asked for again"), "{said}");
}

#[test]
fn checksums_are_those_of_one_by_one_and_tell_which_block_has_changed() {
    let said = run("checksums", &[]);
    assert!(said.contains("\n512 blocks in ") || said.starts_with("512 blocks in "), "{said}");
    assert!(said.ends_with("changed: blocks [5]\n"), "{said}");
}

#[test]
fn the_intake_does_or_refuses_each_job_and_reads_the_configuration_when_it_has_settled() {
    let said = run("intake", &[]);
    assert!(said.contains("configuration read: 1\n"), "{said}");
    assert!(
        said.contains("one job took too long, and was dropped\n1000 jobs asked for, "),
        "{said}"
    );
}

#[test]
fn each_node_is_warmed_by_its_own_workers() {
    let said = run("cache_warmer", &["--mib", "2"]);
    assert!(said.contains(" 0 ran outside their node"), "{said}");
    let said = run("cache_warmer", &["--mib", "2", "--synthetic", "numa:3 l3:1 core:4 pu:2"]);
    assert!(said.contains("16-23"), "the third node: {said}");
    assert!(said.contains("12 chunks, 0 ran outside their node"), "{said}");
}

#[test]
fn a_driver_of_ones_own_serves_requests_and_a_filter_changes_their_bytes_in_place() {
    let said = run("block_driver", &[]);
    assert!(said.contains(" bytes were read back, and lie scrambled below"), "{said}");
    assert!(said.contains("the disk got "), "{said}");
}

#[test]
fn tokio_and_the_workqueue_await_each_other() {
    let said = run("inside_tokio", &[]);
    assert!(said.contains("9592 primes below 100000"), "{said}");
    assert!(said.contains("10 requests"), "{said}");
}

#[test]
fn services_of_tokio_start_and_stop_in_the_order_of_what_they_need() {
    let said = run("services", &[]);
    assert!(said.contains("200 services up in "), "{said}");
    assert!(said.contains("listener7 is up, and stands on 4 others"), "{said}");
    assert!(said.contains("200 services down in "), "{said}");
    assert!(said.contains("\n0 failed, 0 left"), "{said}");
}

#[test]
fn the_service_of_the_tutorial_loses_no_line() {
    let said = run("tutorial", &[]);
    assert!(said.contains("bring-up: 3 devices, all ok\n"), "{said}");
    assert!(said.contains("\n3/12 is 144\n1000 keys\nshutdown: 3 devices, all ok\n"), "{said}");
    assert!(said.contains("> store (0 ns) > journal ("), "the journal ends last: {said}");
    assert!(said.ends_with("\n1000 lines in the journal\n"), "{said}");
}
