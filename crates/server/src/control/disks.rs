//! Disks as JSON and as text: the operations of each, and their times. The names in the JSON are a
//! promise; `docs/control.md` explains each.

use std::fmt::Write as _;
use std::sync::{Arc, Weak};
use std::time::Duration;

use corewise::blockmq::{BlockDevice, DiskStats, HctxStats, OpStats, Queue};
use corewise::drivers::{CheckpointDriver, LegState, Mirror, Overlay};
use corewise::nbd::Remote;
use corewise::smp::Latencies;
use corewise::sync::time::{now, wall};
use corewise::sync::{CleanAt, Mutex};
use corewise::timeline::duration;
use corewise::topology::CpuSet;
use serde::{Deserialize, Serialize};

use super::checkpoints::CheckpointState;
use super::devices::indented;
use super::mirrors::{self, CheckSchedule, MirrorReport, Schedule, ScheduledMirror};
use super::recent::{LastMinute, Recent};
use super::served;
use super::stores::{OverlayReport, RemoteReport, StoreNow, StoreReport};
use crate::text::Columns;

/// The disks that are up. It holds weak references to them.
#[derive(Debug, Default)]
pub(crate) struct Disks {
    /// L: is the lock; guards the disks, in the order in which they came up.
    known: Mutex<List>,
}

#[derive(Debug, Default)]
struct List {
    disks: Vec<RegisteredDisk>,
    /// Length at which closed disks are removed from the list.
    clean_at: CleanAt,
}

struct RegisteredDisk {
    queue: Weak<Queue>,
    kind: DiskKind,
    /// L: is the lock, held for a moment, a leaf; guards earlier states of its counters.
    recent: Arc<Mutex<Recent>>,
}

/// A kind of disk, with the source of its own facts.
#[derive(Clone)]
pub(crate) enum DiskKind {
    /// The names of the disks below.
    Over(Vec<String>),
    Mirror(Weak<Mirror>, Arc<CheckSchedule>),
    /// A device with checkpoints, and the name of the disk below.
    Checkpoint(Weak<CheckpointDriver>, Vec<String>),
    Remote(Weak<Remote>),
    /// An overlay, and the name of its base.
    Overlay(Weak<Overlay>, Option<String>),
    /// A volume in an object store.
    Store(StoreNow),
}

impl std::fmt::Debug for RegisteredDisk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Known").field("queue", &self.queue).finish_non_exhaustive()
    }
}

/// A disk that stays up while this is held.
struct OpenDisk {
    queue: Arc<Queue>,
    kind: DiskKind,
    /// L: as of `RegisteredDisk`.
    recent: Arc<Mutex<Recent>>,
    /// Mirror and the names of its legs, if the disk is one.
    mirror: Option<(Arc<Mirror>, Vec<String>)>,
}

impl OpenDisk {
    /// Returns the time between checks of a mirror that has a schedule.
    fn check_every(&self) -> Option<Duration> {
        match &self.kind {
            DiskKind::Mirror(_, schedule) => schedule.every(),
            _ => None,
        }
    }
}

/// Begins the check of a mirror that is due, unless another mirror is being checked. With one check
/// at a time, disks that mirrors share aren't read twice, and clients keep most of the bandwidth.
fn begin_due_check(up: &[OpenDisk]) {
    let mirrors = || up.iter().filter_map(|up| Some((up, &up.mirror.as_ref()?.0)));
    let scheduled: Vec<_> = mirrors()
        .filter_map(|(up, mirror)| Some((up.queue.name(), mirror, up.check_every()?)))
        .collect();
    if scheduled.is_empty() {
        return;
    }
    let states: Vec<_> = mirrors().map(|(_, mirror)| mirror.status()).collect();
    if states.iter().any(|status| status.check.as_ref().is_some_and(|check| check.running)) {
        return;
    }
    let of = |(name, mirror, every): &(&str, &Arc<Mirror>, Duration)| {
        let status = mirror.status();
        let since = status.unchecked_since.as_secs_f64();
        let is_in = |leg: &LegState| matches!(leg, LegState::InSync | LegState::Removed);
        let is_whole = status.to_resync == 0 && status.legs.iter().all(is_in);
        ScheduledMirror { since, due: mirrors::due(name, since, *every), is_whole }
    };
    let all: Vec<ScheduledMirror> = scheduled.iter().map(of).collect();
    if let Some(next) = mirrors::next(&all, wall().as_secs_f64()) {
        let (name, mirror, _) = scheduled[next];
        // False means that the mirror ends, or that another caller began a check.
        if mirror.check(None, false) {
            tracing::info!(device = name, "the server begins a check of a mirror that was due");
        }
    }
}

