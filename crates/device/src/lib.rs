//! Device graph, drivers, parallel probe and shutdown ordered by real dependencies.
//!
//! A program declares its devices ([`DeviceDecl`]): each has a driver, perhaps a parent, and
//! suppliers that it needs. A [`DeviceManager`] brings them up in parallel, near their NUMA nodes,
//! each as soon as what it needs is bound. It shuts them down in parallel too, in the order of
//! their real dependencies alone. If nothing can be gained, as on one CPU, that takes a few percent
//! longer than one by one. A user that needs them one by one says so: a driver by its
//! [`ProbeType`], a device by [`async_shutdown(false)`](DeviceDecl::async_shutdown()), and all of
//! them by [`BringUpOptions::asynchronous`] and [`ShutdownOptions::asynchronous`]. Both directions
//! leave a [`Timeline`](corewise_timeline::Timeline).
//!
//! ```
//! use corewise_device::{
//!     Bound, BringUpOptions, DeviceDecl, DeviceManager, Driver, ProbeContext, ProbeError,
//!     ShutdownError, ShutdownOptions,
//! };
//! use corewise_topology::Machine;
//! use corewise_workqueue::WorkerPools;
//! use std::sync::Arc;
//!
//! struct Disk;
//! impl Bound for Disk {
//!     fn shutdown(&self) -> Result<(), ShutdownError> {
//!         Ok(()) // flush, close
//!     }
//! }
//!
//! struct Disks;
//! impl Driver for Disks {
//!     fn name(&self) -> &str {
//!         "disk"
//!     }
//!     fn probe(&self, cx: &ProbeContext<'_>) -> Result<Arc<dyn Bound>, ProbeError> {
//!         let _below: Vec<Arc<Disk>> = cx.suppliers()?; // bound by now
//!         Ok(Arc::new(Disk))
//!     }
//! }
//!
//! let pools = WorkerPools::new(&Machine::live()?);
//! let devices = DeviceManager::new(&pools)?;
//! devices.register(Arc::new(Disks))?;
//! let up = devices.bring_up(
//!     vec![
//!         DeviceDecl::new("a", "disk"),
//!         DeviceDecl::new("b", "disk"),
//!         DeviceDecl::new("mirror", "disk").supplier("a").supplier("b"),
//!     ],
//!     &BringUpOptions::new(),
//! )?;
//! assert!(up.is_complete());
//! let down = devices.shutdown(&ShutdownOptions::new())?;
//! assert_eq!(down.order().next(), Some("mirror")); // then the disks, side by side
//! pools.shutdown();
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Services of an asynchronous runtime
//!
//! A device is whatever has to be up before something else and down after it: a connection, a
//! shard, a listener. If that is a task of tokio or another runtime, no thread should wait for it.
//! So a probe may only *begin*: [`Driver::start_probe`] takes what it needs, hands its
//! [`ProbeDone`] to the task and returns; the device is up when the task finishes the handle. A
//! shutdown is the same with [`Bound::start_shutdown`] and [`ShutdownDone`]. A handle that is
//! dropped (the task was aborted, the runtime has ended) counts as a failure, so that nobody waits
//! for ever.
//!
//! ```
//! # use corewise_device::{
//! #     Bound, BringUpOptions, DeviceDecl, DeviceManager, Driver, ProbeContext, ProbeDone,
//! #     ShutdownDone, ShutdownOptions,
//! # };
//! # use std::sync::Arc;
//! struct Listener;
//! impl Bound for Listener {
//!     fn start_shutdown(self: Arc<Self>, done: ShutdownDone) {
//!         spawn(move || done.finish(Ok(()))); // drain, then say so
//!     }
//! }
//!
//! struct Listeners;
//! impl Driver for Listeners {
//!     fn name(&self) -> &str {
//!         "listener"
//!     }
//!     fn start_probe(&self, _cx: &ProbeContext<'_>, done: ProbeDone) {
//!         spawn(move || done.finish(Ok(Arc::new(Listener)))); // listen, then say so
//!     }
//! }
//! # // Stands for a runtime's.
//! # fn spawn(task: impl FnOnce() + Send + 'static) {
//! #     std::thread::spawn(task);
//! # }
//! # let machine = corewise_topology::Machine::live()?;
//! # let pools = corewise_workqueue::WorkerPools::new(&machine);
//! # let devices = DeviceManager::new(&pools)?;
//! # devices.register(Arc::new(Listeners))?;
//! # let up = devices.bring_up(vec![DeviceDecl::new("web", "listener")], &BringUpOptions::new())?;
//! # assert!(up.is_complete());
//! # assert!(devices.shutdown(&ShutdownOptions::new())?.failed.is_empty());
//! # pools.shutdown();
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`DeviceManager::bring_up`] and [`DeviceManager::shutdown`] themselves block: call them from
//! tokio's `spawn_blocking`. The example `services` of the `corewise` crate starts and stops 200 of
//! tokio's tasks so, with a handful of threads.
//!
//! # Devices that come and go
//!
//! Devices also come and go one by one. [`DeviceManager::add`] takes one device,
//! [`ProbeContext::add`] does so from inside a probe, and whatever the device needs may come later.
//! [`DeviceManager::remove`] and [`DeviceManager::unbind`] take its consumers along, from the
//! outermost inwards. [`DeviceManager::link`] and [`DeviceManager::unlink`] change the links.
//! Drivers may come after their devices, match by name or by a table, and be taken back. A probe
//! may ask to be called again ([`ProbeError::defer`]). [`DeviceManager::pending`] lists at any time
//! which device waits for which, and [`DeviceManager::devices`] each device's state and the cost of
//! its probes.
//!
//! To restart a device, unbind it, bind it, and wait for those that need it, which are unbound and
//! probed with it:
//!
//! ```
//! # use corewise_device::*;
//! # use std::sync::Arc;
//! # struct Service;
//! # impl Bound for Service {}
//! # struct Services;
//! # impl Driver for Services {
//! #     fn name(&self) -> &str {
//! #         "service"
//! #     }
//! #     fn probe(&self, _: &ProbeContext<'_>) -> Result<Arc<dyn Bound>, ProbeError> {
//! #         Ok(Arc::new(Service))
//! #     }
//! # }
//! /// Returns what the device is at then, and which callbacks have failed on the way down.
//! fn restart(
//!     devices: &DeviceManager,
//!     name: &str,
//! ) -> Result<(DeviceState, Vec<CallbackFailure>), Error> {
//!     let failed = devices.unbind(name)?;
//!     devices.bind(name)?;
//!     devices.wait_for_probes()?;
//!     let now = devices.device(name).ok_or_else(|| Error::NoSuchDevice(name.to_string()))?;
//!     Ok((now.state, failed))
//! }
//!
//! # let pools = corewise_workqueue::WorkerPools::new(&corewise_topology::Machine::live()?);
//! # let devices = DeviceManager::new(&pools)?;
//! # devices.register(Arc::new(Services))?;
//! let store = DeviceDecl::new("store", "service");
//! let api = DeviceDecl::new("api", "service").supplier("store");
//! assert!(devices.bring_up(vec![store, api], &BringUpOptions::new())?.is_complete());
//! let (store, failed) = restart(&devices, "store")?;
//! assert!(store == DeviceState::Bound && failed.is_empty());
//! assert!(devices.bound::<Service>("api").is_some(), "it is up again, too");
//! # let _ = devices.shutdown(&ShutdownOptions::new())?;
//! # pools.shutdown();
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What is promised
//!
//! * A probe is called after all that its device needs is bound, and never twice at once; no worker
//!   waits for another device. A device that cannot come up is skipped, with the name of the one at
//!   fault, and comes up when that one does.
//! * A shutdown callback is called at most once, after those of all children and consumers. A
//!   device that never came up counts as done. Nothing can be added once a shutdown has begun.
//! * Probes and callbacks of devices that don't need each other may run at the same time; what must
//!   not is declared.
//! * Panics of drivers and observers are caught; the device fails, and nothing else.
//! * A shutdown releases the bound objects and then the drivers. A driver or an object that keeps
//!   an `Arc` of its manager keeps the manager until then, and no longer.
//! * A shutdown begins as the plain loop in reverse order. It stays that if callbacks are quick, or
//!   fewer than two are asynchronous.
//!
//! The protocols and their proofs: `src/registry/README.md`, `src/deferred/README.md`,
//! `src/counters/README.md`, `src/shutdown/README.md` and
//! `src/handoff/README.md`.

mod decl;
mod graph;

mod counters;
mod deferred;
mod handoff;
#[doc(hidden)]
pub mod model;
mod takeover;

mod error;
mod info;

mod bound;
mod driver;

mod event;
mod history;
mod placement;
mod record;
mod watch;

mod shutdown;

mod registry;

mod manager;

pub use bound::{Bound, ShutdownDone};
pub use decl::{DeviceDecl, ProbeType};
pub use driver::{Driver, ProbeContext, ProbeDone};
pub use error::{CallbackFailure, Error, ProbeError, ShutdownError};
pub use event::{Cancel, Event, Observer};
pub use graph::{DeviceId, Graph, GraphError};
pub use history::History;
pub use info::{
    AwaitedDevice, DeviceInfo, DeviceState, Need, Pending, PendingState, ProbeCost, ProbeOutcome,
};
pub use manager::DeviceManager;
pub use registry::{BringUp, BringUpOptions, DeviceReport};
pub use shutdown::{
    Blocker, HangPolicy, OverdueCallback, Remaining, RemainingState, ShutdownMode, ShutdownOptions,
    ShutdownReport,
};

/// The README's example, as a doc test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub mod readme {}
