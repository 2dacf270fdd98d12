//! Words of comments: the documentation of a function begins with a verb, that of anything else
//! with a noun. Comments are narrow, use the terms of the field and name no commit.
#![allow(clippy::print_stdout, reason = "a run shows the present figures")]

use crate::files::{self, SourceFile};
use crate::lexer::Line;
use crate::{Finding, lines_found, report};

/// Largest share of fragments among the project's doc comments, in thousandths. It only goes down.
const MOST_FRAGMENTS: usize = 20;

/// Largest number of comment lines wider than [`WIDTH`]. It only goes down.
const MOST_WIDE: usize = 0;

/// Largest number of phrases of [`BANNED`]. It only goes down.
const MOST_BANNED: usize = 0;

/// Largest number of comments that name a commit. It only goes down.
const MOST_COMMITS: usize = 1;

/// Columns of a comment line.
const WIDTH: usize = 100;

/// First words that leave a fragment without a subject.
const LEAVE_OUT_A_NOUN: &str = " \
    so of same whether what which who whose how where when why as that those these this \
    it they for by in with without not none no to from until since while if only also else at on \
    under behind before after nothing nobody and or but there here then than such once beside like \
    between again already yet even is are has was may can must ";

/// First words that may begin a whole sentence: a clause, a comma, and the noun behind it.
const CLAUSES: &str = " \
    if when where while once until since after before without with ";

/// Words that end as a verb of the third person does, and are none.
const NO_VERBS: &str = " \
    this its less always perhaps sometimes unless as across us afterwards others ours theirs is \
    has was address process access success class bus status ";

/// Plural nouns that are verbs, too: before these words they are verbs.
const NOUNS_OR_VERBS: &str = " \
    accounts answers bits blocks boxes bytes calls clients commands copies counts days devices \
    errors events fields files flags hours items jobs leaves lines locks marks messages \
    microseconds milliseconds names nanoseconds nodes notes numbers objects owners pages pairs \
    parts pieces places queues ranges readers records replies reports requests results rows runs \
    seconds servers sets shares slots spans states steps tags tasks tests threads times tokens \
    units users uses values waiters words workers writers writes ";

/// Words before a verb's object.
const DETERMINERS: &str = " \
    the a an each every all both one two its their his any no some such what which whether how \
    this that these those itself them it everything nothing more up back out ";

/// Terms of the field's neighbours and figures of speech, each with its better word.
const BANNED: [(&str, &str); 10] = [
    ("is looked at", "verify, read or check"),
    ("are looked at", "verify, read or check"),
    ("is told of", "notify or report"),
    ("are told of", "notify or report"),
    ("asks again", "retry"),
    ("asked again", "retry"),
    ("to be had", "available, free"),
    ("formerly", "nothing: comments tell of the present code"),
    ("previously", "nothing: comments tell of the present code"),
    ("used to be", "nothing: comments tell of the present code"),
];

/// Lines of comment that follow each other.
struct Comment {
    /// The line on which it begins, from 0.
    line: usize,
    /// The slashes: `//`, `///` or `//!`.
    kind: &'static str,
    /// Its lines without the slashes, joined.
    text: String,
    /// The line behind its end, from 0.
    end: usize,
}

/// Returns the slashes of a line that is nothing but a comment, and its text.
fn comment_of(line: &Line) -> Option<(&'static str, &str)> {
    let comment = line.comment.trim();
    if !line.is_comment() || comment.starts_with("////") {
        return None;
    }
    let kinds = ["///", "//!", "//"];
    kinds.into_iter().find_map(|kind| Some((kind, comment.strip_prefix(kind)?.trim())))
}

/// Returns the comments of a file that stand on lines of their own.
fn comments(file: &SourceFile) -> Vec<Comment> {
    let mut all: Vec<Comment> = Vec::new();
    for (at, line) in file.lines.iter().enumerate() {
        let Some((kind, text)) = comment_of(line) else { continue };
        match all.last_mut() {
            Some(last) if last.end == at && last.kind == kind => {
                last.text.push(' ');
                last.text.push_str(text);
                last.end = at + 1;
            }
            _ => all.push(Comment { line: at, kind, text: text.to_owned(), end: at + 1 }),
        }
    }
    all
}

