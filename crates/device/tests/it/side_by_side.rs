//! Defaults of a program that asks for nothing in particular: devices come up and go down side by
//! side. The proof needs no clock: each probe and each callback waits until all the others are in
//! theirs.

use corewise_device::{
    Bound, BringUpOptions, DeviceDecl, DeviceManager, DeviceState, Driver, ProbeContext,
    ProbeError, ShutdownError, ShutdownOptions,
};
use corewise_topology::Machine;
use corewise_workqueue::WorkerPools;
use std::collections::HashSet;
use std::sync::{Arc, Condvar, Mutex};
use std::thread::ThreadId;
use std::time::Duration;

/// A meeting point of several threads. A thread that has waited for a minute gives up, so that the
/// test fails rather than hangs.
struct Meeting {
    wanted: usize,
    /// Number of threads that have come, and true if one gave up.
    came: Mutex<(usize, bool)>,
    more: Condvar,
}

impl Meeting {
    fn of(wanted: usize) -> Meeting {
        Meeting { wanted, came: Mutex::new((0, false)), more: Condvar::new() }
    }

    fn all_came(&self) -> bool {
        let mut came = self.came.lock().unwrap();
        came.0 += 1;
        self.more.notify_all();
        let waits = |came: &mut (usize, bool)| came.0 < self.wanted && !came.1;
        let minutes = Duration::from_secs(300);
        let (mut came, _) = self.more.wait_timeout_while(came, minutes, waits).unwrap();
        came.1 |= came.0 < self.wanted;
        self.more.notify_all();
        !came.1
    }
}

struct Services {
    probes: Meeting,
    shutdowns: Arc<Meeting>,
    threads: Mutex<HashSet<ThreadId>>,
}

struct Service(Arc<Meeting>);

impl Bound for Service {
    fn shutdown(&self) -> Result<(), ShutdownError> {
        if self.0.all_came() { Ok(()) } else { Err(ShutdownError::new("they came one by one")) }
    }
}

impl Driver for Services {
    fn name(&self) -> &str {
        "service"
    }

    fn probe(&self, _: &ProbeContext<'_>) -> Result<Arc<dyn Bound>, ProbeError> {
        self.threads.lock().unwrap().insert(std::thread::current().id());
        if !self.probes.all_came() {
            return Err(ProbeError::failed("they came one by one"));
        }
        Ok(Arc::new(Service(self.shutdowns.clone())))
    }
}

fn services(probes: usize, shutdowns: usize) -> Arc<Services> {
    let (probes, shutdowns) = (Meeting::of(probes), Arc::new(Meeting::of(shutdowns)));
    Arc::new(Services { probes, shutdowns, threads: Mutex::default() })
}

fn decls(n: usize) -> Vec<DeviceDecl> {
    (0..n).map(|i| DeviceDecl::new(format!("service{i}"), "service")).collect()
}

#[test]
fn devices_come_up_and_go_down_side_by_side_without_being_asked_to() {
    const DEVICES: usize = 50;
    let pools = WorkerPools::new(&Machine::synthetic("core:2 pu:1").unwrap());
    let manager = DeviceManager::new(&pools).unwrap();
    // All fifty are in their probes at once; so are as many in their callbacks as may block at
    // once.
    let at_once = ShutdownOptions::new().max_helpers.min(DEVICES);
    manager.register(services(DEVICES, at_once)).unwrap();
    let up = manager.bring_up(decls(DEVICES), &BringUpOptions::new()).unwrap();
    assert!(up.is_complete(), "{up:?}");
    let down = manager.shutdown(&ShutdownOptions::new()).unwrap();
    assert!(down.is_clean(), "{:?}", down.failed);
    pools.shutdown();
}

#[test]
fn linuxs_order_is_there_for_who_asks_for_it() {
    let pools = WorkerPools::new(&Machine::synthetic("core:2 pu:1").unwrap());
    let manager = DeviceManager::new(&pools).unwrap();
    let driver = services(1, 1);
    manager.register(driver.clone()).unwrap();
    let options = BringUpOptions::new().asynchronous(false);
    let up = manager.bring_up(decls(20), &options).unwrap();
    assert!(up.is_complete(), "{up:?}");
    let me = HashSet::from([std::thread::current().id()]);
    assert_eq!(*driver.threads.lock().unwrap(), me, "one by one, in the caller's thread");
    let down = manager.shutdown(&ShutdownOptions::new().asynchronous(false)).unwrap();
    let reverse: Vec<String> = (0..20).rev().map(|i| format!("service{i}")).collect();
    assert_eq!(down.order().collect::<Vec<_>>(), reverse);
    pools.shutdown();
}

#[test]
fn adding_a_device_returns_its_outcome() {
    let pools = WorkerPools::new(&Machine::synthetic("core:2 pu:1").unwrap());
    let manager = DeviceManager::new(&pools).unwrap();
    manager.register(services(1, 1)).unwrap();
    for decl in decls(3) {
        assert_eq!(manager.add(decl).unwrap(), DeviceState::Bound);
    }
    let _ = manager.shutdown(&ShutdownOptions::new()).unwrap();
    pools.shutdown();
}
#[test]
fn bring_ups_nested_deeper_than_there_are_workers_end() {
    let machine = Machine::synthetic("core:2 pu:1").unwrap();
    let pools = WorkerPools::builder(&machine).max_workers(2).build();
    let manager = DeviceManager::new(&pools).unwrap();
    manager.register(Arc::new(Nesting { pools: pools.clone() })).unwrap();
    let decls = ["a", "b"].map(|name| DeviceDecl::new(name, "nesting").config(12u32));
    let up = manager.bring_up(decls.to_vec(), &BringUpOptions::new()).unwrap();
    assert!(up.is_complete(), "{up:?}");
    let _ = manager.shutdown(&ShutdownOptions::new()).unwrap();
    pools.shutdown();
}

/// A driver that brings up devices of a manager of its own inside each probe.
struct Nesting {
    pools: WorkerPools,
}

struct Inner(DeviceManager);

impl Bound for Inner {
    fn shutdown(&self) -> Result<(), ShutdownError> {
        let down = self.0.shutdown(&ShutdownOptions::new()).map_err(ShutdownError::new)?;
        if down.is_clean() { Ok(()) } else { Err(ShutdownError::new("one inside failed")) }
    }
}

impl Driver for Nesting {
    fn name(&self) -> &str {
        "nesting"
    }

    fn probe(&self, cx: &ProbeContext<'_>) -> Result<Arc<dyn Bound>, ProbeError> {
        let inner = DeviceManager::new(&self.pools).map_err(ProbeError::failed)?;
        let depth = *cx.config::<u32>()?;
        if depth > 0 {
            let driver = Nesting { pools: self.pools.clone() };
            inner.register(Arc::new(driver)).map_err(ProbeError::failed)?;
            let decl = DeviceDecl::new("inner", "nesting").config(depth - 1);
            let up = inner.bring_up(vec![decl], &BringUpOptions::new());
            if !up.map_err(ProbeError::failed)?.is_complete() {
                return Err(ProbeError::failed("one inside failed"));
            }
        }
        Ok(Arc::new(Inner(inner)))
    }
}
