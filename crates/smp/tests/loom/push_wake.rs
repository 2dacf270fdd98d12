//! Model: push and wake, against take and park (`src/README.md`, race 2).

use corewise_smp::{Smp, model};
use corewise_topology::{CpuId, Machine};
use loom::thread;

fn model(preemptions: usize, f: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    // Some thirty accesses per thread: unbounded takes hours. A lost wake-up takes one preemption
    // (between the look and the sleep), and a second where two callers have to meet first.
    builder.preemption_bound = Some(preemptions);
    builder.check(f);
}

#[test]
fn loom_no_waiter_is_lost_behind_a_push_that_found_the_queue_full_or_empty() {
    model(3, || {
        let machine = Machine::synthetic("core:1 pu:1").unwrap();
        let (smp, mut targets) = model::stepped(Smp::builder(&machine));
        let mut target = targets.pop().unwrap();
        let runner = thread::spawn(move || target.run());
        smp.detached().call(CpuId::new(0), || ()).unwrap();
        assert_eq!(smp.call(CpuId::new(0), || 2).unwrap().wait().unwrap(), 2);
        // The last drop stops the target; if its wake-up were lost, the join would deadlock.
        drop(smp);
        runner.join().unwrap();
    });
}

#[test]
fn loom_no_waiter_is_lost_with_two_callers_and_a_target_that_parks() {
    model(2, || {
        let machine = Machine::synthetic("core:1 pu:1").unwrap();
        let (smp, mut targets) = model::stepped(Smp::builder(&machine));
        let mut target = targets.pop().unwrap();
        let runner = thread::spawn(move || target.run());
        let other = smp.clone();
        let caller = thread::spawn(move || {
            // No thread waits for this call: it must not swallow the other's wake-up.
            other.detached().call(CpuId::new(0), || ()).unwrap();
        });
        let call = smp.call(CpuId::new(0), || 2).unwrap();
        caller.join().unwrap();
        // This looks and doesn't wait: the waiter's own protocol has its model in
        // tests/loom/completion.rs. A target that sleeps for ever makes this loop exceed loom's
        // limit, which fails the model.
        while !call.is_complete() {
            thread::yield_now();
        }
        assert_eq!(call.wait().unwrap(), 2);
        // The last drop stops the target; if its wake-up were lost, the join would deadlock.
        drop(smp);
        runner.join().unwrap();
    });
}

#[test]
fn loom_a_target_that_sleeps_without_having_said_so_sleeps_for_ever() {
    let test = "loom_a_target_that_sleeps_without_having_said_so_sleeps_for_ever";
    corewise_sync::model::must_fail(test, || {
        model(3, || {
            let machine = Machine::synthetic("core:1 pu:1").unwrap();
            let (smp, mut targets) = model::stepped(Smp::builder(&machine));
            let mut target = targets.pop().unwrap();
            let runner = thread::spawn(move || target.run_unannounced());
            assert_eq!(smp.call(CpuId::new(0), || 2).unwrap().wait().unwrap(), 2);
            drop(smp);
            runner.join().unwrap();
        });
    });
}
