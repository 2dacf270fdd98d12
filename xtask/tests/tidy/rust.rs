//! Rules about single Rust files.

use crate::backends::UNCHANGED;
use crate::files::SourceFile;
use crate::lexer::{Line, words};
use crate::{Finding, hold, lines_found};

/// Checks that the first line tells the purpose of the file.
fn module_doc(file: &SourceFile) -> Vec<Finding> {
    let first = file.text.lines().next().unwrap_or_default();
    if !file.is_rust() || first.strip_prefix("//! ").is_some_and(|said| !said.trim().is_empty()) {
        return Vec::new();
    }
    vec![file.finding(1, "the first line is to be `//! ` and what the file is for")]
}

#[test]
fn each_file_begins_with_what_it_is_for() {
    hold(module_doc);
}

#[test]
fn module_doc_can_fail() {
    assert_eq!(lines_found(module_doc, "a.rs", "use x;\n"), [1]);
    assert_eq!(lines_found(module_doc, "a.rs", "//!\n//! Late.\n"), [1]);
    assert_eq!(lines_found(module_doc, "a.rs", ""), [1]);
    assert!(lines_found(module_doc, "a.rs", "//! Early.\n").is_empty());
    assert!(lines_found(module_doc, "a.md", "text\n").is_empty());
}

/// Largest number of code lines in a file: a longer one has more than one subject. Tests count too:
/// a reader scrolls past them.
const MAX_CODE: usize = 600;

fn size(file: &SourceFile) -> Vec<Finding> {
    let code = file.lines.iter().filter(|line| line.is_code()).count();
    if code <= MAX_CODE {
        return Vec::new();
    }
    vec![
        file.finding(0, format!("{code} lines of code, more than {MAX_CODE}: split it by subject")),
    ]
}

#[test]
fn no_file_is_over_600_lines_of_code() {
    hold(size);
}

#[test]
fn size_can_fail_and_counts_neither_comments_nor_blanks() {
    let long = "let a;\n".repeat(MAX_CODE);
    assert!(lines_found(size, "a.rs", &format!("// x\n\n{long}")).is_empty());
    assert_eq!(lines_found(size, "a.rs", &format!("{long}b;\n")), [0]);
}

/// Returns the names that `code`, which begins with the path of a module, takes from the module:
/// `Mutex` of `std::sync::Mutex::new(1)`; `Arc`, `Mutex` and `M` of
/// `std::sync::{Arc, Mutex as M};`.
fn taken<'a>(module: &str, code: &'a str) -> Vec<&'a str> {
    let rest = &code[module.len()..];
    match rest.strip_prefix('{') {
        Some(group) => words(group.split(';').next().unwrap_or(group)).collect(),
        None => words(rest).next().into_iter().collect(),
    }
}

/// Checks that product code takes atomics, locks and cells from the facade, so that loom can stand
/// in for them.
fn facade_only(file: &SourceFile) -> Vec<Finding> {
    // Bench compares with others' code; the simulator's program stands below the facade.
    let others = ["sync", "bench", "simulate"];
    let Some(name) = file.product_crate().filter(|name| !others.contains(name)) else {
        return Vec::new();
    };
    // The crates that run on each backend.
    let has_protocols = UNCHANGED.contains(&name);
    let swapped = if has_protocols {
        &["atomic", "Mutex", "Condvar", "RwLock", "Barrier", "UnsafeCell"][..]
    } else {
        &["atomic"]
    };
    // A single text, so that a group over several lines is seen whole; with the line of each
    // position.
    let mut code = String::new();
    let mut starts = Vec::new();
    for (number, line) in file.product_lines() {
        starts.push((code.len(), number));
        code.push_str(&line.code);
        code.push('\n');
    }
    let mut findings = Vec::new();
    for module in ["std::sync::", "core::sync::", "std::cell::", "core::cell::"] {
        for (at, _) in code.match_indices(module) {
            let line = starts.iter().rev().find(|(start, _)| *start <= at).map_or(0, |s| s.1);
            for word in taken(module, &code[at..]).iter().filter(|word| swapped.contains(word)) {
                findings.push(file.finding(
                    line,
                    format!("`{module}{word}`: take it from corewise_sync, so that loom sees it"),
                ));
            }
        }
    }
    findings
}

#[test]
fn atomics_and_locks_come_from_the_sync_crate() {
    hold(facade_only);
}

