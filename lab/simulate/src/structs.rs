//! The structs of a crate's sources: their fields, and the results of methods.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// The fields of a struct, each with the names in its type.
pub(crate) type Fields = BTreeMap<String, Vec<String>>;

/// The declarations of a crate.
#[derive(Debug, Default)]
pub(crate) struct Structs {
    pub(crate) fields: HashMap<String, Fields>,
    /// Names in the type of a function's or method's result, by type (empty for any) and name.
    results: HashMap<(String, String), Vec<String>>,
}

impl Structs {
    /// Reads all sources below a folder. Unreadable files are left out.
    pub(crate) fn of(folder: &Path) -> Structs {
        let mut structs = Structs::default();
        structs.read(folder);
        structs.keep_known();
        structs
    }

    #[cfg(test)]
    pub(crate) fn of_source(source: &str) -> Structs {
        let mut structs = Structs::default();
        structs.declared(source.parse().expect("it can be read"), "");
        structs.keep_known();
        structs
    }

    /// Returns the result of a function, or of a method of one of these types. An unknown result is
    /// empty.
    pub(crate) fn result(&self, of: &[String], name: &str) -> &[String] {
        let any = [String::new()];
        let mut found =
            of.iter().chain(&any).filter_map(|of| self.results.get(&(of.clone(), name.to_owned())));
        found.next().map_or(&[], Vec::as_slice)
    }

    /// Returns the struct with a field of this name, if there is only one.
    pub(crate) fn only(&self, field: &str) -> Option<(String, &Vec<String>)> {
        let mut having =
            self.fields.iter().filter_map(|(of, fields)| Some((of, fields.get(field)?)));
        let (of, types) = having.next()?;
        having.next().is_none().then(|| (of.clone(), types))
    }

    fn read(&mut self, folder: &Path) {
        let Ok(entries) = std::fs::read_dir(folder) else { return };
        let mut paths: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
        paths.sort();
        for path in paths {
            if path.is_dir() {
                self.read(&path);
            } else if path.extension().is_some_and(|ending| ending == "rs") {
                let source = std::fs::read_to_string(&path);
                if let Some(Ok(tokens)) = source.ok().map(|source| source.parse()) {
                    self.declared(tokens, "");
                }
            }
        }
    }

    fn declared(&mut self, tokens: TokenStream, of: &str) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        for (index, token) in tokens.iter().enumerate() {
            match token {
                TokenTree::Ident(word) if word == "struct" => {
                    self.declared_struct(&tokens[index + 1..]);
                }
                TokenTree::Ident(word) if word == "fn" => self.function(&tokens[index + 1..], of),
                TokenTree::Group(group) if group.delimiter() == Delimiter::Brace => {
                    let inner = implemented(item(&tokens[..index]));
                    self.declared(group.stream(), inner.as_deref().unwrap_or(of));
                }
                _ => {}
            }
        }
    }

    fn declared_struct(&mut self, rest: &[TokenTree]) {
        let Some(TokenTree::Ident(name)) = rest.first() else { return };
        for token in rest {
            match token {
                TokenTree::Group(group) if group.delimiter() != Delimiter::Bracket => {
                    let named = group.delimiter() == Delimiter::Brace;
                    // Two structs of one name, in two modules, count as one.
                    let known = self.fields.entry(name.to_string()).or_default();
                    known.extend(fields(group.stream(), named));
                    return;
                }
                TokenTree::Punct(punct) if punct.as_char() == ';' => return,
                _ => {}
            }
        }
    }

    fn function(&mut self, rest: &[TokenTree], of: &str) {
        let Some(TokenTree::Ident(name)) = rest.first() else { return };
        let given = rest.iter().position(
            |token| matches!(token, TokenTree::Group(group) if group.delimiter() == Delimiter::Parenthesis),
        );
        let Some(given) = given else { return };
        let until = |token: &&TokenTree| match token {
            TokenTree::Group(group) => group.delimiter() != Delimiter::Brace,
            TokenTree::Ident(word) => word != "where",
            TokenTree::Punct(punct) => punct.as_char() != ';',
            TokenTree::Literal(_) => true,
        };
        let types = idents(rest[given + 1..].iter().take_while(until).cloned());
        // If two functions of a name have different results, neither is known.
        for of in [of, ""] {
            let key = (of.to_owned(), name.to_string());
            let known = self.results.entry(key).or_insert_with(|| types.clone());
            if *known != types {
                known.clear();
            }
        }
    }

    /// Removes names that aren't a struct's.
    fn keep_known(&mut self) {
        let names: Vec<String> = self.fields.keys().cloned().collect();
        let known = |types: &mut Vec<String>| types.retain(|name| names.contains(name));
        self.results.values_mut().for_each(known);
        self.fields.values_mut().for_each(|fields| fields.values_mut().for_each(known));
    }
}

