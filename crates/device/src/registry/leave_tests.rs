//! Steps walks that unbind and remove devices while others bind, link and walk.
#![allow(clippy::unwrap_used, reason = "a test says what it expects by unwrapping it")]

use super::*;
use crate::registry::links::LinkOutcome;
use crate::registry::matching::Candidate;
use crate::registry::stepped::{Stepped, decl, driver};

/// Returns synchronous devices that are up.
fn up(decls: &[(&str, &[&str])]) -> Stepped {
    let mut s = Stepped::new();
    decls.iter().for_each(|(name, needs)| add(&mut s, decl(name, needs)));
    s
}

/// Adds a synchronous device, and brings it up.
fn add(s: &mut Stepped, decl: DeviceDecl) {
    let name = decl.name.clone();
    s.add(decl, vec![Candidate { driver: driver("d"), asynchronous: false, asked: false }]);
    s.probe(&name);
}

/// Brings a device up again that is not up, and those that wait for it.
fn bind(s: &mut Stepped, name: &str) {
    let key = s.key(name);
    s.step(|devices, now, fx| devices.rebind(key, now, fx));
    s.probe(name);
    while let Some(next) = s.late() {
        s.probe(&next);
    }
}

/// Returns the next callback of a walk.
fn called(s: &mut Stepped, walk: &mut LeaveWalk) -> (DeviceKey, String) {
    match s.leave_step(walk) {
        LeaveStep::Unbind { key, decl, .. } => (key, decl.name.clone()),
        LeaveStep::Wait => panic!("it waits"),
        LeaveStep::Done => panic!("it is done"),
    }
}

#[test]
fn a_device_that_is_bound_again_while_it_is_unbound_stays_up_with_its_consumers() {
    let mut s = up(&[("base", &[]), ("user", &["base"])]);
    let mut walk = s.leave("base", false);
    let (user, name) = called(&mut s, &mut walk);
    assert_eq!(name, "user");
    s.unbound(user);
    let (base, name) = called(&mut s, &mut walk);
    assert_eq!(name, "base");
    s.unbound(base);
    bind(&mut s, "base");
    assert!(s.walk_on(&mut walk).is_empty(), "what it was to unbind has gone");
    assert_eq!([s.state("base"), s.state("user")], ["bound", "bound"]);
}

#[test]
fn a_removed_device_is_not_bound_again_meanwhile() {
    let mut s = up(&[("base", &[]), ("user", &["base"])]);
    let mut walk = s.leave("base", true);
    let (user, _) = called(&mut s, &mut walk);
    s.unbound(user);
    let (base, _) = called(&mut s, &mut walk);
    s.unbound(base);
    let key = s.key("base");
    s.step(|devices, now, fx| devices.rebind(key, now, fx));
    assert!(s.mine.is_empty() && s.queue.is_empty(), "nobody probes it");
    assert!(s.walk_on(&mut walk).is_empty());
    assert_eq!((s.devices.find("base"), s.state("user")), (None, "waiting"));
}

#[test]
fn a_device_that_another_walk_marked_goes_before_its_suppliers() {
    let mut s = up(&[("r", &[]), ("s", &["r"]), ("c", &["r"])]);
    let mut one = s.leave("r", false);
    let (c, name) = called(&mut s, &mut one);
    assert_eq!(name, "c");
    s.unbound(c);
    assert!(s.walk("c", true).is_empty());
    add(&mut s, decl("n", &["s"]));
    add(&mut s, decl("m", &["n"]));
    assert_eq!(s.key("n").index, c.index, "a number is used again");
    let mut two = s.leave("n", false);
    let (m, name) = called(&mut s, &mut two);
    assert_eq!(name, "m");
    assert!(matches!(s.leave_step(&mut one), LeaveStep::Wait), "for the callback of m");
    assert!(s.devices.leave_must_wait(&one));
    s.unbound(m);
    assert!(!s.devices.leave_must_wait(&one));
    // The second walk is gone: the first one takes the devices that it had marked.
    assert_eq!(s.walk_on(&mut one), ["n", "s", "r"]);
    assert!(s.walk_on(&mut two).is_empty());
    assert_eq!(s.state("n"), "unbound", "the second walk wanted it so");
}

#[test]
fn a_device_that_is_unbound_on_purpose_stays_down_whichever_walk_unbinds_it() {
    let mut s = up(&[("base", &[]), ("user", &["base"])]);
    let (mut one, mut two) = (s.leave("user", false), s.leave("base", false));
    let (user, _) = called(&mut s, &mut two);
    assert!(matches!(s.leave_step(&mut one), LeaveStep::Wait), "for the callback");
    s.unbound(user);
    assert_eq!(s.walk_on(&mut two), ["base"]);
    bind(&mut s, "base");
    assert!(s.walk_on(&mut one).is_empty());
    assert_eq!(s.state("user"), "unbound");
}

