//! The files that are checked: those that git has, or would take.

use crate::Finding;
use crate::lexer::{Line, Literal, lex, words};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Crates of `lab` that keep the rules of the product. The others are programs of peers.
const LABORATORY: [&str; 4] = ["bench", "costs", "sim", "simulate"];

/// Returns the folder of a crate's sources, by the name of the crate's folder.
pub(crate) fn sources_of(name: &str) -> String {
    let parent = if LABORATORY.contains(&name) { "lab" } else { "crates" };
    format!("{parent}/{name}/src/")
}

/// A text file of the project.
pub(crate) struct SourceFile {
    /// Path from the root, with `/`.
    pub(crate) path: String,
    pub(crate) text: String,
    /// Lines of a Rust file, code apart from comments; empty for any other file.
    pub(crate) lines: Vec<Line>,
    /// Strings of a Rust file.
    pub(crate) literals: Vec<Literal>,
    /// Marks of a Rust file, true for each line that belongs to tests.
    pub(crate) is_test: Vec<bool>,
}

impl SourceFile {
    pub(crate) fn new(path: &str, text: &str) -> SourceFile {
        let (lines, literals) = if path.ends_with(".rs") { lex(text) } else { Default::default() };
        let is_test = test_lines(path, &lines);
        SourceFile { path: path.into(), text: text.into(), lines, literals, is_test }
    }

    pub(crate) fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    /// Returns true for input of a test, which is kept as it was found.
    pub(crate) fn is_data(&self) -> bool {
        self.path.contains("/tests/data/") || self.path.contains("/corpus/")
    }

    /// Returns the name of the crate's folder, for sources of the product and of the laboratory's
    /// own crates.
    pub(crate) fn product_crate(&self) -> Option<&str> {
        let below = |folder| self.path.strip_prefix(folder)?.split_once('/');
        let (name, rest) = match below("lab/") {
            Some((name, _)) if !LABORATORY.contains(&name) => return None,
            found => found.or_else(|| below("crates/"))?,
        };
        (self.is_rust() && rest.starts_with("src/")).then_some(name)
    }

    /// Returns the lines of product code, with their numbers from 1.
    pub(crate) fn product_lines(&self) -> impl Iterator<Item = (usize, &Line)> {
        let numbered = self.lines.iter().zip(&self.is_test).enumerate();
        numbered.filter(|(_, (_, is_test))| !**is_test).map(|(i, (line, _))| (i + 1, line))
    }

    pub(crate) fn finding(&self, line: usize, what: impl Into<String>) -> Finding {
        Finding { path: self.path.clone(), line, what: what.into() }
    }
}

/// Marks the lines of tests: everything in a file for tests, otherwise the modules and items under
/// a `#[cfg(test)]`.
fn test_lines(path: &str, lines: &[Line]) -> Vec<bool> {
    let for_tests = ["/tests/", "/tests.rs", "/benches/", "/examples/", "_tests.rs", "/test.rs"];
    if for_tests.iter().any(|part| path.contains(part)) {
        return vec![true; lines.len()];
    }
    let mut marks = vec![false; lines.len()];
    let mut i = 0;
    while i < lines.len() {
        if !asks_for_test(&lines[i].code) {
            i += 1;
            continue;
        }
        // The item ends where its first brace is closed, or at a `;` before any.
        let mut depth = 0usize;
        let mut opened = false;
        let from = i;
        'item: while i < lines.len() {
            let code = if i == from { after_attribute(&lines[i].code) } else { &lines[i].code };
            for c in code.chars() {
                match c {
                    '{' => (depth, opened) = (depth + 1, true),
                    '}' => depth = depth.saturating_sub(1),
                    ';' if !opened => break 'item,
                    _ => {}
                }
                if opened && depth == 0 {
                    break 'item;
                }
            }
            i += 1;
        }
        let end = (i + 1).min(lines.len());
        marks[from..end].fill(true);
        i = end;
    }
    marks
}

