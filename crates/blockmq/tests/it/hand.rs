//! Requests submitted inside a queue's own dispatch: they stay in the runner's hand, and go the
//! usual way if the runner has to stop.
#![cfg(not(loom))]

use std::sync::{Arc, mpsc};

use crate::common::{Front, Held, Ram, Rig, STALL, block, by_hand, settle};
use corewise_blockmq::model::ByHand;
use corewise_blockmq::{
    BlockDevice, Dispatch, Driver, Geometry, HctxStats, Info, Queue, Request, Started,
};
use corewise_sync::Mutex;

/// Number of requests that is below what a visitor starts before a worker goes on.
const CHAIN: usize = 200;

/// Submits requests each of whose completions submits the next; the last one reports how the queue
/// was run till then.
fn chain(queue: Arc<Queue>, left: usize, over: mpsc::Sender<HctxStats>) {
    let next = Arc::clone(&queue);
    queue.submit(Request::read(0, 512).on_complete(move |done| {
        done.result.unwrap();
        if left > 1 {
            chain(next, left - 1, over);
        } else {
            over.send(next.stats()[0]).unwrap();
        }
    }));
}

/// Runs a chain on a queue. Returns how often a thread found it run by another, and how often it
/// was run.
fn joined_by_a_chain(queue: &Arc<Queue>) -> (u64, u64) {
    let (over, told) = mpsc::channel();
    chain(Arc::clone(queue), CHAIN, over);
    let stats = told.recv_timeout(STALL).unwrap();
    queue.drain();
    (stats.joined, stats.runs)
}

#[test]
fn requests_that_a_completion_submits_inside_its_dispatch_are_not_published() {
    let rig = Rig::synthetic("core:1 pu:1");
    let queue = rig.queue(Ram::new(4096));
    assert_eq!(joined_by_a_chain(&queue), (0, 1));
}

#[test]
fn nor_where_the_dispatch_of_a_device_below_is_in_between() {
    let rig = Rig::synthetic("core:1 pu:1");
    let below: Arc<dyn BlockDevice> = rig.queue(Ram::new(4096));
    let queue = rig.queue(Front(below, 4096));
    assert_eq!(joined_by_a_chain(&queue), (0, 1));
}

/// A driver that completes its requests in the commit.
#[derive(Default)]
struct InCommit(Mutex<Vec<Started>>);

impl Driver for InCommit {
    fn info(&self) -> Info {
        Info { merges: false, ..Info::new("in commit", Geometry::new(4096)) }
    }

    fn queue_request(&self, _hctx: usize, rq: Started) -> Dispatch {
        self.0.lock().push(rq);
        Dispatch::Started
    }

    fn commit(&self, _hctx: usize) {
        let all = std::mem::take(&mut *self.0.lock());
        all.into_iter().for_each(|mut rq| {
            rq.put_zeroes(512);
            rq.complete(Ok(()));
        });
    }
}

#[test]
fn requests_submitted_in_the_commit_go_with_the_next_pass() {
    let rig = Rig::synthetic("core:1 pu:1");
    let queue = rig.queue(InCommit::default());
    // A pass each: a visitor makes eight, and workers the rest.
    assert_eq!(joined_by_a_chain(&queue).0, 0);
}

/// Submits block 0 and runs `act` in its completion, inside the dispatch. Others complete at once.
fn inside_a_dispatch(
    driver: &Held,
    queue: &Arc<Queue>,
    f: impl FnOnce(&Arc<Queue>) + Send + 'static,
) {
    let order = Arc::clone(&driver.order);
    driver.instead(move |rq| {
        order.lock().push(rq.offset() / 512);
        rq.complete(Ok(()));
        Dispatch::Started
    });
    let theirs = Arc::downgrade(queue);
    queue.submit(block(0).on_complete(move |_| f(&theirs.upgrade().unwrap())));
    assert!(queue.step(0).is_some());
}

#[test]
fn stepped_one_by_one_or_as_a_batch_they_go_in_the_order_of_their_submission() {
    let driver = Held::default();
    let queue = by_hand(&driver, 8);
    inside_a_dispatch(&driver, &queue, |queue| {
        queue.submit(block(1));
        queue.submit_batch(&mut (2..5).map(block));
        queue.submit(block(5));
        queue.submit_batch(&mut (6..8).map(block));
    });
    settle(&[&queue]);
    assert_eq!(driver.order(), (0..8).collect::<Vec<_>>());
    queue.drain();
}

#[test]
fn stepped_requests_in_the_runners_hand_at_a_quiesce_wait_for_the_unquiesce() {
    let driver = Held::default();
    let queue = by_hand(&driver, 8);
    let quiesced = Arc::new(Mutex::new(None));
    let theirs = Arc::clone(&quiesced);
    inside_a_dispatch(&driver, &queue, move |queue| {
        queue.submit(block(1));
        *theirs.lock() = Some(queue.quiesce_nowait());
        queue.submit(block(2));
    });
    settle(&[&queue]);
    assert_eq!(driver.order(), [0]);
    drop(quiesced.lock().take());
    assert!(queue.step(0).is_some(), "who opens it has seen what is left");
    assert_eq!(driver.order(), [0, 1, 2]);
    queue.drain();
}

#[test]
fn stepped_requests_in_the_runners_hand_survive_a_panic_of_the_driver() {
    let driver = Held::default();
    let queue = by_hand(&driver, 8);
    let order = Arc::clone(&driver.order);
    driver.instead(move |rq| {
        let block = rq.offset() / 512;
        order.lock().push(block);
        rq.complete(Ok(()));
        assert!(block != 0, "a panic on purpose");
        Dispatch::Started
    });
    let theirs = Arc::downgrade(&queue);
    queue.submit(block(0).on_complete(move |_| theirs.upgrade().unwrap().submit(block(1))));
    settle(&[&queue]);
    assert_eq!(driver.order(), [0, 1]);
    queue.drain();
}
