//! Bring-up on real worker pools.
#![cfg(not(loom))]

use fastrand::Rng;

use crate::support::{Rig, TestDriver, Unit, decl, edges, random_graph};
use corewise_device::{
    BringUpOptions, Cancel, DeviceDecl, DeviceState, Driver, Error, Event, GraphError, Observer,
    ProbeError, ProbeOutcome, ProbeType, ShutdownOptions,
};
use std::sync::{Arc, Mutex};

const TWO_NODES: &str = "numa:2 core:4 pu:1";

fn options() -> BringUpOptions {
    BringUpOptions::new()
}

fn outcome(up: &corewise_device::BringUp, name: &str) -> ProbeOutcome {
    up.device(name).expect("it was declared").outcome.clone()
}

#[test]
fn a_diamond_comes_up_in_dependency_order_and_consumers_get_their_suppliers() {
    let rig = Rig::new(TWO_NODES).with(|d| {
        d.probe(|cx| {
            let names: Vec<String> =
                cx.suppliers::<Unit>()?.iter().map(|s| s.name.clone()).collect();
            assert_eq!(names, cx.decl().suppliers);
            Ok(())
        })
    });
    let decls =
        vec![decl("end", &["b", "a"]), decl("a", &["top"]), decl("b", &["top"]), decl("top", &[])];
    let up = rig.manager.bring_up(decls.clone(), &options()).unwrap();
    assert!(up.is_complete(), "{up:?}");
    for (device, need) in edges(&decls) {
        assert!(rig.log.place("probe ends", need) < rig.log.place("probe begins", device));
    }
    let timeline = up.timeline();
    assert_eq!(timeline.edges().len(), 4);
    assert_eq!(timeline.edges_not_kept().count(), 0);
    let end = timeline.find("end").unwrap();
    let released_by = timeline.span(end).released_by.clone().unwrap();
    assert!(["a", "b"].contains(&released_by.as_str()));
    assert_eq!(rig.manager.bound::<Unit>("end").unwrap().name, "end");
}

#[test]
fn devices_that_stand_in_line_for_a_thread_come_up_in_order_also_behind_failed_ones() {
    // One pod: 256 threads.
    let rig = Rig::new("core:2 pu:1").with(|d| {
        d.probe(|cx| match cx.name().ends_with('7') {
            true => Err(ProbeError::failed("on purpose")),
            false => Ok(()),
        })
    });
    let many = (0..1_500).map(|n| decl(&format!("d{n}"), &[]));
    let behind = (0..100).map(|n| decl(&format!("e{n}"), &[&format!("d{}", 14 * n + 1)]));
    let decls: Vec<DeviceDecl> = many.chain(behind).collect();
    let up = rig.manager.bring_up(decls.clone(), &options().keep_going(true)).unwrap();
    let failed = |name: &str| name.ends_with('7');
    for (device, decl) in up.devices().iter().zip(&decls) {
        let skipped = decl.suppliers.iter().any(|supplier| failed(supplier));
        match &device.outcome {
            ProbeOutcome::Failed(_) => assert!(failed(&device.name) && !skipped),
            ProbeOutcome::Skipped { .. } => assert!(skipped),
            outcome => assert!(*outcome == ProbeOutcome::Bound && !failed(&device.name)),
        }
    }
    for (device, need) in edges(&decls) {
        if !failed(device) && !failed(need) {
            assert!(rig.log.place("probe ends", need) < rig.log.place("probe begins", device));
        }
    }
}

#[test]
fn five_hundred_devices_in_a_random_graph_all_come_up_in_order() {
    let rig = Rig::new("numa:2 l3:2 core:8 pu:2").with(|d| d);
    let decls = random_graph(500, &mut Rng::with_seed(7));
    let total = decls.len();
    let counts = Arc::new(Mutex::new(Vec::new()));
    let seen = counts.clone();
    let observer = Arc::new(move |event: &Event<'_>| {
        if let Event::Finished { done, total, .. } = event {
            seen.lock().unwrap().push((*done, *total));
        }
    });
    let up = rig.manager.bring_up(decls.clone(), &options().observer(observer)).unwrap();
    assert!(up.is_complete());
    for (device, need) in edges(&decls) {
        assert!(rig.log.place("probe ends", need) < rig.log.place("probe begins", device));
    }
    let timeline = up.timeline();
    assert_eq!(timeline.spans().len(), total);
    assert_eq!(timeline.edges_not_kept().count(), 0);
    let mut counts = counts.lock().unwrap().clone();
    counts.sort_unstable();
    assert_eq!(counts, (1..=total).map(|n| (n, total)).collect::<Vec<_>>());
}

