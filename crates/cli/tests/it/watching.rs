//! The operator's view of a running server: clients, events, metrics and `corewise top`; and
//! hostile watchers.
#![allow(missing_docs, clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::common::client::{Client, pattern};
use crate::common::server::Server;
use crate::common::{COREWISE, Folder};
use rustix::process::Signal;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcgetattr, tcsetwinsize};
use serde_json::Value;

const PATIENCE: Duration = Duration::from_secs(300);

/// Repeats the question until `wanted` accepts the answer: a reply is counted a moment after it has
/// left.
fn until(folder: &Folder, args: &[&str], wanted: impl Fn(&Value) -> bool) -> Value {
    loop {
        let answer = folder.corewise(args).ok().json();
        if wanted(&answer) {
            return answer;
        }
    }
}

#[test]
fn clients_are_listed_with_what_they_were_answered_and_one_is_disconnected_by_its_number() {
    let folder = Folder::new();
    let server = Server::start(&folder, &[]);
    let ran = folder.corewise(["clients"]).ok();
    assert_eq!(ran.stdout, "there is no client\n");
    let mut one = Client::new(&server.socket(), "fast");
    let mut other = Client::new(&server.socket(), "safe");
    one.write(0, &pattern(1, 8192), 0).unwrap();
    one.read(0, 4096).unwrap();
    assert!(one.read(1 << 50, 512).is_err());
    other.flush().unwrap();
    let done = |answer: &Value| {
        answer["clients"][0]["reads"]["requests"] == 2
            && answer["clients"][1]["flushes"]["requests"] == 1
    };
    let answer = until(&folder, &["clients", "--json"], done);
    let [first, second] = &answer["clients"].as_array().unwrap()[..] else { panic!("{answer}") };
    assert_eq!((&first["export"], &second["export"]), (&"fast".into(), &"safe".into()));
    assert_eq!(first["uid"], rustix::process::geteuid().as_raw());
    assert_eq!((&first["address"], &first["pid"]), (&Value::Null, &std::process::id().into()));
    assert_eq!((&first["writes"]["bytes"], &first["reads"]["errors"]), (&8192.into(), &1.into()));
    assert!(first["reads"]["latency"]["p99_seconds"].as_f64().unwrap() > 0.0, "{first}");
    let (id, gone) = (first["client"].to_string(), second["client"].to_string());
    let ran = folder.corewise(["clients"]).ok();
    let ran = ran.says(&["client  from", "untaken", "req/s", "process", "fast", "safe"]);
    let process = format!(" {} ", std::process::id());
    assert_eq!(ran.stdout.lines().filter(|line| line.contains(&process)).count(), 2, "{ran}");
    // The totals of an export stay when its client leaves.
    folder
        .corewise(["disconnect", &id])
        .ok()
        .says(&[&format!("disconnected client {id} (user "), "fast), 0 requests unanswered"]);
    assert!(one.is_closed());
    let dump =
        until(&folder, &["dump", "--json"], |dump| dump["clients"].as_array().unwrap().len() == 1);
    let fast =
        dump["exports"].as_array().unwrap().iter().find(|one| one["name"] == "fast").unwrap();
    assert_eq!((&fast["clients"], &fast["writes"]["bytes"]), (&0.into(), &8192.into()));
    let ran = folder.corewise(["disconnect", &id]).code(1);
    ran.complains(&[&format!("there is no client {id}"), "corewise clients"]);
    other.flush().unwrap();
    let gone = folder.corewise(["disconnect", &gone, "--json"]).ok().json();
    assert_eq!(gone["disconnected"]["export"], "safe");
    folder.corewise(["disconnect", "seven"]).code(2);
    server.stop().ok();
}

#[test]
fn a_hidden_export_says_so_in_a_dump() {
    let folder = Folder::new();
    let server = Server::start(&folder, &[]);
    let client = Client::new(&server.socket(), "fast");
    folder.corewise(["remove", "export:fast", "--mode", "hide"]).ok();
    let ran = folder.corewise(["dump"]).ok().says(&["Exports", "Clients", "hidden", "open"]);
    let line = ran.stdout.lines().find(|line| line.contains("hidden")).unwrap();
    assert!(line.trim_start().starts_with("fast"), "{ran}");
    drop(client);
    server.stop().ok();
}

/// A subscriber to events.
pub(crate) struct Listener(BufReader<UnixStream>);

