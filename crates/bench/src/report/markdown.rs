//! Tables of results in Markdown files, made from the records and never by hand.
//!
//! A file has a place for each table, a comment that says what it is made of:
//!
//! ```text
//! <!-- results: results/peers-2cpu-3b8f966.json
//! boxed | storm/boxed | items_per_second
//! CPU per item | storm/boxed | cpu_per_item
//! -->
//! (the table)
//! <!-- end of results -->
//! ```
//!
//! The first line names the file of records, relative to the Markdown file, or several between
//! blanks; `-` where there is none yet. Each other line is a column: its heading, the case without the scope, the metric. The rows
//! are the variants, and scopes, that have at least one of them. The one line `headlines` stands for
//! a table of these.

use std::fmt::Write as _;
use std::path::Path;

use super::number::show;
use super::{Source, label, ratios};
use crate::names::{Better, CaseName, sums_up};
use crate::record::Record;

const BEGIN: &str = "<!-- results: ";
const DESCRIBED: &str = "\n-->\n";
const END: &str = "<!-- end of results -->";

/// `text` with each of its tables made anew; `read` gives the records of a file.
///
/// # Errors
/// Says which place is wrong, or whose records can't be had.
pub fn fill(
    text: &str,
    read: impl Fn(&str) -> Result<Vec<Record>, String>,
) -> Result<String, String> {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(BEGIN) {
        let line = 1 + text[..text.len() - rest.len() + at].matches('\n').count();
        let wrong = |what: &str| format!("line {line}: the place for results {what}");
        let described = rest[at..].find(DESCRIBED).ok_or_else(|| wrong("has no line `-->`"))? + at;
        let head = &rest[at + BEGIN.len()..described];
        let body = described + DESCRIBED.len();
        let end = rest[body..].find(END).ok_or_else(|| wrong(&format!("has no `{END}`")))? + body;
        if rest[body..end].contains(BEGIN) {
            return Err(wrong(&format!("has no `{END}`")));
        }
        let place = Place::of(head).map_err(|what| wrong(&what))?;
        out.push_str(&rest[..body]);
        match place.files {
            "-" => out.push_str("\n*Not measured yet.*\n\n"),
            files => {
                let mut records = Vec::new();
                for file in files.split_whitespace() {
                    let of = read(file).map_err(|what| wrong(&format!("names {file}: {what}")))?;
                    records.extend(of);
                }
                let table = match place.columns.is_empty() {
                    true => place.headlines(&records),
                    false => place.table(&records),
                };
                out.push_str(&table.map_err(|what| wrong(&what))?);
            }
        }
        out.push_str(END);
        rest = &rest[end + END.len()..];
    }
    out.push_str(rest);
    Ok(out)
}

/// The records of the file that a place in the Markdown file `file` names: for [`fill`].
///
/// # Errors
/// It can't be read, or holds no records.
pub fn read_beside(file: &Path, name: &str) -> Result<Vec<Record>, String> {
    let path = file.parent().unwrap_or(Path::new(".")).join(name);
    let text = std::fs::read_to_string(path).map_err(|error| error.to_string())?;
    serde_json::from_str(&text).map_err(|error| format!("it holds no records: {error}"))
}

/// What a table is made of.
struct Place<'t> {
    files: &'t str,
    /// None: the headlines.
    columns: Vec<Column<'t>>,
}

struct Column<'t> {
    heading: &'t str,
    case: &'t str,
    metric: &'t str,
}