/// Returns the first line of the item below line `at`, its attributes left out.
fn item(file: &SourceFile, at: usize) -> &str {
    let mut depth = 0usize;
    for line in &file.lines[at..] {
        let code = line.code.trim();
        if depth == 0 && !code.is_empty() && !code.starts_with("#[") {
            return code;
        }
        let opened = code.matches('[').count();
        depth = (depth + opened).saturating_sub(code.matches(']').count());
    }
    ""
}

/// Returns true where a declaration begins a function.
fn is_function(code: &str) -> bool {
    const QUALIFIERS: [&str; 7] = ["pub", "default", "const", "async", "unsafe", "extern", "\"\""];
    // `pub(in crate::x)`, which has a blank.
    let visible = code.strip_prefix("pub(").and_then(|rest| rest.split_once(')'));
    let code = visible.map_or(code, |(_, rest)| rest);
    code.split_whitespace().find(|word| !QUALIFIERS.contains(word)) == Some("fn")
}

/// Returns true where a list of words that blanks part has this one.
fn has(list: &str, word: &str) -> bool {
    list.contains(&format!(" {} ", word.to_lowercase()))
}

/// Returns true where a text begins with a verb in the third person.
fn begins_with_verb(text: &str) -> bool {
    let mut words = text.trim_start_matches(['*', '_']).split_whitespace();
    let Some(first) = words.next() else { return false };
    // The name of something, which the sentence is about.
    if first.starts_with(['`', '[']) {
        return true;
    }
    let first = first.trim_end_matches(|c: char| !c.is_alphanumeric());
    let is_verb = first.starts_with(|c: char| c.is_ascii_uppercase())
        && first.ends_with('s')
        && first.chars().all(|c| c.is_ascii_alphabetic() || c == '-')
        && !has(NO_VERBS, first);
    let next = words.next().unwrap_or("the");
    let is_object = next.starts_with(['`', '[']) || has(DETERMINERS, next.trim_end_matches(','));
    is_verb && (is_object || !has(NOUNS_OR_VERBS, first))
}

/// Returns true where a text has a subject: its first words aren't those of a fragment.
fn begins_with_noun(text: &str) -> bool {
    let text = text.trim_start_matches(['*', '_']);
    let mut words = text.split([' ', ',', ':', ';', '.']);
    let first = words.next().unwrap_or_default();
    // "All that", "the same": a pronoun for a noun.
    let next = words.next().unwrap_or_default();
    if has(" all everything ", first) && next == "that" || has(" the ", first) && next == "same" {
        return false;
    }
    let sentence = text.split_once(". ").map_or(text, |(sentence, _)| sentence);
    !has(LEAVE_OUT_A_NOUN, first) || has(CLAUSES, first) && sentence.contains(", ")
}

/// Returns true for the documentation of a guarded field: "A: counts.", "L, I: guards the list."
fn has_letter(text: &str) -> bool {
    let Some((letters, _)) = text.split_once(": ") else { return false };
    letters.split(", ").all(|letter| {
        (1..=2).contains(&letter.len()) && letter.chars().all(|c| c.is_ascii_uppercase())
    })
}

/// Returns the number of doc comments of a file, and those that are fragments.
fn fragments(file: &SourceFile) -> (usize, Vec<Finding>) {
    let mut findings = Vec::new();
    let mut all = 0;
    for comment in comments(file).into_iter().filter(|comment| comment.kind != "//") {
        all += 1;
        let text = comment.text.as_str();
        let what = if comment.kind == "//!" {
            // A heading may say "How queues stop".
            let is_heading = has(" how this these for ", text.split(' ').next().unwrap_or(""));
            (!is_heading && !begins_with_noun(text)).then_some("a noun")
        } else if has_letter(text) {
            None
        } else if is_function(item(file, comment.end)) {
            (!begins_with_verb(text)).then_some("a verb in the third person (\"Returns\")")
        } else {
            (!begins_with_noun(text)).then_some("a noun")
        };
        if let Some(what) = what {
            let said: String = text.chars().take(60).collect();
            let what = format!("\"{said}\" is a fragment: begin with {what}");
            findings.push(file.finding(comment.line + 1, what));
        }
    }
    (all, findings)
}