impl Listener {
    pub(crate) fn new(server: &Server) -> Listener {
        let mut stream = UnixStream::connect(server.control()).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(b"{\"corewise\":1,\"ask\":\"events\"}\n").unwrap();
        let mut listener = Listener(BufReader::new(stream));
        let answer = listener.next().unwrap();
        assert!(answer["corewise"] == 1 && answer.get("error").is_none(), "{answer}");
        listener
    }

    fn next(&mut self) -> Option<Value> {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        (!line.is_empty()).then(|| serde_json::from_str(&line).unwrap())
    }

    pub(crate) fn until(&mut self, name: &str) -> Value {
        loop {
            let event = self.next().unwrap_or_else(|| panic!("no {name} came"));
            if event["event"] == name {
                return event;
            }
        }
    }
}

#[test]
fn those_that_listen_hear_of_clients_changes_mirrors_and_the_end() {
    let folder = Folder::new();
    let server = Server::start(&folder, &[]);
    let mut listener = Listener::new(&server);
    // A listener that has closed its sending side still gets events.
    let mut quiet = Listener::new(&server);
    quiet.0.get_ref().shutdown(std::net::Shutdown::Write).unwrap();
    let client = Client::new(&server.socket(), "fast");
    let attached = listener.until("attached");
    assert_eq!((&attached["export"], attached["client"].is_u64()), (&"fast".into(), true));
    assert_eq!(attached["uid"], rustix::process::geteuid().as_raw());
    assert!(attached["time"].as_f64().unwrap() > 1.7e9, "{attached}");
    drop(client);
    let left = listener.until("left");
    assert_eq!((&left["client"], &left["export"]), (&attached["client"], &"fast".into()));
    folder.write(
        "more.toml",
        "[[device]]\nname = \"m\"\ndriver = \"memory\"\nsize = \"1M\"\n[[export]]\ndevice = \"m\"\n",
    );
    folder.corewise(["add", "more.toml"]).ok();
    let changed = listener.until("changed");
    assert_eq!(
        (&changed["steps"][0]["what"], &changed["steps"][0]["name"]),
        (&"add".into(), &"m".into())
    );
    let client = Client::new(&server.socket(), "m");
    folder.corewise(["remove", "export:m", "--mode", "hide"]).ok();
    assert_eq!(listener.until("changed")["steps"][0]["what"], "hide");
    drop(client);
    let removed = listener.until("changed");
    assert_eq!(removed["steps"][0]["what"], "remove", "{removed}");
    server.stop().ok();
    listener.until("stopping");
    for event in ["attached", "left", "changed", "attached", "changed", "changed"] {
        quiet.until(event);
    }
    quiet.until("stopping");
    for mut listener in [listener, quiet] {
        let rest = std::iter::from_fn(|| listener.next()).map(|event| event["event"].clone());
        // The thread of a client that goes may be slower than the end.
        assert_eq!(rest.filter(|event| event != "left").collect::<Vec<_>>(), ["shutdown", "done"]);
    }
}

#[test]
fn one_that_takes_nothing_loses_events_and_is_told_and_holds_nothing_up() {
    let folder = Folder::new();
    let server = Server::start(&folder, &[]);
    let mut slow = Listener::new(&server);
    let mut fast = Listener::new(&server);
    // The events are more than its socket and its inbox can hold.
    let rounds = 2_000;
    let mut heard = 0;
    for _ in 0..rounds {
        drop(Client::new(&server.socket(), "fast"));
        while heard < rounds {
            let event = fast.next().unwrap();
            assert_ne!(event["event"], "lost", "it takes what comes");
            if event["event"] == "left" {
                heard += 1;
                break;
            }
        }
    }
    let lost = slow.until("lost");
    assert!(lost["events"].as_u64().unwrap() > 0, "{lost}");
    server.stop().ok();
    slow.until("stopping");
}