#[test]
fn facade_only_can_fail() {
    let found = |path: &str, text: &str| lines_found(facade_only, path, text);
    let path = "crates/smp/src/a.rs";
    assert_eq!(found(path, "use std::sync::atomic::AtomicU32;\n"), [1]);
    assert_eq!(found(path, "use x;\nfn f() { std::sync::atomic::fence(o); }\n"), [2]);
    assert_eq!(
        found(path, "use std::sync::{\n    Arc,\n    atomic::{AtomicU8, Ordering},\n};\n"),
        [1]
    );
    assert_eq!(found(path, "use core::sync::atomic;\n"), [1]);
    assert_eq!(found(path, "use std::sync::{Arc, Mutex};\n"), [1]);
    assert!(
        found(path, "use std::sync::Arc; // not std::sync::atomic\nuse a::Mutex;\n").is_empty()
    );
    assert!(found(path, "#[cfg(test)]\nmod tests {\n    use std::sync::Mutex;\n}\n").is_empty());
    assert_eq!(found(path, "use std::cell::{Cell, UnsafeCell};\n"), [1]);
    assert!(found(path, "use std::sync::OnceLock;\nuse std::cell::Cell;\n").is_empty());
    assert!(found("crates/sync/src/a.rs", "use std::sync::atomic;\n").is_empty());
    assert_eq!(found("crates/topology/src/a.rs", "use std::sync::RwLock;\n"), [1]);
    assert!(found("crates/timeline/src/a.rs", "use std::sync::RwLock;\n").is_empty());
    assert_eq!(found("crates/timeline/src/a.rs", "use std::sync::atomic;\n"), [1]);
}

/// Returns true if a comment with one of `marks` stands on the line itself or above it. At most a
/// few lines of the same statement and attributes may be between.
fn argued(lines: &[Line], i: usize, marks: &[&str]) -> bool {
    let has = |line: &Line| marks.iter().any(|mark| line.comment.contains(mark));
    if has(&lines[i]) {
        return true;
    }
    let mut code_between = 0;
    let mut k = i;
    while k > 0 {
        k -= 1;
        let line = &lines[k];
        if line.is_comment() {
            // The whole block above belongs to it.
            return lines[..=k].iter().rev().take_while(|l| l.is_comment()).any(has);
        }
        // The end of another statement parts them.
        let code = line.code.trim_end();
        let attribute = code.trim_start().starts_with("#[");
        code_between += usize::from(!attribute);
        if !attribute && (code.is_empty() || code.ends_with([';', '}'])) || code_between > 4 {
            return false;
        }
        if has(line) {
            return true;
        }
    }
    false
}

/// Checks that each `unsafe` is argued: by a comment where code relies on something, by a section
/// of the documentation where code demands something.
fn unsafe_argued(file: &SourceFile) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (i, line) in file.lines.iter().enumerate() {
        for (at, _) in line.code.match_indices("unsafe") {
            let before = line.code[..at].chars().next_back();
            let rest = &line.code[at + "unsafe".len()..];
            if before.is_some_and(|c| c.is_alphanumeric() || c == '_')
                || rest.starts_with(|c: char| c.is_alphanumeric() || c == '_')
            {
                continue;
            }
            let rest = rest.trim_start();
            let (marks, what): (&[&str], _) =
                if rest.starts_with("fn(") || rest.starts_with("extern") {
                    continue; // a type, or an ABI whose block or function is seen by its own word
                } else if rest.starts_with("fn ") || rest.starts_with("trait ") {
                    (&["# Safety", "SAFETY:"], "what it asks of its caller (`# Safety`)")
                } else if rest.starts_with('(') || rest.starts_with(')') {
                    continue; // an attribute: #[unsafe(no_mangle)]
                } else {
                    (&["SAFETY:"], "why that is sound (`// SAFETY: …`)")
                };
            // A function in `unsafe impl` has the trait's contract.
            if !argued(&file.lines, i, marks) && !inside_impl_of_unsafe_trait(file, i, rest) {
                findings.push(file.finding(i + 1, format!("`unsafe` without saying {what}")));
            }
        }
    }
    findings
}

/// Returns true for an `unsafe fn` that implements a trait's method: its obligations stand at the
/// trait.
fn inside_impl_of_unsafe_trait(file: &SourceFile, i: usize, rest: &str) -> bool {
    let indented = file.lines[i].code.starts_with(' ');
    rest.starts_with("fn ") && indented && {
        let above = file.lines[..i].iter().rev().map(|line| line.code.as_str());
        let mut headers =
            above.filter(|code| !code.starts_with([' ', '}', '#']) && !code.is_empty());
        let header =
            headers.find(|code| words(code).any(|w| ["impl", "trait", "mod"].contains(&w)));
        header
            .is_some_and(|code| words(code).any(|w| w == "impl") && words(code).any(|w| w == "for"))
    }
}

