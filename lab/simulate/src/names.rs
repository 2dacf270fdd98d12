//! The type and field that an access in the code touches, read from the source.
//!
//! A place is the file, line and column of an access. It is the name of a method, as in
//! `self.lane.listed.load(…)`, or a call of a function with the field, as in
//! `hint::reads(&self.function)`. The field is the last one before the method, or the argument. Its
//! type is the struct that has it, found along the chain from `self`, a `let`, a parameter or a
//! method's result. If that fails, it is the only struct of the crate with a field of that name.
//! Else the name of the place is `file:line`.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use corewise_sim::from_root;
use proc_macro2::{Delimiter, LineColumn, TokenStream, TokenTree};

use crate::structs::{Fields, Structs, idents, implemented, is, item};

/// Names of places.
#[derive(Debug, Default)]
pub(crate) struct Names {
    files: HashMap<PathBuf, Option<TokenStream>>,
    structs: HashMap<PathBuf, Structs>,
}

/// The surroundings of a place in the source.
#[derive(Debug, Default, Clone)]
struct Around {
    /// The type of the `impl` around it.
    of: Option<String>,
    /// The tokens of the function around it, from its parameters on.
    function: Vec<TokenTree>,
}

/// A part of an expression such as `self.lanes[3].list()`.
#[derive(Debug, Clone, PartialEq)]
enum Part {
    Name(String),
    Call(String),
}

/// The possible types of an expression.
#[derive(Debug, Clone, Default)]
struct Resolved {
    /// The struct and its field that it names last.
    field: Option<(String, String)>,
    /// Structs that may be the expression's type.
    types: Vec<String>,
}

/// Depth to which `let`s are followed.
const DEPTH: usize = 4;

impl Names {
    /// Returns `crate::Type.field` for a place: a file, relative to the root of the workspace, and
    /// line and column, which begin with 1.
    pub(crate) fn of(&mut self, root: &Path, file: &str, line: u32, column: u32) -> Option<String> {
        let short = from_root(file)?;
        let mut folders = short.split('/');
        let (parent, name) = (folders.next()?, folders.next()?);
        let source = root.join(parent).join(name).join("src");
        let tokens = self.tokens(&root.join(short))?;
        let at = LineColumn { line: line as usize, column: (column as usize).checked_sub(1)? };
        let structs = self.structs.entry(source).or_insert_with_key(|source| Structs::of(source));
        Some(format!("{name}::{}", field_at(&tokens, at, structs)?))
    }

    fn tokens(&mut self, path: &Path) -> Option<TokenStream> {
        let read = |path: &PathBuf| std::fs::read_to_string(path).ok()?.parse().ok();
        self.files.entry(path.to_owned()).or_insert_with_key(read).clone()
    }
}

/// Returns `Type.field`, or the name of a static, for the access at a position.
fn field_at(tokens: &TokenStream, at: LineColumn, structs: &Structs) -> Option<String> {
    let (level, index, around) = find(tokens.clone(), at, &Around::default())?;
    let before = &level[..index];
    let parts = match before.last() {
        Some(TokenTree::Punct(dot)) if dot.as_char() == '.' => chain(&before[..index - 1]),
        // The place is a call of a function. Its argument has the field.
        _ => {
            let given = level[index..].iter().find_map(|token| match token {
                TokenTree::Group(group) => Some(group.stream()),
                _ => None,
            })?;
            let until =
                |token: &TokenTree| !matches!(token, TokenTree::Punct(p) if p.as_char() == ',');
            chain(&given.into_iter().take_while(until).collect::<Vec<_>>())
        }
    };
    if let [Part::Name(name)] = &parts[..] {
        if name.chars().all(|c| c.is_uppercase() || c == '_' || c.is_numeric()) {
            return Some(name.clone());
        }
    }
    let Resolved { field, types } = resolve(&parts, &around, structs, DEPTH);
    match field {
        Some((of, field)) => Some(format!("{of}.{field}")),
        None => types.into_iter().find(|name| structs.fields.contains_key(name)),
    }
}

