//! The tables of results in the documents follow from their records. The test fails for a table
//! that was changed by hand, and for a record replaced without its tables. With `COREWISE_RENEW=1`
//! it writes the tables.
//!
//! A file has a place for each table, with a comment that names its source:
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
//! The first line names the files of records, relative to the Markdown file, or is `-` if there is
//! none yet. Each other line is a column: its heading, the case without the scope, the metric. The
//! rows are the variants, and scopes, that have at least one of these columns. The one line
//! `headlines` stands for a table of these.
//!
//! A table of rows is for several workloads. It has a column for each variant that the first line
//! of its description names, and a row for each line below. `best` is the best variant other than
//! Corewise, with its name. A file has one such table, and the description anywhere.
//!
//! ```text
//! <!-- rows -->
//! (the table)
//! <!-- end of rows -->
//!
//! <!-- rows: corewise tokio best
//! closures from outside | 2 | results/peers-2cpu-3b8f966.json | storm/boxed | items_per_second
//! -->
//! ```

use std::path::{Path, PathBuf};

use corewise_bench::names::{BESIDE, Better, CaseName, HEADLINE, INTERVAL, Place, sums_up};
use corewise_bench::record::{Record, show};
use corewise_timeline::markup::printable;

type Read<'r> = &'r dyn Fn(&str) -> Result<Vec<Record>, String>;

const BEGINS: [(&str, &str); 2] =
    [("<!-- results: ", "<!-- end of results -->"), ("<!-- rows -->\n", "<!-- end of rows -->")];
const DESCRIBED: &str = "\n-->\n";
const DESCRIBES_ROWS: &str = "<!-- rows: ";

/// The program that wrote a record. Figures of two programs never share a scale: they were measured
/// at different times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    /// `corewise-bench`: the scopes, and the old design.
    Own,
    /// `bench-peers`: Corewise and other runtimes.
    Peers,
}

/// Returns the name of a row.
fn label(source: Source, record: &Record, place: Option<Place>) -> String {
    // Idle workers of these runtimes spin for long: their latencies are to be read with their CPU
    // time.
    let spins = ["rayon", "tbb", "glommio-spins", "seastar-poll-mode"];
    match (source, &*printable(&record.variant), place) {
        (Source::Own, "corewise", Some(place)) if place.is_default() => {
            format!("{place} (default)")
        }
        (Source::Own, "corewise", Some(place)) => place.to_string(),
        // Among its peers only the default counts.
        (_, "corewise", Some(place)) if !place.is_default() => format!("Corewise ({place})"),
        (_, "corewise", _) => "Corewise".to_owned(),
        (_, variant, Some(place)) => format!("{variant} ({place})"),
        (_, variant, None) if spins.iter().any(|name| variant.starts_with(name)) => {
            format!("{variant} (spins)")
        }
        (_, variant, None) => variant.to_owned(),
    }
}

/// Returns the ratios that sum a call up, each with its interval if there is one. The headlines of
/// a program come in their order, and then the further ones.
fn ratios(records: &[Record]) -> impl Iterator<Item = (&Record, Option<&Record>)> {
    let interval = |of: &Record| {
        records.iter().find(|other| other.case == INTERVAL && other.metric == of.metric)
    };
    let of_case = |case| records.iter().filter(move |record| record.case == case);
    [HEADLINE, BESIDE].into_iter().flat_map(of_case).map(move |of| (of, interval(of)))
}

/// Returns `text` with new tables. `read` gives the records of a file.
fn fill(text: &str, read: Read<'_>) -> Result<String, String> {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    let place = |rest: &str| {
        let found = BEGINS.iter().filter_map(|kind| Some((rest.find(kind.0)?, *kind)));
        found.min_by_key(|(at, _)| *at)
    };
    while let Some((at, (begin, end))) = place(rest) {
        let line = 1 + text[..text.len() - rest.len() + at].matches('\n').count();
        let wrong = |what: String| format!("line {line}: the place for results {what}");
        let behind = &rest[at + begin.len()..];
        let is_of_rows = begin == BEGINS[1].0;
        let parts = if is_of_rows {
            let described = text.split_once(DESCRIBES_ROWS);
            described
                .and_then(|(_, rows)| rows.split_once(DESCRIBED))
                .map(|(head, _)| (head, behind))
        } else {
            behind.split_once(DESCRIBED)
        };
        let (head, body) = parts.ok_or_else(|| wrong("has no line `-->`".to_owned()))?;
        let (_, after) = body
            .split_once(end)
            .filter(|(old, _)| place(old).is_none())
            .ok_or_else(|| wrong(format!("has no `{end}`")))?;
        let table = if is_of_rows { rows(head, read) } else { columns(head, read) };
        out += &rest[..rest.len() - body.len()];
        out += &format!("\n{}\n", table.map_err(wrong)?);
        out += end;
        rest = after;
    }
    Ok(out + rest)
}