impl<'t> Place<'t> {
    fn of(head: &'t str) -> Result<Place<'t>, String> {
        let mut lines = head.lines();
        let files = lines.next().unwrap_or_default().trim();
        if head.lines().skip(1).eq(["headlines"]) {
            return Ok(Place { files, columns: Vec::new() });
        }
        let columns = lines.map(|line| {
            let parts: Vec<&str> = line.split('|').map(str::trim).collect();
            match parts[..] {
                [heading, case, metric] => Ok(Column { heading, case, metric }),
                _ => Err(format!("has a line '{line}': heading | case | metric are expected")),
            }
        });
        let columns = columns.collect::<Result<Vec<_>, _>>()?;
        match columns.is_empty() {
            true => Err("has no columns".to_owned()),
            false => Ok(Place { files, columns }),
        }
    }

    fn headlines(&self, records: &[Record]) -> Result<String, String> {
        let mut out = String::from(
            "\n| ratio of pairs | median | 95 % interval | read as |\n|---|---|---|---|",
        );
        let all: Vec<_> = ratios(records).collect();
        if all.is_empty() {
            return Err(format!("asks for headlines, of which {} has none", self.files));
        }
        for &(record, interval) in &all {
            let words = Better::of_headline(record).map_or("", Better::words);
            let interval = interval.map_or("–".to_owned(), |interval| {
                format!("{} to {}", show(interval.min, "ratio"), show(interval.max, "ratio"))
            });
            // Writing to a String can't fail.
            let _ =
                write!(out, "\n| `{}` | {} | {interval} | {words} |", record.metric, shown(record));
        }
        let all: Vec<&Record> = all.iter().map(|(record, _)| *record).collect();
        out.push_str(&self.below(&all));
        Ok(out)
    }

    fn table(&self, records: &[Record]) -> Result<String, String> {
        let source = source(records);
        // Rows as (label, a cell for each column).
        let mut rows: Vec<(String, Vec<Option<&Record>>)> = Vec::new();
        for (n, column) in self.columns.iter().enumerate() {
            for record in records.iter().filter(|record| record.metric == column.metric) {
                let case = CaseName::of(&record.case);
                if case.workload != column.case {
                    continue;
                }
                let label = label(source, record, case.place);
                let position = rows.iter().position(|row| row.0 == label).unwrap_or_else(|| {
                    rows.push((label, vec![None; self.columns.len()]));
                    rows.len() - 1
                });
                rows[position].1[n] = Some(record);
            }
        }
        // A column of which there is nothing yet shows dashes; a table of them shows a mistake.
        if rows.is_empty() {
            let (case, metric) = (self.columns[0].case, self.columns[0].metric);
            return Err(format!(
                "asks for {metric} of {case} and more, of which {} has nothing",
                self.files
            ));
        }
        if source == Source::Peers {
            sort(&mut rows);
        }
        Ok(self.written(&rows))
    }

    fn written(&self, rows: &[(String, Vec<Option<&Record>>)]) -> String {
        let mut out = String::from("\n| |");
        for column in &self.columns {
            // Writing to a String can't fail.
            let _ = write!(out, " {} |", column.heading);
        }
        out.push_str("\n|---|");
        out.push_str(&"---|".repeat(self.columns.len()));
        for (label, cells) in rows {
            let ours = cells.iter().flatten().any(|record| record.variant == "corewise");
            let mark = if ours { "**" } else { "" };
            let _ = write!(out, "\n| {mark}{}{mark} |", label.replace('|', "\\|"));
            for cell in cells {
                let _ = match cell {
                    Some(record) => write!(out, " {} |", shown(record)),
                    None => write!(out, " – |"),
                };
            }
        }
        let all: Vec<&Record> =
            rows.iter().flat_map(|(_, cells)| cells).flatten().copied().collect();
        out.push_str(&self.below(&all));
        out
    }

    /// What stands below a table of these.
    fn below(&self, records: &[&Record]) -> String {
        let runs = records.iter().map(|record| record.runs);
        let (least, most) = runs.fold((usize::MAX, 0), |(l, m), runs| (l.min(runs), m.max(runs)));
        let runs = if least == most { least.to_string() } else { format!("{least} to {most}") };
        let links = self.files.split_whitespace().map(|file| {
            let name = file.rsplit('/').next().unwrap_or(file);
            format!("[{name}]({file})")
        });
        format!(
            "\n\nMedian of {runs} runs, and [least..most] of them; from {}.\n\n",
            links.collect::<Vec<_>>().join(", ")
        )
    }
}

/// The best first, by the first column that tells two apart; one that has nothing there comes last.
fn sort(rows: &mut [(String, Vec<Option<&Record>>)]) {
    rows.sort_by(|(_, a), (_, b)| match (a[0], b[0]) {
        (Some(a), Some(b)) => Better::of_unit(&a.unit).compare(a.median, b.median),
        (a, b) => b.is_some().cmp(&a.is_some()),
    });
}

/// `30.8 M/s [29.7..32.1]`, the ends in the median's unit.
fn shown(record: &Record) -> String {
    let median = show(record.median, &record.unit);
    let [low, high] = [record.min, record.max].map(|value| show(value, &record.unit));
    let suffix = median.split_once(' ').map_or("", |(_, unit)| unit);
    let bare = |text: &str| match text.split_once(' ') {
        Some((number, unit)) if unit == suffix => number.to_owned(),
        _ => text.to_owned(),
    };
    format!("{median} [{}..{}]", bare(&low), bare(&high))
}

/// Which program wrote the records: only `bench-peers` has others than Corewise and its yardsticks.
fn source(records: &[Record]) -> Source {
    let own = ["corewise", "before", "futex"];
    let mut workloads = records.iter().filter(|record| !sums_up(&record.case));
    match workloads.all(|record| own.contains(&record.variant.as_str())) {
        true => Source::Own,
        false => Source::Peers,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::HEADLINE;

    fn record(case: &str, variant: &str, metric: &str, unit: &str, median: f64) -> Record {
        Record::made_up(case, variant, metric, unit, (median / 2.0, median, median * 2.0))
    }

    fn read(file: &str) -> Result<Vec<Record>, String> {
        match file {
            "results/peers.json" => Ok(vec![
                record("storm/boxed", "tokio", "items_per_second", "items/s", 1.9e6),
                record("storm/boxed/cache_shard", "corewise", "items_per_second", "items/s", 9e6),
                record("storm/boxed/cache_shard", "corewise", "cpu_per_item", "ns", 600.0),
                record("inside", "tokio", "items_per_second", "items/s", 1e6),
            ]),
            _ => Err("there is no such file".into()),
        }
    }

    const TEXT: &str = "# T\n\n<!-- results: results/peers.json\nboxed | storm/boxed | \
                        items_per_second\nCPU | storm/boxed | cpu_per_item\n-->\nold\n\
                        <!-- end of results -->\n\nmore\n";

    #[test]
    fn a_place_is_filled_and_stays_a_place() {
        let filled = fill(TEXT, read).unwrap();
        let table = "-->\n\n| | boxed | CPU |\n|---|---|---|\n\
                     | **Corewise** | 9.00 M/s [4.50..18.0] | 600 ns [300..1.20 µs] |\n\
                     | tokio | 1.90 M/s [950 k/s..3.80] | – |\n\n\
                     Median of 7 runs, and [least..most] of them; from \
                     [peers.json](results/peers.json).\n\n<!-- end of results -->\n\nmore\n";
        assert!(filled.ends_with(table), "{filled}");
        assert!(filled.starts_with("# T\n\n<!-- results: results/peers.json\nboxed | "));
        assert_eq!(fill(&filled, read).unwrap(), filled, "filling again changes nothing");
        assert_eq!(fill("no place\n", read).unwrap(), "no place\n");
    }

    #[test]
    fn several_files_make_one_table() {
        let text = TEXT.replace("results/peers.json", "results/peers.json a.json");
        let more = |file: &str| match file {
            "a.json" => Ok(vec![record("storm/boxed", "tokio", "cpu_per_item", "ns", 800.0)]),
            file => read(file),
        };
        let filled = fill(&text, more).unwrap();
        assert!(filled.contains("| tokio | 1.90 M/s [950 k/s..3.80] | 800 ns ["), "{filled}");
        assert!(filled.contains("from [peers.json](results/peers.json), [a.json](a.json)."));
    }

    #[test]
    fn headlines_are_a_table_of_their_own() {
        let text = "<!-- results: a.json\nheadlines\n-->\n<!-- end of results -->\n";
        let headline = |metric| record(HEADLINE, "corewise", metric, "ratio", 1.5);
        let filled = fill(text, |_| Ok(vec![headline("inside_vs_best_peer")])).unwrap();
        let row = "| `inside_vs_best_peer` | 1.50 [0.750..3.00] | – | higher is better |";
        assert!(filled.contains(row), "{filled}");
        assert!(fill(text, |_| Ok(vec![])).unwrap_err().contains("has none"));
    }

    #[test]
    fn a_place_without_records_says_so() {
        let filled = fill(&TEXT.replace("results/peers.json", "-"), read).unwrap();
        assert!(filled.contains("-->\n\n*Not measured yet.*\n\n<!-- end of results -->"));
    }

    #[test]
    fn errors_name_the_mistake_and_its_line() {
        for (from, to, said) in [
            ("results/peers.json", "x.json", "line 3: the place for results names x.json: there"),
            ("| cpu_per_item", "", "heading | case | metric are expected"),
            ("storm/boxed | ", "storm/none | ", "items_per_second of storm/none and more"),
            ("<!-- end of results -->", "", "has no `<!-- end"),
            ("\n-->\n", "\n", "has no line `-->`"),
        ] {
            let problem = fill(&TEXT.replace(from, to), read).unwrap_err();
            assert!(problem.contains(said), "{problem}");
        }
        let columns = "<!-- results: a.json\n-->\n<!-- end of results -->\n";
        assert!(fill(columns, read).unwrap_err().contains("has no columns"));
    }

    #[test]
    fn rows_of_the_own_program_are_scopes_in_their_order() {
        let records = |_: &str| {
            Ok(["cpu", "cache_shard", "cache_shard:4"]
                .map(|scope| record(&format!("inside/{scope}"), "corewise", "m", "items/s", 1.0))
                .to_vec())
        };
        let text = "<!-- results: a.json\nx | inside | m\n-->\n<!-- end of results -->\n";
        let filled = fill(text, records).unwrap();
        let rows: Vec<&str> = filled.lines().filter(|line| line.starts_with("| **")).collect();
        assert!(rows[0].starts_with("| **cpu** |"));
        assert!(rows[1].starts_with("| **cache_shard (default)** |"));
        assert!(rows[2].starts_with("| **cache_shard:4** |"));
    }
}
