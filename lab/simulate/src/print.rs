//! Output of a run.

use std::time::Duration;

use corewise_bench::line::{Line, unit};
use corewise_sim::{Distance, Outcome};
use serde_json::json;

use crate::RunArgs;
use crate::account::{Account, ByDistance, Field, items, sum};

/// Prints the line of the benchmark, and the account of its time.
pub(crate) fn print_run<T>(
    what: &RunArgs,
    words: &[String],
    line: &Line,
    outcome: &Outcome<T>,
    took: Duration,
) {
    let whole = (outcome.time, outcome.tally.clone());
    let (time, tally) = outcome.between.clone().unwrap_or(whole);
    let account = Account::of(&tally, time, items(line, words), line, what.fields > 0);
    if what.json {
        let mut object =
            serde_json::to_value(line).expect("strings and numbers can always be written");
        object["machine"] = json!(what.machine);
        object["an_item"] = json!(account);
        println!("{object}");
        return;
    }
    println!("{} {} on '{}'", line.case, line.runtime, what.machine);
    if let Some(why) = &line.unsupported {
        println!("  not run: {why}");
        return;
    }
    // Memory is the simulator's own; switches are among an item's shares.
    let shown = |metric: &str| !["peak_rss", "voluntary_switches"].contains(&metric);
    for (metric, value) in line.metrics.iter().filter(|(metric, _)| shown(metric)) {
        println!("  {metric:24} {:>14} {}", short(*value), unit(metric).unwrap_or_default());
    }
    println!(
        "\nIn {time:.1?} of virtual time, simulated in {took:.1?}: {} items, {} cache lines. An item's share:",
        account.items, outcome.lines
    );
    shares(&account);
    fields(&account.fields, what.fields);
}

fn shares(account: &Account) {
    let by = |counts: &ByDistance| {
        let near_first =
            Distance::ALL.iter().filter_map(|d| Some((d.word(), counts.get(d.word())?)));
        let told: Vec<String> =
            near_first.map(|(word, count)| format!("{} {word}", short(*count))).collect();
        if told.is_empty() { String::new() } else { format!(": {}", told.join(", ")) }
    };
    let count = |what: &str, counts: &ByDistance| {
        println!("  {what:24} {:>14}{}", short(sum(counts)), by(counts));
    };
    count("line transfers", &account.transfers);
    count("wake-ups", &account.wakeups);
    let also = |what: &str, value: f64| println!("  {what:24} {:>14}", short(value));
    println!(
        "  {:24} {:>14}: {} preempted; {} moved to another CPU",
        "switches",
        short(account.switches),
        short(account.preemptions),
        short(account.migrations)
    );
    also("allocations", account.allocations);
    if account.faults > 0.0 {
        also("new pages", account.faults);
    }
    if account.membarriers > 0.0 {
        also("membarriers", account.membarriers);
    }
    let time = &account.time;
    let nanos = |what: &str, value: f64| println!("  {what:24} {:>14} ns", short(value));
    if let Some(cpu) = time.cpu {
        nanos("CPU time, of which", cpu);
    }
    nanos("  waiting for lines", time.lines);
    nanos("  spinning", time.spinning);
    nanos("  switching threads", time.switching);
    nanos("waiting for mutexes", time.locks);
    nanos("waiting for a CPU", time.waiting_for_a_cpu);
}

/// Returns the distances that occur, from near to far.
fn distances<'a>(counts: impl Iterator<Item = &'a ByDistance>) -> Vec<&'static str> {
    let all: Vec<&ByDistance> = counts.collect();
    let occurs = |word: &&str| all.iter().any(|counts| counts.contains_key(word));
    Distance::ALL.iter().map(|distance| distance.word()).filter(occurs).collect()
}

fn fields(fields: &[Field], most: usize) {
    let columns = distances(fields.iter().map(|field| &field.transfers));
    println!("\nLines that came from another CPU, by the field that they were taken for, an item:");
    println!("  {:>9} {:>9}{}  field", "ns", "accesses", heads(&columns));
    for field in fields.iter().take(most).filter(|field| sum(&field.transfers) > 0.0) {
        println!(
            "  {:>9} {:>9}{}  {}",
            short(field.nanoseconds),
            short(field.accesses),
            cells(&columns, &field.transfers),
            field.name
        );
    }
}

fn heads(columns: &[&str]) -> String {
    columns.iter().map(|word| format!(" {word:>9}")).collect()
}

fn cells(columns: &[&str], counts: &ByDistance) -> String {
    columns
        .iter()
        .map(|word| format!(" {:>9}", short(counts.get(word).copied().unwrap_or(0.0))))
        .collect()
}

/// Writes three digits or more: `0`, `0.0123`, `4.56`, `789`, `1 234 567`.
fn short(value: f64) -> String {
    match value.abs() {
        0.0 => "0".to_owned(),
        ..0.1 => format!("{value:.4}"),
        ..10.0 => format!("{value:.2}"),
        ..1000.0 => format!("{value:.1}"),
        _ => {
            let digits = format!("{value:.0}");
            let groups: Vec<&str> = digits
                .as_bytes()
                .rchunks(3)
                .rev()
                .map(|group| std::str::from_utf8(group).unwrap_or_default())
                .collect();
            groups.join(" ")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits_and_thousands_apart() {
        let shown = [0.0, 0.0123, 4.561, 78.9, 1_234_567.0, 999.96].map(short);
        assert_eq!(shown, ["0", "0.0123", "4.56", "78.9", "1 234 567", "1000.0"]);
    }
}
