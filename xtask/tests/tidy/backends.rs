//! Product code names no backend of the facade, and asks the system about threads and time through
//! it.

use crate::files::{self, SourceFile};
use crate::lexer::words;
use crate::{Finding, hold, lines_found, report};

const BACKENDS: [&str; 4] = ["loom", "shuttle", "sim", "portable"];

/// Crates with models of wrong behaviour, each admitted by one line. No other line of code that
/// runs unchanged on each backend names a backend, outside of the facade, tests included.
const WITH_MODELS: [&str; 2] = ["smp", "workqueue"];

/// Crates that run unchanged on each backend.
pub(crate) const UNCHANGED: [&str; 8] =
    ["sync", "topology", "smp", "workqueue", "device", "blockmq", "drivers", "nbd"];

/// Returns the lines that ask for the backend: an attribute, or `cfg!`.
fn backend_named(file: &SourceFile) -> Vec<Finding> {
    let facade = file.path.starts_with("crates/sync/src/facade/");
    if facade || !file.product_crate().is_some_and(|name| UNCHANGED.contains(&name)) {
        return Vec::new();
    }
    let asks = |code: &str| {
        code.match_indices("cfg")
            .any(|(at, _)| words(&code[at..]).any(|word| BACKENDS.contains(&word)))
    };
    let lines = file.lines.iter().enumerate().filter(|(_, line)| asks(&line.code));
    lines.map(|(at, _)| file.finding(at + 1, "names a backend of the facade")).collect()
}

#[test]
fn a_crate_names_no_backend_but_where_it_lets_its_models_in() {
    let files = files::committed();
    let mut wrong: Vec<Finding> = files.iter().flat_map(backend_named).collect();
    for name in WITH_MODELS {
        let roots = ["lib", "model"].map(|file| format!("{}{file}.rs", files::sources_of(name)));
        let gate =
            |finding: &Finding| roots.contains(&finding.path) && lets_models_in(files, finding);
        let gates = wrong.iter().filter(|finding| gate(finding)).count();
        wrong.retain(|finding| !gate(finding));
        if gates != 1 {
            let what = "has no gate of models: take it out of WITH_MODELS".into();
            let [root, _] = roots;
            wrong.push(Finding { path: root, line: 0, what });
        }
    }
    report(wrong);
}

/// Returns true if the line stands above `pub mod model;`, or above `pub mod wrong;` if all models
/// admit the rest.
fn lets_models_in(files: &[SourceFile], finding: &Finding) -> bool {
    let file = files.iter().find(|file| file.path == finding.path);
    let after = file.into_iter().flat_map(|file| &file.lines[finding.line..]);
    let mut item = after.skip_while(|line| line.code.starts_with("#["));
    let lets_in = ["pub mod model;", "pub mod wrong;"];
    item.next().is_some_and(|line| lets_in.contains(&line.code.trim()))
}

#[test]
fn backend_named_can_fail() {
    let found = |path: &str, text: &str| lines_found(backend_named, path, text);
    let path = "crates/smp/src/a.rs";
    assert_eq!(found(path, "#[cfg(not(loom))]\nmod a;\n"), [1]);
    assert_eq!(found(path, "const N: u32 = if cfg!(any(loom, shuttle)) { 1 } else { 2 };\n"), [1]);
    assert_eq!(found(path, "#[cfg_attr(sim, allow(dead_code))]\nmod a;\n"), [1]);
    assert_eq!(found(path, "// cfg(loom)\n#[cfg(all(test, not(loom)))]\nmod tests {}\n"), [2]);
    assert!(found(path, "#[cfg(target_os = \"linux\")]\nfn simple() {}\n").is_empty());
    assert!(found("crates/sync/src/facade/mod.rs", "#[cfg(loom)]\nmod a;\n").is_empty());
}

/// Names of the system's functions for which a backend has a substitute.
const AROUND: [&str; 11] = [
    "std::thread",
    "std::hint",
    "Instant::now",
    "SystemTime",
    ".elapsed()",
    "rustix::thread",
    "rustix::process",
    "rustix::time",
    "libc::sched_",
    "libc::SYS_sched_",
    "libc::pthread_",
];

/// Functions that give each thread a separate answer on every backend.
const HARMLESS: [&str; 2] = ["std::thread::panicking", "std::hint::black_box"];

fn system_by_itself(file: &SourceFile) -> Vec<Finding> {
    let asked = ["smp", "workqueue", "device", "blockmq", "drivers"];
    let stepped = file.path.contains("/stepped");
    if stepped || !file.product_crate().is_some_and(|name| asked.contains(&name)) {
        return Vec::new();
    }
    let mut findings = Vec::new();
    for (number, line) in file.product_lines() {
        for around in AROUND {
            let harmless =
                |at: usize| HARMLESS.iter().any(|word| line.code[at..].starts_with(word));
            if line.code.match_indices(around).any(|(at, _)| !harmless(at)) {
                let what =
                    format!("`{around}`: take it from corewise_sync (`thread`, `time`, `sys`)");
                findings.push(file.finding(number, what));
            }
        }
    }
    findings
}

#[test]
fn threads_and_time_are_asked_of_the_facade() {
    hold(system_by_itself);
}

#[test]
fn system_by_itself_can_fail() {
    let found = |path: &str, text: &str| lines_found(system_by_itself, path, text);
    let path = "crates/workqueue/src/a.rs";
    assert_eq!(found(path, "use std::thread::{self, ThreadId};\n"), [1]);
    assert_eq!(found(path, "let a = 1;\nlet t = Instant::now();\n"), [2]);
    assert_eq!(found(path, "let t = began.elapsed();\n"), [1]);
    assert_eq!(found(path, "rustix::thread::gettid();\n"), [1]);
    assert!(found(path, "if std::thread::panicking() {} // std::thread\n").is_empty());
    assert!(found(path, "#[cfg(test)]\nmod tests {\n    use std::thread;\n}\n").is_empty());
    assert!(found("crates/sync/src/a.rs", "std::thread::sleep(d);\n").is_empty());
}
