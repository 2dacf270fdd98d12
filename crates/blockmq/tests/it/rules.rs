//! Rules of the block layer's mechanism that aren't in the name of another test; the table in
//! `src/README.md` has all.
#![cfg(not(loom))]

use std::sync::{Arc, mpsc};

use crate::common::{Held, Rig, STALL, block, by_hand, submit, watched};
use corewise_blockmq::model::{ByHand, RunOutcome};
use corewise_blockmq::{
    BlockDevice, BlockDeviceExt, Dispatch, Driver, Geometry, Info, NowaitError, Queue, Started,
};
use corewise_sync::Mutex;
use corewise_sync::atomic::{AtomicBool, AtomicU32, Ordering};

#[test]
fn stepped_rule_6_a_dispatch_looks_at_the_gate_between_two_requests() {
    let driver = Held::default();
    let queue = by_hand(&driver, 8);
    let inner = Arc::clone(&queue);
    let quiesced = Arc::new(Mutex::new(Vec::new()));
    let theirs = Arc::clone(&quiesced);
    driver.instead(move |rq| {
        theirs.lock().push(inner.quiesce_nowait());
        rq.complete(Ok(()));
        Dispatch::Started
    });
    let first = submit(&*queue, block(1));
    let second = submit(&*queue, block(2));
    assert_eq!(queue.step(0), Some(RunOutcome::Done { passes: 1 }));
    first.try_recv().unwrap().result.unwrap();
    assert!(second.try_recv().is_err(), "it was started behind the quiesce");
    driver.keep();
    quiesced.lock().clear();
    let _ = queue.step(0).unwrap();
    assert_eq!(driver.order(), [2]);
    driver.finish_all();
}

#[test]
fn stepped_rule_7_many_queues_are_quiesced_together_and_opened_one_by_one() {
    let drivers = [Held::default(), Held::default(), Held::default()];
    let queues: Vec<_> = drivers.iter().map(|driver| by_hand(driver, 8)).collect();
    let quiesced = Queue::quiesce_all(&queues);
    for (n, queue) in queues.iter().enumerate() {
        queue.submit(block(n as u64));
        assert_eq!(queue.step(0), Some(RunOutcome::Refused), "inserts go on, dispatch doesn't");
    }
    for ((queue, driver), quiesced) in queues.iter().zip(&drivers).zip(quiesced) {
        drop(quiesced);
        let _ = queue.step(0).unwrap();
        assert_eq!(driver.held(), 1);
        driver.finish_all();
    }
}

#[test]
fn after_a_quiesce_no_dispatch_is_in_progress() {
    /// A driver that reports when it is inside `queue_request`, and stays there until it is let go.
    struct Slow {
        entered: Mutex<mpsc::Sender<()>>,
        go: Mutex<mpsc::Receiver<()>>,
        left: Arc<AtomicBool>,
    }
    impl Driver for Slow {
        fn info(&self) -> Info {
            Info::new("slow", Geometry::new(1 << 20))
        }
        fn queue_request(&self, _hctx: usize, rq: Started) -> Dispatch {
            self.entered.lock().send(()).unwrap();
            self.go.lock().recv().unwrap();
            self.left.store(true, Ordering::SeqCst);
            rq.complete(Ok(()));
            Dispatch::Started
        }
    }
    let rig = Rig::live();
    let (entered, has_entered) = mpsc::channel();
    let (go, may_go) = mpsc::channel();
    let left = Arc::new(AtomicBool::new(false));
    let queue = rig.queue(Slow {
        entered: Mutex::new(entered),
        go: Mutex::new(may_go),
        left: left.clone(),
    });
    std::thread::scope(|scope| {
        scope.spawn(|| queue.discard(0, 512).unwrap());
        has_entered.recv().unwrap();
        let quiescer = scope.spawn(|| {
            let quiesced = queue.quiesce();
            assert!(left.load(Ordering::SeqCst), "quiesce returned during a dispatch");
            quiesced
        });
        while !queue.is_quiesced() {
            std::thread::yield_now();
        }
        go.send(()).unwrap();
        drop(quiescer.join().unwrap());
    });
    assert!(!queue.is_quiesced());
}

#[test]
fn stepped_rule_8_the_unquiescer_dispatches_nothing_itself() {
    let driver = Held::default();
    let queue = by_hand(&driver, 8);
    let quiesced = queue.quiesce();
    queue.submit(block(1));
    let _ = queue.step(0);
    drop(quiesced);
    assert_eq!(driver.held(), 0, "it would recurse, or block in an atomic section");
    assert!(queue.step(0).is_some(), "it asks somebody else");
    driver.finish_all();
}

