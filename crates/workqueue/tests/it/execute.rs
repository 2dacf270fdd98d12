//! `Workqueue::execute` and `try_spawn`: closures that run once, and come back if the queue doesn't
//! take them.
#![cfg(not(loom))]
#![allow(missing_docs, clippy::unwrap_used)]

use std::panic::panic_any;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use corewise_sync::atomic::{AtomicUsize, Ordering};
use corewise_sync::{Completion, Mutex, context};
use corewise_topology::{AffinityScope, CpuId, Machine};
use corewise_workqueue::{At, JoinError, QueueError, WorkerPools, Workqueue};

use crate::setup::{builder, pools};
use crate::spin::spin_until;

/// Occupies one worker until the returned event is completed.
fn occupy(queue: &Workqueue) -> Arc<Completion> {
    let (gate, started) = (Arc::new(Completion::new()), Arc::new(Completion::new()));
    let (inside, here) = (Arc::clone(&gate), Arc::clone(&started));
    let taken = queue.execute(move || {
        here.complete();
        spin_until(|| inside.is_complete());
    });
    assert!(taken.is_ok());
    started.wait();
    gate
}

/// Counts its drops.
struct OnDrop(Arc<AtomicUsize>);

impl Drop for OnDrop {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn each_closure_runs_once_and_is_dropped_also_those_from_inside_items() {
    let pools = pools(2);
    let queue = builder().build(&pools).unwrap();
    let (ran, dropped) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let closure = || {
        let (ran, counts) = (Arc::clone(&ran), OnDrop(Arc::clone(&dropped)));
        move || {
            let _counts = counts;
            ran.fetch_add(1, Ordering::SeqCst);
        }
    };
    for _ in 0..100 {
        let (inner, inside) = ([closure(), closure()], queue.clone());
        let [first, second] = inner;
        let taken = queue.execute(move || {
            assert!(inside.execute(first).is_ok());
            assert!(inside.at(At::Cpu(CpuId::new(1))).execute(second).is_ok());
        });
        assert!(taken.is_ok());
        assert!(queue.at(At::Node(0)).execute(closure()).is_ok());
    }
    queue.flush();
    queue.flush();
    assert_eq!(ran.load(Ordering::SeqCst), 300);
    assert_eq!(dropped.load(Ordering::SeqCst), 300);
    let stats = queue.stats();
    assert_eq!((stats.queued, stats.completed, stats.cancelled), (400, 400, 0));
}

#[test]
fn a_closure_that_panics_is_logged_and_neither_it_nor_its_payload_hurts_the_worker() {
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("on purpose, in the payload's drop");
        }
    }
    let pools = pools(1);
    let queue = builder().build(&pools).unwrap();
    let dropped = Arc::new(AtomicUsize::new(0));
    let counts = OnDrop(Arc::clone(&dropped));
    let taken = queue.execute(move || {
        let _counts = counts;
        panic!("on purpose");
    });
    assert!(taken.is_ok());
    assert!(queue.execute(|| panic_any(Bomb)).is_ok());
    queue.flush();
    assert_eq!(dropped.load(Ordering::SeqCst), 1, "unwinding dropped what it held");
    assert_eq!(queue.spawn(|| 7).join().unwrap(), 7);
}

#[test]
fn a_queue_that_takes_nothing_gives_the_closure_back() {
    let pools = pools(1);
    let gone = builder().build(&pools).unwrap();
    let left = builder().build(&pools).unwrap();
    gone.destroy();
    let back = |queue: &Workqueue| {
        let kept = String::from("kept");
        let (tell, told) = mpsc::channel();
        let closure = move || tell.send(kept).expect("the test listens");
        let refused = queue.execute(closure).expect_err("it isn't taken");
        assert_eq!(refused.error, QueueError::Closed);
        let refused = queue.try_spawn(refused.closure).expect_err("nor is it here");
        assert_eq!(refused.error, QueueError::Closed);
        assert!(refused.to_string().contains("destroyed"), "{refused}");
        (refused.closure)();
        assert_eq!(told.recv().unwrap(), "kept");
    };
    back(&gone);
    pools.shutdown();
    back(&left);
    assert_eq!(left.stats().queued, left.stats().completed);
}

