//! What a shutdown says afterwards.

use super::drawn::{self, Notes};
use super::plan::{Outline, ShutdownMode};
use super::remaining::Remaining;
use crate::graph::DeviceId;
use crate::record::{self, Record};
use corewise_sync::text;
use corewise_timeline::{Outcome, SpanKind, Timeline};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// What a shutdown did.
#[must_use = "it says which devices failed, and which are left"]
#[derive(Clone)]
#[non_exhaustive]
pub struct ShutdownReport {
    /// How it was done.
    pub mode: ShutdownMode,
    /// How long it took, without the dropping of the bound objects afterwards.
    pub elapsed: Duration,
    /// How many helpers were asked for; each is a work item on a pool, not a thread made.
    pub helpers: usize,
    /// Callbacks that failed or panicked, with what they said; and those that were skipped.
    pub failed: Vec<(String, String)>,
    /// What was left undone: empty unless it was aborted, gave up, or skipped a callback that still
    /// runs. Callbacks that still run go on.
    pub remaining: Vec<Remaining>,
    /// Callbacks whose deadline had passed, in the order in which that was seen.
    pub overdue: Vec<Overdue>,
    /// The rest was left undone because of what was late.
    pub gave_up: bool,
    /// Devices that needed one another in a circle, each group in registration order. They were shut
    /// down one by one: each link to a device registered later was left out.
    pub cycles: Vec<Vec<String>>,
    notes: Arc<Notes>,
    outline: Arc<Outline>,
}

/// A callback that took longer than it should.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Overdue {
    /// The device's name.
    pub device: String,
    /// How long it had been running when it was named.
    pub after: Duration,
    /// How long it took in the end. `None`: it had not ended when the shutdown was over.
    pub took: Option<Duration>,
    /// What it held up was shut down without it.
    pub skipped: bool,
}

impl ShutdownReport {
    pub(crate) fn new(
        outline: Arc<Outline>,
        elapsed: Duration,
        notes: Notes,
        remaining: Vec<Remaining>,
    ) -> ShutdownReport {
        let graph = &outline.graph;
        let walked = notes.failed.iter().map(|(device, message)| (*device, message));
        let counted = notes.notes.iter().filter_map(|note| match &note.outcome {
            Outcome::Failed(message) => Some((note.device, message)),
            _ => None,
        });
        let failed = walked.chain(counted);
        let failed = failed.map(|(id, said)| (graph.name(id).to_string(), said.clone())).collect();
        let overdue = notes.late.iter().map(|late| Overdue {
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
                "these devices needed one another in a circle, and were shut down one by one"
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

    /// True where nothing was left undone and no callback failed.
    pub fn is_clean(&self) -> bool {
        self.remaining.is_empty() && self.failed.is_empty()
    }

    /// The names of the devices that were shut down, in the order in which they were done.
    pub fn order(&self) -> impl Iterator<Item = &str> {
        let graph = &self.outline.graph;
        let mut done = self.records();
        done.retain(|record| record.outcome != Outcome::Cancelled);
        // Devices that ended at the same instant had no callback, and the base order says which was first.
        done.sort_by_key(|r| (r.end, std::cmp::Reverse(graph.rank(r.device))));
        done.into_iter().map(|r| graph.name(r.device))
    }

    /// The timeline: a span for each device that was up, an edge for each dependency. Drawn by each
    /// call, so that a shutdown nobody looks at costs nothing but its notes.
    pub fn timeline(&self) -> Timeline {
        let graph = &self.outline.graph;
        let driver = |id| record::named_driver(graph, id);
        record::timeline("shutdown", SpanKind::Shutdown, graph, &self.records(), driver)
    }

    /// Devices that were shut down although something that needs them was not over: each with the
    /// devices that were skipped before. Empty unless the policy is to skip.
    pub fn past(&self) -> Vec<(String, Vec<String>)> {
        let graph = &self.outline.graph;
        let skipped = self.notes.late.iter().filter(|late| late.skipped).map(|late| late.device);
        drawn::below(graph, skipped)
            .into_iter()
            .filter(|(id, _)| self.outline.kinds[id.index()].has_callback())
            .map(|(id, by)| {
                let by = by.into_iter().map(|id| graph.name(id).to_string()).collect();
                (graph.name(id).to_string(), by)
            })
            .collect()
    }

    fn records(&self) -> Vec<Record> {
        drawn::records(&self.outline, &self.notes)
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
