//! A queue has room for a bounded number of requests; a submitter of more waits for room, if it
//! may.
#![cfg(not(loom))]

use std::sync::mpsc;
use std::sync::{Arc, Weak};

use crate::common::{Held, Rig, STALL, Slow, block, watched};
use corewise_blockmq::{BlockDevice, NowaitError, Plug, Queue};
use corewise_sync::Mutex;
use corewise_sync::atomic::{AtomicU64, Ordering};
use corewise_sync::context::AtomicSection;

const ROOM: u32 = 4;

/// Makes a queue on one CPU, with room for four.
fn small(rig: &Rig, driver: &Held) -> Arc<Queue> {
    Queue::builder(&rig.machine, Arc::new(driver.clone())).nr_requests(ROOM).build(&rig.wq)
}

fn rig() -> Rig {
    Rig::synthetic("l3:1 core:1 pu:1")
}

fn until(mut is: impl FnMut() -> bool) {
    while !is() {
        std::thread::yield_now();
    }
}

#[test]
fn a_thread_that_submits_more_than_there_is_room_for_waits_until_there_is() {
    let (rig, driver) = (rig(), Held::default());
    let queue = small(&rig, &driver);
    let (tx, done) = mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 0..50 {
                let tx = tx.clone();
                queue.submit(block(n).on_complete(move |done| tx.send(done).unwrap()));
            }
        });
        until(|| queue.inside() == u64::from(ROOM));
        let mut ended = 0;
        while ended < 50 {
            let inside = queue.inside();
            assert!(inside <= u64::from(ROOM), "{inside} inside");
            if driver.held() > 0 {
                driver.finish_one(Ok(()));
                done.recv_timeout(STALL).unwrap().result.unwrap();
                ended += 1;
            }
            std::thread::yield_now();
        }
    });
}

#[test]
fn in_an_atomic_section_nobody_waits_for_room() {
    let (rig, driver) = (rig(), Held::default());
    let queue = small(&rig, &driver);
    {
        let _section = AtomicSection::enter("test");
        (0..10).for_each(|n| queue.submit(block(n)));
    }
    assert_eq!(queue.inside(), 10);
    let back = queue.submit_nowait(block(10)).unwrap_err();
    assert_eq!(back.error, NowaitError::Full);
    let frozen = queue.start_freeze();
    let back = queue.submit_nowait(*back.request).unwrap_err();
    assert_eq!(
        back.error,
        NowaitError::Frozen,
        "there is no room either, and more than that is missing"
    );
    drop(frozen);
    driver.finish_all();
    queue.submit_nowait(*back.request).unwrap();
    driver.finish_all();
}

#[test]
fn outside_of_a_frozen_queue_there_is_the_same_room_and_further_submitters_wait_for_the_thaw() {
    let (rig, driver) = (rig(), Held::default());
    driver.at_once();
    let queue = small(&rig, &driver);
    let (tx, done) = mpsc::channel();
    let sent = AtomicU64::new(0);
    let mut frozen = Some(queue.freeze());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 0..50 {
                let tx = tx.clone();
                queue.submit(block(n).on_complete(move |done| tx.send(done).unwrap()));
                sent.fetch_add(1, Ordering::Relaxed);
            }
        });
        until(|| sent.load(Ordering::Relaxed) == u64::from(ROOM));
        (0..1000).for_each(|_| std::thread::yield_now());
        assert_eq!(sent.load(Ordering::Relaxed), u64::from(ROOM));
        drop(frozen.take());
        for _ in 0..50 {
            done.recv_timeout(STALL).unwrap().result.unwrap();
        }
    });
}

#[test]
fn a_batch_that_is_larger_than_the_room_makes_its_own() {
    let (rig, driver) = (rig(), Held::default());
    driver.at_once();
    let queue = small(&rig, &driver);
    let (tx, done) = mpsc::channel();
    let other = Arc::clone(&queue);
    let thread = std::thread::spawn(move || {
        other.submit_batch(&mut (0..50).map(|n| {
            let tx = tx.clone();
            block(n).on_complete(move |done| tx.send(done).unwrap())
        }));
    });
    for _ in 0..50 {
        done.recv_timeout(STALL).unwrap().result.unwrap();
    }
    thread.join().unwrap();
}

#[test]
fn a_waiter_for_room_in_a_dropped_queue_is_answered() {
    let (rig, driver) = (rig(), Held::default());
    let queue = small(&rig, &driver);
    let (requests, done): (Vec<_>, Vec<_>) = (0..20).map(|n| watched(block(n))).unzip();
    let weak: Weak<Queue> = Arc::downgrade(&queue);
    let thread = std::thread::spawn(move || {
        let plug = Plug::start();
        let queue = weak.upgrade().unwrap();
        requests.into_iter().for_each(|rq| queue.submit(rq));
        // From here on only the plug holds them.
        drop(queue);
        drop(plug);
    });
    until(|| driver.held() == ROOM as usize);
    drop(queue);
    driver.finish_all();
    let ended = done.into_iter().map(|done| done.recv_timeout(STALL).unwrap().result);
    assert_eq!(ended.filter(Result::is_ok).count(), ROOM as usize);
    thread.join().unwrap();
}

/// Runs a driver that may block, and whose first commit submits ten requests to its own queue: more
/// than there is room for.
#[test]
fn a_driver_that_may_block_submits_to_its_own_full_or_frozen_queue_without_a_wait() {
    [false, true].into_iter().for_each(feed_own_queue);
}

fn feed_own_queue(freezes: bool) {
    let (rig, driver) = (rig(), Arc::new(Slow::default()));
    let (done, told) = mpsc::channel();
    let queue = Queue::builder(&rig.machine, driver.clone()).nr_requests(ROOM).build(&rig.wq);
    let fed = Arc::downgrade(&queue);
    let frozen = Arc::new(Mutex::new(None));
    let theirs = Arc::clone(&frozen);
    *driver.first_commit.lock() = Some(Box::new(move || {
        let queue = fed.upgrade().unwrap();
        *theirs.lock() = freezes.then(|| queue.start_freeze());
        let tell = || {
            let done = done.clone();
            move |_| done.send(()).unwrap()
        };
        for n in 0..5 {
            queue.submit(block(n).on_complete(tell()));
            queue.submit_batch(&mut std::iter::once(block(n).on_complete(tell())));
        }
        done.send(()).unwrap();
    }));
    queue.submit(block(0));
    let wait = || told.recv_timeout(STALL).expect("a runner waits for room that only it can make");
    if freezes {
        wait();
        drop(queue.freeze());
        drop(frozen.lock().take());
        (0..10).for_each(|_| wait());
    } else {
        (0..11).for_each(|_| wait());
    }
    queue.drain();
}
