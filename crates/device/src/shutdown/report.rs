//! The report of a shutdown.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use corewise_sync::text;
use corewise_timeline::{EdgeKind, Outcome, SpanKind, Timeline};
use corewise_topology::CpuId;

use crate::error::{CallbackFailure, ShutdownError};
use crate::graph::{DeviceId, Graph};
use crate::record;
use crate::record::{Record, Site};
use crate::shutdown::batch::CallbackBatch;
use crate::shutdown::hang::LateDevice;
use crate::shutdown::options::{Kind, Outline, ShutdownMode};
use crate::shutdown::state::CallbackNote;
use crate::takeover::Walk;

/// The report of a shutdown.
#[must_use = "it says which devices failed, and which are left"]
#[derive(Clone)]
#[non_exhaustive]
pub struct ShutdownReport {
    /// Mode.
    pub mode: ShutdownMode,
    /// Duration, without the dropping of the bound objects afterwards.
    pub elapsed: Duration,
    /// Number of helpers that were asked for; each is a work item on a pool, not a thread made.
    pub helpers: usize,
    /// Callbacks that failed, panicked or were skipped.
    pub failed: Vec<CallbackFailure>,
    /// Devices that were left undone. Empty unless the shutdown was aborted, gave up, or skipped a
    /// callback that still runs. Callbacks that still run continue.
    pub remaining: Vec<Remaining>,
    /// Callbacks whose deadline had passed, in the order of detection.
    pub overdue: Vec<OverdueCallback>,
    /// True if late callbacks made the shutdown leave the rest undone.
    pub gave_up: bool,
    /// Devices that needed one another in a circle, each group in registration order. They were
    /// shut down one by one: each link to a device registered later was left out.
    pub cycles: Vec<Vec<String>>,
    notes: Arc<ShutdownNotes>,
    outline: Arc<Outline>,
}

/// A callback that took longer than it should.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OverdueCallback {
    /// The device's name.
    pub device: String,
    /// Time that it had been running when it was named.
    pub after: Duration,
    /// Time that it took in the end. `None`: it had not ended when the shutdown was over.
    pub took: Option<Duration>,
    /// True if the devices that it held up were shut down without it.
    pub skipped: bool,
}

impl ShutdownReport {
    pub(crate) fn new(
        outline: Arc<Outline>,
        elapsed: Duration,
        notes: ShutdownNotes,
        remaining: Vec<Remaining>,
    ) -> ShutdownReport {
        let graph = &outline.graph;
        let walked = notes.failed.iter().map(|(device, message)| (*device, message));
        let counted = notes.notes.iter().filter_map(|note| match &note.outcome {
            Outcome::Failed(message) => Some((note.device, message)),
            _ => None,
        });
        let failed = walked.chain(counted);
        let failed = failed.map(|(id, said)| CallbackFailure {
            device: graph.name(id).to_string(),
            error: ShutdownError::new(said),
        });
        let failed = failed.collect();
        let overdue = notes.late.iter().map(|late| OverdueCallback {
            device: graph.name(late.device).to_string(),
            after: late.after,
            took: late.took,
            skipped: late.skipped,
        });
        let names =
            |ids: &Vec<DeviceId>| ids.iter().map(|&id| graph.name(id).to_string()).collect();
        let cycles: Vec<Vec<String>> = graph.cycles().iter().map(names).collect();
        for cycle in &cycles {
            let cycle: Vec<_> = cycle.iter().map(|name| text::name(name)).collect();
            tracing::warn!(
                // Debug: a list of names.
                ?cycle,
                "these devices need one another in a circle, so the shutdown took them one by one"
            );
        }
        ShutdownReport {
            mode: outline.mode,
            elapsed,
            helpers: notes.helpers,
            failed,
            remaining,
            overdue: overdue.collect(),
            gave_up: notes.gave_up,
            cycles,
            notes: Arc::new(notes),
            outline,
        }
    }

