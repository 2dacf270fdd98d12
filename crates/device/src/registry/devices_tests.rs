//! Steps devices that come and go one by one.
#![allow(clippy::unwrap_used, reason = "a test says what it expects by unwrapping it")]

use super::*;
use crate::graph::GraphError;
use crate::registry::leave::LeaveStep;
use crate::registry::links::{LinkOutcome, UnlinkOutcome};
use crate::registry::stepped::{Stepped, TestDevice, decl, driver};

fn candidate(name: &'static str, asynchronous: bool) -> Candidate {
    Candidate { driver: driver(name), asynchronous, asked: false }
}

fn added(decls: &[(&str, &[&str])]) -> Stepped {
    let mut s = Stepped::new();
    for (name, needs) in decls {
        s.add(decl(name, needs), vec![candidate("d", false)]);
    }
    s
}

#[test]
fn rule_1_2_4_synchronous_drivers_are_scanned_by_the_caller_and_one_scan_asks_all_asynchronous_ones()
 {
    let mut s = Stepped::new();
    let candidates = [("s1", false), ("s2", false), ("a1", true), ("a2", true)];
    s.add(
        decl("x", &[]),
        candidates.map(|(name, asynchronous)| candidate(name, asynchronous)).into(),
    );
    assert_eq!(s.mine, ["x"], "the caller probes it");
    let no = || Err(ProbeError::no_device("not mine"));
    s.begin("x");
    assert_eq!(s.end_with("x", no()), NextStep::Again, "the caller asks s2 as well");
    s.begin("x");
    assert!(s.queue.is_empty());
    assert_eq!(s.end_with("x", no()), NextStep::Done);
    assert_eq!(s.queue, ["x"], "one scan is queued");
    s.begin("x");
    assert_eq!(s.end_with("x", no()), NextStep::Again, "the same scan asks a2");
    s.probe("x");
    assert!(s.queue.is_empty());
    let info = s.devices.info("x").unwrap();
    assert_eq!((info.driver.as_deref(), info.cost.attempts), (Some("a2"), 4));
}

#[test]
fn rule_1_2_5_what_is_run_in_place_by_whoever_queues_it_finds_no_lock_and_no_half_done_step() {
    // The queue runs each probe at once, after the step: a chain of them.
    let mut s = Stepped::new();
    let names: Vec<String> = (0..100).map(|i| format!("d{i}")).collect();
    for (i, name) in names.iter().enumerate() {
        let needs: Vec<&str> = names[..i].iter().rev().take(2).map(String::as_str).collect();
        s.add(decl(name, &needs), vec![candidate("d", true)]);
        while let Some(queued) = s.queue.pop() {
            s.probe(&queued);
        }
    }
    assert!(names.iter().all(|name| s.state(name) == "bound"));
}

#[test]
fn rule_1_2_2_and_3_a_driver_that_comes_is_offered_unbound_devices_alone() {
    let mut s = Stepped::new();
    s.add(decl("x", &[]), Vec::new());
    s.add(decl("y", &["x"]), Vec::new());
    assert_eq!((s.state("x"), s.state("y")), ("no_driver", "no_driver"));
    let sync = candidate("late", false);
    for name in ["x", "y"] {
        let (key, sync) = (s.key(name), sync.clone());
        s.step(|devices, now, fx| devices.offer(key, sync, now, fx));
    }
    assert_eq!(s.mine, ["x"], "a synchronous one is probed by whoever registers it");
    s.begin("x");
    s.end_with("x", Err(ProbeError::failed("no")));
    let (key, other) = (s.key("x"), candidate("other", true));
    s.step(|devices, now, fx| devices.offer(key, other, now, fx));
    assert_eq!(s.queue, ["x"], "an asynchronous one is queued");
    s.probe("x");
    assert_eq!(s.devices.info("x").unwrap().driver.as_deref(), Some("other"));
    assert_eq!(s.devices.info("x").unwrap().cost.attempts, 2, "the first one was not asked again");
    assert_eq!(s.late().as_deref(), Some("y"), "it waited for x");
}

