//! Devices that come and go one by one, on real pools.

use crate::support::{Rig, TestDriver, Unit, decl};
use corewise_device::{
    BringUpOptions, DeviceDecl, DeviceState, Error, GraphError, HangPolicy, ProbeError,
    ProbeOutcome, ProbeType, ShutdownOptions,
};
use corewise_topology::CpuId;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

const TWO_NODES: &str = "numa:2 core:4 pu:1";

fn sync_rig() -> Rig {
    Rig::new(TWO_NODES).with(|d| d.probe_type(ProbeType::ForceSynchronous))
}

#[test]
fn a_device_that_is_added_late_is_probed_by_this_call_if_it_is_synchronous() {
    let rig = sync_rig();
    let _ = rig.manager.bring_up(vec![decl("disk", &[])], &BringUpOptions::new()).unwrap();
    assert_eq!(rig.manager.add(decl("volume", &["disk"])).unwrap(), DeviceState::Bound);
    assert_eq!(rig.manager.bound::<Unit>("volume").unwrap().name, "volume");
    let down = rig.manager.shutdown(&ShutdownOptions::new()).unwrap();
    assert_eq!(down.order().collect::<Vec<_>>(), ["volume", "disk"]);
}

#[test]
fn a_device_that_is_at_fault_is_not_added_and_says_why() {
    let rig = sync_rig();
    rig.manager.add(decl("a", &["b"])).unwrap();
    let fault = |decl: DeviceDecl| match rig.manager.add(decl) {
        Err(Error::Rejected(faults)) => faults[0].clone(),
        other => panic!("{other:?}"),
    };
    assert!(matches!(fault(decl("", &[])), GraphError::EmptyName { .. }));
    assert!(matches!(fault(decl("a", &[])), GraphError::DuplicateName { .. }));
    assert!(matches!(fault(decl("x", &["x"])), GraphError::Cycle { .. }));
    assert!(fault(decl("b", &["a"])).to_string().contains("\"b\" -> \"a\" -> \"b\""));
    assert_eq!(rig.manager.devices().len(), 1);
}

#[test]
fn add_during_shutdown_is_refused() {
    let rig = Rig::new(TWO_NODES);
    let manager = rig.manager.clone();
    let refused = Arc::new(Mutex::new(Vec::new()));
    let seen = refused.clone();
    let driver = TestDriver::new("test", &rig.log).shutdown(move |_| {
        let mut seen = seen.lock().unwrap();
        seen.push(manager.add(decl("late", &[])).map(drop));
        seen.push(manager.bind("a").map(drop));
        seen.push(manager.link("a", "a"));
        seen.push(manager.bring_up(vec![decl("late", &[])], &BringUpOptions::new()).map(drop));
        seen.push(
            manager.register(Arc::new(TestDriver::new("other", &crate::support::Log::default()))),
        );
        Ok(())
    });
    rig.register(driver).unwrap();
    let _ = rig.manager.bring_up(vec![decl("a", &[])], &BringUpOptions::new()).unwrap();
    let _ = rig.manager.shutdown(&ShutdownOptions::new()).unwrap();
    let refused = refused.lock().unwrap();
    assert!(refused.len() == 5 && refused.iter().all(|r| matches!(r, Err(Error::ShuttingDown))));
    assert!(matches!(rig.manager.remove("a"), Err(Error::ShuttingDown)));
}

