//! The device manager: drivers, bring-up, look-up. `late.rs` adds and removes single devices, and
//! `shutdown.rs` has the shutdown.

use crate::bound::{Bound, downcast};
use crate::decl::DeviceDecl;
use crate::driver::Driver;
use crate::error::Error;
use crate::event::{Cancel, Listener};
use crate::graph::{Graph, GraphError};
use crate::info::{DeviceInfo, Pending};
use crate::placement::Placer;
use crate::record::Clock;
use crate::registry::{
    BringUp, BringUpOptions, BringUpPlan, Candidate, Devices, Drivers, Effects, Instance,
    ProbesAround, ProbesInside, RegisteredDriver, Registry, RegistryState, TakenCallback,
};
use corewise_sync::{Condvar, Mutex, context};
use corewise_topology::Machine;
use corewise_workqueue::{Work, WorkerPools};
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

mod late;
mod shutdown;

/// The manager of a program's devices. It brings them up in parallel, lets them come and go, and
/// shuts them down in the order of their real dependencies.
///
/// Share it in an `Arc`, and shut it down before the pools. If it is dropped without a shutdown, it
/// drops the bound objects and calls no callback. Each device is dropped before its needs.
pub struct DeviceManager {
    /// I: the placement of probes on the pools.
    placer: Arc<Placer>,
    /// I: the state that the manager and its workers share.
    registry: Arc<Registry>,
}

/// Deferral timeout, the same as that of Linux.
const DEFERRAL_TIMEOUT: Duration = Duration::from_secs(10);

/// The devices after their last change.
struct Snapshot {
    graph: Arc<Graph>,
    /// Bound objects by device.
    bound: Vec<Option<Arc<dyn Bound>>>,
    /// Number of changes of the registry.
    changes: u64,
}

impl DeviceManager {
    /// Creates a manager without drivers and devices. Its probes run on these pools.
    ///
    /// # Errors
    ///
    /// [`Error::Queue`] if the pools give no queue.
    pub fn new(pools: &WorkerPools) -> Result<DeviceManager, Error> {
        let placer = Arc::new(Placer::new(pools).map_err(Error::Queue)?);
        let state = RegistryState {
            devices: Devices::new(),
            drivers: Drivers::default(),
            observer: None,
            around: ProbesAround::default(),
            cancel: Cancel::new(),
            walks: 0,
            unbindings: Vec::new(),
            waiting: 0,
            sleepers: 0,
            deferral_timeout: DEFERRAL_TIMEOUT,
            deferral_ends: None,
            looks_at: None,
            outline: None,
            watch: None,
            shutdown: None,
            left: Vec::new(),
        };
        let mut state = state;
        state.devices.limit_probers(placer.most_at_once());
        let registry = Arc::new_cyclic(|registry: &Weak<Registry>| {
            let (weak, its) = (registry.clone(), registry.clone());
            Registry {
                placer: placer.clone(),
                clock: Clock::start(),
                state: Mutex::new(state),
                changed: Condvar::new(),
                caller: Condvar::new(),
                deferral_timer: Work::new(move || {
                    weak.upgrade().iter().for_each(Registry::deferral_over);
                }),
                deadline_timer: Work::new(move || its.upgrade().iter().for_each(Registry::look)),
            }
        });
        Ok(DeviceManager { placer, registry })
    }

    /// Returns the machine of its devices.
    pub fn machine(&self) -> &Machine {
        self.placer.machine()
    }

    /// Registers a driver by its name. The driver is offered the existing devices that are not up,
    /// in their order. This call makes synchronous probes (near the device's node) and queues
    /// asynchronous ones (rules 1.2.2 and 1.2.3). Devices of a bring-up in progress wait for their
    /// turn in it.
    ///
    /// The driver is kept until [`DeviceManager::unregister`] or the end of a
    /// [`DeviceManager::shutdown`]. To add devices in its probes, a driver calls
    /// [`ProbeContext::add`](crate::ProbeContext::add), which needs no handle of the manager. If a
    /// driver holds an `Arc` of the manager, it keeps the manager, and so itself, until then.
    ///
    /// # Errors
    ///
    /// [`Error::DuplicateDriver`] if the name is taken. [`Error::ShuttingDown`] once a shutdown has
    /// begun.
    pub fn register(&self, driver: Arc<dyn Driver>) -> Result<(), Error> {
        let driver = Arc::new(RegisteredDriver::new(driver));
        let (driver, unbound) = {
            let state = &mut *self.registry.state.lock();
            if state.devices.is_closed() {
                return Err(Error::ShuttingDown);
            }
            if state.drivers.find(&driver.name).is_some() {
                return Err(Error::DuplicateDriver(driver.name.to_string()));
            }
            state.drivers.add(driver.clone());
            let anew = self.registry.clock.now().saturating_add(state.deferral_timeout);
            state.deferral_ends = state.deferral_ends.map(|_| anew);
            (driver, state.devices.unbound_devices())
        };
        let mut matching = unbound.into_iter().filter(|(_, decl)| driver.matches(decl)).peekable();
        if matching.peek().is_none() {
            return Ok(());
        }
        context::might_block("DeviceManager::register");
        for (key, decl) in matching {
            let candidate = driver.candidate(&decl, false);
            self.registry.step(|state, now, fx| {
                // The driver may have been unregistered in between.
                if state.drivers.list.iter().any(|d| Arc::ptr_eq(d, &driver)) {
                    state.devices.offer(key, candidate, now, fx);
                }
            });
        }
        Ok(())
    }