/// Returns the drivers asked for `x` from the probe in progress on, if nobody takes it.
fn asked_until_given_up(s: &mut Stepped) -> Vec<String> {
    let mut asked = Vec::new();
    while s.state("x") != "failed" {
        asked.push(s.devices.info("x").unwrap().driver.unwrap());
        assert!(asked.len() < 9, "it comes to no end");
        s.end("x", false);
        if s.state("x") == "queued" {
            s.begin("x");
        }
    }
    asked
}

#[test]
fn a_driver_that_comes_during_a_probe_is_asked_once_and_nobody_else_again() {
    for asynchronous in [false, true] {
        for old in [false, true] {
            let mut s = Stepped::new();
            s.add(decl("x", &[]), vec![candidate("first", old)]);
            s.begin("x");
            for name in ["new", "newer"] {
                let (key, new) = (s.key("x"), candidate(name, asynchronous));
                s.step(|devices, now, fx| devices.offer(key, new, now, fx));
            }
            let asked = asked_until_given_up(&mut s);
            assert_eq!(asked, ["first", "new", "newer"], "{asynchronous} {old}");
        }
    }
}

#[test]
fn a_device_offered_alone_starts_no_round_for_others() {
    let mut s = Stepped::new();
    s.add(decl("x", &[]), vec![candidate("a", true), candidate("b", true)]);
    s.begin("x");
    asked_until_given_up(&mut s);
    let (key, alone) = (s.key("x"), candidate("alone", false));
    s.step(|devices, now, fx| devices.offer(key, alone, now, fx));
    s.begin("x");
    let (key, new) = (s.key("x"), candidate("new", true));
    s.step(|devices, now, fx| devices.offer(key, new, now, fx));
    assert_eq!(asked_until_given_up(&mut s), ["alone", "new"]);
}

#[test]
fn a_late_device_waits_for_a_name_and_is_probed_when_that_is_up() {
    let mut s = added(&[("volume", &["disk"])]);
    assert_eq!(s.state("volume"), "waiting");
    let pending: Vec<String> =
        s.devices.pending(Duration::ZERO).iter().map(|p| p.to_string()).collect();
    assert_eq!(pending, ["volume: waits for its supplier \"disk\", which does not exist"]);
    s.add(decl("disk", &[]), vec![candidate("d", false)]);
    assert_eq!(s.mine, ["disk"]);
    s.probe("disk");
    assert_eq!(s.late().as_deref(), Some("volume"));
    assert_eq!(s.begin("volume"), Some(vec!["disk".to_string()]));
}

#[test]
fn a_device_that_would_wait_for_itself_by_name_is_refused() {
    let mut s = added(&[("a", &["b"]), ("b", &["c"])]);
    let closing = Arc::new(decl("c", &["x", "a"]));
    let faults = s.devices.refuse(&closing);
    assert_eq!(faults.len(), 1);
    let text = faults[0].to_string();
    assert!(text.contains("\"c\" -> \"a\" -> \"b\" -> \"c\""), "{text}");
    assert!(s.devices.refuse(&Arc::new(decl("c", &["x"]))).is_empty());
    // A bring-up does the same.
    let (_, faults) = s.devices.admit(&[closing], &|_, _| None);
    assert!(matches!(faults[0], GraphError::Cycle { .. }), "{faults:?}");
    s.add(decl("c", &[]), vec![candidate("d", false)]);
}

#[test]
fn unbinding_goes_from_the_outermost_consumer_inwards_and_they_wait_to_be_probed_again() {
    let mut s = added(&[("disk", &[]), ("other", &[])]);
    s.probe("disk");
    s.probe("other");
    for (name, needs) in
        [("a", vec!["disk"]), ("b", vec!["disk", "other"]), ("end", vec!["a", "b"])]
    {
        s.add(decl(name, &needs), vec![candidate("d", false)]);
        s.probe(name);
    }
    assert_eq!(s.walk("disk", false), ["end", "b", "a", "disk"]);
    assert_eq!(
        (s.state("disk"), s.state("end"), s.state("other")),
        ("unbound", "waiting", "bound")
    );
    let key = s.key("disk");
    s.step(|devices, now, fx| devices.rebind(key, now, fx));
    s.probe("disk");
    for name in ["a", "b", "end"] {
        assert_eq!(s.late().as_deref(), Some(name));
        s.probe(name);
    }
    assert_eq!(s.late(), None);
}

