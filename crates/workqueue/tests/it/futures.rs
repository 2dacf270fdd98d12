//! Futures on a queue, on real threads.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use corewise_sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use corewise_sync::context::Placement;
use corewise_sync::{Completion, Mutex, Parker};
use corewise_topology::{AffinityScope, CpuId, Machine};
use corewise_workqueue::{At, JoinError, QueueKind, WorkerPools, Workqueue};

use crate::setup::{occupy, pod, undisturbed as queue};
use crate::spin::spin_until;
use crate::support::{OnDrop, happened};

/// Gives a pending turn away, `n` times.
async fn yield_times(n: usize) {
    for _ in 0..n {
        let mut first = true;
        poll_fn(|cx| {
            if std::mem::take(&mut first) {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            Poll::Ready(())
        })
        .await;
    }
}

/// Counts its polls and waits for an event.
fn counted(
    polls: &Arc<AtomicUsize>,
    event: &Arc<Completion>,
) -> impl Future<Output = ()> + Send + use<> {
    let (polls, event) = (Arc::clone(polls), Arc::clone(event));
    poll_fn(move |cx| {
        polls.fetch_add(1, Ordering::SeqCst);
        event.poll_complete(cx)
    })
}

#[test]
fn a_future_is_polled_on_workers_until_it_is_ready() {
    let (_pools, queue) = queue(2);
    let event = Arc::new(Completion::new());
    let handle = queue.spawn_future({
        let wait = happened(&event);
        async move {
            wait.await;
            yield_times(100).await;
            Placement::current()
        }
    });
    assert!(!handle.is_finished());
    event.complete();
    assert_eq!(handle.join().unwrap().and_then(|placed| placed.pod), Some(0));
    let stats = queue.stats();
    assert!(stats.queued >= 101, "each poll is an item: {stats:?}");
}

#[test]
fn a_future_that_waits_holds_no_worker_and_no_flush() {
    let (_pools, queue) = queue(1);
    let (polls, event) = (Arc::new(AtomicUsize::new(0)), Arc::new(Completion::new()));
    let handle = queue.spawn_future(counted(&polls, &event));
    queue.flush();
    assert_eq!(polls.load(Ordering::SeqCst), 1);
    assert_eq!(queue.spawn(|| 4).join().unwrap(), 4);
    event.complete();
    handle.join().unwrap();
    assert_eq!(polls.load(Ordering::SeqCst), 2, "one wake-up, one poll");
}

#[test]
fn wake_ups_before_a_poll_are_one_poll_and_one_during_it_polls_once_more() {
    let (_pools, queue) = queue(1);
    let (polls, waker) = (Arc::new(AtomicUsize::new(0)), Arc::new(Mutex::new(None::<Waker>)));
    let (gate, inside) = (Arc::new(Completion::new()), Arc::new(Completion::new()));
    let handle = queue.spawn_future({
        let (polls, waker) = (Arc::clone(&polls), Arc::clone(&waker));
        let (gate, inside) = (Arc::clone(&gate), Arc::clone(&inside));
        poll_fn(move |cx| {
            *waker.lock() = Some(cx.waker().clone());
            match polls.fetch_add(1, Ordering::SeqCst) {
                1 => {
                    inside.complete();
                    spin_until(|| gate.is_complete());
                    Poll::Pending
                }
                2 => Poll::Ready("ready"),
                _ => Poll::Pending,
            }
        })
    });
    queue.flush();
    let waker = waker.lock().clone().expect("it was polled");
    // The only worker is busy, so these find the poll that is pending.
    let busy = Arc::new(Completion::new());
    let occupied = {
        let busy = Arc::clone(&busy);
        queue.spawn(move || spin_until(|| busy.is_complete()))
    };
    (0..5).for_each(|_| waker.wake_by_ref());
    busy.complete();
    // This isn't asserted before: a `join` that looks at an item whose turn comes lets the next one
    // pass.
    inside.wait();
    occupied.join().unwrap();
    (0..5).for_each(|_| waker.wake_by_ref());
    gate.complete();
    assert_eq!(handle.join().unwrap(), "ready");
    assert_eq!(polls.load(Ordering::SeqCst), 3);
    // A waker that outlives its future does nothing.
    waker.wake();
    queue.flush();
    assert_eq!(polls.load(Ordering::SeqCst), 3);
}

#[test]
fn a_panic_in_a_poll_ends_the_future_and_not_the_worker() {
    let (pools, queue) = queue(1);
    let dropped = Arc::new(AtomicBool::new(false));
    let handle = queue.spawn_future({
        let held = OnDrop(Arc::clone(&dropped));
        async move {
            let _held = held;
            yield_times(1).await;
            panic!("on purpose, in a poll");
        }
    });
    let error: JoinError = handle.join().unwrap_err();
    assert_eq!(error.message(), Some("on purpose, in a poll"));
    assert!(dropped.load(Ordering::SeqCst));
    assert_eq!(queue.spawn(|| 4).join().unwrap(), 4);
    assert_eq!(pools.report()[0].threads_made, 1);
}

#[test]
fn the_future_is_dropped_before_its_handle_is_woken() {
    let (_pools, queue) = queue(2);
    for _ in 0..100 {
        let dropped = Arc::new(AtomicBool::new(false));
        let held = OnDrop(Arc::clone(&dropped));
        // The future itself holds it across the last await, not the block's end.
        let handle = queue.spawn_future(poll_fn(move |_| {
            let _held = &held;
            Poll::Ready(())
        }));
        handle.join().unwrap();
        assert!(dropped.load(Ordering::SeqCst));
    }
}

#[test]
fn an_aborted_future_is_dropped_at_once_where_it_waits() {
    let (_pools, queue) = queue(1);
    let (event, dropped) = (Arc::new(Completion::new()), Arc::new(AtomicBool::new(false)));
    let handle = queue.spawn_future({
        let (held, wait) = (OnDrop(Arc::clone(&dropped)), happened(&event));
        async move {
            let _held = held;
            wait.await;
        }
    });
    queue.flush();
    handle.abort();
    assert!(dropped.load(Ordering::SeqCst) && handle.is_finished());
    handle.abort();
    assert!(matches!(handle.join(), Err(JoinError::Cancelled)));
    event.complete();
    queue.flush();
}

#[test]
fn an_abort_during_a_poll_ends_the_future_after_it() {
    let (_pools, queue) = queue(1);
    let (inside, gate) = (Arc::new(Completion::new()), Arc::new(Completion::new()));
    let polls = Arc::new(AtomicUsize::new(0));
    let handle = queue.spawn_future({
        let (inside, gate, polls) = (Arc::clone(&inside), Arc::clone(&gate), Arc::clone(&polls));
        poll_fn(move |cx| -> Poll<()> {
            polls.fetch_add(1, Ordering::SeqCst);
            inside.complete();
            spin_until(|| gate.is_complete());
            cx.waker().wake_by_ref();
            Poll::Pending
        })
    });
    inside.wait();
    handle.abort();
    assert!(!handle.is_finished(), "it runs");
    gate.complete();
    assert!(matches!(handle.join(), Err(JoinError::Cancelled)));
    queue.flush();
    assert_eq!(polls.load(Ordering::SeqCst), 1);
}

#[test]
fn an_aborted_closure_that_has_not_started_never_runs() {
    let (_pools, queue) = queue(1);
    let (gate, dropped) = (Arc::new(Completion::new()), Arc::new(AtomicBool::new(false)));
    let started = Arc::new(Completion::new());
    let busy = {
        let (gate, started) = (Arc::clone(&gate), Arc::clone(&started));
        queue.spawn(move || {
            started.complete();
            spin_until(|| gate.is_complete());
        })
    };
    started.wait();
    let held = OnDrop(Arc::clone(&dropped));
    let handle = queue.spawn(move || {
        let _held = held;
        unreachable!("it was aborted")
    });
    handle.abort();
    assert!(dropped.load(Ordering::SeqCst) && handle.is_finished());
    assert_eq!(queue.active(), 1, "it has left the queue");
    busy.abort();
    gate.complete();
    busy.join().expect("what runs, runs on");
    let error = handle.join().unwrap_err();
    assert!(matches!(error, JoinError::Cancelled), "{error}");
    queue.flush();
}

const LONG: Duration = Duration::from_secs(3600);

#[test]
fn a_wait_with_a_timeout_runs_nothing() {
    let (_pools, queue) = queue(1);
    let gate = occupy(&queue);
    let here = std::thread::current().id();
    let handle = queue.spawn(move || std::thread::current().id() != here);
    assert!(!handle.wait_timeout(Duration::ZERO) && !handle.is_finished(), "nobody runs it");
    gate.complete();
    assert!(handle.wait_timeout(LONG) && handle.join().unwrap(), "on a worker");
    let panics = queue.spawn(|| panic!("on purpose"));
    assert!(panics.wait_timeout(LONG) && matches!(panics.join(), Err(JoinError::Panicked(_))));
}

#[test]
fn an_item_that_waits_with_a_timeout_leaves_its_worker_to_others_meanwhile() {
    let (_pools, queue) = queue(1);
    let inner = queue.clone();
    let waits = queue.spawn(move || inner.spawn(|| 7).wait_timeout(LONG));
    assert!(waits.join().unwrap(), "the only worker takes it");
}

#[test]
fn a_handle_that_aborts_does_so_when_it_is_dropped_and_not_when_it_is_detached() {
    let (_pools, queue) = queue(1);
    let gate = occupy(&queue);
    let (dropped, ran) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let spawn = || {
        let (held, ran) = (OnDrop(Arc::clone(&dropped)), Arc::clone(&ran));
        let closure = move || {
            let _held = held;
            ran.fetch_add(1, Ordering::SeqCst)
        };
        queue.spawn(closure).abort_on_drop()
    };
    assert!(!spawn().wait_timeout(Duration::ZERO));
    assert!(dropped.load(Ordering::SeqCst) && queue.active() == 1, "it has left the queue");
    let (joined, detached) = (spawn(), spawn().detach());
    gate.complete();
    assert_eq!(joined.join().unwrap() + detached.join().unwrap(), 1);
    assert_eq!(ran.load(Ordering::SeqCst), 2);
}

#[test]
fn a_future_awaits_a_handle_that_aborts_and_aborts_it_where_it_is_dropped_itself() {
    let (_pools, queue) = queue(2);
    let dropped = Arc::new(AtomicBool::new(false));
    let (held, never) = (OnDrop(Arc::clone(&dropped)), Arc::new(Completion::new()));
    let waits = happened(&never);
    let inner = queue.spawn_future(async move {
        let _held = held;
        waits.await;
    });
    let outer = queue.spawn_future(inner.abort_on_drop());
    drop(outer.abort_on_drop());
    spin_until(|| dropped.load(Ordering::SeqCst));
    let seven = queue.spawn(|| 7).abort_on_drop();
    assert_eq!(queue.spawn_future(seven).join().unwrap().unwrap(), 7);
}

#[test]
fn an_aborted_future_whose_poll_is_queued_leaves_the_queue() {
    let pools = WorkerPools::new(&Machine::synthetic("numa:1 l3:1 core:1 pu:1").unwrap());
    let queue = Workqueue::builder("ordered").kind(QueueKind::Ordered).build(&pools).unwrap();
    let (gate, started) = (Arc::new(Completion::new()), Arc::new(Completion::new()));
    let busy = {
        let (gate, started) = (Arc::clone(&gate), Arc::clone(&started));
        queue.spawn(move || {
            started.complete();
            spin_until(|| gate.is_complete());
        })
    };
    started.wait();
    let (aborted, next) = (queue.spawn_future(async { 1 }), queue.spawn_future(async { 2 }));
    assert_eq!(queue.held(), 2);
    aborted.abort();
    assert_eq!(queue.held(), 1);
    assert!(matches!(aborted.join(), Err(JoinError::Cancelled)));
    gate.complete();
    busy.join().unwrap();
    assert_eq!(next.join().unwrap(), 2);
}

#[test]
fn a_future_may_shut_its_own_pools_down_and_wake_itself_then() {
    let (pools, queue) = queue(1);
    let handle = queue.spawn_future(async move {
        pools.shutdown();
        yield_times(1).await;
    });
    assert!(matches!(handle.join(), Err(JoinError::Cancelled)));
}

#[test]
fn a_future_that_nobody_can_wake_any_more_is_dropped() {
    let (_pools, queue) = queue(1);
    let dropped = Arc::new(AtomicBool::new(false));
    let held = OnDrop(Arc::clone(&dropped));
    drop(queue.spawn_future(async move {
        let _held = held;
        std::future::pending::<()>().await;
    }));
    queue.flush();
    assert!(dropped.load(Ordering::SeqCst));
}

#[test]
fn futures_wait_for_closures_and_for_each_other() {
    let (_pools, queue) = queue(2);
    let mut last = queue.spawn_future(async { 0 });
    for n in 1..=50u32 {
        let half = queue.spawn(move || n);
        last = queue.spawn_future(async move { last.await.unwrap() + half.await.unwrap() });
    }
    assert_eq!(last.join().unwrap(), 50 * 51 / 2);
}

#[test]
fn a_future_stays_on_the_pod_it_was_spawned_on_whoever_wakes_it() {
    let machine = Machine::synthetic("numa:2 l3:1 core:2 pu:1").expect("a valid description");
    let pools = WorkerPools::new(&machine);
    let queue = Workqueue::builder("home").scope(AffinityScope::Cpu).strict(true);
    let queue = queue.build(&pools).unwrap();
    let event = Arc::new(Completion::new());
    let wait = happened(&event);
    let (says, home) = mpsc::channel();
    let handle = queue.spawn_future(async move {
        says.send(pod()).unwrap();
        wait.await;
        pod()
    });
    queue.flush();
    let home = home.recv().unwrap().expect("a worker is placed");
    let wakes = Arc::clone(&event);
    let elsewhere = At::Cpu(CpuId::new((home + 1) % 4));
    queue.at(elsewhere).spawn(move || wakes.complete()).join().unwrap();
    assert_eq!(handle.join().unwrap(), Some(home));
}

#[test]
fn a_handle_can_be_awaited_in_any_executor() {
    /// Runs a future: the smallest of all executors.
    fn block_on<T>(future: impl Future<Output = T>) -> T {
        let mut future = std::pin::pin!(future);
        let parker = Parker::new();
        let waker = parker.waker();
        loop {
            match future.as_mut().poll(&mut Context::from_waker(&waker)) {
                Poll::Ready(value) => return value,
                Poll::Pending => parker.park(),
            }
        }
    }
    let (_pools, queue) = queue(2);
    let value = block_on(async {
        let one = queue.spawn(|| 1);
        let two = queue.spawn_future(async {
            yield_times(5).await;
            2
        });
        one.await.unwrap() + two.await.unwrap()
    });
    assert_eq!(value, 3);
    let mut polled = queue.spawn_future(async { 5 });
    queue.flush();
    let mut cx = Context::from_waker(Waker::noop());
    assert!(matches!(Pin::new(&mut polled).poll(&mut cx), Poll::Ready(Ok(5))));
}
