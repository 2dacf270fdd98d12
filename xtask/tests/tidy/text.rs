//! Rules about every committed text, Rust or not.

use crate::files::SourceFile;
use crate::{Finding, hold, lines_found};

/// Checks for blanks at line ends, which make noise in diffs. In Markdown they would break a line:
/// `\` does that too.
fn no_trailing_blanks(file: &SourceFile) -> Vec<Finding> {
    if file.is_data() {
        return Vec::new();
    }
    let mut findings = Vec::new();
    for (i, line) in file.text.split('\n').enumerate() {
        if line.ends_with([' ', '\t', '\r']) {
            findings.push(file.finding(i + 1, "blanks at the end of the line"));
        }
    }
    if !file.text.is_empty() && !file.text.ends_with('\n') {
        findings.push(file.finding(0, "the last line does not end"));
    }
    findings
}

#[test]
fn no_line_ends_in_blanks() {
    hold(no_trailing_blanks);
}

#[test]
fn no_trailing_blanks_can_fail() {
    assert_eq!(lines_found(no_trailing_blanks, "a.toml", "a = 1 \nb = 2\nc\t\nd\r\n"), [1, 3, 4]);
    assert_eq!(lines_found(no_trailing_blanks, "a.md", "text"), [0]);
    assert!(lines_found(no_trailing_blanks, "a.md", "text\n\ntext\n").is_empty());
    assert!(lines_found(no_trailing_blanks, "crates/x/tests/data/a.txt", "a \n").is_empty());
}

/// Hosts of package registries. Each is written in two parts, or this file would break its own
/// rule.
const HOSTS: [&str; 5] = [
    concat!("crates", ".io"),
    concat!("pypi", ".org"),
    concat!("npmjs", ".com"),
    concat!("proxy.golang", ".org"),
    concat!("deb.debian", ".org"),
];

/// Folders of clones and homes on some machine.
const PLACES: [&str; 3] = [concat!("/wo", "rk/"), concat!("/ro", "ot/"), concat!("/ho", "me/")];

/// Checks that no text names a registry's host (mirrors exist; cargo knows where to look). Nor may
/// it name a folder of the machine on which it was written.
fn no_hosts_and_places(file: &SourceFile) -> Vec<Finding> {
    // Cargo writes the registry's name into its lock file.
    if file.path.ends_with("Cargo.lock") {
        return Vec::new();
    }
    let mut findings = Vec::new();
    for (i, line) in file.text.lines().enumerate() {
        for host in HOSTS.iter().filter(|host| line.contains(**host)) {
            findings.push(file.finding(i + 1, format!("names the registry host {host}")));
        }
        for place in PLACES {
            // The name counts only at the beginning of a path: `src/work/…` is a module.
            let begins = |at: usize| {
                !line[..at].ends_with(|c: char| c.is_alphanumeric() || "._-*}".contains(c))
            };
            if line.match_indices(place).any(|(at, _)| begins(at)) {
                findings
                    .push(file.finding(i + 1, format!("names {place}, a place on one machine")));
            }
        }
    }
    findings
}

#[test]
fn nothing_names_a_registry_host_or_a_place_on_one_machine() {
    hold(no_hosts_and_places);
}

#[test]
fn no_hosts_and_places_can_fail() {
    for host in HOSTS {
        assert_eq!(
            lines_found(no_hosts_and_places, "a.md", &format!("\nsee https://{host}/x\n")),
            [2]
        );
    }
    for place in PLACES {
        assert_eq!(lines_found(no_hosts_and_places, "a.rs", &format!("// in \"{place}x\"\n")), [1]);
    }
    let module = format!("crates/workqueue/src{}item.rs\n", PLACES[0]);
    assert!(lines_found(no_hosts_and_places, "a.md", &module).is_empty());
    assert!(lines_found(no_hosts_and_places, "Cargo.lock", HOSTS[0]).is_empty());
}

/// Checks that the oldest supported toolchain stands in the root manifest and nowhere else: a copy
/// would be forgotten.
fn msrv_once(file: &SourceFile, msrv: &str) -> Vec<Finding> {
    if file.path == "Cargo.toml" || file.path.ends_with("Cargo.lock") || file.is_data() {
        return Vec::new();
    }
    let mut findings = Vec::new();
    let is_manifest = file.path.ends_with("/Cargo.toml");
    if is_manifest && !file.text.contains("rust-version.workspace = true") {
        findings.push(file.finding(0, "is to say `rust-version.workspace = true`"));
    }
    if file.path.ends_with("rust-toolchain") || file.path.ends_with("rust-toolchain.toml") {
        findings.push(file.finding(0, "pins a toolchain; the root manifest says the oldest one"));
    }
    for (i, line) in file.text.lines().enumerate() {
        let lower = line.to_lowercase();
        let about_it = ["rust", "msrv", "toolchain", "cargo +"].iter().any(|w| lower.contains(w));
        let names_it = line.match_indices(msrv).any(|(at, _)| {
            let part = |c: char| c.is_ascii_digit();
            let after = &line[at + msrv.len()..];
            !line[..at].ends_with(|c| part(c) || c == '.') && !after.starts_with(part)
        });
        let sets_it = (is_manifest || file.path.ends_with("clippy.toml"))
            && ["rust-version = ", "msrv = "].iter().any(|key| line.starts_with(key));
        if about_it && names_it || sets_it {
            findings.push(
                file.finding(i + 1, "states the oldest toolchain: only the root manifest does"),
            );
        }
    }
    findings
}

#[test]
fn the_oldest_toolchain_is_stated_once() {
    let root = std::fs::read_to_string(crate::files::root().join("Cargo.toml")).unwrap();
    let stated: Vec<&str> = root
        .lines()
        .filter_map(|line| line.strip_prefix("rust-version = \"")?.strip_suffix('"'))
        .collect();
    assert_eq!(stated.len(), 1, "the root manifest states it once: {stated:?}");
    hold(|file| msrv_once(file, stated[0]));
}

#[test]
fn msrv_once_can_fail() {
    let found = |path, text| lines_found(|file| msrv_once(file, "1.77"), path, text);
    assert_eq!(found("README.md", "# X\nNeeds Rust 1.77 or later.\n"), [2]);
    assert_eq!(found("crates/x/Cargo.toml", "rust-version = \"1.60\"\n"), [0, 1]);
    assert_eq!(found("clippy.toml", "msrv = \"1.60\"\n"), [1]);
    assert_eq!(found("rust-toolchain.toml", "[toolchain]\n"), [0]);
    assert!(found("README.md", "took 1.77 s\nrust 11.77 or 1.775\n").is_empty());
    assert!(found("crates/x/Cargo.toml", "rust-version.workspace = true\n").is_empty());
}
