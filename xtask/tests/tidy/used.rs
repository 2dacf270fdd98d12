//! Each public method has a caller outside of its crate: in the program, another library, an example
//! or the laboratory. `xtask/unused.txt` lists those that have none, each with a reason.
//!
//! The methods are those of docs/api. A caller is a mention behind `.` or `::`, so a method that has
//! its name in common with a used one isn't found.

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::fmt::Write;

use crate::files::{self, SourceFile};
use crate::lexer::words;
use crate::{Finding, report};

const LIST: &str = "xtask/unused.txt";
/// The reason that a renewed list gives.
const NO_REASON: &str = "to be used, or to go";
/// Lists of docs/api that are of no library of the product.
const NO_LIBRARIES: [&str; 4] = ["auto-traits", "corewise", "sim", "costs"];

/// The names that a file calls something by.
fn mentions(file: &SourceFile) -> impl Iterator<Item = &str> {
    file.lines.iter().flat_map(|line| {
        let code = line.code.as_str();
        words(code).filter(move |word| {
            let at = word.as_ptr().addr() - code.as_ptr().addr();
            let before = code[..at].trim_end();
            before.ends_with('.') || before.ends_with("::")
        })
    })
}

/// The methods of a list of docs/api, as `Type::name`.
fn methods(api: &str) -> impl Iterator<Item = String> {
    api.lines().filter_map(|line| {
        let (of, item) = line.strip_prefix("impl")?.split_once(": ")?;
        let (_, rest) = item.split_once("fn ")?;
        let name = words(rest).next()?;
        let of = of.rsplit(['>', ' ']).find(|part| !part.is_empty()).unwrap_or(of);
        let of = words(of).next()?;
        (!line.split(": ").next()?.contains(" for ")).then(|| format!("{of}::{name}"))
    })
}

/// Methods without a caller, as `CRATE Type::name`.
fn unused(files: &[SourceFile]) -> BTreeSet<String> {
    let for_tests = ["/tests/", "/benches/", "fuzz/", "xtask/"];
    let users: Vec<_> = files
        .iter()
        .filter(|file| file.is_rust() && !for_tests.iter().any(|part| file.path.contains(part)))
        .collect();
    let mut found = BTreeSet::new();
    for list in files {
        let name = list.path.strip_prefix("docs/api/").and_then(|name| name.strip_suffix(".txt"));
        let Some(name) = name.filter(|name| !NO_LIBRARIES.contains(name)) else { continue };
        let own = files::sources_of(name);
        let others = users.iter().filter(|file| !file.path.starts_with(&own));
        let called: BTreeSet<_> = others.flat_map(|file| mentions(file)).collect();
        let is_called = |method: &String| {
            method.split_once("::").is_some_and(|(_, method)| called.contains(method))
        };
        let uncalled = methods(&list.text).filter(|method| !is_called(method));
        found.extend(uncalled.map(|method| format!("{name} {method}")));
    }
    found
}

/// The list, with its reasons.
fn listed(text: &str) -> BTreeMap<&str, &str> {
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.filter_map(|line| line.split_once(": ")).collect()
}

#[test]
fn each_public_method_has_a_caller_or_a_reason() {
    let files = files::committed();
    let text = files.iter().find(|file| file.path == LIST).map_or("", |file| &file.text);
    let (found, listed) = (unused(files), listed(text));
    if env::var_os("COREWISE_RENEW").is_some() {
        let head = text.lines().take_while(|line| line.starts_with('#'));
        let mut list = head.fold(String::new(), |list, line| list + line + "\n");
        for method in &found {
            let reason = listed.get(method.as_str()).unwrap_or(&NO_REASON);
            writeln!(list, "{method}: {reason}").expect("a string takes it");
        }
        std::fs::write(files::root().join(LIST), list).expect("the list can be written");
        return;
    }
    let new = found.iter().filter(|method| !listed.contains_key(method.as_str()));
    let new = new.map(|method| format!("nobody calls '{method}': use it, or take it away"));
    let old = listed.keys().filter(|method| !found.contains(**method));
    let old = old.map(|method| format!("'{method}' has a caller, or is gone: strike it"));
    let finding = |what| Finding { path: LIST.into(), line: 0, what };
    report(new.chain(old).map(finding).collect());
}

#[test]
fn a_method_that_only_its_own_crate_and_tests_call_is_unused() {
    let api = "impl Queue: const fn used(&self)\nimpl<T> Ring<T>: fn only_inside(&self) -> T\n\
               impl Drop for Queue: fn drop(&mut self)\nstruct Queue\n";
    let files = [
        ("docs/api/blockmq.txt", api),
        ("crates/blockmq/src/lib.rs", "fn f(r: R) { r.only_inside(); }"),
        ("crates/blockmq/tests/it.rs", "fn f(r: R) { r.only_inside(); }"),
        ("crates/cli/src/main.rs", "fn f(q: Q) { q\n    .used(); only_inside(); }"),
    ];
    let files = files.map(|(path, text)| SourceFile::new(path, text));
    assert_eq!(unused(&files), BTreeSet::from(["blockmq Ring::only_inside".to_owned()]));
}
