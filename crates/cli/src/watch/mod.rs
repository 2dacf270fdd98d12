//! `corewise clients`, `disconnect`, `events` and `top`: the work of a running `corewise up`, and
//! its clients.

mod top;

use std::collections::BTreeMap;
use std::io::Write;
use std::time::Duration;

use corewise_server::control::Question;
use corewise_server::control::served::{self, Rates};
use corewise_server::text::Columns;
use corewise_server::units;
use serde_json::Value;

use crate::args::{Clients, Disconnect, Events};
use crate::client::{self, Client, printable};
use crate::escape;
use crate::exit::Failure;
use crate::screen::{self, FAINT, TITLE, styled};

pub(crate) use top::run as top;

/// Time between the two samples that rates are made of.
const BETWEEN: Duration = Duration::from_millis(500);

/// Lists the clients of a server.
pub(crate) fn clients(args: &Clients) -> Result<(), Failure> {
    let mut client = Client::find(&args.server)?;
    let first = client.ask(&Question::new("clients"))?;
    client::print(&first, args.json, |out| {
        std::thread::sleep(BETWEEN);
        let answer = client.ask(&Question::new("clients"))?;
        let before: Vec<served::Client> = client::part(&first, "clients")?;
        let mut now: Vec<served::Client> = client::part(&answer, "clients")?;
        served::slowest_first(&mut now);
        let seconds = client::who(&answer).up_seconds - client::who(&first).up_seconds;
        for (n, line) in table(&before, &now, seconds, screen::whole_width()).iter().enumerate() {
            match n {
                0 => writeln!(out, "{}", styled(TITLE, printable(line)))?,
                _ => writeln!(out, "{}", printable(line))?,
            }
        }
        if now.is_empty() {
            writeln!(out, "there is no client")?;
        }
        Ok(())
    })
}

fn table(
    before: &[served::Client],
    now: &[served::Client],
    seconds: f64,
    width: usize,
) -> Vec<String> {
    let earlier: BTreeMap<u64, &served::Client> =
        before.iter().map(|one| (one.client, one)).collect();
    let rows = now.iter().map(|one| {
        let rates = Rates::between(earlier.get(&one.client).map(|one| &one.ops), &one.ops, seconds);
        vec![
            one.client.to_string(),
            one.from.words(),
            one.from.process(),
            one.export_words().to_string(),
            served::seconds(one.connected_seconds),
            one.in_flight.to_string(),
            served::time(one.oldest()),
            served::time(one.untaken()),
            served::time(one.partial()),
            units::about(one.untaken_bytes),
            format!("{:.0}", rates.requests),
            format!("{:.1}", rates.bytes / f64::from(1 << 20)),
            served::time(rates.p50),
            served::time(rates.p99),
            one.ops.all().iter().map(|(_, op)| op.errors).sum::<u64>().to_string(),
        ]
    });
    let head = [
        "client", "from", "process", "export", "for", "infl", "oldest", "untaken", "partial",
        "waiting", "req/s", "MiB/s", "p50", "p99", "errors",
    ];
    let rows: Vec<_> = rows.collect();
    match rows.is_empty() {
        true => Vec::new(),
        false => Columns { head: &head, keys: &[0], words: &[1, 3], rows }.lines(width),
    }
}

/// Disconnects a client, and says whether there was one.
pub(crate) fn disconnect(args: &Disconnect) -> Result<(), Failure> {
    let question = Question { client: Some(args.client), ..Question::new("disconnect") };
    let answer = Client::find(&args.server)?.ask(&question)?;
    let gone: served::Client = client::part(&answer, "disconnected")?;
    client::print(&answer, args.json, |out| {
        let lost = units::count(gone.in_flight.into(), "request");
        let (id, from, export) = (gone.client, gone.from.words(), gone.export_words());
        let line = format!("disconnected client {id} ({from}, {export}), {lost} unanswered");
        client::write_lines(out, &line)
    })
}

/// Prints events until the server ends or the user presses Ctrl-C.
pub(crate) fn events(args: &Events) -> Result<(), Failure> {
    let mut client = Client::find(&args.server)?;
    client.listen()?;
    loop {
        let event = client.next_event()?;
        let mut out = anstream::stdout().lock();
        match args.json {
            true => writeln!(out, "{}", escape::json(&event))?,
            false => writeln!(out, "{}", words(&read(&event)))?,
        }
        out.flush()?;
    }
}

/// Parses an event; anything else becomes `null`.
fn read(event: &str) -> Value {
    serde_json::from_str(event).unwrap_or_default()
}

/// Returns an event in a line: the time, the event, and its short fields.
fn words(event: &Value) -> String {
    let at = event["time"].as_f64().map(units::moment).unwrap_or_default();
    let what = styled(TITLE, printable(event["event"].as_str().unwrap_or("?")));
    let mut line = String::new();
    for (key, value) in event.as_object().into_iter().flatten() {
        match value {
            _ if matches!(key.as_str(), "time" | "event" | "timeline" | "timelines") => {}
            Value::Null => {}
            Value::Array(list) if list.is_empty() => {}
            value => {
                let text = value.as_str().map_or_else(|| value.to_string(), str::to_string);
                line.push_str(&format!(" {key}="));
                // Writing to a String can't fail.
                let _ = escape::value(&mut line, &text);
            }
        }
    }
    format!("{} {what}{}", styled(FAINT, at), printable(&line))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_event_is_a_line_without_what_is_long() {
        let event = json!({
            "event": "attached", "time": 0, "client": 7, "export": "a b", "address": null,
            "certificate": [], "timeline": [1, 2],
        });
        let plain = anstream::adapter::strip_str(&words(&event)).to_string();
        assert_eq!(plain, "1970-01-01T00:00:00Z attached client=7 export=\"a b\"");
    }

    #[test]
    fn the_table_of_clients_has_what_each_did_between_two_looks() {
        let mut one = served::Client::default();
        (one.client, one.in_flight) = (7, 3);
        one.from.pid = Some(4711);
        (one.oldest_seconds, one.untaken_seconds, one.untaken_bytes) = (Some(2.5), Some(2.0), 4096);
        one.partial_seconds = Some(1.0);
        one.ops.reads.requests = 100;
        let before = [one.clone()];
        one.ops.reads.requests = 150;
        one.ops.reads.bytes = 1 << 20;
        let lines = table(&before, &[one], 0.5, 140);
        assert_eq!(lines.len(), 2, "{lines:?}");
        let cells: Vec<&str> = lines[1].split_whitespace().collect();
        let words = "7 unknown 4711 (handshake) 0s 3 2.50 s 2.00 s 1.00 s 4.0 KiB 100 2.0 - - 0";
        assert_eq!(cells.join(" "), words);
        assert!(table(&[], &[], 0.5, 80).is_empty());
    }
}