#[test]
fn unbind_and_bind_spread_probes_over_the_node_again_and_consumers_follow() {
    let rig = Rig::new(TWO_NODES).with(|d| d);
    let decls =
        vec![decl("disk", &[]).node(Some(1)), decl("volume", &["disk"]), decl("other", &[])];
    let _ = rig.manager.bring_up(decls, &BringUpOptions::new()).unwrap();
    let mut cpus = vec![rig.manager.device("disk").unwrap().cost.cpu];
    for _ in 0..2 {
        assert!(rig.manager.unbind("disk").unwrap().is_empty());
        assert!(rig.manager.bound::<Unit>("disk").is_none());
        assert_eq!(rig.manager.device("volume").unwrap().state, DeviceState::Waiting);
        assert!(rig.manager.bound::<Unit>("other").is_some());
        rig.manager.bind("disk").unwrap();
        rig.manager.wait_for_probes().unwrap();
        assert!(rig.manager.bound::<Unit>("volume").is_some());
        cpus.push(rig.manager.device("disk").unwrap().cost.cpu);
    }
    assert_eq!(cpus, [4, 5, 6].map(|cpu| Some(CpuId::new(cpu))));
    assert_eq!(rig.log.of("shutdown ends"), ["volume", "disk", "volume", "disk"]);
    assert_eq!(rig.manager.device("disk").unwrap().cost.attempts, 3);
}

#[test]
fn rule_1_2_12_a_child_is_probed_on_the_thread_of_its_parents_probe() {
    let rig = Rig::new(TWO_NODES);
    let driver = TestDriver::new("test", &rig.log).probe_type(ProbeType::ForceSynchronous);
    let driver = driver.probe(move |cx| {
        if cx.name() == "pf" {
            for vf in 0..3 {
                let child = decl(&format!("vf{vf}"), &[]).parent("pf").node(Some(1));
                assert_eq!(cx.add(child).unwrap(), DeviceState::Bound);
            }
        }
        Ok(())
    });
    rig.register(driver).unwrap();
    assert_eq!(rig.manager.add(decl("pf", &[]).node(Some(1))).unwrap(), DeviceState::Bound);
    let begins = rig.log.entries().into_iter().filter(|e| e.what == "probe begins");
    let threads: Vec<_> = begins.map(|e| e.thread).collect();
    assert_eq!(threads.len(), 4);
    assert!(threads.iter().all(|t| *t == threads[0] && *t != std::thread::current().id()));
    // A second probe registers them again.
    rig.manager.unbind("pf").unwrap();
    assert_eq!(rig.manager.devices().len(), 1);
    assert_eq!(rig.manager.bind("pf").unwrap(), DeviceState::Bound);
    assert_eq!(rig.manager.devices().len(), 4);
    let down = rig.manager.shutdown(&ShutdownOptions::new()).unwrap();
    assert_eq!(down.order().collect::<Vec<_>>(), ["vf2", "vf1", "vf0", "pf"]);
}

#[test]
fn nested_probes_to_any_depth_and_breadth_cannot_deadlock_on_one_cpu() {
    let rig = Rig::new("core:1 pu:1");
    let types = AtomicUsize::new(0);
    let driver = TestDriver::new("test", &rig.log).probe(move |cx| {
        let name = cx.name();
        let depth = name.matches('.').count();
        for child in 0..if depth < 4 { 3 } else { 0 } {
            let sync = types.fetch_add(1, Ordering::Relaxed) % 2 == 0;
            let kind =
                if sync { ProbeType::ForceSynchronous } else { ProbeType::PreferAsynchronous };
            let child = decl(&format!("{name}.{child}"), &[]).parent(name).probe_type(kind);
            cx.add(child).unwrap();
        }
        Ok(())
    });
    rig.register(driver).unwrap();
    let roots = (0..8).map(|i| decl(&format!("root{i}"), &[])).collect();
    assert!(rig.manager.bring_up(roots, &BringUpOptions::new()).unwrap().is_complete());
    rig.manager.wait_for_probes().unwrap();
    let devices = rig.manager.devices();
    assert_eq!(devices.len(), 8 * (1 + 3 + 9 + 27 + 81));
    assert!(devices.iter().all(|d| d.state == DeviceState::Bound));
}

