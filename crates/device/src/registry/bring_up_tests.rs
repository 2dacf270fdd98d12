//! Steps bring-ups by hand: no threads, no clock, every interleaving chosen here.
#![allow(clippy::unwrap_used, reason = "a test says what it expects by unwrapping it")]

use super::*;
use crate::registry::stepped::{Stepped, decl, driver};

fn diamond() -> Vec<DeviceDecl> {
    vec![decl("top", &[]), decl("a", &["top"]), decl("b", &["top"]), decl("end", &["a", "b"])]
}

#[test]
fn stepped_a_device_is_queued_the_moment_all_it_needs_is_bound() {
    let mut s = Stepped::bring_up(diamond(), &[], false);
    assert_eq!(s.queue, ["top"]);
    s.probe("top");
    assert_eq!(s.queue, ["a", "b"]);
    assert_eq!(s.begin("b"), Some(vec!["top".to_string()]));
    s.probe("a");
    assert!(s.queue.is_empty(), "b still runs");
    s.end("b", true);
    assert_eq!(s.queue, ["end"]);
    assert_eq!(s.begin("end"), Some(vec!["a".to_string(), "b".to_string()]));
    assert_eq!(s.caller(), "Wait");
    s.end("end", true);
    assert_eq!(s.caller(), "Done");
    let finished = s.finish();
    let id = |name| finished.graph.find(name).unwrap();
    let end = finished.records.iter().find(|r| r.device == id("end")).unwrap();
    assert_eq!(end.released_by, Some(id("b")));
}

#[test]
fn stepped_a_failure_stops_new_probes_and_those_running_finish() {
    let decls =
        vec![decl("bad", &[]), decl("runs", &[]), decl("queued", &[]), decl("c", &["runs"])];
    let mut s = Stepped::bring_up(decls, &[], false);
    s.begin("bad");
    s.begin("runs");
    s.end("bad", false);
    assert_eq!(s.caller(), "Wait", "one still runs");
    assert_eq!(s.outcome("queued"), "cancelled", "the caller does not wait for its worker");
    s.end("runs", true);
    assert_eq!((s.outcome("runs"), s.outcome("c")), ("ok", "cancelled"));
    assert_eq!(s.caller(), "Done");
    assert_eq!(s.begin("queued"), None, "its worker comes late and has nothing to do");
    assert_eq!(s.finish().stopped_by, Some(0), "bad");
}

#[test]
fn stepped_synchronous_probes_keep_their_order_whichever_is_ready_first() {
    let decls = vec![decl("slow", &[]), decl("s1", &["slow"]), decl("s2", &[]), decl("s3", &[])];
    let mut s = Stepped::bring_up(decls, &["s1", "s2", "s3"], false);
    assert_eq!(s.caller(), "Wait", "s2 is ready, but s1 is before it");
    s.probe("slow");
    for name in ["s1", "s2", "s3"] {
        assert_eq!(s.caller(), name);
        s.probe(name);
    }
    assert_eq!(s.caller(), "Done");
}

#[test]
fn stepped_synchronous_probes_registered_before_their_supplier_do_not_block_themselves() {
    let decls = vec![decl("s1", &["s2"]), decl("s2", &["a"]), decl("a", &[])];
    let mut s = Stepped::bring_up(decls, &["s1", "s2"], false);
    assert_eq!(s.caller(), "Wait");
    s.probe("a");
    assert_eq!(s.caller(), "s2");
    s.probe("s2");
    assert_eq!(s.caller(), "s1");
    s.probe("s1");
    assert_eq!(s.caller(), "Done");
}

#[test]
fn stepped_the_first_declared_culprit_is_named_whoever_fails_first() {
    for order in [["a", "b"], ["b", "a"]] {
        let decls = vec![decl("a", &[]), decl("b", &[]), decl("c", &["a", "b"]), decl("d", &["c"])];
        let mut s = Stepped::bring_up(decls, &[], true);
        for name in order {
            s.begin(name);
            s.end(name, false);
        }
        assert_eq!(s.caller(), "Done");
        let skipped = ProbeOutcome::Skipped { culprit: "a".into() };
        for (outcome, ..) in &s.finish().devices[2..] {
            assert_eq!(*outcome, skipped);
        }
    }
}