#[test]
fn links_that_turn_round_under_a_walk_turn_its_order_round() {
    let mut s = up(&[("a", &[]), ("b", &["a"]), ("c", &["b"])]);
    let mut walk = s.leave("a", false);
    // The walk has come as far as c, through b.
    let (c, name) = called(&mut s, &mut walk);
    assert_eq!(name, "c");
    // Meanwhile b is taken down by another walk that was past it, and both come up the other way
    // round.
    let (from, b) = (s.key("c"), s.key("b"));
    s.step(|devices, now, fx| devices.unlink(from, "b", now, fx));
    s.step(|devices, now, fx| devices.unlink(b, "a", now, fx));
    s.unbound(c);
    let mut other = s.leave("b", false);
    assert_eq!(s.walk_on(&mut other), ["b"]);
    assert!(matches!(s.devices.link(b, from), LinkOutcome::Done));
    assert!(matches!(s.devices.link(from, s.key("a")), LinkOutcome::Done));
    assert_eq!(s.walk_on(&mut walk), ["a"], "nobody needs it any more who is up");
    bind(&mut s, "a");
    bind(&mut s, "b");
    assert_eq!(s.walk("a", false), ["b", "c", "a"]);
}

#[test]
fn two_walks_round_a_circle_share_it_and_none_waits_for_the_other() {
    let mut s = up(&[("a", &[]), ("b", &["a"])]);
    let (a, b) = (s.key("a"), s.key("b"));
    assert!(matches!(s.devices.link(a, b), LinkOutcome::Done));
    let (mut one, mut two) = (s.leave("a", false), s.leave("b", false));
    let (first, _) = called(&mut s, &mut one);
    assert!(matches!(s.leave_step(&mut two), LeaveStep::Wait), "for that callback alone");
    s.unbound(first);
    assert_eq!(s.walk_on(&mut two).len(), 1);
    assert!(s.walk_on(&mut one).is_empty());
    assert_eq!([s.state("a"), s.state("b")], ["unbound", "unbound"]);
}

#[test]
fn two_failed_probes_that_need_each_others_children_do_not_wait_for_each_other() {
    let mut s = Stepped::new();
    let sync = || vec![Candidate { driver: driver("d"), asynchronous: false, asked: false }];
    for (parent, child) in [("p", "pc"), ("q", "qc")] {
        s.add(decl(parent, &[]), sync());
        s.begin(parent);
        s.add(DeviceDecl::new(child, "d").parent(parent), sync());
        s.probe(child);
    }
    for (consumer, supplier) in [("p", "qc"), ("q", "pc"), ("p", "pc")] {
        let (from, to) = (s.key(consumer), s.key(supplier));
        assert!(matches!(s.devices.link(from, to), LinkOutcome::Done));
    }
    let failed = |s: &mut Stepped, name: &str| {
        let key = s.key(name);
        let children = s.step(|devices, _, fx| devices.failing(key, fx));
        LeaveWalk::new(children[0], true)
    };
    let (mut of_p, mut of_q) = (failed(&mut s, "p"), failed(&mut s, "q"));
    assert_eq!(s.walk_on(&mut of_p), ["pc"]);
    assert!(matches!(s.leave_step(&mut of_q), LeaveStep::Wait), "for the end of p");
    s.end("p", false);
    assert_eq!(s.walk_on(&mut of_q), ["qc"]);
    s.end("q", false);
    assert_eq!([s.state("p"), s.state("q")], ["failed", "failed"]);
}

#[test]
fn a_probe_that_has_failed_gets_no_supplier_that_leaves_and_no_circle() {
    let mut s = up(&[("base", &[])]);
    let sync = || vec![Candidate { driver: driver("d"), asynchronous: false, asked: false }];
    s.add(decl("p", &[]), sync());
    s.begin("p");
    s.add(DeviceDecl::new("pc", "d").parent("p"), sync());
    s.probe("pc");
    let (p, pc, base) = (s.key("p"), s.key("pc"), s.key("base"));
    s.step(|devices, _, fx| devices.failing(p, fx));
    assert!(matches!(s.devices.link(p, pc), LinkOutcome::Circle(_)));
    let mut walk = s.leave("base", false);
    let _ = called(&mut s, &mut walk);
    assert!(matches!(s.devices.link(p, base), LinkOutcome::SupplierNotUp));
}
