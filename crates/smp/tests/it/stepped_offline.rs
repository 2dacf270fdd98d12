//! CPUs that leave and join, with the targets stepped by hand on one thread in a chosen order.
#![cfg(not(loom))]

use crate::support::{four_cpus, set};
use corewise_smp::model::Step;
use corewise_smp::{AllCpus, CallError, CallFailed, SkipReason};
use corewise_topology::{CpuId, CpuSet};

#[test]
fn rule_11_a_leaving_cpu_runs_what_it_accepted_before_it_is_declared_dead() {
    let (smp, mut cpus) = four_cpus();
    let urgent = smp.call(CpuId::new(1), || 1).unwrap();
    let plain = [(); 3].map(|()| {
        let (done, seen) = std::sync::mpsc::channel();
        smp.detached().call(CpuId::new(1), move || done.send(()).unwrap()).unwrap();
        seen
    });
    let leaving = smp.cpu_offline(CpuId::new(1));
    assert!(!leaving.is_complete(), "nothing ran yet");
    assert!(matches!(
        smp.call(CpuId::new(1), || ()),
        Err(CallError::NotOnline { cpu, .. }) if cpu == CpuId::new(1)));
    assert_eq!(cpus[1].step(), Step::Ran(2));
    assert!(!leaving.is_complete(), "two plain calls are left");
    assert_eq!(cpus[1].step(), Step::Ran(1));
    assert_eq!(cpus[1].step(), Step::Left);
    assert!(leaving.is_complete());
    leaving.wait();
    assert_eq!(urgent.wait().unwrap(), 1);
    for seen in plain {
        seen.try_recv().unwrap();
    }
    assert_eq!(cpus[1].step(), Step::Offline);
    assert_eq!(smp.online(), set("0,2-3"));
}

#[test]
fn an_idle_cpu_leaves_in_one_step_and_may_come_back() {
    let (smp, mut cpus) = four_cpus();
    let leaving = smp.cpu_offline(CpuId::new(1));
    assert_eq!(cpus[1].step(), Step::Left);
    assert!(leaving.is_complete());
    assert!(smp.cpu_offline(CpuId::new(1)).is_complete(), "it has left already");
    smp.cpu_online(CpuId::new(1)).unwrap();
    smp.cpu_online(CpuId::new(1)).unwrap();
    let call = smp.call(CpuId::new(1), || 1).unwrap();
    assert_eq!(cpus[1].step(), Step::Ran(1));
    assert_eq!(call.wait().unwrap(), 1);
}

#[test]
fn two_who_take_the_same_cpu_out_wait_for_the_same_leave() {
    let (smp, mut cpus) = four_cpus();
    let (first, second) = (smp.cpu_offline(CpuId::new(1)), smp.cpu_offline(CpuId::new(1)));
    assert!(!first.is_complete() && !second.is_complete());
    cpus[1].step();
    assert!(first.is_complete() && second.is_complete());
}

#[test]
fn a_handler_may_take_its_own_cpu_out() {
    let (smp, mut cpus) = four_cpus();
    let inner = smp.clone();
    let call = smp.call(CpuId::new(1), move || inner.cpu_offline(CpuId::new(1))).unwrap();
    assert_eq!(cpus[1].step(), Step::Ran(1));
    let leaving = call.wait().unwrap();
    assert_eq!(cpus[1].step(), Step::Left);
    assert!(leaving.is_complete());
}

#[test]
fn following_the_machine_takes_cpus_out_and_in_with_its_epoch() {
    let (smp, mut cpus) = four_cpus();
    let machine = smp.machine().clone();
    let nothing = smp.follow_machine();
    assert!(nothing.left.is_empty() && nothing.joined.is_empty());

    machine.set_online(CpuId::new(1), false).unwrap();
    machine.set_online(CpuId::new(2), false).unwrap();
    assert!(
        smp.call(CpuId::new(1), || ()).is_ok(),
        "calls don't look at the machine: it is followed explicitly"
    );
    let followed = smp.follow_machine();
    assert_eq!((followed.left, followed.joined), (set("1-2"), CpuSet::new()));
    assert_eq!(followed.epoch, machine.epoch());
    assert!(!followed.leaving.is_complete());
    assert_eq!(cpus[1].step(), Step::Left);
    assert_eq!(cpus[2].step(), Step::Left);
    assert!(followed.leaving.is_complete());

    machine.set_online(CpuId::new(1), true).unwrap();
    let followed = smp.follow_machine();
    assert_eq!((followed.left, followed.joined), (CpuSet::new(), set("1")));
    assert!(followed.failed.is_empty());
    assert_eq!(smp.online(), set("0-1,3"));
}

