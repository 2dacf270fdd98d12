//! A queue stepped by hand on one thread, in orders that the test chooses.
#![cfg(not(loom))]

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common::{Held, Ram, block, by_hand, settle, submit, watched};
use corewise_blockmq::model::{ByHand, RunOutcome};
use corewise_blockmq::{BlockDevice, BlockDeviceExt, Dispatch, IoErrorKind, Queue, Request};
use corewise_sync::atomic::{AtomicU32, Ordering};
use corewise_topology::CpuId;

#[test]
fn stepped_requests_that_come_during_a_quiesce_run_after_the_unquiesce() {
    let driver = Held::default();
    let queue = by_hand(&driver, 8);
    let quiesced = queue.quiesce();
    let done = submit(&*queue, block(1));
    assert_eq!(queue.step(0), Some(RunOutcome::Refused));
    assert_eq!(driver.held(), 0, "a quiesced queue dispatches nothing");
    assert_eq!(queue.inside(), 1, "and yet takes requests in");
    assert_eq!(queue.step(0), None, "nobody asks again while it is quiesced");
    drop(quiesced);
    assert_eq!(queue.step(0), Some(RunOutcome::Done { passes: 1 }));
    driver.finish_one(Ok(()));
    done.recv().unwrap().result.unwrap();
    let stats = queue.stats()[0];
    assert_eq!((stats.refused, stats.after_unquiesce, stats.completed), (1, 1, 1));
}

#[test]
fn stepped_only_the_last_of_nested_unquiesces_runs_the_queue() {
    let driver = Held::default();
    let queue = by_hand(&driver, 8);
    let quiesced = [queue.quiesce(), queue.quiesce()];
    queue.submit(block(1));
    settle(&[&queue]);
    let [first, second] = quiesced;
    drop(first);
    settle(&[&queue]);
    assert_eq!((driver.held(), queue.is_quiesced()), (0, true));
    drop(second);
    settle(&[&queue]);
    assert_eq!(driver.held(), 1);
    driver.finish_all();
}

#[test]
fn stepped_an_unquiesce_runs_every_hardware_queue_with_requests_and_no_other() {
    let driver = Held::with_queues(4);
    let queue = by_hand(&driver, 8);
    assert_eq!(queue.hw_queues(), 4);
    let quiesced = queue.quiesce();
    queue.submit_on(CpuId::new(1), block(1));
    queue.submit_on(CpuId::new(3), block(3));
    settle(&[&queue]);
    drop(quiesced);
    let wanted: Vec<_> = (0..4).map(|h| queue.step(h).is_some()).collect();
    assert_eq!(wanted, [false, true, false, true]);
    assert_eq!(driver.held(), 2);
    driver.finish_all();
}

#[test]
fn stepped_a_quiesce_does_not_wait_for_requests_in_the_driver() {
    let driver = Held::default();
    let queue = by_hand(&driver, 8);
    let done = submit(&*queue, block(1));
    settle(&[&queue]);
    let quiesced = queue.quiesce();
    assert!(done.try_recv().is_err(), "still in flight");
    driver.finish_one(Ok(()));
    done.recv().unwrap().result.unwrap();
    drop(quiesced);
}

#[test]
fn stepped_a_tag_shortage_is_ended_by_the_next_completion_in_order() {
    let driver = Held::default();
    let queue = by_hand(&driver, 2);
    for n in 0..5 {
        queue.submit(block(n));
    }
    settle(&[&queue]);
    assert_eq!(driver.order(), [0, 1]);
    driver.finish_one(Ok(()));
    assert!(queue.step(0).is_some(), "the free tag asks for a restart");
    assert_eq!(driver.order(), [0, 1, 2]);
    // A request that comes now must not overtake those on the dispatch list.
    queue.submit(block(9));
    while driver.held() != 0 {
        driver.finish_one(Ok(()));
        settle(&[&queue]);
    }
    assert_eq!(driver.order(), [0, 1, 2, 3, 4, 9]);
    let stats = queue.stats()[0];
    assert!(stats.tag_waits >= 1);
    assert_eq!((stats.dispatched, stats.completed, stats.in_flight), (6, 6, 0));
}

#[test]
fn stepped_a_tag_freed_while_quiesced_is_used_after_the_unquiesce() {
    let driver = Held::default();
    let queue = by_hand(&driver, 1);
    queue.submit(block(0));
    queue.submit(block(1));
    settle(&[&queue]);
    let quiesced = queue.quiesce();
    driver.finish_one(Ok(()));
    settle(&[&queue]);
    assert_eq!(driver.held(), 0);
    drop(quiesced);
    settle(&[&queue]);
    assert_eq!(driver.held(), 1, "the restart that was refused must not be forgotten");
    driver.finish_all();
}

