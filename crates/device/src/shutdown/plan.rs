//! What is to be shut down: the outline, made when devices have come up, and the plan of one
//! shutdown.

use super::options::HangPolicy;
use super::policy;
use crate::bound::Bound;
use crate::cancel::Cancel;
use crate::error::caught;
use crate::graph::{DeviceId, Graph};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// What there is to do for a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// It never came up: it is done before it begins, and stands on no timeline.
    Absent,
    /// It is up, but has no callback: done on the spot.
    NoCallback,
    /// Its callback runs in the caller's thread.
    Sync,
    /// Its callback may run on a helper.
    Async,
}

impl Kind {
    pub(super) fn has_callback(self) -> bool {
        matches!(self, Kind::Sync | Kind::Async)
    }
}

/// How a shutdown was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ShutdownMode {
    /// One by one in the caller's thread, since fewer than two callbacks may run elsewhere.
    Serial,
    /// One by one in the caller's thread as long as that is quick; from the first slow callback on
    /// by counters, with helpers.
    Parallel,
}

/// The devices to be called, and in which order one by one. A snapshot: nothing that a device says later
/// changes it.
pub(crate) struct Outline {
    pub graph: Arc<Graph>,
    /// By device.
    pub kinds: Vec<Kind>,
    pub mode: ShutdownMode,
    /// Devices with a callback, in the order of the loop.
    pub calls: Vec<DeviceId>,
    /// How many of `calls` there are up to the last asynchronous one.
    pub asyncs_until: usize,
    /// How many are synchronous.
    pub sync: usize,
    /// How many callbacks can run at once, on average, if all take as long: all of them over those of
    /// the longest chain, rounded.
    pub abreast: usize,
    /// Deadlines of their own.
    pub timeouts: BTreeMap<DeviceId, Duration>,
}

impl Outline {
    /// Asks each device whether it has a callback. `asynchronous` false: all run in the caller's
    /// thread.
    pub(crate) fn new(
        graph: &Arc<Graph>,
        bound: &[Option<Arc<dyn Bound>>],
        asynchronous: bool,
    ) -> Outline {
        let mut timeouts = BTreeMap::new();
        // Which of their links count is a guess: so they go one by one, in base order.
        let in_circle: BTreeSet<DeviceId> = graph.cycles().iter().flatten().copied().collect();
        let kind = |id: DeviceId| {
            let Some(Some(bound)) = bound.get(id.index()) else { return Kind::Absent };
            // A device that panics when asked is called back: that is caught too, and reported.
            if !caught(|| bound.has_shutdown()).unwrap_or(true) {
                return Kind::NoCallback;
            }
            let decl = graph.decl(id);
            timeouts.extend(decl.shutdown_timeout.map(|t| (id, t)));
            let parallel = asynchronous && decl.async_shutdown && !in_circle.contains(&id);
            if parallel { Kind::Async } else { Kind::Sync }
        };
        let kinds: Vec<Kind> = graph.ids().map(kind).collect();
        Outline { timeouts, ..Outline::of(graph.clone(), kinds) }
    }

    /// Of what is known of each device.
    pub(super) fn of(graph: Arc<Graph>, kinds: Vec<Kind>) -> Outline {
        let number = |kind| kinds.iter().filter(|k| **k == kind).count();
        let (sync, asyncs) = (number(Kind::Sync), number(Kind::Async));
        let serial = policy::shuts_down_serially(asyncs);
        let calls = if serial { backwards(&graph, &kinds) } else { sync_first(&graph, &kinds) };
        let is_async = |id: &DeviceId| kinds[id.index()] == Kind::Async;
        let asyncs_until = calls.iter().rposition(is_async).map_or(0, |last| last + 1);
        let mode = if serial { ShutdownMode::Serial } else { ShutdownMode::Parallel };
        let each: Vec<u64> = kinds.iter().map(|kind| u64::from(kind.has_callback())).collect();
        let chain = policy::paths(graph.order(), |id| graph.needs(id), &each).into_iter().max();
        let chain = chain.and_then(|chain| usize::try_from(chain).ok()).unwrap_or(0).max(1);
        let abreast = (calls.len() + chain / 2) / chain;
        let timeouts = BTreeMap::new();
        Outline { graph, kinds, mode, calls, asyncs_until, sync, abreast, timeouts }
    }
}

/// Devices with a callback, in reverse base order.
fn backwards(graph: &Graph, kinds: &[Kind]) -> Vec<DeviceId> {
    let order = graph.order().iter().rev().copied();
    order.filter(|id| kinds[id.index()].has_callback()).collect()
}

/// As [`backwards`], but what has to wait for an asynchronous device comes after all the rest.
fn sync_first(graph: &Graph, kinds: &[Kind]) -> Vec<DeviceId> {
    let mut waits = vec![false; graph.len()];
    let (mut first, mut later) = (Vec::new(), Vec::new());
    for &id in graph.order().iter().rev() {
        let kind = kinds[id.index()];
        let is_later = waits[id.index()] || kind == Kind::Async;
        if is_later {
            graph.needs(id).iter().for_each(|need| waits[need.index()] = true);
        }
        if kind.has_callback() {
            if is_later { later.push(id) } else { first.push(id) }
        }
    }
    first.append(&mut later);
    first
}

/// How long things may take, and what happens then.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Timeouts {
    /// For a device that has none of its own.
    pub device: Option<Duration>,
    /// For the whole shutdown.
    pub run: Option<Duration>,
    pub policy: HangPolicy,
}

/// What is to be shut down, and how.
pub(crate) struct ShutdownPlan {
    pub outline: Arc<Outline>,
    /// By device.
    pub bound: Vec<Option<Arc<dyn Bound>>>,
    /// CPUs that work may run on.
    pub cpus: usize,
    /// The most helpers that there may be at once.
    pub max_helpers: usize,
    pub timeouts: Timeouts,
    /// By device: how long callbacks are expected to take, from this one to the end of the longest
    /// chain that waits for it, in nanoseconds. `None`: nothing is known.
    pub paths: Option<Vec<u64>>,
    /// Leaves the rest undone.
    pub abort: Cancel,
    /// Somebody is told about finished callbacks: the shutdown ends after the last telling.
    pub observed: bool,
}
