//! Exports and their clients as JSON and as text. The names in the JSON are a promise;
//! `docs/control.md` explains each.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use corewise::blockmq::Op;
use corewise::export::Identity;
use corewise::nbd::{self, ClientStatus, ExportStatus, HandshakeCounts, MemoryUse, Peer, Traffic};
use corewise::sync::time::now;
use corewise::timeline::duration;
use serde::{Deserialize, Serialize};

use super::disks::{OpCounts, Ops};
use super::recent::{Recent, added, quantile};
use crate::text::Columns;

impl From<&Traffic> for Ops {
    fn from(traffic: &Traffic) -> Ops {
        let of = |op| OpCounts::from(traffic.of(op));
        Ops {
            reads: of(Op::Read),
            writes: of(Op::Write),
            flushes: of(Op::Flush),
            discards: of(Op::Discard),
            write_zeroes: of(Op::WriteZeroes),
            extents: of(Op::Extents),
            prefetches: of(Op::Prefetch),
        }
    }
}

/// An export.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Export {
    /// Name of the export, which may be empty.
    pub name: String,
    /// Device that it shows.
    pub device: Option<String>,
    /// True if clients may only read.
    pub read_only: bool,
    /// Clients that may attach.
    pub state: ExportState,
    /// Clients that are attached.
    pub clients: usize,
    /// Requests that are not answered yet.
    pub in_flight: u64,
    /// Clients that have left without knowing that a flush has failed.
    pub(crate) untold: usize,
    /// Operations of its clients.
    #[serde(flatten)]
    pub ops: Ops,
}

/// The clients that may use an export.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExportState {
    /// Attached clients alone may use it.
    Hidden,
    /// The export is being removed.
    Leaving,
    /// All clients that it permits may attach.
    #[default]
    #[serde(other)]
    Open,
}

impl ExportState {
    /// Returns its word.
    pub fn words(self) -> &'static str {
        match self {
            ExportState::Open => "open",
            ExportState::Hidden => "hidden",
            ExportState::Leaving => "leaving",
        }
    }
}

impl Export {
    /// Returns an export. `device` is the device that it shows.
    pub(crate) fn new(status: &ExportStatus, device: Option<String>) -> Export {
        Export {
            name: status.name.clone(),
            device,
            read_only: status.read_only,
            state: match (status.hidden, status.closing) {
                (true, _) => ExportState::Hidden,
                (false, true) => ExportState::Leaving,
                (false, false) => ExportState::Open,
            },
            clients: status.clients,
            in_flight: status.in_flight,
            untold: status.untold,
            ops: Ops::from(&status.traffic),
        }
    }
}

/// The earlier states of the counters of exports.
#[derive(Debug, Default)]
pub(crate) struct RecentExports(BTreeMap<String, Recent>);

impl RecentExports {
    /// Keeps the counters of all exports. It is called once a second.
    pub(crate) fn note(&mut self, exports: &[ExportStatus]) {
        let now = now();
        self.0.retain(|name, _| exports.iter().any(|export| export.name == *name));
        for export in exports {
            let recent = self.0.entry(export.name.clone()).or_insert_with(|| Recent::new(now));
            if recent.is_due(now) {
                recent.note(now, &Ops::from(&export.traffic));
            }
        }
    }

    /// Fills in the counts of the last minute for each export.
    pub(crate) fn fill(&self, exports: &mut [Export]) {
        for export in exports {
            if let Some(recent) = self.0.get(&export.name) {
                recent.fill(now(), &mut export.ops);
            }
        }
    }
}

/// A disk that an export is, with its one client: this machine's kernel, or a virtual machine.
#[derive(Clone, Debug)]
pub(crate) struct ShownDisk {
    pub(crate) export: String,
    /// Path of the disk, or of the socket of a virtual machine.
    pub(crate) path: PathBuf,
    /// Number and identity of the virtual machine's frontend.
    pub(crate) guest: Option<(u64, Identity)>,
    pub(crate) age: Duration,
    pub(crate) in_flight: u64,
    pub(crate) traffic: Traffic,
}

/// A client.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Client {
    /// Number of the client, as in the log.
    pub client: u64,
    /// Origin of the client.
    #[serde(flatten)]
    pub from: ClientOrigin,
    /// Name of its export. `None` during its handshake.
    pub export: Option<String>,
    /// Time since it connected.
    pub connected_seconds: f64,
    /// Requests that are not answered yet.
    pub in_flight: u32,
    pub(crate) in_flight_bytes: u64,
    /// Age of the oldest of these requests.
    pub oldest_seconds: Option<f64>,
    /// Time that the oldest reply has waited for the client to take earlier ones. `None` if no
    /// reply waits.
    pub untaken_seconds: Option<f64>,
    /// Bytes of the replies that wait so.
    pub untaken_bytes: u64,
    /// Time that the server has waited for the rest of a request that came in part.
    pub partial_seconds: Option<f64>,
    /// True while it is being disconnected.
    pub(crate) leaving: bool,
    /// Operations that were answered.
    #[serde(flatten)]
    pub ops: Ops,
}

