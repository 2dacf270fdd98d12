//! The device manager's shutdown: the state that it takes over from the registry, and the state
//! that it leaves.

use std::sync::Arc;

use corewise_sync::time::PausableClock;
use corewise_sync::{Mutex, context, text};

use super::{DeviceManager, Snapshot};
use crate::bound::Bound;
use crate::error::{Error, caught};
use crate::event::Listener;
use crate::graph::Graph;
use crate::history::History;
use crate::record::Clock;
use crate::registry::{ProbesInside, RegisteredDriver};
use crate::shutdown::{
    Kind, Outline, Remaining, ShutdownOptions, ShutdownPlan, ShutdownReport, ShutdownRun,
    ShutdownState, Timeouts, policy,
};
use crate::watch::Watch;

impl DeviceManager {
    /// Shuts all devices down, each after its children and consumers.
    ///
    /// From its beginning on no device can be added. A bring-up in progress is cancelled, and its
    /// running probes are waited for. Then the caller runs one callback after another, until one
    /// takes longer than a millisecond, or until the rest is worth a helper. From then on it runs
    /// the synchronous ones and helps with the asynchronous ones, and helpers on the worker pools
    /// join in. With fewer than two asynchronous callbacks it is a plain loop in reverse order.
    /// Blocks until all is done, or was [aborted](ShutdownOptions::abort). Errors and panics of
    /// callbacks are reported, and stop nothing.
    ///
    /// Afterwards the bound objects of devices that were shut down are dropped, each before the
    /// objects that it needs. After an abort, the objects that were left undone stay with the
    /// manager. Then the drivers are dropped on the caller's thread, the one that was registered
    /// last first.
    ///
    /// # Errors
    ///
    /// [`Error::ShuttingDown`] for a second shutdown, [`Error::InsideProbe`] from a driver,
    /// callback or observer. [`Error::Busy`] if it was aborted while waiting for probes.
    #[track_caller]
    pub fn shutdown(&self, options: &ShutdownOptions) -> Result<ShutdownReport, Error> {
        context::might_block("DeviceManager::shutdown");
        let snapshot = self.close(&options.abort)?;
        let clock = Clock::start();
        let outline = self.outline(&snapshot, options.asynchronous && options.max_helpers > 0);
        let (paths, slow) = expected(&outline, options.history.as_deref());
        let plan = ShutdownPlan {
            outline: outline.clone(),
            bound: snapshot.bound,
            cpus: self.machine().parallelism(),
            max_helpers: options.max_helpers,
            timeouts: Timeouts {
                device: options.device_timeout,
                run: options.timeout,
                policy: options.on_hang,
            },
            paths,
            abort: options.abort.clone(),
            observed: options.observer.is_some(),
        };
        let state = Arc::new(ShutdownState::new(plan));
        let running =
            state.first_deadline().map(|first| Mutex::new(PausableClock::for_timeout(first)));
        let run = Arc::new(ShutdownRun {
            state,
            placer: self.placer.clone(),
            observer: options.observer.clone(),
            clock,
            on_hang: options.on_hang,
            counts_at_once: policy::counts_at_once(slow),
            pace: Mutex::default(),
            running,
        });
        let listener: Arc<dyn Listener> = run.state.clone();
        options.abort.listen(Arc::downgrade(&listener));
        let watch = {
            let mut state = self.registry.state.lock();
            state.shutdown = Some((run.state.clone(), clock));
            state.watch.take()
        };
        // If all devices were added one by one, no bring-up has started a watch.
        let watch = watch.or_else(|| run.first_look().and_then(|_| start_watch()));
        run.run(watch.as_deref());
        let elapsed = clock.now();
        // Ends its thread.
        drop(watch);
        let remaining = run.state.remaining(elapsed);
        let finished = run.state.finish(elapsed);
        let left = drop_in_order(&snapshot.graph, finished.bound, &remaining);
        let mut state = self.registry.state.lock();
        state.left = left;
        if remaining.is_empty() {
            state.shutdown = None;
        }
        // Nothing is probed any more.
        let (drivers, known) = (state.drivers.list.clone(), state.outline.take());
        drop(state);
        drop(known);
        self.let_go(&drivers);
        Ok(ShutdownReport::new(outline, elapsed, finished.notes, remaining))
    }

    /// Drops the drivers, the last one first: each may keep the manager.
    fn let_go(&self, drivers: &[Arc<RegisteredDriver>]) {
        let _inside = ProbesInside::enter(&self.registry);
        for registered in drivers.iter().rev() {
            let driver = registered.let_go();
            if let Err(panic) = caught(move || drop(driver)) {
                tracing::error!(driver = %text::name(&registered.name), panic, "dropping a driver panicked");
            }
        }
    }

