//! `corewise dump` and `corewise health`: the work and the health of a running `corewise up`. With
//! `--monitor` the counters and rates of queues come again and again, in the spirit of the kernel's
//! `wq_monitor.py`. On a terminal they change in place.

use std::io::{IsTerminal, Write};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use corewise::timeline::markup;
use corewise_server::control::document::{Document, Queue};
use corewise_server::control::health::{Health, HealthState};
use corewise_server::control::{Question, served};
use corewise_server::text::Columns;
use corewise_server::units;
use serde_json::Value;

use crate::client::{self, Client, printable, who};
use crate::exit::Failure;
use crate::screen::{self, BAD, FAINT, GOOD, TITLE, styled};
use crate::{args, escape};

/// Prints the dump of a server.
pub(crate) fn run(args: &args::Dump) -> Result<(), Failure> {
    let mut client = Client::find(&args.server)?;
    if let Some(interval) = args.monitor {
        return monitor(&mut client, args, interval);
    }
    let mut question = Question { queues: args.queues.clone(), ..Question::new("dump") };
    if !args.json {
        question.text = Some(screen::whole_width());
    }
    let answer = client.ask(&question)?;
    client::print(&answer, args.json, |out| {
        let who = client::who(&answer);
        for line in markup::wrap(&client::introduction(&who), screen::whole_width(), 2) {
            writeln!(out, "{}", styled(TITLE, line))?;
        }
        for line in answer["text"].as_str().unwrap_or_default().lines() {
            let line = client::printable(line);
            match line.chars().next() {
                // A line that isn't indented is a title.
                Some(first) if first != ' ' => writeln!(out, "{}", styled(TITLE, line))?,
                _ => writeln!(out, "{line}")?,
            }
        }
        Ok(())
    })
}

/// Prints the health of a server, and ends with the exit code for it.
pub(crate) fn health(args: &args::Health) -> Result<(), Failure> {
    let answer = Client::find(&args.server)?.ask(&Question::new("health"))?;
    let health: Health = client::part(&answer, "health")?;
    client::print(&answer, args.json, |out| {
        let style = if health.state == HealthState::Ok { GOOD } else { BAD };
        let text = health.text();
        let (first, rest) = text.split_once('\n').unwrap_or((&text, ""));
        writeln!(out, "{}", styled(style, first))?;
        client::write_lines(out, rest)
    })?;
    match health.state {
        HealthState::Ok => Ok(()),
        state => Err(Failure::Unhealthy(state)),
    }
}

/// Least and greatest width of a column with queue names.
const NAMES: (usize, usize) = (10, 32);

/// Prints a round every `interval`, until Ctrl-C or for `--rounds` rounds.
fn monitor(client: &mut Client, args: &args::Dump, interval: Duration) -> Result<(), Failure> {
    let question = Question { queues: args.queues.clone(), ..Question::new("dump") };
    let mut round = 0;
    let mut before: Option<(f64, Document)> = None;
    let in_place = std::io::stdout().is_terminal();
    // Lines of the last round, which a terminal overwrites.
    let mut lines = 0;
    loop {
        round += 1;
        let answer = client.ask(&question)?;
        let mut out = anstream::stdout().lock();
        if args.json {
            writeln!(out, "{}", round_line(round, answer))?;
        } else {
            let up = who(&answer).up_seconds;
            let document: Document = serde_json::from_value(answer)
                .map_err(|error| Failure::new(format!("the answer is not a dump: {error}")))?;
            let had = before.as_ref().map(|(then, document)| (up - then, document));
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            let head =
                format!("{}, up for {}", units::moment(now.as_secs_f64()), served::seconds(up));
            let text = format!("{head}\n{}", queues_table(had, &document, screen::whole_width()));
            if lines != 0 {
                write!(out, "\x1b[{lines}A\x1b[J")?;
            }
            lines = if in_place { text.lines().count() } else { 0 };
            write!(out, "{text}")?;
            before = Some((up, document));
        }
        out.flush()?;
        drop(out);
        if args.rounds.is_some_and(|rounds| round >= rounds) {
            return Ok(());
        }
        std::thread::sleep(interval);
    }
}

/// Returns one round as a line of JSON, with the queues alone.
fn round_line(round: u64, mut answer: Value) -> String {
    if let Some(map) = answer.as_object_mut() {
        map.retain(|key, _| !matches!(key.as_str(), "scopes" | "pools" | "cpus" | "housekeeping"));
        for queue in map.get_mut("queues").and_then(Value::as_array_mut).into_iter().flatten() {
            queue.as_object_mut().map(|queue| queue.remove("pools"));
        }
        map.insert("round".to_string(), round.into());
    }
    escape::json(&answer.to_string()).into_owned()
}

/// A queue in the last round, and the seconds since then.
type Previous<'a> = Option<(f64, &'a Queue)>;

/// A column: its head, its width, and the text of its cells.
type Column = (&'static str, usize, fn(&Queue, Previous<'_>) -> String);

const COLUMNS: [Column; 9] = [
    ("total", 8, |queue, _| queue.started.to_string()),
    ("infl", 6, |queue, _| queue.in_flight.to_string()),
    ("items/s", 7, |queue, had| match had {
        Some((seconds, had)) if seconds > 0.0 => {
            format!("{:.0}", queue.started.saturating_sub(had.started) as f64 / seconds)
        }
        _ => "-".to_string(),
    }),
    ("run time", 8, |queue, _| match queue.timed {
        true => format!("{:.1} s", queue.counters.run_seconds),
        false => "-".to_string(),
    }),
    ("hogs", 5, |queue, _| queue.counters.cpu_intensive.to_string()),
    ("blocked", 7, |queue, _| queue.counters.blocked_untold.to_string()),
    ("moved", 7, |queue, _| queue.counters.overflowed.to_string()),
    ("mayday", 6, |queue, _| queue.counters.maydays.to_string()),
    ("rescued", 7, |queue, _| queue.counters.rescued.to_string()),
];

fn queues_table(had: Option<(f64, &Document)>, document: &Document, width: usize) -> String {
    let longest = document.queues.iter().map(|queue| queue.name.chars().count()).max();
    let rest: usize = COLUMNS.iter().map(|(_, width, _)| 2 + width).sum();
    let most = if width == usize::MAX { usize::MAX } else { NAMES.1 };
    let room = width.saturating_sub(rest).clamp(NAMES.0, most);
    let names = longest.unwrap_or(0).clamp(NAMES.0, room);
    // A column has the same width in all rounds.
    let wide = |text: &str, width: usize| format!("{text:>width$}");
    let heads = COLUMNS.iter().map(|(head, width, _)| wide(head, *width));
    let heads: Vec<String> = [" ".repeat(names)].into_iter().chain(heads).collect();
    let row = |queue: &Queue| {
        let name = markup::fit(&printable(&queue.name), names);
        let had = had.and_then(|(seconds, had)| {
            Some((seconds, had.queues.iter().find(|other| other.id == queue.id)?))
        });
        let cells = COLUMNS.iter().map(|(_, width, cell)| wide(&cell(queue, had), *width));
        [name].into_iter().chain(cells).collect()
    };
    let rows = document.queues.iter().map(row).collect();
    let heads: Vec<&str> = heads.iter().map(String::as_str).collect();
    let mut out = String::new();
    let mut head = true;
    for line in
        (Columns { head: &heads, keys: &[0], words: &[0], rows }).lines(width.saturating_add(2))
    {
        // No title stands above these lines, so they lose their indent.
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
