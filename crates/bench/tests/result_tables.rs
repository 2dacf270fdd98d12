//! The tables of results in the documents are those that their records give: nobody changed one by
//! hand, and no record was replaced without its tables.

use std::path::Path;

use corewise_bench::report::markdown;

#[test]
fn the_tables_of_the_documents_are_those_of_the_records() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for file in ["README.md", "docs/benchmarks.md"] {
        let path = root.join(file);
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.contains("<!-- end of results -->"), "{file} has no table");
        let filled = markdown::fill(&text, |name| markdown::read_beside(&path, name));
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
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/results");
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "json") {
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            let records = markdown::read_beside(&path, &name).unwrap();
            assert!(!records.is_empty(), "{name} is empty");
        }
    }
}
