//! The public API of each library stands in `docs/api`, a line per item. So the author of a change
//! and its reviewer see the lines that it touches.

#[path = "../tidy/lexer.rs"]
#[allow(dead_code, reason = "the tidy tests use the rest of it")]
mod lexer;

mod items;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

/// Variable that makes the test rewrite the files.
const RENEW: &str = "COREWISE_RENEW";

/// Folders and files of sources that no user's build has: backends of models, and helpers of tests.
const NOT_FOR_USERS: [&str; 12] = [
    "facade/loom",
    "facade/model",
    "facade/shuttle",
    "facade/sim",
    "facade/untold.rs",
    "facade/real/portable",
    "watch/none.rs",
    "model.rs",
    "model",
    "tests.rs",
    "tests",
    "takeover",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask is in the root").to_path_buf()
}

/// Returns the libraries' folders: those whose manifest doesn't inherit `publish`.
fn libraries() -> Vec<PathBuf> {
    let list = |folder: &str| fs::read_dir(root().join(folder)).expect("the crates can be listed");
    let folders = list("crates").chain(list("lab"));
    let mut libraries: Vec<PathBuf> = folders
        .map(|entry| entry.expect("an entry can be read").path())
        .filter(|folder| {
            let manifest = fs::read_to_string(folder.join("Cargo.toml"));
            manifest.is_ok_and(|text| !text.lines().any(|line| line == "publish.workspace = true"))
        })
        .collect();
    libraries.sort();
    libraries
}

/// Returns the name of a crate's folder.
fn name_of(library: &Path) -> String {
    library.file_name().expect("a crate's folder has a name").to_string_lossy().into_owned()
}

fn sources(folder: &Path, below: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder of sources can be listed") {
        let path = entry.expect("an entry can be read").path();
        let name = path.strip_prefix(below).expect("it was found below").to_string_lossy();
        if NOT_FOR_USERS.iter().any(|not| Path::new(&*name).ends_with(not)) {
            continue;
        }
        if path.is_dir() {
            sources(&path, below, found);
        } else if name.ends_with(".rs") {
            found.push(path);
        }
    }
}

/// Returns the code of a file, without its unit tests.
fn code(text: &str) -> String {
    let (lines, _) = lexer::lex(text);
    lines.iter().fold(String::new(), |code, line| code + &line.code + "\n")
}

/// Returns the lines of a library, each once and sorted. Implementations for types that aren't
/// public are left out.
fn api(library: &Path) -> BTreeSet<String> {
    let folder = library.join("src");
    let mut files = Vec::new();
    sources(&folder, &folder, &mut files);
    let read = |file| code(&fs::read_to_string(file).expect("a source can be read"));
    let files: Vec<String> = files.into_iter().map(read).collect();
    let macros = files.iter().flat_map(|code| items::public_macros(code)).collect();
    let mut lines: BTreeSet<String> =
        files.iter().flat_map(|code| items::of(code, &macros)).collect();
    let declared: BTreeSet<String> = lines.iter().filter_map(|line| type_of(line)).collect();
    lines.retain(|line| match implementing(line) {
        Some(of) => declared.contains(&of),
        None => true,
    });
    lines
}

/// Returns the name of the type that a line declares.
fn type_of(line: &str) -> Option<String> {
    let words: Vec<&str> = line.split(' ').collect();
    let at = words
        .iter()
        .position(|word| ["struct", "enum", "union", "trait", "type"].contains(word))?;
    Some(bare(words.get(at + 1)?))
}

/// Returns the type that a line implements something for, or a member of which it declares.
fn implementing(line: &str) -> Option<String> {
    let of = line.strip_prefix("impl")?;
    // The type's parameters.
    let mut depth = 0usize;
    let end = of.char_indices().find(|(_, c)| {
        depth += usize::from(*c == '<');
        depth -= usize::from(*c == '>' && depth > 0);
        depth == 0
    });
    let of = if of.starts_with('<') { &of[end?.0 + 1..] } else { of };
    let of = of.split(" for ").last()?;
    Some(bare(of.trim_start()))
}

fn bare(name: &str) -> String {
    let name = name.trim_start_matches(['&', '(']).trim_start_matches("mut ");
    let name = name.split(['<', '(', ':', ' ', ';']).next().unwrap_or_default();
    name.to_owned()
}

