//! Manifests inherit the keys that the workspace declares. A library has the files and keys that a
//! registry and its users need.

use crate::files::{self, SourceFile};
use crate::{Finding, hold, lines_found, report};

/// Returns the keys that a manifest must inherit and doesn't.
fn inherits(file: &SourceFile) -> Vec<Finding> {
    if !file.path.ends_with("/Cargo.toml") {
        return Vec::new();
    }
    let keys = ["version", "edition", "license"].map(|k| format!("{k}.workspace = true"));
    let mut findings: Vec<Finding> = keys
        .iter()
        .filter(|key| !file.text.lines().any(|line| line == *key))
        .map(|key| file.finding(0, format!("is to say `{key}`")))
        .collect();
    if !file.text.contains("[lints]\nworkspace = true") {
        findings.push(file.finding(0, "is to take the workspace's lints"));
    }
    findings
}

#[test]
fn each_manifest_inherits_from_the_workspace() {
    hold(inherits);
}

#[test]
fn inherits_can_fail() {
    let good = "version.workspace = true\nedition.workspace = true\nlicense.workspace = true\n\
                \n[lints]\nworkspace = true\n";
    assert!(lines_found(inherits, "crates/x/Cargo.toml", good).is_empty());
    let bad = good.replace("[lints]", "[lint]").replace("license.workspace", "#license.workspace");
    assert_eq!(lines_found(inherits, "crates/x/Cargo.toml", &bad), [0, 0]);
}

/// Files beside the manifest of a library. A crate that is no library inherits that it isn't
/// published.
const BESIDE: [&str; 4] = ["LICENSE-APACHE", "LICENSE-MIT", "README.md", "src/lib.rs"];

/// Returns crates that can be published and lack a description, licences, or a README with an
/// example that is a test. Cargo asks for the versions of dependencies.
fn libraries(files: &[SourceFile]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for manifest in files {
        let Some(folder) = manifest.path.strip_suffix("Cargo.toml").filter(|f| !f.is_empty())
        else {
            continue;
        };
        if manifest.text.lines().any(|line| line == "publish.workspace = true") {
            continue;
        }
        for key in ["description = \"", "keywords = [\"", "categories = [\""] {
            if !manifest.text.lines().any(|line| line.starts_with(key)) {
                findings.push(manifest.finding(0, format!("is published without `{key}…`")));
            }
        }
        let beside = |name: &str| files.iter().find(|f| f.path.strip_prefix(folder) == Some(name));
        for name in BESIDE {
            let Some(file) = beside(name) else {
                findings
                    .push(manifest.finding(0, format!("is published without {name} beside it")));
                continue;
            };
            let says = match name {
                "README.md" => "```rust\n",
                "src/lib.rs" => "#[cfg(doctest)]\n#[doc = include_str!(\"../README.md\")]\n",
                _ => continue,
            };
            if !file.text.contains(says) {
                findings
                    .push(file.finding(0, format!("is to have an example as a test: `{says}`")));
            }
        }
    }
    findings
}

#[test]
fn each_library_has_what_a_registry_asks_for() {
    report(libraries(files::committed()));
}

#[test]
fn libraries_can_fail() {
    let found = |files: &[(&str, &str)]| {
        let files: Vec<_> = files.iter().map(|(path, text)| SourceFile::new(path, text)).collect();
        libraries(&files).into_iter().map(|finding| finding.what).collect::<Vec<_>>()
    };
    let manifest = "description = \"x\"\nkeywords = [\"x\"]\ncategories = [\"x\"]\n";
    let library = "#[cfg(doctest)]\n#[doc = include_str!(\"../README.md\")]\npub mod readme {}\n";
    let good = [
        ("x/Cargo.toml", manifest),
        ("x/LICENSE-APACHE", ""),
        ("x/LICENSE-MIT", ""),
        ("x/README.md", "```rust\n```\n"),
        ("x/src/lib.rs", library),
    ];
    assert_eq!(found(&good), Vec::<String>::new());
    assert_eq!(found(&[("x/Cargo.toml", "publish.workspace = true\n")]), Vec::<String>::new());
    assert_eq!(found(&good[..1]).len(), 4);
    let mut bad = good;
    bad[0].1 = "description = \"x\"\n";
    bad[3].1 = "No example.\n";
    bad[4].1 = "//! No test.\n";
    assert_eq!(found(&bad).len(), 4);
}