impl Disks {
    /// Adds a disk that came up. Any thread may call it.
    pub(crate) fn add(&self, queue: &Arc<Queue>, kind: DiskKind) {
        let recent = Arc::new(Mutex::new(Recent::new(now())));
        let mut known = self.known.lock();
        let List { disks, clean_at } = &mut *known;
        let clean =
            |disks: &mut Vec<RegisteredDisk>| disks.retain(|disk| disk.queue.strong_count() != 0);
        clean_at.before_one_more(disks, Vec::len, clean);
        disks.push(RegisteredDisk { queue: Arc::downgrade(queue), kind, recent });
    }

    fn up(&self) -> Vec<OpenDisk> {
        // Handles aren't dropped under the lock: the last handle of a queue may be among them, and
        // dropping that may wait.
        let up = |RegisteredDisk { queue, kind, recent }: &RegisteredDisk| {
            let mirror = match kind {
                DiskKind::Mirror(mirror, _) => mirror.upgrade(),
                _ => None,
            };
            let mirror = mirror.map(|mirror| (Arc::clone(&mirror), mirrors::names(&mirror)));
            let (kind, recent) = (kind.clone(), Arc::clone(recent));
            Some(OpenDisk { queue: queue.upgrade()?, kind, recent, mirror })
        };
        self.known.lock().disks.iter().filter_map(up).collect()
    }

    /// Updates the ages of requests and the counters of the last minute. Calls once a second keep
    /// both accurate: an age lacks at most the time between two calls, the last minute a few
    /// seconds.
    pub(crate) fn tick(&self) {
        let up = self.up();
        begin_due_check(&up);
        for OpenDisk { queue, recent, .. } in up {
            let now = now();
            queue.oldest();
            if recent.lock().is_due(now) {
                let ops = Ops::from(&queue.disk_stats());
                recent.lock().note(now, &ops);
            }
        }
    }

    /// Returns all disks.
    pub(crate) fn all(&self) -> Vec<Disk> {
        self.up().iter().map(Disk::new).collect()
    }

    /// Returns the disks that are mirrors.
    pub(crate) fn mirrors(&self) -> Vec<Disk> {
        self.up().iter().filter(|up| up.mirror.is_some()).map(Disk::new).collect()
    }

    /// Retries the legs of a mirror that are out: all, or this one. Returns their names, or the
    /// reason why there is none.
    pub(crate) fn take_back(&self, disk: &str, leg: Option<&str>) -> Result<Vec<String>, String> {
        self.with_mirror(disk, |mirror, over| mirrors::take_back(disk, mirror, over, leg))
    }

    /// Begins a check of a mirror, or stops it.
    pub(crate) fn check(&self, disk: &str, how: &mirrors::CheckOptions) -> Result<(), String> {
        self.with_mirror(disk, |mirror, _| mirrors::check(disk, mirror, how))
    }

