//! The end of a manager's drivers, and what a probe has in the place of a handle of the manager.

use crate::support::{Log, Rig, TestDriver};
use corewise_device::{
    BringUpOptions, Cancel, DeviceDecl, DeviceManager, Error, ProbeContext, ShutdownOptions,
};
use std::sync::Arc;

const MACHINE: &str = "core:2 pu:1";

#[test]
fn a_driver_that_keeps_its_manager_keeps_it_until_the_shutdown_and_no_longer() {
    /// A driver that notes its drop, and finds then that the shutdown is not over.
    struct Keeps(Arc<DeviceManager>, Log, &'static str);
    impl Drop for Keeps {
        fn drop(&mut self) {
            self.1.note("driver drop", self.2);
            assert!(matches!(self.0.unbind("root"), Err(Error::InsideProbe)));
        }
    }
    let rig = Rig::new(MACHINE);
    for name in ["first", "second"] {
        let keeps = Keeps(rig.manager.clone(), rig.log.clone(), name);
        let driver = TestDriver::new(name, &rig.log).probe(move |cx| {
            let child = cx.name() == "root"
                && keeps.0.add(DeviceDecl::new("child", "second").parent("root")).is_ok();
            assert_eq!(child, cx.name() == "root");
            Ok(())
        });
        rig.register(driver).unwrap();
    }
    let root = vec![DeviceDecl::new("root", "first")];
    assert!(rig.manager.bring_up(root, &BringUpOptions::new()).unwrap().is_complete());
    // The child is probed by another thread, once its parent is bound.
    rig.manager.wait_for_probes().unwrap();
    let down = rig.manager.shutdown(&ShutdownOptions::new()).unwrap();
    assert!(down.is_clean());
    assert_eq!(rig.log.of("driver drop"), ["second", "first"]);
    let drops = rig.log.entries().into_iter().filter(|entry| entry.what.ends_with("drop"));
    let drops: Vec<_> = drops.map(|entry| entry.device).collect();
    assert_eq!(drops, ["child", "root", "second", "first"], "objects go before drivers");
    assert_eq!(
        rig.manager.device("child").unwrap().driver.as_deref(),
        Some("second"),
        "it is known still"
    );
    assert_eq!(Arc::strong_count(&rig.manager), 1, "nobody else keeps it");
}

#[test]
fn a_context_without_a_manager_adds_nothing_and_says_so() {
    let decl = DeviceDecl::new("alone", "test");
    let cx =
        ProbeContext::new(&decl, None, &[], &Cancel::new()).add(DeviceDecl::new("child", "test"));
    assert!(matches!(cx, Err(Error::NoManager)), "{cx:?}");
}
