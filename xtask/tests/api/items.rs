//! The public items of a Rust file: a line for each item, field, variant and method.
//!
//! Each `pub` item can be reached from outside, as the lint `unreachable_pub` is on. So no module
//! has to be followed. Lines name no file, since users don't see where an item lies.

use std::collections::BTreeSet;

/// Returns the lines of one file, whose code comes without comments and without the contents of
/// strings. `macros` are those of the crate that declare something public.
pub(crate) fn of(code: &str, macros: &BTreeSet<String>) -> Vec<String> {
    let mut lines = Lines { macros, lines: Vec::new() };
    members(code, "", false, &mut lines);
    lines.lines
}

/// Returns the macros of one file whose text declares something public, which no item of the source
/// shows.
pub(crate) fn public_macros(code: &str) -> impl Iterator<Item = String> {
    code.split("macro_rules! ").skip(1).filter_map(|rest| {
        let (name, _) = rest.split_once('{')?;
        let body = &rest[name.len()..=name.len() + closing(&rest[name.len()..])?];
        body.contains("pub ").then(|| name.trim().to_owned())
    })
}

struct Lines<'a> {
    macros: &'a BTreeSet<String>,
    lines: Vec<String>,
}

impl Lines<'_> {
    fn push(&mut self, line: String) {
        self.lines.push(line);
    }

    /// Adds the items that a macro declares for each of its invocations.
    fn made(&mut self, name: &str, body: &str) {
        if self.macros.contains(name) {
            let heads = body.split("pub ").skip(1).filter_map(|rest| rest.split(['{', ';']).next());
            let items = ["fn ", "const ", "struct ", "enum ", "unsafe "];
            let heads = heads.filter(|head| items.iter().any(|item| head.starts_with(item)));
            self.lines.extend(heads.map(|head| format!("{name}! makes {}", tidied(head))));
        }
    }

    /// Adds the arguments of an invocation: a line for each part.
    fn invoked(&mut self, name: &str, arguments: &str, body: &str) {
        let (of, each) = body.rsplit_once('{').unwrap_or((arguments, body));
        let (of, each) = (tidied(of), each.trim_end().trim_end_matches('}'));
        let each = each.split([';', ',']).map(tidied).filter(|part| !part.is_empty());
        let before = self.lines.len();
        self.lines.extend(each.map(|part| format!("{name}! {of}: {part}")));
        if self.lines.len() == before {
            self.lines.push(format!("{name}! {of}"));
        }
    }
}

/// Attributes that are part of an item's promise.
const PROMISES: [&str; 6] =
    ["derive(", "deprecated", "macro_export", "must_use", "non_exhaustive", "repr("];

/// Adds the items in a body, each behind `within`. If `all` is true, they are public without `pub`,
/// like those of a trait.
fn members(code: &str, within: &str, all: bool, lines: &mut Lines<'_>) {
    let mut rest = code;
    while let Some(item) = Item::first(rest) {
        rest = item.rest;
        if item.attributes.iter().any(|a| a.contains("doc(hidden)") || of_models(a)) {
            continue;
        }
        item.say(within, all, lines);
    }
}

/// Returns true for an attribute that restricts an item to models or tests.
fn of_models(attribute: &str) -> bool {
    let words = |word: &str| {
        attribute.split(|c: char| !c.is_alphanumeric() && c != '_').any(|part| part == word)
    };
    attribute.starts_with("#[cfg(")
        && !words("not")
        && ["loom", "shuttle", "sim", "test", "doctest"].into_iter().any(words)
}

struct Item<'a> {
    attributes: Vec<String>,
    /// Text up to its body or its end.
    head: String,
    /// Text between its braces, if it has a body.
    body: Option<&'a str>,
    rest: &'a str,
}

