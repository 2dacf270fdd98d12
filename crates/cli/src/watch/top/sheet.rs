//! The contents of `corewise top`, as rows of cells that can be sorted: pure functions of two
//! samples of a server.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::time::Duration;

use corewise::timeline::markup::printable;
use corewise_server::control::ServerInfo;
use corewise_server::control::devices::Device;
use corewise_server::control::disks::Disk;
use corewise_server::control::disks::Ops;
use corewise_server::control::document::Document;
use corewise_server::control::health::{Health, Reason};
use corewise_server::control::mirrors::LegStatus;
use corewise_server::control::served::{self, Client, Export, Memory, Rates};
use corewise_server::units;
use serde::Deserialize;

/// State of a server at a moment.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Sample {
    #[serde(flatten)]
    pub(crate) who: ServerInfo,
    #[serde(flatten)]
    pub(crate) pools: Document,
    pub(crate) devices: Vec<Device>,
    pub(crate) disks: Vec<Disk>,
    pub(crate) exports: Vec<Export>,
    pub(crate) clients: Vec<Client>,
    pub(crate) memory: Memory,
    /// Health, unless the server doesn't report it.
    pub(crate) health: Option<Health>,
}

/// The parts of the screen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Part {
    Exports,
    Clients,
    Volumes,
    Mirrors,
    Queues,
    Pools,
    Health,
}

impl Part {
    pub(crate) const ALL: [Part; 7] = [
        Part::Exports,
        Part::Clients,
        Part::Volumes,
        Part::Mirrors,
        Part::Queues,
        Part::Pools,
        Part::Health,
    ];

    /// Returns the column that sorts the part until the user chooses another, and true if the
    /// largest comes first. Clients that don't take their replies come first.
    pub(crate) fn usual_order(self) -> (usize, bool) {
        let untaken = || self.head().iter().position(|title| *title == "untaken");
        match self {
            Part::Clients => (untaken().unwrap_or_default(), true),
            _ => (0, false),
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Part::Exports => "exports",
            Part::Clients => "clients",
            Part::Volumes => "volumes",
            Part::Mirrors => "mirrors",
            Part::Queues => "queues",
            Part::Pools => "pools",
            Part::Health => "health",
        }
    }

    pub(crate) fn head(self) -> &'static [&'static str] {
        match self {
            Part::Exports => &[
                "export", "device", "state", "clients", "infl", "req/s", "MiB/s", "p50", "p99",
                "errors",
            ],
            Part::Clients => &[
                "client", "from", "process", "export", "for", "infl", "oldest", "untaken",
                "partial", "waiting", "req/s", "MiB/s", "p50", "p99", "errors",
            ],
            Part::Volumes => &[
                "volume",
                "driver",
                "size",
                "infl",
                "oldest",
                "req/s",
                "MiB/s",
                "p50",
                "p99",
                "1 min p99",
                "errors",
                "condition",
            ],
            Part::Mirrors => &["mirror", "leg", "state", "to resync", "dirty", "why it is out"],
            Part::Queues => {
                &["queue", "infl", "items/s", "busy", "held", "moved", "hogs", "refused"]
            }
            Part::Pools => {
                &["pool", "scope", "CPUs", "workers", "idle", "waiting", "items/s", "CPU"]
            }
            Part::Health => &["state", "subject", "reason and remedy"],
        }
    }
}

/// A cell: its text, and its key for sorting.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Cell {
    pub(crate) text: String,
    pub(crate) key: Key,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Key {
    Word,
    Number(f64),
}

impl Cell {
    fn word(text: impl Into<String>) -> Cell {
        let text: String = text.into();
        Cell { text: printable(&text).into_owned(), key: Key::Word }
    }

    fn number(value: f64, text: impl Into<String>) -> Cell {
        Cell { text: text.into(), key: Key::Number(value) }
    }

    fn count(value: u64) -> Cell {
        Cell::number(value as f64, value.to_string())
    }

    fn size(bytes: u64) -> Cell {
        Cell::number(bytes as f64, units::about(bytes))
    }

    fn time(time: Option<Duration>) -> Cell {
        Cell::number(time.map_or(-1.0, |time| time.as_secs_f64()), served::time(time))
    }

    pub(crate) fn compare(&self, other: &Cell) -> Ordering {
        match (&self.key, &other.key) {
            (Key::Number(one), Key::Number(other)) => one.total_cmp(other),
            _ => self.text.cmp(&other.text),
        }
    }
}

