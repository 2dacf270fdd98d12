//! The file is read back as it was written, and an error names its key.
#![allow(missing_docs, clippy::unwrap_used)]

use corewise_costs::{Costs, CostsError, Distance, EXAMPLE, Figure, Machine, Noise, Target};

fn example() -> Costs {
    Costs::read(EXAMPLE).unwrap()
}

/// Returns costs with everything that a file can have.
fn full() -> Costs {
    let mut costs = example();
    costs.machine = Some(Machine {
        cpu_model: "A \"quoted\" CPU\t#1 \\".to_owned(),
        cpus: "0-1".to_owned(),
        cpu_count: 2,
        ..Machine::default()
    });
    costs.noise = Some(Noise { said: "busy".to_owned(), steal_percent: 1.5, ..Noise::default() });
    costs.line.locked_ns = Figure { p10: 90.0, p50: 100.125, p90: 300.0, p99: Some(4e6) };
    let mut far = costs.distance[&Distance::Cache].clone();
    far.list_read_ns = Some(Figure::exactly(77.0));
    far.array_locked_ns = Some(Figure::exactly(17.0));
    for distance in [Distance::Smt, Distance::Numa, Distance::System] {
        costs.distance.insert(distance, far.clone());
    }
    costs.call.membarrier_alone_ns = Some(Figure::exactly(90.0));
    costs
}

#[test]
fn a_written_file_is_read_again() {
    let one_cpu = Costs {
        distance: Default::default(),
        contended: Vec::new(),
        wake: Vec::new(),
        allocator: None,
        ..example()
    };
    for costs in [example(), full(), one_cpu] {
        let text = costs.write();
        assert_eq!(Costs::read(&text).as_ref(), Ok(&costs), "{text}");
        assert_eq!(Costs::read(&text).unwrap().write(), text, "the same bytes each time");
    }
}

#[test]
fn a_file_is_for_people_a_figure_on_a_line() {
    let text = full().write();
    let sections: Vec<&str> = text.lines().filter(|line| line.starts_with('[')).collect();
    let expected = [
        "[allocator]",
        "[call]",
        "[[contended]]",
        "[distance.cache]",
        "[distance.numa]",
        "[distance.smt]",
        "[distance.system]",
        "[line]",
        "[machine]",
        "[noise]",
        "[scheduler]",
        "[switch]",
        "[thread]",
        "[[wake]]",
        "[[wake]]",
    ];
    assert_eq!(sections, expected, "{text}");
    let line = "locked_ns = { p10 = 90.0, p50 = 100.125, p90 = 300.0, p99 = 4000000.0 }";
    assert!(text.lines().any(|found| found == line), "{text}");
}

/// Reads the example with one text in place of another one.
fn changed(from: &str, to: &str) -> Result<Costs, CostsError> {
    assert!(EXAMPLE.contains(from), "{from}");
    Costs::read(&EXAMPLE.replacen(from, to, 1))
}

#[test]
fn an_error_says_which_key_is_wrong_and_where() {
    for (from, to, says) in [
        ("fence_ns = 7\n", "", &["line 3", "[line]", "missing field `fence_ns`"][..]),
        ("fence_ns", "fense_ns", &["unknown field `fense_ns`", "fence_ns", "line 5"]),
        ("fence_ns = 7", "fence_ns = -7", &["fence_ns = -7", "-7 is not a cost", "at least 0"]),
        ("fence_ns = 7", "fence_ns = nan", &["fence_ns = nan", "not a cost"]),
        (
            "fence_ns = 7",
            "fence_ns = \"7\"",
            &["fence_ns", "a number of at least 0, or { p10, p50, p90 }"],
        ),
        ("fence_ns = 7", "fence_ns = { p10 = 1 }", &["fence_ns", "missing field `p50`"]),
        ("fence_ns = 7", "fence_ns = { p50 = 1, p95 = 2 }", &["unknown field `p95`"]),
        ("{ p10 = 30, p50", "{ p10 = 36, p50", &["list_ns", "must rise"]),
        ("[distance.cache]", "[distance.cash]", &["unknown variant `cash`", "numa"]),
        ("[distance.cache]", "[distance.same]", &["distance.same", "see [line]"]),
        ("target = \"idle\"", "target = \"lazy\"", &["unknown variant `lazy`", "busy"]),
        ("[call]", "[calls]", &["unknown field `calls`", "`call`"]),
        ("cpus = 2", "cpus = 0", &["contended.cpus", "use 1 or more"]),
        ("slept_us = 20", "slept_us = -20", &["wake.slept_us"]),
        ("version = 1", "version = 2\nnew = true", &["version = 2", "reads version 1"]),
        ("version = 1\n", "", &["missing field `version`"]),
        ("version = 1", "version = ", &["line 1"]),
    ] {
        let error = changed(from, to).expect_err(to).to_string();
        for said in says {
            assert!(error.contains(said), "{to}: no {said:?} in:\n{error}");
        }
    }
}

#[test]
fn missing_costs_are_taken_from_the_nearest_distance() {
    let mut costs = full();
    let list = |costs: &Costs, distance| costs.transfer(distance).map(|one| one.list_ns.p50);
    costs.distance.remove(&Distance::System);
    assert_eq!(list(&costs, Distance::System), list(&costs, Distance::Numa));
    costs.distance.remove(&Distance::Smt);
    assert_eq!(list(&costs, Distance::Smt), Some(35.0), "nothing is nearer: the nearest");
    costs.distance.clear();
    assert_eq!(list(&costs, Distance::Cache), None);

    let mut long = costs.wake[0].clone();
    long.slept_us = 1000.0;
    costs.wake.push(long);
    let slept = |us| costs.wake(Distance::System, Target::Idle, us).map(|one| one.slept_us);
    assert_eq!(
        [0.0, 20.0, 100.0, 200.0, 1e6].map(slept),
        [20.0, 20.0, 20.0, 1000.0, 1000.0].map(Some)
    );
    assert_eq!(costs.wake(Distance::Same, Target::Idle, 20.0), None, "another thing altogether");
}

#[test]
fn the_files_that_are_kept_can_be_read() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/results");
    let mut read = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if name.starts_with("costs-") && name.ends_with(".toml") {
            let costs = Costs::read(&std::fs::read_to_string(&path).unwrap());
            let costs = costs.unwrap_or_else(|error| panic!("{name}: {error}"));
            assert!(costs.transfer(Distance::Cache).is_some(), "{name}");
            read += 1;
        }
    }
    assert!(read >= 2, "only {read} files in {folder}");
}
