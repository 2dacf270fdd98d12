//! Model: the answer, against the waiter (`src/README.md`, race 3). Loom watches each access to the
//! answer's slot, so an ordering that is too weak shows as a data race.

use corewise_smp::{AllCpus, Smp, model};
use corewise_sync::cell::UnsafeCell;
use corewise_topology::{CpuId, Machine};
use loom::thread;
use std::sync::Arc;

fn model(f: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    // Bounded so that the three-threaded model stays under some seconds.
    builder.preemption_bound = Some(4);
    builder.check(f);
}

struct Plain(UnsafeCell<u32>);
// SAFETY: only the order that the call gives keeps the accesses apart; the model checks that order.
unsafe impl Sync for Plain {}

#[test]
fn loom_the_handler_sees_what_came_before_and_the_waiter_what_it_wrote() {
    model(|| {
        let machine = Machine::synthetic("core:1 pu:1").unwrap();
        let (smp, mut targets) = model::stepped(Smp::builder(&machine));
        let mut target = targets.pop().unwrap();
        let plain = Arc::new(Plain(UnsafeCell::new(0)));
        // SAFETY: no other thread has it yet.
        plain.0.with_mut(|p| unsafe { *p = 1 });
        let shared = Arc::clone(&plain);
        let call = smp
            .call(CpuId::new(0), move || {
                // SAFETY: the caller touches it only before the call and after the wait.
                shared.0.with_mut(|p| unsafe {
                    *p += 1;
                    *p
                })
            })
            .unwrap();
        let runner = thread::spawn(move || {
            target.step();
            target
        });
        assert_eq!(call.wait().unwrap(), 2);
        // SAFETY: the handler is over.
        plain.0.with(|p| assert_eq!(unsafe { *p }, 2));
        drop(runner.join().unwrap());
    });
}

#[test]
fn loom_the_last_of_many_completes_and_every_answer_is_seen() {
    model(|| {
        let machine = Machine::synthetic("core:2 pu:1").unwrap();
        let (smp, targets) = model::stepped(Smp::builder(&machine));
        let call = smp.call_each(AllCpus, |cpu| cpu.number() + 10);
        let runners: Vec<_> = targets
            .into_iter()
            .map(|mut target| {
                thread::spawn(move || {
                    target.step();
                    target
                })
            })
            .collect();
        assert_eq!(
            call.wait().into_values().unwrap(),
            [0, 1].map(|cpu| (CpuId::new(cpu), cpu + 10))
        );
        for runner in runners {
            drop(runner.join().unwrap());
        }
    });
}

#[test]
fn loom_an_answer_that_nobody_waits_for_is_dropped_once() {
    model(|| {
        let machine = Machine::synthetic("core:1 pu:1").unwrap();
        let (smp, mut targets) = model::stepped(Smp::builder(&machine));
        let mut target = targets.pop().unwrap();
        let value = Arc::new(());
        let answer = Arc::clone(&value);
        let call = smp.call(CpuId::new(0), move || answer).unwrap();
        let runner = thread::spawn(move || {
            target.step();
            target
        });
        drop(call);
        drop(runner.join().unwrap());
        assert_eq!(Arc::strong_count(&value), 1);
    });
}

#[test]
fn loom_the_answers_of_many_that_nobody_waits_for_are_dropped_once() {
    model(|| {
        let machine = Machine::synthetic("core:2 pu:1").unwrap();
        let (smp, targets) = model::stepped(Smp::builder(&machine));
        let value = Arc::new(());
        let answer = Arc::clone(&value);
        let call = smp.call_each(AllCpus, move |_| Arc::clone(&answer));
        let runners: Vec<_> = targets
            .into_iter()
            .map(|mut target| {
                thread::spawn(move || {
                    target.step();
                    target
                })
            })
            .collect();
        drop(call);
        for runner in runners {
            drop(runner.join().unwrap());
        }
        assert_eq!(Arc::strong_count(&value), 1, "the answers and the function are gone");
    });
}
