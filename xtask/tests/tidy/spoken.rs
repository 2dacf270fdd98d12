//! Messages for people: no name of a variant or a field reaches them by `Debug`.

use crate::files::SourceFile;
use crate::{Finding, hold, lines_found};

/// Crates without messages for people: the simulator and its helpers are tools of the project.
const NOT_SPOKEN: [&str; 3] = ["sim", "simulate", "costs"];

/// Macros whose text appears only after a bug.
const BUGS: [&str; 9] = [
    "assert!(",
    "assert_eq!(",
    "assert_ne!(",
    "debug_assert!(",
    "debug_assert_eq!(",
    "panic!(",
    "unreachable!(",
    "expect(",
    "println!(",
];

/// Returns true if a format string shows a value by `Debug`.
fn shows_debug(text: &str) -> bool {
    let pieces = text.split('{').skip(1);
    let mut specs = pieces.filter_map(|piece| piece.split_once('}')).map(|(spec, _)| spec);
    // Only a length of time, or a number, is shown with that many digits.
    specs.any(|spec| {
        spec.split_once(':').is_some_and(|(_, how)| how.ends_with('?') && !how.contains('.'))
    })
}

/// Returns true if a line of code has a field of a log line that is shown by `Debug`: `?name`,
/// which isn't the operator behind a value, nor `?Sized`.
fn has_debug_field(code: &str) -> bool {
    code.match_indices('?').any(|(at, _)| {
        let before = code[..at].trim_end().chars().next_back();
        let parted = code[..at].ends_with([' ', '(']) || at == 0;
        let after = code[at + 1..].chars().next();
        parted
            && before.is_none_or(|c| matches!(c, '(' | ',' | '=' | '%'))
            && after.is_some_and(|c| c.is_ascii_lowercase() || c == '_' || c == '&')
    })
}

/// Returns true if the statement of a line is one of the macros for bugs.
fn is_for_bugs(file: &SourceFile, i: usize) -> bool {
    for k in (0..=i).rev() {
        let code = file.lines[k].code.as_str();
        if BUGS.iter().any(|word| code.contains(word)) {
            return true;
        }
        // The end of another statement.
        if k < i && code.trim_end().ends_with([';', '}', '{']) {
            return false;
        }
    }
    false
}

/// Returns true if the line is in an implementation of `Debug`.
fn is_in_debug(file: &SourceFile, i: usize) -> bool {
    let indent = |code: &str| code.len() - code.trim_start().len();
    let mut least = indent(&file.lines[i].code);
    for line in file.lines[..i].iter().rev().filter(|line| line.is_code()) {
        let its = indent(&line.code);
        if its < least {
            least = its;
            if line.code.contains("Debug for ") {
                return true;
            }
        }
    }
    false
}

/// Returns true if a comment on the line, or directly above its statement, gives the reason:
/// `// Debug: a length of time.`
fn is_argued(file: &SourceFile, i: usize) -> bool {
    for k in (0..=i).rev() {
        let line = &file.lines[k];
        if k < i && line.code.trim_end().ends_with([';', '}']) {
            return false;
        }
        if line.comment.contains("Debug:") {
            return true;
        }
    }
    false
}

fn debug_in_messages(file: &SourceFile) -> Vec<Finding> {
    let Some(name) = file.product_crate() else { return Vec::new() };
    // The folder of a model for tests alone.
    if NOT_SPOKEN.contains(&name) || file.path.contains("/mirror/crashes/") {
        return Vec::new();
    }
    let shown = file.literals.iter().filter(|literal| shows_debug(&literal.text));
    let fields = file.product_lines().filter(|(_, line)| has_debug_field(&line.code));
    let mut lines: Vec<usize> =
        shown.map(|literal| literal.line).chain(fields.map(|(number, _)| number)).collect();
    lines.sort_unstable();
    lines.dedup();
    lines
        .into_iter()
        .filter(|number| !file.is_test[number - 1])
        .filter(|number| {
            let i = number - 1;
            !is_for_bugs(file, i) && !is_in_debug(file, i) && !is_argued(file, i)
        })
        .map(|number| {
            let what = "a message shows something by `Debug`: write words, or say what is shown (`// Debug: …`)";
            file.finding(number, what)
        })
        .collect()
}

#[test]
fn no_name_of_rust_reaches_a_person() {
    hold(debug_in_messages);
}

#[test]
fn debug_in_messages_can_fail() {
    let found = |text: &str| lines_found(debug_in_messages, "crates/nbd/src/a.rs", text);
    assert_eq!(found("fn f() {\n    format!(\"it said {error:?}\");\n}\n"), [2]);
    assert_eq!(found("write!(f, \"a {:#?} b\", x)\n"), [1]);
    assert_eq!(found("write!(f, \"a {0:>8?} b\", x)\n"), [1]);
    assert_eq!(found("format!(\n    \"a {} \\\n     {b:?}\"\n)\n"), [2]);
    assert_eq!(found("tracing::warn!(client, ?error, \"it left\");\n"), [1]);
    assert_eq!(found("tracing::warn!(\n    error = ?why,\n    \"it left\"\n);\n"), [2]);
    assert_eq!(found("let a = \"{{:?}}\"; // Debug: a.\nformat!(\"{a:?}\")\n"), [2]);
    assert!(found("// Debug: a length of time.\nformat!(\"{time:?}\")\n").is_empty());
    assert!(found("tracing::warn!(\n    // Debug: a time.\n    ?time, \"late\"\n);\n").is_empty());
    assert!(found("fn f<T: ?Sized>(t: &T) -> R { let a = g(t)?; h(a)?.b() }\n").is_empty());
    assert!(found("write!(f, \"for {time:.1?}\")\n").is_empty());
    assert!(found("assert!(\n    a,\n    \"{a:?}\"\n);\npanic!(\"{b:?}\");\n").is_empty());
    assert!(
        found(
            "impl fmt::Debug for A {\n    fn fmt() {\n        write!(f, \"{:?}\", x)\n    }\n}\n"
        )
        .is_empty()
    );
    assert!(found("#[cfg(test)]\nmod tests {\n    fn f() { format!(\"{a:?}\") }\n}\n").is_empty());
    assert!(
        lines_found(debug_in_messages, "crates/nbd/tests/a.rs", "format!(\"{a:?}\")\n").is_empty()
    );
    assert!(lines_found(debug_in_messages, "lab/sim/src/a.rs", "format!(\"{a:?}\")\n").is_empty());
}
