//! The notes of a shutdown, and what they mean: when each device was released, by whom, and when those were
//! done that have no callback. Worked out when somebody wants to see it, not while devices wait.

use super::batch::Batch;
use super::hang::Late;
use super::plan::{Kind, Outline, ShutdownMode};
use super::state::Note;
use crate::graph::{DeviceId, Graph};
use crate::record::{Record, Site};
use crate::takeover::Walk;
use corewise_timeline::Outcome;
use corewise_topology::CpuId;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// What a shutdown noted down.
pub(crate) struct Notes {
    pub looped: Looped,
    /// Batches, with so many callbacks that were over.
    pub walked: Vec<(Arc<Batch>, usize)>,
    /// What failed in either.
    pub failed: Vec<(DeviceId, String)>,
    pub notes: Vec<Note>,
    /// How many helpers were asked for.
    pub helpers: usize,
    pub late: Vec<Late>,
    pub gave_up: bool,
}

/// What the loop noted down.
pub(crate) struct Looped {
    pub walk: Arc<Walk>,
    /// How many callbacks were over when the shutdown was, or when the counting began.
    pub over: usize,
    /// The thread.
    pub worker: Option<Arc<str>>,
    /// Nothing was counted: the loop was all there was.
    pub all: bool,
}

/// A record of each device that was shut down, or was being when that ended.
///
/// A device is released at the latest end of what depends on it, and starts then or later: two
/// threads may have read the clock in one order and released in the other, so this is computed from
/// the ends.
pub(super) fn records(outline: &Outline, notes: &Notes) -> Vec<Record> {
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
    // Where there was only the loop it passed devices without a callback one by one, too.
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

/// Devices that one thread called back, one after the other: each callback began when the one before
/// ended, the first one at `start`.
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

/// All that those devices need, directly or not; each with those of them that need it. In the order
/// of a serial shutdown.
pub(super) fn below(
    graph: &Graph,
    devices: impl IntoIterator<Item = DeviceId>,
) -> Vec<(DeviceId, Vec<DeviceId>)> {
    let mut by: BTreeMap<DeviceId, Vec<DeviceId>> = BTreeMap::new();
    for device in devices {
        let (mut seen, mut next) = (std::collections::BTreeSet::new(), vec![device]);
        while let Some(id) = next.pop() {
            let new = graph.needs(id).iter().copied().filter(|&need| seen.insert(need));
            let new: Vec<DeviceId> = new.collect();
            new.iter().for_each(|&need| by.entry(need).or_default().push(device));
            next.extend(new);
        }
    }
    let mut below: Vec<_> = by.into_iter().collect();
    below.sort_by_key(|(id, _)| std::cmp::Reverse(graph.rank(*id)));
    below
}
