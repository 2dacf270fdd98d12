//! Links of Markdown files to other files and to headings: each has a target.

use crate::files::{self, SourceFile};
use crate::{Finding, report};
use std::collections::{BTreeMap, BTreeSet};

/// Returns the lines outside of fenced blocks, with their numbers from 1.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut is_fenced = false;
    text.lines().enumerate().filter_map(move |(at, line)| {
        let is_fence = line.trim_start().starts_with("```");
        is_fenced ^= is_fence;
        (!is_fence && !is_fenced).then_some((at + 1, line))
    })
}

/// Returns the targets of the links in a line: `[text](target)`, and `[name]: target` alone in its
/// line.
fn targets(line: &str) -> Vec<&str> {
    if let Some(named) = line.strip_prefix('[') {
        if let Some((name, target)) = named.split_once("]: ") {
            return if name.contains(']') { Vec::new() } else { vec![target.trim()] };
        }
    }
    // Backticks hold no link, but a link's text may have some.
    let is_code = |at: usize| line[..at].matches('`').count() % 2 == 1;
    let begins = line.match_indices("](").filter(|(at, _)| !is_code(*at));
    begins.filter_map(|(at, mark)| line[at + mark.len()..].split([')', ' ']).next()).collect()
}

/// Returns the anchors that GitHub gives to a file's headings.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    let headings = prose(text).filter_map(|(_, line)| {
        let title = line.trim_start_matches('#');
        (title.len() < line.len()).then_some(title.strip_prefix(' ')?)
    });
    let mut anchors = BTreeSet::new();
    for heading in headings {
        // Only the text of a link is shown.
        let mut shown = String::new();
        for (at, part) in heading.split("](").enumerate() {
            shown += if at == 0 { part } else { part.split_once(')').map_or("", |(_, rest)| rest) };
        }
        let kept = |c: char| match c {
            ' ' => Some('-'),
            '-' | '_' => Some(c),
            c => c.is_alphanumeric().then_some(c),
        };
        let plain: String = shown.trim().to_lowercase().chars().filter_map(kept).collect();
        let before = seen.entry(plain.clone()).or_default();
        anchors.insert(if *before == 0 { plain } else { format!("{plain}-{before}") });
        *before += 1;
    }
    anchors
}

/// Returns the path from the root of the target that a file at `from` calls `to`.
fn resolve(from: &str, to: &str) -> String {
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    for part in to.trim_end_matches('/').split('/') {
        match part {
            "." | "" => {}
            // A link out of the root has no target.
            ".." => drop(parts.pop().is_none().then(|| parts.push(".."))),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// Targets of links.
struct Places<'f> {
    paths: BTreeSet<&'f str>,
    anchors: BTreeMap<&'f str, BTreeSet<String>>,
}

impl<'f> Places<'f> {
    fn of(files: &'f [SourceFile]) -> Places<'f> {
        let folders = |file: &'f SourceFile| {
            file.path.match_indices('/').map(|(at, _)| &file.path[..at]).chain([&*file.path])
        };
        let texts = files.iter().filter(|file| file.path.ends_with(".md"));
        Places {
            paths: files.iter().flat_map(folders).collect(),
            anchors: texts.map(|file| (&*file.path, anchors(&file.text))).collect(),
        }
    }

    fn has(&self, from: &str, target: &str) -> bool {
        let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
        let path = if path.is_empty() { from.to_owned() } else { resolve(from, path) };
        let is_place = path.is_empty() || self.paths.contains(&*path);
        is_place
            && (anchor.is_empty() || self.anchors.get(&*path).is_some_and(|a| a.contains(anchor)))
    }
}

fn dangling(file: &SourceFile, places: &Places<'_>) -> Vec<Finding> {
    if !file.path.ends_with(".md") || file.is_data() {
        return Vec::new();
    }
    let mut findings = Vec::new();
    for (line, text) in prose(&file.text) {
        for target in targets(text) {
            let is_foreign =
                ["https://", "http://", "mailto:"].iter().any(|s| target.starts_with(s));
            // A path of Rust is rustdoc's, which checks it.
            let is_foreign = is_foreign || target.contains("::");
            if !is_foreign && !places.has(&file.path, target) {
                findings.push(file.finding(line, format!("nothing here is {target}")));
            }
        }
    }
    findings
}

#[test]
fn each_link_of_a_document_leads_to_a_file_or_a_heading() {
    let files = files::committed();
    let places = Places::of(files);
    report(files.iter().flat_map(|file| dangling(file, &places)).collect());
}

#[test]
fn dangling_can_fail() {
    let page = "# A `page`: of\n## Two words\n## Two words\n```text\n# Fenced\n[a](b.md)\n```\n";
    let files = [SourceFile::new("docs/page.md", page), SourceFile::new("crates/a/src/lib.rs", "")];
    let places = Places::of(&files);
    let found = |text: &str| {
        let found = dangling(&SourceFile::new("docs/sub/new.md", text), &places);
        found.into_iter().map(|f| f.line).collect::<Vec<_>>()
    };
    let all =
        ["", "#a-page-of", "#two-words", "#two-words-1"].map(|a| format!("[`x`](../page.md{a})"));
    assert!(found(&all.join(" ")).is_empty());
    assert_eq!(found("[a](../page.md#two-words-2)\n[b](../page.md#fenced)\n"), [1, 2]);
    assert!(found("[a](../../crates/a) [b](https://x.y/z) [c](../../) `[d](e)`\n").is_empty());
    assert_eq!(found("[a](page.md)\n\n[b](../../../docs)\n[c]: ../lost.md\n"), [1, 3, 4]);
    assert!(found("# Here\n[up](#here)\n").len() == 1, "it is none of the places");
}