/// Returns the tokens of the item whose body comes next.
pub(crate) fn item(before: &[TokenTree]) -> &[TokenTree] {
    let ends = |token: &TokenTree| match token {
        TokenTree::Group(group) => group.delimiter() == Delimiter::Brace,
        TokenTree::Punct(punct) => punct.as_char() == ';',
        _ => false,
    };
    &before[before.iter().rposition(ends).map_or(0, |end| end + 1)..]
}

/// Returns the type of an `impl`, or the name of a trait.
pub(crate) fn implemented(item: &[TokenTree]) -> Option<String> {
    let begin = item.iter().position(|token| is(token, "impl") || is(token, "trait"))?;
    if item.iter().any(|token| is(token, "fn")) {
        return None;
    }
    let mut depth = 0_i32;
    let mut last = None;
    let mut minus = false;
    for token in &item[begin + 1..] {
        match token {
            TokenTree::Punct(punct) => match punct.as_char() {
                '<' => depth += 1,
                '>' if !minus => depth -= 1,
                // The bounds of a trait begin here.
                ':' if depth == 0 && punct.spacing() == proc_macro2::Spacing::Alone => break,
                _ => {}
            },
            TokenTree::Ident(_) if is(token, "where") => break,
            TokenTree::Ident(ident) if depth == 0 && !is(token, "for") => {
                last = Some(ident.to_string());
            }
            _ => {}
        }
        minus = matches!(token, TokenTree::Punct(punct) if punct.as_char() == '-');
    }
    last
}

pub(crate) fn is(token: &TokenTree, word: &str) -> bool {
    matches!(token, TokenTree::Ident(ident) if ident == word)
}

/// Returns all names among some tokens, including those in groups.
pub(crate) fn idents(tokens: impl IntoIterator<Item = TokenTree>) -> Vec<String> {
    let mut names = Vec::new();
    for token in tokens {
        match token {
            TokenTree::Ident(ident) => names.push(ident.to_string()),
            TokenTree::Group(group) => names.extend(idents(group.stream())),
            _ => {}
        }
    }
    names
}

fn fields(body: TokenStream, named: bool) -> Fields {
    let mut fields = Fields::new();
    let (mut depth, mut part, mut number) = (0_i32, Vec::new(), 0);
    let mut minus = false;
    let comma = std::iter::once(TokenTree::Punct(proc_macro2::Punct::new(
        ',',
        proc_macro2::Spacing::Alone,
    )));
    for token in body.into_iter().chain(comma) {
        if let TokenTree::Punct(punct) = &token {
            match punct.as_char() {
                '<' => depth += 1,
                '>' if !minus => depth -= 1,
                ',' if depth == 0 => {
                    let field = std::mem::take(&mut part);
                    fields.extend(field_of(&field, (!named).then_some(number)));
                    number += 1;
                    continue;
                }
                _ => {}
            }
            minus = punct.as_char() == '-';
        } else {
            minus = false;
        }
        part.push(token);
    }
    fields
}

/// Returns the name and the types of a field. A field without a name has this `number`.
fn field_of(tokens: &[TokenTree], number: Option<usize>) -> Option<(String, Vec<String>)> {
    if let Some(number) = number {
        return (!tokens.is_empty()).then(|| (number.to_string(), idents(tokens.to_vec())));
    }
    let colon = tokens
        .iter()
        .position(|token| matches!(token, TokenTree::Punct(punct) if punct.as_char() == ':'))?;
    let TokenTree::Ident(name) = tokens.get(colon.checked_sub(1)?)? else { return None };
    Some((name.to_string(), idents(tokens[colon + 1..].to_vec())))
}
