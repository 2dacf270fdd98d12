//! A waiter that takes its awaited item back and runs it. Each instance runs once, never two at a
//! time, the waiter ends, and no instance that was handed over meanwhile is lost.

use std::collections::BTreeSet;
use std::sync::Arc;

use corewise_sync::atomic::{AtomicUsize, Ordering};
use corewise_sync::model::must_fail;
use corewise_sync::{Mutex, thread};
use corewise_workqueue::Work;
use corewise_workqueue::model::{QueueModel, flush_or_run, look_and_leave};

use crate::bounded::bounded;
use crate::counting::counting;

/// The outcomes of a model's executions: they must include all possible ones.
type Seen = Arc<std::sync::Mutex<BTreeSet<usize>>>;

fn waiter_against_worker() -> Seen {
    let seen = Seen::default();
    let by_worker = Arc::clone(&seen);
    bounded(3).check(move || {
        let queue = QueueModel::new(1, 1);
        let worker = queue.enlist(0);
        let (work, runs) = counting();
        assert!(queue.queue(0, &work));
        let waiter = {
            let (work, runs) = (work.clone(), Arc::clone(&runs));
            thread::spawn(move || {
                flush_or_run(&work, true);
                assert_eq!(runs.load(Ordering::Relaxed), 1, "over when the waiter goes on");
            })
        };
        by_worker.lock().unwrap().insert(usize::from(worker.takes()));
        waiter.join().unwrap();
        // An item that the worker let go of is given back to the list.
        worker.step();
        assert_eq!(runs.load(Ordering::Relaxed), 1, "once");
        assert!(queue.is_empty(0) && !work.is_pending() && !work.is_running());
        queue.flush();
    });
    seen
}

#[test]
fn loom_take_back_by_the_waiter_or_start_by_a_worker_not_both() {
    let seen = waiter_against_worker();
    assert_eq!(*seen.lock().unwrap(), [0, 1].into(), "now the one ran it, now the other");
}

/// Checks a waiter that looks at the item, and leaves it: meanwhile a worker may start it, and the
/// item queues itself once more.
#[test]
fn loom_take_back_that_is_not_allowed_leaves_the_item_to_the_workers() {
    look_against_start(QueueModel::queue);
}

#[test]
fn loom_take_back_fails_if_the_next_queuer_does_not_wait_for_the_looking_thread() {
    let name = "loom_take_back_fails_if_the_next_queuer_does_not_wait_for_the_looking_thread";
    let said = must_fail(name, || look_against_start(QueueModel::queue_hastily));
    assert!(said.is_empty() || said.contains("Causality violation"), "{said}");
}

fn look_against_start(queue_again: fn(&QueueModel, usize, &Work) -> bool) {
    bounded(3).check(move || {
        let queue = QueueModel::new(1, 1);
        let worker = queue.enlist(0);
        let (own, runs) = (Arc::new(Mutex::new(None::<Work>)), Arc::new(AtomicUsize::new(0)));
        let work = {
            let (queue, own, runs) = (queue.clone(), Arc::clone(&own), Arc::clone(&runs));
            Work::new(move || {
                runs.fetch_add(1, Ordering::Relaxed);
                let work = own.lock().take();
                if let Some(work) = work {
                    assert!(queue_again(&queue, 0, &work));
                }
            })
        };
        *own.lock() = Some(work.clone());
        assert!(queue.queue(0, &work));
        let waiter = {
            let work = work.clone();
            thread::spawn(move || look_and_leave(&work))
        };
        // Its turn comes whether or not a thread looks at it.
        assert!(worker.takes() && worker.takes());
        waiter.join().unwrap();
        assert_eq!(runs.load(Ordering::Relaxed), 2, "each instance once");
        assert!(queue.is_empty(0) && !work.is_pending() && !work.is_running());
    });
}

/// Checks a waiter that runs an item which is queued again meanwhile, and handed over by a worker:
/// the waiter doesn't run that instance too, it puts it back.
#[test]
fn loom_take_back_puts_back_what_is_handed_over_meanwhile() {
    let seen = Seen::default();
    let total = Arc::clone(&seen);
    bounded(2).check(move || {
        let queue = QueueModel::new(1, 1);
        let worker = queue.enlist(0);
        let (work, runs) = counting();
        assert!(queue.queue(0, &work));
        let waiter = {
            let work = work.clone();
            thread::spawn(move || flush_or_run(&work, true))
        };
        let accepted = queue.queue(0, &work);
        worker.step();
        waiter.join().unwrap();
        worker.step();
        worker.step();
        let ran = runs.load(Ordering::Relaxed);
        assert_eq!(ran, 1 + usize::from(accepted), "each instance once");
        assert!(queue.is_empty(0) && !work.is_pending() && !work.is_running());
        total.lock().unwrap().insert(ran);
    });
    assert_eq!(*seen.lock().unwrap(), [1, 2].into());
}

#[test]
fn loom_take_back_by_two_waiters_one_runs_it_and_both_go_on() {
    bounded(2).check(|| {
        let queue = QueueModel::new(1, 1);
        let worker = queue.enlist(0);
        let (work, runs) = counting();
        assert!(queue.queue(0, &work));
        let waiters = [(); 2].map(|()| {
            let work = work.clone();
            thread::spawn(move || flush_or_run(&work, true))
        });
        worker.step();
        for waiter in waiters {
            waiter.join().unwrap();
        }
        assert_eq!(runs.load(Ordering::Relaxed), 1);
        assert!(queue.is_empty(0) && !work.is_pending() && !work.is_running());
    });
}

/// Checks two workers of one core, when there are no more. One waits for an item; the other,
/// which could have come for it, begins to block.
fn the_last_worker_blocks(hastily: bool) {
    bounded(3).check(move || {
        let queue = QueueModel::new(1, 1);
        let (waits, last) = (queue.enlist(0), queue.enlist(0));
        waits.blocks();
        let (work, runs) = counting();
        assert!(queue.queue(0, &work));
        let waiter = {
            let work = work.clone();
            thread::spawn(move || waits.wants(0, &work, hastily))
        };
        last.blocks();
        waiter.join().unwrap();
        assert_eq!(runs.load(Ordering::Relaxed), 1, "by who waited for it");
    });
}

#[test]
fn loom_take_back_no_waiter_sleeps_where_the_last_worker_blocks() {
    the_last_worker_blocks(false);
}

#[test]
fn loom_take_back_fails_if_the_taker_settles_nothing() {
    let name = "loom_take_back_fails_if_the_taker_settles_nothing";
    let said = must_fail(name, || the_last_worker_blocks(true));
    assert!(said.is_empty() || said.contains("deadlock"), "{said}");
}

/// Checks an item that comes when all workers block: it was held back, or had a timer.
#[test]
fn loom_take_back_no_push_is_left_to_workers_that_all_wait() {
    bounded(3).check(|| {
        let queue = QueueModel::new(1, 1);
        let (waits, other) = (queue.enlist(0), queue.enlist(0));
        waits.blocks();
        other.blocks();
        let (work, runs) = counting();
        let waiter = {
            let work = work.clone();
            thread::spawn(move || waits.wants(0, &work, false))
        };
        assert!(queue.queue(0, &work));
        waiter.join().unwrap();
        assert_eq!(runs.load(Ordering::Relaxed), 1);
    });
}
