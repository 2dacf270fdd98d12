//! Names in comments and documents have a target: files, and `Type::name` of the project's types.

use crate::files::{self, SourceFile};
use crate::lexer::words;
use crate::{Finding, report};
use std::collections::BTreeSet;

/// Names of the tree.
struct Names<'f> {
    /// Names of files, without their folders.
    files: BTreeSet<&'f str>,
    /// Names of types and modules.
    types: BTreeSet<&'f str>,
    /// All words of the code.
    words: BTreeSet<&'f str>,
}

impl<'f> Names<'f> {
    fn of(files: &'f [SourceFile]) -> Names<'f> {
        let paths = files.iter().filter_map(|file| file.path.rsplit('/').next());
        let code = || files.iter().flat_map(|file| &file.lines).map(|line| line.code.as_str());
        let declared = |line: &'f str| {
            let mut words = words(line);
            let is = |word: &&str| ["struct", "enum", "trait", "type", "union"].contains(word);
            words.find(is).and_then(|_| words.next())
        };
        Names {
            files: paths.collect(),
            types: code().filter_map(declared).collect(),
            words: code().flat_map(words).collect(),
        }
    }

    /// Returns true if a reference, without its backticks, has no target.
    fn lacks(&self, reference: &str) -> bool {
        let is_word = |text: &str| {
            !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
        };
        if let Some((of, name)) = reference.split_once("::") {
            let name = name.trim_end_matches("()");
            let is_ours = is_word(of) && of.starts_with(|c: char| c.is_ascii_uppercase());
            return is_ours
                && is_word(name)
                && self.types.contains(of)
                && !self.words.contains(name);
        }
        let path = reference.trim_start_matches("../");
        let Some(stem) = path.strip_suffix(".rs").or_else(|| path.strip_suffix(".md")) else {
            return false;
        };
        let name = path.rsplit('/').next().unwrap_or(path);
        stem.split('/').all(is_word) && !self.files.contains(name)
    }
}

/// Files of other projects that are named as sources.
const FOREIGN: [&str; 1] = ["doc/proto.md"];
/// Placeholder for a name, in a rule about names.
const ANY: &str = "NAME";

fn unresolved(file: &SourceFile, names: &Names<'_>) -> Vec<Finding> {
    let is_prose = file.is_rust() || file.path.ends_with(".md") && !file.path.contains("CHANGELOG");
    if !is_prose || file.is_data() || file.path.starts_with("xtask/tests/tidy/") {
        return Vec::new();
    }
    let mut findings = Vec::new();
    for (at, line) in file.text.lines().enumerate() {
        let text = match file.lines.get(at) {
            Some(line) => line.comment.as_str(),
            None => line,
        };
        // Every second part stands in backticks.
        for reference in text.split('`').skip(1).step_by(2) {
            let is_known = FOREIGN.contains(&reference) || reference.contains(ANY);
            if names.lacks(reference) && !is_known {
                findings.push(file.finding(at + 1, format!("nothing here is `{reference}`")));
            }
        }
    }
    findings
}

#[test]
fn each_file_and_name_that_a_comment_refers_to_is_there() {
    let files = files::committed();
    let names = Names::of(files);
    report(files.iter().flat_map(|file| unresolved(file, &names)).collect());
}

#[test]
fn unresolved_can_fail() {
    let code = SourceFile::new("src/queue.rs", "struct Queue;\nimpl Queue { fn push(&self) {} }\n");
    let files = [code];
    let names = Names::of(&files);
    let found = |text: &str| {
        let found = unresolved(&SourceFile::new("a.rs", text), &names);
        found.into_iter().map(|f| f.line).collect::<Vec<_>>()
    };
    assert_eq!(found("// `Queue::push` is\n// not `Queue::insert`.\n"), [2]);
    assert_eq!(found("/// See `queue.rs` and `../pool/list.rs`.\n/// And `README.md`.\n"), [1, 2]);
    assert!(found("// `Vec::push_all`, `Queue::push()`, `a.rs` b.rs\n") == [1]);
    assert!(found("const A: &str = \"`Queue::insert`\";\n").is_empty());
}