#[test]
fn stepped_a_busy_driver_gets_its_request_back_after_a_completion() {
    let driver = Held::default();
    let queue = by_hand(&driver, 8);
    queue.submit(block(0));
    settle(&[&queue]);
    driver.instead(Dispatch::Busy);
    queue.submit(block(1));
    settle(&[&queue]);
    assert_eq!(queue.stats()[0].busy, 1);
    assert_eq!(queue.step(0), None, "with a request in flight, nobody polls");
    driver.keep();
    driver.finish_one(Ok(()));
    settle(&[&queue]);
    assert_eq!(driver.order(), [0, 1]);
    driver.finish_all();
    assert_eq!(queue.stats()[0].in_flight, 0, "the tag of the busy request came back");
}

#[test]
fn stepped_a_busy_driver_with_nothing_in_flight_is_asked_again_by_somebody_else() {
    let driver = Held::default();
    let queue = by_hand(&driver, 8);
    driver.instead(Dispatch::Busy);
    queue.submit(block(1));
    assert_eq!(queue.step(0), Some(RunOutcome::Busy { passes: 1 }));
    driver.keep();
    assert_eq!(queue.step(0), Some(RunOutcome::Done { passes: 1 }));
    assert_eq!(driver.order(), [1]);
    driver.finish_all();
}

#[test]
fn a_driver_that_stays_busy_costs_no_core_and_its_request_runs_in_the_end() {
    let rig = crate::common::Rig::live();
    let driver = Held::default();
    let asked = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&asked);
    const BUSY: u32 = 20;
    driver.instead(move |rq| {
        if count.fetch_add(1, Ordering::Relaxed) < BUSY {
            return Dispatch::Busy(rq);
        }
        rq.complete(Ok(()));
        Dispatch::Started
    });
    let queue = rig.queue(driver);
    let begin = Instant::now();
    queue.discard(0, 512).unwrap();
    // There is no upper limit: the test asserts only that the worker slept, which a slow machine
    // can't make shorter. The first tries of the submitter and of the worker come without a pause.
    assert!(begin.elapsed() >= Duration::from_millis(3) * (BUSY - 2));
    assert_eq!(asked.load(Ordering::Relaxed), BUSY + 1);
}

#[test]
fn stepped_a_runner_is_let_go_after_its_budget_and_another_goes_on() {
    let driver = Held::default();
    let queue = by_hand(&driver, 100);
    for n in 0..70 {
        queue.submit(block(n));
    }
    assert_eq!(queue.step(0), Some(RunOutcome::HandOver { passes: 1 }));
    let first = driver.held();
    assert!(0 < first && first < 70, "one pass is bounded: {first}");
    settle(&[&queue]);
    assert_eq!(driver.order(), (0..70).collect::<Vec<_>>());
    assert!(queue.stats()[0].handed_over >= 1);
    driver.finish_all();
}

#[test]
fn stepped_a_frozen_queue_keeps_new_requests_outside_until_the_last_thaw() {
    let driver = Held::default();
    let queue = by_hand(&driver, 8);
    queue.submit(block(0));
    settle(&[&queue]);
    let first = queue.start_freeze();
    let second = queue.start_freeze();
    let late = submit(&*queue, block(1));
    settle(&[&queue]);
    assert_eq!((queue.inside(), driver.held()), (1, 1));
    driver.finish_one(Ok(()));
    assert_eq!(queue.inside(), 0);
    drop(queue.freeze());
    drop(first);
    settle(&[&queue]);
    assert_eq!(driver.held(), 0);
    drop(second);
    settle(&[&queue]);
    driver.finish_one(Ok(()));
    late.recv().unwrap().result.unwrap();
    assert_eq!(queue.inside(), 0);
}

#[test]
fn stepped_each_cpu_keeps_its_order_on_a_shared_hardware_queue() {
    let driver = Held::default();
    let queue = by_hand(&driver, 100);
    for n in 0..10 {
        queue.submit_on(CpuId::new(0), block(n));
        queue.submit_on(CpuId::new(2), block(100 + n));
    }
    settle(&[&queue]);
    let order = driver.order();
    let of = |range: std::ops::Range<u64>| -> Vec<_> {
        order.iter().copied().filter(|n| range.contains(n)).collect()
    };
    assert_eq!(of(0..100), (0..10).collect::<Vec<_>>());
    assert_eq!(of(100..200), (100..110).collect::<Vec<_>>());
    driver.finish_all();
}

#[test]
fn stepped_a_request_that_the_driver_drops_completes_as_gone() {
    let driver = Held::default();
    let queue = by_hand(&driver, 1);
    driver.instead(|rq| {
        drop(rq);
        Dispatch::Started
    });
    let done = submit(&*queue, block(1));
    settle(&[&queue]);
    assert_eq!(done.recv().unwrap().result.unwrap_err().kind(), IoErrorKind::Gone);
    assert!(done.recv().is_err(), "exactly once");
    assert_eq!((queue.inside(), queue.stats()[0].in_flight), (0, 0));
}

/// Panics with a payload that panics once more when it is dropped.
fn panic_twice() -> ! {
    struct Nasty;
    impl Drop for Nasty {
        fn drop(&mut self) {
            panic!("on purpose, again");
        }
    }
    std::panic::panic_any(Nasty)
}