#[test]
fn children_of_a_probe_that_fails_are_removed_also_where_it_fails_later_and_elsewhere() {
    let rig = Rig::new(TWO_NODES);
    let driver = TestDriver::new("test", &rig.log).probe_type(ProbeType::ForceSynchronous);
    let driver = driver.probe(move |cx| {
        if cx.name() == "pf" {
            cx.add(decl("vf", &[]).parent("pf")).unwrap();
            return Err(ProbeError::failed("on purpose"));
        }
        Ok(())
    });
    rig.register(driver).unwrap();
    for _ in 0..2 {
        let state = match rig.manager.add(decl("pf", &[])) {
            Err(Error::Rejected(_)) => rig.manager.bind("pf"),
            state => state,
        };
        assert!(matches!(state.unwrap(), DeviceState::Failed(_)));
        assert_eq!(rig.manager.devices().len(), 1);
    }
    assert_eq!(rig.log.of("shutdown ends"), ["vf", "vf"]);
}

#[test]
fn calls_that_would_wait_for_themselves_are_refused_inside_a_probe() {
    let rig = Rig::new(TWO_NODES);
    let manager = rig.manager.clone();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let its = seen.clone();
    let driver = TestDriver::new("test", &rig.log).probe(move |cx| {
        let mut seen = its.lock().unwrap();
        seen.push(manager.wait_for_probes());
        seen.push(manager.remove(cx.name()).map(drop));
        seen.push(manager.unbind(cx.name()).map(drop));
        seen.push(manager.bring_up(Vec::new(), &BringUpOptions::new()).map(drop));
        seen.push(manager.shutdown(&ShutdownOptions::new()).map(drop));
        seen.push(manager.unregister("test"));
        Ok(())
    });
    rig.register(driver).unwrap();
    rig.manager.add(decl("x", &[])).unwrap();
    rig.manager.wait_for_probes().unwrap();
    assert_eq!(rig.manager.device("x").unwrap().state, DeviceState::Bound);
    let seen = seen.lock().unwrap();
    assert!(seen.iter().all(|r| matches!(r, Err(Error::InsideProbe))), "{seen:?}");
    assert_eq!(seen.len(), 6);
    // The driver keeps its manager until then.
    assert!(rig.manager.shutdown(&ShutdownOptions::new()).unwrap().is_clean());
}

#[test]
fn a_driver_registered_after_its_devices_gets_them_and_one_that_goes_lets_them_go() {
    let rig = Rig::new(TWO_NODES);
    for (name, needs) in [("a", &[][..]), ("b", &["a"][..])] {
        assert_eq!(rig.manager.add(decl(name, needs)).unwrap(), DeviceState::NoDriver);
    }
    let sync = TestDriver::new("test", &rig.log).probe_type(ProbeType::ForceSynchronous);
    rig.register(sync).unwrap();
    rig.manager.wait_for_probes().unwrap();
    assert_eq!(rig.log.of("probe ends"), ["a", "b"]);
    rig.manager.unregister("test").unwrap();
    assert_eq!(rig.log.of("shutdown ends"), ["b", "a"]);
    let states: Vec<DeviceState> = rig.manager.devices().into_iter().map(|d| d.state).collect();
    assert_eq!(states, [DeviceState::NoDriver, DeviceState::NoDriver]);
    assert!(matches!(rig.manager.unregister("test"), Err(Error::NoSuchDriver(_))));
}

