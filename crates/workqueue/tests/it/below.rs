//! The queue below a queue, and the listeners to a queue's end.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use corewise_sync::Completion;
use corewise_topology::{AffinityScope, CpuSet};
use corewise_workqueue::{
    QueueBuilder, QueueError, QueueKind, Queued, Work, WorkerPools, Workqueue,
};

use crate::setup::{block, pools};
use crate::spin::spin_until;

fn build(pools: &WorkerPools, set: impl FnOnce(QueueBuilder) -> QueueBuilder) -> Workqueue {
    set(Workqueue::builder("upper")).build(pools).expect("a queue")
}

#[test]
fn work_that_items_of_a_drained_queue_wait_for_goes_on_below() {
    let (pools, done) = (pools(4), Arc::new(Completion::new()));
    let upper = build(&pools, |q| q);
    let below = upper.below();
    let (begun, waits) = (Arc::new(Completion::new()), Arc::clone(&done));
    let says = Arc::clone(&begun);
    drop(upper.spawn(move || {
        says.complete();
        waits.wait();
    }));
    begun.wait();
    std::thread::scope(|scope| {
        let drain = scope.spawn(|| upper.drain());
        spin_until(|| upper.queue(&Work::new(|| ())) == Err(QueueError::Draining));
        // The call comes from outside, as a device's interrupt would.
        assert!(below.execute(move || done.complete()).is_ok());
        drain.join().unwrap();
    });
    upper.destroy();
    assert_eq!(upper.queue(&Work::new(|| ())), Err(QueueError::Closed));
    assert_eq!(below.spawn(|| 7).join().unwrap(), 7);
    pools.shutdown();
    assert_eq!(below.queue(&Work::new(|| ())), Err(QueueError::Closed));
    assert_eq!(upper.below().queue(&Work::new(|| ())), Err(QueueError::Closed));
}

#[test]
fn a_limit_and_an_order_hold_nothing_below() {
    let pools = pools(4);
    for set in [|q: QueueBuilder| q.max_active(1), |q: QueueBuilder| q.kind(QueueKind::Ordered)] {
        let upper = build(&pools, set);
        let (gate, below) = (block(&upper, 0), upper.below());
        let one = block(&below, 0);
        assert_eq!(below.spawn(|| 7).join().unwrap(), 7);
        [one, gate].iter().for_each(|gate| gate.complete());
        upper.flush();
    }
    pools.shutdown();
}

#[test]
fn the_queue_below_takes_work_while_it_is_drained_itself() {
    let pools = pools(4);
    let below = build(&pools, |q| q).below();
    let gate = block(&below, 0);
    std::thread::scope(|scope| {
        let drain = scope.spawn(|| below.drain());
        // Each of a thousand is accepted, whether the drain has begun or not; the last one lets the
        // drain end.
        for _ in 0..1000 {
            assert_eq!(below.queue(&Work::new(|| ())), Ok(Queued::Now));
            std::thread::yield_now();
        }
        gate.complete();
        drain.join().unwrap();
    });
    pools.shutdown();
}

#[test]
fn there_is_one_queue_below_of_the_same_kind_whose_attributes_follow() {
    let pools = pools(4);
    let upper = build(&pools, |q| q.scope(AffinityScope::Cpu).max_active(3).nice(5));
    let below = upper.below();
    assert_eq!((below.name(), below.kind()), ("upper/below", QueueKind::Unbound));
    let same = |below: &Workqueue| {
        let mut asked = upper.attributes();
        asked.max_active = 0;
        below.attributes() == asked
    };
    assert!(same(&below));
    let mut changed = upper.attributes();
    (changed.cpus, changed.strict) = (Some(CpuSet::full(2)), true);
    upper.set_attributes(&changed).unwrap();
    assert!(same(&below) && same(&upper.below()) && same(&below.below()));
    assert_eq!(below.below().name(), "upper/below");
    let of = |set: fn(QueueBuilder) -> QueueBuilder| build(&pools, set).below().kind();
    assert_eq!(of(|q| q.kind(QueueKind::Ordered)), QueueKind::Unbound);
    assert_eq!(of(|q| q.kind(QueueKind::Bound)), QueueKind::Bound);
    assert_eq!(of(|q| q.rescuer(true).timed(true)), QueueKind::Unbound);
    let lowest = build(&pools, |q| q.lowest(true));
    assert_eq!((lowest.name(), lowest.below().name()), ("upper", "upper"));
    pools.shutdown();
}

#[test]
fn the_lowest_queue_is_refused_what_would_hold_it_up() {
    let pools = pools(4);
    for set in [|q: QueueBuilder| q.max_active(1), |q: QueueBuilder| q.kind(QueueKind::Ordered)] {
        let error = set(Workqueue::builder("upper").lowest(true)).build(&pools).unwrap_err();
        assert!(error.to_string().contains("lowest"), "{error}");
    }
    pools.shutdown();
}

#[test]
fn each_observer_is_told_of_the_end_once_and_later_queueing_is_refused() {
    for by_destroy in [true, false] {
        let (pools, told) = (pools(4), Arc::new(AtomicUsize::new(0)));
        let queue = build(&pools, |q| q);
        let on_end = |panics: bool| {
            let (told, queue) = (Arc::clone(&told), queue.clone());
            queue.clone().on_end(move || {
                assert_eq!(queue.queue(&Work::new(|| ())), Err(QueueError::Closed));
                told.fetch_add(1, Ordering::SeqCst);
                assert!(!panics, "on purpose");
            })
        };
        drop(on_end(false));
        let notices = [on_end(false), on_end(true), on_end(false)];
        assert_eq!(told.load(Ordering::SeqCst), 0);
        if by_destroy {
            queue.destroy()
        } else {
            pools.shutdown()
        }
        assert_eq!(told.load(Ordering::SeqCst), 3);
        let late = on_end(false);
        assert_eq!(told.load(Ordering::SeqCst), 4, "at once");
        pools.shutdown();
        drop((notices, late));
        assert_eq!(told.load(Ordering::SeqCst), 4);
    }
}
