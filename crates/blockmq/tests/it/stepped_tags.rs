//! Tags and their shortage, stepped by hand: rules 5.10 and 5.18, and sets that queues share.
#![cfg(not(loom))]

use std::sync::Arc;

use crate::common::{Held, block, settle, submit};
use corewise_blockmq::model::{BuildByHand, ByHand};
use corewise_blockmq::{BlockDevice, Dispatch, Queue, TagSet};
use corewise_topology::{CpuId, Machine};

fn queue(driver: &Held, tags: &TagSet) -> Arc<Queue> {
    let machine = Machine::synthetic("l3:1 core:4 pu:1").unwrap();
    Queue::builder(&machine, Arc::new(driver.clone())).tags(tags).build_by_hand()
}

#[test]
fn stepped_rule_10_a_shortage_leaves_a_mark_that_the_next_completion_takes_to_run_the_queue() {
    let driver = Held::default();
    let machine = Machine::synthetic("l3:1 core:4 pu:1").unwrap();
    let queue = Queue::builder(&machine, Arc::new(driver.clone())).depth(2).build_by_hand();
    for n in 0..4 {
        queue.submit(block(n));
    }
    settle(&[&queue]);
    assert_eq!((driver.order(), queue.stats()[0].tag_waits), (vec![0, 1], 1));
    assert_eq!(queue.step(0), None, "nobody polls");
    driver.finish_one(Ok(()));
    driver.finish_one(Ok(()));
    // Two completions with one mark make one run, and that run finds both tags.
    assert!(queue.step(0).is_some());
    assert_eq!(driver.order(), [0, 1, 2, 3]);
    assert_eq!(queue.step(0), None);
    driver.finish_one(Ok(()));
    assert_eq!(queue.step(0), None, "nothing is left, so nobody is asked to run it");
    driver.finish_all();
}

#[test]
fn stepped_rule_18_requests_that_the_driver_gave_back_go_before_later_ones() {
    let driver = Held::default();
    let queue = queue(&driver, &TagSet::new(8, 4));
    queue.submit(block(0));
    settle(&[&queue]);
    driver.instead(Dispatch::Busy);
    queue.submit_batch(&mut (1..4).map(block));
    settle(&[&queue]);
    queue.submit(block(9));
    settle(&[&queue]);
    assert_eq!(driver.order(), [0]);
    assert_eq!(queue.stats()[0].in_flight, 1, "who was given back has no tag");
    driver.keep();
    driver.finish_one(Ok(()));
    settle(&[&queue]);
    assert_eq!(driver.order(), [0, 1, 2, 3, 9], "a completion runs the queue, in order");
    driver.finish_all();
}

#[test]
fn stepped_hardware_queues_that_share_a_set_take_turns() {
    let driver = Held::with_queues(4);
    let tags = TagSet::new(1, 4);
    let queue = queue(&driver, &tags);
    assert_eq!(queue.hw_queues(), 4);
    for n in 0..12 {
        queue.submit_on(CpuId::new(n as u32 % 4), block(n));
    }
    settle(&[&queue]);
    for done in 1..12 {
        assert_eq!((driver.held(), tags.in_use()), (1, 1));
        driver.finish_one(Ok(()));
        settle(&[&queue]);
        assert_eq!(driver.order().len(), done + 1);
    }
    driver.finish_one(Ok(()));
    assert_eq!(driver.order(), (0..12).collect::<Vec<_>>(), "round and round");
    assert_eq!((tags.in_use(), queue.inside()), (0, 0));
}

#[test]
fn stepped_two_disks_behind_one_adapter_have_half_of_its_tags_each() {
    let (busy, late) = (Held::default(), Held::default());
    let tags = TagSet::new(16, 4);
    let (first, second) = (queue(&busy, &tags), queue(&late, &tags));
    first.submit_batch(&mut (0..100).map(block));
    settle(&[&first, &second]);
    assert_eq!((busy.held(), late.held()), (16, 0), "alone it has them all");
    second.submit_batch(&mut (0..100).map(block));
    settle(&[&first, &second]);
    for _ in 0..8 {
        busy.finish_one(Ok(()));
        settle(&[&first, &second]);
    }
    assert_eq!((busy.held(), late.held()), (8, 8));
    for _ in 0..20 {
        busy.finish_one(Ok(()));
        settle(&[&first, &second]);
        assert_eq!((busy.held(), late.held()), (8, 8), "each restarts itself");
    }
    while busy.held() + late.held() != 0 {
        busy.finish_all();
        late.finish_all();
        settle(&[&first, &second]);
    }
    assert_eq!((busy.order().len(), late.order().len(), tags.in_use()), (100, 100, 0));
}

#[test]
fn stepped_a_quiesced_queue_keeps_no_tag_that_others_wait_for() {
    let drivers = [Held::default(), Held::default(), Held::default()];
    let tags = TagSet::new(1, 4);
    let queues = [0, 1, 2].map(|n| queue(&drivers[n], &tags));
    let all = [&queues[0], &queues[1], &queues[2]];
    for queue in all {
        queue.submit(block(7));
        settle(&all);
    }
    assert_eq!(drivers[0].held(), 1);
    let quiesced = queues[1].quiesce();
    drivers[0].finish_one(Ok(()));
    settle(&all);
    assert_eq!(drivers[2].held(), 1, "it was the quiesced one's turn");
    drop(quiesced);
    settle(&all);
    assert_eq!(drivers[1].held(), 0);
    drivers[2].finish_one(Ok(()));
    settle(&all);
    assert_eq!(drivers[1].held(), 1, "and it has lost nothing but its turn");
    drivers[1].finish_all();
    assert_eq!(tags.in_use(), 0);
}

#[test]
fn stepped_a_queue_that_is_dropped_while_it_waits_leaves_the_line() {
    let (one, other) = (Held::default(), Held::default());
    let tags = TagSet::new(1, 4);
    let (first, second) = (queue(&one, &tags), queue(&other, &tags));
    first.submit(block(0));
    settle(&[&first]);
    let waiting = submit(&*second, block(1));
    settle(&[&second]);
    drop(second);
    assert!(waiting.recv().unwrap().result.is_err());
    one.finish_one(Ok(()));
    assert_eq!(tags.in_use(), 0);
    first.submit(block(2));
    settle(&[&first]);
    assert_eq!(one.order(), [0, 2]);
    one.finish_all();
}

#[test]
fn stepped_a_thread_and_a_hardware_queue_wait_in_one_line() {
    let driver = Held::default();
    let tags = TagSet::new(1, 4);
    let queue = queue(&driver, &tags);
    let mine = tags.get(0);
    queue.submit(block(0));
    settle(&[&queue]);
    assert_eq!((driver.held(), tags.try_get(0)), (0, None));
    tags.put(0, mine);
    assert_eq!(tags.try_get(0), None, "it is the hardware queue's");
    settle(&[&queue]);
    assert_eq!(driver.held(), 1);
    driver.finish_one(Ok(()));
    assert_eq!(tags.try_get(0), Some(mine));
    tags.put(0, mine);
}
