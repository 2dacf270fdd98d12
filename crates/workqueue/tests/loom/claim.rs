//! A pending item that is taken back, against each thread that may have it in hand: each instance
//! is run or cancelled, once.

use std::collections::BTreeSet;
use std::sync::Arc;

use corewise_sync::atomic::Ordering;
use corewise_sync::model::must_fail;
use corewise_sync::thread;
use corewise_workqueue::Work;
use corewise_workqueue::model::{QueueModel, cancel_hastily, claim_hastily, take_and_put_back};

use crate::bounded::{bounded, more_if_long};
use crate::counting::counting;

/// The outcomes of a model's executions: they must include all possible ones.
#[derive(Clone, Default)]
struct Outcomes(Arc<std::sync::Mutex<BTreeSet<(usize, bool)>>>);

impl Outcomes {
    fn saw(&self, ran: usize, taken: bool) {
        self.0.lock().unwrap().insert((ran, taken));
    }
    fn were(&self, all: &[(usize, bool)]) {
        assert_eq!(*self.0.lock().unwrap(), all.iter().copied().collect());
    }
}

fn claim_against_start(cancel: fn(&Work) -> bool) {
    let outcomes = Outcomes::default();
    let seen = outcomes.clone();
    bounded(3).check(move || {
        let queue = QueueModel::new(1, 1);
        let worker = queue.enlist(0);
        let (work, runs) = counting();
        assert!(queue.queue(0, &work));
        let canceller = {
            let work = work.clone();
            thread::spawn(move || cancel(&work))
        };
        worker.step();
        let cancelled = canceller.join().unwrap();
        let ran = runs.load(Ordering::Relaxed);
        assert_eq!(ran + usize::from(cancelled), 1, "run or cancelled, once");
        assert!(queue.is_empty(0) && !work.is_pending() && !work.is_running());
        queue.flush();
        seen.saw(ran, cancelled);
    });
    outcomes.were(&[(0, true), (1, false)]);
}

#[test]
fn loom_claim_against_start_one_of_them_gets_the_instance() {
    claim_against_start(Work::cancel);
}

#[test]
fn loom_claim_that_does_not_wait_for_the_taker_fails() {
    let said = must_fail("loom_claim_that_does_not_wait_for_the_taker_fails", || {
        claim_against_start(cancel_hastily);
    });
    assert!(said.is_empty() || said.contains("run or cancelled, once"), "{said}");
}

#[test]
fn loom_claim_against_push_waits_for_the_queuer() {
    let outcomes = Outcomes::default();
    let seen = outcomes.clone();
    bounded(3).check(move || {
        let queue = QueueModel::new(1, 1);
        let worker = queue.enlist(0);
        let (work, runs) = counting();
        let canceller = {
            let work = work.clone();
            thread::spawn(move || work.cancel())
        };
        assert!(queue.queue(0, &work));
        let cancelled = canceller.join().unwrap();
        worker.step();
        let ran = runs.load(Ordering::Relaxed);
        assert_eq!(ran + usize::from(cancelled), 1, "run or cancelled, once");
        assert!(queue.is_empty(0) && !work.is_pending());
        seen.saw(ran, cancelled);
    });
    outcomes.were(&[(0, true), (1, false)]);
}

#[test]
fn loom_claim_of_an_instance_that_is_not_placed_yet_fails() {
    let said = must_fail("loom_claim_of_an_instance_that_is_not_placed_yet_fails", || {
        bounded(3).check(move || {
            let queue = QueueModel::new(1, 1);
            let _busy = queue.enlist(0);
            let (work, _) = counting();
            let claimant = {
                let work = work.clone();
                thread::spawn(move || claim_hastily(&work))
            };
            assert!(queue.queue(0, &work));
            claimant.join().unwrap();
        });
    });
    assert!(said.is_empty() || said.contains("Causality violation"), "{said}");
}

