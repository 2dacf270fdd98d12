//! Test programs of several files.

use crate::files::{self, SourceFile};
use crate::lexer::Line;
use crate::{Finding, report};

/// Returns files that their test program doesn't name. Such a file isn't built: its tests are lost,
/// and all are green.
fn left_out(files: &[SourceFile]) -> Vec<Finding> {
    let mut found = Vec::new();
    for main in files.iter().filter(|file| file.path.ends_with("/main.rs")) {
        let folder = main.path.strip_suffix("main.rs").unwrap_or_default();
        if !folder.contains("/tests/") {
            continue;
        }
        let beside = |file: &&SourceFile| {
            file.path.strip_prefix(folder).is_some_and(|name| !name.contains('/'))
        };
        for file in files.iter().filter(beside).filter(|file| file.is_rust()) {
            let name = file.path.rsplit('/').next().unwrap_or_default().trim_end_matches(".rs");
            let names = |line: &Line| line.code.trim() == format!("mod {name};");
            if name != "main" && !main.lines.iter().any(names) {
                found.push(file.finding(0, format!("{} doesn't name it", main.path)));
            }
        }
    }
    found
}

#[test]
fn each_file_of_a_test_program_is_built() {
    report(left_out(files::committed()));
}

#[test]
fn left_out_can_fail() {
    let file = |path: &str, text: &str| SourceFile::new(path, text);
    let main = file("crates/x/tests/loom/main.rs", "//! A.\nmod a;\n// mod b;\n");
    let others = ["a", "b"].map(|name| file(&format!("crates/x/tests/loom/{name}.rs"), "//! A.\n"));
    let [a, b] = others;
    let found = left_out(&[main, a, b]);
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].path, "crates/x/tests/loom/b.rs");
}
