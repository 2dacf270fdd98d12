//! Makes the tables of results in Markdown files anew, from the records that they name:
//! `cargo run -p corewise-bench --example fill_tables -- README.md docs/benchmarks.md docs/results/*.md`.
//!
//! Most places are those of [`markdown`]: a column for each metric, a row for each variant. A place of rows is
//! the other way round, for a table of several workloads: a column for each variant that its first line names, and
//! a row for each line below. `best` is the best variant that isn't Corewise, with its name.
//!
//! ```text
//! <!-- rows: corewise tokio best
//! closures from outside | 2 | results/peers-2cpu-3b8f966.json | storm/boxed | items_per_second
//! -->
//! (the table)
//! <!-- end of rows -->
//! ```
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::path::Path;
use std::process::ExitCode;

use corewise_bench::names::{Better, CaseName};
use corewise_bench::record::Record;
use corewise_bench::report::{markdown, show};

const ROWS: &str = "<!-- rows: ";
const DESCRIBED: &str = "\n-->\n";
const END: &str = "<!-- end of rows -->";

fn main() -> ExitCode {
    let files: Vec<String> = std::env::args().skip(1).collect();
    if files.is_empty() {
        eprintln!("Usage: fill_tables FILE.md...");
        return ExitCode::from(2);
    }
    for file in files {
        if let Err(problem) = fill(Path::new(&file)) {
            eprintln!("{file}: {problem}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn fill(file: &Path) -> Result<(), String> {
    let text = std::fs::read_to_string(file).map_err(|error| error.to_string())?;
    let filled = filled(&text, |name| markdown::read_beside(file, name))?;
    if filled == text {
        println!("{}: nothing to do", file.display());
        return Ok(());
    }
    std::fs::write(file, filled).map_err(|error| error.to_string())?;
    println!("{}: filled", file.display());
    Ok(())
}

/// `text` with its tables of both kinds made anew; `read` gives the records of a file.
pub(crate) fn filled(
    text: &str,
    read: impl Fn(&str) -> Result<Vec<Record>, String>,
) -> Result<String, String> {
    let text = markdown::fill(text, &read)?;
    let Some((before, rest)) = text.split_once(ROWS) else { return Ok(text) };
    let parts = rest.split_once(DESCRIBED).and_then(|(head, rest)| {
        let (_, after) = rest.split_once(END)?;
        Some((head, after))
    });
    let (head, after) = parts.ok_or_else(|| format!("a place for rows has no `-->` or `{END}`"))?;
    let table = rows(head, &read)?;
    let after = filled(after, read)?;
    Ok(format!("{before}{ROWS}{head}{DESCRIBED}\n{table}\n{END}{after}"))
}

fn rows(head: &str, read: impl Fn(&str) -> Result<Vec<Record>, String>) -> Result<String, String> {
    let mut lines = head.lines();
    let variants: Vec<&str> = lines.next().unwrap_or_default().split_whitespace().collect();
    let names = variants.iter().map(|variant| match *variant {
        "corewise" => "**Corewise**",
        "best" => "best of all others",
        other => other,
    });
    let mut table = format!("| | CPUs | {} |\n|---|---|", names.collect::<Vec<_>>().join(" | "));
    table.push_str(&"---|".repeat(variants.len()));
    table.push('\n');
    for line in lines {
        let parts: Vec<&str> = line.split('|').map(str::trim).collect();
        let [label, cpus, file, case, metric] = parts[..] else {
            return Err(format!("'{line}': label | CPUs | file | case | metric are expected"));
        };
        let mut records = read(file).map_err(|what| format!("{file}: {what}"))?;
        records.retain(|record| {
            CaseName::of(&record.case).workload == case && record.metric == metric
        });
        let Some(unit) = records.first().map(|record| record.unit.clone()) else {
            return Err(format!("{file} has no {metric} of {case}"));
        };
        let best = records.iter().filter(|record| !record.variant.starts_with("corewise"));
        let best = match Better::of_unit(&unit) {
            Better::Higher => best.max_by(|a, b| a.median.total_cmp(&b.median)),
            Better::Lower => best.min_by(|a, b| a.median.total_cmp(&b.median)),
        };
        let cells = variants.iter().map(|variant| match *variant {
            "best" => best.map(|best| format!("{} ({})", show(best.median, &unit), best.variant)),
            variant => {
                let of = records.iter().find(|record| record.variant == variant);
                of.map(|record| show(record.median, &unit))
            }
        });
        let cells: Vec<String> = cells.map(|cell| cell.unwrap_or("–".into())).collect();
        table.push_str(&format!("| {label} | {cpus} | {} |\n", cells.join(" | ")));
    }
    Ok(table)
}
