//! Model: push, against the owner side being dropped (`src/README.md`, race 4).

use corewise_smp::{CallFailed, Smp, model};
use corewise_topology::{CpuId, Machine};
use loom::thread;

#[test]
fn loom_every_waiter_ends_when_the_owner_is_dropped() {
    let mut builder = loom::model::Builder::new();
    // Three threads; see tests/loom/push_wake.rs.
    builder.preemption_bound = Some(3);
    builder.check(|| {
        let machine = Machine::synthetic("core:1 pu:1").unwrap();
        let (smp, mut targets) = model::stepped(Smp::builder(&machine));
        let target = targets.pop().unwrap();
        let callers = [(); 2].map(|()| {
            let smp = smp.clone();
            thread::spawn(move || smp.call(CpuId::new(0), || ()).ok())
        });
        drop(target);
        for caller in callers {
            // The call is refused, or accepted and failed: a waiter that never ended would deadlock
            // the model.
            if let Some(call) = caller.join().unwrap() {
                assert!(matches!(call.wait(), Err(CallFailed::NotOnline { cpu }) if cpu == CpuId::new(0)));
            }
        }
    });
}