#[test]
fn a_queue_with_a_capacity_gives_back_what_comes_beyond_until_one_is_over_in_whatever_way() {
    let pools = pools(1);
    let queue = builder().capacity(2).build(&pools).unwrap();
    let full = || {
        let kept = String::from("kept");
        let refused = queue.try_spawn(move || kept).expect_err("it is full");
        assert_eq!((refused.closure)(), "kept");
        refused.error == QueueError::Full
    };
    let gate = occupy(&queue);
    let waits = queue.try_spawn(|| 7).unwrap();
    let aborted = queue.try_spawn(|| 0).unwrap();
    assert!(full() && full());
    aborted.abort();
    let panics = queue.try_spawn(|| panic!("on purpose")).unwrap();
    assert!(full(), "the place of the aborted one is taken");
    queue.execute(|| ()).expect("others aren't counted");
    gate.complete();
    assert_eq!(waits.join().unwrap(), 7);
    assert!(matches!(panics.join(), Err(JoinError::Panicked(_))));
    let both = [1, 2].map(|n| queue.try_spawn(move || n).expect("both are over"));
    assert_eq!(both.map(|handle| handle.join().unwrap()), [1, 2]);
    queue.destroy();
    assert_eq!(queue.try_spawn(|| ()).unwrap_err().error, QueueError::Closed);
}

#[test]
fn a_queue_that_is_full_and_closed_is_closed() {
    let pools = pools(1);
    let none = builder().capacity(0).build(&pools).unwrap();
    assert_eq!(none.try_spawn(|| ()).unwrap_err().error, QueueError::Full);
    none.destroy();
    assert_eq!(none.try_spawn(|| ()).unwrap_err().error, QueueError::Closed);
}

#[test]
fn a_drain_gives_back_what_comes_from_outside_and_takes_what_its_own_items_hand_in() {
    let pools = pools(2);
    let queue = builder().build(&pools).unwrap();
    let other = builder().build(&pools).unwrap();
    let ran = Arc::new(AtomicUsize::new(0));
    let (started, go) = (Arc::new(Completion::new()), Arc::new(Completion::new()));
    let (says, waits) = (Arc::clone(&started), Arc::clone(&go));
    let (inside, counts) = (queue.clone(), Arc::clone(&ran));
    let taken = queue.execute(move || {
        says.complete();
        waits.wait();
        let taken = inside.execute(move || {
            counts.fetch_add(1, Ordering::SeqCst);
        });
        assert!(taken.is_ok());
    });
    assert!(taken.is_ok());
    started.wait();
    std::thread::scope(|scope| {
        scope.spawn(|| queue.drain());
        // It has begun once something is refused.
        let refused = loop {
            match queue.execute(|| ()) {
                Ok(()) => std::thread::yield_now(),
                Err(refused) => break refused.error,
            }
        };
        assert_eq!(refused, QueueError::Draining);
        assert_eq!(queue.try_spawn(|| ()).unwrap_err().error, QueueError::Draining);
        go.complete();
    });
    assert_eq!(ran.load(Ordering::SeqCst), 1);
    assert!(queue.execute(|| ()).is_ok(), "the drain is over");
    drop(other);
}

