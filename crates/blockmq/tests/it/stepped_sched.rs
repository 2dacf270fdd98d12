//! The `deadline` scheduler in a queue, stepped by hand. Its order by itself is tested in
//! `src/sched/tests.rs`.
#![cfg(not(loom))]

use std::sync::Arc;

use crate::common::{Held, block, settle};
use corewise_blockmq::model::{BuildByHand, ByHand};
use corewise_blockmq::{BlockDevice, Deadline, Dispatch, IoScheduler, Queue, Request};
use corewise_topology::{CpuId, Machine};

fn by_hand(driver: &Held, depth: u32, tuning: Deadline) -> Arc<Queue> {
    let machine = Machine::synthetic("l3:1 core:4 pu:1").unwrap();
    Queue::builder(&machine, Arc::new(driver.clone()))
        .depth(depth)
        .scheduler(IoScheduler::Deadline(tuning))
        .build_by_hand()
}

/// Makes a read of block `n`.
fn read(n: u64) -> Request {
    Request::read(n * 512, 512)
}

#[test]
fn stepped_deadline_decides_when_there_is_a_tag_and_not_before() {
    let driver = Held::default();
    let queue = by_hand(&driver, 1, Deadline { fifo_batch: 2, ..Deadline::default() });
    queue.submit(block(500));
    settle(&[&queue]);
    for n in [90, 30, 60] {
        queue.submit_on(CpuId::new(0), block(n));
    }
    settle(&[&queue]);
    assert_eq!(driver.order(), [500]);
    // These come last, while all tags are in use, and are nearer all the same.
    queue.submit(read(7));
    queue.submit(read(3));
    settle(&[&queue]);
    while driver.held() != 0 {
        driver.finish_one(Err(corewise_blockmq::IoError::from_errno(5)));
        settle(&[&queue]);
    }
    assert_eq!(driver.order(), [500, 3, 7, 90, 30, 60]);
    assert_eq!(queue.inside(), 0);
}

#[test]
fn stepped_rule_18_the_dispatch_list_goes_before_the_scheduler_and_a_flush_passes_it() {
    let driver = Held::default();
    let queue = by_hand(&driver, 8, Deadline::default());
    driver.instead(Dispatch::Busy);
    queue.submit(block(50));
    settle_busy(&queue);
    driver.keep();
    queue.submit(block(10));
    queue.submit(Request::flush());
    settle(&[&queue]);
    // The request given back comes first, then the flush (which has offset 0), then the scheduler's
    // requests.
    assert_eq!(driver.order(), [50, 0, 10]);
    driver.finish_all();
}

/// Makes one step: a busy driver with nothing in flight asks for another for ever.
fn settle_busy(queue: &Queue) {
    assert!(queue.step(0).is_some());
}

#[test]
fn stepped_deadline_merges_what_touches_however_far_apart_it_came() {
    let driver = Held { merges: true, ..Held::default() };
    let queue = by_hand(&driver, 1, Deadline::default());
    queue.submit(block(500));
    settle(&[&queue]);
    let far: Vec<_> = (0..20).map(|n| crate::common::submit(&*queue, block(600 + 2 * n))).collect();
    settle(&[&queue]);
    // Each fills a gap, long after its neighbours came.
    let gaps: Vec<_> =
        (0..19).map(|n| crate::common::submit(&*queue, block(601 + 2 * n))).collect();
    settle(&[&queue]);
    driver.finish_one(Ok(()));
    settle(&[&queue]);
    assert_eq!(driver.order(), [500, 600], "one request of 39 blocks");
    driver.finish_one(Ok(()));
    for done in far.iter().chain(&gaps) {
        done.try_recv().unwrap().result.unwrap();
    }
    assert_eq!((queue.inside(), queue.stats()[0].merged), (0, 38));
}

#[test]
fn stepped_requests_of_a_scheduler_that_is_dropped_with_its_queue_complete_as_gone() {
    let driver = Held::default();
    let queue = by_hand(&driver, 1, Deadline::default());
    let done: Vec<_> = (0..5).map(|n| crate::common::submit(&*queue, block(n))).collect();
    settle(&[&queue]);
    drop(queue);
    driver.finish_one(Ok(()));
    let ends: Vec<_> = done.iter().map(|done| done.recv().unwrap().result.is_ok()).collect();
    assert_eq!(ends, [true, false, false, false, false]);
}
