//! Futures that wait to be woken when their queue ends: they are cancelled, and their handles
//! complete.

use std::future::{pending, poll_fn};
use std::sync::Arc;
use std::task::Poll;

use corewise_sync::atomic::{AtomicBool, Ordering};
use corewise_sync::{Completion, thread};
use corewise_workqueue::{JoinError, JoinHandle, Workqueue};

use crate::setup::undisturbed as queue;
use crate::spin::spin_until;
use crate::support::{OnDrop, happened};

/// Spawns a future that is never woken, and returns whether it was dropped.
fn forlorn(queue: &Workqueue) -> (JoinHandle<()>, Arc<AtomicBool>) {
    let dropped = Arc::new(AtomicBool::new(false));
    let held = OnDrop(Arc::clone(&dropped));
    let handle = queue.spawn_future(async move {
        let _held = held;
        pending::<()>().await;
    });
    queue.flush();
    assert!(!handle.is_finished());
    (handle, dropped)
}

#[track_caller]
fn assert_cancelled<T: std::fmt::Debug>(handle: JoinHandle<T>) {
    let error = handle.join().expect_err("it can't have come to its end");
    assert!(matches!(error, JoinError::Cancelled), "{error}");
}

#[test]
fn a_future_that_waits_when_the_pools_are_shut_down_is_cancelled_and_its_handle_told() {
    let (pools, queue) = queue(1);
    let (handle, dropped) = forlorn(&queue);
    pools.shutdown();
    assert!(dropped.load(Ordering::SeqCst) && handle.is_finished());
    assert_cancelled(handle);
    // One that comes later isn't polled.
    assert_cancelled(queue.spawn_future(async { 1 }));
}

#[test]
fn a_future_that_waits_when_its_queue_is_destroyed_is_cancelled_and_its_handle_told() {
    let (_pools, queue) = queue(1);
    let event = Arc::new(Completion::new());
    let woken = queue.spawn_future(happened(&event));
    let (handle, dropped) = forlorn(&queue);
    queue.drain();
    assert!(!woken.is_finished(), "it waits for something else, so the drain doesn't wait for it");
    event.complete();
    woken.join().expect("a drained queue polls it");
    queue.destroy();
    assert!(dropped.load(Ordering::SeqCst) && handle.is_finished());
    assert_cancelled(handle);
}

#[test]
fn a_future_that_waits_keeps_the_pools_whose_handles_are_dropped_and_comes_to_its_end() {
    let (pools, queue) = queue(1);
    let event = Arc::new(Completion::new());
    let wait = happened(&event);
    let handle = queue.spawn_future(async move {
        wait.await;
        1
    });
    queue.flush();
    drop((queue, pools));
    event.complete();
    assert_eq!(handle.join().expect("the pools are there"), 1);
}

#[test]
fn a_thread_that_waits_for_such_a_future_is_woken_by_the_shutdown() {
    let (pools, queue) = queue(2);
    let (handle, _) = forlorn(&queue);
    // An item waits too: the shutdown, which waits for it, cancels first.
    let (inner, _) = forlorn(&queue);
    let started = Arc::new(Completion::new());
    let item = {
        let started = Arc::clone(&started);
        queue.spawn(move || {
            started.complete();
            inner.join()
        })
    };
    started.wait();
    let waiter = thread::spawn(move || handle.join());
    pools.shutdown();
    assert!(matches!(waiter.join().expect("no panic"), Err(JoinError::Cancelled)));
    assert!(matches!(item.join().expect("it was queued before"), Err(JoinError::Cancelled)));
}

#[test]
fn a_poll_that_is_queued_at_the_shutdown_takes_place() {
    let (pools, queue) = queue(1);
    // The shutdown sees the oldest waiting future last.
    let (oldest, _) = forlorn(&queue);
    let (gate, started, event) = Default::default();
    let (gate, started): (Arc<Completion>, Arc<Completion>) = (gate, started);
    let event: Arc<Completion> = event;
    let (wait, twice) = (happened(&event), happened(&event));
    let ready = queue.spawn_future(async move {
        wait.await;
        1
    });
    let waits_on = queue.spawn_future(async move {
        twice.await;
        pending::<()>().await;
    });
    queue.flush();
    let busy = {
        let (gate, started) = (Arc::clone(&gate), Arc::clone(&started));
        queue.spawn(move || {
            started.complete();
            spin_until(|| gate.is_complete());
        })
    };
    started.wait();
    event.complete();
    let shutdown = thread::spawn(move || pools.shutdown());
    spin_until(|| oldest.is_finished());
    // A look just before a poll begins might take it for none.
    gate.complete();
    shutdown.join().expect("no panic");
    busy.join().expect("it ran");
    assert_eq!(ready.join().expect("its poll was queued before"), 1);
    assert_cancelled(waits_on);
}

#[test]
fn a_future_that_is_polled_at_the_shutdown_is_cancelled_by_its_polls_end() {
    let (pools, queue) = queue(1);
    let (own, dropped) = (pools.clone(), Arc::new(AtomicBool::new(false)));
    let held = OnDrop(Arc::clone(&dropped));
    let mut polls = 0;
    let handle = queue.spawn_future(async move {
        let held = held;
        poll_fn(move |cx| {
            polls += 1;
            if polls == 1 {
                cx.waker().wake_by_ref();
                return Poll::<()>::Pending;
            }
            own.shutdown();
            assert!(!held.0.load(Ordering::SeqCst), "nobody drops it under its poll");
            Poll::Pending
        })
        .await;
    });
    assert_cancelled(handle);
    assert!(dropped.load(Ordering::SeqCst));
    pools.shutdown();
}

#[test]
fn futures_that_wait_for_each_other_are_all_cancelled() {
    let (pools, queue) = queue(2);
    let (mut last, _) = forlorn(&queue);
    for _ in 0..2_000 {
        last = queue.spawn_future(async move { last.await.unwrap_or_default() });
    }
    queue.flush();
    pools.shutdown();
    assert_cancelled(last);
}

#[test]
fn a_long_chain_whose_first_end_wakes_the_rest_ends_in_turns() {
    let (pools, queue) = queue(1);
    let events: Vec<_> = (0..5_000).map(|_| Arc::new(Completion::new())).collect();
    /// Completes an event when it is dropped.
    struct Tells(Arc<Completion>);
    impl Drop for Tells {
        fn drop(&mut self) {
            self.0.complete();
        }
    }
    // The last one ends first, and its end completes the event of the one before it.
    let handles = events.windows(2).map(|pair| {
        let (tells, wait) = (Tells(Arc::clone(&pair[0])), happened(&pair[1]));
        queue.spawn_future(async move {
            let _tells = tells;
            wait.await;
        })
    });
    let handles = handles.collect::<Vec<_>>();
    queue.flush();
    pools.shutdown();
    handles.into_iter().for_each(assert_cancelled);
}

#[test]
fn a_destructor_of_a_cancelled_future_may_use_the_queue() {
    let (pools, queue) = queue(1);
    struct Uses(Workqueue);
    impl Drop for Uses {
        fn drop(&mut self) {
            assert!(self.0.spawn_future(pending::<()>()).is_finished(), "cancelled at once");
            panic!("it is caught");
        }
    }
    let uses = Uses(queue.clone());
    let handle = queue.spawn_future(async move {
        let _uses = uses;
        pending::<()>().await;
    });
    queue.flush();
    pools.shutdown();
    assert_cancelled(handle);
}
