//! Items that wait for items, deeper than there are workers. If no worker can come any more, the
//! waiters run the items that they wait for, as long as there is a stack.

use std::sync::{Arc, mpsc};
use std::time::Duration;

use corewise_sync::Mutex;
use corewise_sync::atomic::{AtomicUsize, Ordering};
use corewise_sync::context::{self, AtomicSection};
use corewise_topology::{AffinityScope, CpuId, Machine};
use corewise_workqueue::{At, JoinHandle, Queued, Work, WorkerPools, Workqueue, blocking};

use crate::setup::{builder, capped, on_small_stack};

fn by_join(queue: &Workqueue, left: u32) -> u32 {
    if left == 0 {
        return 0;
    }
    let own = queue.clone();
    queue.spawn(move || by_join(&own, left - 1)).join().expect("no panic") + 1
}

pub(crate) fn by_scope(queue: &Workqueue, left: u32) -> u32 {
    let mut depth = 0;
    if left > 0 {
        queue.scope(|s| drop(s.spawn(|| depth = by_scope(queue, left - 1) + 1)));
    }
    depth
}

fn by_flush(queue: &Workqueue, left: u32) -> u32 {
    if left == 0 {
        return 0;
    }
    let depth = Arc::<AtomicUsize>::default();
    let (own, says) = (queue.clone(), Arc::clone(&depth));
    let work = Work::new(move || says.store(by_flush(&own, left - 1) as usize, Ordering::SeqCst));
    assert_eq!(queue.queue(&work), Ok(Queued::Now));
    work.flush();
    depth.load(Ordering::SeqCst) as u32 + 1
}

fn by_told_block(queue: &Workqueue, left: u32) -> u32 {
    if left == 0 {
        return 0;
    }
    let own = queue.clone();
    let inner = queue.spawn(move || by_told_block(&own, left - 1));
    blocking("the test", || inner.join().expect("no panic")) + 1
}

/// Runs a chain of items, each for the pod of the next CPU.
fn by_turns(queue: &Workqueue, left: u32) -> u32 {
    if left == 0 {
        return 0;
    }
    let own = queue.clone();
    queue
        .at(At::Cpu(CpuId::new(left % 2)))
        .spawn(move || by_turns(&own, left - 1))
        .join()
        .expect("no panic")
        + 1
}

fn by_delay(queue: &Workqueue, left: u32) -> u32 {
    if left == 0 {
        return 0;
    }
    let depth = Arc::<AtomicUsize>::default();
    let (own, says) = (queue.clone(), Arc::clone(&depth));
    let work = Work::new(move || says.store(by_delay(&own, left - 1) as usize, Ordering::SeqCst));
    assert_eq!(queue.queue_delayed(&work, Duration::from_micros(100)), Ok(Queued::Now));
    work.flush_delayed();
    depth.load(Ordering::SeqCst) as u32 + 1
}

type Chain = fn(&Workqueue, u32) -> u32;

#[test]
fn a_chain_of_waits_goes_on_when_every_worker_waits() {
    if !corewise_sync::sys::KERNEL_THREADS {
        // The size of the stack isn't known: fewer items run on it.
        return;
    }
    let chains = [by_join as Chain, by_scope, by_flush, by_told_block, by_turns];
    for max_workers in [1, 2, 3] {
        for chain in chains {
            for scope in [AffinityScope::System, AffinityScope::Cpu] {
                let pools = capped(2, max_workers).build();
                let queue = builder().scope(scope).build(&pools).expect("a queue");
                let own = queue.clone();
                assert_eq!(queue.spawn(move || chain(&own, 300)).join().unwrap(), 300);
                queue.flush();
            }
        }
    }
}

#[test]
fn a_chain_of_delayed_items_goes_on_when_every_worker_waits() {
    if !corewise_sync::sys::KERNEL_THREADS {
        // The size of the stack isn't known: fewer items run on it.
        return;
    }
    let pools = capped(1, 2).build();
    let queue = builder().build(&pools).expect("a queue");
    let own = queue.clone();
    assert_eq!(queue.spawn(move || by_delay(&own, 100)).join().unwrap(), 100);
}

/// Walks as if through directories: `levels` levels, on each of which some others end at once.
fn walk(queue: &Workqueue, levels: u32, seen: &Arc<AtomicUsize>) {
    seen.fetch_add(1, Ordering::SeqCst);
    if levels == 0 {
        return;
    }
    let below = |levels| {
        let (own, seen) = (queue.clone(), Arc::clone(seen));
        queue.spawn(move || walk(&own, levels, &seen))
    };
    let entries = [below(0), below(levels - 1), below(0)];
    entries.into_iter().for_each(|entry| entry.join().expect("no panic"));
}

#[test]
fn a_walk_deeper_than_there_are_workers_comes_to_its_end() {
    if !corewise_sync::sys::KERNEL_THREADS {
        // The size of the stack isn't known: fewer items run on it.
        return;
    }
    for (cpus, max_workers) in [(1, 2), (2, 2), (2, 4), (4, 4), (2, 8)] {
        for _ in 0..10 {
            let pools = capped(cpus, max_workers).build();
            let queue = builder().build(&pools).expect("a queue");
            let (own, seen) = (queue.clone(), Arc::<AtomicUsize>::default());
            let counts = Arc::clone(&seen);
            queue.spawn(move || walk(&own, 300, &counts)).join().unwrap();
            assert_eq!(seen.load(Ordering::SeqCst), 901);
        }
    }
}