#[test]
fn removing_takes_the_children_along_and_consumers_wait_for_the_name() {
    let mut s = added(&[("bus", &[])]);
    s.probe("bus");
    for name in ["port0", "port1"] {
        s.add(DeviceDecl::new(name, "d").parent("bus"), vec![candidate("d", false)]);
        s.probe(name);
    }
    s.add(decl("user", &["port1"]), vec![candidate("d", false)]);
    s.probe("user");
    assert_eq!(s.walk("bus", true), ["user", "port1", "port0", "bus"]);
    assert_eq!(s.devices.len(), 1);
    assert_eq!(s.state("user"), "waiting");
    assert!(
        s.devices.pending(Duration::ZERO)[0]
            .to_string()
            .contains("\"port1\", which does not exist")
    );
    // The slots are used again, and keys are not mixed up.
    s.add(decl("port1", &[]), vec![candidate("d", false)]);
    s.probe("port1");
    assert_eq!(s.late().as_deref(), Some("user"));
    s.probe("user");
    let graph = s.devices.graph();
    let names: Vec<&str> = graph.order().iter().map(|&id| graph.name(id)).collect();
    assert_eq!(names, ["port1", "user"], "the base order; user was registered first");
}

#[test]
fn a_shutdown_takes_what_is_bound_in_the_order_of_the_graph_and_looks_at_no_slot() {
    let mut s = added(&[("bus", &[]), ("old", &[])]);
    s.probe("bus");
    s.probe("old");
    s.walk("old", true);
    s.walk("bus", false);
    s.add(decl("new", &[]), vec![candidate("d", false)]);
    s.add(decl("newer", &["bus"]), vec![candidate("d", false)]);
    s.walk("new", true);
    s.add(decl("newest", &[]), vec![candidate("d", false)]);
    s.probe("newest");
    let graph = s.devices.graph();
    let names: Vec<&str> = graph.ids().map(|id| graph.name(id)).collect();
    assert_eq!(names, ["bus", "newer", "newest"], "newest is in the slot of new");
    let up = |bound: Vec<Option<Arc<dyn Bound>>>| bound.iter().map(Option::is_some).collect();
    let expected = vec![false, false, true];
    assert_eq!(up(s.devices.bound_objects()), expected);
    // A sort of the slots would give another order now.
    let last = s.devices.slots.len() as u64;
    (last..).zip(s.devices.slots.iter_mut().rev()).for_each(|(n, slot)| slot.registration = n);
    let taken: Vec<bool> = up(s.devices.take_bound());
    assert_eq!(taken, expected);
}

#[test]
fn a_walk_waits_for_a_probe_in_progress_and_what_that_brings_up_is_used_by_nobody() {
    let mut s = added(&[("disk", &[])]);
    s.begin("disk");
    s.add(decl("user", &["disk"]), vec![candidate("d", false)]);
    let mut walk = s.leave("disk", true);
    assert!(matches!(s.leave_step(&mut walk), LeaveStep::Wait));
    s.end("disk", true);
    assert!(s.late().is_none(), "its consumer isn't begun");
    let LeaveStep::Unbind { key, .. } = s.leave_step(&mut walk) else { panic!("it is up") };
    s.unbound(key);
    assert!(matches!(s.leave_step(&mut walk), LeaveStep::Done));
    assert_eq!(s.devices.find("disk"), None);
    assert_eq!(s.state("user"), "waiting");
}