fn rates(rates: &Rates, errors: u64) -> [Cell; 5] {
    let mib = rates.bytes / f64::from(1 << 20);
    [
        Cell::number(rates.requests, format!("{:.0}", rates.requests)),
        Cell::number(mib, format!("{mib:.1}")),
        Cell::time(rates.p50),
        Cell::time(rates.p99),
        Cell::count(errors),
    ]
}

fn errors(ops: &Ops) -> u64 {
    ops.all().iter().map(|(_, op)| op.errors).sum()
}

/// Returns the 99th percentile of the last minute, for the slowest operation.
fn slowest(ops: &Ops) -> Option<Duration> {
    let times = ops.all().into_iter().filter_map(|(_, op)| op.last_minute.as_ref()?.p99_seconds);
    Duration::try_from_secs_f64(times.max_by(f64::total_cmp)?).ok()
}

/// Returns the seconds between two samples of one server; `None` without a sample to compare with.
pub(crate) fn between(before: Option<&Sample>, now: &Sample) -> Option<f64> {
    let before = before.filter(|before| before.who.pid == now.who.pid)?;
    Some(now.who.up_seconds - before.who.up_seconds).filter(|seconds| *seconds > 0.0)
}

/// Returns the requests and bytes per second of all clients between two samples.
pub(crate) fn total(before: Option<&Sample>, now: &Sample) -> (f64, f64) {
    let Some(seconds) = between(before, now) else { return (0.0, 0.0) };
    let had: BTreeMap<&str, &Ops> = before
        .into_iter()
        .flat_map(|before| &before.exports)
        .map(|export| (export.name.as_str(), &export.ops))
        .collect();
    now.exports.iter().fold((0.0, 0.0), |(requests, bytes), export| {
        let rates = Rates::between(had.get(export.name.as_str()).copied(), &export.ops, seconds);
        (requests + rates.requests, bytes + rates.bytes)
    })
}