#[test]
fn items_that_wait_for_what_others_run_deep_in_their_stacks_come_to_their_end() {
    if !corewise_sync::sys::KERNEL_THREADS {
        // The size of the stack isn't known: fewer items run on it.
        return;
    }
    let pools = capped(2, 3).build();
    let queue = builder().build(&pools).expect("a queue");
    let mut before = None::<JoinHandle<u32>>;
    for _ in 0..200 {
        let own = queue.clone();
        before = Some(queue.spawn(move || {
            let depth = by_join(&own, 40);
            assert!(before.is_none_or(|before| before.join().unwrap() == depth));
            depth
        }));
    }
    assert_eq!(before.map(|last| last.join().unwrap()), Some(40));
}

#[test]
fn a_panic_that_is_unwrapped_at_each_level_of_a_recursion_grows_by_a_line_a_level() {
    fn deep(queue: &Workqueue, levels: usize) -> usize {
        assert_ne!(levels, 0, "a \"quoted\" word at the leaf");
        let its = queue.clone();
        queue.spawn(move || deep(&its, levels - 1)).join().unwrap() + 1
    }
    let pools = WorkerPools::new(&Machine::synthetic("core:2 pu:1").expect("valid"));
    let queue = Workqueue::builder("chain").build(&pools).expect("a queue");
    let text = |levels: usize| {
        let its = queue.clone();
        let error = queue.spawn(move || deep(&its, levels)).join().expect_err("it panics");
        (error.message().expect("a panic").to_owned(), format!("{error:?}"))
    };
    let (one, _) = text(1);
    for levels in [2, 3, 8, 20, 40] {
        let (message, debug) = text(levels);
        assert!(message.contains("a \"quoted\" word at the leaf"), "{message}");
        assert!(message.len() <= one.len() * levels, "{} bytes at {levels} levels", message.len());
        assert!(
            debug.len() <= one.len() * (levels + 1),
            "{} bytes at {levels} levels",
            debug.len()
        );
    }
}

/// Sums a list by joins, with `bottom` at its end.
fn sum(queue: &Workqueue, left: u32, bottom: &(dyn Fn() + Sync)) -> u32 {
    if left == 0 {
        bottom();
        return 0;
    }
    let (one, others) = queue.join(|| 1, || sum(queue, left - 1, bottom));
    one + others
}

#[test]
fn a_deep_recursion_of_joins_takes_few_workers_and_other_queues_go_on_meanwhile() {
    if !corewise_sync::sys::KERNEL_THREADS {
        // The size of the stack isn't known: joins go by their number.
        return;
    }
    const WORKERS: usize = 32;
    let pools = capped(2, WORKERS).build();
    let (list, other) = (builder().build(&pools).unwrap(), builder().build(&pools).unwrap());
    let (at_bottom, bottom_is_reached) = mpsc::channel();
    let (release, released) = mpsc::channel::<()>();
    let (its, released) = (list.clone(), Mutex::new(released));
    let deep = list.spawn(move || {
        sum(&its, 3_000, &|| {
            at_bottom.send(()).expect("the test listens");
            blocking("the bottom", || released.lock().recv()).expect("the test releases it");
        })
    });
    bottom_is_reached.recv().expect("it gets to its bottom");
    let workers: usize = pools.report().iter().map(|pool| pool.workers).sum();
    assert!(workers <= WORKERS / 2 + 4, "{workers} of {WORKERS} workers");
    // A wait of the library could run it here.
    let (ran, item_ran) = mpsc::channel();
    drop(other.spawn(move || ran.send(())));
    item_ran.recv_timeout(Duration::from_secs(300)).expect("a worker is left for it");
    release.send(()).expect("it waits");
    assert_eq!(deep.join().expect("no panic"), 3_000);
}

#[test]
fn a_recursion_of_joins_that_fills_half_of_the_workers_ends_with_a_panic_that_says_so() {
    if !corewise_sync::sys::KERNEL_THREADS {
        return;
    }
    let pools = capped(2, 8).spawn_handler(on_small_stack).build();
    let queue = builder().build(&pools).expect("a queue");
    let its = queue.clone();
    let error = queue.spawn(move || sum(&its, 1 << 20, &|| ())).join().expect_err("it has no end");
    let message = error.message().expect("a panic");
    assert!(
        message.contains("has filled 5 stacks") && message.contains("the 8 workers"),
        "{message}"
    );
    assert_eq!(sum(&queue, 100, &|| ()), 100, "the workers are free again");
    pools.shutdown();
}

#[test]
fn a_join_that_keeps_both_closures_has_the_panics_of_one_that_shares_them() {
    let pools = capped(2, 8).build();
    let queue = builder().build(&pools).expect("a queue");
    for (a, b) in [(true, false), (false, true), (true, true), (false, false)] {
        let its = queue.clone();
        let ran = Arc::<AtomicUsize>::default();
        let counts = Arc::clone(&ran);
        let joined = queue.spawn(move || {
            // It must not block, so it runs both.
            let _section = AtomicSection::enter("the test");
            let closure = |panics: bool, what: &'static str| {
                let ran = &counts;
                move || {
                    ran.fetch_add(1, Ordering::SeqCst);
                    assert!(!panics, "{what}");
                }
            };
            its.join(closure(a, "of a"), closure(b, "of b"));
            context::violations()
        });
        match (joined.join(), a, b) {
            (Ok(violations), false, false) => assert_eq!(violations, 0, "it doesn't wait"),
            (Err(error), true, _) => assert_eq!(error.message(), Some("of a")),
            (Err(error), false, true) => assert_eq!(error.message(), Some("of b")),
            (joined, ..) => panic!("{joined:?}"),
        }
        assert_eq!(ran.load(Ordering::SeqCst), 2, "both are over");
    }
}
