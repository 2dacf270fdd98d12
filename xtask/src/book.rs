//! `cargo xtask book`: the documents as pages for a browser, by mdBook.
//!
//! mdBook wants one folder and a table of contents. Both are laid out in the target folder. The
//! folder gets all tracked files that the pages may link to, the table of contents comes from the
//! lists below.

use crate::deb::Tree;
use crate::run::Run;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The parts of the book, each with its pages in reading order.
const PARTS: &[(&str, &[&str])] = &[
    ("Begin", &["README.md", "docs/README.md", "docs/faq.md", "CHANGELOG.md"]),
    (
        "Serve volumes",
        &[
            "docs/operating.md",
            "docs/manifest.md",
            "docs/control.md",
            "docs/monitoring.md",
            "docs/front-ends.md",
            "docs/remote.md",
            "docs/encryption.md",
            "docs/overlays.md",
            "docs/object.md",
            "docs/backup.md",
        ],
    ),
    ("Write Rust", &["docs/tutorial.md", "crates/workqueue/src/guide.md"]),
    ("Read a log", &["docs/timeline-tutorial.md", "docs/timeline.md"]),
    ("Measure", &["docs/benchmarks.md", "lab/machine.md", "lab/sim.md"]),
    (
        "Contribute",
        &[
            "CONTRIBUTING.md",
            "ARCHITECTURE.md",
            "docs/code-map.md",
            "RULES.md",
            "docs/from-linux.md",
            "docs/dependencies.md",
        ],
    ),
];

/// The last part: every other page.
const REST: &str = "Results, and the protocols beside the code";

const CONFIG: &str = r#"[book]
title = "Corewise"
language = "en"

[build]
create-missing = false

[output.html]
no-section-label = true
fold = { enable = true, level = 0 }
additional-css = ["pages.css"]
"#;

/// Code has up to 120 columns, and tables have three on a phone.
const CSS: &str =
    ":root { --content-max-width: 1000px; }\ntable td, table th { padding: 3px 8px; }\n";

/// Returns true if mdBook is at hand.
pub(crate) fn is_possible() -> bool {
    Command::new("mdbook").arg("--version").output().is_ok_and(|output| output.status.success())
}

/// Builds the book in the target folder, and returns its first page.
///
/// # Errors
///
/// Fails with the reason if a file can't be read or written, or if mdBook fails.
pub(crate) fn build(run: &mut Run) -> Result<PathBuf, String> {
    let work = run.target().join("book");
    let _ = fs::remove_dir_all(&work);
    let tree = Tree { root: work.clone(), sources: run.root().to_path_buf() };
    let listed = Command::new("git").arg("ls-files").current_dir(run.root()).output();
    let listed = listed.map_err(|error| format!("git: {error}"))?.stdout;
    let files = String::from_utf8_lossy(&listed);
    let files: Vec<&str> = files.lines().filter(|file| run.root().join(file).is_file()).collect();
    let pages: Vec<&str> = files.iter().copied().filter(|file| file.ends_with(".md")).collect();
    for file in &files {
        tree.copy(file, &format!("src/{file}"))?;
    }
    let contents = summary(&pages, |page| title(&run.root().join(page)))?;
    tree.write("src/SUMMARY.md", contents.as_bytes(), 0o644)?;
    tree.write("book.toml", CONFIG.as_bytes(), 0o644)?;
    tree.write("pages.css", CSS.as_bytes(), 0o644)?;
    run.command(Command::new("mdbook").arg("build").arg(&work))?;
    Ok(work.join("book/index.html"))
}

/// Returns the table of contents.
fn summary(
    pages: &[&str],
    title: impl Fn(&str) -> Result<String, String>,
) -> Result<String, String> {
    let mut summary = String::from("# Summary\n");
    let named: Vec<&str> = PARTS.iter().flat_map(|(_, pages)| pages.iter().copied()).collect();
    let rest: Vec<&str> = pages.iter().copied().filter(|page| !named.contains(page)).collect();
    for (part, pages) in PARTS.iter().copied().chain([(REST, &rest[..])]) {
        let _ = write!(summary, "\n# {part}\n\n");
        for page in pages {
            let _ = writeln!(summary, "- [{}]({page})", title(page)?);
        }
    }
    Ok(summary)
}

/// Returns the title of a page: its first heading.
fn title(page: &Path) -> Result<String, String> {
    let text = fs::read_to_string(page).map_err(|error| format!("{}: {error}", page.display()))?;
    let heading = text.lines().find_map(|line| line.strip_prefix("# "));
    let name = || page.display().to_string();
    Ok(heading.map_or_else(name, |heading| heading.replace(['[', ']'], "")))
}

/// The step `book`: the book builds where mdBook is at hand.
///
/// # Errors
///
/// Fails as [`build`] does.
pub(crate) fn check(run: &mut Run) -> Result<(), String> {
    if !is_possible() {
        run.say("mdbook isn't there: `cargo install mdbook` brings it");
        run.count_skipped();
        return Ok(());
    }
    build(run)?;
    run.count_passed();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_page_stands_once_in_the_table_of_contents() {
        let title = |page: &str| Ok(page.to_uppercase());
        let summary = summary(&["README.md", "docs/x.md"], title).unwrap();
        let (named, rest) = summary.split_once(REST).unwrap();
        assert!(named.contains("\n- [README.MD](README.md)\n"), "{summary}");
        assert_eq!(rest, "\n\n- [DOCS/X.MD](docs/x.md)\n");
    }
}