#[test]
fn two_walks_over_the_same_devices_share_the_work_and_neither_waits_for_the_other_to_go_on() {
    let mut s = added(&[("a", &[]), ("b", &[])]);
    s.probe("a");
    s.probe("b");
    s.add(decl("c", &["a", "b"]), vec![candidate("d", false)]);
    s.probe("c");
    let (mut one, mut two) = (s.leave("a", true), s.leave("b", true));
    let LeaveStep::Unbind { key, decl, .. } = s.leave_step(&mut one) else { panic!("c is up") };
    assert_eq!(decl.name, "c");
    assert!(matches!(s.leave_step(&mut two), LeaveStep::Wait), "for the callback of c");
    s.unbound(key);
    // The first walk is gone; the second one goes on.
    let LeaveStep::Unbind { key, decl, .. } = s.leave_step(&mut two) else { panic!("b is up") };
    assert_eq!(decl.name, "b");
    s.unbound(key);
    assert!(matches!(s.leave_step(&mut two), LeaveStep::Done));
}

#[test]
fn rule_1_2_12_a_synchronous_child_is_probed_inside_its_parents_probe_and_goes_with_it() {
    let mut s = added(&[("pf", &[])]);
    s.begin("pf");
    s.add(DeviceDecl::new("vf", "d").parent("pf"), vec![candidate("d", false)]);
    assert_eq!(s.mine, ["vf"], "in place, though its parent is not bound");
    assert_eq!(s.begin("vf"), Some(Vec::new()), "its parent has no object yet");
    s.end("vf", true);
    s.add(DeviceDecl::new("async-vf", "d").parent("pf"), vec![candidate("d", true)]);
    assert_eq!(
        s.state("async-vf"),
        "waiting",
        "it would have to wait for nothing, so it waits here"
    );
    s.end("pf", true);
    assert_eq!(s.queue, ["async-vf"]);
    s.probe("async-vf");
    assert_eq!(s.walk("pf", false), ["async-vf", "vf", "pf"]);
    assert_eq!(s.devices.len(), 1, "the children are registered anew by the next probe");
}

#[test]
fn a_late_link_between_devices_that_are_up_may_close_a_circle_which_holds_up_nobody() {
    let mut s = added(&[("a", &[])]);
    s.probe("a");
    s.add(decl("b", &["a"]), vec![candidate("d", false)]);
    s.probe("b");
    let (a, b) = (s.key("a"), s.key("b"));
    assert!(matches!(s.devices.link(a, b), LinkOutcome::Done));
    let graph = s.devices.graph();
    assert_eq!(graph.cycles().len(), 1);
    assert_eq!(s.walk("a", false), ["b", "a"]);
    s.step(|devices, now, fx| devices.rebind(a, now, fx));
    s.probe("a");
    assert_eq!(s.late().as_deref(), Some("b"));
    s.probe("b");
}

#[test]
fn a_link_that_would_make_a_device_wait_for_itself_or_use_what_is_not_up_is_refused() {
    let mut s = added(&[("a", &[]), ("b", &["a"])]);
    let (a, b) = (s.key("a"), s.key("b"));
    let LinkOutcome::Circle(fault) = s.devices.link(a, b) else { panic!("linked") };
    assert!(fault.to_string().contains("circle"), "{fault}");
    s.probe("a");
    assert!(matches!(s.devices.link(a, b), LinkOutcome::SupplierNotUp));
}

#[test]
fn an_optional_supplier_is_waited_for_until_the_timeout_and_then_done_without() {
    let mut s = Stepped::new();
    s.add(DeviceDecl::new("x", "d").optional_supplier("gone"), vec![candidate("d", false)]);
    assert_eq!(s.state("x"), "waiting");
    s.step(|devices, now, fx| devices.expire(now, fx));
    assert_eq!(s.late().as_deref(), Some("x"));
    assert_eq!(s.begin("x"), Some(Vec::new()));
    s.end("x", true);
    // From then on nobody waits for an optional supplier, and one that comes is no reason for
    // anything.
    s.add(DeviceDecl::new("y", "d").optional_supplier("gone"), vec![candidate("d", false)]);
    s.probe("y");
    s.add(decl("gone", &[]), vec![candidate("d", false)]);
    s.probe("gone");
    assert_eq!(s.walk("gone", true), ["y", "x", "gone"], "who came up without it may use it now");
}

