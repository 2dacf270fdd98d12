//! Rules about crates and about the project as a whole.

use crate::files::{self, SourceFile};
use crate::lexer::words;
use crate::{Finding, hold, lines_found, report};

/// Least number of documentation lines at the front of a crate: a shorter page tells its reader
/// nothing.
const LEAST_DOC: usize = 4;

fn crate_doc(file: &SourceFile) -> Vec<Finding> {
    let Some(name) = file.product_crate() else { return Vec::new() };
    let is_root = ["lib.rs", "main.rs"].map(|f| files::sources_of(name) + f);
    let docs = file.text.lines().take_while(|line| line.starts_with("//!")).count();
    // A facade may take its page from the README.
    let included = file.text.lines().any(|line| line.starts_with("#![doc = include_str!("));
    if !is_root.contains(&file.path) || docs >= LEAST_DOC || included {
        return Vec::new();
    }
    vec![file.finding(
        1,
        format!("the crate's front page has {docs} lines: say what it is, and how to use it"),
    )]
}

#[test]
fn each_crate_has_a_front_page() {
    hold(crate_doc);
}

#[test]
fn crate_doc_can_fail() {
    let found = |path, text| lines_found(crate_doc, path, text);
    assert_eq!(found("crates/x/src/lib.rs", "//! X.\n\nmod a;\n"), [1]);
    assert_eq!(found("crates/x/src/main.rs", "mod a;\n"), [1]);
    assert!(found("crates/x/src/lib.rs", "//! X.\n//!\n//! Y.\n//! Z.\n").is_empty());
    assert!(found("crates/x/src/a.rs", "//! X.\n").is_empty());
    assert!(found("crates/x/src/lib.rs", "//! X.\n#![doc = include_str!(\"R.md\")]\n").is_empty());
}

/// Checks that the facade declares nothing: each item belongs to the crate of its subject.
fn facade_re_exports(file: &SourceFile) -> Vec<Finding> {
    if file.product_crate() != Some("corewise") {
        return Vec::new();
    }
    let own = [
        "fn",
        "struct",
        "enum",
        "trait",
        "impl",
        "static",
        "const",
        "type",
        "union",
        "macro_rules",
    ];
    let mut findings = Vec::new();
    for (number, line) in file.product_lines() {
        if let Some(word) = words(&line.code).find(|word| own.contains(word)) {
            findings.push(
                file.finding(number, format!("a `{word}` of its own: the facade only re-exports")),
            );
        }
    }
    findings
}

#[test]
fn the_facade_only_re_exports() {
    hold(facade_re_exports);
}

#[test]
fn facade_re_exports_can_fail() {
    let found = |text| lines_found(facade_re_exports, "crates/corewise/src/lib.rs", text);
    assert_eq!(found("pub use a::b;\npub fn f() {}\n"), [2]);
    assert_eq!(found("pub type A = b::C;\n"), [1]);
    assert!(found("//! fn of type\npub mod prelude {\n    pub use a::{B, c};\n}\n").is_empty());
    assert!(lines_found(facade_re_exports, "crates/x/src/lib.rs", "fn f() {}\n").is_empty());
}

/// Files that every clone must have.
const FILES: [&str; 14] = [
    ".ci/run",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "Cargo.lock",
    "Cargo.toml",
    "LICENSE",
    "LICENSE-APACHE",
    "LICENSE-MIT",
    "README.md",
    "clippy.toml",
    "deny.toml",
    "floors.toml",
    "rustfmt.toml",
];

fn missing_files(paths: &[String]) -> Vec<Finding> {
    let missing = FILES.iter().filter(|file| !paths.iter().any(|path| path == *file));
    missing.map(|f| Finding { path: (*f).into(), line: 0, what: "is missing".into() }).collect()
}

#[test]
fn the_files_that_every_clone_needs_are_there() {
    report(missing_files(&files::paths()));
}

#[test]
fn missing_files_can_fail() {
    let mut paths = FILES.map(str::to_owned).to_vec();
    assert_eq!(missing_files(&paths), []);
    paths.retain(|path| path != "Cargo.lock");
    assert_eq!(missing_files(&paths)[0].path, "Cargo.lock");
}

/// Pages that are read from end to end. The tables of results stand beside their records.
fn long_pages(file: &SourceFile) -> Vec<Finding> {
    let lines = file.text.lines().count();
    let bytes = file.text.len();
    let what = match file.path.as_str() {
        "README.md" if lines > 130 => format!("has {lines} lines; a front page has 130 at most"),
        "ARCHITECTURE.md" if bytes > 16_384 => {
            format!("has {bytes} bytes, of 16384 at most: details go to docs, or beside the code")
        }
        "CHANGELOG.md" if bytes > 8_192 => {
            format!("has {bytes} bytes, of 8192 at most: it says what a release has")
        }
        "docs/benchmarks.md" if bytes > 20_480 => {
            format!("has {bytes} bytes, of 20480 at most: tables go to docs/results")
        }
        _ => return Vec::new(),
    };
    vec![file.finding(0, what)]
}

#[test]
fn pages_that_are_read_whole_are_short() {
    hold(long_pages);
}

#[test]
fn long_pages_can_fail() {
    let found = |path, text: &str| lines_found(long_pages, path, text);
    assert_eq!(found("README.md", &"line\n".repeat(131)), [0]);
    assert_eq!(found("docs/benchmarks.md", &"x".repeat(20_481)), [0]);
    for (page, most) in [("ARCHITECTURE.md", 16_384), ("CHANGELOG.md", 8_192)] {
        assert_eq!(found(page, &"x".repeat(most + 1)), [0]);
        assert!(found(page, &"x".repeat(most)).is_empty());
    }
    assert!(found("README.md", &"line\n".repeat(130)).is_empty());
    assert!(found("docs/benchmarks.md", &"x".repeat(20_480)).is_empty());
    assert!(found("docs/control.md", &"line\n".repeat(200)).is_empty());
}
