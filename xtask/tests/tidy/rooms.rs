//! The rooms of a crate in floors.toml. A file imports from its own room and from earlier ones, and
//! few files import each other in a circle.

use crate::files::{self, SourceFile};
use crate::lexer::Line;
use crate::{Finding, report};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};

/// Entry of a crate in floors.toml.
#[derive(Clone, Debug, Deserialize)]
struct Rooms {
    /// Rooms in reading order: each one may import from those before it. A file outside of all
    /// rooms (`lib.rs`, and those for tests alone) may import everything, and no file imports it.
    rooms: Vec<String>,
    /// Number of files in the largest circle.
    circle: usize,
    /// Number of imports against the order.
    against: usize,
}

/// The files of a crate by module path, with their imports.
struct Graph {
    /// Path of each module's file.
    files: BTreeMap<String, String>,
    /// Imports of each module, with the line of the first import.
    imports: BTreeMap<String, BTreeMap<String, usize>>,
}

impl Graph {
    /// Returns the graph of the product code below `folder` ("crates/x/src/").
    fn of(sources: &[SourceFile], folder: &str) -> Graph {
        let of_crate = |file: &&SourceFile| file.is_rust() && file.path.starts_with(folder);
        let name = |file: &SourceFile| module_name(&file.path[folder.len()..]);
        let mut all: BTreeMap<String, &SourceFile> =
            sources.iter().filter(of_crate).map(|file| (name(file), file)).collect();
        let tests: Vec<String> =
            all.iter().flat_map(|(name, file)| test_modules(name, file)).collect();
        all.retain(|name, _| {
            let below = |test: &String| name.strip_prefix(test.as_str());
            !tests.iter().any(|test| {
                below(test).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
            })
        });
        let macros = macros(&all);
        let of_file = |(name, file): (&String, &&SourceFile)| {
            (name.clone(), imports(name, file, &all, &macros))
        };
        let imports = all.iter().map(of_file).collect();
        Graph {
            files: all.iter().map(|(name, file)| (name.clone(), file.path.clone())).collect(),
            imports,
        }
    }

    /// Returns the largest set of files that import each other in a circle.
    fn circle(&self) -> Vec<&str> {
        let reached: BTreeMap<&str, BTreeSet<&str>> =
            self.imports.keys().map(|from| (from.as_str(), self.reach(from))).collect();
        let circle = |from: &&str| -> Vec<&str> {
            let back = |to: &&&str| reached[**to].contains(from);
            reached[from].iter().filter(back).copied().collect()
        };
        reached.keys().map(circle).max_by_key(Vec::len).unwrap_or_default()
    }

    fn reach(&self, from: &str) -> BTreeSet<&str> {
        let mut reached = BTreeSet::new();
        let mut next = vec![from];
        while let Some(at) = next.pop() {
            for to in self.imports.get(at).into_iter().flat_map(BTreeMap::keys) {
                if reached.insert(to.as_str()) {
                    next.push(to);
                }
            }
        }
        reached
    }

    /// Returns the imports against the order.
    fn against(&self, rooms: &[String]) -> Vec<Finding> {
        let place = |module: &str| {
            let is = |room: &&String| module.split("::").next() == Some(room.as_str());
            rooms.iter().position(|room| is(&room)).unwrap_or(rooms.len())
        };
        let edges = self
            .imports
            .iter()
            .flat_map(|(from, imports)| imports.iter().map(move |(to, line)| (from, to, *line)));
        let wrong = edges.filter(|(from, to, _)| place(from) < place(to));
        let finding = |(from, to, line): (&String, &String, usize)| Finding {
            path: self.files[from].clone(),
            line,
            what: format!("imports `{to}`, which lies in a later room"),
        };
        wrong.map(finding).collect()
    }
}

/// Returns the path of a module: `a` for `a/mod.rs`, `a::b` for `a/b.rs`, and an empty one for
/// `lib.rs`.
fn module_name(path: &str) -> String {
    let path = path.strip_suffix(".rs").unwrap_or(path);
    let path = path.strip_suffix("/mod").unwrap_or(path);
    if path == "lib" { String::new() } else { path.replace('/', "::") }
}

/// Returns the name of a child of `module`.
fn child(module: &str, name: &str) -> String {
    if module.is_empty() { name.into() } else { format!("{module}::{name}") }
}

/// Returns the modules that a file declares for tests alone.
fn test_modules(module: &str, file: &SourceFile) -> Vec<String> {
    let lines = file.lines.iter().zip(&file.is_test).filter(|(_, is_test)| **is_test);
    let names = lines.filter_map(|(line, _)| declared(&line.code));
    names.map(|name| child(module, name)).collect()
}

/// Returns the module that a line declares, if the module has a file.
fn declared(code: &str) -> Option<&str> {
    let (before, rest) = code.trim().strip_suffix(';')?.rsplit_once("mod ")?;
    (before.is_empty() || before.starts_with("pub")).then_some(rest)
}

