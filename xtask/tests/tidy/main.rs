//! The house rules that reading the sources can check. Each rule is a function from a file to
//! findings, and has tests that prove that it can fail.

mod backends;
mod files;
mod guards;
mod lexer;
mod links;
mod manifests;
mod names;
mod programs;
mod references;
mod rooms;
mod rules;
mod rust;
mod sentences;
mod spoken;
mod text;
mod used;
mod whole;
mod words;

use files::SourceFile;

/// A place that breaks a rule.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Finding {
    path: String,
    /// Line from 1; 0 means the whole file.
    line: usize,
    what: String,
}

/// Runs `rule` over every file and fails with all findings, by file.
#[track_caller]
fn hold(rule: impl Fn(&SourceFile) -> Vec<Finding>) {
    let files = files::committed();
    assert!(files.len() > 20, "the files of the project were not found");
    report(files.iter().flat_map(rule).collect());
}

#[track_caller]
fn report(mut findings: Vec<Finding>) {
    findings.sort();
    let lines: Vec<String> = findings
        .iter()
        .map(|f| match f.line {
            0 => format!("{}: {}", f.path, f.what),
            n => format!("{}:{n}: {}", f.path, f.what),
        })
        .collect();
    assert!(lines.is_empty(), "{} findings\n{}\n", lines.len(), lines.join("\n"));
}

/// Runs `rule` on a made-up file; returns the lines of its findings.
fn lines_found(rule: impl Fn(&SourceFile) -> Vec<Finding>, path: &str, text: &str) -> Vec<usize> {
    rule(&SourceFile::new(path, text)).into_iter().map(|f| f.line).collect()
}