#[test]
fn so_many_may_listen_and_those_that_ask_are_answered_all_the_same() {
    let folder = Folder::new();
    let server = Server::start(&folder, &[]);
    let mut listeners: Vec<Listener> = (0..16).map(|_| Listener::new(&server)).collect();
    let ran = folder.corewise(["events"]).code(1);
    ran.complains(&["too many listen already"]);
    // Newcomers take no listener's place.
    let many: Vec<UnixStream> =
        (0..40).map(|_| UnixStream::connect(server.control()).unwrap()).collect();
    folder.corewise(["dump"]).ok();
    drop(many);
    // The server ignores all bytes that a listener sends.
    let noise = [b'x'; 10_000];
    let _ = listeners[0].0.get_mut().write_all(&noise);
    drop(Client::new(&server.socket(), "fast"));
    for listener in &mut listeners {
        listener.until("left");
    }
    drop(listeners.pop());
    drop(Client::new(&server.socket(), "fast"));
    listeners[0].until("left");
    // Once the server has noticed that the listener is gone, its place is free.
    loop {
        let mut stream = UnixStream::connect(server.control()).unwrap();
        stream.write_all(b"{\"corewise\":1,\"ask\":\"events\"}\n").unwrap();
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).unwrap();
        if !line.contains("error") {
            break;
        }
    }
    server.stop().ok();
}

#[test]
fn events_are_printed_as_lines_until_the_server_ends() {
    let folder = Folder::new();
    let server = Server::start(&folder, &[]);
    let listen = |args: &[&str]| {
        let mut command = folder.command(COREWISE);
        command.arg("events").args(args);
        Server::spawn(command)
    };
    let (mut text, mut lines) = (listen(&[]), listen(&["--json"]));
    // The loop ends when both are subscribed.
    loop {
        let mut client = Client::new(&server.socket(), "fast");
        client.flush().unwrap();
        let heard = folder.dump();
        assert!(heard["clients"].is_array());
        drop(client);
        if text.has_line() && lines.has_line() {
            break;
        }
    }
    drop(Client::new(&server.socket(), "safe"));
    let line =
        text.wait_line("a client", |line| line.contains("attached") && line.contains("safe"));
    assert!(line.contains("Z attached client=") && line.contains("export=safe"), "{line}");
    lines.wait_line("a client", |line| line.starts_with("{\"event\":\"left\""));
    server.stop().ok();
    text.wait_line("the end", |line| line.ends_with("Z done ok=true"));
    lines.wait_line("the end", |line| line.starts_with("{\"event\":\"done\""));
    text.wait().code(1).complains(&["error: process ", "has ended"]);
    lines.wait().code(1).complains(&["has ended"]);
}

const WITH_METRICS: &str = "[server]\nunix = \"s\"\nmetrics = 0\n\
    [[device]]\nname = \"a\"\ndriver = \"memory\"\nsize = \"4M\"\n\
    [[device]]\nname = \"b\"\ndriver = \"memory\"\nsize = \"4M\"\n\
    [[device]]\nname = \"m\"\ndriver = \"mirror\"\nover = [\"a\", \"b\"]\n\
    [[export]]\ndevice = \"m\"\nname = 'odd \"name\" \\ here'\n";

/// Returns the address of the metrics.
pub(crate) fn metrics_of(server: &Server) -> String {
    let url = server.ready["metrics"].as_str().unwrap();
    let address = url.strip_prefix("http://").unwrap().strip_suffix("/metrics").unwrap();
    address.to_string()
}

