//! The tables of results in the documents are those that their records give: nobody changed one by
//! hand, and no record was replaced without its tables.

use std::path::{Path, PathBuf};

use corewise_bench::record::Record;
use corewise_bench::report::markdown;

#[allow(dead_code, reason = "the program's own part")]
#[path = "../examples/fill_tables.rs"]
mod fill_tables;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The files of `docs/results` that end so.
fn results(ending: &str) -> Vec<PathBuf> {
    let folder = std::fs::read_dir(root().join("docs/results"));
    let entries = folder.expect("docs/results is there");
    let paths = entries.map(|entry| entry.expect("it can be listed").path());
    paths.filter(|path| path.extension().is_some_and(|extension| extension == ending)).collect()
}

#[test]
fn the_tables_of_the_documents_are_those_of_the_records() {
    let documents = ["README.md", "docs/benchmarks.md"].map(|file| root().join(file));
    let pages = results("md").into_iter().filter(|path| !path.ends_with("README.md"));
    for path in documents.into_iter().chain(pages) {
        let file = path.display();
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.contains("<!-- end of r"), "{file} has no table");
        let filled = fill_tables::filled(&text, |name| markdown::read_beside(&path, name));
        let filled = filled.unwrap_or_else(|problem| panic!("{file}: {problem}"));
        assert!(
            filled == text,
            "{file} isn't what its records give: run\n  cargo run -p corewise-bench --example \
             fill_tables -- {file}"
        );
    }
}

#[test]
fn every_record_of_the_results_can_be_read() {
    for path in results("json") {
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let records = markdown::read_beside(&path, &name).unwrap();
        assert!(!records.is_empty(), "{name} is empty");
    }
}

#[test]
fn every_record_of_the_results_is_named_in_their_readme() {
    let readme = std::fs::read_to_string(root().join("docs/results/README.md")).unwrap();
    for path in results("json") {
        let name = path.file_name().unwrap().to_str().unwrap();
        assert!(readme.contains(&format!("`{name}`")), "{name}: nothing says how it was made");
    }
}

#[test]
fn a_place_of_rows_has_a_column_for_each_variant_it_names_and_the_best_of_the_others() {
    let record = |variant: &str, metric: &str, unit: &str, median: f64| Record {
        bench: "workqueue".into(),
        case: "storm/boxed".into(),
        variant: variant.into(),
        metric: metric.into(),
        unit: unit.into(),
        median,
        min: median,
        max: median,
        runs: 1,
    };
    let read = |name: &str| match name {
        "a.json" => Ok(vec![
            record("tokio", "items_per_second", "items/s", 2e6),
            record("corewise", "items_per_second", "items/s", 9e6),
            record("corewise-spawn", "items_per_second", "items/s", 8e6),
            record("rayon", "items_per_second", "items/s", 6e6),
            record("rayon", "latency_p50", "ns", 50.0),
            record("tokio", "latency_p50", "ns", 40.0),
        ]),
        _ => Err("there is no such file".into()),
    };
    let place = "<!-- rows: corewise tokio best\n\
                 storm | 2 | a.json | storm/boxed | items_per_second\n\
                 answer | 2 | a.json | storm/boxed | latency_p50\n-->";
    let text = format!("before\n{place}\nold\n<!-- end of rows -->\nafter\n");
    let filled = fill_tables::filled(&text, read).unwrap();
    let table = "| | CPUs | **Corewise** | tokio | best of all others |\n|---|---|---|---|---|\n\
                 | storm | 2 | 9.00 M/s | 2.00 M/s | 6.00 M/s (rayon) |\n\
                 | answer | 2 | – | 40.0 ns | 40.0 ns (tokio) |\n";
    let expected = format!("before\n{place}\n\n{table}\n<!-- end of rows -->\nafter\n");
    assert_eq!(filled, expected);
    assert_eq!(
        fill_tables::filled(&filled, read).unwrap(),
        filled,
        "filling again changes nothing"
    );
    for (from, to, said) in [
        ("a.json", "b.json", "b.json: there is no such file"),
        ("storm/boxed |", "storm/none |", "has no items_per_second of storm/none"),
        (" | latency_p50", "", "are expected"),
        ("<!-- end of rows -->", "", "has no `-->` or"),
    ] {
        let problem = fill_tables::filled(&text.replace(from, to), read).unwrap_err();
        assert!(problem.contains(said), "{problem}");
    }
}
