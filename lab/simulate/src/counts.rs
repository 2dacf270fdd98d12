//! A regression test on counts. It compares the line transfers and wake-ups an item of some runs
//! with recorded ones.
//!
//! Counts, unlike times, are the same on each machine and in each run of the same sources. But
//! where threads contend, any change alters the order of events: a storm has 4 transfers an item
//! with one seed and 17 with another. So each run is made from several seeds. The file has the
//! largest count of all seeds, by field, and their mean may exceed it by less than a line. A new
//! counter that all items touch shows as a field that isn't in the file.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use serde::Deserialize;
use serde_json::Value;

use crate::account::sum;
use crate::runs::{self, simulate, simulate_all};

/// Transfers an item by which a run, or a field, may exceed the recorded ones. A line that bounces
/// once more adds 1.
const LINES: f64 = 0.5;
/// Transfers an item that a field without a record may have.
const NEW: f64 = 0.25;
/// Wake-ups an item by which a run may exceed the recorded ones.
const WAKES: f64 = 0.1;
/// Seeds of a run.
const SEEDS: u64 = 4;

/// A file of counts.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Counts {
    run: Vec<Run>,
}

/// One run and its counts: the largest of all seeds in the file, else their mean.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Run {
    machine: String,
    words: String,
    /// Lines from another CPU, an item.
    #[serde(default)]
    transfers: f64,
    /// Woken threads, an item.
    #[serde(default)]
    wakeups: f64,
    /// Transfers an item by field.
    #[serde(default)]
    fields: BTreeMap<String, f64>,
}

impl Run {
    fn asked(&self) -> runs::Run<'_> {
        runs::Run { machine: &self.machine, words: &self.words }
    }
}

/// The keys of a run that this test reads from the program's output with `--json`.
#[derive(Debug, Deserialize)]
struct PrintedRun {
    an_item: Item,
}

#[derive(Debug, Deserialize)]
struct Item {
    transfers: BTreeMap<String, f64>,
    wakeups: BTreeMap<String, f64>,
    fields: Vec<Field>,
}

#[derive(Debug, Deserialize)]
struct Field {
    name: String,
    transfers: BTreeMap<String, f64>,
}

/// Compares each run of the file with its recorded counts.
///
/// # Errors
/// A run failed, or exceeds its recorded counts.
pub(crate) fn compare(file: &str) -> Result<(), String> {
    let recorded = read(file)?;
    steady(&recorded)?;
    let mut worse = Vec::new();
    for (was, seeds) in recorded.iter().zip(all(&recorded)?) {
        let is = fold(&seeds, mean);
        println!(
            "{:6.2} line transfers an item, at most {:6.2} were recorded; {:5.3} wake-ups, at most {:5.3}: {} on '{}'",
            is.transfers, was.transfers, is.wakeups, was.wakeups, is.words, is.machine
        );
        worse.extend(more(was, &is));
    }
    if worse.is_empty() {
        return Ok(());
    }
    Err(format!(
        "{}\nIf that is what the change is to cost, record it: 'cargo xtask sim counts --renew'",
        worse.join("\n")
    ))
}

/// Checks that the program's arguments, which are allocated before a run, don't change it: the
/// first run gives the same output.
fn steady(recorded: &[Run]) -> Result<(), String> {
    let Some(first) = recorded.first() else { return Ok(()) };
    let [one, other] =
        ["1", "1000000000000"].map(|fields| simulate(first.asked(), 1, &["--fields", fields]));
    if one? == other? {
        return Ok(());
    }
    Err("a run counts something else where the program has another argument: see allocator.rs"
        .into())
}

/// Writes the counts of the runs into the file.
///
/// # Errors
/// A run failed, or the file can't be written.
pub(crate) fn renew(file: &str) -> Result<(), String> {
    let text = std::fs::read_to_string(file).map_err(|error| format!("{file}: {error}"))?;
    let head = text.lines().take_while(|line| line.starts_with('#'));
    let mut text = head.fold(String::new(), |head, line| head + line + "\n");
    for seeds in all(&read(file)?)? {
        written(&mut text, &fold(&seeds, most));
    }
    std::fs::write(file, text).map_err(|error| format!("{file}: {error}"))
}

fn read(file: &str) -> Result<Vec<Run>, String> {
    let text = std::fs::read_to_string(file).map_err(|error| format!("{file}: {error}"))?;
    let counts: Counts = toml::from_str(&text).map_err(|error| format!("{file}: {error}"))?;
    Ok(counts.run)
}

fn written(text: &mut String, run: &Run) {
    let _ = write!(
        text,
        "\n[[run]]\nmachine = {:?}\nwords = {:?}\ntransfers = {:.2}\nwakeups = {:.3}\n[run.fields]\n",
        run.machine, run.words, run.transfers, run.wakeups
    );
    for (name, transfers) in run.fields.iter().filter(|(_, transfers)| **transfers >= 0.005) {
        let _ = writeln!(text, "{name:?} = {transfers:.2}");
    }
}

/// Returns the present counts of the runs, each by seed.
fn all(runs: &[Run]) -> Result<Vec<Vec<Run>>, String> {
    let asked: Vec<runs::Run<'_>> = runs.iter().map(Run::asked).collect();
    let lines = simulate_all(&asked, SEEDS)?;
    runs.iter()
        .map(|run| lines[&run.asked()].iter().map(|line| counted(run, line)).collect())
        .collect()
}

