//! The model beside what was measured: a file of records, each simulated by a process of its own.

use std::process::Command;

use serde::Deserialize;

/// A file of records.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Records {
    record: Vec<Record>,
}

/// One figure of one run.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Record {
    machine: String,
    words: String,
    metric: String,
    measured: f64,
    source: String,
    /// The model was fitted by it.
    #[serde(default)]
    fitted: bool,
}

/// Simulates each run of the file, and prints what was measured, what the model says, and the ratio.
///
/// # Errors
/// The file can't be read, or a run failed.
pub(crate) fn check(file: &str, costs: &str, changes: &[String]) -> Result<(), String> {
    let text = std::fs::read_to_string(file).map_err(|error| format!("{file}: {error}"))?;
    let records: Records = toml::from_str(&text).map_err(|error| format!("{file}: {error}"))?;
    let mut last: Option<(String, serde_json::Value)> = None;
    let mut ratios = Vec::new();
    println!("{:>12} {:>12} {:>6}  run", "measured", "simulated", "ratio");
    for record in &records.record {
        let run = format!("{} {}", record.machine, record.words);
        let line = match last.take().filter(|(done, _)| *done == run) {
            Some((_, line)) => line,
            None => simulate(record, costs, changes)?,
        };
        let simulated = line["metrics"][&record.metric].as_f64();
        let simulated = simulated.ok_or_else(|| format!("{run}: no {}", record.metric))?;
        last = Some((run, line));
        let ratio = simulated / record.measured;
        println!(
            "{:>12.4e} {simulated:>12.4e} {ratio:>6.2}  {} on {}, {}{} ({})",
            record.measured,
            of(&record.words),
            record.machine,
            record.metric,
            if record.fitted { ", fitted" } else { "" },
            record.source,
        );
        if !record.fitted {
            ratios.push((ratio, record.metric.ends_with("p99")));
        }
    }
    let within = |most: f64| {
        let near = |ratio: &f64| (1.0 / most..=most).contains(ratio);
        let figures: Vec<f64> =
            ratios.iter().filter(|(_, tail)| !tail).map(|(ratio, _)| *ratio).collect();
        100 * figures.iter().filter(|ratio| near(ratio)).count() / figures.len().max(1)
    };
    println!(
        "Of rates and medians that nothing was fitted by, {} % lie within 15 %, {} % within 30 %, {} % within a \
         factor of 2",
        within(1.15),
        within(1.30),
        within(2.0)
    );
    Ok(())
}

fn simulate(record: &Record, costs: &str, changes: &[String]) -> Result<serde_json::Value, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut command = Command::new(program);
    command.args(["--json", "--costs", costs, "--machine", &record.machine]);
    for change in changes {
        command.args(["--cost", change]);
    }
    command.args(record.words.split(' '));
    let output = command.output().map_err(|error| error.to_string())?;
    if !output.status.success() {
        return Err(format!(
            "{}: {}",
            record.words,
            String::from_utf8_lossy(&output.stderr).trim()
        ));
    }
    serde_json::from_slice(&output.stdout).map_err(|error| format!("{}: {error}", record.words))
}

/// The words that tell runs apart.
fn of(words: &str) -> String {
    let told =
        |word: &&str| ["case=", "runtime=", "producers="].iter().any(|key| word.starts_with(key));
    let values = words.split(' ').filter(told).filter_map(|word| word.split_once('='));
    let named = values.map(|(key, value)| match key {
        "producers" => format!("{value} producers"),
        _ => value.to_owned(),
    });
    let beside = words.strip_prefix("--neighbours ").and_then(|rest| rest.split(' ').next());
    let beside = beside.map(|count| format!("beside {count} neighbours"));
    named.chain(beside).collect::<Vec<_>>().join(" ")
}
