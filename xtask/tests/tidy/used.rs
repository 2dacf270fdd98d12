//! Callers of each public function outside of its crate: in the program, another library, an
//! example or the laboratory. `xtask/unused.txt` lists functions without one, each with a reason.
//!
//! The functions are those of docs/api. A caller of a method is a mention behind `.` or `::`, so a
//! method with the name of a used one isn't found. A type that only a hidden module shows is for
//! the crate and its models: its methods need a caller in the crate itself.

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::fmt::Write;

use crate::files::{self, SourceFile};
use crate::lexer::{Line, words};
use crate::{Finding, report};

const LIST: &str = "xtask/unused.txt";
/// Reason that a renewed list gives.
const NO_REASON: &str = "to be used, or to go";
/// Lists of docs/api that belong to no library of the product.
const NO_LIBRARIES: [&str; 4] = ["auto-traits", "corewise", "sim", "costs"];

/// Returns the names that lines call something by.
fn mentions<'a>(lines: impl Iterator<Item = &'a Line>) -> impl Iterator<Item = &'a str> {
    lines.flat_map(|line| {
        let code = line.code.as_str();
        words(code).filter(move |word| {
            let at = word.as_ptr().addr() - code.as_ptr().addr();
            let before = code[..at].trim_end();
            before.ends_with('.') || before.ends_with("::")
        })
    })
}

/// Returns the text behind the `<...>` at its start, if there is one.
fn after_generics(text: &str) -> &str {
    let mut depth = 0;
    let end = text.char_indices().find(|&(at, c)| {
        match c {
            '<' => depth += 1,
            '>' if !text[..at].ends_with('-') => depth -= 1,
            _ => {}
        }
        depth == 0
    });
    match end {
        Some((at, '>')) => &text[at + 1..],
        _ => text,
    }
}

/// Returns the methods of a list of docs/api, each with its type.
fn methods(api: &str) -> impl Iterator<Item = (&str, &str)> {
    api.lines().filter_map(|line| {
        let (of, item) = after_generics(line.strip_prefix("impl")?).split_once(": ")?;
        let name = words(item.split_once("fn ")?.1).next()?;
        (!of.contains(" for ")).then_some((words(of).next()?, name))
    })
}

/// Returns the functions of a list of docs/api that are no methods.
fn free_functions(api: &str) -> impl Iterator<Item = &str> {
    let items =
        api.lines().map(|line| line.trim_start_matches("const ").trim_start_matches("unsafe "));
    items.filter_map(|item| words(item.strip_prefix("fn ")?).next())
}

/// Returns the names that users' modules show: the types that those declare, and re-exports.
fn shown<'a>(files: &'a [SourceFile], own: &str) -> BTreeSet<&'a str> {
    let (mut names, mut seen) = (BTreeSet::new(), BTreeSet::new());
    let mut modules = vec![format!("{own}lib.rs")];
    while let Some(path) = modules.pop() {
        let Some(file) = files.iter().find(|file| file.path == path) else { continue };
        if !seen.insert(&file.path) {
            continue;
        }
        let folder = ["lib.rs", "mod.rs"].iter().find_map(|name| path.strip_suffix(name));
        let folder = folder.map_or_else(|| path.replace(".rs", "/"), str::to_owned);
        let mut reach = |from: &str, module: &str| {
            modules.extend([".rs", "/mod.rs"].map(|end| format!("{from}{module}{end}")));
        };
        let (mut hidden, mut reexport) = (false, None);
        for (_, line) in file.product_lines() {
            let code = line.code.trim();
            if code.starts_with("#[") {
                hidden |= code.contains("doc(hidden)");
                continue;
            }
            if let Some(path) = code.strip_prefix("pub use ").filter(|_| !hidden) {
                // The longest path in front of the listed names.
                let path = path.split(['{', ';']).next().unwrap_or_default();
                let path = path.trim_end_matches("::").replace("::", "/");
                let from = match path.strip_prefix("crate/") {
                    Some(path) => format!("{own}{path}/"),
                    None => format!("{folder}{path}/"),
                };
                if !code.contains('{') {
                    // One name, or all names of a module.
                    reach("", from.trim_end_matches(['/', '*']));
                }
                reexport = Some(from);
            }
            if let Some(from) = &reexport {
                names.extend(words(code));
                words(code).for_each(|word| reach(from, word));
            } else if let Some(item) = code.strip_prefix("pub ").filter(|_| !hidden) {
                let mut item = words(item).skip_while(|word| ["unsafe", "const"].contains(word));
                match (item.next(), item.next()) {
                    (Some("mod"), Some(module)) => reach(&folder, module),
                    (Some("struct" | "enum" | "union" | "trait" | "fn"), Some(name)) => {
                        names.insert(name);
                    }
                    _ => {}
                }
            }
            hidden = false;
            reexport = reexport.filter(|_| !code.ends_with(';'));
        }
    }
    names
}

