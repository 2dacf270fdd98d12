//! Walks that unbind and remove devices, while others bind, fail and shut down: on real pools, in a
//! fixed order.

use crate::support::{Rig, decl};
use corewise_device::{
    Bound, BringUpOptions, DeviceDecl, DeviceManager, DeviceState, Driver, Error, HangPolicy,
    ProbeContext, ProbeError, ProbeType, ShutdownDone, ShutdownError, ShutdownOptions,
};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

#[test]
fn a_supplier_that_is_bound_again_while_its_object_is_dropped_is_not_unbound_under_its_consumer() {
    let rig = Rig::new("core:2 pu:1");
    let (manager, dropped) = (rig.manager.clone(), AtomicBool::new(false));
    let rig = rig.with(|d| {
        d.probe_type(ProbeType::ForceSynchronous).on_drop(move |name| {
            if name == "base" && !dropped.swap(true, Ordering::SeqCst) {
                let manager = manager.clone();
                let meanwhile = std::thread::spawn(move || {
                    assert_eq!(manager.bind("base").unwrap(), DeviceState::Bound);
                    manager.wait_for_probes().unwrap();
                });
                meanwhile.join().unwrap();
            }
        })
    });
    let decls = vec![decl("base", &[]), decl("user", &["base"])];
    let _ = rig.manager.bring_up(decls, &BringUpOptions::new()).unwrap();
    rig.manager.unbind("base").unwrap();
    assert_eq!(rig.log.of("shutdown begins"), ["user", "base"]);
    for device in rig.manager.devices() {
        assert_eq!(device.state, DeviceState::Bound, "{}", device.name);
    }
    let _ = rig.manager.shutdown(&ShutdownOptions::new()).unwrap();
    assert_eq!(rig.log.of("shutdown begins"), ["user", "base", "user", "base"]);
}

#[test]
fn an_object_is_dropped_before_those_that_it_needs_whoever_unbinds_them() {
    let rig = Rig::new("core:2 pu:1");
    let ((begin, begins), manager, log) = (channel(), rig.manager.clone(), rig.log.clone());
    let begin = Mutex::new(begin);
    let rig = rig.with(|d| {
        d.probe_type(ProbeType::ForceSynchronous).on_drop(move |name| {
            if name == "user" {
                begin.lock().unwrap().send(()).unwrap();
                while manager.device("base").unwrap().state == DeviceState::Bound {
                    std::thread::yield_now();
                }
                // A walk that didn't wait would call "base" back now.
                (0..1000).for_each(|_| std::thread::yield_now());
                log.note("dropped", name);
            }
        })
    });
    let decls = vec![decl("base", &[]), decl("user", &["base"])];
    let _ = rig.manager.bring_up(decls, &BringUpOptions::new()).unwrap();
    let manager = rig.manager.clone();
    let other = std::thread::spawn(move || manager.unbind("user").unwrap());
    begins.recv().unwrap();
    rig.manager.unbind("base").unwrap();
    other.join().unwrap();
    assert!(rig.log.place("dropped", "user") < rig.log.place("shutdown begins", "base"));
    let _ = rig.manager.shutdown(&ShutdownOptions::new()).unwrap();
}

/// A driver that registers a child in its own probe, and fails on demand.
struct Parent {
    manager: OnceLock<Weak<DeviceManager>>,
    fails: Mutex<Receiver<()>>,
}

impl Driver for Parent {
    fn name(&self) -> &str {
        "parent"
    }
    fn probe_type(&self) -> ProbeType {
        ProbeType::PreferAsynchronous
    }
    fn probe(&self, cx: &ProbeContext<'_>) -> Result<Arc<dyn Bound>, ProbeError> {
        let manager = self.manager.get().and_then(Weak::upgrade).unwrap();
        manager.add(DeviceDecl::new("child", "child").parent(cx.name())).unwrap();
        self.fails.lock().unwrap().recv().unwrap();
        Err(ProbeError::failed("on purpose"))
    }
}

/// A device whose callback reports that it has begun, and ends on demand.
struct Child {
    begun: Sender<()>,
    ends: Mutex<Receiver<()>>,
    calls: AtomicUsize,
}

impl Bound for Child {
    fn shutdown(&self) -> Result<(), ShutdownError> {
        if self.calls.fetch_add(1, Ordering::SeqCst) == 0 {
            self.begun.send(()).unwrap();
            self.ends.lock().unwrap().recv().unwrap();
        }
        Ok(())
    }
}