/// Writes a row of a table.
fn row(cells: impl IntoIterator<Item = String>) -> String {
    cells.into_iter().fold("|".to_owned(), |row, cell| row + " " + &cell + " |")
}

fn columns(head: &str, read: Read<'_>) -> Result<String, String> {
    let mut lines = head.lines();
    let files: Vec<&str> = lines.next().unwrap_or_default().split_whitespace().collect();
    let columns: Vec<&str> = lines.collect();
    if files == ["-"] {
        return Ok("*Not measured yet.*\n".to_owned());
    }
    let mut records = Vec::new();
    for file in &files {
        records.extend(read(file).map_err(|what| format!("names {file}: {what}"))?);
    }
    let names = files.join(" ");
    let (table, of) = match columns[..] {
        [] => return Err("has no columns".to_owned()),
        ["headlines"] => headlines(&names, &records)?,
        _ => variants(&columns, &names, &records)?,
    };
    let (least, most) = of.iter().fold((usize::MAX, 0), |(least, most), record| {
        (least.min(record.runs), most.max(record.runs))
    });
    let runs = if least == most { least.to_string() } else { format!("{least} to {most}") };
    let links = files.iter().map(|file| {
        let name = file.rsplit('/').next().unwrap_or(file);
        format!("[{name}]({file})")
    });
    let links = links.collect::<Vec<_>>().join(", ");
    Ok(format!("{table}\n\nMedian of {runs} runs, and [least..most] of them; from {links}.\n"))
}

type Table<'r> = Result<(String, Vec<&'r Record>), String>;

fn headlines<'r>(files: &str, records: &'r [Record]) -> Table<'r> {
    let mut table =
        "| ratio of pairs | median | 95 % interval | read as |\n|---|---|---|---|".to_owned();
    let all: Vec<_> = ratios(records).collect();
    if all.is_empty() {
        return Err(format!("asks for headlines, of which {files} has none"));
    }
    for &(record, interval) in &all {
        let words = Better::of_headline(record).map_or("", Better::words);
        let interval = interval.map_or("–".to_owned(), |interval| {
            format!("{} to {}", show(interval.min, "ratio"), show(interval.max, "ratio"))
        });
        let metric = format!("`{}`", record.metric);
        table += &format!("\n{}", row([metric, shown(record), interval, words.to_owned()]));
    }
    Ok((table, all.into_iter().map(|(record, _)| record).collect()))
}