    fn with_mirror<R>(
        &self,
        disk: &str,
        ask: impl FnOnce(&Mirror, &[String]) -> Result<R, String>,
    ) -> Result<R, String> {
        let up = self.up();
        let Some(found) = up.iter().find(|up| up.queue.name() == disk) else {
            let names: Vec<&str> = up.iter().map(|up| up.queue.name()).collect();
            return Err(match names.is_empty() {
                true => format!("there is no disk '{disk}': the server has no disks"),
                false => format!("there is no disk '{disk}'; the disks are: {}", names.join(", ")),
            });
        };
        match &found.mirror {
            Some((mirror, over)) => ask(mirror, over),
            None => Err(format!("'{disk}' is not a mirror")),
        }
    }
}

/// Returns the state of these mirrors, without the count that changes with each write.
pub(crate) fn each_mirror(disks: &[Disk]) -> Vec<(String, MirrorReport)> {
    let mirrors = disks.iter().filter_map(|disk| Some((disk.name.clone(), disk.mirror.clone()?)));
    mirrors.map(|(name, mirror)| (name, MirrorReport { dirty: 0, ..mirror })).collect()
}

/// A disk.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Disk {
    /// Name of the device.
    pub name: String,
    /// Name of its driver in manifests.
    pub driver: String,
    /// Condition in words, if there is something to report.
    pub condition: Option<String>,
    /// True for a file that has lost data; `condition` says why.
    pub(crate) lost: bool,
    /// True if a file or folder that the disk uses isn't in its place, or was replaced; `condition`
    /// says which.
    pub(crate) displaced: bool,
    /// Advice about that. `blocks_changes` is true if no change is made until then.
    #[serde(skip)]
    pub(crate) displaced_todo: Option<String>,
    #[serde(skip)]
    pub(crate) blocks_changes: bool,
    /// Names of the disks below.
    pub(crate) over: Vec<String>,
    /// State of a mirror and its legs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mirror: Option<MirrorReport>,
    /// Own blocks of an overlay.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub overlay: Option<OverlayReport>,
    /// Checkpoints of a device that records what changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) checkpoints: Option<CheckpointState>,
    /// Connections of a volume on another server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) remote: Option<RemoteReport>,
    /// Requests to the store of a volume in an object store.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub store: Option<StoreReport>,
    /// Size in bytes.
    pub size: u64,
    /// Scheduler: `none` or `deadline`.
    pub(crate) scheduler: String,
    /// Requests that are not answered yet.
    pub in_flight: u64,
    /// Age of the oldest of those, at least, in seconds.
    pub oldest_seconds: Option<f64>,
    /// True if a flush failed so that changes may be lost, and none has succeeded since.
    pub(crate) in_doubt: bool,
    /// Operations since the disk came up.
    #[serde(flatten)]
    pub ops: Ops,
    pub(crate) in_driver: Times,
    pub(crate) hw_queues: Vec<HwQueue>,
}

/// The operations of a disk, or of the clients of an export, by kind.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Ops {
    /// Reads.
    pub reads: OpCounts,
    pub(crate) writes: OpCounts,
    pub(crate) flushes: OpCounts,
    pub(crate) discards: OpCounts,
    pub(crate) write_zeroes: OpCounts,
    pub(crate) extents: OpCounts,
    pub(crate) prefetches: OpCounts,
}

/// The counts of one operation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct OpCounts {
    /// Requests that were answered.
    pub requests: u64,
    /// Requests that failed.
    pub errors: u64,
    /// Bytes of the answered requests.
    pub bytes: u64,
    pub(crate) latency: Times,
    /// Requests of the last minute, if these are counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_minute: Option<LastMinute>,
}

/// The distribution of times, in seconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Times {
    pub(crate) p50_seconds: Option<f64>,
    pub(crate) p99_seconds: Option<f64>,
    pub(crate) p999_seconds: Option<f64>,
    pub(crate) longest_seconds: Option<f64>,
    /// Longest time of each bucket, and its count. Empty buckets are left out.
    pub(crate) histogram: Vec<(f64, u64)>,
}

