//! Items that flush or drain other queues. If no worker can come, the flush runs the items that it
//! waits for. If that is impossible, it ends with a panic that gives the reason. A flush that may
//! still end is left alone.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use corewise_sync::atomic::{AtomicUsize, Ordering};
use corewise_sync::{Completion, Countdown};
use corewise_topology::AffinityScope;
use corewise_workqueue::{PoolsBuilder, QueueBuilder, QueueKind, WorkerPools, Workqueue};

use crate::setup::{capped, on_small_stack};

fn pools(cpus: u32, max_workers: usize) -> PoolsBuilder {
    // A wait of this length counts as long.
    capped(cpus, max_workers).stall_after(Duration::from_millis(20))
}

fn builder(name: &str) -> QueueBuilder {
    Workqueue::builder(name).scope(AffinityScope::System)
}

fn queue(pools: &WorkerPools, name: &str) -> Workqueue {
    builder(name).build(pools).expect("a queue")
}

/// Runs a chain of levels, each of which is a queue of its own, and is flushed or drained.
fn levels(pools: &WorkerPools, drain: bool, left: usize) -> usize {
    if left == 0 {
        return 0;
    }
    let (own, depth) = (pools.clone(), Arc::<AtomicUsize>::default());
    let (level, says) = (queue(pools, "level"), Arc::clone(&depth));
    let below = move || says.store(levels(&own, drain, left - 1) + 1, Ordering::SeqCst);
    if left % 2 == 0 {
        drop(level.spawn(below))
    } else {
        run_alone(&level, below)
    };
    if drain {
        level.drain()
    } else {
        level.flush()
    };
    depth.load(Ordering::SeqCst)
}

/// Runs the function as an item without a handle.
fn run_alone(queue: &Workqueue, function: impl FnOnce() + Send + 'static) {
    assert!(queue.execute(function).is_ok(), "it is open");
}

#[test]
fn a_chain_of_flushes_goes_on_when_every_worker_waits() {
    if !corewise_sync::sys::KERNEL_THREADS {
        // The size of the stack isn't known: fewer items run on it.
        return;
    }
    for (cpus, max_workers) in [(1, 1), (2, 2), (2, 3)] {
        for drain in [false, true] {
            let pools = pools(cpus, max_workers).build();
            let (first, own) = (queue(&pools, "first"), pools.clone());
            let depth = first.spawn(move || levels(&own, drain, 100));
            assert_eq!(depth.join().unwrap(), 100, "{cpus} CPUs, {max_workers} workers");
            pools.shutdown();
        }
    }
}

#[test]
fn a_flush_at_the_cap_runs_all_that_it_waits_for_and_nothing_else() {
    let pools = pools(1, 1).build();
    let [first, other, flushed] = ["first", "other", "flushed"].map(|name| queue(&pools, name));
    let item = first.spawn(move || {
        let counts = [(); 2].map(|()| Arc::<AtomicUsize>::default());
        let queue = |queue: &Workqueue, count: &Arc<AtomicUsize>| {
            let count = Arc::clone(count);
            drop(queue.spawn(move || count.fetch_add(1, Ordering::SeqCst)));
        };
        for at in 0..300 {
            queue(&flushed, &counts[0]);
            if at % 10 == 0 {
                queue(&other, &counts[1]);
            }
        }
        flushed.flush();
        counts.map(|count| count.load(Ordering::SeqCst))
    });
    assert_eq!(item.join().expect("it goes on"), [300, 0]);
    pools.shutdown();
}

#[test]
fn items_that_flush_each_other_s_queue_are_found() {
    for drain in [false, true] {
        for several in [false, true] {
            let all = [(); 2].map(|()| pools(1, 8).build());
            let queues = [queue(&all[0], "one"), queue(&all[usize::from(several)], "two")];
            let both = Arc::new(Countdown::new(2));
            let (says, said) = mpsc::channel();
            for at in 0..2 {
                let (other, both, says) = (queues[1 - at].clone(), Arc::clone(&both), says.clone());
                let waits = move || {
                    both.done();
                    both.wait();
                    let flush = || if drain { other.drain() } else { other.flush() };
                    let waited = catch_unwind(AssertUnwindSafe(flush));
                    let text =
                        |payload: Box<dyn std::any::Any + Send>| payload.downcast::<String>();
                    says.send(waited.map_err(text)).expect("the test listens");
                };
                if drain {
                    drop(queues[at].spawn(waits))
                } else {
                    run_alone(&queues[at], waits)
                };
            }
            let given_up = (0..2).filter_map(|_| said.recv().expect("each ends").err());
            let given_up: Vec<_> = given_up.map(|text| text.expect("text")).collect();
            assert_eq!(given_up.len(), 1, "{given_up:?}");
            assert!(given_up[0].contains("cannot end"), "{given_up:?}");
            // Nothing of the drain is left.
            queues.iter().for_each(|queue| assert_eq!(queue.spawn(|| 7).join().ok(), Some(7)));
            all.iter().for_each(WorkerPools::shutdown);
        }
    }
}

#[test]
fn a_flush_that_no_stack_holds_ends_with_a_panic_that_says_so() {
    let pools = pools(1, 2).spawn_handler(on_small_stack).build();
    let (first, own) = (queue(&pools, "first"), pools.clone());
    let error = first.spawn(move || deep(&own, 400)).join().expect_err("no stack holds so many");
    let message = error.message().expect("it panicked");
    assert!(message.contains("waits for all items of queue 'level'"), "{message}");
    assert!(message.contains("all 2 workers"), "{message}");
    assert_eq!(first.spawn(|| 7).join().unwrap(), 7);
}