/// Returns the lines of comment that are too wide.
fn wide(file: &SourceFile) -> Vec<Finding> {
    let lines = file.text.lines().zip(&file.lines).enumerate();
    let found = lines.filter(|(_, (text, line))| line.is_comment() && text.chars().count() > WIDTH);
    found.map(|(at, _)| file.finding(at + 1, format!("a comment beyond column {WIDTH}"))).collect()
}

/// Returns a text without its parts in backticks.
fn without_code(text: &str) -> String {
    text.split('`').step_by(2).collect::<Vec<_>>().join("`")
}

/// Returns the comments that use a phrase of [`BANNED`]; once for each phrase.
fn banned(file: &SourceFile) -> Vec<Finding> {
    let mut findings = Vec::new();
    for comment in comments(file) {
        let text = without_code(&comment.text).to_lowercase();
        let words: Vec<&str> = text
            .split_whitespace()
            .map(|word| word.trim_matches(|c: char| !c.is_alphanumeric()))
            .collect();
        let text = format!(" {} ", words.join(" "));
        for (phrase, better) in BANNED.iter().filter(|(p, _)| text.contains(&format!(" {p} "))) {
            findings.push(file.finding(comment.line + 1, format!("\"{phrase}\": say {better}")));
        }
    }
    findings
}

/// Returns the comments that name a commit: figures belong into docs/results.
fn commits(file: &SourceFile) -> Vec<Finding> {
    let is_commit = |word: &str| {
        (7..=40).contains(&word.len())
            && word.chars().all(|c| matches!(c, '0'..='9' | 'a'..='f'))
            && word.contains(|c: char| c.is_ascii_digit())
            && word.contains(|c: char| c.is_ascii_lowercase())
    };
    let names = |comment: &&Comment| {
        without_code(&comment.text).split(|c: char| !c.is_alphanumeric()).any(is_commit)
    };
    let what = "names a commit: put figures into docs/results";
    comments(file).iter().filter(names).map(|its| file.finding(its.line + 1, what)).collect()
}

/// Returns the Rust files of the project's crates.
fn sources() -> impl Iterator<Item = &'static SourceFile> {
    let parents = ["crates/", "lab/", "xtask/", "fuzz/"];
    let is_ours = move |path: &str| parents.iter().any(|parent| path.starts_with(parent));
    files::committed().iter().filter(move |f| f.is_rust() && !f.is_data() && is_ours(&f.path))
}

/// Runs `rule` over the sources and fails with all findings where there are more than `most`.
#[track_caller]
fn at_most(most: usize, rule: fn(&SourceFile) -> Vec<Finding>) {
    let found: Vec<Finding> = sources().flat_map(rule).collect();
    println!("{} findings, at most {most}", found.len());
    if found.len() > most {
        report(found);
    }
}

#[test]
fn doc_comments_are_sentences() {
    let (mut all, mut found) = (0, Vec::new());
    for (its, findings) in sources().map(fragments) {
        all += its;
        found.extend(findings);
    }
    assert!(all > 1000, "only {all} doc comments were found");
    println!("{} of {all} doc comments are fragments", found.len());
    if found.len() * 1000 > all * MOST_FRAGMENTS {
        report(found);
    }
}

#[test]
fn comments_are_within_their_columns() {
    at_most(MOST_WIDE, wide);
}

#[test]
fn comments_use_the_terms_of_the_field() {
    at_most(MOST_BANNED, banned);
}

#[test]
fn few_comments_name_a_commit() {
    at_most(MOST_COMMITS, commits);
}