/// A hardware queue.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct HwQueue {
    pub(crate) cpus: String,
    pub(crate) dispatched: u64,
    pub(crate) merged: u64,
    pub(crate) remapped: u64,
    pub(crate) completed: u64,
    pub(crate) in_flight: u64,
    pub(crate) tag_waits: u64,
    pub(crate) busy: u64,
    pub(crate) requeues: u64,
    pub(crate) timeouts: u64,
    pub(crate) runs: u64,
    pub(crate) reruns: u64,
    pub(crate) refused: u64,
    pub(crate) joined: u64,
    pub(crate) handed_over: u64,
    pub(crate) after_unquiesce: u64,
}

impl Disk {
    fn new(up: &OpenDisk) -> Disk {
        let OpenDisk { queue, kind, mirror, recent } = up;
        // The two snapshots are from different moments.
        let (stats, hctxs) = (queue.disk_stats(), queue.stats());
        let hw_queue = |(hctx, stats): (usize, &HctxStats)| HwQueue {
            cpus: queue.hctx_cpus(hctx).iter().copied().collect::<CpuSet>().to_string(),
            dispatched: stats.dispatched,
            merged: stats.merged,
            remapped: stats.remapped,
            completed: stats.completed,
            in_flight: stats.in_flight,
            tag_waits: stats.tag_waits,
            busy: stats.busy,
            requeues: stats.requeues,
            timeouts: stats.timeouts,
            runs: stats.runs,
            reruns: stats.reruns,
            refused: stats.refused,
            joined: stats.joined,
            handed_over: stats.handed_over,
            after_unquiesce: stats.after_unquiesce,
        };
        let (driver, condition) = (queue.kind(), queue.driver().condition());
        let overlay = match kind {
            DiskKind::Overlay(overlay, _) => overlay.upgrade().map(|overlay| overlay.status()),
            _ => None,
        };
        let over = match (kind, mirror) {
            (DiskKind::Over(over) | DiskKind::Checkpoint(_, over), _) => over.clone(),
            (DiskKind::Overlay(_, base), _) => {
                let has_base = overlay.is_some_and(|overlay| overlay.has_base);
                base.iter().filter(|_| has_base).cloned().collect()
            }
            // A leg that was removed has no name.
            (_, Some((_, legs))) => legs.iter().filter(|leg| !leg.is_empty()).cloned().collect(),
            _ => Vec::new(),
        };
        let remote = match kind {
            DiskKind::Remote(remote) => remote.upgrade(),
            _ => None,
        };
        let checkpoints = match kind {
            DiskKind::Checkpoint(driver, _) => driver.upgrade(),
            _ => None,
        };
        let store = match kind {
            DiskKind::Store(store) => store(),
            _ => None,
        };
        let mut ops = Ops::from(&stats);
        recent.lock().fill(now(), &mut ops);
        let displaced = queue.driver().displaced();
        Disk {
            name: queue.name().to_string(),
            driver: driver.to_string(),
            lost: queue.driver().has_lost_data(),
            displaced: displaced.is_some(),
            displaced_todo: displaced.map(|displaced| displaced.todo.to_owned()),
            blocks_changes: displaced.is_some_and(|displaced| displaced.blocks_changes),
            condition,
            over,
            mirror: mirror.as_ref().map(|(mirror, over)| MirrorReport {
                schedule: Schedule::of(queue.name(), mirror, up.check_every()),
                ..MirrorReport::new(mirror, over)
            }),
            checkpoints: checkpoints.map(|driver| CheckpointState::new(driver.status())),
            remote: remote.map(|remote| RemoteReport::new(&remote.status())),
            overlay: overlay.map(|overlay| OverlayReport::new(&overlay)),
            store,
            size: queue.geometry().size,
            scheduler: queue.scheduler().name().to_string(),
            in_flight: queue.inside(),
            oldest_seconds: queue.oldest().map(|age| age.as_secs_f64()),
            in_doubt: queue.is_in_doubt(),
            ops,
            in_driver: Times::from(&stats.in_driver),
            hw_queues: hctxs.iter().enumerate().map(hw_queue).collect(),
        }
    }