#[test]
fn a_driver_matches_as_it_says_and_a_device_without_one_is_no_failure() {
    struct Table(&'static str, &'static [&'static str], crate::support::Log);
    impl corewise_device::Driver for Table {
        fn name(&self) -> &str {
            self.0
        }
        fn matches(&self, decl: &DeviceDecl) -> bool {
            self.1.contains(&decl.name.as_str())
        }
        fn probe(
            &self,
            cx: &corewise_device::ProbeContext<'_>,
        ) -> Result<Arc<dyn corewise_device::Bound>, ProbeError> {
            self.2.note(self.0, cx.name());
            match (self.0, cx.name()) {
                ("fussy", "odd") => Err(ProbeError::no_device("not one of mine")),
                _ => Ok(Arc::new(Empty)),
            }
        }
    }
    struct Empty;
    impl corewise_device::Bound for Empty {}
    let rig = Rig::new(TWO_NODES);
    let register = |name, table| {
        rig.manager.register(Arc::new(Table(name, table, rig.log.clone()))).unwrap();
    };
    register("fussy", &["good", "odd"]);
    register("generic", &["good", "odd"]);
    register("unmatched", &[]);
    let of = |name: &str| rig.manager.device(name).unwrap().driver.unwrap();
    rig.manager.add(DeviceDecl::new("good", "")).unwrap();
    assert_eq!(of("good"), "fussy", "the first registered");
    rig.manager.add(DeviceDecl::new("odd", "")).unwrap();
    assert_eq!(of("odd"), "generic", "the first one was not for it");
    let none = rig.manager.add(DeviceDecl::new("none", "")).unwrap();
    assert_eq!(none, DeviceState::NoDriver);
    let up = rig.manager.bring_up(vec![DeviceDecl::new("z", "")], &BringUpOptions::new());
    let error = up.unwrap_err().to_string();
    assert!(error.contains("names none") && error.contains("fussy"), "{error}");
}

#[test]
fn rule_1_2_17_waiting_for_probes_includes_those_that_they_release() {
    let rig = Rig::new(TWO_NODES).with(|d| d);
    let names: Vec<String> = (0..200).map(|i| format!("d{i}")).collect();
    for i in (0..200).rev() {
        assert!(rig.log.of("probe begins").is_empty());
        let needs: Vec<&str> = names[..i].iter().rev().take(2).map(String::as_str).collect();
        let state = rig.manager.add(decl(&names[i], &needs)).unwrap();
        assert!(i == 0 || state == DeviceState::Waiting, "{state:?}");
    }
    rig.manager.wait_for_probes().unwrap();
    assert_eq!(rig.log.of("probe ends"), names, "they have found each other");
    assert!(rig.manager.devices().iter().all(|d| d.state == DeviceState::Bound));
}

#[test]
fn rule_1_2_15_a_deferred_probe_is_tried_again_after_a_bind_and_its_cost_is_known() {
    for probe_type in [ProbeType::PreferAsynchronous, ProbeType::ForceSynchronous] {
        let rig = Rig::new(TWO_NODES);
        let there = Arc::new(AtomicBool::new(false));
        let its = there.clone();
        let driver = TestDriver::new("test", &rig.log).probe_type(probe_type).probe(move |cx| {
            match cx.name() {
                "clock" => its.store(true, Ordering::SeqCst),
                _ if !its.load(Ordering::SeqCst) => return Err(cx.defer("no clock")),
                _ => {}
            }
            Ok(())
        });
        rig.register(driver).unwrap();
        let up = rig.manager.bring_up(vec![decl("disk", &[])], &BringUpOptions::new()).unwrap();
        let deferred = ProbeOutcome::Deferred { reason: "no clock".into() };
        assert_eq!(up.devices()[0].outcome, deferred);
        assert_eq!(
            rig.manager.pending()[0].to_string(),
            "disk: deferred by its driver (no clock), tried 2 times"
        );
        rig.manager.add(decl("clock", &[])).unwrap();
        rig.manager.wait_for_probes().unwrap();
        let disk = rig.manager.device("disk").unwrap();
        assert_eq!(disk.state, DeviceState::Bound);
        assert_eq!((disk.cost.attempts, disk.cost.deferrals), (3, 2));
        assert!(disk.cost.deferring <= disk.cost.total);
    }
}

#[test]
fn rule_1_2_15_the_timeout_turns_missing_optional_suppliers_and_deferrals_into_errors() {
    let rig = Rig::new(TWO_NODES);
    rig.manager.set_deferral_timeout(Duration::ZERO);
    let driver = TestDriver::new("test", &rig.log).probe(|cx| match cx.name() {
        "hopeful" => Err(cx.defer("no clock")),
        "optional" => {
            let error = cx.supplier::<Unit>("fan").map(drop).unwrap_err().to_string();
            assert!(error.contains("\"fan\" is not up"), "{error}");
            Ok(())
        }
        _ => Ok(()),
    });
    rig.register(driver).unwrap();
    let (told, tells) = channel();
    let told = Mutex::new(told);
    let late = TestDriver::new("late", &rig.log).probe(move |cx| {
        told.lock().unwrap().send(cx.name().to_string()).unwrap();
        Ok(())
    });
    rig.register(late).unwrap();
    let decls = vec![
        decl("hopeful", &[]),
        decl("optional", &[]).optional_supplier("fan"),
        DeviceDecl::new("after", "late").optional_supplier("nobody"),
    ];
    let up = rig.manager.bring_up(decls, &BringUpOptions::new()).unwrap();
    assert_eq!(up.stopped_by, None, "nothing has failed yet");
    // The timer goes off by itself: nothing else probes this one.
    assert_eq!(tells.recv().unwrap(), "after");
    rig.manager.wait_for_probes().unwrap();
    let state = |name| rig.manager.device(name).unwrap().state;
    assert_eq!(state("optional"), DeviceState::Bound);
    let DeviceState::Failed(error) = state("hopeful") else { panic!("{:?}", state("hopeful")) };
    assert!(error.to_string().contains("deferral timeout"), "{error}");
}

/// Leaves a device held in its second probe, until the sender goes.
fn deferred_then_held(rig: &Rig) -> std::sync::mpsc::Sender<()> {
    let (let_go, held) = channel::<()>();
    let (held, tries) = (Mutex::new(held), AtomicUsize::new(0));
    let driver = TestDriver::new("held", &rig.log).probe_type(ProbeType::ForceSynchronous);
    let driver = driver.probe(move |_| {
        if tries.fetch_add(1, Ordering::SeqCst) == 0 {
            return Err(ProbeError::defer("the first time"));
        }
        assert!(held.lock().unwrap().recv().is_err());
        Ok(())
    });
    rig.register(driver).unwrap();
    let_go
}

#[test]
fn a_synchronous_probe_that_hangs_on_the_late_worker_is_given_up_and_holds_up_nobody_there() {
    let rig = Rig::new(TWO_NODES).with(|d| d.probe_type(ProbeType::ForceSynchronous));
    let let_go = deferred_then_held(&rig);
    let hung = DeviceDecl::new("hung", "held").probe_timeout(Duration::from_millis(2));
    let options = BringUpOptions::new().keep_going(true).on_hang(HangPolicy::GiveUp);
    let up = rig.manager.bring_up(vec![hung], &options).unwrap();
    assert!(up.gave_up && up.overdue == ["hung"], "{up:?}");
    // Another late worker goes on.
    rig.manager.add(decl("user", &["base"])).unwrap();
    rig.manager.add(decl("base", &[])).unwrap();
    rig.manager.wait_for_probes().unwrap();
    assert_eq!(rig.manager.device("user").unwrap().state, DeviceState::Bound);
    let _ = rig.manager.shutdown(&ShutdownOptions::new()).unwrap();
    drop(let_go);
}

#[test]
fn a_consumer_whose_link_is_taken_away_comes_up_without_that_supplier() {
    let rig = sync_rig();
    rig.manager.add(decl("bus", &[])).unwrap();
    rig.manager.add(decl("disk", &["missing"]).parent("bus")).unwrap();
    rig.manager.wait_for_probes().unwrap();
    assert_eq!(rig.manager.device("disk").unwrap().state, DeviceState::Waiting);
    assert!(rig.manager.unlink("disk", "missing").unwrap());
    assert!(!rig.manager.unlink("disk", "missing").unwrap(), "it has gone already");
    rig.manager.wait_for_probes().unwrap();
    assert_eq!(rig.manager.device("disk").unwrap().state, DeviceState::Bound);
    let parent = rig.manager.unlink("disk", "bus").unwrap_err().to_string();
    assert!(parent.contains("\"bus\" is the parent of \"disk\""), "{parent}");
    assert!(matches!(rig.manager.unlink("nobody", "bus"), Err(Error::NoSuchDevice(_))));
    let _ = rig.manager.shutdown(&ShutdownOptions::new()).unwrap();
    assert!(matches!(rig.manager.unlink("disk", "bus"), Err(Error::ShuttingDown)));
}