struct Children(Arc<Child>);

impl Driver for Children {
    fn name(&self) -> &str {
        "child"
    }
    fn probe_type(&self) -> ProbeType {
        ProbeType::ForceSynchronous
    }
    fn probe(&self, _: &ProbeContext<'_>) -> Result<Arc<dyn Bound>, ProbeError> {
        Ok(self.0.clone())
    }
}

#[test]
fn a_shutdown_waits_for_the_children_of_a_probe_that_was_given_up_and_fails() {
    let rig = Rig::new("core:2 pu:1");
    let ((fail, fails), (begun, begins), (end, ends)) = (channel(), channel(), channel());
    let child = Child { begun, ends: Mutex::new(ends), calls: AtomicUsize::new(0) };
    let child = Arc::new(child);
    let parent = Parent { manager: OnceLock::new(), fails: Mutex::new(fails) };
    parent.manager.set(Arc::downgrade(&rig.manager)).unwrap();
    rig.manager.register(Arc::new(Children(child.clone()))).unwrap();
    rig.manager.register(Arc::new(parent)).unwrap();
    let options = BringUpOptions::new().keep_going(true);
    let options =
        options.device_timeout(Some(Duration::from_millis(20))).on_hang(HangPolicy::GiveUp);
    let up = rig.manager.bring_up(vec![DeviceDecl::new("parent", "parent")], &options).unwrap();
    assert!(!up.is_complete());
    fail.send(()).unwrap();
    begins.recv().unwrap();
    let manager = rig.manager.clone();
    let shutdown =
        std::thread::spawn(move || manager.shutdown(&ShutdownOptions::new()).map(|_| ()));
    while !matches!(rig.manager.bind("parent"), Err(Error::ShuttingDown)) {
        std::thread::yield_now();
    }
    end.send(()).unwrap();
    shutdown.join().unwrap().unwrap();
    assert_eq!(child.calls.load(Ordering::SeqCst), 1, "one object, one callback");
    let child = rig.manager.device("child");
    assert!(child.is_none_or(|child| child.state != DeviceState::Bound), "it went");
}

/// A device whose callback is over when the test finishes it.
struct Pending {
    begun: Sender<ShutdownDone>,
    drops: Arc<AtomicUsize>,
}

impl Bound for Pending {
    fn start_shutdown(self: Arc<Self>, done: ShutdownDone) {
        self.begun.send(done).unwrap();
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.drops.fetch_add(1, Ordering::SeqCst);
    }
}

struct Once(Mutex<Option<Arc<Pending>>>);

impl Driver for Once {
    fn name(&self) -> &str {
        "once"
    }
    fn probe(&self, _: &ProbeContext<'_>) -> Result<Arc<dyn Bound>, ProbeError> {
        Ok(self.0.lock().unwrap().take().unwrap())
    }
}

#[test]
fn a_device_that_a_shutdown_takes_over_from_a_removal_is_dropped_behind_its_callback() {
    let rig = Rig::new("core:2 pu:1");
    let ((begun, begins), drops) = (channel(), Arc::new(AtomicUsize::new(0)));
    let pending = Arc::new(Pending { begun, drops: drops.clone() });
    rig.manager.register(Arc::new(Once(Mutex::new(Some(pending))))).unwrap();
    let up = rig.manager.bring_up(vec![DeviceDecl::new("d", "once")], &BringUpOptions::new());
    assert!(up.unwrap().is_complete());
    let manager = rig.manager.clone();
    let removal = std::thread::spawn(move || manager.remove("d"));
    let done = begins.recv().unwrap();
    let manager = rig.manager.clone();
    let shutdown = std::thread::spawn(move || manager.shutdown(&ShutdownOptions::new()).unwrap());
    while rig.manager.remaining().is_empty() {
        std::thread::yield_now();
    }
    assert_eq!(drops.load(Ordering::SeqCst), 0, "its callback isn't over");
    done.finish(Err(ShutdownError::new("on purpose")));
    let down = shutdown.join().unwrap();
    assert_eq!(down.failed[0].to_string(), "d: on purpose");
    assert_eq!(down.failed.len(), 1);
    assert!(matches!(removal.join().unwrap(), Err(Error::ShuttingDown)));
    assert_eq!(drops.load(Ordering::SeqCst), 1);
}