    /// Returns true if `disk` is directly below.
    pub(crate) fn stands_on(&self, disk: &str) -> bool {
        self.over.iter().any(|name| name == disk)
    }
}

impl From<&DiskStats> for Ops {
    fn from(stats: &DiskStats) -> Ops {
        Ops {
            reads: OpCounts::from(&stats.reads),
            writes: OpCounts::from(&stats.writes),
            flushes: OpCounts::from(&stats.flushes),
            discards: OpCounts::from(&stats.discards),
            write_zeroes: OpCounts::from(&stats.write_zeroes),
            extents: OpCounts::from(&stats.extents),
            prefetches: OpCounts::from(&stats.prefetches),
        }
    }
}

impl Ops {
    /// Returns all operations, in the order of [`Ops::all`].
    pub(super) fn all_mut(&mut self) -> [&mut OpCounts; 7] {
        [
            &mut self.reads,
            &mut self.writes,
            &mut self.flushes,
            &mut self.discards,
            &mut self.write_zeroes,
            &mut self.extents,
            &mut self.prefetches,
        ]
    }

    /// Returns true if `other` can't be a later state of these counters.
    pub(super) fn is_beyond(&self, other: &Ops) -> bool {
        let all = self.all().into_iter().zip(other.all());
        all.into_iter().any(|((_, one), (_, other))| one.requests > other.requests)
    }

