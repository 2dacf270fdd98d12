//! Options of a shutdown.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::bound::Bound;
use crate::error::caught;
use crate::event::{Cancel, Observer};
use crate::graph::{DeviceId, Graph};
use crate::history::History;
use crate::shutdown::policy;

/// Greatest number of helpers at once, unless the options say otherwise. With the caller and the
/// workers that the pools hold ready, a shutdown keeps to 32 threads.
const MAX_HELPERS: usize = 28;

/// Deadline of a callback, past which it is named, unless the options say otherwise.
const DEVICE_TIMEOUT: Duration = Duration::from_secs(10);

/// A policy for a callback that is past its deadline, once everything that doesn't depend on it is
/// shut down. Until then it is only named, whatever the policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum HangPolicy {
    /// The callback is waited for, as a kernel does.
    #[default]
    WaitOn,
    /// The callback counts as done, as a failure: its needs are shut down under it, and the report
    /// marks it ([`OverdueCallback::skipped`](crate::OverdueCallback)). The callback itself
    /// continues. Once the whole shutdown is late, this is the same as `GiveUp`.
    ///
    /// An asynchronous callback that hangs holds a worker of the pools, after this or `GiveUp`, and
    /// [`WorkerPools::shutdown`](corewise_workqueue::WorkerPools::shutdown) would wait for it:
    /// [`shutdown_timeout`](corewise_workqueue::WorkerPools::shutdown_timeout) doesn't, and names
    /// it.
    Skip,
    /// The rest is left undone, as by an [abort](ShutdownOptions::abort).
    GiveUp,
}

/// Options of a shutdown. The default: side by side, as far as devices don't need each other and
/// their declarations allow it. Callbacks that take longer than ten seconds are named, and waited
/// for.
#[derive(Clone)]
#[non_exhaustive]
pub struct ShutdownOptions {
    /// The global switch: false runs every callback in the caller's thread, one by one.
    pub asynchronous: bool,
    /// Greatest number of helpers that work beside the caller at once; 0 is the same as
    /// `asynchronous` being false. 28 by default. Only a callback that blocks holds a helper, so
    /// this many may block at once, for any number of devices.
    pub max_helpers: usize,
    /// Deadline of a callback, past which it is named, for devices that have none of their own.
    /// `None`: no limit.
    pub device_timeout: Option<Duration>,
    /// Deadline of the whole shutdown, from when no probe is in progress any more. Past it, running
    /// callbacks are named, and unless the policy is to wait, the rest is left undone.
    pub timeout: Option<Duration>,
    /// Policy for callbacks that are late.
    ///
    /// No thread can be taken out of a callback. So with any policy but [`HangPolicy::WaitOn`]
    /// synchronous callbacks run in a thread of their own (`cw-shutdown`), one after another as
    /// always, and the caller only waits. Then [`shutdown`](crate::DeviceManager::shutdown) returns
    /// even if callbacks hang, also those of devices that were being unbound when it began. It
    /// waits for probes in progress first, which have deadlines of their own: only an
    /// [abort](ShutdownOptions::abort) ends that, with [`Error::Busy`](crate::Error::Busy).
    pub on_hang: HangPolicy,
    /// Durations of callbacks in earlier runs: those with the longest path start first.
    pub history: Option<Arc<History>>,
    /// Switch that leaves the rest undone: no further callback is started, and the shutdown returns
    /// as soon as its caller is in no callback itself.
    pub abort: Cancel,
    /// Observer that gets an event for each device that has a callback, for progress bars.
    pub observer: Option<Observer>,
}

impl Default for ShutdownOptions {
    fn default() -> ShutdownOptions {
        ShutdownOptions {
            asynchronous: true,
            max_helpers: MAX_HELPERS,
            device_timeout: Some(DEVICE_TIMEOUT),
            timeout: None,
            on_hang: HangPolicy::default(),
            history: None,
            abort: Cancel::new(),
            observer: None,
        }
    }
}

impl ShutdownOptions {
    /// Returns the defaults.
    pub fn new() -> ShutdownOptions {
        ShutdownOptions::default()
    }

    /// Sets the global switch.
    #[must_use]
    pub fn asynchronous(mut self, yes: bool) -> ShutdownOptions {
        self.asynchronous = yes;
        self
    }

    /// Sets the greatest number of helpers at once.
    #[must_use]
    pub fn max_helpers(mut self, most: usize) -> ShutdownOptions {
        self.max_helpers = most;
        self
    }

    /// Sets the deadline of a callback, past which it is named.
    #[must_use]
    pub fn device_timeout(mut self, timeout: Option<Duration>) -> ShutdownOptions {
        self.device_timeout = timeout;
        self
    }