#[test]
fn stepped_a_device_linked_during_its_bring_up_waits_for_its_supplier() {
    for linked in [true, false] {
        let decls = vec![decl("a", &[]), decl("b", &[]), decl("c", &["a"])];
        let mut s = Stepped::bring_up(decls, &[], true);
        let (b, c) = (s.key("b"), s.key("c"));
        s.devices.link(c, b);
        s.probe("a");
        assert_eq!((s.outcome("c"), s.state("c")), ("open", "waiting"));
        if !linked {
            s.step(|devices, now, fx| devices.unlink(c, "b", now, fx));
            s.probe("c");
        }
        s.probe("b");
        if linked {
            s.probe("c");
        }
        assert_eq!(s.caller(), "Done");
    }
}

#[test]
fn stepped_a_deferred_probe_is_tried_again_after_all_others_and_after_each_bind() {
    let decls = vec![decl("late", &[]), decl("other", &[]), decl("behind", &["late"])];
    let mut s = Stepped::bring_up(decls, &[], true);
    s.begin("late");
    s.defer("late");
    s.probe("other");
    assert!(s.late().is_none() && s.queue.is_empty(), "deferral has not begun");
    assert_eq!(s.caller(), "Wait");
    assert_eq!(s.late_worker_wanted, 1);
    assert!(s.late().is_none(), "it is asynchronous: the worker has only queued it");
    assert_eq!(s.queue, ["late"]);
    s.begin("late");
    s.defer("late");
    assert!(s.late().is_none());
    assert_eq!(s.caller(), "Done", "nothing was bound since");
    let devices = s.finish().devices;
    let deferred = ProbeOutcome::Deferred { reason: "on purpose".into() };
    assert_eq!(devices[0].0, deferred);
    assert_eq!(devices[2].0, ProbeOutcome::Skipped { culprit: "late".into() });
    let cost = devices[0].1.cost();
    assert_eq!((cost.attempts, cost.deferrals), (2, 2));
    assert!(cost.deferring == cost.total && !cost.total.is_zero());
}

#[test]
fn stepped_a_probe_under_way_when_deferral_begins_is_tried_again_for_earlier_binds() {
    let mut s = Stepped::bring_up(vec![decl("a", &[]), decl("b", &[])], &[], true);
    s.begin("a");
    s.probe("b");
    s.step(|devices, _, fx| devices.begin_deferral(fx));
    s.defer("a");
    assert!(s.late().is_none());
    assert_eq!(s.queue, ["a"], "b may be what it looked for in vain");
    s.begin("a");
    s.defer("a");
    assert!(s.late().is_none());
    assert!(s.queue.is_empty(), "nothing was bound since");
}

#[test]
fn stepped_a_synchronous_device_that_waits_for_a_deferred_one_holds_up_nobody_behind_it() {
    let decls = vec![decl("s1", &["d"]), decl("s2", &[]), decl("s3", &[]), decl("d", &[])];
    let mut s = Stepped::bring_up(decls, &["s1", "s2", "s3"], true);
    assert_eq!(s.caller(), "s2", "d comes before s1 in base order");
    s.probe("s2");
    assert_eq!(s.caller(), "s3");
    s.begin("d");
    s.defer("d");
    s.probe("s3");
    assert_eq!(s.caller(), "Wait");
    assert!(s.late().is_none());
    s.probe("d");
    assert_eq!(s.caller(), "s1");
    s.probe("s1");
    assert_eq!(s.caller(), "Done");
}

#[test]
fn stepped_synchronous_probes_that_end_elsewhere_are_begun_one_after_another_all_the_same() {
    let decls = vec![decl("s1", &[]), decl("s2", &[])];
    let mut s = Stepped::bring_up(decls, &["s1", "s2"], true);
    assert_eq!(s.caller(), "s1");
    s.begin("s1");
    assert_eq!(s.caller(), "Wait");
    s.end("s1", true);
    assert_eq!(s.caller(), "s2");
    s.probe("s2");
    assert_eq!(s.caller(), "Done");
}

fn hung(policy: HangPolicy) -> Stepped {
    let decls = vec![decl("hung", &[]), decl("behind", &["hung"]), decl("other", &[])];
    let mut s = Stepped::new();
    s.on_hang = policy;
    s.again(decls, &[], true);
    s.begin("hung");
    s.name_overdue("hung");
    assert_eq!(s.caller(), "Wait", "everything that doesn't need it goes on");
    s.probe("other");
    s
}

