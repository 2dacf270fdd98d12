//! Models: a call to any CPU of a set against one of them leaving (choice and push are one), and a
//! call that borrows from its caller (`src/README.md`, "Memory").

use corewise_smp::model::{self, Step};
use corewise_smp::{AnyOf, Smp};
use corewise_sync::cell::UnsafeCell;
use corewise_topology::{CpuId, CpuSet, Machine};
use loom::thread;

fn model(f: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    // Bounded like the other models: unbounded takes hours.
    builder.preemption_bound = Some(3);
    builder.check(f);
}

#[test]
fn loom_a_call_to_any_is_accepted_while_one_of_two_stays_and_runs_where_it_was() {
    model(|| {
        let machine = Machine::synthetic("core:2 pu:1").unwrap();
        let (smp, mut targets) = model::stepped(Smp::builder(&machine));
        let caller = {
            let smp = smp.clone();
            thread::spawn(move || smp.call(AnyOf(&CpuSet::full(2)), || 7).ok())
        };
        let leaving = smp.cpu_offline(CpuId::new(0));
        let mut left = 0;
        // All calls that it accepted run before it is dead.
        while targets[0].step() != Step::Left {
            left += 1;
            assert!(left < 3, "one call at most, and then it leaves");
        }
        assert!(leaving.is_complete());
        let call = caller.join().unwrap().expect("CPU 1 never leaves");
        assert_eq!(
            call.is_complete(),
            call.cpu() == CpuId::new(0),
            "a dead CPU has run what it accepted"
        );
        targets[1].step();
        assert_eq!(call.wait().unwrap(), 7);
    });
}

struct Plain(UnsafeCell<u32>);
// SAFETY: only the order that the call gives keeps the accesses apart; the model checks that order.
unsafe impl Sync for Plain {}

#[test]
fn loom_a_function_that_borrows_is_over_when_its_caller_goes_on() {
    model(|| {
        let machine = Machine::synthetic("core:1 pu:1").unwrap();
        let (smp, mut targets) = model::stepped(Smp::builder(&machine));
        let mut target = targets.pop().unwrap();
        let runner = thread::spawn(move || target.run());
        // The value is on this stack: loom checks that no other thread touches it before or after.
        let plain = Plain(UnsafeCell::new(1));
        let lent = &plain;
        let seen = smp.run(CpuId::new(0), move || {
            // SAFETY: the caller waits.
            lent.0.with_mut(|p| unsafe {
                *p += 1;
                *p
            })
        });
        assert_eq!(seen.expect("CPU 0 is online"), 2);
        // SAFETY: the handler is over.
        plain.0.with_mut(|p| assert_eq!(unsafe { *p }, 2));
        drop(smp);
        runner.join().unwrap();
    });
}