    /// Returns true if nothing was left undone and no callback failed.
    pub fn is_clean(&self) -> bool {
        self.remaining.is_empty() && self.failed.is_empty()
    }

    /// Returns the names of the devices that were shut down, in the order in which they were done.
    pub fn order(&self) -> impl Iterator<Item = &str> {
        let graph = &self.outline.graph;
        let mut done = self.records();
        done.retain(|record| record.outcome != Outcome::Cancelled);
        // Devices that ended at the same instant had no callback, and the base order says which was
        // first.
        done.sort_by_key(|r| (r.end, std::cmp::Reverse(graph.rank(r.device))));
        done.into_iter().map(|r| graph.name(r.device))
    }

    /// Returns the timeline: a span for each device that was up, an edge for each dependency. Each
    /// call creates it anew, so that a shutdown whose timeline isn't read costs nothing but its
    /// records.
    pub fn timeline(&self) -> Timeline {
        let graph = &self.outline.graph;
        let driver = |id| record::named_driver(graph, id);
        record::timeline("shutdown", SpanKind::Shutdown, graph, &self.records(), driver)
    }

    fn records(&self) -> Vec<Record> {
        records(&self.outline, &self.notes)
    }
}

impl fmt::Debug for ShutdownReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShutdownReport")
            .field("mode", &self.mode)
            .field("elapsed", &self.elapsed)
            .field("helpers", &self.helpers)
            .field("failed", &self.failed)
            .field("remaining", &self.remaining)
            .field("overdue", &self.overdue)
            .field("gave_up", &self.gave_up)
            .field("cycles", &self.cycles)
            .finish_non_exhaustive()
    }
}

// The work that a shutdown has left undone, and the reasons.

/// A device that is not shut down. Its `Display` is a sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Remaining {
    /// The device's name.
    pub device: String,
    /// The reason why it is not shut down.
    pub state: RemainingState,
    /// The device that a waiting one really waits for, and the first step to it. If several of
    /// those run, this is the one that has been running longest. `None` if none of them runs.
    pub behind: Option<Blocker>,
    /// True if its deadline has passed while its callback runs.
    pub overdue: bool,
    /// True if it was skipped: its callback still runs, and counts for nothing.
    pub skipped: bool,
}

/// The reason why a device is not shut down (yet).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RemainingState {
    /// The callback is being called, or has returned and is not over.
    Running {
        /// Time since it began.
        elapsed: Duration,
    },
    /// The device is ready; its turn had not come.
    Ready,
    /// Children and consumers of the device are not shut down.
    Waiting {
        /// Their names.
        on: Vec<String>,
    },
}

/// The device that one really waits for, and the edge that leads to it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Blocker {
    /// The device whose callback runs.
    pub device: String,
    /// Time that it has been running.
    pub elapsed: Duration,
    /// The first step to it: a child or consumer of the one that waits. It may be `device` itself.
    pub through: String,
    /// The kind of that edge: to a child or to a consumer.
    pub edge: EdgeKind,
}

impl fmt::Display for Remaining {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", text::name(&self.device))?;
        match &self.state {
            RemainingState::Running { elapsed } => {
                write!(f, " has been running for {elapsed:.1?}")?;
            }
            RemainingState::Ready => write!(f, " is ready, but has not started")?,
            RemainingState::Waiting { on } => {
                let on = on.join(", ");
                write!(f, " waits for {}", text::message(&on))?;
            }
        }
        if let Some(Blocker { device, elapsed, through, .. }) = &self.behind {
            let same = through == device;
            let (device, through) = (text::name(device), text::name(through));
            match same {
                true => write!(f, " ({device} has been running for {elapsed:.1?})")?,
                false => write!(
                    f,
                    " (through {through} for {device}, which has been running for {elapsed:.1?})"
                )?,
            }
        }
        match (self.skipped, self.overdue) {
            (true, _) => write!(f, " (skipped)"),
            (false, true) => write!(f, " (late)"),
            (false, false) => Ok(()),
        }
    }
}

