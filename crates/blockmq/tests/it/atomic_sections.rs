//! Reports of a call that blocks and must not: they have the call's site, and that of its atomic
//! section.
#![cfg(all(not(loom), debug_assertions))]

use std::sync::Arc;

use crate::common::{Held, Rig, block, by_hand};
use corewise_blockmq::model::{BuildByHand, ByHand};
use corewise_blockmq::{
    BlockDevice, BlockDeviceExt, Dispatch, Driver, Geometry, Info, Queue, Started,
};
use corewise_sync::atomic::{AtomicBool, Ordering};
use corewise_sync::context::{self, AtomicSection};
use corewise_sync::{Completion, Mutex};
use corewise_topology::Machine;

#[test]
fn a_dispatch_that_blocks_is_reported_with_both_sites() {
    let driver = Held::default();
    let queue = by_hand(&driver, 8);
    let there = Completion::new();
    there.complete();
    driver.instead(move |rq| {
        there.wait();
        rq.complete(Ok(()));
        Dispatch::Started
    });
    queue.submit(block(1));
    let before = context::violations();
    queue.step(0);
    assert_eq!(context::violations(), before + 1);
    let violation = context::take_violation().unwrap();
    assert!(violation.blocked.location.file().ends_with("atomic_sections.rs"), "{violation}");
    assert_eq!(violation.blocked.what, "Completion::wait");
    assert_eq!(violation.section.what, "dispatch of block requests");
    assert!(violation.section.location.file().ends_with("run.rs"), "{violation}");
}

#[test]
fn a_completion_function_that_blocks_is_reported_with_both_sites() {
    // The sleeping lock on the completion path: it cost three quarters of the throughput.
    let driver = Held::default();
    let queue = by_hand(&driver, 8);
    let there = Completion::new();
    there.complete();
    queue.submit(block(1).on_complete(move |_| there.wait()));
    queue.step(0);
    driver.finish_all();
    let violation = context::take_violation().unwrap();
    assert_eq!(violation.blocked.what, "Completion::wait");
    assert_eq!(violation.section.what, "completion of a block request");
}

#[test]
fn rule_16_a_queue_that_registers_for_cpu_changes_in_an_atomic_section_is_reported_with_both_sites()
{
    // The second published patch did this: cpuhp registration, which sleeps, under a raw spinlock.
    let machine = Machine::synthetic("l3:1 core:2 pu:1").unwrap();
    let section = AtomicSection::enter("raw spinlock");
    let queue = Queue::builder(&machine, Arc::new(Held::default())).build_by_hand();
    drop(section);
    drop(queue);
    let violation = context::take_violation().unwrap();
    assert_eq!(violation.blocked.what, "QueueBuilder::build_by_hand");
    assert!(violation.blocked.location.file().ends_with("atomic_sections.rs"), "{violation}");
    assert_eq!(violation.section.what, "raw spinlock");
}

#[test]
fn waits_for_requests_are_refused_in_an_atomic_section_and_leave_no_trace() {
    let queue = by_hand(&Held::default(), 8);
    type Wait = fn(&Arc<Queue>);
    let waits: [(&str, Wait); 4] = [
        ("quiesce", |queue| drop(queue.quiesce())),
        ("quiesce_all", |queue| drop(Queue::quiesce_all(&[Arc::clone(queue)]))),
        ("freeze", |queue| drop(queue.freeze())),
        ("drain", |queue| queue.drain()),
    ];
    for (what, wait) in waits {
        let refused = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _section = AtomicSection::enter("a dispatch");
            wait(&queue);
        }));
        assert!(refused.is_err(), "{what} would have waited for itself");
        let violation = context::take_violation().unwrap();
        assert_eq!((violation.blocked.what, violation.section.what), (what, "a dispatch"));
    }
    assert!(!queue.is_quiesced());
    queue.submit(block(1));
    assert_eq!(queue.inside(), 1, "it is not frozen either");
}

/// A driver that may block, and does.
struct Sleepy {
    /// A: true if it was called inside of an atomic section.
    in_section: Arc<AtomicBool>,
    lock: Mutex<()>,
}

impl Driver for Sleepy {
    fn info(&self) -> Info {
        Info { may_block: true, ..Info::new("sleepy", Geometry::new(1 << 30)) }
    }
    fn queue_request(&self, _hctx: usize, rq: Started) -> Dispatch {
        self.in_section.fetch_or(context::in_atomic_section(), Ordering::SeqCst);
        context::blocking("a slow disk", || drop(self.lock.lock()));
        rq.complete(Ok(()));
        Dispatch::Started
    }
}

#[test]
fn rule_12_a_driver_that_may_block_is_never_run_from_an_atomic_section() {
    let rig = Rig::live();
    let in_section = Arc::new(AtomicBool::new(false));
    let queue = rig.queue(Sleepy { in_section: in_section.clone(), lock: Mutex::new(()) });
    let (tx, rx) = std::sync::mpsc::channel();
    // Submitted by a completion function, which is an atomic section.
    let again = Arc::clone(&queue);
    queue.submit(block(1).on_complete(move |_| {
        again.submit(block(2).on_complete(move |done| tx.send(done).unwrap()));
    }));
    rx.recv_timeout(crate::common::STALL).unwrap().result.unwrap();
    queue.flush().unwrap();
    assert!(!in_section.load(Ordering::SeqCst));
    // A quiesce waits for a dispatch that sleeps, too.
    drop(queue.quiesce());
    queue.drain();
}