/// The origin of a client.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClientOrigin {
    pub(crate) address: Option<String>,
    /// Path of the disk, or of the socket of a virtual machine.
    pub(crate) disk: Option<String>,
    pub(crate) uid: Option<u32>,
    /// Process that connected, for a client of this machine.
    pub pid: Option<u32>,
    /// Names in its certificate.
    pub(crate) certificate: Vec<String>,
}

impl ClientOrigin {
    pub(crate) fn new(peer: Peer, pid: Option<u32>, names: &[String]) -> ClientOrigin {
        let (address, uid) = match peer {
            Peer::Address(address) => (Some(address.to_string()), None),
            Peer::User(uid) => (None, Some(uid)),
            _ => (None, None),
        };
        ClientOrigin { address, disk: None, uid, pid, certificate: names.to_vec() }
    }

    /// Returns the process for a table.
    pub fn process(&self) -> String {
        self.pid.map_or("-".to_string(), |pid| pid.to_string())
    }

    /// Returns the origin in a few words.
    pub fn words(&self) -> String {
        let mut words = match (&self.address, &self.disk, self.uid) {
            (Some(address), ..) => address.clone(),
            (_, Some(disk), _) => disk.clone(),
            (.., Some(uid)) => format!("user {uid}"),
            _ => "unknown".to_string(),
        };
        if let Some(name) = self.certificate.first() {
            let _ = write!(words, " '{name}'");
        }
        words
    }
}

impl Client {
    pub(crate) fn new(status: &ClientStatus) -> Client {
        Client {
            client: status.id,
            from: ClientOrigin::new(status.peer, status.pid, &status.names),
            export: status.export.clone(),
            connected_seconds: status.age.as_secs_f64(),
            in_flight: status.in_flight,
            in_flight_bytes: status.in_flight_bytes,
            oldest_seconds: status.oldest.map(|age| age.as_secs_f64()),
            untaken_seconds: status.untaken.map(|age| age.as_secs_f64()),
            untaken_bytes: status.untaken_bytes,
            partial_seconds: status.partial.map(|age| age.as_secs_f64()),
            leaving: status.draining,
            ops: Ops::from(&status.traffic),
        }
    }

    /// Returns the client that has the export as a disk. This machine's kernel has no number: only
    /// the end of the export disconnects it.
    pub(crate) fn of_disk(disk: &ShownDisk) -> Client {
        let path = Some(disk.path.display().to_string());
        let (client, from) = match &disk.guest {
            None => (0, ClientOrigin::default()),
            Some((id, who)) => (*id, ClientOrigin::new(who.peer, who.pid, &who.names)),
        };
        Client {
            client,
            from: ClientOrigin { disk: path, ..from },
            export: Some(disk.export.clone()),
            connected_seconds: disk.age.as_secs_f64(),
            in_flight: u32::try_from(disk.in_flight).unwrap_or(u32::MAX),
            ops: Ops::from(&disk.traffic),
            ..Client::default()
        }
    }

    /// Returns the age of its oldest request in flight.
    pub fn oldest(&self) -> Option<Duration> {
        self.oldest_seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
    }

    /// Returns the time that the oldest reply has waited for the client.
    pub fn untaken(&self) -> Option<Duration> {
        self.untaken_seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
    }

    /// Returns the time that the server has waited for the rest of a request.
    pub fn partial(&self) -> Option<Duration> {
        self.partial_seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
    }

    /// Returns its export in words.
    pub fn export_words(&self) -> &str {
        match self.export.as_deref() {
            None => "(handshake)",
            Some("") => "(the empty name)",
            Some(name) => name,
        }
    }
}

/// The results of handshakes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Handshakes {
    pub(crate) attached: u64,
    pub(crate) no_place: u64,
    pub(crate) evicted: u64,
    pub(crate) timed_out: u64,
    pub(crate) tls_failed: u64,
    pub(crate) failed: u64,
    pub(crate) left: u64,
}

impl From<HandshakeCounts> for Handshakes {
    fn from(counts: HandshakeCounts) -> Handshakes {
        Handshakes {
            attached: counts.attached,
            no_place: counts.no_place,
            evicted: counts.evicted,
            timed_out: counts.timed_out,
            tls_failed: counts.tls_failed,
            failed: counts.failed,
            left: counts.left,
        }
    }
}