#[test]
fn each_unsafe_is_argued() {
    hold(unsafe_argued);
}

#[test]
fn unsafe_argued_can_fail() {
    let found = |text: &str| lines_found(unsafe_argued, "a.rs", text);
    assert_eq!(found("fn f() {\n    unsafe { g() }\n}\n"), [2]);
    assert_eq!(found("unsafe impl Send for X {}\n"), [1]);
    assert_eq!(found("/// Does it.\npub unsafe fn f() {}\n"), [2]);
    // One comment counts for one of them.
    assert_eq!(found("// SAFETY: a.\nunsafe impl Send for X {}\nunsafe impl Sync for X {}\n"), [3]);
    assert_eq!(found("// SAFETY: a.\nlet a = 1;\nlet b = unsafe { g() };\n"), [3]);
    assert!(found("// SAFETY: a\n// and b.\nlet x =\n    unsafe { g() };\n").is_empty());
    assert!(found("// SAFETY: a.\n#[inline]\nunsafe impl Send for X {}\n").is_empty());
    assert!(found("/// # Safety\n///\n/// Hold it.\n#[inline]\npub unsafe fn f() {}\n").is_empty());
    assert!(found("let f: unsafe fn(u8) = g; // unsafe\nlet s = \"unsafe {\";\n").is_empty());
    assert!(found("#![forbid(unsafe_code)]\n").is_empty());
    assert!(found("impl T for X {\n    unsafe fn f() {}\n}\n").is_empty());
}

/// Checks that tests don't sleep: a test that sleeps waits too long or not long enough. Tests wait
/// for an event.
fn no_sleep_in_tests(file: &SourceFile) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (i, line) in file.lines.iter().enumerate().filter(|(i, _)| file.is_test[*i]) {
        let sleeps = line
            .code
            .match_indices("sleep(")
            .any(|(at, _)| !line.code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_'));
        if sleeps {
            findings.push(file.finding(i + 1, "a test sleeps: wait for the event instead"));
        }
    }
    findings
}

#[test]
fn tests_do_not_sleep() {
    hold(no_sleep_in_tests);
}

#[test]
fn no_sleep_in_tests_can_fail() {
    let found = |path, text| lines_found(no_sleep_in_tests, path, text);
    assert_eq!(found("crates/x/tests/a.rs", "fn f() {\n    std::thread::sleep(d);\n}\n"), [2]);
    assert_eq!(
        found("crates/x/src/a.rs", "#[cfg(test)]\nmod tests {\n fn f() { sleep(d) }\n}\n"),
        [3]
    );
    assert!(found("crates/x/src/a.rs", "fn f() { sleep(d) }\n").is_empty());
    assert!(found("crates/x/tests/a.rs", "fn f() { goes_to_sleep(d) } // sleep(d)\n").is_empty());
}

/// Checks that models are built with their checker alone: without it, a model is an ordinary test
/// that proves little.
fn models_only(file: &SourceFile) -> Vec<Finding> {
    let root = |checker: &&str| file.path.ends_with(&format!("/tests/{checker}/main.rs"));
    let Some(checker) = ["loom", "shuttle"].into_iter().find(root) else { return Vec::new() };
    let attribute = format!("#![cfg({checker})]");
    if file.lines.iter().any(|line| line.code.trim() == attribute) {
        return Vec::new();
    }
    vec![file.finding(0, format!("{checker} models are to have `{attribute}` near the top"))]
}

#[test]
fn models_are_built_for_their_checker_only() {
    hold(models_only);
}

#[test]
fn models_only_can_fail() {
    let found = |path, text| lines_found(models_only, path, text);
    let main = "crates/x/tests/loom/main.rs";
    assert_eq!(found(main, "//! A.\n// #![cfg(loom)]\nfn f() {}\n"), [0]);
    assert_eq!(found("crates/x/tests/shuttle/main.rs", "//! A.\n#![cfg(loom)]\n"), [0]);
    assert!(found(main, "//! A.\n#![cfg(loom)]\n").is_empty());
    assert!(found("crates/x/tests/a.rs", "//! A.\n").is_empty());
}
