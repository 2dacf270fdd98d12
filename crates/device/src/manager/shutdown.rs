//! The device manager's shutdown: what it takes over from the registry, and what it leaves.

use super::{DeviceManager, Snapshot, State};
use crate::driver::{Bound, caught};
use crate::record::Clock;
use crate::shutdown::policy;
use crate::shutdown::{
    Kind, Remaining, ShutdownMode, ShutdownOptions, ShutdownPlan, ShutdownReport, ShutdownRun,
    ShutdownState,
};
use crate::watch::Watch;
use crate::{DeviceId, Error, Graph};
use corewise_sync::context;
use std::sync::Arc;

impl DeviceManager {
    /// Shuts all devices down, each after its children and consumers.
    ///
    /// From its beginning on no device can be added. A bring-up in progress is cancelled, and its
    /// running probes are waited for. Then the caller runs one callback after another, until one
    /// takes longer than a millisecond: from then on it runs the synchronous ones and helps with
    /// the asynchronous ones, and helpers on the worker pools join in. With fewer than two
    /// asynchronous callbacks it is a plain loop in reverse order. Blocks until all
    /// is done, or was [aborted](ShutdownOptions::abort). Errors and panics of callbacks are
    /// reported, and stop nothing. Not to be called from a probe or a shutdown callback.
    ///
    /// Afterwards the bound objects of devices that were shut down are dropped, each before what it
    /// needs; those left undone by an abort stay with the manager.
    ///
    /// # Errors
    ///
    /// [`Error::ShuttingDown`] for a second shutdown. [`Error::Busy`] where it was aborted while
    /// waiting for probes.
    #[track_caller]
    pub fn shutdown(&self, options: &ShutdownOptions) -> Result<ShutdownReport, Error> {
        context::might_block("DeviceManager::shutdown");
        let Snapshot { graph, bound } = self.close(&options.abort)?;
        let clock = Clock::start();
        let kinds = kinds(&graph, &bound, options);
        let asyncs = kinds.iter().filter(|k| **k == Kind::Async).count();
        let mode = if policy::shuts_down_serially(asyncs) {
            ShutdownMode::Serial
        } else {
            ShutdownMode::Parallel
        };
        let plan = ShutdownPlan {
            graph: graph.clone(),
            bound,
            kinds,
            cpus: self.machine().housekeeping().len(),
            max_helpers: options.max_helpers,
            abort: options.abort.clone(),
            observed: options.observer.is_some(),
        };
        let run = Arc::new(ShutdownRun {
            state: Arc::new(ShutdownState::new(plan)),
            placer: self.placer.clone(),
            observer: options.observer.clone(),
            abort: options.abort.clone(),
            clock,
        });
        self.registry.state.lock().shutdown = Some((run.state.clone(), clock));

        let watch = self.registry.state.lock().watch.clone();
        run.run(mode, watch.as_deref());
        drop(watch);
        let elapsed = clock.now();
        let remaining = run.state.remaining(elapsed);
        let finished = run.state.finish(elapsed);
        let left = drop_in_order(&graph, finished.bound, &remaining);
        let mut state = self.registry.state.lock();
        state.bound = left;
        if remaining.is_empty() {
            state.shutdown = None;
        }
        drop(state);
        Ok(ShutdownReport::new(mode, elapsed, graph, finished.notes, remaining))
    }

    /// What is not shut down, while a shutdown is in progress or after it was aborted; else
    /// nothing. From any thread and at any time: this is how to say what is left undone where
    /// the shutdown's caller is held by a callback.
    pub fn remaining(&self) -> Vec<Remaining> {
        let shutdown = self.registry.state.lock().shutdown.clone();
        shutdown.map_or_else(Vec::new, |(state, clock)| state.remaining(clock.now()))
    }

    /// Called when devices have come up: starts the watch if a shutdown may need one. Now, so that
    /// a shutdown has to start no thread.
    pub(super) fn expect_shutdown(&self) {
        let state = self.registry.state.lock();
        let unwatched = state.watch.is_none() && state.may_shut_down_in_parallel();
        drop(state);
        if unwatched {
            let watch = Watch::start().inspect_err(|error| {
                tracing::warn!(%error, "no device watch: shutdown begins with helpers");
            });
            self.registry.state.lock().watch = watch.ok().map(Arc::new);
        }
    }
}

impl State {
    /// Whether two devices or more that are up have opted in to asynchronous shutdown.
    fn may_shut_down_in_parallel(&self) -> bool {
        let up = self.graph.ids().filter(|id| self.bound[id.index()].is_some());
        let opted_in = up.filter(|&id| self.graph.decl(id).async_shutdown);
        !policy::shuts_down_serially(opted_in.take(2).count())
    }
}

/// The snapshot of what there is to do for each device.
fn kinds(graph: &Graph, bound: &[Option<Arc<dyn Bound>>], options: &ShutdownOptions) -> Vec<Kind> {
    let asynchronous = options.asynchronous && options.max_helpers > 0;
    let kind = |id: DeviceId| {
        let Some(bound) = &bound[id.index()] else { return Kind::Absent };
        // Who panics when asked is called back: that is caught too, and reported.
        let has = caught(|| bound.has_shutdown()).unwrap_or(true);
        match (has, asynchronous && graph.decl(id).async_shutdown) {
            (false, _) => Kind::NoCallback,
            (true, false) => Kind::Sync,
            (true, true) => Kind::Async,
        }
    };
    graph.ids().map(kind).collect()
}

/// Drops bound objects, each before what it needs, except those of devices that remain.
pub(super) fn drop_in_order(
    graph: &Graph,
    mut bound: Vec<Option<Arc<dyn Bound>>>,
    remaining: &[Remaining],
) -> Vec<Option<Arc<dyn Bound>>> {
    let mut keep = vec![false; bound.len()];
    for id in remaining.iter().filter_map(|r| graph.find(&r.device)) {
        keep[id.index()] = true;
    }
    // What a remaining device needs remains in use, whether or not it has a callback.
    let known = bound.len();
    for &id in graph.order().iter().rev().filter(|id| id.index() < known) {
        if keep[id.index()] {
            graph.needs(id).iter().for_each(|need| keep[need.index()] = true);
        } else if let Some(object) = bound[id.index()].take()
            && let Err(panic) = caught(|| drop(object))
        {
            tracing::error!(device = graph.name(id), panic, "dropping a device's object panicked");
        }
    }
    bound
}