/// Checks each documentation of an item: those of the first list are fragments, the others aren't.
#[track_caller]
fn check(item: &str, bad: &[&str], good: &[&str]) {
    let found = |doc: &&str| {
        let text = format!("/// {doc}\n{item}\n");
        let (all, found) = fragments(&SourceFile::new("crates/x/src/a.rs", &text));
        assert_eq!(all, 1);
        !found.is_empty()
    };
    let is_bad: Vec<_> = good.iter().filter(|doc| found(doc)).collect();
    let is_good: Vec<_> = bad.iter().filter(|doc| !found(doc)).collect();
    assert!(is_bad.is_empty() && is_good.is_empty(), "found {is_bad:?}, passed {is_good:?}");
}

#[test]
fn a_function_without_a_verb_is_found() {
    let bad = [
        "Nobody waits.",
        "The number of tags.",
        "As `x`, but later.",
        "Has the queue run.",
        "Is open.",
        "True where it is open.",
        "This returns a tag.",
        "Requests in flight.",
        "Lines of a file.",
        "Always open.",
        "returns a tag.",
        "",
    ];
    let good = [
        "Returns the number of tags.",
        "**Waits**.",
        "Passes.",
        "`left` and `right` meet.",
        "[`Tags`] are freed.",
        "Names the command.",
        "Requests `n` tags.",
        "Re-exports nothing.",
    ];
    let functions = [
        "fn a() {}",
        "pub(crate) const unsafe fn a() {}",
        "pub(in crate::x) async fn a() {}",
        "#[cfg(any(\n    test,\n))]\n#[inline]\nextern \"C\" fn a() {}",
    ];
    for function in functions {
        check(function, &bad, &good);
    }
    check("static A: fn() = a;", &["So many."], &["A function."]);
}

#[test]
fn documentation_without_a_subject_is_found() {
    let bad = [
        "So many.",
        "Whether the timer runs.",
        "The same, for reads.",
        "Of its thread.",
        "What it has",
        "Where it lies.",
        "It is open.",
        "With --replace: a device",
        "None: none.",
        "All that is left.",
        "Only, never.",
    ];
    let good = [
        "Requests in flight.",
        "A: counts.",
        "L, I: guards it.",
        "True while the timer runs.",
        "If the timer runs, a request is late.",
        "All tags.",
        "Online CPUs.",
    ];
    for item in ["a: u8,", "struct A;", "A,", "pub const A: u8 = 0;", "#[derive(Debug)]\nenum A {}"]
    {
        check(item, &bad, &good);
    }
    check("struct A;", &["The same."], &["The tags."]);
    let found = |text| !fragments(&SourceFile::new("crates/x/src/a.rs", text)).1.is_empty();
    assert!(found("//! What a queue does.\n"));
    assert!(!found("//! How queues stop.\n") && !found("//! Queues.\n//! Whether, or not.\n"));
    assert!(!found("// Whether.\nfn a() {}\nconst A: &str = \"\n/// Whether.\n\";\n"));
}

#[test]
fn wide_can_fail() {
    let found = |text: &str| lines_found(wide, "crates/x/src/a.rs", text);
    let word = "ä".repeat(WIDTH - 3);
    assert_eq!(found(&format!("// {word}\n// {word}ä\n    /// {word}\n")), [2, 3]);
    assert!(found(&format!("const A: &str = \"// {word}\";\n")).is_empty());
}

#[test]
fn banned_can_fail() {
    let found = |text: &str| lines_found(banned, "crates/x/src/a.rs", text);
    assert_eq!(
        found("// The store is asked\n/// again.\nfn a() {}\n// It is Asked\n// again.\n"),
        [4]
    );
    assert_eq!(found("fn a() {\n    // A sum that (is told of).\n}\n"), [2]);
    assert!(found("// A list `is told of`.\nlet a = \"is told of\";\n").is_empty());
}

#[test]
fn commits_can_fail() {
    let found = |text: &str| lines_found(commits, "crates/x/src/a.rs", text);
    assert_eq!(found("// 3 µs at 9bdd4058.\n\n//! (1f5ab0d)\n"), [1, 3]);
    assert!(found("// `9bdd4058`, 12345678, defaced, 0x9bdd4058\n").is_empty());
}