/// Sends these bytes and returns the answer.
fn http(mut stream: impl Read + Write, request: &str) -> String {
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

pub(crate) fn scrape(address: &str) -> String {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let answer = http(stream, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    assert!(head.contains("text/plain; version=0.0.4"), "{head}");
    assert!(head.contains(&format!("Content-Length: {}", body.len())), "{head}");
    body.to_string()
}

/// A sample: its name, its labels, its value.
type Sample = (String, BTreeMap<String, String>, f64);

fn is_name(text: &str) -> bool {
    let mut chars = text.chars();
    chars.next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
        && chars.all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// Parses a line by the grammar of the exposition format; panics if that fails.
fn sample(line: &str) -> Sample {
    let (name, mut rest) = line.split_at(line.find(['{', ' ']).unwrap());
    assert!(is_name(name), "{line}");
    let mut labels = BTreeMap::new();
    if let Some(inside) = rest.strip_prefix('{') {
        rest = inside;
        loop {
            let (label, behind) = rest.split_once("=\"").unwrap();
            assert!(is_name(label), "{line}");
            let (mut value, mut chars) = (String::new(), behind.char_indices());
            let end = loop {
                match chars.next().unwrap() {
                    (at, '"') => break at,
                    (_, '\\') => value.push(match chars.next().unwrap().1 {
                        'n' => '\n',
                        c @ ('\\' | '"') => c,
                        c => panic!("\\{c} in {line}"),
                    }),
                    (_, c) => value.push(c),
                }
            };
            assert!(labels.insert(label.to_string(), value).is_none(), "{line}");
            rest = &behind[end + 1..];
            match rest.strip_prefix(',') {
                Some(more) => rest = more,
                None => break,
            }
        }
        rest = rest.strip_prefix('}').unwrap();
    }
    let value = rest.strip_prefix(' ').unwrap();
    (name.to_string(), labels, value.parse().unwrap_or_else(|_| panic!("{line}")))
}

/// Returns the families by name, each with its kind and samples, and checks their order.
fn families(text: &str) -> BTreeMap<String, (String, Vec<Sample>)> {
    let mut families: BTreeMap<String, (String, Vec<Sample>)> = BTreeMap::new();
    let mut current = String::new();
    assert!(text.ends_with('\n'));
    for line in text.lines() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            let (name, help) = help.split_once(' ').unwrap();
            assert!(is_name(name) && !help.is_empty(), "{line}");
            current = name.to_string();
        } else if let Some(kind) = line.strip_prefix("# TYPE ") {
            let (name, kind) = kind.split_once(' ').unwrap();
            assert_eq!(name, current, "{line}");
            assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
            assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
            let new = families.insert(current.clone(), (kind.to_string(), Vec::new()));
            assert!(new.is_none(), "{name} comes twice");
        } else {
            let found = sample(line);
            let (kind, samples) = families.get_mut(&current).unwrap();
            let suffix = found.0.strip_prefix(&current).unwrap_or_else(|| panic!("{line}"));
            let may = if kind == "histogram" { &["_bucket", "_sum", "_count"][..] } else { &[""] };
            assert!(may.contains(&suffix), "{line}");
            assert!(
                !samples.iter().any(|(n, l, _)| (n, l) == (&found.0, &found.1)),
                "twice: {line}"
            );
            samples.push(found);
        }
    }
    families
}

#[test]
fn metrics_follow_the_format_and_say_what_clients_were_answered() {
    let folder = Folder::new();
    folder.write("up.toml", WITH_METRICS);
    let server = Server::start(&folder, &["up.toml"]);
    let name = "odd \"name\" \\ here";
    let mut client = Client::new(&server.socket(), name);
    client.write(0, &pattern(1, 8192), 0).unwrap();
    for _ in 0..5 {
        client.read(0, 4096).unwrap();
    }
    let address = metrics_of(&server);
    let of = |families: &BTreeMap<String, (String, Vec<Sample>)>, family: &str, op: &str| -> f64 {
        let (_, samples) = &families[family];
        let its = |labels: &BTreeMap<String, String>| {
            labels.get("export").is_some_and(|e| e == name)
                && labels.get("op").is_some_and(|o| o == op)
        };
        samples.iter().find(|(_, labels, _)| its(labels)).map_or(0.0, |(_, _, value)| *value)
    };
    let all = loop {
        let all = families(&scrape(&address));
        // A mirror without a record begins with a resync.
        let legs = &all["corewise_mirror_leg_in_sync"].1;
        let in_sync = legs.iter().filter(|(_, _, value)| *value == 1.0).count();
        if of(&all, "corewise_export_requests_total", "read") == 5.0 && in_sync == 2 {
            break all;
        }
    };
    assert_eq!(of(&all, "corewise_export_bytes_total", "read"), 5.0 * 4096.0);
    assert_eq!(of(&all, "corewise_export_bytes_total", "write"), 8192.0);
    assert_eq!(all["corewise_clients"].1[0].2, 1.0);
    // Each histogram rises to its count.
    for (family, (kind, samples)) in &all {
        if kind != "histogram" {
            continue;
        }
        assert!(!samples.is_empty(), "{family}");
        let mut last: BTreeMap<BTreeMap<String, String>, (f64, f64)> = BTreeMap::new();
        for (sample, labels, value) in samples {
            let mut labels = labels.clone();
            if let Some(end) = labels.remove("le") {
                let end = if end == "+Inf" { f64::INFINITY } else { end.parse().unwrap() };
                let (before, below) = last.insert(labels, (end, *value)).unwrap_or((0.0, 0.0));
                assert!(end > before && *value >= below, "{family}");
            } else if sample.ends_with("_count") {
                assert_eq!(last[&labels], (f64::INFINITY, *value), "{family}");
            }
        }
    }
    let again = families(&scrape(&address));
    assert_eq!(
        all.keys().collect::<Vec<_>>(),
        again.keys().collect::<Vec<_>>(),
        "names don't come and go"
    );
    server.stop().ok();
    assert!(TcpStream::connect(&address).is_err());
}

#[test]
fn scrapers_that_mean_no_good_keep_no_other_from_its_answer() {
    let folder = Folder::new();
    let metrics = WITH_METRICS.replace("metrics = 0", "metrics = \"./m.sock\"");
    folder.write("up.toml", metrics);
    let server = Server::start(&folder, &["up.toml"]);
    let connect = || {
        let stream = UnixStream::connect(folder.join("m.sock")).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    };
    // More connections than places stay silent: each newcomer gets the place of the oldest.
    let mut silent: Vec<UnixStream> = (0..20).map(|_| connect()).collect();
    let answer = http(connect(), "GET /metrics HTTP/1.1\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    for stream in &mut silent[..12] {
        assert_eq!(stream.read(&mut [0; 1]).unwrap(), 0, "it was let go");
    }
    // A connection that still has its place is answered, too.
    let answer = http(silent.pop().unwrap(), "GET /metrics HTTP/1.1\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    server.stop().ok();
    assert!(!folder.join("m.sock").exists());
    folder.write("bad.toml", WITH_METRICS.replace("metrics = 0", "metrics = \"host\""));
    let ran = folder.corewise(["up", "bad.toml", "--check"]).code(1);
    ran.complains(&["bad.toml:3:", "'metrics'", "write HOST:PORT"]);
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    folder.write("taken.toml", WITH_METRICS.replace("metrics = 0", &format!("metrics = {port}")));
    folder.corewise(["up", "taken.toml"]).code(1).complains(&["taken.toml:3:", "cannot listen on"]);
}

/// Returns the families among the words of a text: words that begin as metrics' names do.
fn named(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    let names = words.filter(|word| word.starts_with("corewise_"));
    let family = |name: &str| {
        let suffixes = ["_bucket", "_sum", "_count"];
        let cut = suffixes.iter().find_map(|suffix| name.strip_suffix(suffix));
        cut.unwrap_or(name).to_string()
    };
    names.map(family).collect()
}

#[test]
fn the_dashboard_the_alerts_and_the_document_name_only_metrics_that_there_are() {
    let folder = Folder::new();
    folder.write("up.toml", WITH_METRICS);
    let server = Server::start(&folder, &["up.toml"]);
    let all: BTreeSet<String> = families(&scrape(&metrics_of(&server))).into_keys().collect();
    server.stop().ok();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let read = |name: &str| std::fs::read_to_string(root.join(name)).unwrap();
    let dashboard = read("packaging/monitoring/grafana-dashboard.json");
    let parsed: Value = serde_json::from_str(&dashboard).unwrap();
    assert!(parsed["panels"].as_array().unwrap().len() >= 8);
    let (alerts, document) = (read("packaging/monitoring/alerts.yml"), read("docs/monitoring.md"));
    for (file, text) in [("dashboard", &dashboard), ("alerts", &alerts), ("document", &document)] {
        let unknown: Vec<String> = named(text).difference(&all).cloned().collect();
        assert!(unknown.is_empty(), "{file}: {unknown:?}");
    }
    let untold: Vec<String> = all.difference(&named(&document)).cloned().collect();
    assert!(untold.is_empty(), "docs/monitoring.md doesn't explain {untold:?}");
}

#[test]
fn the_alerts_are_yaml() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/monitoring/alerts.yml");
    let text = std::fs::read_to_string(file).unwrap();
    // The file is flat enough to be read without a parser: lists of maps, indented by two, strings
    // in quotes.
    let mut alerts = 0;
    for line in
        text.lines().filter(|line| !line.trim().is_empty() && !line.trim_start().starts_with('#'))
    {
        let indent = line.len() - line.trim_start().len();
        assert!(indent % 2 == 0 && !line.contains('\t'), "{line}");
        let entry = line.trim_start().trim_start_matches("- ");
        let (key, value) = entry.split_once(':').unwrap_or_else(|| panic!("no key: {line}"));
        assert!(is_name(key), "{line}");
        let value = value.trim();
        if key == "expr" || key == "summary" {
            assert!(value.starts_with('\'') && value.ends_with('\'') && value.len() > 2, "{line}");
            assert!(!value[1..value.len() - 1].contains('\''), "{line}");
        }
        alerts += usize::from(key == "alert");
    }
    assert!(alerts >= 5, "{alerts}");
}

/// `corewise top` on a terminal of its own.
struct Top {
    child: std::process::Child,
    terminal: std::fs::File,
    rows: u16,
    seen: String,
}

impl Drop for Top {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Top {
    fn start(folder: &Folder) -> Top {
        let terminal =
            openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&terminal).unwrap();
        unlockpt(&terminal).unwrap();
        let size = Winsize { ws_row: 24, ws_col: 100, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&terminal, size).unwrap();
        let name = ptsname(&terminal, Vec::new()).unwrap();
        let side = || {
            let path = Path::new(name.to_str().unwrap());
            Stdio::from(std::fs::OpenOptions::new().read(true).write(true).open(path).unwrap())
        };
        let mut command: Command = folder.command(COREWISE);
        command.args(["top", "--every", "50ms"]).env("TERM", "xterm-256color");
        let child = command.stdin(side()).stdout(side()).stderr(side()).spawn().unwrap();
        Top { child, terminal: terminal.into(), rows: 24, seen: String::new() }
    }

    /// Reads the screen until it shows `what`. The terminal gets another size each time, so
    /// everything is drawn again.
    #[track_caller]
    fn wait(&mut self, what: &str) {
        let mut room = [0; 4096];
        while !self.seen.contains(what) {
            self.rows = if self.rows == 24 { 12 } else { 24 };
            let size = Winsize { ws_row: self.rows, ws_col: 100, ws_xpixel: 0, ws_ypixel: 0 };
            tcsetwinsize(&self.terminal, size).unwrap();
            let got = self.terminal.read(&mut room).unwrap_or(0);
            let end: String =
                self.seen.chars().rev().take(400).collect::<Vec<_>>().iter().rev().collect();
            assert!(got > 0, "no {what:?} in {end:?}");
            self.seen.push_str(&String::from_utf8_lossy(&room[..got]));
        }
        let at = self.seen.find(what).unwrap() + what.len();
        self.seen.drain(..at);
    }

    fn press(&mut self, keys: &str) {
        self.terminal.write_all(keys.as_bytes()).unwrap();
    }

    /// Ends `top` and checks that the screen is restored and lines are edited again.
    #[track_caller]
    fn leaves(mut self) {
        self.wait("\x1b[?1049l");
        assert!(self.child.wait().unwrap().success());
        let modes = tcgetattr(&self.terminal).unwrap().local_modes;
        assert!(
            modes.contains(rustix::termios::LocalModes::ICANON | rustix::termios::LocalModes::ECHO)
        );
    }
}

#[test]
fn top_draws_what_the_server_does_takes_keys_and_gives_the_terminal_back() {
    let folder = Folder::new();
    let server = Server::start(&folder, &[]);
    let _client = Client::new(&server.socket(), "fast");
    let mut top = Top::start(&folder);
    top.wait("\x1b[?1049h");
    top.wait("built-in manifest");
    top.press("2");
    top.wait("▼");
    top.wait("user");
    top.press("6");
    top.wait("cache_shard/0");
    top.press("q");
    top.leaves();
    // Ctrl-C is a key like any other there.
    let mut top = Top::start(&folder);
    top.wait("built-in manifest");
    top.press("\x03");
    top.leaves();
    let mut top = Top::start(&folder);
    top.wait("built-in manifest");
    let pid = rustix::process::Pid::from_child(&top.child);
    rustix::process::kill_process(pid, Signal::QUIT).unwrap();
    top.leaves();
    // `top` waits for a server that goes away.
    let mut top = Top::start(&folder);
    top.wait("built-in manifest");
    server.stop().ok();
    top.wait("waiting for the server");
    let again = Server::start(&folder, &[]);
    top.wait(&again.pid().to_string());
    top.press("q");
    top.leaves();
    again.stop().ok();
    // A terminal that goes ends it too, with a shell that says so or without.
    let again = Server::start(&folder, &[]);
    let mut top = Top::start(&folder);
    top.wait("built-in manifest");
    let Top { child, terminal, .. } = &mut top;
    *terminal = std::fs::File::open("/dev/null").unwrap();
    let end = child.wait().unwrap();
    assert_eq!(end.signal(), None, "it ends by itself, and not by an abort");
    again.stop().ok();
    folder.corewise(["top"]).code(1).complains(&["needs a terminal", "corewise clients"]);
}
