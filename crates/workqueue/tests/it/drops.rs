//! Dropping a handle never waits and never deadlocks, on any thread.

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind, panic_any};
use std::sync::{Arc, mpsc};
use std::task::{Poll, Waker};

use corewise_sync::atomic::{AtomicUsize, Ordering};
use corewise_sync::context::{self, AtomicSection};
use corewise_sync::{Mutex, panics};
use corewise_workqueue::{Queued, Work, WorkerPools, Workqueue};

use crate::setup::{builder, occupy, pools};
use crate::spin::spin_until;

fn queue(pools: &WorkerPools) -> Workqueue {
    builder().build(pools).expect("a queue")
}

/// Counts its drops, in order.
struct OnDrop(mpsc::Sender<&'static str>, &'static str);

impl Drop for OnDrop {
    fn drop(&mut self) {
        self.0.send(self.1).expect("the test waits");
    }
}

#[test]
fn no_handle_waits_when_it_is_dropped() {
    let pools = pools(1);
    let limited = builder().max_active(1).build(&pools).unwrap();
    let gate = occupy(&limited);
    let ran = Arc::new(AtomicUsize::new(0));
    let counts = || {
        let ran = Arc::clone(&ran);
        move || {
            ran.fetch_add(1, Ordering::SeqCst);
        }
    };
    let (pending, held) = (Work::new(counts()), Work::new(counts()));
    let (spawned, future) = (limited.spawn(counts()), limited.spawn_future(async {}));
    assert_eq!(limited.queue(&pending), Ok(Queued::Now));
    assert_eq!(limited.queue(&held), Ok(Queued::Now));
    let (over, ended) = mpsc::channel();
    let last = OnDrop(over, "last");
    drop(limited.spawn(move || drop(last)));
    {
        // A wait in here is a violation.
        let _section = AtomicSection::enter("test");
        let before = context::violations();
        drop((pending, held, spawned, future, limited, pools));
        assert_eq!(context::violations(), before);
    }
    gate.complete();
    assert_eq!(ended.recv(), Ok("last"), "what was queued runs all the same");
    spin_until(|| ran.load(Ordering::SeqCst) == 3);
}

#[test]
fn an_item_may_drop_every_handle_there_is() {
    let pools = pools(1);
    let queue = queue(&pools);
    let (over, ended) = mpsc::channel();
    let gate = occupy(&queue);
    let slot: Arc<Mutex<Vec<Box<dyn std::any::Any + Send>>>> = Arc::default();
    let handles = Arc::clone(&slot);
    let says = over.clone();
    let own = queue.spawn(move || {
        handles.lock().clear();
        says.send("first").expect("the test waits");
    });
    let behind = OnDrop(over, "behind");
    let later = queue.spawn(move || drop(behind));
    slot.lock().extend([Box::new(own) as _, Box::new(later) as _]);
    slot.lock().extend([Box::new(queue) as _, Box::new(pools) as _]);
    gate.complete();
    assert_eq!(ended.recv(), Ok("first"));
    assert_eq!(ended.recv(), Ok("behind"), "it was queued before, so it runs");
}

#[test]
fn a_future_may_drop_every_handle_there_is_and_go_on() {
    let pools = pools(1);
    let queue = queue(&pools);
    let (over, ended) = mpsc::channel();
    let waker = Arc::new(Mutex::new(None::<Waker>));
    let (slot, both) = (Arc::clone(&waker), (queue.clone(), pools));
    let mut both = Some(both);
    drop(queue.spawn_future(poll_fn(move |cx| {
        if let Some(both) = both.take() {
            drop(both);
            *slot.lock() = Some(cx.waker().clone());
            over.send("waits").expect("the test waits");
            return Poll::Pending;
        }
        over.send("ends").expect("the test waits");
        Poll::Ready(())
    })));
    drop(queue);
    assert_eq!(ended.recv(), Ok("waits"));
    // A future keeps its queue: this is its only handle.
    let waker = waker.lock().take().expect("it was polled");
    waker.wake();
    assert_eq!(ended.recv(), Ok("ends"));
    assert!(ended.recv().is_err(), "and it is dropped at its end");
}

#[test]
fn a_destructor_on_a_worker_may_wait_for_the_same_queue() {
    struct Waits(Workqueue, mpsc::Sender<u32>);
    impl Drop for Waits {
        fn drop(&mut self) {
            let value = self.0.spawn(|| 7).join().expect("no panic");
            self.1.send(value).expect("the test waits");
        }
    }
    let pools = pools(1);
    let queue = queue(&pools);
    let (says, said) = mpsc::channel();
    let gate = occupy(&queue);
    let closure = Waits(queue.clone(), says.clone());
    let value = Waits(queue.clone(), says.clone());
    let future = Waits(queue.clone(), says);
    drop(queue.spawn(move || {
        let _closure = &closure;
    }));
    drop(queue.spawn(move || value));
    drop(queue.spawn_future(async move {
        let _future = &future;
    }));
    gate.complete();
    assert_eq!(said.iter().collect::<Vec<_>>(), [7, 7, 7]);
}