/// Returns the files that define macros, by the macro's name. An exported macro has a path from the
/// crate's root, wherever it is defined.
fn macros<'a>(all: &BTreeMap<String, &'a SourceFile>) -> BTreeMap<&'a str, String> {
    let of_file = |(module, file): (&String, &&'a SourceFile)| {
        let defined = |line: &'a Line| line.code.trim().strip_prefix("macro_rules! ");
        let names = file.lines.iter().filter_map(defined);
        let names = names.filter_map(|rest| rest.split([' ', '{', '(']).next());
        names.map(|name| (name, module.clone())).collect::<Vec<_>>()
    };
    all.iter().flat_map(of_file).collect()
}

/// Returns the files that a file's paths lead to.
fn imports(
    module: &str,
    file: &SourceFile,
    all: &BTreeMap<String, &SourceFile>,
    macros: &BTreeMap<&str, String>,
) -> BTreeMap<String, usize> {
    let children: Vec<&str> =
        file.product_lines().filter_map(|(_, line)| declared(&line.code)).collect();
    let tokens: Vec<(usize, String)> =
        file.product_lines().flat_map(|(at, line)| tokens(at, &line.code)).collect();
    let mut found = BTreeMap::new();
    for (at, (line, token)) in tokens.iter().enumerate() {
        let begins = at == 0 || !matches!(tokens[at - 1].1.as_str(), "::" | "." | "mod");
        let is_path = tokens.get(at + 1).is_some_and(|(_, next)| next == "::");
        if !begins || !is_path {
            continue;
        }
        let from = match token.as_str() {
            "crate" => Vec::new(),
            "self" => module.split("::").map(str::to_owned).collect(),
            "super" => parent(module.split("::").map(str::to_owned).collect()),
            name if children.contains(&name) => {
                child(module, name).split("::").map(str::to_owned).collect()
            }
            _ => continue,
        };
        let mut paths = Vec::new();
        read_paths(&tokens, &mut (at + 1), from, &mut paths);
        for path in paths {
            let lengths = (0..=path.len()).rev();
            let mut named = lengths.map(|length| path[..length].join("::"));
            let defined = || match path.as_slice() {
                [name] => macros.get(name.as_str()).cloned(),
                _ => None,
            };
            let is_there = |name: &String| !name.is_empty() && all.contains_key(name);
            let to = named.find(is_there).or_else(defined).unwrap_or_default();
            if all.contains_key(&to) && to != module {
                found.entry(to).or_insert(*line);
            }
        }
    }
    found
}

fn parent(mut path: Vec<String>) -> Vec<String> {
    path.pop();
    path
}

/// Reads the part after a path's first segment, and all paths of a group.
fn read_paths(
    tokens: &[(usize, String)],
    at: &mut usize,
    mut path: Vec<String>,
    paths: &mut Vec<Vec<String>>,
) {
    let token = |at: usize| tokens.get(at).map_or("", |(_, token)| token.as_str());
    while token(*at) == "::" {
        *at += 1;
        match token(*at) {
            "{" => {
                *at += 1;
                while !matches!(token(*at), "}" | "") {
                    let mut path = path.clone();
                    match token(*at) {
                        "self" => {}
                        name => path.push(name.into()),
                    }
                    *at += 1;
                    read_paths(tokens, at, path, paths);
                    while !matches!(token(*at), "," | "}" | "") {
                        *at += 1;
                    }
                    *at += usize::from(token(*at) == ",");
                }
                *at += 1;
                return;
            }
            "super" => path = parent(path),
            name => path.push(name.into()),
        }
        *at += 1;
    }
    paths.push(path);
}

/// Returns the words of code, `::`, and other characters one by one.
fn tokens(line: usize, code: &str) -> Vec<(usize, String)> {
    let mut tokens: Vec<(usize, String)> = Vec::new();
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let mut joins = false;
    for c in code.chars() {
        match tokens.last_mut() {
            Some((_, last)) if joins && is_word(c) && last.ends_with(is_word) => last.push(c),
            Some((_, last)) if joins && c == ':' && last == ":" => last.push(c),
            _ if c.is_whitespace() => {}
            _ => tokens.push((line, c.into())),
        }
        joins = !c.is_whitespace();
    }
    tokens
}

/// Compares the numbers in floors.toml with those that were found: a larger number would admit a
/// new import.
fn findings(sources: &[SourceFile], folder: &str, said: &Rooms) -> Vec<Finding> {
    let graph = Graph::of(sources, folder);
    let mut findings = Vec::new();
    let mut tell =
        |what: String| findings.push(Finding { path: "floors.toml".into(), line: 0, what });
    for room in &said.rooms {
        if !graph.files.contains_key(room) {
            tell(format!("lists the room `{room}`, which {folder} hasn't"));
        }
    }
    let circle = graph.circle();
    if circle.len() != said.circle {
        tell(format!(
            "says that the largest circle of {folder} has {} files, and it has {}: {}",
            said.circle,
            circle.len(),
            circle.join(", ")
        ));
    }
    let against = graph.against(&said.rooms);
    if against.len() != said.against {
        tell(format!(
            "says that {} imports of {folder} go against the order, and {} do",
            said.against,
            against.len()
        ));
        findings.extend(against);
    }
    findings
}

