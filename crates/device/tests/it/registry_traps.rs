//! Cases in which the registry went wrong, and which must not come back.

use crate::support::{Connection, Rig, decl, later};
use corewise_device::{
    Bound, BringUpOptions, DeviceDecl, DeviceManager, DeviceState, Driver, HangPolicy,
    ProbeContext, ProbeDone, ProbeError, ProbeType, ShutdownOptions,
};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const MACHINE: &str = "core:2 pu:1";

fn sync_rig() -> Rig {
    Rig::new(MACHINE).with(|d| d.probe_type(ProbeType::ForceSynchronous))
}

/// Returns options by which a late device is not waited for.
fn given_up() -> BringUpOptions {
    let options = BringUpOptions::new().keep_going(true);
    options.device_timeout(Some(Duration::from_millis(20))).on_hang(HangPolicy::GiveUp)
}

#[test]
fn a_circle_of_links_comes_up_again_after_one_of_it_was_unbound() {
    let rig = sync_rig();
    rig.manager.add(decl("b", &[])).unwrap();
    rig.manager.add(decl("a", &["b"])).unwrap();
    rig.manager.link("b", "a").unwrap(); // Waived: it closes a circle.
    rig.manager.unbind("a").unwrap();
    rig.manager.bind("a").unwrap();
    rig.manager.wait_for_probes().unwrap();
    let _ = rig.manager.bind("b").unwrap();
    rig.manager.wait_for_probes().unwrap();
    let states: Vec<_> = rig.manager.devices().into_iter().map(|d| (d.name, d.state)).collect();
    assert!(
        states.iter().all(|s| s.1 == DeviceState::Bound),
        "{states:?} {:?}",
        rig.manager.pending()
    );
}

#[test]
fn a_device_without_its_optional_supplier_comes_up_again_when_that_is_bound() {
    let rig = sync_rig();
    rig.manager.set_deferral_timeout(Duration::ZERO);
    rig.manager.add(DeviceDecl::new("c", "test").optional_supplier("s")).unwrap();
    while rig.manager.device("c").unwrap().state != DeviceState::Bound {
        std::thread::yield_now();
    }
    rig.manager.wait_for_probes().unwrap();
    rig.manager.add(decl("s", &[])).unwrap();
    rig.manager.unbind("s").unwrap();
    rig.manager.bind("s").unwrap();
    rig.manager.wait_for_probes().unwrap();
    let state = rig.manager.device("c").unwrap().state;
    assert_eq!(state, DeviceState::Bound, "{:?}", rig.manager.pending());
}

#[test]
fn remove_takes_a_child_that_also_needs_another_child() {
    let rig = sync_rig();
    rig.manager.add(decl("p", &[])).unwrap();
    rig.manager.add(decl("c1", &["c2"]).parent("p")).unwrap();
    rig.manager.add(decl("c2", &[]).parent("p")).unwrap();
    rig.manager.wait_for_probes().unwrap();
    assert_eq!(rig.manager.device("c1").unwrap().state, DeviceState::Bound);
    rig.manager.remove("p").unwrap();
    let left: Vec<_> = rig.manager.devices().into_iter().map(|d| d.name).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn a_late_synchronous_probe_that_has_returned_holds_up_no_other_synchronous_one() {
    let rig = Rig::new(MACHINE).with(|d| d.probe_type(ProbeType::ForceSynchronous));
    let begins = later(&rig, "later", ProbeType::ForceSynchronous);
    let options = BringUpOptions::new()
        .keep_going(true)
        .device_timeout(Some(Duration::from_millis(20)))
        .on_hang(HangPolicy::Skip);
    let up = rig
        .manager
        .bring_up(vec![DeviceDecl::new("a", "later"), decl("b", &[])], &options)
        .unwrap();
    assert!(rig.manager.device("b").unwrap().state == DeviceState::Bound, "{up:?}");
    drop(begins);
}

#[test]
fn an_optional_supplier_that_fails_after_the_deferral_timeout_holds_up_nobody() {
    let rig = sync_rig();
    let begins = later(&rig, "later", ProbeType::PreferAsynchronous);
    rig.manager.set_deferral_timeout(Duration::from_millis(10));
    rig.manager.add(DeviceDecl::new("s", "later")).unwrap();
    rig.manager.add(DeviceDecl::new("c", "test").optional_supplier("s")).unwrap();
    rig.manager
        .add(DeviceDecl::new("probe of the timeout", "test").optional_supplier("none"))
        .unwrap();
    while rig.manager.device("probe of the timeout").unwrap().state != DeviceState::Bound {
        std::thread::yield_now();
    }
    let (_, done) = begins.recv().unwrap();
    done.finish(Err(ProbeError::failed("on purpose")));
    rig.manager.wait_for_probes().unwrap();
    assert_eq!(
        rig.manager.device("c").unwrap().state,
        DeviceState::Bound,
        "{:?}",
        rig.manager.pending()
    );
}

#[test]
fn a_probe_that_ends_after_its_manager_was_dropped_harms_nobody() {
    let mut rig = Rig::new(MACHINE);
    let begins = later(&rig, "later", ProbeType::PreferAsynchronous);
    rig.manager.add(DeviceDecl::new("a", "later")).unwrap();
    let (_, done) = begins.recv().unwrap();
    rig.manager = Arc::new(DeviceManager::new(&rig.pools).unwrap());
    let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        done.finish(Ok(Arc::new(Connection)));
    }));
    assert!(ended.is_ok());
}