/// Returns methods without a caller, as `CRATE Type::name`.
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
        let (mut inside, mut outside) = (BTreeSet::new(), BTreeSet::new());
        let mut named = BTreeSet::new();
        for file in &users {
            if file.path.starts_with(&own) {
                inside.extend(mentions(file.product_lines().map(|(_, line)| line)));
            } else {
                outside.extend(mentions(file.lines.iter()));
                named.extend(file.lines.iter().flat_map(|line| words(&line.code)));
            }
        }
        let shown = shown(files, &own);
        let is_called = |of: &str, method: &str| {
            outside.contains(method) || !shown.contains(of) && inside.contains(method)
        };
        let uncalled = methods(&list.text).filter(|(of, method)| !is_called(of, method));
        found.extend(uncalled.map(|(of, method)| format!("{name} {of}::{method}")));
        let free = free_functions(&list.text);
        let unnamed = free.filter(|free| shown.contains(free) && !named.contains(free));
        found.extend(unnamed.map(|free| format!("{name} {free}")));
    }
    found
}

/// Returns the list, with its reasons.
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
    let bare = listed.iter().filter(|(_, reason)| **reason == NO_REASON);
    let bare = bare.map(|(method, _)| format!("'{method}' has no reason to be public: give one"));
    let old = listed.keys().filter(|method| !found.contains(**method));
    let old = old.map(|method| format!("'{method}' has a caller, or is gone: strike it"));
    let finding = |what| Finding { path: LIST.into(), line: 0, what };
    report(new.chain(old).chain(bare).map(finding).collect());
}

#[test]
fn a_method_that_only_its_own_crate_and_tests_call_is_unused() {
    let api = "impl Queue: const fn used(&self)\nimpl<T> Ring<T>: fn only_inside(&self) -> T\n\
               impl<const N: bool, F: Fn() -> u8> State<F>: fn only_inside(&self) -> T\n\
               impl<T: Into<u8>> State<T>: fn in_tests(&self)\n\
               impl Drop for Queue: fn drop(&mut self)\nstruct Queue\n\
               fn whole() -> u8\nconst fn part() -> u8\nfn of_models()\n";
    let hidden = "#[doc(hidden)]\npub mod model;\npub mod ring;\npub use queue::Queue;\n";
    let files = [
        ("docs/api/blockmq.txt", api),
        ("crates/blockmq/src/lib.rs", hidden),
        ("crates/blockmq/src/model.rs", "pub use crate::state::State;"),
        (
            "crates/blockmq/src/ring.rs",
            "pub struct Ring;\npub fn whole() { r.only_inside(); }\npub const fn part() {}",
        ),
        ("crates/blockmq/src/state.rs", "pub struct State;\n#[cfg(test)]\nfn f() { s.in_tests() }"),
        ("crates/blockmq/tests/it.rs", "fn f(r: R) { r.only_inside(); }"),
        ("crates/cli/src/main.rs", "fn f(q: Q) { q\n    .used(); only_inside(whole()); }"),
    ];
    let files = files.map(|(path, text)| SourceFile::new(path, text));
    let found =
        ["blockmq Ring::only_inside", "blockmq State::in_tests", "blockmq part"].map(str::to_owned);
    assert_eq!(unused(&files), BTreeSet::from(found));
}
