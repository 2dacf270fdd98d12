//! A spawned future has one owner: a worker that polls it, or a thread that aborts it.

use std::sync::Arc;

use corewise_sync::model::must_fail;
use corewise_sync::thread;
use corewise_workqueue::model::{FutureModel, WaitingModel};

#[test]
fn a_future_that_is_polled_and_aborted_at_once_ends_once() {
    loom::model(|| {
        let future = Arc::new(FutureModel::new());
        let aborter = {
            let future = Arc::clone(&future);
            thread::spawn(move || future.stop())
        };
        future.poll();
        future.poll();
        aborter.join().unwrap();
        assert_eq!(future.ended(), 1, "by the aborter, or by the poll that found it aborted");
    });
}

#[test]
fn a_future_that_becomes_ready_while_two_abort_it_ends_once() {
    loom::model(|| {
        let future = Arc::new(FutureModel::new());
        let aborters = [(); 2].map(|()| {
            let future = Arc::clone(&future);
            thread::spawn(move || future.stop())
        });
        future.poll_ready();
        for aborter in aborters {
            aborter.join().unwrap();
        }
        assert_eq!(future.ended(), 1);
    });
}

/// Checks a worker that polls a waiting future while its queue is closed. `seated`: that isn't its
/// first poll.
fn closed_while_it_is_polled(seated: bool, look: bool) {
    let (future, list) = (Arc::new(FutureModel::new()), Arc::new(WaitingModel::new()));
    if seated {
        future.poll_and_sit(&list, true, look);
        future.wake();
    }
    let closer = {
        let list = Arc::clone(&list);
        thread::spawn(move || list.close())
    };
    future.poll_and_sit(&list, !seated, look);
    closer.join().unwrap();
    assert_eq!(future.ended(), 1, "nobody will ever wake it");
}

#[test]
fn a_future_whose_first_poll_meets_the_close_is_cancelled_once() {
    loom::model(|| closed_while_it_is_polled(false, true));
}

#[test]
fn a_future_that_is_polled_again_while_its_queue_closes_is_cancelled_once() {
    loom::model(|| closed_while_it_is_polled(true, true));
}

#[test]
fn loom_future_with_a_poller_that_does_not_look_is_never_cancelled() {
    // This isn't a fence: a lock guards the list, and all else happens on one word.
    must_fail("loom_future_with_a_poller_that_does_not_look_is_never_cancelled", || {
        closed_while_it_is_polled(true, false);
    });
}