/// Returns the rows of a part.
pub(crate) fn rows(part: Part, before: Option<&Sample>, now: &Sample) -> Vec<Vec<Cell>> {
    let seconds = between(before, now);
    let before = before.filter(|_| seconds.is_some());
    // Without a sample to compare with, all rates are empty.
    let of = |had: Option<&Ops>, ops: &Ops| match seconds {
        Some(seconds) => Rates::between(had, ops, seconds),
        None => Rates::default(),
    };
    let per_second = |had: u64, has: u64| {
        let rate = seconds.map_or(0.0, |seconds| has.saturating_sub(had) as f64 / seconds);
        Cell::number(rate, format!("{rate:.0}"))
    };
    match part {
        Part::Exports => {
            let row = |export: &Export| {
                let had =
                    before.and_then(|look| look.exports.iter().find(|e| e.name == export.name));
                let read_only = if export.read_only { ", read-only" } else { "" };
                let left = [
                    Cell::word(if export.name.is_empty() {
                        "(the empty name)"
                    } else {
                        &export.name
                    }),
                    Cell::word(export.device.clone().unwrap_or_else(|| "-".to_string())),
                    Cell::word(format!("{}{read_only}", export.state.words())),
                    Cell::count(export.clients as u64),
                    Cell::count(export.in_flight),
                ];
                let rest = rates(&of(had.map(|e| &e.ops), &export.ops), errors(&export.ops));
                left.into_iter().chain(rest).collect()
            };
            now.exports.iter().map(row).collect()
        }
        Part::Clients => {
            let had: BTreeMap<u64, &Client> = before
                .into_iter()
                .flat_map(|look| &look.clients)
                .map(|client| (client.client, client))
                .collect();
            let row = |client: &Client| {
                let left = [
                    Cell::count(client.client),
                    Cell::word(client.from.words()),
                    Cell::number(client.from.pid.map_or(-1.0, f64::from), client.from.process()),
                    Cell::word(client.export_words()),
                    Cell::number(
                        client.connected_seconds,
                        served::seconds(client.connected_seconds),
                    ),
                    Cell::count(client.in_flight.into()),
                    Cell::time(client.oldest()),
                    Cell::time(client.untaken()),
                    Cell::time(client.partial()),
                    Cell::size(client.untaken_bytes),
                ];
                let had = had.get(&client.client).map(|client| &client.ops);
                let rest = rates(&of(had, &client.ops), errors(&client.ops));
                left.into_iter().chain(rest).collect()
            };
            now.clients.iter().map(row).collect()
        }
        Part::Volumes => {
            let row = |disk: &Disk| {
                let had = before.and_then(|look| look.disks.iter().find(|d| d.name == disk.name));
                let had = had.map(|disk| &disk.ops);
                let left = [
                    Cell::word(disk.name.clone()),
                    Cell::word(disk.driver.clone()),
                    Cell::size(disk.size),
                    Cell::count(disk.in_flight),
                    Cell::number(
                        disk.oldest_seconds.unwrap_or(-1.0),
                        disk.oldest_seconds.map_or("-".to_string(), served::seconds),
                    ),
                ];
                let [requests, mib, p50, p99, errors] =
                    rates(&of(had, &disk.ops), errors(&disk.ops));
                let rest = [requests, mib, p50, p99, Cell::time(slowest(&disk.ops)), errors];
                let cost = || Some(disk.store.as_ref()?.lines(&disk.ops).join("; "));
                let overlay = || Some(disk.overlay.as_ref()?.in_words());
                let condition = disk.condition.clone().or_else(overlay).or_else(cost);
                let condition = Cell::word(condition.unwrap_or_default());
                left.into_iter().chain(rest).chain([condition]).collect()
            };
            now.disks.iter().map(row).collect()
        }
        Part::Mirrors => {
            let mirrors = now.disks.iter().filter_map(|disk| Some((disk, disk.mirror.as_ref()?)));
            let legs = mirrors.flat_map(|(disk, mirror)| {
                mirror.legs.iter().map(move |leg| {
                    let state = match leg.state {
                        LegStatus::InSync => "in sync",
                        LegStatus::Resyncing => "resyncing",
                        LegStatus::Returning => "out, and being retried",
                        LegStatus::Out => "out",
                    };
                    vec![
                        Cell::word(disk.name.clone()),
                        Cell::word(leg.name.clone()),
                        Cell::word(state),
                        Cell::size(mirror.to_resync),
                        Cell::size(mirror.dirty),
                        Cell::word(leg.why.clone().unwrap_or_default()),
                    ]
                })
            });
            legs.collect()
        }
        Part::Queues => {
            let row = |queue: &corewise_server::control::document::Queue| {
                let had =
                    before.and_then(|look| look.pools.queues.iter().find(|q| q.id == queue.id));
                let (ran, had_ran) =
                    (queue.counters.run_seconds, had.map(|q| q.counters.run_seconds));
                let busy = seconds.map_or(0.0, |s| (ran - had_ran.unwrap_or(0.0)).max(0.0) / s);
                let busy = match queue.timed {
                    true => Cell::number(busy, format!("{busy:.2}")),
                    false => Cell::number(-1.0, "-"),
                };
                let held: usize = queue.active.iter().map(|slot| slot.held).sum();
                vec![
                    Cell::word(queue.name.clone()),
                    Cell::count(queue.in_flight),
                    per_second(had.map_or(0, |q| q.counters.completed), queue.counters.completed),
                    busy,
                    Cell::count(held as u64),
                    Cell::count(queue.counters.overflowed),
                    Cell::count(queue.counters.cpu_intensive),
                    Cell::count(queue.refused),
                ]
            };
            now.pools.queues.iter().map(row).collect()
        }
        Part::Pools => {
            let row = |pool: &corewise_server::control::document::Pool| {
                let had =
                    before.and_then(|look| look.pools.pools.iter().find(|p| p.pool == pool.pool));
                let used = pool.cpu_seconds - had.map_or(0.0, |had| had.cpu_seconds);
                let cpus = seconds.map_or(0.0, |seconds| used.max(0.0) / seconds);
                vec![
                    Cell::count(pool.pool as u64),
                    Cell::word(format!("{}/{}", pool.scope, pool.pod)),
                    Cell::word(pool.cpus.clone()),
                    Cell::count(pool.workers as u64),
                    Cell::count(pool.idle as u64),
                    Cell::count(pool.waiting as u64),
                    per_second(had.map_or(0, |had| had.ran), pool.ran),
                    Cell::number(cpus, format!("{cpus:.2}")),
                ]
            };
            now.pools.pools.iter().map(row).collect()
        }
        Part::Health => {
            let row = |reason: &Reason| {
                let Reason { state, subject, what, todo, .. } = reason;
                vec![
                    Cell::word(state.name()),
                    Cell::word(subject.clone()),
                    // The row is one cell, since the last cell is never cut.
                    Cell::word(format!("{what}. {todo}")),
                ]
            };
            now.health.iter().flat_map(|health| &health.reasons).map(row).collect()
        }
    }
}