/// Returns the counts of a run, from the line that it printed.
fn counted(run: &Run, line: &Value) -> Result<Run, String> {
    let told = PrintedRun::deserialize(line)
        .map_err(|error| format!("{}: it printed something else: {error}", run.words))?;
    let item = told.an_item;
    let fields = item.fields.into_iter().map(|field| (field.name, sum(&field.transfers)));
    Ok(Run {
        transfers: sum(&item.transfers),
        wakeups: sum(&item.wakeups),
        fields: fields.collect(),
        ..run.clone()
    })
}

/// Returns one run for the runs of all seeds. `of` gives each count from theirs.
fn fold(seeds: &[Run], of: impl Fn(&[f64]) -> f64) -> Run {
    let each = |count: &dyn Fn(&Run) -> f64| of(&seeds.iter().map(count).collect::<Vec<_>>());
    let names: BTreeSet<&String> = seeds.iter().flat_map(|run| run.fields.keys()).collect();
    let field = |name: &String| each(&|run: &Run| run.fields.get(name).copied().unwrap_or(0.0));
    Run {
        transfers: each(&|run| run.transfers),
        wakeups: each(&|run| run.wakeups),
        fields: names.into_iter().map(|name| (name.clone(), field(name))).collect(),
        ..seeds[0].clone()
    }
}

fn mean(counts: &[f64]) -> f64 {
    counts.iter().sum::<f64>() / counts.len() as f64
}

fn most(counts: &[f64]) -> f64 {
    counts.iter().copied().fold(0.0, f64::max)
}

/// Returns the counts of a run that exceed the recorded ones, or `None` within the margins.
fn more(was: &Run, is: &Run) -> Option<String> {
    let more_of = |(name, now): (&String, &f64)| {
        let before = was.fields.get(name).copied();
        let margin = if before.is_some() { LINES } else { NEW };
        let before = before.unwrap_or(0.0);
        (now - before > margin).then(|| (name.clone(), *now, before))
    };
    let mut fields: Vec<(String, f64, f64)> = is.fields.iter().filter_map(more_of).collect();
    let all = is.transfers - was.transfers > LINES || is.wakeups - was.wakeups > WAKES;
    if !all && fields.is_empty() {
        return None;
    }
    fields.sort_by(|a, b| (b.1 - b.2).total_cmp(&(a.1 - a.2)));
    let mut text = format!(
        "{} on '{}': {:.2} line transfers an item, at most {:.2} were recorded; {:.3} wake-ups, at most {:.3} were",
        is.words, is.machine, is.transfers, was.transfers, is.wakeups, was.wakeups
    );
    for (name, now, before) in fields {
        let _ = write!(text, "\n  {name} bounces: {now:.2}, at most {before:.2} were recorded");
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(transfers: f64, wakeups: f64, fields: &[(&str, f64)]) -> Run {
        let fields = fields.iter().map(|(name, share)| ((*name).to_owned(), *share)).collect();
        let (machine, words) = ("core:2".to_owned(), "case=storm".to_owned());
        Run { machine, words, transfers, wakeups, fields }
    }

    #[test]
    fn one_more_line_an_item_is_told_with_the_field_that_bounces() {
        let was = run(5.0, 0.1, &[("a::A.x", 3.0), ("a::A.y", 2.0)]);
        let told = |is: &Run| more(&was, is).expect("it is more");
        let one = told(&run(5.0, 0.1, &[("a::A.x", 2.0), ("a::A.y", 2.04), ("a::B.z", 0.96)]));
        assert!(one.contains("a::B.z bounces: 0.96") && !one.contains("a::A."), "{one}");
        assert!(told(&run(5.0, 0.1, &[("a::A.y", 3.0)])).contains("a::A.y bounces"));
        assert!(told(&run(5.6, 0.1, &[])).contains("5.60 line transfers"));
        assert!(told(&run(5.0, 1.1, &[])).contains("1.100 wake-ups"));
        assert!(more(&was, &run(5.4, 0.15, &[("a::A.x", 3.4), ("a::B.z", 0.2)])).is_none());
    }

    #[test]
    fn the_most_of_all_seeds_is_recorded_and_their_mean_compared() {
        let seeds = [run(5.0, 0.1, &[("a::A.x", 3.0)]), run(7.0, 0.3, &[("a::A.y", 1.0)])];
        let (most, mean) = (fold(&seeds, most), fold(&seeds, mean));
        assert_eq!((most.transfers, most.wakeups, most.fields["a::A.x"]), (7.0, 0.3, 3.0));
        assert_eq!((mean.transfers, mean.wakeups, mean.fields["a::A.y"]), (6.0, 0.2, 0.5));
    }

    #[test]
    fn a_written_file_is_read_back() {
        let mut text = String::new();
        written(&mut text, &run(5.0, 0.125, &[("a::A.x", 3.0)]));
        let read: Counts = toml::from_str(&text).expect("TOML");
        assert_eq!((read.run[0].transfers, read.run[0].fields["a::A.x"]), (5.0, 3.0));
    }
}
