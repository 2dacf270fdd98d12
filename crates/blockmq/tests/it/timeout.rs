//! Timeouts: a driver hears of its late requests, and only of these.
#![cfg(not(loom))]

use std::sync::{Arc, mpsc};
use std::time::Duration;

use crate::common::{Held, Rig, STALL, block, submit, watched};
use corewise_blockmq::model::{BuildByHand, ByHand};
use corewise_blockmq::{
    BlockDevice, Dispatch, Driver, Geometry, Info, IoError, IoErrorKind, Queue, Started, TimedOut,
    TimerReturn,
};
use corewise_sync::Mutex;
use corewise_sync::atomic::{AtomicUsize, Ordering};
use corewise_sync::time::Stamp;
use corewise_topology::Machine;

const DEPTH: u32 = 8;
const AFTER: Duration = Duration::from_secs(30);

type Answer = Box<dyn Fn(&Table, &TimedOut<'_>) -> TimerReturn + Send + Sync>;

/// A driver that keeps its requests by tag, as drivers do, and answers timeouts as the test sets.
#[derive(Default)]
struct Table {
    requests: Mutex<[Option<Started>; DEPTH as usize]>,
    answer: Mutex<Option<Arc<Answer>>>,
    told: AtomicUsize,
}

impl Table {
    fn answering(
        answer: impl Fn(&Table, &TimedOut<'_>) -> TimerReturn + Send + Sync + 'static,
    ) -> Arc<Self> {
        let table = Table::default();
        *table.answer.lock() = Some(Arc::new(Box::new(answer)));
        Arc::new(table)
    }

    fn take(&self, tag: u32) -> Option<Started> {
        self.requests.lock()[tag as usize].take()
    }

    fn finish(&self, tag: u32, result: Result<(), IoError>) {
        self.take(tag).expect("the tag is in use").complete(result);
    }
}

/// Completes the late request.
fn give_up(table: &Table, late: &TimedOut<'_>) -> TimerReturn {
    table.finish(late.tag(), Err(IoError::new(IoErrorKind::TimedOut)));
    TimerReturn::Done
}

/// The driver behind a table that the test keeps.
struct Shared(Arc<Table>);

impl Driver for Shared {
    fn info(&self) -> Info {
        Info { depth: DEPTH, io_timeout: Some(AFTER), ..Info::new("table", Geometry::new(1 << 30)) }
    }

    fn queue_request(&self, _hctx: usize, rq: Started) -> Dispatch {
        let tag = rq.tag() as usize;
        let was = self.0.requests.lock()[tag].replace(rq);
        assert!(was.is_none(), "tag {tag} is given to two");
        Dispatch::Started
    }

    fn timeout(&self, late: &TimedOut<'_>) -> TimerReturn {
        self.0.told.fetch_add(1, Ordering::Relaxed);
        let answer = self.0.answer.lock().clone().expect("the test says what to answer");
        answer(&self.0, late)
    }
}

fn by_hand(table: &Arc<Table>) -> Arc<Queue> {
    let machine = Machine::synthetic("core:1 pu:1").unwrap();
    Queue::builder(&machine, Arc::new(Shared(Arc::clone(table)))).build_by_hand()
}

/// Returns the time this many periods from now, by the queue's clock.
fn later(periods: u32) -> Stamp {
    Stamp::coarse().plus(AFTER * periods + Duration::from_secs(1))
}

#[test]
fn a_late_request_is_told_once_and_ends_when_the_driver_gives_it_up() {
    let table = Table::answering(|table, late| {
        assert_eq!((late.offset(), late.len()), (512, 512));
        assert!(late.waited() >= AFTER);
        assert!(late.to_string().contains("discard of 512 bytes at 512"), "{late}");
        give_up(table, late)
    });
    let queue = by_hand(&table);
    let done = submit(&*queue, block(1));
    queue.step(0);
    assert_eq!(queue.step_timeouts(Stamp::coarse()), 0, "it is in time");
    assert_eq!(queue.step_timeouts(later(1)), 1);
    assert_eq!(done.try_recv().unwrap().result.unwrap_err().kind(), IoErrorKind::TimedOut);
    assert_eq!(queue.step_timeouts(later(9)), 0);
    assert_eq!((queue.inside(), queue.stats()[0].timeouts), (0, 1));
}

#[test]
fn a_completion_during_the_timeout_callback_takes_effect_after_it() {
    let (machine, table) = (Machine::synthetic("core:1 pu:1").unwrap(), Arc::new(Table::default()));
    let driver = Arc::new(Shared(Arc::clone(&table)));
    let queue = Queue::builder(&machine, driver).depth(1).build_by_hand();
    let done = submit(&*queue, block(1));
    queue.step(0);
    let (waiting, next) = watched(block(2));
    queue.submit(waiting);
    queue.step(0);
    let (done, inner) = (Mutex::new(done), Arc::downgrade(&queue));
    let (saw, seen) = mpsc::channel();
    *table.answer.lock() = Some(Arc::new(Box::new(move |table, late| {
        let answer = give_up(table, late);
        let queue = inner.upgrade().unwrap();
        queue.run(0);
        queue.step(0);
        let ended = done.lock().try_recv().is_ok();
        saw.send((ended, table.take(late.tag()).is_some())).unwrap();
        answer
    })));
    assert_eq!(queue.step_timeouts(later(1)), 1);
    let (ended, given_away) = seen.try_recv().expect("the callback came to its end");
    assert!(!ended, "it ends when the callback is over");
    assert!(!given_away, "nobody else gets its tag before");
    queue.step(0);
    table.finish(0, Ok(()));
    next.try_recv().unwrap().result.unwrap();
}

#[test]
fn a_request_with_more_time_is_reported_again_and_a_finished_one_is_not() {
    for (answer, times) in [(TimerReturn::ResetTimer, 3), (TimerReturn::Done, 1)] {
        let table = Table::answering(move |_, _| answer);
        let queue = by_hand(&table);
        let done = submit(&*queue, block(1));
        queue.step(0);
        let told: usize = [1, 1, 3, 5].map(|n| queue.step_timeouts(later(n))).iter().sum();
        assert_eq!((told, table.told.load(Ordering::Relaxed)), (times, times), "{answer:?}");
        table.finish(0, Ok(()));
        done.try_recv().unwrap().result.unwrap();
    }
}

#[test]
fn a_panic_in_the_callback_counts_as_more_time() {
    let table = Table::answering(|_, _| panic!("on purpose"));
    let queue = by_hand(&table);
    let done = submit(&*queue, block(1));
    queue.step(0);
    assert_eq!(queue.step_timeouts(later(1)), 1);
    assert_eq!(queue.step_timeouts(later(3)), 1);
    table.finish(0, Ok(()));
    done.try_recv().unwrap().result.unwrap();
}

#[test]
fn a_request_that_waits_for_a_busy_driver_is_not_late() {
    let driver = Held::default();
    driver.instead(Dispatch::Busy);
    let machine = Machine::synthetic("core:1 pu:1").unwrap();
    let queue =
        Queue::builder(&machine, Arc::new(driver.clone())).timeout(Some(AFTER)).build_by_hand();
    let done = submit(&*queue, block(1));
    queue.step(0);
    assert_eq!(queue.step_timeouts(later(1)), 0, "the driver doesn't have it");
    driver.keep();
    queue.step(0);
    assert_eq!(queue.step_timeouts(later(1)), 1, "a driver without a callback is told too");
    driver.finish_one(Ok(()));
    done.try_recv().unwrap().result.unwrap();
}

#[test]
fn a_late_request_may_be_requeued_and_gets_its_time_anew() {
    let table = Table::answering(|table, late| {
        table.take(late.tag()).unwrap().requeue();
        TimerReturn::Done
    });
    let queue = by_hand(&table);
    let done = submit(&*queue, block(1));
    queue.step(0);
    assert_eq!(queue.step_timeouts(later(1)), 1);
    assert_eq!(queue.step_timeouts(later(5)), 0, "the driver doesn't have it");
    queue.step(0);
    assert_eq!(queue.step_timeouts(Stamp::coarse()), 0);
    table.finish(0, Ok(()));
    done.try_recv().unwrap().result.unwrap();
    assert_eq!(queue.stats()[0].requeues, 1);
}

#[test]
fn the_timer_of_a_living_queue_tells_the_driver_each_time_that_something_is_late() {
    let rig = Rig::live();
    let table = Table::answering(give_up);
    let queue = Queue::builder(&rig.machine, Arc::new(Shared(table)))
        .timeout(Some(Duration::from_millis(5)))
        .build(&rig.wq);
    // The requests come one after the other: the timer ends between them, and is set again.
    for n in 0..5 {
        let done = submit(&*queue, block(n)).recv_timeout(STALL).expect("its time is up");
        assert_eq!(done.result.unwrap_err().kind(), IoErrorKind::TimedOut);
    }
}