#[test]
fn the_children_of_a_probe_that_fails_after_the_shutdown_are_called_back_once() {
    let rig = sync_rig();
    struct Parent(Arc<DeviceManager>, Mutex<Sender<ProbeDone>>);
    impl Driver for Parent {
        fn name(&self) -> &str {
            "parent"
        }
        fn probe_type(&self) -> ProbeType {
            ProbeType::PreferAsynchronous
        }
        fn start_probe(&self, _: &ProbeContext<'_>, done: ProbeDone) {
            self.0.add(decl("child", &[]).parent("p")).unwrap();
            self.1.lock().unwrap().send(done).unwrap();
        }
    }
    let (begun, begins) = channel();
    rig.manager.register(Arc::new(Parent(rig.manager.clone(), Mutex::new(begun)))).unwrap();
    let options = given_up();
    let _ = rig.manager.bring_up(vec![DeviceDecl::new("p", "parent")], &options).unwrap();
    let _ = rig.manager.shutdown(&ShutdownOptions::new()).unwrap();
    assert_eq!(rig.log.of("shutdown begins"), ["child"]);
    begins.recv().unwrap().finish(Err(ProbeError::failed("late")));
    rig.pools.shutdown();
    assert_eq!(rig.log.of("shutdown begins"), ["child"]);
    // The registry still works.
    assert_eq!(rig.manager.device("p").unwrap().state.as_str(), "cancelled");
}

/// A declaration's configuration that asks the manager when it is dropped.
struct Asks(Arc<DeviceManager>, Arc<AtomicBool>);
impl Drop for Asks {
    fn drop(&mut self) {
        let _ = self.0.pending();
        self.1.store(true, Ordering::SeqCst);
    }
}

#[test]
fn the_last_reference_of_a_former_outline_is_dropped_outside_of_the_lock() {
    let rig = sync_rig();
    let dropped = Arc::new(AtomicBool::new(false));
    let asks = Asks(rig.manager.clone(), dropped.clone());
    let _ =
        rig.manager.bring_up(vec![decl("x", &[]).config(asks)], &BringUpOptions::new()).unwrap();
    rig.manager.remove("x").unwrap();
    let _ = rig.manager.bring_up(vec![decl("y", &[])], &BringUpOptions::new()).unwrap();
    assert!(dropped.load(Ordering::SeqCst));
}

#[test]
fn the_last_reference_of_a_former_cost_record_is_dropped_outside_of_the_lock() {
    let rig = sync_rig();
    let dropped = Arc::new(AtomicBool::new(false));
    let asks = Asks(rig.manager.clone(), dropped.clone());
    rig.manager.add(decl("c", &["s"])).unwrap();
    rig.manager.add(decl("s", &[]).config(asks)).unwrap();
    rig.manager.wait_for_probes().unwrap();
    rig.manager.remove("s").unwrap();
    rig.manager.add(decl("s", &[])).unwrap();
    rig.manager.wait_for_probes().unwrap();
    assert!(dropped.load(Ordering::SeqCst));
}

/// A driver that its own match function takes back, once.
struct Fickle(Arc<DeviceManager>, AtomicBool);

impl Driver for Fickle {
    fn name(&self) -> &str {
        "fickle"
    }
    fn matches(&self, _: &DeviceDecl) -> bool {
        if !self.1.swap(true, Ordering::SeqCst) {
            self.0.unregister("fickle").unwrap();
        }
        true
    }
    fn probe(&self, _: &ProbeContext<'_>) -> Result<Arc<dyn Bound>, ProbeError> {
        Ok(Arc::new(Connection))
    }
}

#[test]
fn a_driver_that_goes_while_it_is_being_registered_gets_no_device() {
    let rig = sync_rig();
    rig.manager.add(DeviceDecl::new("a", "none")).unwrap();
    let fickle = Fickle(rig.manager.clone(), AtomicBool::new(false));
    rig.manager.register(Arc::new(fickle)).unwrap();
    assert_eq!(rig.manager.device("a").unwrap().state, DeviceState::NoDriver);
}