/// The memory of clients, in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Memory {
    /// Bytes in use.
    pub taken: u64,
    /// Bytes in all.
    pub of: u64,
    /// Clients that wait for memory.
    pub(crate) waiting: usize,
}

impl From<MemoryUse> for Memory {
    fn from(memory: MemoryUse) -> Memory {
        Memory { taken: memory.taken, of: memory.of, waiting: memory.waiting }
    }
}

/// Sorts clients: first those that don't take their replies, then those with the oldest requests.
pub fn slowest_first(clients: &mut [Client]) {
    clients.sort_by(|one, other| {
        let age = |client: &Client| (client.untaken(), client.oldest().max(client.partial()));
        age(other).cmp(&age(one))
    });
}

/// Returns the clients of a server, with the kernel or the guest of each disk.
pub(crate) fn clients(server: &nbd::Server, disks: &[ShownDisk]) -> Vec<Client> {
    let of_disks = disks.iter().map(Client::of_disk);
    server.clients().iter().map(Client::new).chain(of_disks).collect()
}

/// The rates of operations between two moments.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rates {
    /// Requests per second.
    pub requests: f64,
    /// Bytes per second.
    pub bytes: f64,
    pub(crate) errors: f64,
    /// Time that half of the requests didn't exceed.
    pub p50: Option<Duration>,
    /// Time that 99 in a hundred requests didn't exceed.
    pub p99: Option<Duration>,
}

impl Rates {
    /// Returns the rates between two states of counters, `seconds` apart.
    pub fn between(before: Option<&Ops>, now: &Ops, seconds: f64) -> Rates {
        let none = Ops::default();
        let ops = before.unwrap_or(&none).all().into_iter().zip(now.all());
        let (mut rates, mut times) = (Rates::default(), Vec::new());
        for ((_, before), (_, now)) in ops {
            let per_second =
                |before: u64, now: u64| now.saturating_sub(before) as f64 / seconds.max(1e-9);
            rates.requests += per_second(before.requests, now.requests);
            rates.bytes += per_second(before.bytes, now.bytes);
            rates.errors += per_second(before.errors, now.errors);
            added(&mut times, &before.latency, &now.latency);
        }
        times.sort_by(|(one, _), (other, _)| f64::total_cmp(one, other));
        let share = |share| Duration::try_from_secs_f64(quantile(&times, share)?).ok();
        (rates.p50, rates.p99) = (share(0.5), share(0.99));
        rates
    }
}

/// Formats a time for a table.
pub fn time(time: Option<Duration>) -> String {
    time.map_or("-".to_string(), duration)
}

/// Formats seconds for a table, to the second if there are many.
pub fn seconds(seconds: f64) -> String {
    let time = Duration::try_from_secs_f64(seconds).unwrap_or_default();
    let whole = time.as_secs();
    match whole {
        0..=59 => format!("{whole}s"),
        60..=3_599 => format!("{}m{:02}s", whole / 60, whole % 60),
        3_600..=86_399 => format!("{}h{:02}m", whole / 3_600, whole / 60 % 60),
        _ => format!("{}d{:02}h", whole / 86_400, whole / 3_600 % 24),
    }
}

/// Returns a table of exports and one of clients, in lines of at most `width` columns as far as
/// names allow.
pub(crate) fn text(exports: &[Export], clients: &[Client], width: usize) -> String {
    let mut out = String::from("\nExports\n");
    let head = ["export", "device", "state", "clients", "infl", "requests", "errors", "MiB"];
    let sum =
        |ops: &Ops, of: fn(&OpCounts) -> u64| ops.all().iter().map(|(_, op)| of(op)).sum::<u64>();
    let totals = |ops: &Ops| {
        let mib = sum(ops, |op| op.bytes) as f64 / f64::from(1 << 20);
        let (requests, errors) = (sum(ops, |op| op.requests), sum(ops, |op| op.errors));
        [requests.to_string(), errors.to_string(), format!("{mib:.1}")]
    };
    let rows = exports.iter().map(|export| {
        let read_only = if export.read_only { ", read-only" } else { "" };
        let left = [
            if export.name.is_empty() { "(the empty name)".into() } else { export.name.clone() },
            export.device.clone().unwrap_or_else(|| "-".to_string()),
            format!("{}{read_only}", export.state.words()),
            export.clients.to_string(),
            export.in_flight.to_string(),
        ];
        left.into_iter().chain(totals(&export.ops)).collect()
    });
    let table = Columns { head: &head, keys: &[0], words: &[0, 1, 2], rows: rows.collect() };
    table.lines(width).iter().for_each(|line| _ = writeln!(out, "{line}"));
    out.push_str("\nClients\n");
    if clients.is_empty() {
        out.push_str("  none\n");
        return out;
    }
    let head = [
        "client", "from", "process", "export", "for", "infl", "oldest", "untaken", "partial",
        "requests", "errors", "MiB",
    ];
    let rows = clients.iter().map(|client| {
        let left = [
            client.client.to_string(),
            client.from.words(),
            client.from.process(),
            client.export_words().to_string(),
            seconds(client.connected_seconds),
            client.in_flight.to_string(),
            time(client.oldest()),
            time(client.untaken()),
            time(client.partial()),
        ];
        left.into_iter().chain(totals(&client.ops)).collect()
    });
    let table = Columns { head: &head, keys: &[0], words: &[1, 3], rows: rows.collect() };
    table.lines(width).iter().for_each(|line| _ = writeln!(out, "{line}"));
    out
}