#[test]
fn closures_that_wait_at_the_shutdown_are_dropped_and_their_panics_are_caught() {
    struct Bomb(OnDrop);
    impl Drop for Bomb {
        fn drop(&mut self) {
            assert!(Arc::strong_count(&self.0.0) == 0, "on purpose, in a closure's drop");
        }
    }
    // The handler promises its only worker, which never runs.
    let kept = Arc::new(Mutex::new(None));
    let keeps = Arc::clone(&kept);
    let machine = Machine::synthetic("numa:1 l3:1 core:1 pu:1").unwrap();
    let pools = WorkerPools::builder(&machine)
        .spawn_handler(move |worker| match keeps.lock().replace(worker) {
            None => Ok(()),
            Some(_) => Err(std::io::Error::other("one is enough")),
        })
        .build();
    let queue = builder().build(&pools).unwrap();
    let (ran, dropped) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    for _ in 0..3 {
        let (ran, bomb) = (Arc::clone(&ran), Bomb(OnDrop(Arc::clone(&dropped))));
        let taken = queue.execute(move || {
            let _bomb = bomb;
            ran.fetch_add(1, Ordering::SeqCst);
        });
        assert!(taken.is_ok());
    }
    let worker = kept.lock().take();
    std::thread::scope(|scope| {
        scope.spawn(|| pools.shutdown());
        spin_until(|| queue.execute(|| ()).is_err());
        drop(worker);
    });
    let stats = queue.stats();
    assert_eq!((stats.queued, stats.completed), (stats.completed, stats.cancelled));
    assert_eq!(ran.load(Ordering::SeqCst), 0);
    assert_eq!(dropped.load(Ordering::SeqCst), 3);
}

#[test]
fn a_dump_and_the_watchdog_name_it_by_its_line() {
    let machine = Machine::synthetic("numa:1 l3:1 core:1 pu:1").unwrap();
    let (tell, told) = mpsc::channel();
    let tell = Mutex::new(tell);
    let pools = WorkerPools::builder(&machine)
        .stall_after(Duration::from_millis(1))
        .on_stall(move |report| {
            let _ = tell.lock().send(report.to_string());
        })
        .build();
    let queue = builder().build(&pools).unwrap();
    let gate = occupy(&queue);
    assert!(queue.execute(|| ()).is_ok());
    let line = line!() - 1;
    let running = pools.dump().running;
    assert!(running.iter().any(|one| one.site.contains("execute.rs:")), "in {running:?}");
    let report = told.recv().unwrap();
    assert!(report.contains(&format!("execute.rs:{line}")), "the one that waits, in\n{report}");
    gate.complete();
    queue.flush();
}

#[test]
fn an_executed_closure_has_the_checks_of_other_items_and_can_wait() {
    let pools = pools(1);
    let queue = builder().build(&pools).unwrap();
    let (tell, told) = mpsc::channel();
    let inside = queue.clone();
    let taken = queue.execute(move || {
        // The item waits inside: its worker is replaced.
        let value = inside.spawn(|| 7).join().unwrap();
        std::mem::forget(context::AtomicSection::enter("left behind"));
        tell.send(value).expect("the test listens");
    });
    assert!(taken.is_ok());
    assert_eq!(told.recv().unwrap(), 7);
    assert!(!queue.spawn(context::in_atomic_section).join().unwrap());
}

/// Spins until all of these have run.
fn until(ran: &AtomicUsize, many: usize) {
    spin_until(|| ran.load(Ordering::SeqCst) >= many);
}

/// Returns a closure that counts its run.
fn counts(ran: &Arc<AtomicUsize>) -> impl FnOnce() + Send + use<> {
    let ran = Arc::clone(ran);
    move || _ = ran.fetch_add(1, Ordering::SeqCst)
}

#[test]
fn what_a_long_item_spawned_while_all_cores_were_busy_is_run_by_a_worker_that_is_free_later() {
    let pools = pools(2);
    let queue = builder().build(&pools).unwrap();
    let gate = occupy(&queue);
    let (ran, own) = (Arc::new(AtomicUsize::new(0)), queue.clone());
    let counter = Arc::clone(&ran);
    let item = queue.spawn(move || {
        for _ in 0..5 {
            own.execute(counts(&counter)).ok().unwrap();
        }
        assert_eq!(counter.load(Ordering::SeqCst), 0, "both cores are busy");
        gate.complete();
        // As one that computes.
        until(&counter, 5);
    });
    item.join().unwrap();
    queue.flush();
    assert_eq!(queue.stats().queued, 7);
}