    /// Returns each operation with its name in metrics and pictures.
    pub fn all(&self) -> [(&'static str, &OpCounts); 7] {
        [
            ("read", &self.reads),
            ("write", &self.writes),
            ("flush", &self.flushes),
            ("discard", &self.discards),
            ("write_zeroes", &self.write_zeroes),
            ("extents", &self.extents),
            ("prefetch", &self.prefetches),
        ]
    }
}

impl From<&OpStats> for OpCounts {
    fn from(stats: &OpStats) -> OpCounts {
        OpCounts {
            requests: stats.requests,
            errors: stats.errors,
            bytes: stats.bytes,
            latency: Times::from(&stats.latency),
            last_minute: None,
        }
    }
}

impl From<&Latencies> for Times {
    fn from(seen: &Latencies) -> Times {
        let share = |share: f64| seen.quantile(share).map(|time| time.as_secs_f64());
        Times {
            p50_seconds: share(0.5),
            p99_seconds: share(0.99),
            p999_seconds: share(0.999),
            longest_seconds: seen.longest().map(|time| time.as_secs_f64()),
            histogram: seen.buckets().map(|(end, count)| (end.as_secs_f64(), count)).collect(),
        }
    }
}

/// Returns a table with a row for each operation that a disk has done. Its lines have at most
/// `width` columns, as far as names allow.
pub(crate) fn text(disks: &[Disk], width: usize) -> String {
    let head = [
        "disk",
        "driver",
        "infl",
        "oldest",
        "operation",
        "requests",
        "errors",
        "MiB",
        "p50",
        "p99",
        "longest",
        "1 min p50",
        "1 min p99",
        "1 min longest",
    ];
    let mut rows = Vec::new();
    for disk in disks {
        let oldest = disk.oldest_seconds.map_or("-".to_string(), served::seconds);
        let mut left = [disk.name.clone(), disk.driver.clone(), disk.in_flight.to_string(), oldest];
        let mut any = false;
        for (op, of_op) in disk.ops.all().into_iter().filter(|(_, of_op)| of_op.requests != 0) {
            let [name, driver, in_flight, oldest] = std::mem::take(&mut left);
            let time = |seconds: Option<f64>| {
                let time = seconds.and_then(|s| Duration::try_from_secs_f64(s).ok());
                time.map_or("-".to_string(), duration)
            };
            let OpCounts { requests, errors, bytes, latency, last_minute } = of_op;
            let last = last_minute.clone().unwrap_or_default();
            rows.push(vec![
                name,
                driver,
                in_flight,
                oldest,
                op.to_string(),
                requests.to_string(),
                errors.to_string(),
                format!("{:.1}", *bytes as f64 / f64::from(1 << 20)),
                time(latency.p50_seconds),
                time(latency.p99_seconds),
                time(latency.longest_seconds),
                time(last.p50_seconds),
                time(last.p99_seconds),
                time(last.longest_seconds),
            ]);
            any = true;
        }
        if !any {
            rows.push([left.to_vec(), vec!["-".to_string(); head.len() - left.len()]].concat());
        }
    }
    let table = Columns { head: &head, keys: &[0, 4], words: &[0, 1, 4], rows };
    let mut out = String::from("\nDisks\n");
    for line in table.lines(width) {
        let _ = writeln!(out, "{line}");
    }
    for Disk { name, condition, scheduler, overlay, store, ops, .. } in disks {
        let ordered = (scheduler == "deadline").then(|| format!("scheduler {scheduler}"));
        let store = store.as_ref().map(|store| store.lines(ops));
        let overlay = overlay.as_ref().map(OverlayReport::in_words);
        let all = ordered.iter().chain(condition).chain(&overlay).chain(store.iter().flatten());
        for what in all {
            indented(&mut out, &format!("{name}: {what}"), width);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_has_a_row_for_each_operation_that_a_disk_has_done() {
        let busy = Disk {
            name: "fast".to_string(),
            driver: "memory".to_string(),
            in_flight: 3,
            oldest_seconds: Some(41.0),
            ops: Ops {
                reads: OpCounts {
                    requests: 12,
                    bytes: 3 << 20,
                    latency: Times { p50_seconds: Some(0.0001), ..Times::default() },
                    last_minute: Some(LastMinute {
                        p99_seconds: Some(0.007),
                        ..LastMinute::default()
                    }),
                    ..OpCounts::default()
                },
                flushes: OpCounts { requests: 1, errors: 1, ..OpCounts::default() },
                ..Ops::default()
            },
            ..Disk::default()
        };
        let idle = Disk {
            name: "idle".to_string(),
            scheduler: "deadline".to_string(),
            condition: Some("resting".to_string()),
            ..Disk::default()
        };
        let words =
            "I/O error: the file was truncated while in use; stop the server, and restore it";
        let lost = Disk {
            name: "lost".to_string(),
            condition: Some(words.to_string()),
            ..Disk::default()
        };
        let disks = [busy, idle, lost];
        let narrow = text(&disks, 60);
        assert!(narrow.lines().all(|line| line.chars().count() <= 60), "{narrow}");
        assert!(narrow.contains("p50") && narrow.contains("longest"), "{narrow}");
        let told: Vec<&str> = narrow.lines().rev().take(2).map(str::trim).collect();
        assert_eq!(format!("{} {}", told[1], told[0]), format!("lost: {words}"), "{narrow}");
        let whole = super::text(&disks, usize::MAX);
        assert!(whole.ends_with(&format!("\n  lost: {words}\n")), "{whole}");
        let text = text(&disks, 140);
        let lines: Vec<&str> = text.lines().skip(1).collect();
        assert_eq!(lines[0], "Disks");
        assert!(lines[2].contains("fast") && lines[2].contains("3.0"), "{text}");
        assert!(lines[2].contains("read") && lines[2].contains("100"), "{text}");
        assert!(lines[2].contains("3     41s") && lines[2].contains("7.00 ms"), "{text}");
        assert!(lines[3].contains("flush") && !lines[3].contains("fast"), "{text}");
        assert!(lines[4].contains("idle") && lines[4].ends_with('-'), "{text}");
        assert!(lines[5].contains("lost"), "{text}");
        assert_eq!(lines[6..8], ["  idle: scheduler deadline", "  idle: resting"]);
    }
}