/// Returns a table with a column for each metric and a row for each variant.
fn variants<'r>(columns: &[&str], files: &str, records: &'r [Record]) -> Table<'r> {
    // Only `bench-peers` has others than Corewise and its yardsticks.
    let own = ["corewise", "before", "futex"];
    let is_own = |record: &Record| sums_up(&record.case) || own.contains(&&*record.variant);
    let source = if records.iter().all(is_own) { Source::Own } else { Source::Peers };
    let (mut headings, mut rows) =
        (vec![String::new()], Vec::<(String, Vec<Option<&Record>>)>::new());
    for (n, column) in columns.iter().enumerate() {
        let parts: Vec<&str> = column.split('|').map(str::trim).collect();
        let [heading, case, metric] = parts[..] else {
            return Err(format!("has a line '{column}': heading | case | metric are expected"));
        };
        headings.push(heading.to_owned());
        for record in records.iter().filter(|record| record.metric == metric) {
            let its = CaseName::of(&record.case);
            if its.workload != case {
                continue;
            }
            let label = label(source, record, its.place);
            let position = rows.iter().position(|row| row.0 == label).unwrap_or_else(|| {
                rows.push((label, vec![None; columns.len()]));
                rows.len() - 1
            });
            rows[position].1[n] = Some(record);
        }
    }
    // A column without records shows dashes. A table of dashes alone is a mistake.
    if rows.is_empty() {
        return Err(format!("asks for {}, of which {files} has nothing", columns.join("; ")));
    }
    if source == Source::Peers {
        // The first column gives the order, the best first. Rows without a value there come last.
        rows.sort_by(|(_, a), (_, b)| match (a[0], b[0]) {
            (Some(a), Some(b)) => Better::of_unit(&a.unit).compare(a.median, b.median),
            (a, b) => b.is_some().cmp(&a.is_some()),
        });
    }
    let mut table = format!(
        "{}\n|{}",
        row(headings).replacen("|  |", "| |", 1),
        "---|".repeat(columns.len() + 1)
    );
    for (label, cells) in &rows {
        let ours = cells.iter().flatten().any(|record| record.variant == "corewise");
        let mark = if ours { "**" } else { "" };
        let label = format!("{mark}{}{mark}", label.replace('|', "\\|"));
        let cells = cells.iter().map(|cell| cell.map_or("–".to_owned(), shown));
        table += &format!("\n{}", row([label].into_iter().chain(cells)));
    }
    Ok((table, rows.into_iter().flat_map(|(_, cells)| cells).flatten().collect()))
}

/// Writes `30.8 M/s [29.7..32.1]`, the ends in the median's unit.
fn shown(record: &Record) -> String {
    let median = show(record.median, &record.unit);
    let suffix = median.split_once(' ').map_or("", |(_, unit)| unit);
    let [low, high] = [record.min, record.max].map(|value| {
        let text = show(value, &record.unit);
        match text.split_once(' ') {
            Some((number, unit)) if unit == suffix => number.to_owned(),
            _ => text,
        }
    });
    format!("{median} [{low}..{high}]")
}