    /// Sets the deadline of the whole shutdown.
    #[must_use]
    pub fn timeout(mut self, timeout: Option<Duration>) -> ShutdownOptions {
        self.timeout = timeout;
        self
    }

    /// Sets the policy for callbacks that are late.
    #[must_use]
    pub fn on_hang(mut self, policy: HangPolicy) -> ShutdownOptions {
        self.on_hang = policy;
        self
    }

    /// Sets the durations of earlier runs.
    #[must_use]
    pub fn history(mut self, history: Arc<History>) -> ShutdownOptions {
        self.history = Some(history);
        self
    }

    /// Sets the switch that aborts.
    #[must_use]
    pub fn abort(mut self, abort: Cancel) -> ShutdownOptions {
        self.abort = abort;
        self
    }

    /// Sets the observer.
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
            .field("device_timeout", &self.device_timeout)
            .field("timeout", &self.timeout)
            .field("on_hang", &self.on_hang)
            .field("abort", &self.abort)
            .finish_non_exhaustive()
    }
}

// The devices to shut down: the outline, made when devices have come up, and the plan of one
// shutdown.

/// The work that a device needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The device never came up: it is done before it begins, and stands on no timeline.
    Absent,
    /// The device is up, but has no callback: it is done on the spot.
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

/// The way in which a shutdown was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ShutdownMode {
    /// One by one in the caller's thread, since fewer than two callbacks may run elsewhere.
    Serial,
    /// One by one in the caller's thread as long as that is quick; from the first slow callback on
    /// by counters, with helpers.
    Parallel,
}

/// The devices to be called, and their order one by one. It is a snapshot: no later answer of a
/// device changes it.
pub(crate) struct Outline {
    pub graph: Arc<Graph>,
    /// Work by device.
    pub kinds: Vec<Kind>,
    pub mode: ShutdownMode,
    /// Devices with a callback, in the order of the loop.
    pub calls: Vec<DeviceId>,
    /// Number of `calls` up to the last asynchronous one.
    pub asyncs_until: usize,
    /// Number of synchronous ones.
    pub sync: usize,
    /// Number of callbacks that can run at once, on average, if all take as long: all of them over
    /// those of the longest chain, rounded.
    pub abreast: usize,
    /// Deadlines by device, for those that have their own.
    pub timeouts: BTreeMap<DeviceId, Duration>,
}

impl Outline {
    /// Asks each device whether it has a callback. If `asynchronous` is false, all run in the
    /// caller's thread.
    pub(crate) fn new(
        graph: &Arc<Graph>,
        bound: &[Option<Arc<dyn Bound>>],
        asynchronous: bool,
    ) -> Outline {
        let mut timeouts = BTreeMap::new();
        // The links that count among them are a guess: so they go one by one, in base order.
        let in_circle: BTreeSet<DeviceId> = graph.cycles().iter().flatten().copied().collect();
        let kind = |id: DeviceId| {
            let Some(Some(bound)) = bound.get(id.index()) else { return Kind::Absent };
            // A device that panics when asked is called back: that panic is caught too, and
            // reported.
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

    /// Creates an outline from each device's work.
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

/// Returns the devices with a callback, in reverse base order.
fn backwards(graph: &Graph, kinds: &[Kind]) -> Vec<DeviceId> {
    let order = graph.order().iter().rev().copied();
    order.filter(|id| kinds[id.index()].has_callback()).collect()
}

/// Returns them like [`backwards`], but devices that wait for an asynchronous one come after all
/// others.
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

/// Deadlines, and the policy past them.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Timeouts {
    /// Deadline of a device that has none of its own.
    pub device: Option<Duration>,
    /// Deadline of the whole shutdown.
    pub run: Option<Duration>,
    pub policy: HangPolicy,
}

/// The plan of a shutdown: its devices and options.
pub(crate) struct ShutdownPlan {
    pub outline: Arc<Outline>,
    /// Bound objects by device.
    pub bound: Vec<Option<Arc<dyn Bound>>>,
    /// CPUs that work may run on.
    pub cpus: usize,
    /// Greatest number of helpers at once.
    pub max_helpers: usize,
    pub timeouts: Timeouts,
    /// Expected time by device, from its callback to the end of the longest chain that waits for
    /// it, in nanoseconds. `None`: nothing is known.
    pub paths: Option<Vec<u64>>,
    /// Switch that leaves the rest undone.
    pub abort: Cancel,
    /// True if an observer gets finished callbacks: the shutdown ends after the last report.
    pub observed: bool,
}
