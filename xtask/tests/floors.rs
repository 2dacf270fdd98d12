//! Holds floors.toml: each crate imports only crates on floors below its own, and floors.toml lists
//! those that it imports.

use cargo_metadata::camino::Utf8Path;
use cargo_metadata::{DependencyKind, MetadataCommand};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::Path;

/// A floor, as it stands in floors.toml.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Floor {
    Number(u32),
    Dev,
}

impl<'de> Deserialize<'de> for Floor {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Floor, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Raw {
            Number(u32),
            Word(String),
        }
        match Raw::deserialize(from)? {
            Raw::Number(n) => Ok(Floor::Number(n)),
            Raw::Word(word) if word == "dev" => Ok(Floor::Dev),
            Raw::Word(word) => {
                Err(serde::de::Error::custom(format!("`{word}` is no floor: a number or \"dev\"")))
            }
        }
    }
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    floor: Floor,
    #[serde(default)]
    imports: Vec<String>,
    /// The rooms, which the tidy test of rooms checks.
    #[serde(default, rename = "rooms")]
    _rooms: Vec<String>,
    #[serde(default, rename = "circle")]
    _circle: usize,
    #[serde(default, rename = "against")]
    _against: usize,
}

type Floors = BTreeMap<String, Entry>;

/// An import of one crate of the workspace by another.
#[derive(Clone, Debug)]
struct Import {
    from: String,
    to: String,
    /// True if only its tests, examples and benches import it.
    for_tests: bool,
    /// True if only the facade's simulator imports it: with `--cfg sim`, which no user sets.
    for_sim: bool,
    /// True if the product imports the laboratory.
    into_lab: bool,
}

/// Returns all differences between floors.toml and the workspace.
fn findings(floors: &Floors, crates: &[String], imports: &[Import]) -> Vec<String> {
    let mut found = Vec::new();
    for name in crates {
        if !floors.contains_key(name) {
            found.push(format!("{name} is not in floors.toml: give it a floor and its imports"));
        }
    }
    for (name, entry) in floors {
        if !crates.contains(name) {
            found.push(format!("floors.toml lists {name}, which is no crate of the workspace"));
        }
        if entry.floor == Floor::Dev && !entry.imports.is_empty() {
            found
                .push(format!("{name} is on floor dev, which may import everything: list nothing"));
        }
        for to in &entry.imports {
            let Some(target) = floors.get(to) else {
                found.push(format!("floors.toml lets {name} import {to}, which it does not list"));
                continue;
            };
            match (entry.floor, target.floor) {
                (Floor::Number(own), Floor::Number(other)) if other < own => {}
                _ => found.push(format!(
                    "floors.toml lets {name} import {to}, which is not on a floor strictly below"
                )),
            }
        }
    }
    for import in imports {
        let Import { from, to, for_tests, for_sim, into_lab } = import;
        if *into_lab && !for_tests && !for_sim {
            found.push(format!("{from} is of the product, and imports {to} of the laboratory"));
            continue;
        }
        let (Some(own), Some(other)) = (floors.get(from), floors.get(to)) else {
            continue; // said above
        };
        match (own.floor, other.floor) {
            (Floor::Dev, _) => {}
            (_, Floor::Dev) if *for_sim => {}
            (_, Floor::Dev) => {
                found.push(format!("{from} imports {to}, which is for development only"))
            }
            (Floor::Number(own), Floor::Number(other)) if *for_tests => {
                if other > own {
                    found.push(format!(
                        "the tests of {from} (floor {own}) import {to} from above (floor {other})"
                    ));
                }
            }
            _ if own.imports.contains(to) => {}
            _ => found.push(format!("{from} imports {to}, which floors.toml does not allow")),
        }
    }
    for (name, entry) in floors.iter().filter(|(name, _)| crates.contains(name)) {
        let imported = |to: &String| {
            imports.iter().any(|i| i.from == *name && i.to == *to && !i.for_tests && !i.for_sim)
        };
        for to in entry.imports.iter().filter(|to| !imported(to)) {
            found.push(format!(
                "floors.toml lists {name} import {to}, which it doesn't: take it from the list"
            ));
        }
    }
    found
}

fn stored() -> Floors {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../floors.toml");
    let text = std::fs::read_to_string(path).expect("floors.toml is at the root");
    toml::from_str(&text).expect("floors.toml is as its own comment says")
}

fn workspace() -> (Vec<String>, Vec<Import>) {
    let metadata = MetadataCommand::new()
        .manifest_path(Path::new(env!("CARGO_MANIFEST_DIR")).join("../Cargo.toml"))
        .no_deps()
        .exec()
        .expect("cargo describes the workspace");
    let crates: Vec<String> = metadata.packages.iter().map(|p| p.name.to_string()).collect();
    let root = &metadata.workspace_root;
    let lies_in = |path: &Utf8Path, folder: &str| path.starts_with(root.join(folder));
    let mut imports = Vec::new();
    for package in &metadata.packages {
        for dependency in package.dependencies.iter().filter(|d| crates.contains(&d.name)) {
            imports.push(Import {
                from: package.name.to_string(),
                to: dependency.name.clone(),
                for_tests: dependency.kind == DependencyKind::Development,
                for_sim: dependency.target.as_ref().is_some_and(|t| t.to_string() == "cfg(sim)"),
                into_lab: lies_in(&package.manifest_path, "crates")
                    && dependency.path.as_ref().is_some_and(|path| lies_in(path, "lab")),
            });
        }
    }
    (crates, imports)
}