#[test]
fn a_failure_or_panic_with_keep_going_skips_its_dependents_and_harms_nobody_else() {
    let rig = Rig::new(TWO_NODES).with(|d| {
        d.probe(|cx| match cx.name() {
            "bad" => Err(ProbeError::failed("no medium")),
            "panics" => panic!("on purpose: {}", cx.name()),
            _ => Ok(()),
        })
    });
    let decls = vec![
        decl("bad", &[]),
        decl("panics", &[]),
        decl("good", &[]),
        decl("on-both", &["bad", "good"]),
        decl("behind", &["on-both"]),
        DeviceDecl::new("child", "test").parent("bad"),
        decl("behind-panic", &["panics"]),
        decl("other", &["good"]),
    ];
    let up = rig.manager.bring_up(decls, &options().keep_going(true)).unwrap();
    assert_eq!(outcome(&up, "bad"), ProbeOutcome::Failed(ProbeError::failed("no medium")));
    let ProbeOutcome::Failed(error) = outcome(&up, "panics") else { panic!("{up:?}") };
    assert_eq!(error.to_string(), "the probe panicked: on purpose: panics");
    assert_eq!(outcome(&up, "behind-panic"), ProbeOutcome::Skipped { culprit: "panics".into() });
    for name in ["on-both", "behind", "child"] {
        assert_eq!(outcome(&up, name), ProbeOutcome::Skipped { culprit: "bad".into() });
    }
    let bound: Vec<&str> = up.bound().map(|d| d.name.as_str()).collect();
    assert_eq!(bound, ["good", "other"]);
    assert_eq!((up.stopped_by.as_deref(), up.cancelled), (None, false));
    let timeline = up.timeline();
    let span = timeline.span(timeline.find("behind").unwrap());
    assert!(span.outcome.message().unwrap().contains("\"bad\""));
    let down = rig.manager.shutdown(&ShutdownOptions::new()).unwrap();
    assert_eq!(down.order().collect::<Vec<_>>(), ["other", "good"]);
}

#[test]
fn a_failure_without_keep_going_stops_and_leaves_the_rest_to_be_shut_down() {
    let rig = Rig::new(TWO_NODES).with(|d| {
        d.probe_type(ProbeType::ForceSynchronous).probe(|cx| match cx.name() {
            "second" => Err(ProbeError::failed("no medium")),
            _ => Ok(()),
        })
    });
    let decls = vec![decl("first", &[]), decl("second", &[]), decl("third", &[])];
    let up = rig.manager.bring_up(decls, &options()).unwrap();
    assert_eq!(outcome(&up, "first"), ProbeOutcome::Bound);
    assert_eq!(outcome(&up, "third"), ProbeOutcome::Cancelled);
    assert_eq!(up.stopped_by.as_deref(), Some("second"));
    assert!(!up.cancelled);
    let down = rig.manager.shutdown(&ShutdownOptions::new()).unwrap();
    assert_eq!(down.order().collect::<Vec<_>>(), ["first"]);
}

#[test]
fn synchronous_probes_run_in_order_inline_without_a_node_and_on_a_worker_near_theirs() {
    let rig = Rig::new(TWO_NODES).with(|d| d.probe_type(ProbeType::ForceSynchronous));
    let decls = vec![
        decl("here", &[]),
        decl("near", &[]).node(Some(1)),
        decl("off", &[]).node(Some(9)),
        decl("near-too", &[]).node(Some(1)),
    ];
    let up = rig.manager.bring_up(decls, &options()).unwrap();
    assert!(up.is_complete());
    let begins = rig.log.entries().into_iter().filter(|e| e.what == "probe begins");
    let begins: Vec<_> = begins.map(|e| (e.device, e.thread)).collect();
    let names: Vec<&str> = begins.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["here", "near", "off", "near-too"]);
    let me = std::thread::current().id();
    let inline: Vec<bool> = begins.iter().map(|(_, thread)| *thread == me).collect();
    assert_eq!(inline, [true, false, true, false]);
    let timeline = up.timeline();
    let cpu = |name| timeline.span(timeline.find(name).unwrap()).cpu;
    assert_eq!((cpu("near"), cpu("near-too")), (Some(4), Some(5)));
}

#[test]
fn the_default_probe_type_runs_on_a_worker_unless_the_bring_up_is_synchronous() {
    let rig = Rig::new(TWO_NODES).with(|d| d.probe_type(ProbeType::Default));
    let asked = [("a", options()), ("b", options().asynchronous(false))];
    let me = std::thread::current().id();
    let in_the_caller = asked.map(|(name, options)| {
        let _ = rig.manager.bring_up(vec![decl(name, &[])], &options).unwrap();
        rig.log.entries()[rig.log.place("probe begins", name).unwrap()].thread == me
    });
    assert_eq!(in_the_caller, [false, true]);
}