#[test]
fn an_unknown_cpu_can_be_taken_out_but_not_in() {
    let (smp, _cpus) = four_cpus();
    assert!(smp.cpu_offline(CpuId::new(9)).is_complete());
    let error = smp.cpu_online(CpuId::new(9)).unwrap_err();
    assert_eq!(error.cpu(), CpuId::new(9));
    assert!(error.to_string().contains("no such CPU"), "{error}");
}

#[test]
fn after_shutdown_every_call_is_refused_as_such_and_what_was_accepted_runs() {
    let (smp, mut cpus) = four_cpus();
    let accepted = smp.call(CpuId::new(0), || 1).unwrap();
    let leaving = smp.shutdown();
    assert!(matches!(smp.call(CpuId::new(0), || ()), Err(CallError::ShuttingDown { .. })));
    assert!(matches!(
        smp.detached().call(CpuId::new(1), || ()),
        Err(CallError::ShuttingDown { .. })
    ));
    let all = smp.call_each(AllCpus, |cpu| cpu);
    assert!(all.is_complete());
    assert!(all.reach().skipped.iter().all(|s| s.reason == SkipReason::ShuttingDown));
    for cpu in &mut cpus {
        assert_eq!(cpu.step(), Step::Left);
        assert_eq!(cpu.step(), Step::Stopped);
    }
    assert!(leaving.is_complete());
    assert_eq!(accepted.wait().unwrap(), 1);
    let error = smp.cpu_online(CpuId::new(0)).unwrap_err();
    assert!(error.to_string().contains("shut down"), "{error}");
}

#[test]
fn a_cpu_that_was_offline_at_shutdown_stays_so() {
    let (smp, mut cpus) = four_cpus();
    drop(smp.cpu_offline(CpuId::new(3)));
    assert_eq!(cpus[3].step(), Step::Left);
    drop(smp.shutdown());
    assert_eq!(cpus[3].step(), Step::Stopped);
}

#[test]
fn the_last_handle_dropped_ends_the_targets_after_their_last_calls() {
    let (smp, mut cpus) = four_cpus();
    let call = smp.call(CpuId::new(0), || 1).unwrap();
    drop(smp.clone());
    assert_eq!(cpus[1].step(), Step::Idle, "a clone was dropped, not the last one");
    drop(smp);
    for cpu in &mut cpus {
        assert_eq!(cpu.step(), Step::Left);
    }
    assert_eq!(call.wait().unwrap(), 1);
}

#[test]
fn rule_11_a_call_whose_target_is_dropped_fails_and_later_ones_are_refused() {
    let (smp, mut cpus) = four_cpus();
    let one = smp.call(CpuId::new(3), || ()).unwrap();
    let many = smp.call_each(&set("2-3"), |cpu| cpu);
    smp.detached().call(CpuId::new(3), || ()).unwrap();
    let leaving = smp.cpu_offline(CpuId::new(3));
    drop(cpus.pop());
    assert!(matches!(one.wait(), Err(CallFailed::NotOnline { cpu }) if cpu == CpuId::new(3)));
    assert!(leaving.is_complete(), "whoever waits for the leave ends too");
    assert!(!many.is_complete(), "CPU 2 is still to come");
    cpus[2].step();
    let answers: Vec<_> = many.wait().values.collect();
    let (two, three) = (CpuId::new(2), CpuId::new(3));
    assert!(answers[0].0 == two && answers[0].1.as_ref().is_ok_and(|cpu| *cpu == two));
    let gone = |answer: &_| matches!(answer, Err(CallFailed::NotOnline { cpu }) if *cpu == three);
    assert!(answers[1].0 == three && gone(&answers[1].1));
    assert!(matches!(smp.call(CpuId::new(3), || ()), Err(CallError::NotOnline { .. })));
    let error = smp.cpu_online(CpuId::new(3)).unwrap_err();
    assert!(error.to_string().contains("dropped"), "{error}");
}

