//! `corewise dump --monitor`: the queues' counters, again and again, in the spirit of the kernel's
//! `wq_monitor.py`.

use std::io::Write;
use std::time::Duration;

use corewise::timeline::markup;
use serde_json::Value;

use super::client::{Client, printable};
use crate::args;
use crate::columns::Columns;
use crate::control::Question;
use crate::control::document::{Document, Queue};
use crate::exit::Failure;
use crate::screen::{self, FAINT, styled};

/// The least and the most room for a queue's name.
const NAMES: (usize, usize) = (10, 32);

/// Shows a round each `interval`, until Ctrl-C, or as often as was asked for.
pub(super) fn run(
    client: &mut Client,
    args: &args::Dump,
    interval: Duration,
) -> Result<(), Failure> {
    let question = Question { queues: args.queues.clone(), ..Question::dump() };
    let mut round = 0;
    loop {
        round += 1;
        let answer = client.ask(&question)?;
        let mut out = anstream::stdout().lock();
        if args.json {
            writeln!(out, "{}", line(round, answer))?;
        } else {
            let document: Document = serde_json::from_value(answer)
                .map_err(|error| Failure::new(format!("the answer is not a dump: {error}")))?;
            write!(out, "{}", table(&document, screen::width()))?;
        }
        out.flush()?;
        drop(out);
        if args.rounds.is_some_and(|rounds| round >= rounds) {
            return Ok(());
        }
        std::thread::sleep(interval);
    }
}

/// The queues alone: pools and scopes are for a single dump.
fn line(round: u64, mut answer: Value) -> String {
    if let Some(map) = answer.as_object_mut() {
        map.retain(|key, _| !matches!(key.as_str(), "scopes" | "pools" | "cpus" | "housekeeping"));
        for queue in map.get_mut("queues").and_then(Value::as_array_mut).into_iter().flatten() {
            queue.as_object_mut().map(|queue| queue.remove("pools"));
        }
        map.insert("round".to_string(), round.into());
    }
    answer.to_string()
}

/// A column: its head, its width, and what stands in it.
type Column = (&'static str, usize, fn(&Queue) -> String);

const COLUMNS: [Column; 8] = [
    ("total", 8, |queue| queue.started.to_string()),
    ("infl", 6, |queue| queue.in_flight.to_string()),
    ("run time", 8, |queue| match queue.timed {
        true => format!("{:.1} s", queue.counters.run_seconds),
        false => "-".to_string(),
    }),
    ("hogs", 5, |queue| queue.counters.cpu_intensive.to_string()),
    ("blocked", 7, |queue| queue.counters.blocked_untold.to_string()),
    ("moved", 7, |queue| queue.counters.overflowed.to_string()),
    ("mayday", 6, |queue| queue.counters.maydays.to_string()),
    ("rescued", 7, |queue| queue.counters.rescued.to_string()),
];

fn table(document: &Document, width: usize) -> String {
    let longest = document.queues.iter().map(|queue| queue.name.chars().count()).max();
    let rest: usize = COLUMNS.iter().map(|(_, width, _)| 2 + width).sum();
    let room = width.saturating_sub(rest).clamp(NAMES.0, NAMES.1);
    let names = longest.unwrap_or(0).clamp(NAMES.0, room);
    // As wide in each round, whatever stands in it.
    let wide = |text: &str, width: usize| format!("{text:>width$}");
    let heads = COLUMNS.iter().map(|(head, width, _)| wide(head, *width));
    let heads: Vec<String> = [" ".repeat(names)].into_iter().chain(heads).collect();
    let row = |queue: &Queue| {
        let name = markup::fit(&printable(&queue.name), names);
        let cells = COLUMNS.iter().map(|(_, width, cell)| wide(&cell(queue), *width));
        [name].into_iter().chain(cells).collect()
    };
    let rows = document.queues.iter().map(row).collect();
    let heads: Vec<&str> = heads.iter().map(String::as_str).collect();
    let mut out = String::new();
    let mut head = true;
    for line in (Columns { head: &heads, keys: &[0], words: &[0], rows }).lines(width + 2) {
        // Nothing stands above these lines that they would be part of.
        let line = line.strip_prefix("  ").unwrap_or_default();
        match head {
            true => out.push_str(&format!("{}\n", styled(FAINT, line))),
            false => out.push_str(&format!("{line}\n")),
        }
        head = line.is_empty();
    }
    out.push('\n');
    out
}
