//! The announcement that an item blocks: `blocking`, on workers and elsewhere.

use std::sync::Arc;

use corewise_sync::Completion;
use corewise_sync::context::{self, AtomicSection, Placement};
use corewise_topology::{AffinityScope, Machine};
use corewise_workqueue::{WorkerPools, Workqueue, blocking};

use crate::spin::spin_until;

fn queue() -> (WorkerPools, Workqueue) {
    let machine = Machine::synthetic("numa:1 l3:1 core:1 pu:1").expect("a valid description");
    let pools = WorkerPools::new(&machine);
    let queue = Workqueue::builder("blocks").scope(AffinityScope::System).build(&pools);
    (pools, queue.expect("a queue"))
}

/// Waits in a way that Corewise doesn't know.
fn wait_unknown(event: &Completion) {
    spin_until(|| event.is_complete());
}

#[test]
fn blocking_lets_other_work_run_on_the_only_core_and_stays_on_its_thread() {
    let (pools, queue) = queue();
    let (ran, started) = (Arc::new(Completion::new()), Arc::new(Completion::new()));
    let blocks = {
        let (ran, started) = (Arc::clone(&ran), Arc::clone(&started));
        queue.spawn(move || {
            let before = (std::thread::current().id(), Placement::current());
            let inside = blocking("the test", || {
                started.complete();
                // The calls are nested: only the outermost one reports to the pool.
                blocking("the test", || wait_unknown(&ran));
                std::thread::current().id()
            });
            (before, inside) == ((inside, Placement::current()), inside)
        })
    };
    started.wait();
    let other = queue.spawn(move || ran.complete());
    assert!(blocks.join().unwrap(), "thread and placement are as before");
    other.join().unwrap();
    assert!(pools.report()[0].threads_made >= 2, "a replacement ran the other item");
}

#[test]
fn blocking_works_off_workers_and_passes_a_panic_on() {
    assert_eq!(blocking("the test", || 7), 7);
    let panicked = std::panic::catch_unwind(|| blocking("the test", || panic!("on purpose")));
    assert!(panicked.is_err());
    let before = context::violations();
    let _section = AtomicSection::enter("test");
    assert_eq!(blocking("the test", || 8), 8, "reported, and run all the same");
    assert_eq!(context::violations(), before + 1);
}