/// Runs a chain as `levels` does; a level hands on the panic of the one below it.
fn deep(pools: &WorkerPools, left: usize) {
    if left == 0 {
        return;
    }
    let (own, level) = (pools.clone(), queue(pools, "level"));
    let below = level.spawn(move || deep(&own, left - 1));
    level.flush();
    below.join().unwrap_or_else(|error| error.resume());
}

#[test]
fn a_flush_of_items_that_an_order_holds_back_for_the_flusher_is_found() {
    let pools = pools(1, 8).build();
    let ordered = builder("ordered").kind(QueueKind::Ordered).build(&pools).expect("a queue");
    let other = queue(&pools, "other");
    let (own, between) = (ordered.clone(), other.clone());
    let item = ordered.spawn(move || {
        let flushes = own.clone();
        drop(own.spawn(|| ()));
        // It waits for the items after the one that waits for it.
        between.spawn(move || flushes.flush()).join()
    });
    let ended = item.join();
    let error = match ended {
        Ok(inner) => inner.expect_err("one of them is given up"),
        Err(error) => error,
    };
    assert!(error.message().unwrap().contains("this would never end"), "{error}");
    ordered.flush();
}

#[test]
fn an_item_may_flush_a_queue_of_the_same_number_of_other_pools() {
    let all = [(); 2].map(|()| pools(1, 2).build());
    let [one, other] = [queue(&all[0], "one"), queue(&all[1], "other")];
    let runs = Arc::<AtomicUsize>::default();
    let counts = Arc::clone(&runs);
    let flushed = other.clone();
    let item = one.spawn(move || {
        let count = move || counts.fetch_add(1, Ordering::SeqCst);
        drop(flushed.spawn(count));
        flushed.flush();
    });
    item.join().expect("it isn't its own queue");
    assert_eq!(runs.load(Ordering::SeqCst), 1);
}

/// Checks a queue with one item at the rescuer, and another one in the pool whose worker waits for
/// both.
#[test]
fn a_flush_of_what_a_rescuer_will_run_is_left_alone_also_beside_one_of_what_nobody_can_run() {
    let (full, roomy) = (pools(1, 1).build(), pools(1, 8).build());
    // Their flusher can't run the items there.
    let strict = |builder: QueueBuilder| builder.strict(true).build(&full).expect("a queue");
    let (rescued, plain) = (strict(builder("rescued").rescuer(true)), strict(builder("plain")));
    let other = queue(&roomy, "other");
    let (go, goes) = mpsc::channel::<()>();
    let (begins, begun) = mpsc::channel();
    let (give, take) = mpsc::channel::<corewise_workqueue::JoinHandle<()>>();
    let waits = plain.spawn(move || take.recv().expect("it is given").join().is_ok());
    let first = rescued.spawn(move || {
        begins.send(()).expect("the test listens");
        goes.recv().expect("the test lets it go");
    });
    drop((first, rescued.spawn(|| ()), plain.spawn(|| ())));
    let flushes = |queue: &Workqueue| {
        let queue = queue.clone();
        other.spawn(move || queue.flush())
    };
    let of_plain = flushes(&plain);
    give.send(flushes(&rescued)).expect("it waits for that");
    begun.recv().expect("the rescuer comes");
    // They look around many times meanwhile.
    assert!(!Completion::new().wait_timeout(Duration::from_millis(150)));
    go.send(()).expect("it waits");
    assert_eq!(waits.join().ok(), Some(true));
    of_plain.join().expect("it is left alone");
}

/// Checks every kind of wait in items, all of which wait in the end for an act of this thread.
#[test]
fn waits_that_end_by_what_happens_outside_of_the_pools_are_left_alone() {
    for max_workers in [2, 8] {
        let pools = pools(2, max_workers).build();
        let [one, two] = ["one", "two"].map(|name| queue(&pools, name));
        let (give, take) = mpsc::channel();
        let event = Arc::new(Completion::new());
        let (mut reads, mut writes) = std::io::pipe().expect("a pipe");
        let begun = Arc::new(Countdown::new(1));
        let begins = Arc::clone(&begun);
        let (waits, flushed) = (Arc::clone(&event), two.clone());
        let item = one.spawn(move || {
            let read = flushed.spawn(move || {
                begins.done();
                let mut byte = [0];
                std::io::Read::read_exact(&mut reads, &mut byte).expect("it is written");
                let taken: u8 = take.recv().expect("it is given");
                waits.wait();
                byte[0] + taken
            });
            flushed.flush();
            flushed.drain();
            read.join().unwrap()
        });
        let (own, waits) = (two.clone(), one.spawn(|| 1));
        let beside = one.spawn(move || {
            own.flush();
            waits.join().unwrap()
        });
        begun.wait();
        // They look around many times meanwhile.
        let never = Completion::new();
        assert!(!never.wait_timeout(Duration::from_millis(150)));
        std::io::Write::write_all(&mut writes, &[1]).expect("it is read");
        assert!(!never.wait_timeout(Duration::from_millis(150)));
        give.send(2).expect("it is taken");
        assert!(!never.wait_timeout(Duration::from_millis(150)));
        event.complete();
        assert_eq!((item.join().unwrap(), beside.join().unwrap()), (3, 1));
        pools.shutdown();
    }
}