/// Returns the tokens beside the one that begins at a position, its index among them, and its
/// surroundings.
fn find(
    tokens: TokenStream,
    at: LineColumn,
    around: &Around,
) -> Option<(Vec<TokenTree>, usize, Around)> {
    let level: Vec<TokenTree> = tokens.into_iter().collect();
    for (index, token) in level.iter().enumerate() {
        if let TokenTree::Group(group) = token {
            if group.span_open().start() < at && at < group.span_close().end() {
                let mut inner = around.clone();
                if group.delimiter() == Delimiter::Brace {
                    let item = item(&level[..index]);
                    if let Some(of) = implemented(item) {
                        inner.of = Some(of);
                    } else if item.iter().any(|token| is(token, "fn")) {
                        inner.function = item.to_vec();
                        inner.function.extend(group.stream());
                    }
                }
                return find(group.stream(), at, &inner);
            }
        }
        if token.span().start() == at {
            return Some((level, index, around.clone()));
        }
    }
    None
}

/// Returns the parts of the expression that ends with these tokens, from its root.
fn chain(tokens: &[TokenTree]) -> Vec<Part> {
    let mut parts = Vec::new();
    let mut at = tokens.len();
    while at > 0 {
        match &tokens[at - 1] {
            TokenTree::Punct(punct) if punct.as_char() == '?' => {
                at -= 1;
                continue;
            }
            TokenTree::Group(group) if group.delimiter() == Delimiter::Bracket => {
                at -= 1;
                continue;
            }
            TokenTree::Group(group) => {
                let called = match (group.delimiter(), at.checked_sub(2).map(|name| &tokens[name]))
                {
                    (Delimiter::Parenthesis, Some(TokenTree::Ident(name))) => {
                        Some(name.to_string())
                    }
                    _ => None,
                };
                if let Some(name) = called {
                    parts.push(Part::Call(name));
                    at -= 2;
                } else {
                    // Parentheses or a block have the type of their last expression.
                    let inner: Vec<TokenTree> = group.stream().into_iter().collect();
                    parts.extend(chain(&inner).into_iter().rev());
                    break;
                }
            }
            TokenTree::Ident(name) => {
                parts.push(Part::Name(name.to_string()));
                at -= 1;
            }
            TokenTree::Literal(number) => {
                // `0.1` is one token.
                let number = number.to_string();
                parts.extend(number.rsplit('.').map(|part| Part::Name(part.to_owned())));
                at -= 1;
            }
            TokenTree::Punct(_) => break,
        }
        match at.checked_sub(1).map(|dot| &tokens[dot]) {
            Some(TokenTree::Punct(dot)) if dot.as_char() == '.' => at -= 1,
            _ => break,
        }
    }
    parts.reverse();
    parts
}

fn resolve(parts: &[Part], around: &Around, structs: &Structs, depth: usize) -> Resolved {
    let mut found = match parts.first() {
        Some(Part::Name(name)) if name == "self" => {
            Resolved { field: None, types: around.of.iter().cloned().collect() }
        }
        Some(Part::Name(name)) => local(name, around, structs, depth),
        Some(Part::Call(name)) => {
            Resolved { field: None, types: structs.result(&[], name).to_vec() }
        }
        None => return Resolved::default(),
    };
    for part in &parts[1..] {
        match part {
            Part::Name(name) => {
                let has = |of: &String| Some((of.clone(), structs.fields.get(of)?.get(name)?));
                let here = found.types.iter().find_map(has).or_else(|| structs.only(name));
                found = match here {
                    Some((of, types)) => {
                        Resolved { field: Some((of, name.clone())), types: types.clone() }
                    }
                    // The field is another crate's, or of a renamed type. The last known field
                    // counts.
                    None => Resolved { field: found.field, types: Vec::new() },
                };
            }
            Part::Call(name) => {
                // A method of the project may return another type. Other methods count as returning
                // the type of their receiver.
                let types = structs.result(&found.types, name);
                if !types.is_empty() {
                    found = Resolved { field: None, types: types.to_vec() };
                }
            }
        }
    }
    found
}

/// Returns the possible types of a local variable.
fn local(name: &str, around: &Around, structs: &Structs, depth: usize) -> Resolved {
    let unknown = || {
        structs.only(name).map_or_else(Resolved::default, |(of, types)| Resolved {
            field: Some((of, name.to_owned())),
            types: types.clone(),
        })
    };
    if depth == 0 {
        return unknown();
    }
    bound(name, &around.function, around, structs, depth).unwrap_or_else(unknown)
}