    /// Unregisters a driver. Its bound devices are unbound first, as by [`DeviceManager::unbind`].
    /// They stay registered, and another driver may bind them. Blocks until no probe of the driver
    /// is in progress.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchDriver`], [`Error::ShuttingDown`]; [`Error::InsideProbe`] from a driver,
    /// callback or observer of this manager.
    pub fn unregister(&self, name: &str) -> Result<(), Error> {
        let _walk = self.begin_walk("DeviceManager::unregister")?;
        let removed = self.registry.state.lock().drivers.remove(name);
        let driver = removed.ok_or_else(|| Error::NoSuchDriver(name.to_string()))?;
        loop {
            let users = self.registry.step(|state, _, fx| {
                // If a shutdown has begun in between, it does the rest.
                let taken = state.devices.is_taken();
                (!taken).then(|| state.devices.revoke(&driver, fx))
            });
            let users = users.ok_or(Error::ShuttingDown)?;
            if users.is_empty() {
                return Ok(());
            }
            users.into_iter().for_each(|device| drop(self.registry.leave(device, false)));
        }
    }

    /// Sets the deferral timeout. During this time devices wait for [optional
    /// suppliers](DeviceDecl::optional_suppliers), and drivers may
    /// [defer](crate::ProbeContext::defer). The timeout runs from the first bring-up, or from the
    /// first device that is added without one. The default is 10 s, as in Linux.
    ///
    /// Until the timeout has passed, each newly registered driver restarts it. When it passes, the
    /// devices that still wait are logged, and [`DeviceManager::pending`] lists them. Call this
    /// method before the first device is added.
    pub fn set_deferral_timeout(&self, timeout: Duration) {
        self.registry.state.lock().deferral_timeout = timeout;
    }