#[test]
fn cancelling_stops_new_probes_and_what_is_up_can_be_shut_down() {
    let cancel = Cancel::new();
    let switch = cancel.clone();
    let rig = Rig::new(TWO_NODES).with(|d| {
        d.probe(move |cx| {
            if cx.name() == "b" {
                switch.cancel();
                assert!(cx.is_cancelled());
            }
            Ok(())
        })
    });
    let decls = vec![decl("a", &[]), decl("b", &["a"]), decl("c", &["b"]), decl("d", &["c"])];
    let up = rig.manager.bring_up(decls, &options().cancel(cancel)).unwrap();
    assert!(up.cancelled);
    let bound: Vec<&str> = up.bound().map(|d| d.name.as_str()).collect();
    assert_eq!(bound, ["a", "b"]);
    assert!(up.not_bound().all(|d| d.outcome == ProbeOutcome::Cancelled));
    let down = rig.manager.shutdown(&ShutdownOptions::new()).unwrap();
    assert_eq!(down.order().collect::<Vec<_>>(), ["b", "a"]);
}

#[test]
fn faulty_declarations_are_refused_before_anything_is_probed() {
    let rig = Rig::new(TWO_NODES).with(|d| d);
    let decls = vec![
        decl("fine", &[]),
        decl("fine", &[]),
        decl("a", &["missing"]),
        DeviceDecl::new("x", "nosuch"),
        decl("c1", &["c2"]),
        decl("c2", &["c1"]),
    ];
    let Err(Error::Rejected(faults)) = rig.manager.bring_up(decls, &options()) else {
        panic!("it was accepted")
    };
    let devices: Vec<usize> = faults.iter().map(GraphError::device).collect();
    assert_eq!(devices, [1, 2, 3, 4]);
    assert!(rig.log.entries().is_empty());
    // None of them was added: the names are free.
    assert!(rig.manager.bring_up(vec![decl("fine", &[])], &options()).unwrap().is_complete());
}

#[test]
fn with_keep_going_faulty_declarations_are_reported_and_the_rest_comes_up() {
    let rig = Rig::new(TWO_NODES).with(|d| d);
    let decls = vec![
        decl("fine", &[]),
        decl("fine", &[]),
        decl("a", &["missing"]),
        decl("on-a", &["a", "fine"]),
        DeviceDecl::new("x", "nosuch"),
        decl("c1", &["c2"]),
        decl("c2", &["c1"]),
        decl("on-c", &["c2"]),
        decl("good", &["fine"]),
    ];
    let up = rig.manager.bring_up(decls, &options().keep_going(true)).unwrap();
    let short = |o: &ProbeOutcome| match o {
        ProbeOutcome::Bound => "bound".to_string(),
        ProbeOutcome::Rejected(fault) => format!("rejected {:?}", fault.devices()),
        ProbeOutcome::Skipped { culprit } => format!("needs {culprit}"),
        other => format!("{other:?}"),
    };
    let outcomes: Vec<String> = up.devices().iter().map(|d| short(&d.outcome)).collect();
    assert_eq!(
        outcomes,
        [
            "bound",
            "rejected [1]",
            "rejected [2]",
            "needs a",
            "rejected [4]",
            "rejected [5, 6]",
            "rejected [5, 6]",
            "needs c2",
            "bound",
        ]
    );
}

#[test]
fn a_later_bring_up_may_use_devices_of_an_earlier_one() {
    let rig = Rig::new(TWO_NODES).with(|d| {
        d.probe(|cx| match cx.name() {
            "dead" => Err(ProbeError::no_device("nothing there")),
            _ => cx.suppliers::<Unit>().map(drop),
        })
    });
    let keep = options().keep_going(true);
    let _ = rig.manager.bring_up(vec![decl("disk", &[]), decl("dead", &[])], &keep).unwrap();
    let more = vec![decl("volume", &["disk"]), decl("other", &["dead"]), decl("disk", &[])];
    let up = rig.manager.bring_up(more, &keep).unwrap();
    assert_eq!(outcome(&up, "volume"), ProbeOutcome::Bound);
    assert_eq!(outcome(&up, "other"), ProbeOutcome::Skipped { culprit: "dead".into() });
    assert!(matches!(
        &up.devices()[2].outcome,
        ProbeOutcome::Rejected(GraphError::DuplicateName { first: None, .. })
    ));
    let down = rig.manager.shutdown(&ShutdownOptions::new()).unwrap();
    assert_eq!(down.order().collect::<Vec<_>>(), ["volume", "disk"]);
}

