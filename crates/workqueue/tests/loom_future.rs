//! A spawned future has one owner: a worker that polls it, or who aborts it.
#![cfg(loom)]

use std::sync::Arc;

use corewise_sync::thread;
use corewise_workqueue::model::FutureModel;

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