#[test]
fn stepped_a_probe_that_hangs_is_given_up_after_it_was_named() {
    let mut s = Stepped::new();
    s.on_hang = HangPolicy::Skip;
    s.again(vec![decl("hung", &[])], &[], true);
    s.begin("hung");
    s.find_overdue("hung");
    assert_eq!((s.caller(), s.outcome("hung")), ("Wait".into(), "open"));
    s.devices.told(1);
    assert_eq!((s.caller(), s.outcome("hung")), ("Done".into(), "failed"));
}

#[test]
fn stepped_a_probe_that_hangs_is_waited_for_and_the_caller_sleeps_meanwhile() {
    let mut s = hung(HangPolicy::WaitOn);
    assert_eq!(s.caller(), "Wait");
    assert!(!s.devices.caller_is_wanted(), "it would look again and again");
    s.probe_late("hung");
    s.probe("behind");
    assert_eq!(s.caller(), "Done");
    let finished = s.finish();
    assert_eq!((finished.overdue, finished.gave_up), (vec![0], false));
    assert_eq!(finished.devices[1].0, ProbeOutcome::Bound);
}

#[test]
fn stepped_a_probe_that_hangs_is_skipped_with_those_that_need_it_and_comes_up_late_with_them() {
    let mut s = hung(HangPolicy::Skip);
    assert_eq!(s.caller(), "Done");
    let finished = s.finish();
    assert!(matches!(&finished.devices[0].0, ProbeOutcome::Failed(e) if e.is_timeout()));
    assert_eq!(finished.devices[1].0, ProbeOutcome::Skipped { culprit: "hung".into() });
    assert!(!finished.gave_up);
    assert!(s.devices.is_quiet(), "nobody waits for it any more");
    s.probe_late("hung");
    s.probe("behind");
    assert!(s.devices.is_quiet());
    assert_eq!((s.state("hung"), s.state("behind")), ("bound", "bound"));
}

#[test]
fn stepped_after_giving_up_the_rest_is_cancelled_and_after_a_shutdown_nothing_comes_up_late() {
    let mut s = hung(HangPolicy::GiveUp);
    assert_eq!(s.caller(), "Done");
    let finished = s.finish();
    assert!(finished.gave_up);
    assert_eq!(finished.devices[1].0, ProbeOutcome::Cancelled);
    s.devices.close();
    s.probe_late("hung");
    assert!(s.devices.is_quiet());
    assert_eq!(s.state("hung"), "cancelled");
}

#[test]
fn stepped_a_skipped_synchronous_device_that_can_be_probed_after_all_has_somebody_to_probe_it() {
    let decls = vec![decl("a", &[]), decl("s", &["a"]), decl("slow", &[])];
    let mut s = Stepped::bring_up(decls, &["s"], true);
    s.begin("slow");
    s.begin("a");
    s.end("a", false);
    assert_eq!(s.outcome("s"), "skipped");
    assert_eq!(s.caller(), "Wait", "slow still runs");
    let a = s.key("a");
    s.step(|devices, now, fx| devices.rebind(a, now, fx));
    s.probe("a");
    assert_eq!(s.late().as_deref(), Some("s"), "the caller of the bring-up is done with it");
    s.end("slow", true);
    s.probe("s");
    assert_eq!(s.late(), None);
    assert_eq!(s.caller(), "Done");
    s.finish();
    assert_eq!(s.state("s"), "bound");
    assert!(s.devices.is_quiet(), "nobody waits for a probe that can't come");
}

#[test]
fn stepped_a_device_whose_synchronous_driver_goes_during_the_bring_up_is_queued_and_waits_for_no_turn()
 {
    let mut s = Stepped::bring_up(vec![decl("a", &[]), decl("s", &["a"])], &["s"], true);
    let key = s.key("s");
    let other = Candidate { driver: driver("other"), asynchronous: true, asked: false };
    s.step(|devices, now, fx| devices.offer(key, other, now, fx));
    let former = s.devices.slot(key.index).candidates[0].driver.clone();
    let users = s.step(|devices, _, fx| devices.revoke(&former, fx));
    assert_eq!(users, [s.devices.instance(s.key("a"))], "the other one has lost it already");
    s.probe("a");
    assert_eq!(s.queue, ["s"]);
    assert_eq!(s.caller(), "Wait", "a worker has it");
    s.probe("s");
    assert_eq!(s.caller(), "Done");
    s.finish();
    assert!(s.devices.is_quiet());
}
