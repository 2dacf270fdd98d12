//! The rule of guard letters: the comment of each field that several threads can reach names its
//! guard.
//!
//! `I:` immutable after construction, `A:` atomic, `L:` guarded by a lock or the lock itself, `O:`
//! its owner thread only, `P:` the holder of the named state bit. See CONTRIBUTING.md.

use crate::files::SourceFile;
use crate::lexer::words;
use crate::{Finding, hold, lines_found};

const LETTERS: [char; 5] = ['I', 'A', 'L', 'O', 'P'];

/// Wrappers of a single field: the type's own documentation tells everything.
const WRAPPERS: [&str; 3] = [
    "crates/sync/src/facade/real/mod.rs",
    "crates/sync/src/facade/shuttle/mod.rs",
    "crates/sync/src/facade/lock.rs",
];

fn is_shared(type_text: &str) -> bool {
    words(type_text).any(|word| {
        ["Mutex", "RwLock", "Condvar", "UnsafeCell"].contains(&word)
            || word
                .strip_prefix("Atomic")
                .is_some_and(|rest| rest.starts_with(['U', 'I', 'B', 'P']))
    })
}

/// Returns true for `/// A: …`: the letter, a colon, and a text.
fn has_letter(comment: &str) -> bool {
    let Some(said) = comment.trim().strip_prefix("/// ") else { return false };
    said.starts_with(LETTERS) && said[1..].strip_prefix(": ").is_some_and(|s| !s.trim().is_empty())
}

/// A field that is declared in a `struct`.
struct Field {
    /// Line on which it begins, from 0.
    line: usize,
    type_text: String,
    /// First line of its documentation.
    doc: Option<String>,
}

/// Returns the fields of every struct in the product code of a file. A field of a tuple struct
/// without documentation takes the struct's as `doc`.
fn fields(file: &SourceFile) -> Vec<Field> {
    let mut fields = Vec::new();
    let mut i = 0;
    while i < file.lines.len() {
        let code = file.lines[i].code.trim_start();
        let declares = !file.is_test[i]
            && (code.starts_with("struct ")
                || code.starts_with("pub") && code.contains(" struct "));
        if declares {
            let struct_doc = first_doc_line(file, i);
            i = read_struct(file, i, struct_doc, &mut fields);
        }
        i += 1;
    }
    fields
}

/// Reads the body that begins on line `i` or later; returns the line on which it ends.
fn read_struct(
    file: &SourceFile,
    mut i: usize,
    struct_doc: Option<String>,
    fields: &mut Vec<Field>,
) -> usize {
    let mut depth = 0i32;
    let mut angles = 0i32;
    let mut tuple = false;
    let mut current: Option<Field> = None;
    let mut doc: Option<String> = None;
    loop {
        let Some(line) = file.lines.get(i) else { return i };
        let comment = line.comment.trim();
        if depth == 1 && current.is_none() && doc.is_none() && comment.starts_with("///") {
            doc = Some(comment.to_owned());
        }
        let mut previous = ' ';
        for c in line.code.chars() {
            let arrow = c == '>' && previous == '-';
            previous = c;
            match c {
                '<' => angles += 1,
                '>' if !arrow => angles -= 1,
                // This is before the body: bounds in angles hold parentheses, and so may `where`.
                '(' if depth == 0 && angles == 0 && !tuple => {
                    (depth, tuple) = (1, true);
                    continue;
                }
                '{' if depth == 0 => {
                    depth = 1;
                    continue;
                }
                '(' | '{' | '[' if depth > 0 => depth += 1,
                ')' | '}' | ']' if depth > 0 => depth -= 1,
                ';' if depth == 0 => return i,
                _ => {}
            }
            let ends = depth == 0 && matches!(c, ')' | '}');
            if ends || depth == 1 && angles == 0 && c == ',' {
                finish(&mut current, &mut doc, tuple, struct_doc.as_ref(), fields);
                if ends {
                    return i;
                }
                continue;
            }
            if depth >= 1 && (current.is_some() || !c.is_whitespace()) {
                let field = current.get_or_insert_with(|| Field {
                    line: i,
                    type_text: String::new(),
                    doc: doc.take(),
                });
                field.type_text.push(c);
            }
        }
        if let Some(field) = &mut current {
            field.type_text.push(' ');
        }
        i += 1;
    }
}

fn finish(
    current: &mut Option<Field>,
    doc: &mut Option<String>,
    tuple: bool,
    struct_doc: Option<&String>,
    fields: &mut Vec<Field>,
) {
    *doc = None;
    if let Some(mut field) = current.take() {
        // The text before the colon is attributes, visibility and name.
        if !tuple && let Some((_, type_text)) = split_name(&field.type_text) {
            field.type_text = type_text;
        }
        if tuple {
            field.doc = field.doc.or_else(|| struct_doc.cloned());
        }
        fields.push(field);
    }
}

