//! How a shutdown is asked for, and what it says afterwards.

use super::remaining::Remaining;
use crate::event::Observer;
use crate::record::{self, Record};
use crate::{Cancel, Graph};
use corewise_timeline::{Outcome, SpanKind, Timeline};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// The most helpers at once, unless the options say otherwise: as many threads as a worker pool has
/// by default.
const MAX_HELPERS: usize = 256;

/// How to shut devices down. The default honours the devices' opt-in to asynchronous shutdown.
#[derive(Clone)]
pub struct ShutdownOptions {
    /// The global switch: false runs every callback in the caller's thread, one by one.
    pub asynchronous: bool,
    /// The most helpers that may work beside the caller at once; 0 is as good as `asynchronous`
    /// being false.
    pub max_helpers: usize,
    /// Throwing it leaves the rest undone: no further callback is started, and the shutdown
    /// returns as soon as its caller is in no callback itself.
    pub abort: Cancel,
    /// Told about each device that has a callback, for progress bars.
    pub observer: Option<Observer>,
}

impl Default for ShutdownOptions {
    fn default() -> ShutdownOptions {
        ShutdownOptions {
            asynchronous: true,
            max_helpers: MAX_HELPERS,
            abort: Cancel::new(),
            observer: None,
        }
    }
}

impl ShutdownOptions {
    /// The defaults.
    pub fn new() -> ShutdownOptions {
        ShutdownOptions::default()
    }

    /// Sets the global switch.
    #[must_use]
    pub fn asynchronous(mut self, yes: bool) -> ShutdownOptions {
        self.asynchronous = yes;
        self
    }

    /// Sets the most helpers at once.
    #[must_use]
    pub fn max_helpers(mut self, most: usize) -> ShutdownOptions {
        self.max_helpers = most;
        self
    }

    /// Sets the switch that aborts.
    #[must_use]
    pub fn abort(mut self, abort: Cancel) -> ShutdownOptions {
        self.abort = abort;
        self
    }

    /// Sets who is told.
    #[must_use]
    pub fn observer(mut self, observer: Observer) -> ShutdownOptions {
        self.observer = Some(observer);
        self
    }
}

impl fmt::Debug for ShutdownOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShutdownOptions")
            .field("asynchronous", &self.asynchronous)
            .field("max_helpers", &self.max_helpers)
            .field("abort", &self.abort)
            .finish_non_exhaustive()
    }
}

/// How a shutdown was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShutdownMode {
    /// One by one in the caller's thread, since fewer than two callbacks may run elsewhere.
    Serial,
    /// One by one in the caller's thread as long as that is quick; from the first slow callback on
    /// by counters, with helpers.
    Parallel,
}

/// What a shutdown did.
#[derive(Clone)]
#[non_exhaustive]
pub struct ShutdownReport {
    /// How it was done.
    pub mode: ShutdownMode,
    /// How long it took, without the dropping of the bound objects afterwards.
    pub elapsed: Duration,
    /// How many helpers were asked for; each is a work item on a pool, not a thread made.
    pub helpers: usize,
    /// Callbacks that failed or panicked, with what they said.
    pub failed: Vec<(String, String)>,
    /// What was left undone: empty unless it was aborted. Callbacks that still run go on.
    pub remaining: Vec<Remaining>,
    graph: Arc<Graph>,
    records: Vec<Record>,
    /// How many of the records, the first ones, are the serial loop's.
    looped: usize,
}

/// What a shutdown noted down.
pub(crate) struct Notes {
    pub records: Vec<Record>,
    /// How many helpers were asked for.
    pub helpers: usize,
    /// How many of the records are the serial loop's: the first ones.
    pub looped: usize,
}

impl ShutdownReport {
    pub(crate) fn new(
        mode: ShutdownMode,
        elapsed: Duration,
        graph: Arc<Graph>,
        finished: Notes,
        remaining: Vec<Remaining>,
    ) -> ShutdownReport {
        let Notes { records, helpers, looped } = finished;
        let failed = records.iter().filter_map(|r| match &r.outcome {
            Outcome::Failed(message) => Some((graph.name(r.device).to_string(), message.clone())),
            _ => None,
        });
        let failed = failed.collect();
        ShutdownReport { mode, elapsed, helpers, failed, remaining, graph, records, looped }
    }

    /// True where nothing was left undone and no callback failed.
    pub fn is_clean(&self) -> bool {
        self.remaining.is_empty() && self.failed.is_empty()
    }

    /// The names of the devices that were shut down, in the order in which they were done.
    pub fn order(&self) -> impl Iterator<Item = &str> {
        let mut done: Vec<&Record> =
            self.records.iter().filter(|r| r.outcome != Outcome::Cancelled).collect();
        // Notes come in the order in which threads got the lock. What ended at the same instant had
        // no callback, and the base order says which was first.
        done.sort_by_key(|r| (r.end, std::cmp::Reverse(self.graph.rank(r.device))));
        done.into_iter().map(|r| self.graph.name(r.device))
    }

    /// The timeline: a span for each device that was up, an edge for each dependency. Drawn by each
    /// call, so that a shutdown nobody looks at costs nothing but its notes.
    pub fn timeline(&self) -> Timeline {
        let mut records = self.records.clone();
        self.add_releases(&mut records[..self.looped]);
        record::timeline("shutdown", SpanKind::Shutdown, &self.graph, &records)
    }

    /// The serial loop counts nothing. What released a device there is found afterwards: of those
    /// that depend on it, the one that ended last.
    fn add_releases(&self, records: &mut [Record]) {
        let mut end = vec![None; self.graph.len()];
        for (place, record) in records.iter().enumerate() {
            end[record.device.index()] = Some((place, record.end));
        }
        for record in records {
            let feeds = self.graph.feeds(record.device).iter();
            let last = feeds.filter_map(|&f| end[f.index()].map(|(p, end)| (p, end, f))).max();
            record.released_by = last.map(|(_, _, device)| device);
            record.queued = last.map_or(Duration::ZERO, |(_, end, _)| end).min(record.start);
        }
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
            .finish_non_exhaustive()
    }
}
