//! Waiting for the handlers of this moment: those that run are waited for, idle CPUs aren't disturbed.
#![cfg(not(loom))]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;

use corewise_smp::{CallFailed, Leaving, Smp, Step};
use corewise_topology::{CpuId, Machine};

fn machine(cpus: usize) -> Machine {
    Machine::synthetic(&format!("core:{cpus} pu:1")).unwrap()
}

#[test]
fn a_function_that_runs_is_waited_for_and_idle_cpus_are_not_woken() {
    let smp = Smp::new(&machine(4)).unwrap();
    let (entered, may_end) = (Arc::new(Barrier::new(2)), Arc::new(AtomicBool::new(false)));
    let ended = Arc::new(AtomicBool::new(false));
    let call = {
        let (entered, may_end) = (Arc::clone(&entered), Arc::clone(&may_end));
        let ended = Arc::clone(&ended);
        smp.call(CpuId::new(2), move || {
            entered.wait();
            while !may_end.load(Ordering::Relaxed) {
                thread::yield_now();
            }
            ended.store(true, Ordering::Relaxed);
        })
        .unwrap()
    };
    entered.wait();
    let waiter = {
        let (smp, ended) = (smp.clone(), Arc::clone(&ended));
        thread::spawn(move || {
            smp.synchronize();
            assert!(ended.load(Ordering::Relaxed), "it returned while the function ran");
        })
    };
    assert!(!waiter.is_finished());
    may_end.store(true, Ordering::Relaxed);
    waiter.join().unwrap();
    call.wait().unwrap();
    for cpu in [0, 1, 3] {
        let stats = smp.cpu_stats(CpuId::new(cpu)).unwrap();
        assert_eq!((stats.calls, stats.wakeups), (0, 0), "CPU {cpu} was disturbed");
    }
}

#[test]
fn a_function_that_waits_until_its_own_cpu_has_left_is_stopped() {
    let smp = Smp::new(&machine(2)).unwrap();
    let ways: [fn(&Smp) -> Leaving; 2] =
        [|smp| smp.cpu_offline(CpuId::new(1)), |smp| smp.shutdown()];
    for (cpu, way) in [1, 0].map(CpuId::new).into_iter().zip(ways) {
        let inside = smp.clone();
        let call = smp.call(cpu, move || way(&inside).wait()).unwrap();
        let Err(CallFailed::Panicked { panic, .. }) = call.wait() else { panic!("it went on") };
        assert!(panic.message().contains("would wait for itself"), "{}", panic.message());
    }
    smp.shutdown().wait();
}

#[test]
fn a_call_that_has_not_begun_is_not_waited_for() {
    let (smp, mut targets) = Smp::stepped(&machine(2));
    let call = smp.call(CpuId::new(1), || 7).unwrap();
    // Nobody steps: this would hang if it waited for the call.
    smp.synchronize();
    assert!(!call.is_complete());
    assert_eq!(targets[1].step(), Step::Ran(1));
    assert_eq!(call.wait().unwrap(), 7);
}

#[test]
fn a_handler_cannot_wait_for_itself() {
    let smp = Smp::new(&machine(2)).unwrap();
    let own = smp.clone();
    let failed = smp.call(CpuId::new(1), move || own.synchronize()).unwrap().wait();
    assert!(
        matches!(failed, Err(CallFailed::Panicked { cpu, .. }) if cpu == CpuId::new(1)),
        "{failed:?}"
    );
    smp.synchronize();
}

#[test]
fn cpus_that_leave_and_are_abandoned_keep_nobody() {
    let (smp, mut targets) = Smp::stepped(&machine(2));
    let call = smp.call(CpuId::new(0), || ()).unwrap();
    drop(targets.remove(0));
    smp.synchronize();
    assert!(call.wait().is_err());
    let leaving = smp.cpu_offline(CpuId::new(1));
    smp.synchronize();
    assert_eq!(targets[0].step(), Step::Left);
    leaving.wait();
    smp.synchronize();
}

/// What was taken away before is found by no function afterwards: functions on all CPUs, all the time.
#[test]
fn after_it_no_function_finds_what_was_taken_away() {
    const ROUNDS: u64 = 2_000;
    let smp = Smp::new(&machine(2)).unwrap();
    // The number of the round that may be found; those below are gone.
    let (current, gone) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let over = Arc::new(AtomicBool::new(false));
    let caller = {
        let (smp, over) = (smp.clone(), Arc::clone(&over));
        let (current, gone) = (Arc::clone(&current), Arc::clone(&gone));
        thread::spawn(move || {
            while !over.load(Ordering::Relaxed) {
                let (current, gone) = (Arc::clone(&current), Arc::clone(&gone));
                let answers = smp.call_all(move |_| {
                    let found = current.load(Ordering::Acquire);
                    std::hint::spin_loop();
                    assert!(gone.load(Ordering::Relaxed) <= found, "found what was gone");
                });
                answers.wait().into_values().unwrap();
            }
        })
    };
    for round in 1..=ROUNDS {
        current.store(round, Ordering::Release);
        smp.synchronize();
        gone.store(round, Ordering::Relaxed);
    }
    over.store(true, Ordering::Relaxed);
    caller.join().unwrap();
}
