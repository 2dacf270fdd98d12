//! Helpers of the tests with real pools: a driver made of closures, and a log of what happened.
#![allow(dead_code, reason = "each test binary uses its own part")]
#![allow(clippy::unwrap_used, reason = "a test says what it expects by unwrapping it")]

use corewise_device::{
    Bound, DeviceDecl, DeviceManager, Driver, Error, ProbeContext, ProbeDone, ProbeError,
    ProbeType, ShutdownError,
};
use corewise_topology::Machine;
use corewise_workqueue::WorkerPools;
use fastrand::Rng;
use std::collections::HashMap;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::ThreadId;

pub(crate) type Probe = dyn Fn(&ProbeContext<'_>) -> Result<(), ProbeError> + Send + Sync;
pub(crate) type Shutdown = dyn Fn(&str) -> Result<(), ShutdownError> + Send + Sync;
type OnDrop = dyn Fn(&str) + Send + Sync;

/// A log of what happened, in order.
#[derive(Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<Entry>>>);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) what: &'static str,
    pub(crate) device: String,
    pub(crate) thread: ThreadId,
}

impl Log {
    pub(crate) fn note(&self, what: &'static str, device: &str) {
        let thread = std::thread::current().id();
        self.0.lock().unwrap().push(Entry { what, device: device.to_string(), thread });
    }

    pub(crate) fn of(&self, what: &str) -> Vec<String> {
        self.entries().into_iter().filter(|e| e.what == what).map(|e| e.device).collect()
    }

    pub(crate) fn entries(&self) -> Vec<Entry> {
        self.0.lock().unwrap().clone()
    }

    /// Returns the position of an entry, if there is one.
    pub(crate) fn place(&self, what: &str, device: &str) -> Option<usize> {
        self.0.lock().unwrap().iter().position(|e| e.what == what && e.device == device)
    }
}

/// A device of the [`TestDriver`].
pub(crate) struct Unit {
    pub(crate) name: String,
    log: Log,
    shutdown: Option<Arc<Shutdown>>,
    on_drop: Arc<OnDrop>,
}

impl Bound for Unit {
    fn shutdown(&self) -> Result<(), ShutdownError> {
        self.log.note("shutdown begins", &self.name);
        let result = self.shutdown.as_ref().map_or(Ok(()), |f| f(&self.name));
        self.log.note("shutdown ends", &self.name);
        result
    }

    fn has_shutdown(&self) -> bool {
        self.shutdown.is_some()
    }
}

impl Drop for Unit {
    fn drop(&mut self) {
        self.log.note("drop", &self.name);
        (self.on_drop)(&self.name);
    }
}

/// A driver that probes with a closure, and shuts down with another one; both may differ by device.
pub(crate) struct TestDriver {
    name: &'static str,
    probe_type: ProbeType,
    log: Log,
    probe: Arc<Probe>,
    shutdown: Option<Arc<Shutdown>>,
    own_shutdown: HashMap<String, Option<Arc<Shutdown>>>,
    on_drop: Arc<OnDrop>,
}

impl TestDriver {
    pub(crate) fn new(name: &'static str, log: &Log) -> TestDriver {
        TestDriver {
            name,
            probe_type: ProbeType::PreferAsynchronous,
            log: log.clone(),
            probe: Arc::new(|_| Ok(())),
            shutdown: Some(Arc::new(|_| Ok(()))),
            own_shutdown: HashMap::new(),
            on_drop: Arc::new(|_| ()),
        }
    }

    pub(crate) fn probe_type(mut self, probe_type: ProbeType) -> TestDriver {
        self.probe_type = probe_type;
        self
    }

    pub(crate) fn probe(
        mut self,
        probe: impl Fn(&ProbeContext<'_>) -> Result<(), ProbeError> + Send + Sync + 'static,
    ) -> TestDriver {
        self.probe = Arc::new(probe);
        self
    }

    pub(crate) fn shutdown(
        mut self,
        shutdown: impl Fn(&str) -> Result<(), ShutdownError> + Send + Sync + 'static,
    ) -> TestDriver {
        self.shutdown = Some(Arc::new(shutdown));
        self
    }

    /// Sets what is called as an object is dropped, with its device's name.
    pub(crate) fn on_drop(mut self, f: impl Fn(&str) + Send + Sync + 'static) -> TestDriver {
        self.on_drop = Arc::new(f);
        self
    }

    /// Leaves this one device without a callback.
    pub(crate) fn none_for(mut self, device: &str) -> TestDriver {
        self.own_shutdown.insert(device.to_string(), None);
        self
    }
}

impl Driver for TestDriver {
    fn name(&self) -> &str {
        self.name
    }