#[test]
fn pools_that_are_gone_fail_every_device_and_nobody_waits() {
    let rig = Rig::new(TWO_NODES).with(|d| d);
    rig.pools.shutdown();
    let mut decls = vec![decl("a", &[]), decl("b", &["a"]), decl("c", &[]).node(Some(1))];
    decls.extend(["d", "e"].map(|beside_a| decl(beside_a, &[])));
    let up = rig.manager.bring_up(decls, &options().keep_going(true)).unwrap();
    let ProbeOutcome::Failed(error) = outcome(&up, "a") else { panic!("{up:?}") };
    assert!(error.to_string().contains("shut down"), "{error}");
    assert_eq!(outcome(&up, "b"), ProbeOutcome::Skipped { culprit: "a".into() });
    for other in ["c", "d", "e"] {
        assert!(matches!(outcome(&up, other), ProbeOutcome::Failed(_)), "{up:?}");
    }
    let late = rig.manager.add(decl("late", &[])).unwrap();
    assert!(matches!(&late, DeviceState::Failed(e) if e.to_string().contains("shut down")));
    rig.manager.wait_for_probes().unwrap();
}

#[test]
fn a_bring_up_inside_a_probe_is_refused_and_a_driver_name_is_taken_once() {
    let rig = Rig::new(TWO_NODES);
    let manager = rig.manager.clone();
    let refused = Arc::new(Mutex::new(None));
    let seen = refused.clone();
    let driver = TestDriver::new("test", &rig.log).probe(move |_| {
        *seen.lock().unwrap() = manager.bring_up(vec![decl("inner", &[])], &options()).err();
        Ok(())
    });
    rig.register(driver).unwrap();
    let again = rig.register(TestDriver::new("test", &rig.log)).unwrap_err();
    assert!(matches!(again, Error::DuplicateDriver(name) if name == "test"));
    assert!(rig.manager.bring_up(vec![decl("outer", &[])], &options()).unwrap().is_complete());
    assert!(matches!(*refused.lock().unwrap(), Some(Error::Busy)));
    // The driver keeps its manager until then.
    assert!(rig.manager.shutdown(&ShutdownOptions::new()).unwrap().is_clean());
}

/// Panics with a payload that panics again when it is dropped.
fn panic_twice() -> ! {
    struct Nasty;
    impl Drop for Nasty {
        fn drop(&mut self) {
            if !std::thread::panicking() {
                panic!("once more");
            }
        }
    }
    std::panic::panic_any(Nasty)
}

#[test]
fn a_probe_with_a_panicking_payload_is_settled_all_the_same() {
    for probe_type in [ProbeType::PreferAsynchronous, ProbeType::ForceSynchronous] {
        let rig = Rig::new("core:2 pu:1").with(|d| {
            let d = d.shutdown(|_| panic_twice()).probe_type(probe_type);
            d.probe(|cx| if cx.name() == "nasty" { panic_twice() } else { Ok(()) })
        });
        let observer: Observer = Arc::new(|_| panic_twice());
        let keep = BringUpOptions::new().keep_going(true).observer(observer.clone());
        let decls = ["nasty", "a", "b"].map(|n| decl(n, &[]).async_shutdown(true));
        let up = rig.manager.bring_up(decls.to_vec(), &keep).unwrap();
        let nasty = &up.device("nasty").unwrap().outcome;
        assert!(
            matches!(nasty, ProbeOutcome::Failed(e) if e.to_string().contains("panicked")),
            "{nasty:?}"
        );
        assert_eq!(up.bound().count(), 2);
        let down = rig.manager.shutdown(&ShutdownOptions::new().observer(observer)).unwrap();
        assert_eq!(down.failed.len(), 2);
        assert!(down.remaining.is_empty());
    }
}

#[test]
fn a_driver_whose_match_function_panics_or_refuses_is_not_called_unknown() {
    struct Refuses(bool);
    impl Driver for Refuses {
        fn name(&self) -> &str {
            "test"
        }
        fn matches(&self, _: &DeviceDecl) -> bool {
            assert!(self.0, "on purpose");
            false
        }
    }
    for refuses in [true, false] {
        let rig = Rig::new(TWO_NODES);
        rig.manager.register(Arc::new(Refuses(refuses))).unwrap();
        let refused = rig.manager.bring_up(vec![decl("a", &[])], &options()).unwrap_err();
        let text = refused.to_string();
        assert!(text.contains("match function") && !text.contains("unknown"), "{text}");
    }
}