/// Finds the binding of a name among some tokens: a parameter, a `let`, a `for`, a pattern of a
/// struct.
fn bound(
    name: &str,
    tokens: &[TokenTree],
    around: &Around,
    structs: &Structs,
    depth: usize,
) -> Option<Resolved> {
    for (index, token) in tokens.iter().enumerate() {
        let inner: Vec<TokenTree> = match token {
            TokenTree::Group(group) => group.stream().into_iter().collect(),
            _ => Vec::new(),
        };
        if let Some(TokenTree::Ident(of)) = index.checked_sub(1).map(|before| &tokens[before]) {
            if let Some(fields) = named_fields(&of.to_string(), around, structs) {
                if inner.iter().any(|token| is(token, name))
                    && matches!(tokens.get(index + 1), Some(TokenTree::Punct(p)) if p.as_char() == '=')
                {
                    let (of, fields) = fields;
                    if let Some(types) = fields.get(name) {
                        let field = Some((of, name.to_owned()));
                        return Some(Resolved { field, types: types.clone() });
                    }
                }
            }
        }
        if is_closure_of(name, &inner) {
            // In `….map(|name| …)`, the name has the type of the receiver.
            let called = matches!(index.checked_sub(2).map(|dot| &tokens[dot]),
                Some(TokenTree::Punct(dot)) if dot.as_char() == '.');
            if called {
                return Some(resolve(&chain(&tokens[..index - 2]), around, structs, depth - 1));
            }
        }
        if let Some(found) = bound(name, &inner, around, structs, depth) {
            return Some(found);
        }
        if !binds(token, name) {
            continue;
        }
        let rest = &tokens[index + 1..];
        match rest.first() {
            // This is `name: Type` of a parameter or a `let`.
            Some(TokenTree::Punct(colon))
                if is(token, name)
                    && colon.as_char() == ':'
                    && !matches!(index.checked_sub(1).map(|b| &tokens[b]),
                        Some(TokenTree::Punct(p)) if p.as_char() == '.') =>
            {
                let until = |token: &TokenTree| !matches!(token, TokenTree::Punct(p) if [',', '=', ';'].contains(&p.as_char()));
                let types = rest[1..].iter().take_while(|token| until(token)).cloned();
                return Some(Resolved { field: None, types: idents(types) });
            }
            // This is `let name = …;` or `for name in … {`.
            Some(next) => {
                let is_let = index.checked_sub(1).is_some_and(|before| is(&tokens[before], "let"))
                    && matches!(next, TokenTree::Punct(p) if p.as_char() == '=');
                if is_let || is(next, "in") {
                    let until = |token: &TokenTree| match token {
                        TokenTree::Punct(punct) => punct.as_char() != ';',
                        TokenTree::Group(group) => is_let || group.delimiter() != Delimiter::Brace,
                        TokenTree::Ident(_) => !is(token, "else"),
                        TokenTree::Literal(_) => true,
                    };
                    let value: Vec<_> =
                        rest[1..].iter().take_while(|token| until(token)).cloned().collect();
                    return Some(resolve(&chain(&value), around, structs, depth - 1));
                }
            }
            None => {}
        }
    }
    None
}

/// Returns true if a pattern is this name, or a tuple with it.
fn binds(pattern: &TokenTree, name: &str) -> bool {
    match pattern {
        TokenTree::Group(group) => {
            group.delimiter() == Delimiter::Parenthesis
                && group.stream().into_iter().any(|token| is(&token, name))
        }
        _ => is(pattern, name),
    }
}

/// Returns true if the tokens are a closure's whose one argument binds this name.
fn is_closure_of(name: &str, tokens: &[TokenTree]) -> bool {
    let bar =
        |token: &TokenTree| matches!(token, TokenTree::Punct(punct) if punct.as_char() == '|');
    let mut taken =
        tokens.iter().filter(|token| !matches!(token, TokenTree::Punct(p) if p.as_char() == '&'));
    taken.next().is_some_and(bar)
        && taken.next().is_some_and(|token| binds(token, name))
        && taken.next().is_some_and(bar)
}

