//! The device manager: drivers, devices, bring-up, look-up. Its shutdown is in `manager/shutdown.rs`.
//!
//! Guards: `I:` immutable, `L:` lock (what it guards is named). Lock order: the manager's lock
//! comes before those of a bring-up or a shutdown; nothing is called while it is held.

use crate::driver::{Bound, Driver, downcast};
use crate::placement::Placer;
use crate::policy;
use crate::probe::{BringUp, BringUpOptions, Plan, ProbeRun, ProbeState};
use crate::record::Clock;
use crate::shutdown::{Outline, ShutdownState};
use crate::watch::Watch;
use crate::{Cancel, DeviceDecl, DeviceId, Error, Graph, ProbeType};
use corewise_sync::{Condvar, Mutex, context};
use corewise_topology::Machine;
use corewise_workqueue::WorkerPools;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

mod shutdown;

/// Holds the devices of a program: brings them up in parallel, and shuts them down in the order of
/// their real dependencies.
///
/// Share it in an `Arc`. Shut it down before the pools. Dropped without a shutdown, it drops the
/// bound objects, each device before what it needs, and calls no callback.
pub struct DeviceManager {
    /// I: where probes run.
    placer: Arc<Placer>,
    /// I: what the manager and its listeners share.
    registry: Arc<Registry>,
}

struct Registry {
    /// L: is the lock; guards devices, drivers and the phase.
    state: Mutex<State>,
    /// L: with `state`; a shutdown waits here for the end of a bring-up.
    changed: Condvar,
}

struct State {
    drivers: BTreeMap<String, Registered>,
    graph: Arc<Graph>,
    /// By device.
    bound: Vec<Option<Arc<dyn Bound>>>,
    /// The switch of the bring-up in progress.
    probing: Option<Cancel>,
    /// The first shutdown closes the registry, for good.
    closed: bool,
    /// What a shutdown will need to know, as of the last bring-up.
    outline: Option<Arc<Outline>>,
    /// Looks at the clock during a shutdown, if one may need that.
    watch: Option<Arc<Watch>>,
    /// The shutdown in progress.
    shutdown: Option<(Arc<ShutdownState>, Clock)>,
}

/// The devices at the moment from which on nothing changes them.
struct Snapshot {
    graph: Arc<Graph>,
    /// By device.
    bound: Vec<Option<Arc<dyn Bound>>>,
}

/// A driver, and what it said about itself when it was registered.
#[derive(Clone)]
struct Registered {
    driver: Arc<dyn Driver>,
    probe_type: ProbeType,
}

impl DeviceManager {
    /// A manager without drivers and devices, whose probes run on those pools.
    ///
    /// # Errors
    ///
    /// [`Error::Queue`] where the pools give no queue.
    pub fn new(pools: &WorkerPools) -> Result<DeviceManager, Error> {
        let placer = Placer::new(pools).map_err(Error::Queue)?;
        let state = State {
            drivers: BTreeMap::new(),
            graph: Arc::new(Graph::empty()),
            bound: Vec::new(),
            probing: None,
            closed: false,
            outline: None,
            watch: None,
            shutdown: None,
        };
        let registry = Registry { state: Mutex::new(state), changed: Condvar::new() };
        Ok(DeviceManager { placer: Arc::new(placer), registry: Arc::new(registry) })
    }

    /// The machine that its devices are on.
    pub fn machine(&self) -> &Machine {
        self.placer.machine()
    }

    /// Makes a driver known by its name. It is kept as long as the manager.
    ///
    /// # Errors
    ///
    /// [`Error::DuplicateDriver`].
    pub fn register(&self, driver: Arc<dyn Driver>) -> Result<(), Error> {
        let (name, probe_type) = (driver.name().to_string(), driver.probe_type());
        let mut state = self.registry.state.lock();
        if state.drivers.contains_key(&name) {
            return Err(Error::DuplicateDriver(name));
        }
        state.drivers.insert(name, Registered { driver, probe_type });
        Ok(())
    }

    /// Brings devices up: each is probed as soon as its parent and suppliers are bound, near its
    /// node. May be called again with further devices, which may need earlier ones.
    ///
    /// Blocks until each device is settled: bound, failed, skipped, or cancelled. Asynchronous
    /// probes run on pool workers; synchronous ones one after another, in registration order, on a
    /// worker near their node or in the calling thread. Drivers must be registered before.
    ///
    /// Without [`keep_going`](BringUpOptions::keep_going) the first failure stops the start of
    /// further probes, and what is up stays up: shut it down, or use it.
    ///
    /// # Errors
    ///
    /// [`Error::Rejected`] for faulty declarations, without `keep_going`: nothing was probed, no
    /// device was added. [`Error::Busy`] during another bring-up (so also from inside a probe).
    /// [`Error::ShuttingDown`] from the beginning of a shutdown on. A device that fails is no
    /// error: see the report.
    #[track_caller]
    pub fn bring_up(
        &self,
        decls: Vec<DeviceDecl>,
        options: &BringUpOptions,
    ) -> Result<BringUp, Error> {
        context::might_block("DeviceManager::bring_up");
        let (run, first) = {
            let mut state = self.registry.state.lock();
            if state.closed {
                return Err(Error::ShuttingDown);
            }
            if state.probing.is_some() {
                return Err(Error::Busy);
            }
            let run = self.plan_bring_up(&state, decls, options)?;
            state.probing = Some(options.cancel.clone());
            (Arc::new(run), state.bound.len())
        };
        let probing = Probing(&self.registry);
        run.run();
        let finished = run.state.finish();
        let graph = run.state.graph().clone();
        let report = BringUp::new(&graph, first, &finished, options.cancel.is_cancelled());
        let mut state = self.registry.state.lock();
        state.bound.extend(finished.devices.into_iter().map(|(_, bound)| bound));
        state.graph = graph;
        drop(state);
        self.expect_shutdown();
        drop(probing);
        Ok(report)
    }

