//! CPUs that leave and come back, and hardware queues that are made anew, under requests.
#![cfg(not(loom))]

use std::sync::Arc;

use crate::common::{Held, Rig, block, settle, submit, watched};
use corewise_blockmq::model::{BuildByHand, ByHand};
use corewise_blockmq::{BlockDevice, IoError, IoErrorKind, Queue};
use corewise_topology::{CpuId, Machine};

/// Makes four CPUs and two hardware queues: CPUs 0 and 1, and CPUs 2 and 3.
fn two_of_two(driver: &Held) -> (Machine, Arc<Queue>) {
    let machine = Machine::synthetic("l3:2 core:2 pu:1").unwrap();
    let queue = Queue::builder(&machine, Arc::new(driver.clone())).depth(8).build_by_hand();
    assert_eq!(queue.hctx_cpus(0), [0, 1].map(CpuId::new));
    assert_eq!(queue.hctx_cpus(1), [2, 3].map(CpuId::new));
    (machine, queue)
}

#[test]
fn stepped_rule_14_a_hardware_queue_that_loses_its_last_cpu_drains_and_hands_the_rest_on() {
    let driver = Held::with_queues(2);
    let (machine, queue) = two_of_two(&driver);
    queue.submit_on(CpuId::new(2), block(0));
    settle(&[&queue]);
    assert_eq!(driver.held(), 1, "one is in the driver");
    let quiesced = queue.quiesce();
    for n in 1..4 {
        queue.submit_on(CpuId::new(3), block(n));
    }
    machine.set_online(CpuId::new(2), false).unwrap();
    machine.set_online(CpuId::new(3), false).unwrap();
    drop(quiesced);
    settle(&[&queue]);
    let through: Vec<_> = driver.requests.lock().iter().map(|rq| rq.hctx()).collect();
    assert_eq!(through, [1, 0, 0, 0], "what had waited went through the other hardware queue");
    assert_eq!(driver.order(), [0, 1, 2, 3], "in its order");
    driver.finish_one(Ok(()));
    assert_eq!(queue.stats()[1].in_flight, 0);
    driver.finish_all();
}

#[test]
fn stepped_rule_14_a_request_that_comes_for_a_cpu_that_left_goes_through_the_heir() {
    let driver = Held::with_queues(2);
    let (machine, queue) = two_of_two(&driver);
    machine.set_online(CpuId::new(2), false).unwrap();
    machine.set_online(CpuId::new(3), false).unwrap();
    settle(&[&queue]);
    let done = submit(&*queue, block(7));
    queue.submit_on(CpuId::new(3), block(8));
    settle(&[&queue]);
    assert!(driver.requests.lock().iter().all(|rq| rq.hctx() == 0));
    machine.set_online(CpuId::new(3), true).unwrap();
    queue.submit_on(CpuId::new(2), block(9));
    settle(&[&queue]);
    assert_eq!(driver.requests.lock().back().unwrap().hctx(), 1, "it is in use again");
    driver.finish_all();
    done.recv().unwrap().result.unwrap();
    assert_eq!(queue.inside(), 0);
}

#[test]
fn stepped_rule_14_a_tag_shortage_on_a_hardware_queue_that_leaves_strands_nothing() {
    let driver = Held::with_queues(2);
    let machine = Machine::synthetic("l3:2 core:2 pu:1").unwrap();
    let queue = Queue::builder(&machine, Arc::new(driver.clone())).depth(1).build_by_hand();
    for n in 0..3 {
        queue.submit_on(CpuId::new(2), block(n));
    }
    settle(&[&queue]);
    assert_eq!(driver.held(), 1);
    machine.set_online(CpuId::new(2), false).unwrap();
    machine.set_online(CpuId::new(3), false).unwrap();
    settle(&[&queue]);
    assert_eq!(driver.held(), 2, "the next one needn't wait for the tag of the one that drains");
    while driver.held() != 0 {
        driver.finish_one(Ok(()));
        settle(&[&queue]);
    }
    assert_eq!(driver.order(), [0, 1, 2]);
    assert_eq!(queue.inside(), 0);
}

#[test]
fn stepped_rule_15_the_software_queue_of_a_dead_cpu_is_run_from_elsewhere() {
    let driver = Held::with_queues(2);
    let (machine, queue) = two_of_two(&driver);
    let quiesced = queue.quiesce();
    queue.submit_on(CpuId::new(2), block(5));
    settle(&[&queue]);
    machine.set_online(CpuId::new(2), false).unwrap();
    assert!(queue.step(1).is_some(), "somebody was asked to run it");
    drop(quiesced);
    settle(&[&queue]);
    assert_eq!(driver.order(), [5]);
    driver.finish_all();
}

#[test]
fn a_queue_that_is_dropped_no_longer_follows_its_machine() {
    let rig = Rig::synthetic("l3:2 core:2 pu:1");
    let driver = Held::with_queues(2);
    driver.at_once();
    let requests = Arc::clone(&driver.requests);
    let queue = rig.queue(driver);
    queue.submit(block(1));
    queue.drain();
    drop(queue);
    rig.machine.set_online(CpuId::new(3), false).unwrap();
    assert_eq!(Arc::strong_count(&requests), 1, "the driver went with the queue");
}

#[test]
fn stepped_a_failed_merged_request_strands_no_request_of_a_queue_without_cpus() {
    let driver = Held { merges: true, ..Held::with_queues(2) };
    let (machine, queue) = two_of_two(&driver);
    let quiesced = queue.quiesce();
    let (ours, here) = watched(block(0));
    let (theirs, there) = watched(block(1));
    queue.submit_on(CpuId::new(0), ours);
    queue.submit_on(CpuId::new(2), theirs);
    machine.set_online(CpuId::new(2), false).unwrap();
    machine.set_online(CpuId::new(3), false).unwrap();
    drop(quiesced);
    // The one without CPUs passes its request on before the other one looks.
    let _ran = queue.step(1);
    settle(&[&queue]);
    assert_eq!(driver.held(), 1, "the two have become one");
    driver.finish_one(Err(IoError::new(IoErrorKind::Io(5))));
    settle(&[&queue]);
    assert_eq!(driver.held(), 2, "each is tried alone, also the one that is another queue's again");
    driver.finish_all();
    assert!([here, there].iter().all(|done| done.try_recv().unwrap().result.is_ok()));
}
