//! Model: check-online and push, against close and declared dead (`src/README.md`, race 1).

use std::panic::{AssertUnwindSafe, catch_unwind};

use corewise_smp::{Call, Smp, model};
use corewise_topology::{CpuId, Machine};
use loom::thread;

fn builder() -> loom::model::Builder {
    let mut builder = loom::model::Builder::new();
    // Three threads; unbounded takes hours. The failing model fails within this bound.
    builder.preemption_bound = Some(3);
    builder
}

/// Calls CPU 0 while it is taken out. In each order: the call was refused, or it has run by the
/// time that the CPU is declared dead and its loop has returned.
fn offline_against_push(call: fn(&Smp) -> Option<Call<u32>>) {
    let machine = Machine::synthetic("core:1 pu:1").unwrap();
    let (smp, mut targets) = model::stepped(Smp::builder(&machine));
    let mut target = targets.pop().expect("the machine has one CPU");
    let runner = thread::spawn(move || {
        target.run();
        target
    });
    let caller = {
        let smp = smp.clone();
        thread::spawn(move || call(&smp))
    };
    let leaving = smp.cpu_offline(CpuId::new(0));
    leaving.wait();
    let accepted = caller.join().expect("the caller doesn't panic");
    // Until here the owner side exists: a call that it missed isn't failed by its drop.
    let target = runner.join().expect("the target's loop doesn't panic");
    if let Some(call) = accepted {
        assert!(call.is_complete(), "accepted, but never run: its waiter would wait for ever");
        assert_eq!(call.wait().expect("it ran"), 7);
    }
    assert!(smp.call(CpuId::new(0), || ()).is_err());
    drop(target);
}

#[test]
fn loom_a_call_beside_a_leaving_cpu_is_refused_or_runs() {
    builder().check(|| offline_against_push(|smp| smp.call(CpuId::new(0), || 7).ok()));
}

#[test]
fn loom_where_the_look_is_no_part_of_the_push_the_model_fails() {
    let failed = catch_unwind(AssertUnwindSafe(|| {
        builder().check(|| offline_against_push(|smp| smp.call_unguarded(CpuId::new(0), || 7)));
    }));
    assert!(failed.is_err(), "a look that isn't part of the push must lose a call in some order");
}

#[test]
fn loom_two_calls_of_which_one_is_urgent_both_run_before_the_cpu_is_dead() {
    builder().check(|| {
        let machine = Machine::synthetic("core:1 pu:1").unwrap();
        let (smp, mut targets) = model::stepped(Smp::builder(&machine));
        let mut target = targets.pop().unwrap();
        smp.detached().call(CpuId::new(0), || ()).unwrap();
        let call = smp.call(CpuId::new(0), || 7).unwrap();
        let runner = thread::spawn(move || {
            target.run();
            target
        });
        smp.cpu_offline(CpuId::new(0)).wait();
        assert!(call.is_complete());
        drop(runner.join().unwrap());
    });
}