    fn probe_type(&self) -> ProbeType {
        self.probe_type
    }

    fn probe(&self, cx: &ProbeContext<'_>) -> Result<Arc<dyn Bound>, ProbeError> {
        self.log.note("probe begins", cx.name());
        (self.probe)(cx)?;
        self.log.note("probe ends", cx.name());
        let shutdown = self.own_shutdown.get(cx.name()).unwrap_or(&self.shutdown).clone();
        let (name, log, on_drop) = (cx.name().to_string(), self.log.clone(), self.on_drop.clone());
        Ok(Arc::new(Unit { name, log, shutdown, on_drop }))
    }
}

/// An object that a test binds.
pub(crate) struct Connection;

impl Bound for Connection {}

/// A driver that hands every completion to the test.
struct Later {
    name: &'static str,
    probe_type: ProbeType,
    begun: Mutex<Sender<(String, ProbeDone)>>,
}

impl Driver for Later {
    fn name(&self) -> &str {
        self.name
    }

    fn probe_type(&self) -> ProbeType {
        self.probe_type
    }

    fn start_probe(&self, cx: &ProbeContext<'_>, done: ProbeDone) {
        self.begun.lock().unwrap().send((cx.name().to_string(), done)).unwrap();
    }
}

/// Registers a driver whose probes the test ends; returns them as they begin.
pub(crate) fn later(
    rig: &Rig,
    name: &'static str,
    probe_type: ProbeType,
) -> Receiver<(String, ProbeDone)> {
    let (begun, begins) = channel();
    let driver = Later { name, probe_type, begun: Mutex::new(begun) };
    rig.manager.register(Arc::new(driver)).unwrap();
    begins
}

/// A manager on a synthetic machine, and the pools that it runs on.
pub(crate) struct Rig {
    pub(crate) log: Log,
    pub(crate) pools: WorkerPools,
    pub(crate) manager: Arc<DeviceManager>,
}

impl Rig {
    pub(crate) fn new(machine: &str) -> Rig {
        let pools = WorkerPools::new(&Machine::synthetic(machine).unwrap());
        let manager = Arc::new(DeviceManager::new(&pools).unwrap());
        Rig { log: Log::default(), pools, manager }
    }

    pub(crate) fn with(self, driver: impl FnOnce(TestDriver) -> TestDriver) -> Rig {
        let driver = driver(TestDriver::new("test", &self.log));
        self.register(driver).unwrap();
        self
    }

    pub(crate) fn register(&self, driver: TestDriver) -> Result<(), Error> {
        self.manager.register(Arc::new(driver))
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.pools.shutdown();
    }
}

/// Returns a device of the driver "test" with suppliers, whose shutdown is synchronous.
pub(crate) fn decl(name: &str, suppliers: &[&str]) -> DeviceDecl {
    let decl = DeviceDecl::new(name, "test").async_shutdown(false);
    suppliers.iter().fold(decl, |d, s| d.supplier(*s))
}

/// Returns `n` devices with up to three suppliers each, among all of any earlier place in a random
/// order: so registration is often inverted. Parents too.
pub(crate) fn random_graph(n: usize, rng: &mut Rng) -> Vec<DeviceDecl> {
    let mut shuffled: Vec<usize> = (0..n).collect();
    for i in (1..n).rev() {
        shuffled.swap(i, rng.usize(..i + 1));
    }
    let mut decls: Vec<DeviceDecl> = (0..n).map(|i| decl(&format!("d{i}"), &[])).collect();
    for place in 1..n {
        let device = &mut decls[shuffled[place]];
        if rng.usize(..3) == 0 {
            device.parent = Some(format!("d{}", shuffled[rng.usize(..place)]));
        }
        for _ in 0..rng.usize(..4) {
            device.suppliers.push(format!("d{}", shuffled[rng.usize(..place)]));
        }
    }
    decls
}

/// Returns every (consumer, what it needs).
pub(crate) fn edges(decls: &[DeviceDecl]) -> impl Iterator<Item = (&str, &str)> {
    decls.iter().flat_map(|d| {
        let needs = d.suppliers.iter().chain(&d.parent);
        needs.map(|n| (d.name.as_str(), n.as_str()))
    })
}
