//! Holds deny.toml: what each crate that is built in is licensed under, where it comes from, and which versions are asked for.
//!
//! cargo-deny has the same rules, and a long run asks it too; to compile it takes longer than all other lints together.

use cargo_metadata::{DependencyKind, MetadataCommand};
use serde::Deserialize;
use std::collections::BTreeSet;
use std::path::Path;

/// deny.toml. A rule that isn't read here is an error: nobody shall believe that it holds.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Deny {
    graph: Graph,
    licenses: Licenses,
    bans: Bans,
    sources: Sources,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Graph {
    all_features: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Licenses {
    #[serde(rename = "version")]
    _version: u32,
    /// For licence texts: a crate that names none is refused here.
    #[serde(rename = "confidence-threshold")]
    _confidence_threshold: f64,
    allow: BTreeSet<String>,
    exceptions: Vec<Exception>,
    private: Private,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Exception {
    #[serde(rename = "crate")]
    name: String,
    allow: BTreeSet<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Private {
    ignore: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Bans {
    /// A warning at most, which cargo-deny prints in a long run.
    #[serde(rename = "multiple-versions")]
    _multiple_versions: Warn,
    wildcards: Refused,
    allow_wildcard_paths: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Sources {
    unknown_registry: Refused,
    unknown_git: Refused,
    allow_git: Vec<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Refused {
    Deny,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Warn {
    Warn,
}

/// What is asked of a package.
#[derive(Clone, Default)]
struct Package {
    name: String,
    license: Option<String>,
    /// None: this workspace, or the public registry.
    source: Option<String>,
    is_private: bool,
    /// What it asks for in any version: the name, and whether it is one of a folder, and for tests only.
    wildcards: Vec<(String, bool, bool)>,
}

/// What speaks against a package.
fn findings(deny: &Deny, package: &Package) -> Vec<String> {
    let Package { name, license, source, is_private, wildcards } = package;
    let mut found = Vec::new();
    let exception = deny.licenses.exceptions.iter().find(|exception| exception.name == *name);
    let allowed = |license: &str| {
        deny.licenses.allow.contains(license)
            || exception.is_some_and(|exception| exception.allow.contains(license))
    };
    match license.as_deref().map(|license| satisfied(license, &allowed)) {
        Some(Ok(true)) => {}
        Some(Ok(false)) => found.push(format!(
            "{name} is licensed as {:?}, which deny.toml doesn't allow",
            license.as_deref().unwrap_or_default()
        )),
        Some(Err(why)) => found.push(format!("{name}: its licence can't be read: {why}")),
        None => found.push(format!("{name} names no licence")),
    }
    if let Some(source) = source {
        found.push(format!("{name} comes from {source}, which deny.toml doesn't allow"));
    }
    for (to, is_path, for_tests) in wildcards {
        // A package that is published would be refused with it by the registry, but for its tests.
        if !(*is_path && (*is_private || *for_tests)) {
            found.push(format!("{name} asks for any version of {to}: name one"));
        }
    }
    found
}

/// Whether an expression of SPDX holds where these licences are allowed. An old `A/B` is read as `A OR B`.
fn satisfied(license: &str, allowed: &dyn Fn(&str) -> bool) -> Result<bool, String> {
    let spaced = license.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut left = &words[..];
    let holds = any(&mut left, allowed)?;
    if left.is_empty() { Ok(holds) } else { Err(format!("`{}` in {license:?}", left.join(" "))) }
}

type Allowed<'a> = &'a dyn Fn(&str) -> bool;

fn any(words: &mut &[&str], allowed: Allowed<'_>) -> Result<bool, String> {
    let mut holds = every(words, allowed)?;
    while take(words, "OR") {
        holds |= every(words, allowed)?;
    }
    Ok(holds)
}

fn every(words: &mut &[&str], allowed: Allowed<'_>) -> Result<bool, String> {
    let mut holds = one(words, allowed)?;
    while take(words, "AND") {
        holds &= one(words, allowed)?;
    }
    Ok(holds)
}

fn one(words: &mut &[&str], allowed: Allowed<'_>) -> Result<bool, String> {
    if take(words, "(") {
        let holds = any(words, allowed)?;
        return if take(words, ")") { Ok(holds) } else { Err("a `)` is missing".into()) };
    }
    let (word, rest) = words.split_first().ok_or("it ends too early")?;
    if ["OR", "AND", "WITH", ")"].contains(word) {
        return Err(format!("`{word}` stands where a licence should"));
    }
    *words = rest;
    let mut name = (*word).to_owned();
    if take(words, "WITH") {
        let (exception, rest) = words.split_first().ok_or("it ends after `WITH`")?;
        *words = rest;
        name = format!("{name} WITH {exception}");
    }
    Ok(allowed(&name))
}

fn take(words: &mut &[&str], word: &str) -> bool {
    let is_there = words.first() == Some(&word);
    if is_there {
        *words = &words[1..];
    }
    is_there
}

fn deny(text: &str) -> Deny {
    let deny: Deny = toml::from_str(text).expect("deny.toml has what this test knows, no more");
    // The only words that are understood here, by type or by these.
    let Sources { unknown_registry: Refused::Deny, unknown_git: Refused::Deny, allow_git } =
        &deny.sources;
    let Bans { wildcards: Refused::Deny, allow_wildcard_paths, .. } = &deny.bans;
    let is_known = deny.graph.all_features && allow_git.is_empty() && *allow_wildcard_paths;
    assert!(
        is_known && !deny.licenses.private.ignore,
        "deny.toml says what this test doesn't know"
    );
    deny
}

fn stored() -> Deny {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deny.toml");
    deny(&std::fs::read_to_string(path).expect("deny.toml is at the root"))
}

fn packages() -> Vec<Package> {
    let metadata = MetadataCommand::new()
        .manifest_path(Path::new(env!("CARGO_MANIFEST_DIR")).join("../Cargo.toml"))
        .features(cargo_metadata::CargoOpt::AllFeatures)
        .other_options(["--locked".to_owned()])
        .exec()
        .expect("cargo describes the workspace and all that it depends on");
    let package = |package: cargo_metadata::Package| Package {
        name: package.name.to_string(),
        license: package.license,
        source: package.source.filter(|source| !source.is_crates_io()).map(|source| source.repr),
        is_private: package.publish.is_some_and(|registries| registries.is_empty()),
        // Others' manifests are out of our hands, and their registry takes no such version.
        wildcards: package
            .dependencies
            .iter()
            .filter(|dependency| dependency.req.to_string() == "*")
            .map(|dependency| {
                let for_tests = dependency.kind == DependencyKind::Development;
                (dependency.name.clone(), dependency.path.is_some(), for_tests)
            })
            .collect(),
    };
    metadata.packages.into_iter().map(package).collect()
}

#[test]
fn each_crate_has_a_licence_a_source_and_versions_that_are_allowed() {
    let (deny, packages) = (stored(), packages());
    // A smaller graph would have fewer findings.
    for name in ["corewise", "libfuzzer-sys", "loom", "rustls", "windows-sys"] {
        assert!(packages.iter().any(|package| package.name == name), "{name} isn't looked at");
    }
    let found: Vec<_> = packages.iter().flat_map(|package| findings(&deny, package)).collect();
    assert!(found.is_empty(), "\n{}\n", found.join("\n"));
}

#[test]
fn each_licence_that_is_allowed_is_one_that_some_crate_needs() {
    let (deny, packages) = (stored(), packages());
    for license in &deny.licenses.allow {
        let mut fewer = stored();
        fewer.licenses.allow.remove(license);
        let is_needed = packages.iter().any(|package| !findings(&fewer, package).is_empty());
        assert!(is_needed, "no crate needs {license}: take it out of deny.toml");
    }
    for exception in &deny.licenses.exceptions {
        let mut fewer = stored();
        fewer.licenses.exceptions.retain(|other| other.name != exception.name);
        let is_needed = packages.iter().any(|package| !findings(&fewer, package).is_empty());
        assert!(is_needed, "{} needs no exception: take it out of deny.toml", exception.name);
    }
}

mod the_check_can_fail {
    use super::*;

    fn good() -> Package {
        Package {
            name: "good".into(),
            license: Some("MIT OR Apache-2.0".into()),
            ..Package::default()
        }
    }

    fn found(package: Package) -> Vec<String> {
        findings(&stored(), &package)
    }

    #[test]
    fn a_licence_that_is_not_listed_is_found() {
        assert_eq!(found(good()), Vec::<String>::new());
        let said = found(Package { license: Some("MIT AND GPL-3.0-only".into()), ..good() });
        assert_eq!(said.len(), 1, "{said:?}");
        assert!(said[0].contains("GPL-3.0-only"), "{said:?}");
        assert_eq!(found(Package { license: None, ..good() }), ["good names no licence"]);
    }

    #[test]
    fn an_exception_is_for_its_crate_alone() {
        let license = Some("MIT AND NCSA".to_owned());
        assert_eq!(found(Package { license: license.clone(), ..good() }).len(), 1);
        let excepted = Package { name: "libfuzzer-sys".into(), license, ..good() };
        assert_eq!(found(excepted), Vec::<String>::new());
    }

    #[test]
    fn expressions_are_read_as_spdx_has_them() {
        let allowed = |license: &str| ["A", "B", "C WITH X"].contains(&license);
        for (license, holds) in [
            ("A", true),
            ("N", false),
            ("A OR N", true),
            ("N/A", true),
            ("A AND N", false),
            ("N OR A AND B", true),
            ("N AND A OR B", true),
            ("N AND (A OR B)", false),
            ("(N OR A) AND B", true),
            ("C", false),
            ("C WITH X OR N", true),
            ("A WITH X", false),
        ] {
            assert_eq!(satisfied(license, &allowed), Ok(holds), "{license}");
        }
        for license in ["", "A OR", "(A", "A)", "A B", "OR A", "A WITH"] {
            assert!(satisfied(license, &allowed).is_err(), "{license}");
        }
    }

    #[test]
    fn another_registry_and_a_repository_are_found() {
        for source in ["git+https://example.org/good", "registry+https://example.org/index"] {
            let said = found(Package { source: Some(source.into()), ..good() });
            assert_eq!(said.len(), 1, "{said:?}");
            assert!(said[0].contains(source), "{said:?}");
        }
    }

    #[test]
    fn a_dependency_without_a_version_is_found_but_a_folder_of_what_is_not_published() {
        for (is_path, for_tests, is_private, is_fine) in [
            (false, false, true, false),
            (false, true, false, false),
            (true, false, false, false),
            (true, true, false, true),
            (true, false, true, true),
        ] {
            let wildcards = vec![("other".to_owned(), is_path, for_tests)];
            let said = found(Package { is_private, wildcards, ..good() });
            assert_eq!(said.is_empty(), is_fine, "{said:?}");
        }
    }

    #[test]
    fn a_rule_that_this_test_does_not_know_is_refused() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deny.toml");
        let text = std::fs::read_to_string(path).unwrap();
        for (from, to) in [
            ("wildcards = \"deny\"", "wildcards = \"allow\""),
            ("unknown-git = \"deny\"", "unknown-git = \"warn\""),
            ("wildcards = \"deny\"", "wildcards = \"deny\"\nexternal-default-features = \"deny\""),
        ] {
            assert!(toml::from_str::<Deny>(&text.replace(from, to)).is_err(), "{to}");
        }
    }
}