#[test]
fn the_public_api_is_as_it_was_written_down() {
    let mut changed = String::new();
    for folder in libraries() {
        let (library, now) = (name_of(&folder), api(&folder));
        let file = root().join("docs/api").join(format!("{library}.txt"));
        assert!(!now.is_empty(), "nothing public was found in {library}");
        if std::env::var_os(RENEW).is_some() {
            let text: String = now.iter().map(|line| line.clone() + "\n").collect();
            fs::write(&file, text).expect("the file can be written");
            continue;
        }
        let stored = fs::read_to_string(&file).unwrap_or_default();
        let stored: BTreeSet<String> = stored.lines().map(str::to_owned).collect();
        for line in stored.difference(&now) {
            let _ = writeln!(changed, "{library}: - {line}");
        }
        for line in now.difference(&stored) {
            let _ = writeln!(changed, "{library}: + {line}");
        }
    }
    assert!(
        changed.is_empty(),
        "the public API changed:\n{changed}Is it meant? Say so in CHANGELOG.md, and write it down: \
         {RENEW}=1 cargo test -p xtask --test api"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(source: &str) -> Vec<String> {
        let code = code(source);
        items::of(&code, &items::public_macros(&code).collect())
    }

    #[test]
    fn functions_and_methods_have_a_line_each_and_private_ones_none() {
        let source = "pub fn f(a: u8,\n    b: [u8; 2],\n) -> Result<u8, E> {\n    1\n}\nfn g() {}\npub(crate) fn h() {}\n\
                      impl<T: Ord> S<T>\nwhere T: Copy {\n    /// Doc.\n    #[must_use]\n    pub fn m(&self) -> T { self.0 }\n    fn n() {}\n}\n";
        let method = "impl<T: Ord> S<T> where T: Copy: #[must_use] fn m(&self) -> T";
        assert_eq!(found(source), ["fn f(a: u8, b: [u8; 2]) -> Result<u8, E>", method]);
    }

    #[test]
    fn fields_and_variants_have_a_line_each() {
        let source = "#[derive(Debug)]\npub struct S<T> {\n    pub a: Vec<(u8, T)>,\n    b: u8,\n}\npub struct P(pub u8, u8);\n\
                      #[non_exhaustive]\npub enum E {\n    #[default]\n    A,\n    B { x: u8 },\n    C(u8, u8),\n}\n";
        let lines = [
            "#[derive(Debug)] struct S<T>",
            "struct S: a: Vec<(u8, T)>",
            "struct S: private fields",
            "struct P(u8, _)",
            "#[non_exhaustive] enum E",
            "enum E: A",
            "enum E: B { x: u8 }",
            "enum E: C(u8, u8)",
        ];
        assert_eq!(found(source), lines);
    }

    #[test]
    fn traits_modules_imports_and_constants_are_found() {
        let source = "pub trait T: Send {\n    const N: u8;\n    fn a(&self);\n    fn b(&self) { todo() }\n}\n\
                      pub mod m {\n    pub use x::{Y, z::{V, W as U}};\n    pub const C: S = S { a: 1 };\n}\n\
                      impl Drop for S { fn drop(&mut self) {} }\n#[doc(hidden)]\npub mod h { pub fn f() {} }\n\
                      #[cfg(test)]\nmod tests { pub fn f() {} }\n";
        let lines = [
            "trait T: Send",
            "trait T: const N: u8",
            "trait T: fn a(&self)",
            "trait T: fn b(&self) { .. }",
            "mod m",
            "m::use Y",
            "m::use V",
            "m::use W as U",
            "m::const C: S",
            "impl Drop for S",
        ];
        assert_eq!(found(source), lines);
    }

    #[test]
    fn a_lost_bound_and_another_associated_type_of_an_implementation_are_seen() {
        let source = "impl<T> Iterator for S<T>\nwhere\n    T: Copy,\n{\n    type Item = (u8, T);\n    \
                      fn next(&mut self) -> Option<(u8, T)> { None }\n}\n";
        let head = "impl<T> Iterator for S<T> where T: Copy";
        assert_eq!(found(source), [&format!("{head}: type Item = (u8, T)"), head]);
        assert_eq!(implementing(&found(source)[0]).as_deref(), Some("S"));
    }

    #[test]
    fn what_macros_declare_is_found() {
        let source = "macro_rules! numbers {\n    ($n:ident { $($i:ident = $v:expr;)* }) => {\n        pub struct $n(pub u8);\n        \
                      impl $n { $(pub const $i: $n = $n($v);)* fn f() {} }\n    };\n}\n\
                      numbers! {\n    /// Doc.\n    Kind { A = 1; B = 2; }\n}\n\
                      macro_rules! other { () => {}; }\nother!();\n\
                      impl S {\n    constructor! {\n        /// Doc.\n        pub fn new() -> S { S }\n    }\n}\n";
        let lines = [
            "numbers! makes struct $n(",
            "numbers! makes const $i: $n = $n($v)",
            "numbers! Kind: A = 1",
            "numbers! Kind: B = 2",
            "impl S: fn new() -> S",
        ];
        assert_eq!(found(source), lines);
    }

    #[test]
    fn an_implementation_is_of_the_type_behind_its_parameters() {
        assert_eq!(
            implementing("impl<T: Fn(u8) -> Vec<u8>> fmt::Debug for Big<T>").as_deref(),
            Some("Big")
        );
        assert_eq!(implementing("impl Small: fn f()").as_deref(), Some("Small"));
        assert_eq!(type_of("#[must_use] struct Big<T>").as_deref(), Some("Big"));
    }
}