#[cfg(test)]
mod tests {
    use super::super::disks::Times;
    use super::*;

    fn reads(requests: u64, bytes: u64, histogram: &[(f64, u64)]) -> Ops {
        let latency = Times { histogram: histogram.to_vec(), ..Times::default() };
        Ops {
            reads: OpCounts { requests, bytes, latency, ..OpCounts::default() },
            ..Ops::default()
        }
    }

    #[test]
    fn rates_are_those_of_the_time_between_two_looks() {
        let before = reads(100, 4096, &[(0.001, 90), (0.1, 10)]);
        let now = reads(110, 4096 + 8192, &[(0.001, 99), (0.002, 0), (0.1, 10), (0.5, 1)]);
        let rates = Rates::between(Some(&before), &now, 2.0);
        assert_eq!((rates.requests, rates.bytes, rates.errors), (5.0, 4096.0, 0.0));
        assert_eq!(rates.p50, Some(Duration::from_millis(1)));
        assert_eq!(rates.p99, Some(Duration::from_millis(500)));
        assert_eq!(Rates::between(Some(&now), &now, 1.0), Rates::default());
        // A client that came meanwhile has done all of it meanwhile.
        assert_eq!(Rates::between(None, &now, 1.0).requests, 110.0);
        // A server that was restarted counts from 0.
        assert_eq!(Rates::between(Some(&now), &before, 1.0).requests, 0.0);
    }

    #[test]
    fn the_text_says_what_is_hidden_and_where_clients_come_from() {
        let export = Export {
            name: "a".to_string(),
            device: Some("disk".to_string()),
            read_only: true,
            state: ExportState::Hidden,
            clients: 1,
            ops: reads(12, 3 << 20, &[]),
            ..Export::default()
        };
        let from = ClientOrigin {
            address: Some("10.0.0.1".to_string()),
            certificate: vec!["vm".to_string()],
            ..ClientOrigin::default()
        };
        let client = Client { client: 7, from, connected_seconds: 3_725.0, ..Client::default() };
        let text = text(&[export], &[client], 100);
        assert!(text.contains("  a       disk    hidden, read-only        1"), "{text}");
        assert!(text.contains("10.0.0.1 'vm'        -  (handshake)  1h02m"), "{text}");
        assert!(text.contains("12       0  3.0"), "{text}");
        assert!(super::text(&[], &[], 80).contains("\nClients\n  none\n"));
    }

    #[test]
    fn the_client_that_takes_no_replies_comes_first_and_then_the_one_that_waits_for_longest() {
        let of = |client, untaken_seconds, oldest_seconds| Client {
            client,
            untaken_seconds,
            oldest_seconds,
            ..Client::default()
        };
        let mut clients = [
            Client { client: 6, partial_seconds: Some(20.0), ..Client::default() },
            of(1, None, None),
            of(2, None, Some(3.0)),
            of(3, Some(0.5), Some(0.6)),
            of(4, Some(9.0), Some(9.1)),
            of(5, None, Some(60.0)),
        ];
        slowest_first(&mut clients);
        assert_eq!(clients.map(|client| client.client), [4, 3, 5, 6, 2, 1]);
    }

    #[test]
    fn states_of_a_later_server_are_read_as_far_as_they_go() {
        let read = |json: &str| serde_json::from_str::<Export>(json).unwrap().state;
        assert_eq!(read(r#"{"state":"hidden"}"#), ExportState::Hidden);
        assert_eq!(read(r#"{"state":"sleeping"}"#), ExportState::Open);
    }
}
