//! Rules that a comment, a document or a test's name cites by number: each stands in
//! `RULES.md`.

use crate::files::{self, SourceFile};
use crate::{Finding, report};
use std::collections::BTreeSet;

/// Sections that a crate's tests cite without their number.
const SECTIONS: [(&str, &str); 3] =
    [("crates/device/", "1.2"), ("crates/smp/", "2.2"), ("crates/blockmq/", "5")];

/// Returns the first cells of the tables: "1.2.7", "3.3", "4.3 Queueing".
fn stated(rules: &str) -> BTreeSet<&str> {
    let rows = rules.lines().filter_map(|line| line.strip_prefix("| ")?.split_once(" | "));
    let numbers = rows.filter_map(|(cell, _)| cell.split(' ').next());
    numbers.filter(|number| number.starts_with(|c: char| c.is_ascii_digit())).collect()
}

/// Returns the number with points at the beginning of a text.
fn number(text: &str) -> Option<&str> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let number = text[..end].trim_end_matches('.');
    number.contains('.').then_some(number)
}

/// Returns the numbers that a line cites: "rule 1.2.7", "rules 1.2.2 and 1.2.3", `rule_1_2_7_…`,
/// and `rule_7_…` of a section.
fn named(line: &str, section: Option<&str>) -> Vec<String> {
    let mut named = Vec::new();
    for (at, _) in line.match_indices("ule") {
        let rest = &line[at + 3..];
        let rest = rest.strip_prefix('s').unwrap_or(rest);
        if let Some(rest) = rest.strip_prefix(' ') {
            let mut words = rest.split([' ', ',']).filter(|word| !word.is_empty());
            let mut next = words.next();
            while let Some(found) = next.and_then(number) {
                named.push(found.to_owned());
                next = words.next().filter(|word| ["and", "to"].contains(word)).and(words.next());
            }
        } else if let Some(rest) = rest.strip_prefix('_') {
            let digits: Vec<&str> = rest
                .split('_')
                .take_while(|part| part.parse::<u8>().is_ok() && part.len() <= 2)
                .collect();
            match (digits.as_slice(), section) {
                ([one], Some(section)) => named.push(format!("{section}.{one}")),
                ([_, _, _], _) => named.push(digits.join(".")),
                _ => {}
            }
        }
    }
    named
}

fn unstated(file: &SourceFile, stated: &BTreeSet<&str>) -> Vec<Finding> {
    let is_prose = file.is_rust() || file.path.ends_with(".md");
    if !is_prose || file.is_data() || file.path.starts_with("xtask/tests/tidy/") {
        return Vec::new();
    }
    let section = SECTIONS.iter().find(|(of, _)| file.path.starts_with(of)).map(|(_, its)| *its);
    let lines = file.text.lines().enumerate();
    let all = lines.flat_map(|(at, line)| named(line, section).into_iter().map(move |n| (at, n)));
    let is_stated = |number: &str| {
        stated.iter().any(|its| {
            its.strip_prefix(number)
                .is_some_and(|rest| !rest.starts_with(|c: char| c.is_ascii_digit()))
        })
    };
    let missing = all.filter(|(_, number)| !is_stated(number));
    let says = |number| format!("rule {number} doesn't stand in RULES.md");
    missing.map(|(at, number)| file.finding(at + 1, says(number))).collect()
}

#[test]
fn each_rule_that_is_named_stands_in_the_list() {
    let files = files::committed();
    let rules = files.iter().find(|file| file.path == "RULES.md").expect("it is there");
    let stated = stated(&rules.text);
    assert!(stated.len() > 70, "{stated:?}");
    report(files.iter().flat_map(|file| unstated(file, &stated)).collect());
}

#[test]
fn unstated_can_fail() {
    let stated =
        stated("| rule | |\n|---|---|\n| 1.2.7 | a |\n| 5.3 | b |\n| 4.3 Queueing | c |\n");
    let found = |path: &str, text: &str| {
        let found = unstated(&SourceFile::new(path, text), &stated);
        found.into_iter().map(|f| f.line).collect::<Vec<_>>()
    };
    assert_eq!(found("a.md", "Rule 1.2.7.\n(rule 1.2.8)\nrules 1.2.7 and 1.2.9\n"), [2, 3]);
    assert_eq!(found("crates/device/a.rs", "fn rule_7_a() {}\nfn rule_8_b() {}\n"), [2]);
    assert_eq!(found("crates/blockmq/a.rs", "fn loom_rule_3_a() {}\nfn rule_4_b() {}\n"), [2]);
    assert_eq!(found("crates/device/a.rs", "fn rule_1_2_7_a() {}\nfn rule_1_2_8_b() {}\n"), [2]);
    assert!(found("a.md", "rule 4.3, and as a rule 2 of them\n").is_empty());
}