    /// Brings devices up in parallel. Each device is probed near its node, as soon as its parent
    /// and suppliers are bound. A later call may bring up further devices, which may need earlier
    /// ones.
    ///
    /// Blocks until each device is settled: bound, failed, skipped, deferred, or cancelled. Probes
    /// are asynchronous unless the driver, the declaration or the
    /// [options](BringUpOptions::asynchronous) say otherwise. Asynchronous probes run on pool
    /// workers. Synchronous ones run one after another, in registration order, on a worker near
    /// their node or in the calling thread. Register the drivers before this call.
    ///
    /// A driver may defer a device ([`ProbeError::defer`](crate::ProbeError)). The device is then
    /// retried after all others of the first bring-up have been tried, and later after each bind.
    /// If no other progress is possible, the call reports the device as deferred. The device still
    /// comes up by itself once it can.
    ///
    /// Without [`keep_going`](BringUpOptions::keep_going) the first failure stops the start of
    /// further probes, and what is up stays up: shut it down, or use it.
    ///
    /// # Errors
    ///
    /// [`Error::Rejected`] for faulty declarations, without `keep_going`: no device was probed or
    /// added. [`Error::Busy`] during another bring-up. [`Error::InsideProbe`] from a driver,
    /// callback or observer. [`Error::ShuttingDown`] once a shutdown has begun. A failed device is
    /// no error: the report names it.
    #[track_caller]
    pub fn bring_up(
        &self,
        decls: Vec<DeviceDecl>,
        options: &BringUpOptions,
    ) -> Result<BringUp, Error> {
        context::might_block("DeviceManager::bring_up");
        let decls: Vec<Arc<DeviceDecl>> = decls.into_iter().map(Arc::new).collect();
        let listener: Arc<dyn Listener> = self.registry.clone();
        options.cancel.listen(Arc::downgrade(&listener));
        let mut drivers = Drivers::default();
        let mut candidates: Vec<Vec<Candidate>> = Vec::new();
        // Drivers are asked without the lock. If a driver is registered or unregistered in between,
        // all are asked once more.
        let fx = loop {
            let mut state = self.registry.state.lock();
            if state.devices.is_closed() {
                return Err(Error::ShuttingDown);
            }
            if state.devices.has_bring_up() {
                return Err(Error::Busy);
            }
            if ProbesInside::is_in(&self.registry) {
                return Err(Error::InsideProbe);
            }
            if state.drivers.version == drivers.version && candidates.len() == decls.len() {
                break self.begin(&mut state, &decls, candidates, options)?;
            }
            let former = std::mem::replace(&mut drivers, state.drivers.clone());
            drop(state);
            drop(former); // It may hold the last reference to a driver.
            let asked = options.asynchronous;
            candidates = decls.iter().map(|decl| drivers.candidates(decl, asked)).collect();
        };
        self.registry.apply(fx);
        let finished = self.registry.run_bring_up();
        let finished = finished.expect("the caller of a bring-up ends it, and nobody else");
        let former = {
            let mut state = self.registry.state.lock();
            state.around = ProbesAround::default();
            state.observer.take()
        };
        drop(former);
        self.registry.changed.notify_all();
        let report = BringUp::new(finished, options.cancel.is_cancelled());
        self.registry.step(|state, now, fx| {
            state.begin_deferral(now, fx);
            fx.hopes = true;
        });
        self.expect_shutdown();
        Ok(report)
    }

    /// Builds and validates the graph of a bring-up, and begins it.
    fn begin(
        &self,
        state: &mut RegistryState,
        decls: &[Arc<DeviceDecl>],
        candidates: Vec<Vec<Candidate>>,
        options: &BringUpOptions,
    ) -> Result<Effects, Error> {
        let mut fx = Effects::default();
        let driver_fault = |device: usize, decl: &DeviceDecl| {
            let none = candidates[device].is_empty();
            none.then(|| no_driver(device, decl, &state.drivers))
        };
        let (graph, faults) = state.devices.admit(decls, &driver_fault);
        if !faults.is_empty() && !options.keep_going {
            return Err(Error::Rejected(faults));
        }
        let observer = options.observer.clone();
        state.around = ProbesAround::here();
        state.observer = observer.map(|o| state.around.observer(&self.registry, o));
        let options = BringUpPlan {
            keep_going: options.keep_going,
            cancel: options.cancel.clone(),
            observed: options.observer.is_some(),
            helps: context::is_observed(),
            device_timeout: options.device_timeout,
            timeout: options.timeout,
            on_hang: options.on_hang,
        };
        let (graph, now) = (Arc::new(graph), self.registry.clock.now());
        state.devices.begin_bring_up(graph, &faults, candidates, options, now, &mut fx);
        Ok(fx)
    }

    /// Returns the bound object of a device by name. Returns `None` if no such device exists, if it
    /// is not up, or if its object is no `T`. Once a shutdown has begun, no device counts as up.
    /// Does not block.
    pub fn bound<T: Bound>(&self, name: &str) -> Option<Arc<T>> {
        downcast(self.registry.state.lock().devices.bound_object(name)?)
    }

    /// Returns the current properties and state of a device, or `None` if no device has that name.
    /// Does not block.
    pub fn device(&self, name: &str) -> Option<DeviceInfo> {
        self.registry.state.lock().devices.info(name)
    }

    /// Returns the current properties and state of all devices, in the order of registration. Does
    /// not block. While it copies, it delays other threads: some microseconds for ten devices.
    pub fn devices(&self) -> Vec<DeviceInfo> {
        self.registry.state.lock().devices.infos()
    }

    /// Returns the awaited devices: each one that is not up and may still come up, with the reason.
    /// Any thread may call it at any time, also during a bring-up. Does not block.
    pub fn pending(&self) -> Vec<Pending> {
        let now = self.registry.clock.now();
        self.registry.state.lock().devices.pending(now)
    }