#[test]
fn stepped_rule_11_a_freeze_runs_what_is_inside_once_more() {
    let driver = Held::with_queues(2);
    let queue = by_hand(&driver, 8);
    queue.submit_on(queue.hctx_cpus(1)[0], block(1));
    // A run that finds the queue quiesced leaves the request where it is.
    let quiesced = queue.quiesce();
    assert!(queue.step(1).is_some());
    let frozen = queue.start_freeze();
    assert!(queue.step(1).is_some(), "what is pending is run");
    assert!(queue.step(0).is_none(), "nobody is sent to look where there is nothing");
    drop(quiesced);
    let _ = queue.step(1);
    driver.finish_all();
    drop(frozen);
    assert_eq!((queue.step(0), queue.step(1)), (None, None), "nobody waited outside");
}

#[test]
fn stepped_rule_11_start_to_freeze_then_unquiesce_then_wait_cannot_deadlock() {
    let driver = Held::default();
    driver.at_once();
    let queue = by_hand(&driver, 8);
    let quiesced = queue.quiesce();
    let inside = submit(&*queue, block(1));
    let _ = queue.step(0);
    let frozen = queue.start_freeze();
    let outside = submit(&*queue, block(2));
    assert_eq!(queue.inside(), 1, "quiesced, it can't become empty");
    drop(quiesced);
    let _ = queue.step(0).unwrap();
    let again = queue.freeze();
    inside.try_recv().unwrap().result.unwrap();
    assert!(outside.try_recv().is_err());
    drop((frozen, again));
    let _ = queue.step(0).unwrap();
    outside.try_recv().unwrap().result.unwrap();
}

#[test]
fn stepped_a_request_that_must_not_wait_comes_back_from_a_frozen_queue() {
    let driver = Held::default();
    let queue = by_hand(&driver, 8);
    let frozen = queue.start_freeze();
    let (rq, done) = watched(block(1));
    let back = queue.submit_nowait(rq).unwrap_err();
    assert_eq!(back.error, NowaitError::Frozen);
    assert!(done.try_recv().is_err(), "it is neither completed nor waiting outside");
    drop(frozen);
    assert_eq!(queue.inside(), 0);
    queue.submit_nowait(*back.request).unwrap();
    let _ = queue.step(0).unwrap();
    driver.finish_all();
    done.recv().unwrap().result.unwrap();
    let refused = watched(block(1 << 40));
    queue.submit_nowait(refused.0).unwrap();
    assert!(refused.1.recv().unwrap().result.is_err(), "what is refused completes as ever");
    assert_eq!(queue.inside(), 0);
}

#[test]
fn rule_18_waiting_requests_go_before_a_direct_start() {
    let rig = Rig::live();
    let driver = Held::default();
    let queue = rig.queue(driver.clone());
    let first = Arc::new(AtomicU32::new(0));
    let tries = Arc::clone(&first);
    driver.instead(move |rq| {
        tries.fetch_add(1, Ordering::Relaxed);
        Dispatch::Busy(rq)
    });
    let one = submit(&*queue, block(1));
    assert_ne!(first.load(Ordering::Relaxed), 0, "the submitter is the runner");
    driver.keep();
    let two = submit(&*queue, block(2));
    while driver.held() != 2 {
        std::thread::yield_now();
    }
    assert_eq!(driver.order(), [1, 2]);
    driver.finish_all();
    for done in [one, two] {
        done.recv_timeout(STALL).unwrap().result.unwrap();
    }
}

#[test]
fn submitted_requests_run_although_the_iterator_of_their_batch_panics() {
    let rig = Rig::live();
    let driver = Held::default();
    let queue = rig.queue(driver.clone());
    let (rq, first) = watched(block(1));
    let (held_back, second) = watched(block(2));
    let mut batch = [rq, held_back].into_iter().chain(std::iter::from_fn(|| panic!("on purpose")));
    let panicked =
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| queue.submit_batch(&mut batch)));
    assert!(panicked.is_err());
    while driver.held() != 1 {
        std::thread::yield_now();
    }
    driver.finish_all();
    first.recv_timeout(STALL).unwrap().result.unwrap();
    // The second request had not been taken in yet.
    assert_eq!(
        second.recv_timeout(STALL).unwrap().result.unwrap_err().kind(),
        corewise_blockmq::IoErrorKind::Gone
    );
    queue.drain();
}
