//! Calls to any CPU of a set and calls with a condition, with the targets stepped by hand on one
//! thread in a chosen order.
#![cfg(not(loom))]

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::support::set;
use corewise_smp::model::{self, CallTarget, Step};
use corewise_smp::{AllCpus, AnyOf, CallError, RunError, SkipReason, Skipped, Smp, Targets};
use corewise_topology::{CpuId, CpuSet, Machine};

/// Returns two nodes of two caches of two CPUs each.
fn two_nodes() -> (Smp, Vec<CallTarget>) {
    model::stepped(Smp::builder(
        &Machine::synthetic("numa:2 l3:2 core:2 pu:1").expect("a valid description"),
    ))
}

/// Returns the CPU of a set that a handler of `own` chooses.
fn chosen(smp: &Smp, cpus: &mut [CallTarget], own: u32, list: &str) -> Option<u32> {
    let (inner, list) = (smp.clone(), set(list));
    let call = smp
        .call(CpuId::new(own), move || inner.call(AnyOf(&list), || ()).ok().map(|call| call.cpu()))
        .expect("it is online");
    cpus[own as usize].step();
    for cpu in cpus {
        while matches!(cpu.step(), Step::Ran(_)) {}
    }
    call.wait().expect("it ran").map(CpuId::number)
}

#[test]
fn rule_6_any_takes_the_own_cpu_then_the_nearest_by_cache_and_node_then_any() {
    let (smp, mut cpus) = two_nodes();
    assert_eq!(chosen(&smp, &mut cpus, 5, "0-7"), Some(5));
    assert_eq!(chosen(&smp, &mut cpus, 5, "0-4,6-7"), Some(4), "the same cache");
    assert_eq!(chosen(&smp, &mut cpus, 5, "0-3,6-7"), Some(6), "the same node");
    assert_eq!(chosen(&smp, &mut cpus, 5, "0-3"), Some(0), "any");
    assert_eq!(chosen(&smp, &mut cpus, 5, ""), None);
    // An offline CPU isn't near.
    drop(smp.cpu_offline(CpuId::new(4)));
    assert_eq!(cpus[4].step(), Step::Left);
    assert_eq!(chosen(&smp, &mut cpus, 5, "0-4,6-7"), Some(6));
}

#[test]
fn rule_6_any_fails_only_where_the_whole_set_is_offline_and_gives_the_function_back() {
    let (smp, mut cpus) = two_nodes();
    for cpu in [1, 2] {
        drop(smp.cpu_offline(CpuId::new(cpu)));
        assert_eq!(cpus[cpu as usize].step(), Step::Left);
    }
    for list in ["", "1-2", "1,9"] {
        let error = smp.call(AnyOf(&set(list)), || "still mine").unwrap_err();
        assert!(matches!(error, CallError::NoneOnline { .. }));
        assert!(error.to_string().contains("no CPU of the set is online"), "{error}");
        assert_eq!(error.into_inner()(), "still mine");
    }
    let call = smp.call(AnyOf(&set("1-3")), || 3).unwrap();
    assert_eq!(call.cpu(), CpuId::new(3), "the only one of them that is online");
    assert_eq!(cpus[3].step(), Step::Ran(1));
    assert_eq!(call.wait().unwrap(), 3);
    drop(smp.shutdown());
    let refused = smp.call(AnyOf(&set("0-7")), || ()).map(drop);
    assert!(matches!(refused, Err(CallError::ShuttingDown { .. })));
}

#[test]
fn a_handler_that_calls_any_of_a_set_with_its_own_cpu_runs_it_in_place() {
    let (smp, mut cpus) = two_nodes();
    let inner = smp.clone();
    let call = smp.call(CpuId::new(3), move || {
        let any = inner.call(AnyOf(&set("0-7")), || 7).unwrap();
        (any.cpu(), any.is_complete(), any.wait().unwrap())
    });
    assert_eq!(cpus[3].step(), Step::Ran(1));
    assert_eq!(call.unwrap().wait().unwrap(), (CpuId::new(3), true, 7));
}