/// Splits `pub name: Type` at its first single colon.
fn split_name(text: &str) -> Option<(String, String)> {
    let bytes = text.as_bytes();
    let single = |i: &usize| {
        bytes[*i] == b':' && bytes.get(i + 1) != Some(&b':') && (*i == 0 || bytes[i - 1] != b':')
    };
    let at = (0..bytes.len()).find(single)?;
    Some((text[..at].to_owned(), text[at + 1..].to_owned()))
}

/// Returns the first line of the documentation above line `i`.
fn first_doc_line(file: &SourceFile, i: usize) -> Option<String> {
    let above = file.lines[..i].iter().rev();
    let block = above.take_while(|l| l.is_comment() || l.code.trim_start().starts_with("#["));
    block.filter(|l| l.comment.starts_with("///")).last().map(|l| l.comment.clone())
}

fn guard_letters(file: &SourceFile) -> Vec<Finding> {
    if file.product_crate().is_none() || WRAPPERS.contains(&file.path.as_str()) {
        return Vec::new();
    }
    fields(file)
        .into_iter()
        .filter(|field| is_shared(&field.type_text))
        .filter(|field| !field.doc.as_deref().is_some_and(has_letter))
        .map(|field| {
            let shown: String = field.type_text.split_whitespace().collect::<Vec<_>>().join(" ");
            file.finding(
                field.line + 1,
                format!("the field of type `{shown}` says not what guards it (`/// A: …`)"),
            )
        })
        .collect()
}

#[test]
fn each_shared_field_says_what_guards_it() {
    hold(guard_letters);
}

#[test]
fn the_rule_sees_the_shared_fields_of_the_project_and_its_exemptions_exist() {
    let files = crate::files::committed();
    let shared = files
        .iter()
        .filter(|file| file.product_crate().is_some())
        .flat_map(fields)
        .filter(|field| is_shared(&field.type_text))
        .count();
    assert!(shared > 20, "only {shared} fields were recognised as shared");
    for wrapper in WRAPPERS {
        let file = files.iter().find(|file| file.path == wrapper).expect(wrapper);
        assert!(
            fields(file).iter().any(|f| is_shared(&f.type_text)),
            "{wrapper} needs no exemption"
        );
    }
}

fn found(text: &str) -> Vec<usize> {
    lines_found(guard_letters, "crates/x/src/a.rs", text)
}

#[test]
fn a_shared_field_without_a_letter_is_found() {
    let text = "\
struct S {
    /// A: counts.
    a: AtomicU32,
    /// Counts.
    b: CachePadded<AtomicUsize>,
    c: Mutex<u8>,
    /// L: the lock. It guards `e`.
    d: Mutex<HashMap<u32, Vec<u8>>>,
    /// X: no such letter.
    pub(crate) e: corewise_sync::cell::UnsafeCell<u8>,
    f: Arc<RwLock<u8>>, g: Condvar,
}
";
    assert_eq!(found(text), [5, 6, 10, 11, 11]);
}

#[test]
fn fields_that_nothing_is_shared_through_need_no_letter() {
    let text = "\
struct S<T: Fn(u8) -> u8> where T: Send {
    a: u32,
    b: AtomicSection,
    c: MutexGuard<'static, u8>,
    // Mutex<u8>
    d: Box<dyn Fn(u8, u8) -> Vec<u8>>,
}
struct U;
fn f(a: AtomicU32) {}
";
    assert_eq!(found(text), Vec::<usize>::new());
}

#[test]
fn fields_after_an_arrow_or_a_unit_struct_are_still_read() {
    let text = "\
struct U;
pub struct S<T> {
    /// A closure.
    f: Box<dyn Fn(u8) -> Option<T>>,
    #[allow(unused)]
    a: AtomicBool,
}
";
    assert_eq!(found(text), [5]);
}

#[test]
fn tuple_structs_may_say_it_at_the_struct() {
    assert_eq!(found("struct A(AtomicU32);\n"), [1]);
    assert_eq!(found("/// A word.\npub struct A(u8, pub Mutex<u8>);\n"), [2]);
    assert!(found("/// A: a word.\npub struct A(AtomicU32);\n").is_empty());
    assert!(found("struct A(\n    /// L: guards the list.\n    Mutex<u8>,\n);\n").is_empty());
}

#[test]
fn test_code_needs_no_letters() {
    assert!(found("#[cfg(test)]\nmod tests {\n    struct A { a: AtomicU32 }\n}\n").is_empty());
    assert!(
        lines_found(guard_letters, "crates/x/tests/a.rs", "struct A { a: Mutex<u8> }\n").is_empty()
    );
}
