//! Plain sentences: a noun is the subject, never "who" or "what". "The thread that finds the queue
//! idle runs it", not in reverse.

use crate::files::SourceFile;
use crate::{Finding, hold, lines_found};

/// Words before "who" if a noun is left out.
const LEAVE_OUT_A_NOUN: &str = " to for by from of with and or than where that since if until as but so when while \
     because before after unless on in at is are not only be which even also nor though ";

/// A word of a comment or of a document, with its line.
struct Word<'t> {
    text: &'t str,
    line: usize,
}

impl Word<'_> {
    fn bare(&self) -> &str {
        self.text.trim_matches(|c: char| !c.is_alphanumeric())
    }

    fn ends(&self, marks: &str) -> bool {
        let end = self.text.trim_end_matches(['*', '`', '"', ')', '_']);
        end.ends_with(|c| marks.contains(c))
    }
}

/// Returns the paragraphs of a file. Each comes with true if its first sentence may be a label,
/// since it documents an item.
fn paragraphs(file: &SourceFile) -> Vec<(bool, Vec<Word<'_>>)> {
    let mut all: Vec<(bool, Vec<Word<'_>>)> = Vec::new();
    let (mut kind, mut is_fenced) = ("", false);
    for (at, line) in file.text.lines().enumerate() {
        let (its, text) = if file.is_rust() {
            let comment = file.lines.get(at).map_or("", |line| line.comment.as_str());
            let begins = line.find(comment.trim()).filter(|_| !comment.trim().is_empty());
            begins.map_or(("", ""), |at| comment_of(&line[at..]))
        } else {
            is_fenced ^= line.trim_start().starts_with("```");
            let text = line.trim();
            let is_prose = !is_fenced && !text.starts_with(['#', '|', '`', '<']);
            if is_prose { ("text", text) } else { ("", "") }
        };
        let goes_on = its == kind && !text.is_empty() && !text.starts_with(['|', '#']);
        let is_item = text.starts_with("* ") || text.starts_with("- ");
        kind = if text.is_empty() { "" } else { its };
        let words = text.split_whitespace().map(|text| Word { text, line: at + 1 });
        let words = words.filter(|word| !word.bare().is_empty() || word.ends(":;,.?!"));
        match all.last_mut() {
            Some((_, last)) if goes_on && !is_item => last.extend(words),
            _ => all.push((its == "///" || its == "//!", words.collect())),
        }
    }
    all
}

/// Returns the slashes of a comment, and its text.
fn comment_of(comment: &str) -> (&'static str, &str) {
    let kinds = ["///", "//!", "//"];
    let found = kinds.into_iter().find_map(|kind| Some((kind, comment.strip_prefix(kind)?.trim())));
    found.unwrap_or(("", ""))
}

fn subjects(file: &SourceFile) -> Vec<Finding> {
    let is_prose = file.is_rust() || file.path.ends_with(".md");
    if !is_prose || file.is_data() || file.path.ends_with("tidy/sentences.rs") {
        return Vec::new();
    }
    let mut findings = Vec::new();
    for (may_label, words) in paragraphs(file) {
        for (at, word) in words.iter().enumerate() {
            let before = at.checked_sub(1).map(|before| &words[before]);
            let begins = before.is_none_or(|before| before.ends(".!?:"));
            let end = words[at..].iter().find(|word| word.ends(".!?"));
            let is_question = end.is_some_and(|end| end.ends("?"));
            let is_label = at == 0 && may_label || end.is_none();
            let is_left_out = || {
                let before = before.expect("it doesn't begin the sentence");
                let word = before.text.to_lowercase();
                before.ends(",;:") || LEAVE_OUT_A_NOUN.contains(&format!(" {word} "))
            };
            let breaks = match word.bare() {
                "whoever" | "Whoever" => true,
                "Who" => begins && !is_question && end.is_some(),
                "What" | "Whatever" | "Whichever" => begins && !is_question && !is_label,
                "who" => !begins && !is_question && is_left_out(),
                _ => false,
            };
            if breaks {
                findings.push(file.finding(word.line, format!("\"{}\" for a noun", word.bare())));
            }
        }
    }
    findings
}

#[test]
fn a_noun_is_the_subject_of_a_sentence() {
    hold(subjects);
}

/// Checks messages in the same way: strings of product code with at least four words. A message
/// needs no full stop, and a part of it begins behind a colon or a semicolon, too.
fn messages(file: &SourceFile) -> Vec<Finding> {
    let mut findings = Vec::new();
    if !file.is_rust() || !file.path.contains("/src/") {
        return findings;
    }
    for literal in &file.literals {
        let words: Vec<&str> = literal.text.split_whitespace().collect();
        let is_test = file.is_test.get(literal.line - 1).is_some_and(|is_test| *is_test);
        if is_test || words.len() < 4 || literal.text.trim_end().ends_with('?') {
            continue;
        }
        for (at, word) in words.iter().enumerate() {
            let before = at.checked_sub(1).map(|before| words[before]);
            let begins = before.is_none_or(|before| before.ends_with(['.', '!', '?', ':', ';']));
            let is_left_out = before.is_some_and(|before| {
                let word = before.to_lowercase();
                before.ends_with(',') || LEAVE_OUT_A_NOUN.contains(&format!(" {word} "))
            });
            // "What this run says": a heading.
            let is_heading = at == 0 && *word == "What" && !literal.text.contains('.');
            let breaks = match word.trim_end_matches([',', '.', ':', ';']).to_lowercase().as_str() {
                "whoever" => true,
                "who" => begins || is_left_out,
                "what" => begins && !is_heading && words.get(at + 1) != Some(&"if"),
                "whatever" | "whichever" => begins,
                _ => false,
            };
            if breaks {
                findings.push(file.finding(literal.line, format!("\"{word}\" for a noun")));
            }
        }
    }
    findings
}

#[test]
fn a_noun_is_the_subject_of_a_message() {
    hold(messages);
}

#[test]
fn messages_can_fail() {
    let found = |text: &str| {
        let line = format!("fn a() {{\n    b(\"{text}\");\n}}\n");
        lines_found(messages, "crates/x/src/a.rs", &line)
    };
    assert_eq!(found("who wakes gives way"), [2]);
    assert_eq!(found("not shut down: what runs has to return"), [2]);
    assert_eq!(found("it is left to who comes next"), [2]);
    assert_eq!(found("asked for by whoever got the lines"), [2]);
    assert!(found("{who} has waited for {what}").is_empty(), "names of values");
    assert!(found("what if everything were asynchronous").is_empty());
    assert!(found("no thread knows what it does").is_empty());
    assert!(found("what would make it faster?").is_empty());
    assert!(found("What this run says").is_empty(), "a heading");
    assert!(
        lines_found(messages, "crates/x/tests/a.rs", "b(\"who wakes gives way\");\n").is_empty()
    );
}

#[test]
fn subjects_can_fail() {
    let found = |text: &str| lines_found(subjects, "a.rs", text);
    assert_eq!(found("// It ends.\n// Who calls it waits.\nfn a() {}\n"), [2]);
    assert_eq!(found("fn a() {} // whoever calls it\n"), [1]);
    assert_eq!(found("/// Runs it. What is\n/// left is dropped.\n"), [1]);
    assert_eq!(found("// That is left to\n// who comes next.\n"), [2]);
    assert_eq!(found("// It is over, who waits is woken.\n"), [1]);
    assert!(found("/// What is left.\nconst A: u8 = 0;\n").is_empty(), "a label");
    assert!(found("// Who is it? And what is that?\n").is_empty(), "questions");
    assert!(found("// The operator who asks knows who waits for whom.\n").is_empty());
    assert!(found("const A: &str = \"// Who calls it waits.\";\n").is_empty());
    let text = |text: &str| lines_found(subjects, "a.md", text);
    assert_eq!(text("# Who\n\nIt is. Who asks\nwaits.\n\n| who | what |\n"), [3]);
    assert_eq!(text("* One item.\n* Who asks waits.\n"), [2]);
}