#[test]
fn calls_that_a_dropped_target_took_but_did_not_run_fail() {
    let (smp, mut cpus) = four_cpus();
    for _ in 0..2 {
        smp.detached().call(CpuId::new(0), || ()).unwrap();
    }
    let held = std::sync::Arc::new(());
    let captured = std::sync::Arc::clone(&held);
    smp.detached().call(CpuId::new(0), move || drop(captured)).unwrap();
    assert_eq!(cpus[0].step(), Step::Ran(1), "all three were taken, one was run");
    drop(cpus);
    assert_eq!(std::sync::Arc::strong_count(&held), 1, "its captures were dropped");
}

#[test]
fn a_late_follower_of_an_old_mask_follows_the_new_one_too() {
    let (smp, mut cpus) = four_cpus();
    let machine = smp.machine().clone();
    // CPU 1 is still leaving, so that a thread that brings it in waits.
    let _leaving = smp.cpu_offline(CpuId::new(1));
    machine.set_online(CpuId::new(3), false).unwrap();
    let late = {
        let smp = smp.clone();
        std::thread::spawn(move || smp.follow_machine())
    };
    // It takes CPU 3 out first: from then on it has read the mask.
    while smp.online().contains(CpuId::new(3)) {
        std::thread::yield_now();
    }
    machine.set_online(CpuId::new(1), false).unwrap();
    let followed = smp.follow_machine();
    assert_eq!(followed.epoch, machine.epoch());
    assert_eq!(cpus[1].step(), Step::Left);
    let late = late.join().unwrap();
    assert_eq!(smp.online(), machine.online());
    assert_eq!((late.epoch, late.left, late.joined), (machine.epoch(), set("3"), set("")));
}

#[test]
fn a_handler_of_a_leaving_cpu_is_refused_its_own_cpu_too() {
    let (smp, mut cpus) = four_cpus();
    let inner = smp.clone();
    let call = smp.call(CpuId::new(1), move || {
        let _leaving = inner.cpu_offline(CpuId::new(1));
        let single = inner.call(CpuId::new(1), || ()).map(drop);
        let many = inner.call_each(&set("1"), |_| ()).reach().skipped.len();
        (matches!(single, Err(CallError::NotOnline { cpu, .. }) if cpu == CpuId::new(1)), many)
    });
    assert_eq!(cpus[1].step(), Step::Ran(1));
    assert_eq!(call.unwrap().wait().unwrap(), (true, 1));
}

#[test]
fn a_capture_whose_drop_panics_keeps_no_other_waiter_of_a_dropped_target_waiting() {
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("on purpose");
        }
    }
    for took in [false, true] {
        let (smp, mut cpus) = four_cpus();
        if took {
            // Two plain calls: the first step takes them all and leaves the later ones.
            smp.detached().call(CpuId::new(1), || ()).unwrap();
        }
        let bomb = Bomb;
        smp.detached().call(CpuId::new(1), move || drop(bomb)).unwrap();
        let (done, dropped) = std::sync::mpsc::channel::<()>();
        smp.detached().call(CpuId::new(1), move || drop(done)).unwrap();
        if took {
            assert_eq!(cpus[1].step(), Step::Ran(1));
        }
        let waited_for = smp.call(CpuId::new(1), || ()).unwrap();
        let leaving = smp.cpu_offline(CpuId::new(1));
        drop(cpus.remove(1));
        assert!(waited_for.is_complete() && leaving.is_complete());
        assert!(
            matches!(waited_for.wait(), Err(CallFailed::NotOnline { cpu }) if cpu == CpuId::new(1))
        );
        assert!(dropped.try_recv().is_err());
    }
}
