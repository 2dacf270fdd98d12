//! Remains of a manager after an orderly shutdown: no thread, no descriptor. The test is a program
//! of its own, since it counts those of the process.
#![cfg(target_os = "linux")]

use corewise_device::{
    Bound, BringUpOptions, DeviceDecl, DeviceManager, Driver, ProbeContext, ProbeError,
    ShutdownOptions,
};
use corewise_topology::Machine;
use corewise_workqueue::WorkerPools;
use std::fs::{read_dir, read_to_string};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

struct Unit;
impl Bound for Unit {}

/// A driver that adds a child in its probe: by the manager that it keeps, else by its context.
struct Bus(Option<Arc<DeviceManager>>);
impl Driver for Bus {
    fn name(&self) -> &str {
        "bus"
    }
    fn probe(&self, cx: &ProbeContext<'_>) -> Result<Arc<dyn Bound>, ProbeError> {
        if cx.name() == "root" {
            let child = DeviceDecl::new("child", "bus").parent("root");
            let added = match &self.0 {
                Some(manager) => manager.add(child),
                None => cx.add(child),
            };
            added.map_err(ProbeError::failed)?;
        }
        Ok(Arc::new(Unit))
    }
}

fn count(folder: &str, counts: impl Fn(&str) -> bool) -> usize {
    let entries = read_dir(folder).expect("proc is mounted").flatten();
    entries.filter(|entry| entry.path().to_str().is_some_and(&counts)).count()
}

/// Waits until managers have that many threads. One that was joined may be in the list for a moment
/// more, and a new one has its name when it runs.
fn threads_become(wanted: usize) {
    let watches = |thread: &str| {
        // It may end meanwhile.
        read_to_string(format!("{thread}/comm")).is_ok_and(|name| name.trim() == "cw-watch")
    };
    let begun = Instant::now();
    while count("/proc/self/task", watches) != wanted {
        // Only a thread that stays makes the test wait that long.
        assert!(
            begun.elapsed() < Duration::from_secs(300),
            "managers don't come to {wanted} threads"
        );
        std::thread::yield_now();
    }
}

fn descriptors() -> usize {
    count("/proc/self/fd", |_| true)
}

#[test]
fn a_manager_that_was_shut_down_leaves_no_thread_and_no_descriptor_also_where_its_driver_keeps_it()
{
    let pools = WorkerPools::new(&Machine::synthetic("core:2 pu:1").expect("valid"));
    let cycle = |keeps: bool| -> Weak<DeviceManager> {
        let manager = Arc::new(DeviceManager::new(&pools).expect("a queue"));
        let bus = Bus(keeps.then(|| manager.clone()));
        manager.register(Arc::new(bus)).expect("the first");
        let root = vec![DeviceDecl::new("root", "bus")];
        let up = manager.bring_up(root, &BringUpOptions::new()).expect("none is in progress");
        assert!(up.is_complete());
        threads_become(1);
        assert!(manager.shutdown(&ShutdownOptions::new()).expect("the first").is_clean());
        // Also while somebody keeps the manager.
        threads_become(0);
        Arc::downgrade(&manager)
    };
    // The process has pools and their timers from here on.
    cycle(false);
    let before = descriptors();
    for keeps in [false, true, true, false] {
        let manager = cycle(keeps);
        assert_eq!(
            (manager.strong_count(), descriptors()),
            (0, before),
            "the driver keeps it: {keeps}"
        );
    }
    pools.shutdown();
}
