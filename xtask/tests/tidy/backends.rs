//! Product code names no backend of the facade, and asks the system about threads and time through it.

use crate::files::{self, SourceFile};
use crate::lexer::words;
use crate::{Finding, hold, lines_found, report};

const BACKENDS: [&str; 3] = ["loom", "shuttle", "sim"];

/// So many lines of a crate's product code name a backend, outside of the facade and of a `model.rs`; of crates
/// that aren't here none does. The numbers only go down.
const LINES: [(&str, usize); 6] =
    [("sync", 7), ("smp", 1), ("workqueue", 34), ("device", 18), ("blockmq", 32), ("nbd", 13)];

/// The crates that run unchanged on each backend.
const UNCHANGED: [&str; 7] = ["sync", "topology", "smp", "workqueue", "device", "blockmq", "nbd"];

/// The lines that ask which backend it is: an attribute, or `cfg!`.
fn backend_named(file: &SourceFile) -> Vec<Finding> {
    let facade = file.path.starts_with("crates/sync/src/facade/");
    let model = file.path.ends_with("/model.rs");
    let known = file.product_crate().is_some_and(|name| UNCHANGED.contains(&name));
    if facade || model || !known {
        return Vec::new();
    }
    let asks = |code: &str| {
        code.match_indices("cfg")
            .any(|(at, _)| words(&code[at..]).any(|word| BACKENDS.contains(&word)))
    };
    let lines = file.product_lines().filter(|(_, line)| asks(&line.code));
    lines.map(|(number, _)| file.finding(number, "names a backend of the facade")).collect()
}

#[test]
fn no_more_lines_name_a_backend_than_did() {
    let files = files::committed();
    let all: Vec<Finding> = files.iter().flat_map(backend_named).collect();
    let mut wrong = Vec::new();
    for name in UNCHANGED {
        let own = |finding: &&Finding| finding.path.starts_with(&format!("crates/{name}/"));
        let found: Vec<&Finding> = all.iter().filter(own).collect();
        let most = LINES.iter().find(|(known, _)| *known == name).map_or(0, |(_, most)| *most);
        if found.len() > most {
            wrong.extend(found.into_iter().cloned());
        }
        if all.iter().filter(own).count() < most {
            let what = format!("fewer than {most} lines name a backend: lower its number in LINES");
            wrong.push(Finding { path: format!("crates/{name}"), line: 0, what });
        }
    }
    report(wrong);
}

#[test]
fn backend_named_can_fail() {
    let found = |path: &str, text: &str| lines_found(backend_named, path, text);
    let path = "crates/smp/src/a.rs";
    assert_eq!(found(path, "#[cfg(not(loom))]\nmod a;\n"), [1]);
    assert_eq!(found(path, "const N: u32 = if cfg!(any(loom, shuttle)) { 1 } else { 2 };\n"), [1]);
    assert_eq!(found(path, "#[cfg_attr(sim, allow(dead_code))]\nmod a;\n"), [1]);
    assert!(found(path, "// cfg(loom)\n#[cfg(all(test, not(loom)))]\nmod tests {}\n").is_empty());
    assert!(found(path, "#[cfg(target_os = \"linux\")]\nfn simple() {}\n").is_empty());
    assert!(found("crates/smp/src/model.rs", "#[cfg(loom)]\nfn f() {}\n").is_empty());
    assert!(found("crates/sync/src/facade/mod.rs", "#[cfg(loom)]\nmod a;\n").is_empty());
}

/// What a backend stands in for, by the name that goes around it.
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

/// Each thread has its own answer to these on every backend.
const HARMLESS: [&str; 2] = ["std::thread::panicking", "std::hint::black_box"];

fn system_by_itself(file: &SourceFile) -> Vec<Finding> {
    let asked = ["smp", "workqueue", "device", "blockmq"];
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