#[test]
fn what_an_item_spawned_before_it_sleeps_is_run_meanwhile_whether_or_not_it_says_so() {
    let pools = pools(1);
    let queue = builder().build(&pools).unwrap();
    for says in [true, false] {
        let (ran, own) = (Arc::new(AtomicUsize::new(0)), queue.clone());
        let item = queue.spawn(move || {
            let (tell, told) = mpsc::channel();
            for _ in 0..20 {
                own.execute(counts(&ran)).ok().unwrap();
            }
            own.execute(move || tell.send(()).unwrap()).ok().unwrap();
            if says {
                corewise_workqueue::blocking("the test", || told.recv()).unwrap();
            } else {
                told.recv().unwrap();
            }
            assert_eq!(ran.load(Ordering::SeqCst), 20, "in their order, on one CPU");
        });
        // A join would take the item back.
        spin_until(|| item.is_finished());
        item.join().unwrap();
    }
}

#[test]
fn spawned_closures_that_panic_or_spawn_again_leave_the_others_alone() {
    let pools = pools(2);
    let queue = builder().build(&pools).unwrap();
    let ran = Arc::new(AtomicUsize::new(0));
    let (own, counter) = (queue.clone(), Arc::clone(&ran));
    queue
        .execute(move || {
            for number in 0..100 {
                let (inner, counter) = (own.clone(), Arc::clone(&counter));
                let closure = move || {
                    for _ in 0..10 {
                        inner.execute(counts(&counter)).ok().unwrap();
                    }
                    assert_ne!(number % 10, 0, "on purpose");
                };
                own.execute(closure).ok().unwrap();
            }
        })
        .ok()
        .unwrap();
    until(&ran, 1000);
    queue.flush();
    let stats = queue.stats();
    assert_eq!((stats.queued, stats.completed, stats.cancelled), (1101, 1101, 0));
}

#[test]
fn the_closures_that_an_item_executes_start_in_order_however_many_and_large_they_are() {
    let pools = pools(1);
    let queue = builder().build(&pools).unwrap();
    for many in [1, 20, 40, 400] {
        let (log, own) = (Arc::new(Mutex::new(Vec::new())), queue.clone());
        let all = Arc::clone(&log);
        queue
            .execute(move || {
                for number in 0..many {
                    let log = Arc::clone(&all);
                    let large = [number; 8];
                    let taken = match number % 7 {
                        3 => own.execute(move || log.lock().push(large[7])).is_ok(),
                        _ => own.execute(move || log.lock().push(number)).is_ok(),
                    };
                    assert!(taken);
                }
            })
            .ok()
            .unwrap();
        spin_until(|| log.lock().len() >= many);
        assert_eq!(*log.lock(), Vec::from_iter(0..many));
    }
}

/// Queues a closure that counts, and executes itself again until the test stops it.
fn chain(queue: &Workqueue, counts: &Arc<Vec<AtomicUsize>>, number: usize, stop: &Arc<Completion>) {
    let (own, counts, stop) = (queue.clone(), Arc::clone(counts), Arc::clone(stop));
    let closure = move || {
        counts[number].fetch_add(1, Ordering::SeqCst);
        if !stop.is_complete() {
            chain(&own, &counts, number, &stop);
        }
    };
    queue.execute(closure).ok().unwrap();
}

#[test]
fn chains_of_short_closures_take_turns_with_each_other_and_with_other_queues() {
    let pools = pools(1);
    let queue = builder().build(&pools).unwrap();
    let other = Workqueue::builder("other").scope(AffinityScope::System).build(&pools).unwrap();
    let counts: Arc<Vec<_>> = Arc::new((0..100).map(|_| AtomicUsize::new(0)).collect());
    let stop = Arc::new(Completion::new());
    (0..counts.len()).for_each(|number| chain(&queue, &counts, number, &stop));
    let least = || counts.iter().map(|count| count.load(Ordering::SeqCst)).min().unwrap();
    let sum = || counts.iter().map(|count| count.load(Ordering::SeqCst)).sum::<usize>();
    spin_until(|| least() >= 1_000);
    let most = counts.iter().map(|count| count.load(Ordering::SeqCst)).max().unwrap();
    let before = sum();
    other.spawn(|| ()).join().unwrap();
    let meanwhile = sum() - before;
    stop.complete();
    queue.flush();
    assert!(most < 3_000, "one chain ran {most} times while another ran 1000 times");
    assert!(meanwhile < 100_000, "{meanwhile} closures ran before an item of another queue");
}