#[test]
fn the_rooms_of_a_crate_import_one_way() {
    #[derive(Deserialize)]
    struct Crate {
        #[serde(flatten)]
        rooms: Option<Rooms>,
    }
    let text = std::fs::read_to_string(files::root().join("floors.toml")).expect("it is there");
    let crates: BTreeMap<String, Crate> = toml::from_str(&text).expect("it is TOML");
    let with_rooms = crates.iter().filter_map(|(name, said)| Some((name, said.rooms.as_ref()?)));
    let sources = files::committed();
    let found: Vec<Vec<Finding>> = with_rooms
        .map(|(name, said)| {
            let name = name.strip_prefix("corewise-").unwrap_or(name);
            findings(sources, &files::sources_of(name), said)
        })
        .collect();
    assert!(!found.is_empty(), "no crate of floors.toml has rooms");
    report(found.concat());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sources(files: &[(&str, &str)]) -> Vec<SourceFile> {
        files
            .iter()
            .map(|(path, text)| SourceFile::new(&format!("crates/x/src/{path}"), text))
            .collect()
    }

    fn graph(files: &[(&str, &str)]) -> Graph {
        Graph::of(&sources(files), "crates/x/src/")
    }

    fn imported<'a>(graph: &'a Graph, from: &str) -> Vec<&'a str> {
        graph.imports[from].keys().map(String::as_str).collect()
    }

    #[test]
    fn imports_are_found_in_every_form() {
        let graph = graph(&[
            ("lib.rs", "mod a;\nmod b;\npub use a::A;\n"),
            ("a/mod.rs", "mod c;\nmod d;\nuse c::{C, f};\nfn g() { d::go(); }\n"),
            ("a/c.rs", "use super::d::D;\nuse crate::{\n    b::{self, B},\n    A,\n};\n"),
            ("a/d.rs", "fn f(b: &crate::b::B) { self::g(super::c::C) }\n// crate::nowhere\n"),
            ("b.rs", "pub(crate) struct B;\nlet crates: crate::a::A = \"crate::a::c\";\n"),
        ]);
        assert_eq!(imported(&graph, ""), ["a"]);
        assert_eq!(imported(&graph, "a"), ["a::c", "a::d"]);
        assert_eq!(imported(&graph, "a::c"), ["", "a::d", "b"]);
        assert_eq!(imported(&graph, "a::d"), ["a::c", "b"]);
        assert_eq!(imported(&graph, "b"), ["a"]);
    }

    #[test]
    fn an_exported_macro_lies_in_the_file_that_defines_it() {
        let graph = graph(&[
            ("lib.rs", "mod a;\nmod b;\n"),
            ("a.rs", "pub use crate::m as n;\n#[macro_export]\nmacro_rules! m {\n}\n"),
            ("b.rs", "crate::m! {}\nuse crate::other;\n"),
        ]);
        assert!(imported(&graph, "a").is_empty());
        assert_eq!(imported(&graph, "b"), ["", "a"]);
    }

    #[test]
    fn code_for_tests_may_import_everything() {
        let graph = graph(&[
            ("lib.rs", "mod a;\n#[cfg(any(test, loom))]\npub mod model;\n"),
            ("a.rs", "#[cfg(test)]\nmod tests {\n    use crate::model::M;\n}\n"),
            ("model.rs", "mod inner;\nuse crate::a::A;\n"),
            ("model/inner.rs", "use crate::a::A;\n"),
        ]);
        assert_eq!(graph.files.len(), 2);
        assert!(imported(&graph, "a").is_empty());
    }

    #[test]
    fn a_circle_an_import_against_the_order_and_a_number_that_is_too_high_are_found() {
        let files = [
            ("lib.rs", "mod a;\nmod b;\n"),
            ("a.rs", "use crate::b::B;\n"),
            ("b.rs", "use crate::a::A;\n"),
        ];
        let found = |rooms: &[&str], circle, against| {
            let rooms = rooms.iter().map(|room| (*room).into()).collect();
            let said = Rooms { rooms, circle, against };
            let found = findings(&sources(&files), "crates/x/src/", &said);
            found
                .iter()
                .map(|finding| format!("{}: {}", finding.path, finding.what))
                .collect::<Vec<_>>()
        };
        assert!(found(&["a", "b"], 2, 1).is_empty());
        assert!(found(&["a", "b"], 0, 1)[0].ends_with("it has 2: a, b"));
        assert_eq!(found(&["a", "b"], 3, 1).len(), 1);
        let against = found(&["a", "b"], 2, 0);
        assert_eq!(against[1], "crates/x/src/a.rs: imports `b`, which lies in a later room");
        assert_eq!(found(&["a", "b"], 2, 2).len(), 2);
        assert!(found(&["a", "b", "c"], 2, 1)[0].contains("`c`"));
    }
}