/// Writes a table with a column for each variant and a row for each line.
fn rows(head: &str, read: Read<'_>) -> Result<String, String> {
    let mut lines = head.lines();
    let variants: Vec<&str> = lines.next().unwrap_or_default().split_whitespace().collect();
    let names = variants.iter().map(|variant| match *variant {
        "corewise" => "**Corewise**".to_owned(),
        "best" => "best of all others".to_owned(),
        other => other.to_owned(),
    });
    let mut table =
        format!("| | CPUs {}\n|---|---|{}\n", row(names), "---|".repeat(variants.len()));
    for line in lines {
        let parts: Vec<&str> = line.split('|').map(str::trim).collect();
        let [label, cpus, file, case, metric] = parts[..] else {
            return Err(format!("'{line}': label | CPUs | file | case | metric are expected"));
        };
        let mut records = read(file).map_err(|what| format!("names {file}: {what}"))?;
        records.retain(|record| {
            CaseName::of(&record.case).workload == case && record.metric == metric
        });
        let Some(unit) = records.first().map(|record| record.unit.clone()) else {
            return Err(format!("names {file}, which has no {metric} of {case}"));
        };
        let others = records.iter().filter(|record| !record.variant.starts_with("corewise"));
        let best = others.min_by(|a, b| Better::of_unit(&unit).compare(a.median, b.median));
        let cells = variants.iter().map(|variant| match *variant {
            "best" => best.map(|best| format!("{} ({})", show(best.median, &unit), best.variant)),
            variant => {
                let of = records.iter().find(|record| record.variant == variant);
                of.map(|record| show(record.median, &unit))
            }
        });
        let cells = cells.map(|cell| cell.unwrap_or("–".to_owned()));
        let named = [label, cpus].map(str::to_owned);
        table += &format!("{}\n", row(named.into_iter().chain(cells)));
    }
    Ok(table)
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Reads the records of the file `name`, relative to `file`.
fn beside(file: &Path, name: &str) -> Result<Vec<Record>, String> {
    let text = std::fs::read_to_string(file.with_file_name(name)).map_err(|e| e.to_string())?;
    serde_json::from_str(&text).map_err(|error| format!("it holds no records: {error}"))
}

/// Returns the files of `docs/results` with this ending.
fn results(ending: &str) -> Vec<PathBuf> {
    let folder = std::fs::read_dir(root().join("docs/results"));
    let entries = folder.expect("docs/results is there");
    let paths = entries.map(|entry| entry.expect("it can be listed").path());
    paths.filter(|path| path.extension().is_some_and(|extension| extension == ending)).collect()
}

#[test]
fn the_tables_of_the_documents_are_those_of_the_records() {
    let documents = ["README.md", "docs/benchmarks.md"].map(|file| root().join(file));
    for path in documents.iter().cloned().chain(results("md")) {
        let file = path.display();
        let text = std::fs::read_to_string(&path).unwrap();
        let has_table = text.contains("<!-- end of r");
        assert!(has_table || !documents.contains(&path), "{file} has no table");
        let filled = fill(&text, &|name| beside(&path, name));
        let filled = filled.unwrap_or_else(|problem| panic!("{file}: {problem}"));
        if std::env::var_os("COREWISE_RENEW").is_some() {
            std::fs::write(&path, &filled).unwrap();
        } else {
            assert!(
                filled == text,
                "{file} isn't what its records give: run\n  COREWISE_RENEW=1 cargo test -p corewise-bench --test it tables"
            );
        }
    }
}

#[test]
fn every_record_of_the_results_can_be_read_and_is_named_in_their_readme() {
    let readme = std::fs::read_to_string(root().join("docs/results/README.md")).unwrap();
    for path in results("json") {
        let name = path.file_name().unwrap().to_str().unwrap();
        assert!(!beside(&path, name).unwrap().is_empty(), "{name} is empty");
        assert!(readme.contains(&format!("`{name}`")), "{name}: nothing says how it was made");
    }
}

fn record(case: &str, variant: &str, metric: &str, unit: &str, median: f64) -> Record {
    let [case, variant, metric, unit] = [case, variant, metric, unit].map(str::to_owned);
    let (bench, min, max) = ("workqueue".to_owned(), median / 2.0, median * 2.0);
    Record { bench, case, variant, metric, unit, median, min, max, runs: 7 }
}

fn made_up(file: &str) -> Result<Vec<Record>, String> {
    match file {
        "results/a.json" => Ok(vec![
            record("storm/boxed", "tokio", "items_per_second", "items/s", 1.9e6),
            record("storm/boxed/cache_shard", "corewise", "items_per_second", "items/s", 9e6),
            record("storm/boxed/cache_shard", "corewise", "cpu_per_item", "ns", 600.0),
            record("inside", "tokio", "items_per_second", "items/s", 1e6),
        ]),
        "own.json" => Ok(["cpu", "cache_shard", "cache_shard:4"]
            .map(|scope| record(&format!("inside/{scope}"), "corewise", "m", "items/s", 1.0))
            .to_vec()),
        "more.json" => Ok(vec![
            record("storm/boxed", "tokio", "cpu_per_item", "ns", 800.0),
            record("storm/boxed", "corewise-spawn", "cpu_per_item", "ns", 100.0),
            record("storm/boxed", "rayon", "cpu_per_item", "ns", 700.0),
            record("headline", "corewise", "inside_vs_best_peer", "ratio", 1.5),
        ]),
        _ => Err("there is no such file".into()),
    }
}

const TEXT: &str = "# T\n\n<!-- results: results/a.json\nboxed | storm/boxed | items_per_second\n\
                    CPU | storm/boxed | cpu_per_item\n-->\nold\n<!-- end of results -->\n\nmore\n";
const ROWS: &str = "before\n<!-- rows -->\nold\n<!-- end of rows -->\nafter\n\
                    <!-- rows: corewise tokio best\n\
                    storm | 2 | results/a.json | storm/boxed | items_per_second\n\
                    answer | 2 | more.json | storm/boxed | cpu_per_item\n-->\n";

#[test]
fn a_place_is_filled_and_stays_a_place() {
    let filled = fill(TEXT, &made_up).unwrap();
    let table = "-->\n\n| | boxed | CPU |\n|---|---|---|\n\
                 | **Corewise** | 9.00 M/s [4.50..18.0] | 600 ns [300..1.20 µs] |\n\
                 | tokio | 1.90 M/s [950 k/s..3.80] | – |\n\n\
                 Median of 7 runs, and [least..most] of them; from [a.json](results/a.json).\n\n\
                 <!-- end of results -->\n\nmore\n";
    assert_eq!(filled.split_once("cpu_per_item\n").unwrap().1, table);
    assert_eq!(fill(&filled, &made_up).unwrap(), filled, "filling again changes nothing");
    assert_eq!(fill("no place\n", &made_up).unwrap(), "no place\n");
    let filled = fill(&TEXT.replace("results/a.json", "results/a.json more.json"), &made_up);
    let filled = filled.unwrap();
    assert!(filled.contains("| tokio | 1.90 M/s [950 k/s..3.80] | 800 ns ["), "{filled}");
    assert!(filled.contains("from [a.json](results/a.json), [more.json](more.json)."));
    let filled = fill(&TEXT.replace("results/a.json", "-"), &made_up).unwrap();
    assert!(filled.contains("-->\n\n*Not measured yet.*\n\n<!-- end of results -->"));
}

#[test]
fn a_place_of_rows_has_a_column_for_each_variant_it_names_and_the_best_of_the_others() {
    let filled = fill(ROWS, &made_up).unwrap();
    let table = "\n| | CPUs | **Corewise** | tokio | best of all others |\n|---|---|---|---|---|\n\
                 | storm | 2 | 9.00 M/s | 1.90 M/s | 1.90 M/s (tokio) |\n\
                 | answer | 2 | – | 800 ns | 700 ns (rayon) |\n\n<!-- end of rows -->\nafter\n";
    let (below, _) = filled.split_once(DESCRIBES_ROWS).unwrap();
    assert_eq!(below.split_once("<!-- rows -->\n").unwrap().1, table);
    assert_eq!(fill(&filled, &made_up).unwrap(), filled, "filling again changes nothing");
}

#[test]
fn headlines_and_scopes_are_tables_in_their_order() {
    let place = |what: &str| format!("<!-- results: {what}\n-->\n<!-- end of results -->\n");
    let filled = fill(&place("more.json\nheadlines"), &made_up).unwrap();
    let row = "| `inside_vs_best_peer` | 1.50 [0.750..3.00] | – | higher is better |";
    assert!(filled.contains(row), "{filled}");
    let filled = fill(&place("own.json\nx | inside | m"), &made_up).unwrap();
    let rows: Vec<&str> = filled.lines().filter(|line| line.starts_with("| **")).collect();
    let begins = ["| **cpu** |", "| **cache_shard (default)** |", "| **cache_shard:4** |"];
    assert!(rows.iter().zip(begins).all(|(row, begin)| row.starts_with(begin)), "{rows:?}");
    let problem = fill(&place("own.json\nheadlines"), &made_up).unwrap_err();
    assert!(problem.contains("asks for headlines, of which own.json has none"), "{problem}");
    assert!(fill(&place("own.json"), &made_up).unwrap_err().contains("has no columns"));
}

#[test]
fn a_mistake_in_a_place_is_named_with_its_line() {
    for (text, from, to, said) in [
        (TEXT, "results/a.json", "x.json", "line 3: the place for results names x.json: there"),
        (TEXT, "| cpu_per_item", "", "heading | case | metric are expected"),
        (TEXT, "storm/boxed | ", "storm/none | ", "storm/none | items_per_second"),
        (TEXT, "<!-- end of results -->", "", "has no `<!-- end"),
        (TEXT, "\n-->\n", "\n", "has no line `-->`"),
        (ROWS, "more.json", "b.json", "names b.json: there is no such file"),
        (ROWS, "storm/boxed |", "storm/none |", "has no items_per_second of storm/none"),
        (ROWS, " | cpu_per_item", "", "are expected"),
        (ROWS, "<!-- end of rows -->", "", "has no `<!-- end"),
    ] {
        let problem = fill(&text.replace(from, to), &made_up).unwrap_err();
        assert!(problem.contains(said), "{problem}");
    }
}