#[test]
fn calls_without_a_waiter_and_runs_take_every_kind_of_target() {
    let (smp, mut cpus) = two_nodes();
    smp.detached().call(AnyOf(&set("6")), || ()).unwrap();
    assert_eq!(cpus[6].step(), Step::Ran(1));
    let odd = AllCpus.filter(|cpu| cpu.number() % 2 == 1);
    let reach = smp.detached().call_each(odd.filter(|cpu| cpu.number() < 6), |_| ());
    assert_eq!(reach.reached, set("1,3,5"), "both conditions hold");
    assert_eq!(reach.skipped, []);
    let none = smp.detached().call(AnyOf(&set("9")), || ()).unwrap_err();
    assert!(matches!(none, CallError::NoneOnline { .. }));
    let refused = smp.run(AnyOf(&set("9")), || ()).unwrap_err();
    assert!(matches!(refused, RunError::Refused(CallError::NoneOnline { .. })));
    assert_eq!(smp.run_each(AllCpus.filter(|_| false), |cpu| cpu).values.len(), 0);
}

#[test]
fn rule_8_a_condition_is_asked_once_for_each_online_candidate_right_before_its_push() {
    let (smp, mut cpus) = two_nodes();
    drop(smp.cpu_offline(CpuId::new(2)));
    assert_eq!(cpus[2].step(), Step::Left);
    let asked = RefCell::new(Vec::new());
    let wanted = |cpu: CpuId| {
        // The call asked for before has been pushed by now, and this one hasn't.
        let pushed = cpus.iter_mut().filter_map(|c| (c.step() == Step::Ran(1)).then_some(c.cpu()));
        asked.borrow_mut().push((cpu.number(), CpuSet::from_iter(pushed).to_string()));
        cpu != CpuId::new(3)
    };
    let call = smp.call_each(set("1-4,9").filter(wanted), CpuId::number);
    let expected = [(1, ""), (3, "1"), (4, "")].map(|(cpu, pushed)| (cpu, pushed.to_owned()));
    assert_eq!(*asked.borrow(), expected);
    // The unwanted CPU is out of the wait set, and no skip.
    assert_eq!(call.reach().reached, set("1,4"));
    let skipped = [2, 9].map(|cpu| Skipped { cpu: CpuId::new(cpu), reason: SkipReason::NotOnline });
    assert_eq!(call.reach().skipped, skipped);
    assert!(!call.is_complete());
    assert_eq!(cpus[4].step(), Step::Ran(1));
    assert_eq!(cpus[3].step(), Step::Idle);
    let answered = [1, 4].map(|cpu| (CpuId::new(cpu), cpu));
    assert_eq!(call.wait().into_values().unwrap(), answered);

    assert!(smp.call_each(set("0-7").filter(|_| false), |cpu| cpu).wait().values.is_empty());
}

#[test]
fn a_condition_that_takes_the_cpu_out_has_it_skipped() {
    let (smp, mut cpus) = two_nodes();
    let out = |cpu| {
        if cpu == CpuId::new(1) {
            drop(smp.cpu_offline(CpuId::new(1)));
        }
        true
    };
    let call = smp.call_each(set("0-1").filter(out), CpuId::number);
    assert_eq!(
        call.reach().skipped,
        [Skipped { cpu: CpuId::new(1), reason: SkipReason::NotOnline }]
    );
    assert_eq!(cpus[1].step(), Step::Left);
    assert_eq!(cpus[0].step(), Step::Ran(1));
    assert_eq!(call.wait().into_values().unwrap(), [(CpuId::new(0), 0)]);
}

#[test]
fn a_condition_that_panics_leaves_what_was_told_before() {
    let (smp, mut cpus) = two_nodes();
    let (held, seen) = std::sync::mpsc::channel::<CpuId>();
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let wanted = |cpu| {
            assert!(cpu < CpuId::new(2), "on purpose");
            true
        };
        drop(smp.call_each(set("0-7").filter(wanted), move |cpu| {
            held.send(cpu).expect("the test receives")
        }));
    }));
    assert!(panicked.is_err());
    for cpu in &mut cpus {
        cpu.step();
    }
    // The call is at its end: the function was dropped with its last share.
    assert_eq!(seen.iter().collect::<Vec<_>>(), [0, 1].map(CpuId::new));
}