#[test]
fn stepped_a_panic_that_panics_when_it_is_dropped_stops_no_queue() {
    let driver = Held::default();
    let queue = by_hand(&driver, 1);
    driver.instead(|_rq| panic_twice());
    let first = submit(&*queue, block(1));
    settle(&[&queue]);
    assert_eq!(first.recv().unwrap().result.unwrap_err().kind(), IoErrorKind::Gone);
    driver.keep();
    queue.submit(block(2).on_complete(|_| panic_twice()));
    settle(&[&queue]);
    driver.finish_one(Ok(()));
    drop(queue.freeze()); // no request is inside any more
    let third = submit(&*queue, block(3));
    settle(&[&queue]);
    driver.finish_one(Ok(()));
    third.recv().unwrap().result.unwrap();
}

#[test]
fn stepped_a_quiesce_inside_a_dispatch_is_refused_and_not_a_deadlock() {
    let driver = Held::default();
    let queue = by_hand(&driver, 8);
    let inner = Arc::downgrade(&queue);
    driver.instead(move |rq| {
        drop(inner.upgrade().unwrap().quiesce());
        rq.complete(Ok(()));
        Dispatch::Started
    });
    let done = submit(&*queue, block(1));
    settle(&[&queue]);
    assert_eq!(done.recv().unwrap().result.unwrap_err().kind(), IoErrorKind::Gone);
    assert!(!queue.is_quiesced(), "the refused quiesce left nothing behind");
}

#[test]
fn stepped_a_quiesce_without_waiting_is_allowed_inside_a_completion() {
    let driver = Held::default();
    let queue = by_hand(&driver, 8);
    let inner = Arc::clone(&queue);
    let (tx, quiesced) = std::sync::mpsc::channel();
    queue.submit(block(1).on_complete(move |_| tx.send(inner.quiesce_nowait()).unwrap()));
    settle(&[&queue]);
    driver.finish_one(Ok(()));
    assert!(queue.is_quiesced());
    drop(quiesced.recv().unwrap());
    assert!(!queue.is_quiesced());
}

#[test]
fn stepped_requests_of_a_dropped_queue_complete_as_gone() {
    let driver = Held::default();
    let queue = by_hand(&driver, 1);
    let in_driver = submit(&*queue, block(0));
    let on_list = submit(&*queue, block(1));
    settle(&[&queue]);
    let inserted = submit(&*queue, block(2));
    let frozen = queue.start_freeze();
    let outside = submit(&*queue, block(3));
    drop(queue);
    drop(frozen);
    driver.finish_one(Ok(()));
    in_driver.recv().unwrap().result.unwrap();
    for done in [on_list, inserted, outside] {
        assert_eq!(done.recv().unwrap().result.unwrap_err().kind(), IoErrorKind::Gone);
    }
}

#[test]
fn stepped_a_batch_is_dispatched_by_one_run() {
    let driver = Held::default();
    let queue = by_hand(&driver, 8);
    queue.submit_batch(&mut (0..5).map(block));
    settle(&[&queue]);
    assert_eq!(driver.order(), [0, 1, 2, 3, 4]);
    assert_eq!(queue.stats()[0].runs, 1);
    driver.finish_all();
}

#[test]
fn stepped_refused_requests_complete_at_once_and_never_reach_the_driver() {
    let driver = Held::default();
    let queue = by_hand(&driver, 8);
    let end = queue.geometry().size;
    let kind = |rq| {
        let (rq, done) = watched(rq);
        queue.submit(rq);
        done.try_recv().unwrap().result.map_err(|e| e.kind())
    };
    assert_eq!(kind(Request::read(end, 512)), Err(IoErrorKind::OutOfRange));
    assert_eq!(kind(Request::write(end, vec![0; 512])), Err(IoErrorKind::NoSpace));
    assert_eq!(kind(Request::read(1, 512)), Err(IoErrorKind::InvalidInput));
    assert_eq!(kind(Request::read(0, usize::MAX & !511)), Err(IoErrorKind::InvalidInput));
    assert_eq!(kind(Request::read(0, 0)), Ok(()));
    assert_eq!(queue.step(0), None);
}

#[test]
fn a_completion_that_submits_the_next_one_runs_in_bounded_stack() {
    // On a device that completes inside its dispatch, each submission would nest in the last one
    // without RERUN.
    let rig = crate::common::Rig::live();
    let queue = rig.queue(Ram::new(1 << 20));
    let (tx, rx) = std::sync::mpsc::channel();
    fn next(queue: Arc<Queue>, left: u32, tx: std::sync::mpsc::Sender<()>) {
        let again = Arc::clone(&queue);
        queue.submit(block(u64::from(left % 2)).on_complete(move |_| {
            if left == 0 { tx.send(()).unwrap() } else { next(again, left - 1, tx) }
        }));
    }
    next(Arc::clone(&queue), 200_000, tx);
    rx.recv_timeout(crate::common::STALL).unwrap();
    queue.flush().unwrap();
}
