//! Many submitters against somebody who quiesces and freezes all the time: nothing stalls
//! and nothing is lost. A stall is found by a wait with a deadline, never by a sleep.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used)] // a test says what it expects by unwrapping it

mod common;

use std::sync::Arc;
use std::sync::mpsc;

use common::{Rig, storm};
use corewise_blockmq::{BlockDeviceExt, Dispatch, Driver, Geometry, Info, Started};
use corewise_sync::Mutex;
use corewise_sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Completes requests on a thread of its own, a few at a time, so that tags run short.
struct Elsewhere {
    to: Mutex<mpsc::Sender<Started>>,
    hw_queues: usize,
    /// A: requests inside `queue_request`, by hardware queue: never more than one.
    inside: [AtomicU64; 8],
}

impl Elsewhere {
    fn new(hw_queues: usize) -> (Self, std::thread::JoinHandle<()>) {
        let (tx, rx) = mpsc::channel::<Started>();
        let thread = std::thread::spawn(move || {
            for rq in rx {
                rq.complete(Ok(()));
            }
        });
        let inside = std::array::from_fn(|_| AtomicU64::new(0));
        (Self { to: Mutex::new(tx), hw_queues, inside }, thread)
    }
}

impl Driver for Elsewhere {
    fn info(&self) -> Info {
        Info {
            hw_queues: self.hw_queues,
            depth: 4,
            ..Info::new("elsewhere", Geometry::new(1 << 30))
        }
    }
    fn queue_request(&self, hctx: usize, rq: Started) -> Dispatch {
        assert_eq!(self.inside[hctx].fetch_add(1, Ordering::SeqCst), 0, "two runners at once");
        let sent = self.to.lock().send(rq);
        self.inside[hctx].fetch_sub(1, Ordering::SeqCst);
        assert!(sent.is_ok());
        Dispatch::Started
    }
}

#[test]
fn no_request_is_stranded_by_quiesce_and_unquiesce() {
    let rig = Rig::synthetic("l3:2 core:4 pu:1");
    let (driver, thread) = Elsewhere::new(2);
    let queue = rig.queue(driver);
    storm(&queue, 3, 70_000, |queue, rng| {
        let quiesced = if rng.below(2) == 0 { queue.quiesce() } else { queue.quiesce_nowait() };
        if rng.below(4) == 0 {
            drop(queue.quiesce());
        }
        drop(quiesced);
        for _ in 0..rng.below(64) {
            std::hint::spin_loop();
        }
    });
    let stats = queue.stats();
    assert!(stats.iter().map(|s| s.refused).sum::<u64>() > 0, "{stats:#?}");
    assert!(stats.iter().map(|s| s.after_unquiesce).sum::<u64>() > 0, "{stats:#?}");
    drop(queue);
    thread.join().unwrap();
}

#[test]
fn no_request_is_stranded_by_freezes_and_a_frozen_queue_is_empty() {
    let rig = Rig::synthetic("l3:2 core:4 pu:1");
    let (driver, thread) = Elsewhere::new(2);
    let queue = rig.queue(driver);
    storm(&queue, 3, 30_000, |queue, rng| {
        let _frozen = queue.freeze();
        assert_eq!(queue.stats().iter().map(|s| s.in_flight).sum::<u64>(), 0);
        if rng.below(2) == 0 {
            // The order that cannot deadlock: start to freeze, unquiesce, wait.
            drop(queue.quiesce_nowait());
        }
    });
    drop(queue);
    thread.join().unwrap();
}

#[test]
fn after_a_quiesce_no_dispatch_is_in_progress() {
    /// Says when it is inside `queue_request`, and stays there until it is let go.
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