    fn plan_bring_up(
        &self,
        state: &State,
        decls: Vec<DeviceDecl>,
        options: &BringUpOptions,
    ) -> Result<ProbeRun, Error> {
        let clock = Clock::start();
        let known: Vec<String> = state.drivers.keys().cloned().collect();
        let (graph, faults) = Graph::extended(&state.graph, decls, &known);
        if !faults.is_empty() && !options.keep_going {
            return Err(Error::Rejected(faults));
        }
        let drivers: Vec<Option<Registered>> =
            graph.ids().map(|id| state.drivers.get(&graph.decl(id).driver).cloned()).collect();
        let is_async = |id: DeviceId| {
            let (decl, driver) = (graph.decl(id), &drivers[id.index()]);
            driver.as_ref().is_some_and(|driver| {
                let (asked, own) = (&options.async_probe, decl.probe_type);
                policy::probes_async(driver.probe_type, own, &decl.driver, asked)
            })
        };
        let plan = Plan {
            is_async: graph.ids().map(is_async).collect(),
            graph: Arc::new(graph),
            prior: state.bound.clone(),
            faults,
            keep_going: options.keep_going,
            cancel: options.cancel.clone(),
            observed: options.observer.is_some(),
        };
        Ok(ProbeRun {
            state: Arc::new(ProbeState::new(plan)),
            drivers: drivers.into_iter().map(|d| d.map(|d| d.driver)).collect(),
            placer: self.placer.clone(),
            observer: options.observer.clone(),
            clock,
        })
    }

    /// The bound object of a device by name; `None` where there is no such device, it is not up
    /// (before its bring-up has returned, or from the beginning of the shutdown on), or it is no
    /// `T`. Does not block.
    pub fn bound<T: Bound>(&self, name: &str) -> Option<Arc<T>> {
        let state = self.registry.state.lock();
        let id = state.graph.find(name)?;
        downcast(state.bound.get(id.index())?.clone()?)
    }

    /// Closes the registry, for good, then waits for the bring-up in progress. Nothing changes the
    /// devices from then on, and the registry holds none of their objects any more.
    fn close(&self, abort: &Cancel) -> Result<Snapshot, Error> {
        let listener: Arc<dyn crate::cancel::Listener> = self.registry.clone();
        abort.listen(Arc::downgrade(&listener));
        let mut state = self.registry.state.lock();
        if state.closed {
            return Err(Error::ShuttingDown);
        }
        state.closed = true;
        if let Some(probing) = state.probing.clone() {
            // Throwing the switch wakes listeners, which take other locks: not under this one.
            drop(state);
            probing.cancel();
            state = context::blocking("DeviceManager::shutdown", || {
                let mut state = self.registry.state.lock();
                while state.probing.is_some() {
                    if abort.is_cancelled() {
                        return Err(Error::Busy);
                    }
                    state = self.registry.changed.wait(state);
                }
                Ok(state)
            })?;
        }
        Ok(Snapshot { graph: state.graph.clone(), bound: std::mem::take(&mut state.bound) })
    }
}

/// The end of a bring-up, also where it ends by a panic.
struct Probing<'a>(&'a Registry);

impl Drop for Probing<'_> {
    fn drop(&mut self) {
        self.0.state.lock().probing = None;
        self.0.changed.notify_all();
    }
}

impl crate::cancel::Listener for Registry {
    fn cancelled(&self) {
        let _state = self.state.lock();
        self.changed.notify_all();
    }
}

impl Drop for DeviceManager {
    fn drop(&mut self) {
        let mut state = self.registry.state.lock();
        let (graph, bound) = (state.graph.clone(), std::mem::take(&mut state.bound));
        drop(state);
        shutdown::drop_in_order(&graph, bound, &[]);
    }
}

impl fmt::Debug for DeviceManager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.registry.state.lock();
        let up = state.bound.iter().filter(|b| b.is_some()).count();
        f.debug_struct("DeviceManager")
            .field("drivers", &state.drivers.keys().collect::<Vec<_>>())
            .field("devices", &state.graph.len())
            .field("up", &up)
            .field("closed", &state.closed)
            .finish_non_exhaustive()
    }
}