fn named_fields<'a>(
    of: &str,
    around: &Around,
    structs: &'a Structs,
) -> Option<(String, &'a Fields)> {
    let of = if of == "Self" { around.of.clone()? } else { of.to_owned() };
    let fields = structs.fields.get(&of)?;
    Some((of, fields))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = r#"
struct Stripe<F> { lane: CachePadded<Lane>, inbox: Inbox<Queued>, of: PhantomData<F> }
struct Lane { listed: AtomicBool, taken: AtomicU64 }
struct Held<'a, F> { stripe: &'a Stripe<F> }
struct Wrapped(AtomicU32, Lane);
struct Other { taken: AtomicU64 }
static WAY: AtomicU8 = AtomicU8::new(0);
impl<F: Fn() -> u32> Stripe<F> {
    fn lane(&self) -> &Lane { &self.lane }
    fn a(&self) { self.lane.listed.load(Relaxed); self.inbox.is_empty(); WAY.load(Relaxed); }
    fn b(other: &Lane) { other.taken.store(1, Relaxed); }
}
impl<F> Drop for Held<'_, F> {
    fn drop(&mut self) {
        let taken = &self.stripe.lane.taken;
        taken.store(1, Relaxed);
        let Stripe { inbox, lane, .. } = self.stripe;
        if true { inbox.push(lane.listed.load(Relaxed)); }
        self.stripe.lane().taken.load(Relaxed);
        hint::reads(&self.stripe.inbox);
        (self.stripe.inbox)
            .take();
    }
}
impl Wrapped {
    fn c(&self) { self.0.load(Relaxed); self.1.taken.load(Relaxed); for lane in &self.1 { lane.listed.load(Relaxed); }
        self.1.listed.iter().map(|over| over.load(Relaxed));
        for (n, each) in self.1.listed.iter().enumerate() { each.swap(1); }
        self.1.listed.iter().map(|(n, pair)| pair.load(n)); }
    fn e(&self, wrapped: &Wrapped) { wrapped.reset(); let word = unsafe { &(*wrapped).0.inner }; word.swap(0, Relaxed); }
    fn d(&self) { unknown().load(Relaxed); self.what.load(Relaxed); }
}
"#;

    /// Returns the name of the nth place with these words, which begin with the receiver's last
    /// part.
    fn name(words: &str, nth: usize) -> Option<String> {
        let tokens: TokenStream = SOURCE.parse().expect("it can be read");
        let structs = Structs::of_source(SOURCE);
        let (at, _) = SOURCE.match_indices(words).nth(nth).expect("it is there");
        let at = at + words.rfind('.').map_or(0, |dot| dot + 1);
        let line = SOURCE[..at].matches('\n').count();
        let column = at - SOURCE[..at].rfind('\n').map_or(0, |end| end + 1);
        field_at(&tokens, LineColumn { line: line + 1, column }, &structs)
    }

    #[test]
    fn a_place_is_named_by_the_struct_that_has_the_field() {
        for (words, nth, expected) in [
            ("listed.load", 0, "Lane.listed"),
            ("inbox.is_empty", 0, "Stripe.inbox"),
            ("other.taken.store", 0, "Lane.taken"),
            ("WAY.load", 0, "WAY"),
            ("taken.store", 1, "Lane.taken"),
            ("inbox.push", 0, "Stripe.inbox"),
            ("lane.listed.load", 1, "Lane.listed"),
            ("lane().taken.load", 0, "Lane.taken"),
            ("hint::reads", 0, "Stripe.inbox"),
            (".take()", 0, "Stripe.inbox"),
            ("self.0.load", 0, "Wrapped.0"),
            ("self.1.taken.load", 0, "Lane.taken"),
            ("lane.listed.load", 2, "Lane.listed"),
            ("over.load", 0, "Lane.listed"),
            ("each.swap", 0, "Lane.listed"),
            ("pair.load", 0, "Lane.listed"),
            ("wrapped.reset", 0, "Wrapped"),
            ("word.swap", 0, "Wrapped.0"),
        ] {
            assert_eq!(name(words, nth).as_deref(), Some(expected), "{words}");
        }
    }

    #[test]
    fn a_field_that_cannot_be_found_has_no_name() {
        assert_eq!(name("unknown().load", 0), None);
        assert_eq!(name("self.what.load", 0), None);
    }
}