/// Returns the remaining devices, in the order of a serial shutdown. `open` has those with a
/// callback that is not over.
pub(super) fn of(
    outline: &Outline,
    mut open: Vec<bool>,
    running: &BTreeMap<DeviceId, Duration>,
    skipped: BTreeMap<DeviceId, Duration>,
    late: &BTreeSet<DeviceId>,
) -> Vec<Remaining> {
    let graph = &outline.graph;
    // By device: the one that it waits for, since when that runs, and the first step to it.
    let mut behind: Vec<Option<(DeviceId, Duration, DeviceId)>> = vec![None; open.len()];
    let mut left = Vec::new();
    for &id in graph.order().iter().rev() {
        let name = || graph.name(id).to_string();
        if let Some(&elapsed) = skipped.get(&id) {
            let state = RemainingState::Running { elapsed };
            let (device, behind) = (name(), None);
            left.push(Remaining { device, state, behind, overdue: true, skipped: true });
            continue;
        }
        let waits: Vec<DeviceId> =
            graph.feeds(id).iter().copied().filter(|f| open[f.index()]).collect();
        // A device without a callback is open as long as something that it waits for is.
        let calls = open[id.index()];
        open[id.index()] |= !waits.is_empty();
        let through = |&f: &DeviceId| match running.get(&f) {
            Some(&elapsed) => Some((f, elapsed, f)),
            None => behind[f.index()].map(|(device, elapsed, _)| (device, elapsed, f)),
        };
        let first = waits.iter().filter_map(through).max_by_key(|&(_, elapsed, _)| elapsed);
        behind[id.index()] = first;
        if !calls {
            continue;
        }
        let state = match running.get(&id) {
            Some(&elapsed) => RemainingState::Running { elapsed },
            None if waits.is_empty() => RemainingState::Ready,
            None => {
                let on = waits.iter().map(|&f| graph.name(f).to_string()).collect();
                RemainingState::Waiting { on }
            }
        };
        let behind = first.map(|(device, elapsed, through)| Blocker {
            device: graph.name(device).to_string(),
            elapsed,
            through: graph.name(through).to_string(),
            edge: edge(graph, through, id),
        });
        let overdue = late.contains(&id);
        left.push(Remaining { device: name(), state, behind, overdue, skipped: false });
    }
    left
}

/// Returns whether `device` is a child or a consumer of the device that it needs.
fn edge(graph: &Graph, device: DeviceId, need: DeviceId) -> EdgeKind {
    match graph.decl(device).parent.as_deref() == Some(graph.name(need)) {
        true => EdgeKind::Parent,
        false => EdgeKind::Supplier,
    }
}

// The records of a shutdown, and the times that follow from them: the release of each device, the
// device that released it, and the end of those without a callback. It is computed on request, not
// while devices wait.

/// Records of a shutdown.
pub(crate) struct ShutdownNotes {
    pub looped: LoopNotes,
    /// Batches, each with the number of callbacks that were over.
    pub walked: Vec<(Arc<CallbackBatch>, usize)>,
    /// Failures of either.
    pub failed: Vec<(DeviceId, String)>,
    pub notes: Vec<CallbackNote>,
    /// Number of helpers that were asked for.
    pub helpers: usize,
    pub late: Vec<LateDevice>,
    pub gave_up: bool,
}

/// Records of the loop.
pub(crate) struct LoopNotes {
    pub walk: Arc<Walk>,
    /// Number of callbacks that were over when the shutdown was, or when the counting began.
    pub over: usize,
    /// The thread.
    pub worker: Option<Arc<str>>,
    /// True if nothing was counted: there was only the loop.
    pub all: bool,
}