    /// Waits until no probe is in progress or about to begin, and no deferred device is being
    /// retried (rule 1.2.17). Other threads may begin new probes at once. The call doesn't wait for
    /// a device whose need isn't coming. Like a bring-up, it prepares the data for a shutdown. That
    /// pays off when many devices have been added one by one.
    ///
    /// # Errors
    ///
    /// [`Error::InsideProbe`] from a driver, callback or observer of this manager, which might wait
    /// for itself. (In a callback of a shutdown no probe is in progress, so the call returns at
    /// once.)
    #[track_caller]
    pub fn wait_for_probes(&self) -> Result<(), Error> {
        context::might_block("DeviceManager::wait_for_probes");
        if ProbesInside::is_in(&self.registry) {
            return Err(Error::InsideProbe);
        }
        drop(self.registry.wait_until("waiting for probes", |state| state.devices.is_quiet()));
        self.expect_shutdown();
        Ok(())
    }

    /// Closes the registry for good, then waits until nothing is in progress. After that the
    /// devices never change, and the registry holds none of their objects.
    fn close(&self, abort: &Cancel) -> Result<Snapshot, Error> {
        if ProbesInside::is_in(&self.registry) {
            return Err(Error::InsideProbe);
        }
        let listener: Arc<dyn Listener> = self.registry.clone();
        abort.listen(Arc::downgrade(&listener));
        let mut state = self.registry.state.lock();
        if state.devices.is_closed() {
            return Err(Error::ShuttingDown);
        }
        state.devices.close();
        let switches = [state.devices.bring_up_cancel(), Some(state.cancel.clone())];
        if !state.is_quiet() {
            // Cancelling wakes listeners, which take other locks, so this lock is released first.
            drop(state);
            switches.into_iter().flatten().for_each(|switch| switch.cancel());
            state = self.registry.wait_until("DeviceManager::shutdown", |state| {
                state.is_quiet() || abort.is_cancelled()
            });
            if !state.is_quiet() {
                return Err(Error::Busy);
            }
        }
        for (key, unbinding) in std::mem::take(&mut state.unbindings) {
            state.devices.hand_over(key, |object| TakenCallback::new(unbinding, object));
        }
        let (changes, graph) = (state.devices.changes(), state.devices.graph());
        let bound = state.devices.take_bound();
        // The walks' waits are over.
        self.registry.changed.notify_all();
        Ok(Snapshot { graph, bound, changes })
    }

    /// Returns the current device of that name.
    fn find(&self, name: &str) -> Result<Instance, Error> {
        let devices = &self.registry.state.lock().devices;
        let key = devices.find(name).ok_or_else(|| Error::NoSuchDevice(name.to_string()))?;
        Ok(devices.instance(key))
    }
}

impl RegistryState {
    /// Begins deferral, if it has not begun: deferred devices are retried now and after each bind.
    pub(crate) fn begin_deferral(&mut self, now: Duration, fx: &mut Effects) {
        self.deferral_ends.get_or_insert(now.saturating_add(self.deferral_timeout));
        self.devices.begin_deferral(fx);
    }

    /// Returns true if no probe, bring-up or unbinding is in progress. Two kinds of unbindings
    /// don't count: one whose callback is being called, and one that waits for such a callback.
    pub(crate) fn is_quiet(&self) -> bool {
        let held = self.unbindings.len() + self.waiting;
        self.devices.is_quiet() && !self.devices.has_bring_up() && self.walks == held
    }
}

/// Returns the error for a device that no driver matches.
fn no_driver(device: usize, decl: &DeviceDecl, drivers: &Drivers) -> GraphError {
    let (name, known) = (decl.name.clone(), drivers.names());
    let named = Some(&decl.driver).filter(|driver| !driver.is_empty());
    match named {
        Some(driver) => GraphError::UnknownDriver { device, name, driver: driver.clone(), known },
        None => GraphError::NoMatchingDriver { device, name, known },
    }
}

impl Drop for DeviceManager {
    fn drop(&mut self) {
        let mut state = self.registry.state.lock();
        state.devices.close();
        self.registry.deferral_timer.cancel();
        self.registry.deadline_timer.cancel();
        let (graph, bound) = if state.left.is_empty() {
            (state.devices.graph(), state.devices.take_bound())
        } else {
            (state.devices.graph(), std::mem::take(&mut state.left))
        };
        drop(state);
        shutdown::drop_in_order(&graph, bound, &[]);
    }
}

impl fmt::Debug for DeviceManager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.registry.state.lock();
        f.debug_struct("DeviceManager")
            .field("drivers", &state.drivers.names())
            .field("devices", &state.devices.len())
            .field("up", &state.devices.number_up())
            .field("closed", &state.devices.is_closed())
            .finish_non_exhaustive()
    }
}