/// Checks an item that runs on pool 0, is queued on pool 1 and handed over by its worker, while
/// another thread takes it back.
fn claim_against_hand_over(preemptions: usize, take: fn(&Work) -> bool, cancels: bool) -> Outcomes {
    let outcomes = Outcomes::default();
    let seen = outcomes.clone();
    bounded(preemptions).check(move || {
        let queue = QueueModel::new(2, 1);
        let workers = [queue.enlist(0), queue.enlist(1)];
        let (work, runs) = counting();
        assert!(queue.queue(0, &work));
        let [first, second] = workers;
        let runner = thread::spawn(move || {
            first.step();
            first
        });
        let taker = {
            let work = work.clone();
            thread::spawn(move || take(&work))
        };
        let accepted = queue.queue(1, &work);
        second.step();
        let first = runner.join().unwrap();
        let taken = taker.join().unwrap();
        // An item put back, and one that a worker found claimed, is still there.
        for worker in [&first, &second] {
            worker.step();
            worker.step();
        }
        let ran = runs.load(Ordering::Relaxed);
        let cancelled = usize::from(taken && cancels);
        assert_eq!(ran + cancelled, 1 + usize::from(accepted), "each instance once");
        assert!(!work.is_pending() && !work.is_running());
        seen.saw(ran, taken);
    });
    outcomes
}

#[test]
fn loom_claim_against_hand_over_each_instance_is_over_once() {
    let seen = claim_against_hand_over(2, Work::cancel, true);
    seen.were(&[(0, true), (1, false), (1, true), (2, false)]);
}

#[test]
fn loom_claim_that_puts_the_instance_back_loses_nothing() {
    let all = [(1, false), (1, true), (2, false), (2, true)];
    let preemptions = more_if_long(1);
    let seen = claim_against_hand_over(preemptions, take_and_put_back, false);
    // One preemption needn't lead to all of them.
    if preemptions > 1 {
        seen.were(&all);
    }
    assert!(seen.0.lock().unwrap().iter().all(|one| all.contains(one)));
}

#[test]
fn loom_claim_against_flush_every_waiter_is_told() {
    bounded(3).check(|| {
        let queue = QueueModel::new(1, 1);
        let _busy = queue.enlist(0);
        let (work, _) = counting();
        assert!(queue.queue(0, &work));
        let canceller = {
            let work = work.clone();
            thread::spawn(move || work.cancel())
        };
        work.flush();
        assert!(canceller.join().unwrap());
        queue.flush();
    });
}

#[test]
fn loom_claim_two_claimants_one_gets_it() {
    bounded(3).check(|| {
        let queue = QueueModel::new(1, 1);
        let _busy = queue.enlist(0);
        let (work, runs) = counting();
        assert!(queue.queue(0, &work));
        let other = {
            let work = work.clone();
            thread::spawn(move || work.cancel())
        };
        let mine = work.cancel();
        assert!(mine ^ other.join().unwrap());
        assert_eq!(runs.load(Ordering::Relaxed), 0);
        assert!(queue.is_empty(0));
    });
}

#[test]
fn loom_claim_cancel_sync_outlasts_an_item_that_queues_itself() {
    bounded(2).check(|| {
        let queue = QueueModel::new(1, 1);
        let worker = queue.enlist(0);
        let own = Arc::new(corewise_sync::Mutex::new(None::<Work>));
        let work = {
            let (queue, own) = (queue.clone(), Arc::clone(&own));
            Work::new(move || {
                let work = own.lock().clone();
                if let Some(work) = work {
                    queue.queue(0, &work);
                }
            })
        };
        *own.lock() = Some(work.clone());
        assert!(queue.queue(0, &work));
        let canceller = {
            let work = work.clone();
            thread::spawn(move || {
                work.cancel_sync();
                assert!(!work.is_pending() && !work.is_running());
            })
        };
        worker.step();
        worker.step();
        canceller.join().unwrap();
        assert!(queue.is_empty(0) && !work.is_disabled());
        own.lock().take();
    });
}