/// Returns true for `#[cfg(test)]`, `#[cfg(all(test, …))]` and similar; not for `not(test)`.
fn asks_for_test(code: &str) -> bool {
    let Some(condition) = code.trim_start().strip_prefix("#[cfg(") else { return false };
    let has = |sought| words(condition).any(|word| word == sought);
    condition.starts_with("all(test") || has("test") && !has("not")
}

fn after_attribute(code: &str) -> &str {
    code.split_once(']').map_or("", |(_, rest)| rest)
}

pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask is in the root").to_path_buf()
}

/// Returns the paths that git has, and those that it would take; in an unpacked archive, every path
/// except built ones.
pub(crate) fn paths() -> Vec<String> {
    let root = root();
    if !root.join(".git").exists() {
        let mut paths = Vec::new();
        walk(&root, &root, &mut paths);
        return paths;
    }
    // A clone may belong to another user than the one who tests it.
    let out = Command::new("git")
        .args(["-c", "safe.directory=*", "ls-files", "-z"])
        .args(["--cached", "--others", "--exclude-standard"])
        .current_dir(root)
        .output()
        .expect("git is there, since the project was cloned with it");
    assert!(out.status.success(), "git ls-files: {}", String::from_utf8_lossy(&out.stderr));
    let listed = String::from_utf8_lossy(&out.stdout);
    listed.split('\0').filter(|path| !path.is_empty()).map(str::to_owned).collect()
}

fn walk(root: &Path, folder: &Path, paths: &mut Vec<String>) {
    for entry in std::fs::read_dir(folder).expect("a folder of the project can be listed") {
        let path = entry.expect("its entries too").path();
        let below = path.strip_prefix(root).expect("it was found below").to_string_lossy();
        if path.is_dir() && below != "target" {
            walk(root, &path, paths);
        } else if path.is_file() {
            paths.push(below.into_owned());
        }
    }
}

/// Returns every text file of the project, each read once. A file that is not UTF-8 is no text. A
/// file that was deleted, and whose deletion isn't committed, is skipped.
pub(crate) fn committed() -> &'static [SourceFile] {
    static FILES: OnceLock<Vec<SourceFile>> = OnceLock::new();
    FILES.get_or_init(|| {
        let root = root();
        let read = |path: String| {
            let text = std::fs::read_to_string(root.join(&path)).ok()?;
            Some(SourceFile::new(&path, &text))
        };
        paths().into_iter().filter_map(read).collect()
    })
}

#[test]
fn test_modules_are_told_from_product_code() {
    let text = "fn a() {}\n#[cfg(test)]\nmod tests {\n    fn b() {}\n}\nfn c() {}\n";
    let file = SourceFile::new("crates/x/src/lib.rs", text);
    assert_eq!(file.is_test, [false, true, true, true, true, false]);
    let text = "#[cfg(test)]\nmod tests;\nfn c() {}\n#[cfg(all(test, not(loom)))]\nmod t { }\n";
    let file = SourceFile::new("crates/x/src/lib.rs", text);
    assert_eq!(file.is_test, [true, true, false, true, true]);
    let text = "#[cfg(not(test))]\nfn a() {}\n";
    assert_eq!(SourceFile::new("crates/x/src/lib.rs", text).is_test, [false, false]);
    assert_eq!(SourceFile::new("crates/x/tests/a.rs", "fn a() {}\n").is_test, [true]);
}

#[test]
fn braces_in_text_do_not_end_a_test_module() {
    let text =
        "#[cfg(test)]\nmod tests {\n    const S: &str = \"}\"; // }\n    fn b() {}\n}\nfn c() {}\n";
    let file = SourceFile::new("crates/x/src/lib.rs", text);
    assert_eq!(file.is_test, [true, true, true, true, true, false]);
}

#[test]
fn the_project_is_found_with_git_and_without() {
    let (root, mut walked) = (root(), Vec::new());
    walk(&root, &root, &mut walked);
    for path in ["Cargo.toml", "xtask/tests/tidy/files.rs", "crates/sync/src/lib.rs"] {
        assert!(paths().iter().any(|p| p == path), "{path}");
        assert!(walked.iter().any(|p| p == path), "{path}");
    }
    assert!(!walked.iter().any(|p| p.starts_with("target/")));
}