#[test]
fn each_crate_imports_only_what_its_floor_allows() {
    let (crates, imports) = workspace();
    let found = findings(&stored(), &crates, &imports);
    assert!(found.is_empty(), "\n{}\n", found.join("\n"));
}

#[test]
fn floors_hold_every_crate_that_the_design_names() {
    let floors = stored();
    for (floor, names) in [
        (Floor::Number(0), &["corewise-sync", "corewise-timeline", "corewise-costs"][..]),
        (Floor::Number(1), &["corewise-topology", "corewise-kernel-log"]),
        (Floor::Number(2), &["corewise-workqueue", "corewise-smp"]),
        (Floor::Number(3), &["corewise-device", "corewise-blockmq"]),
        (Floor::Number(4), &["corewise-drivers"]),
        (Floor::Number(5), &["corewise-nbd", "corewise-object"]),
        (Floor::Number(6), &["corewise", "corewise-bench"]),
        (Floor::Number(7), &["corewise-server"]),
        (Floor::Number(8), &["corewise-cli"]),
        (Floor::Dev, &["xtask", "bench-peers", "corewise-fuzz"]),
    ] {
        for name in names {
            assert_eq!(floors.get(*name).map(|e| e.floor), Some(floor), "{name}");
        }
    }
}

mod the_check_can_fail {
    use super::*;

    const SMALL: &str = r#"
        [ground]
        floor = 0
        imports = []
        [side]
        floor = 0
        imports = []
        [middle]
        floor = 1
        imports = ["ground"]
        [tool]
        floor = "dev"
    "#;

    fn check(toml: &str, crates: &[&str], imports: &[(&str, &str, bool)]) -> Vec<String> {
        let floors: Floors = toml::from_str(toml).expect("a made-up floors.toml");
        let crates: Vec<String> = crates.iter().map(|c| (*c).to_owned()).collect();
        let imports: Vec<Import> = imports
            .iter()
            .map(|&(from, to, for_tests)| Import {
                from: from.into(),
                to: to.into(),
                for_tests,
                for_sim: false,
                into_lab: from == "middle" && to == "lamp",
            })
            .collect();
        findings(&floors, &crates, &imports)
    }

    const CRATES: &[&str] = &["ground", "side", "middle", "tool"];

    #[test]
    fn listed_imports_pass() {
        let imports = [
            ("middle", "ground", false),
            ("tool", "middle", false),
            ("middle", "side", true),
            ("ground", "side", true),
        ];
        assert_eq!(check(SMALL, CRATES, &imports), Vec::<String>::new());
    }

    /// The only import that `SMALL` lists.
    const LISTED: (&str, &str, bool) = ("middle", "ground", false);

    #[test]
    fn an_import_that_is_not_listed_is_found() {
        let found = check(SMALL, CRATES, &[LISTED, ("middle", "side", false)]);
        assert_eq!(found, ["middle imports side, which floors.toml does not allow"]);
    }

    #[test]
    fn an_entry_that_only_tests_or_nobody_uses_is_found() {
        for imports in [&[][..], &[("middle", "ground", true)]] {
            let found = check(SMALL, CRATES, imports);
            assert_eq!(found.len(), 1, "{found:?}");
            assert!(found[0].contains("middle import ground, which it doesn't"), "{found:?}");
        }
    }

    #[test]
    fn tests_must_not_import_from_above_and_nobody_imports_tools() {
        let found =
            check(SMALL, CRATES, &[LISTED, ("ground", "middle", true), ("middle", "tool", true)]);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].contains("from above") && found[1].contains("development only"));
    }

    #[test]
    fn the_product_does_not_import_the_laboratory_though_it_is_listed() {
        let toml = SMALL.replace("[side]", "[lamp]").replace("\"ground\"", "\"lamp\"");
        let crates = ["ground", "lamp", "middle", "tool"];
        assert!(check(&toml, &crates, &[("middle", "lamp", true)]).len() == 1, "it isn't made");
        let found = check(&toml, &crates, &[("middle", "lamp", false)]);
        assert_eq!(found, ["middle is of the product, and imports lamp of the laboratory"]);
    }

    #[test]
    fn an_unknown_crate_and_an_unused_entry_are_found() {
        let found = check(SMALL, &["ground", "side", "middle", "new"], &[LISTED]);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].starts_with("new is not in floors.toml"));
        assert!(found[1].contains("tool, which is no crate"));
    }

    #[test]
    fn an_entry_that_allows_an_equal_or_unknown_floor_is_found() {
        let toml = SMALL.replace("imports = [\"ground\"]", "imports = [\"middle\", \"attic\"]");
        let imports = [("middle", "middle", false), ("middle", "attic", false)];
        let found = check(&toml, CRATES, &imports);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].contains("not on a floor strictly below"));
        assert!(found[1].contains("attic, which it does not list"));
    }

    #[test]
    fn a_floor_that_is_no_floor_is_refused() {
        let wrong = SMALL.replace("\"dev\"", "\"roof\"");
        assert!(toml::from_str::<Floors>(&wrong).unwrap_err().to_string().contains("roof"));
    }
}