#[test]
fn a_scope_may_drop_the_queue_s_other_handles_and_its_own_join_handles() {
    let pools = pools(1);
    let queue = queue(&pools);
    let only = queue.clone();
    let ran = AtomicUsize::new(0);
    let others = Mutex::new(Some((queue, pools)));
    only.scope(|s| {
        drop(s.spawn(|| {
            drop(others.lock().take());
            let inner = s.spawn(|| ran.fetch_add(1, Ordering::SeqCst));
            drop(inner);
            ran.fetch_add(1, Ordering::SeqCst)
        }));
    });
    assert_eq!(ran.into_inner(), 2);
}

#[test]
fn a_destructor_that_panics_keeps_no_other_timer_from_being_cancelled() {
    struct Bomb(OnDrop);
    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("on purpose, in {}", self.0.1);
        }
    }
    let pools = pools(1);
    let queue = queue(&pools);
    let (over, ended) = mpsc::channel();
    for _ in 0..3 {
        let bomb = Bomb(OnDrop(over.clone(), "a function"));
        let work = Work::new(move || {
            let _bomb = &bomb;
        });
        assert_eq!(
            queue.queue_delayed(&work, std::time::Duration::from_secs(3600)),
            Ok(Queued::Now)
        );
    }
    drop(over);
    pools.shutdown();
    assert_eq!(ended.try_iter().count(), 3);
}

/// Panics when it is dropped.
struct Bomb(Arc<AtomicUsize>);

impl Drop for Bomb {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
        panic!("on purpose");
    }
}

#[test]
fn a_value_that_nobody_took_and_that_panics_when_it_is_dropped_harms_nobody() {
    let pools = pools(1);
    let queue = queue(&pools);
    let dropped = Arc::<AtomicUsize>::default();
    let spawn = |queue: &Workqueue| {
        let bomb = Arc::clone(&dropped);
        queue.spawn(move || Bomb(bomb))
    };
    let future = |queue: &Workqueue| {
        let bomb = Arc::clone(&dropped);
        queue.spawn_future(async move { Bomb(bomb) })
    };
    for handle in [spawn(&queue), future(&queue)] {
        queue.flush();
        assert!(handle.is_finished());
        drop(handle);
    }
    // This happens while another panic is under way: two would end the process.
    for handle in [spawn(&queue), future(&queue)] {
        queue.flush();
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _handle = handle;
            panic!("another");
        }));
        assert_eq!(panicked.unwrap_err().downcast_ref(), Some(&"another"));
    }
    drop((spawn(&queue), future(&queue)));
    queue.flush();
    assert_eq!(dropped.load(Ordering::SeqCst), 6);
    assert_eq!(queue.spawn(|| 7).join().unwrap(), 7);
    assert_eq!(pools.report()[0].threads_made, 1, "the worker goes on");
}

/// The payload of a panic. Its destructor panics as well, with another one of these, as often as
/// the number says.
struct Payload(Arc<()>, u32);

impl Drop for Payload {
    fn drop(&mut self) {
        if self.1 > 0 {
            panic_any(Payload(Arc::clone(&self.0), self.1 - 1));
        }
    }
}

#[test]
fn what_closures_and_destructors_panic_with_is_dropped_also_where_that_panics() {
    let pools = pools(2);
    let queue = queue(&pools);
    let kept = Arc::new(());
    let payload = || Payload(Arc::clone(&kept), 2);
    let value = payload();
    drop(queue.spawn(move || value));
    let panics = payload();
    drop(queue.spawn(move || panic_any(panics)));
    let panics = payload();
    assert!(queue.execute(move || panic_any(panics)).is_ok());
    let captured = payload();
    assert!(queue.execute(move || _ = &captured).is_ok());
    let panics = payload();
    drop(queue.spawn_future(async move { panic_any(panics) }));
    let (one, other) = (payload(), payload());
    let caught = catch_unwind(AssertUnwindSafe(|| {
        queue.scope(|s| {
            drop(s.spawn(move || panic_any(one)));
            drop(s.spawn(move || panic_any(other)));
        });
    }));
    panics::discard(caught.expect_err("the first of them goes on"));
    let caught = catch_unwind(AssertUnwindSafe(|| queue.map(0..10_u32, |_| panic_any(payload()))));
    panics::discard(caught.expect_err("the first of them goes on"));
    queue.flush();
    pools.shutdown();
    assert_eq!(Arc::strong_count(&kept), 1);
}