/// Returns a record of each device that was shut down, or was being shut down at the end.
///
/// A device is released at the latest end of what depends on it, and starts then or later. Two
/// threads may have read the clock in one order and released in the other, so this is computed from
/// the ends.
pub(super) fn records(outline: &Outline, notes: &ShutdownNotes) -> Vec<Record> {
    let graph = &outline.graph;
    let mut slots: Vec<Option<Record>> = vec![None; graph.len()];
    let failed: BTreeMap<DeviceId, &String> = notes.failed.iter().map(|(d, m)| (*d, m)).collect();
    let looped = &notes.looped;
    let worker = looped.worker.as_ref();
    let calls = &outline.calls[..looped.over];
    let looped = walked(calls, &looped.walk, Duration::ZERO, worker, &failed);
    let batches = notes.walked.iter().flat_map(|(batch, over)| {
        let (devices, worker) = (&batch.devices[..*over], Some(&batch.site.worker));
        walked(devices, &batch.walk, batch.since(), worker, &failed)
    });
    let counted = notes.notes.iter().map(|note| Record {
        device: note.device,
        queued: note.start,
        start: note.start,
        end: note.end,
        site: Some(note.site.clone()),
        released_by: None,
        outcome: note.outcome.clone(),
        no_callback: false,
    });
    for record in looped.chain(batches).chain(counted) {
        let place = record.device.index();
        slots[place] = Some(record);
    }
    // If there was only the loop, it passed devices without a callback one by one, too.
    let passes = notes.looped.all && outline.mode == ShutdownMode::Serial;
    let mut passed = Duration::ZERO;
    // By device: when it was done, whether or not it is drawn.
    let mut ends: Vec<Option<Duration>> = vec![None; graph.len()];
    for &id in graph.order().iter().rev() {
        let feeds = graph.feeds(id);
        let kind = outline.kinds[id.index()];
        // `None` where one is not done.
        let last =
            feeds.iter().map(|f| ends[f.index()]).try_fold(Duration::ZERO, |a, b| Some(a.max(b?)));
        let up = feeds.iter().copied().filter(|f| outline.kinds[f.index()] != Kind::Absent);
        // Among equal ends the one that the serial order has last.
        let by = up.max_by_key(|f| (ends[f.index()], std::cmp::Reverse(graph.rank(*f))));
        match (kind, &mut slots[id.index()]) {
            (Kind::Absent, _) => ends[id.index()] = last,
            (Kind::NoCallback, slot) => {
                let at = last.map(|at| if passes { at.max(passed) } else { at });
                *slot = at.map(|at| Record::instant(id, at, by, Outcome::Ok, true));
                ends[id.index()] = at;
            }
            (_, Some(record)) => {
                record.queued = last.unwrap_or(record.start);
                record.start = record.start.max(record.queued);
                record.end = record.end.max(record.start);
                record.released_by = by;
                if record.outcome != Outcome::Cancelled {
                    ends[id.index()] = Some(record.end);
                    passed = record.end;
                }
            }
            (_, None) => {}
        }
    }
    slots.into_iter().flatten().collect()
}

/// Returns the devices that one thread called back, one after the other: each callback began when
/// the one before ended, the first one at `start`.
fn walked<'n>(
    devices: &'n [DeviceId],
    walk: &'n Walk,
    mut start: Duration,
    worker: Option<&'n Arc<str>>,
    failed: &'n BTreeMap<DeviceId, &String>,
) -> impl Iterator<Item = Record> + 'n {
    devices.iter().enumerate().map(move |(place, &device)| {
        let note = walk.note(place);
        let end = Duration::from_nanos(note.at);
        let site = worker.cloned().map(|worker| Site {
            worker,
            cpu: note.mark.checked_sub(1).map(|cpu| CpuId::new(cpu.into())),
        });
        let failed = failed.get(&device).map(|message| Outcome::Failed((*message).clone()));
        let record = Record {
            device,
            queued: start,
            start,
            end,
            site,
            released_by: None,
            outcome: failed.unwrap_or(Outcome::Ok),
            no_callback: false,
        };
        start = end;
        record
    })
}