#[test]
fn a_key_of_a_device_that_has_gone_names_nobody() {
    let mut s = added(&[("a", &[])]);
    let old = s.key("a");
    s.walk("a", true);
    s.add(decl("b", &[]), vec![candidate("d", false)]);
    assert_eq!(s.key("b").index, old.index);
    assert!(s.devices.state(old).is_none());
    let result = Ok(Arc::new(TestDevice) as Arc<dyn Bound>);
    let next = s.step(|devices, now, fx| devices.end(old, result, now, now, true, fx));
    assert_eq!((next, s.state("b")), (NextStep::Done, "queued"));
}

#[test]
fn leftovers_of_an_earlier_bring_up_end_no_later_probe() {
    for begun in [false, true] {
        let mut s = Stepped::new();
        let lost = |s: &mut Stepped, due| {
            let why = ProbeError::failed("gone");
            s.step(|devices, now, fx| devices.lost(due, why, now, fx));
        };
        s.add(decl("x", &[]), vec![candidate("d", true)]);
        let earlier = s.devices.due(s.key("x").index);
        s.walk("x", false);
        let key = s.key("x");
        s.step(|devices, now, fx| devices.rebind(key, now, fx));
        let later = s.devices.due(key.index);
        if begun {
            s.begin("x");
            lost(&mut s, later);
        }
        lost(&mut s, earlier);
        assert_eq!(s.state("x"), if begun { "probing" } else { "queued" });
        lost(&mut s, later);
        assert_eq!(s.state("x"), if begun { "probing" } else { "failed" });
    }
}

#[test]
fn a_link_that_is_taken_away_holds_up_nobody_any_more() {
    let mut s = added(&[("a", &[]), ("b", &["a", "gone"])]);
    let unlink = |s: &mut Stepped, from: &str, to: &str| {
        let key = s.key(from);
        s.step(|devices, now, fx| devices.unlink(key, to, now, fx))
    };
    assert_eq!(unlink(&mut s, "b", "gone"), UnlinkOutcome::Done, "it need not exist");
    assert_eq!((s.state("b"), unlink(&mut s, "b", "gone")), ("waiting", UnlinkOutcome::None));
    assert_eq!(unlink(&mut s, "b", "a"), UnlinkOutcome::Done);
    assert_eq!(s.late().as_deref(), Some("b"), "nothing is left that it waits for");
    s.probe("b");
    s.probe("a");
    assert_eq!(s.walk("a", true), ["a"], "b stays");
    assert_eq!(s.state("b"), "bound");
    s.add(DeviceDecl::new("child", "d").parent("b"), vec![candidate("d", false)]);
    assert_eq!(unlink(&mut s, "child", "b"), UnlinkOutcome::Parent);
}

/// Adds devices to a chain that would take minutes if it were checked to its beginning for each.
#[test]
fn devices_that_are_awaited_at_the_end_of_a_long_chain_are_added_and_a_circle_is_found_there() {
    let mut s = Stepped::new();
    let n = 5_000;
    for i in 1..n {
        s.add(decl(&format!("w{i}"), &[&format!("d{i}")]), Vec::new());
    }
    for i in 1..n {
        let next = Arc::new(decl(&format!("d{i}"), &[&format!("d{}", i - 1)]));
        assert!(s.devices.refuse(&next).is_empty());
        s.add((*next).clone(), Vec::new());
    }
    let last = Arc::new(decl("d0", &[&format!("w{}", n - 1)]));
    let faults = s.devices.refuse(&last);
    let [GraphError::Cycle { path }] = &faults[..] else { panic!("{faults:?}") };
    assert_eq!(path.len(), n + 1);
}

#[test]
fn when_nothing_is_probed_any_more_nobody_waits_for_the_deferral_timeout() {
    let mut s = added(&[("a", &[])]);
    s.begin("a");
    s.defer("a");
    assert!(s.devices.hopes());
    s.devices.close();
    assert!(!s.devices.hopes(), "its timer would be set again and again");
}