impl<'a> Item<'a> {
    fn first(code: &'a str) -> Option<Item<'a>> {
        let mut rest = code.trim_start();
        let mut attributes = Vec::new();
        while rest.starts_with("#[") || rest.starts_with("#![") {
            let from = rest.find('[')?;
            let end = from + closing(&rest[from..])? + 1;
            attributes.push(tidied(&rest[..end]));
            rest = rest[end..].trim_start();
        }
        if rest.is_empty() {
            return None;
        }
        // A constant, and an import, may have braces before its end.
        let to_semicolon = ["const ", "static ", "use ", "type "].iter().any(|word| {
            let said = rest.strip_prefix("pub ").unwrap_or(rest);
            said.starts_with(word)
                && !said.starts_with("const fn")
                && !said.starts_with("const unsafe")
        });
        let mut depth = 0usize;
        for (at, c) in rest.char_indices() {
            match c {
                '{' if depth == 0 && !to_semicolon => {
                    let end = at + closing(&rest[at..])?;
                    let (head, body) = (tidied(&rest[..at]), Some(&rest[at + 1..end]));
                    return Some(Item { attributes, head, body, rest: &rest[end + 1..] });
                }
                '(' | '[' | '{' => depth += 1,
                ')' | ']' | '}' => depth = depth.saturating_sub(1),
                ';' if depth == 0 => {
                    let head = tidied(&rest[..at]);
                    return Some(Item { attributes, head, body: None, rest: &rest[at + 1..] });
                }
                _ => {}
            }
        }
        None
    }

    fn say(self, within: &str, all: bool, lines: &mut Lines<'_>) {
        let Item { attributes, head, body, .. } = self;
        let kept = attributes.iter().filter(|a| PROMISES.iter().any(|p| a[2..].starts_with(p)));
        let promises: String = kept.map(|a| format!("{a} ")).collect();
        let body = body.unwrap_or_default();
        if head.starts_with("impl") {
            let is_of_trait =
                head.split(" where ").next().is_some_and(|head| head.contains(" for "));
            if !is_of_trait {
                return members(body, &format!("{head}: "), false, lines);
            }
            let mut rest = body;
            while let Some(item) = Item::first(rest) {
                rest = item.rest;
                if item.head.starts_with("type ") {
                    lines.push(format!("{head}: {}", item.head));
                }
            }
            return lines.push(head);
        }
        if promises.contains("macro_export") {
            return lines.push(format!("{within}{promises}{head}"));
        }
        if let Some(name) = head.strip_prefix("macro_rules! ") {
            return lines.made(name, body);
        }
        let is_name = |name: &str| name.chars().all(|c| c.is_alphanumeric() || "_:".contains(c));
        if let Some((name, arguments)) = head.split_once('!').filter(|(name, _)| is_name(name)) {
            return match lines.macros.contains(name) {
                true => lines.invoked(name, arguments, body),
                // A macro declares its arguments.
                false => members(body, within, all, lines),
            };
        }
        let Some(said) = head.strip_prefix("pub ").or_else(|| all.then_some(&*head)) else {
            return;
        };
        let mut words = said.split(' ').filter(|word| !["unsafe", "auto"].contains(word));
        match words.next() {
            Some("mod") => {
                let name = words.next().unwrap_or_default();
                lines.push(format!("{within}mod {name}"));
                members(body, &format!("{within}{name}::"), false, lines);
            }
            Some("use") => {
                imported(&said["use ".len()..])
                    .for_each(|name| lines.push(format!("{within}use {name}")));
            }
            Some("trait") => {
                lines.push(format!("{within}{promises}{said}"));
                let name = named(words.next());
                members(body, &format!("trait {name}: "), true, lines);
            }
            Some(kind @ ("struct" | "enum" | "union")) => {
                lines.push(format!("{within}{promises}{}", fields_hidden(said)));
                let name = named(words.next());
                for part in parts(body) {
                    let part = format!("{part};");
                    let Some(Item { head, body, .. }) = Item::first(&part) else { continue };
                    let part = match body {
                        Some(fields) => format!("{head} {{ {} }}", tidied(fields)),
                        None if head.is_empty() => continue,
                        None => head,
                    };
                    match part.strip_prefix("pub ").or_else(|| (kind == "enum").then_some(&*part)) {
                        Some(part) => lines.push(format!("{kind} {name}: {part}")),
                        None if part.starts_with("pub(") || kind != "enum" => {
                            lines.push(format!("{kind} {name}: private fields"));
                        }
                        None => {}
                    }
                }
            }
            // A value is no promise.
            Some("const" | "static") if !said.contains(" fn ") => {
                let declared = said.split(" = ").next().unwrap_or(said);
                lines.push(format!("{within}{promises}{declared}"));
            }
            Some(_) => {
                let provided = if all && !body.is_empty() { " { .. }" } else { "" };
                lines.push(format!("{within}{promises}{said}{provided}"));
            }
            None => {}
        }
    }
}

fn named(word: Option<&str>) -> &str {
    word.unwrap_or_default().split(['<', '(', ':']).next().unwrap_or_default()
}

/// Hides the private fields of a tuple, except that they are there.
fn fields_hidden(said: &str) -> String {
    let Some((before, fields)) = said.split_once('(').filter(|_| said.starts_with("struct "))
    else {
        return said.to_owned();
    };
    let fields = parts(fields.rsplit_once(')').map_or(fields, |(inside, _)| inside));
    let shown: Vec<&str> =
        fields.iter().map(|f| f.trim().strip_prefix("pub ").unwrap_or("_")).collect();
    format!("{before}({})", shown.join(", "))
}

/// Returns the names that an import brings.
fn imported(tree: &str) -> impl Iterator<Item = String> {
    let names = match tree.split_once('{') {
        Some((_, inside)) => {
            let inside = inside.rsplit_once('}').map_or(inside, |(inside, _)| inside);
            parts(inside)
                .into_iter()
                .flat_map(|part| imported(part.trim()).collect::<Vec<_>>())
                .collect()
        }
        None => vec![tree.rsplit("::").next().unwrap_or(tree).trim().to_owned()],
    };
    names.into_iter().filter(|name| !name.is_empty())
}

/// Splits a list at its commas outside of all brackets. An arrow's tip closes nothing.
fn parts(list: &str) -> Vec<&str> {
    let (mut found, mut from, mut depth, mut before) = (Vec::new(), 0, 0usize, ' ');
    for (at, c) in list.char_indices() {
        match c {
            '(' | '[' | '{' | '<' => depth += 1,
            '>' if before == '-' || before == '=' => {}
            ')' | ']' | '}' | '>' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                found.push(&list[from..at]);
                from = at + 1;
            }
            _ => {}
        }
        before = c;
    }
    found.push(&list[from..]);
    found
}

/// Returns the place where the text's first bracket is closed.
fn closing(text: &str) -> Option<usize> {
    let mut depth = 0usize;
    for (at, c) in text.char_indices() {
        match c {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => {
                depth -= 1;
                if depth == 0 {
                    return Some(at);
                }
            }
            _ => {}
        }
    }
    None
}

/// Returns code as it would stand on one line.
fn tidied(code: &str) -> String {
    let words: Vec<&str> = code.split_whitespace().collect();
    let mut line = words.join(" ");
    for (from, to) in
        [("( ", "("), (" )", ")"), ("[ ", "["), (" ]", "]"), (",)", ")"), (",]", "]"), (",>", ">")]
    {
        line = line.replace(from, to);
    }
    // A comparison, which has blanks on both sides, stands in no declaration. `mut` inside is no
    // promise.
    for (from, to) in
        [("< ", "<"), (" >", ">"), (",>", ">"), (" .", "."), ("(mut ", "("), (", mut ", ", ")]
    {
        line = line.replace(from, to);
    }
    let line = line.replace("->", " -> ").split_whitespace().collect::<Vec<_>>().join(" ");
    line.trim_end_matches(',').to_owned()
}