    /// Returns the devices that are not shut down, while a shutdown is in progress or after it was
    /// aborted; else nothing. Any thread may call it at any time, even while a callback holds the
    /// shutdown's caller.
    pub fn remaining(&self) -> Vec<Remaining> {
        let shutdown = self.registry.state.lock().shutdown.clone();
        shutdown.map_or_else(Vec::new, |(state, clock)| state.remaining(clock.now()))
    }

    /// Prepares the data that a shutdown needs, and starts the watch, so that a shutdown has to do
    /// neither. Called when devices have come up.
    pub(super) fn expect_shutdown(&self) {
        let (graph, bound, changes, unwatched) = {
            let mut state = self.registry.state.lock();
            let known =
                state.outline.as_ref().is_some_and(|(of, _)| *of == state.devices.changes());
            if known || state.devices.number_up() == 0 {
                return;
            }
            let (graph, bound) = (state.devices.graph(), state.devices.bound_objects());
            (graph, bound, state.devices.changes(), state.watch.is_none())
        };
        // Devices are asked for their callbacks, so this is not done under the lock.
        let outline = Outline::new(&graph, &bound, true);
        let watch = if unwatched { start_watch() } else { None };
        let former = {
            let mut state = self.registry.state.lock();
            if watch.is_some() {
                state.watch = watch;
            }
            state.outline.replace((changes, Arc::new(outline)))
        };
        // Each may be the last handle of a device that has gone.
        drop(former);
        drop_in_order(&graph, bound, &[]);
    }

    /// Returns the outline that was prepared, if it is still right.
    fn outline(&self, snapshot: &Snapshot, asynchronous: bool) -> Arc<Outline> {
        let prepared = self.registry.state.lock().outline.take();
        let prepared = prepared.filter(|(of, _)| asynchronous && *of == snapshot.changes);
        prepared.map_or_else(
            || Arc::new(Outline::new(&snapshot.graph, &snapshot.bound, asynchronous)),
            |(_, outline)| outline,
        )
    }
}

fn start_watch() -> Option<Arc<Watch>> {
    let watch = Watch::start().inspect_err(|error| {
        tracing::warn!(%error, "cannot start the device watch: the shutdown starts with helpers");
    });
    watch.ok().map(Arc::new)
}

/// Returns how long callbacks are expected to take, from each to the end of the longest chain
/// behind it, in nanoseconds; `None` if nothing is known. Returns also how many asynchronous ones
/// are slow by that.
fn expected(outline: &Outline, history: Option<&History>) -> (Option<Vec<u64>>, usize) {
    let mut expected = vec![];
    let mut slow = 0;
    let Some(history) = history.filter(|history| !history.is_empty()) else { return (None, 0) };
    let graph = &outline.graph;
    expected.resize(graph.len(), 0);
    for &id in &outline.calls {
        let Some(takes) = history.expected_shutdown(graph.name(id)) else { continue };
        expected[id.index()] = u64::try_from(takes.as_nanos()).unwrap_or(u64::MAX);
        slow += usize::from(takes >= policy::SLOW && outline.kinds[id.index()] == Kind::Async);
    }
    (Some(policy::paths(graph.order(), |id| graph.needs(id), &expected)), slow)
}

/// Drops bound objects, each before the objects that it needs, except those of devices that remain.
pub(super) fn drop_in_order(
    graph: &Graph,
    mut bound: Vec<Option<Arc<dyn Bound>>>,
    remaining: &[Remaining],
) -> Vec<Option<Arc<dyn Bound>>> {
    // Usually nothing remains, and nothing is noted by device.
    let mut keep = vec![false; if remaining.is_empty() { 0 } else { bound.len() }];
    for id in remaining.iter().filter_map(|r| graph.find(&r.device)) {
        keep[id.index()] = true;
    }
    // A device that a remaining one needs remains in use, whether or not it has a callback.
    let known = bound.len();
    let mut order = graph.order().iter().copied().rev().filter(|id| id.index() < known);
    let mut at = None;
    // Usually nothing panics: all is tried at once, and the rest once more.
    while let Err(panic) = caught(|| {
        for id in order.by_ref() {
            at = Some(id);
            if keep.get(id.index()) == Some(&true) {
                graph.needs(id).iter().for_each(|need| keep[need.index()] = true);
            } else {
                drop(bound[id.index()].take());
            }
        }
    }) {
        let device = at.map(|id| tracing::field::display(text::name(graph.name(id))));
        tracing::error!(device, panic, "dropping a device's object panicked");
    }
    bound
}
