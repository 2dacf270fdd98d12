//! A waiter that takes a still queued item back and runs it itself: the cases in which it does, and
//! those in which it doesn't. The races are model-checked in `tests/loom/take_back.rs`.

use std::sync::Arc;
use std::thread;

use corewise_sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use corewise_sync::context::{self, AtomicSection, Placement};
use corewise_sync::{Completion, Countdown, Mutex};
use corewise_topology::Machine;
use corewise_workqueue::{JoinError, Queued, Work, WorkerPools, Workqueue, blocking};

use crate::setup::{builder, inside, pools, queue};
use crate::spin::spin_until;

#[test]
fn a_worker_that_joins_a_queued_closure_runs_it() {
    let (_pools, queue) = queue(1);
    let same = inside(&queue, |queue| {
        let inner = queue.spawn(|| (thread::current().id(), Placement::current()));
        let here = (thread::current().id(), Placement::current());
        inner.join().unwrap() == here
    });
    assert!(same, "on its own thread, with the token of the pod");
    queue.flush();
    let stats = queue.stats();
    assert_eq!((stats.taken_back, stats.queued, stats.completed), (1, 2, 2));
}

#[test]
fn a_worker_that_flushes_a_queued_item_runs_it() {
    let (_pools, queue) = queue(1);
    let ran_on = inside(&queue, |queue| {
        let ran_on = Arc::new(Mutex::new(None));
        let says = Arc::clone(&ran_on);
        let work = Work::new(move || *says.lock() = Some(thread::current().id()));
        assert_eq!(queue.queue(&work), Ok(Queued::Now));
        assert!(work.flush(), "there was something to wait for");
        assert!(!work.is_pending() && !work.is_running());
        let ran_on = *ran_on.lock();
        ran_on == Some(thread::current().id())
    });
    assert!(ran_on);
}

#[test]
fn an_unrelated_item_is_never_run_on_the_waiter_s_stack() {
    let (_pools, queue) = queue(1);
    inside(&queue, |queue| {
        let waiting = Arc::new(AtomicBool::new(true));
        let seen = Arc::clone(&waiting);
        let here = thread::current().id();
        let older = queue.spawn(move || {
            assert!(thread::current().id() != here || !seen.load(Ordering::SeqCst));
        });
        queue.spawn(|| ()).join().unwrap();
        assert!(!older.is_finished(), "it is still in the list, where it was first");
        waiting.store(false, Ordering::SeqCst);
        older.join().unwrap();
    });
}

#[test]
fn an_item_that_queues_itself_is_run_once_by_its_flusher() {
    let (_pools, queue) = queue(1);
    let runs = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&runs);
    let after = inside(&queue, move |queue| {
        let own = Arc::new(Mutex::new(None::<Work>));
        let work = {
            let (own, queue, runs) = (Arc::clone(&own), queue.clone(), Arc::clone(&counted));
            Work::new(move || {
                if runs.fetch_add(1, Ordering::SeqCst) == 0 {
                    queue.queue(own.lock().as_ref().unwrap()).unwrap();
                }
            })
        };
        *own.lock() = Some(work.clone());
        assert_eq!(queue.queue(&work), Ok(Queued::Now));
        work.flush();
        own.lock().take();
        counted.load(Ordering::SeqCst)
    });
    assert_eq!(after, 1, "the flush waits for the first instance alone");
    queue.flush();
    assert_eq!(runs.load(Ordering::SeqCst), 2, "the second ran after");
}

#[test]
fn a_panic_of_an_item_that_was_taken_back_is_the_item_s() {
    let (_pools, queue) = queue(1);
    let message = inside(&queue, |queue| {
        let inner = queue.spawn(|| -> () { panic!("on purpose") });
        match inner.join() {
            Err(error @ JoinError::Panicked(_)) => error.message().map(str::to_owned),
            _ => None,
        }
    });
    assert_eq!(message.as_deref(), Some("on purpose"));
    assert_eq!(inside(&queue, |_| 7), 7);
}

#[test]
fn a_chain_longer_than_a_stack_should_be_goes_on_on_other_workers() {
    fn depth(queue: &Workqueue, left: u32) -> u32 {
        if left == 0 {
            return 0;
        }
        let (own, used) = (queue.clone(), std::hint::black_box([0_u8; 4096]));
        let depth = queue.spawn(move || depth(&own, left - 1)).join().unwrap() + 1;
        std::hint::black_box(&used);
        depth
    }
    let (pools, queue) = queue(1);
    assert_eq!(inside(&queue, |queue| depth(queue, 500)), 500);
    let made = pools.report()[0].threads_made;
    assert!((2..=40).contains(&made), "one thread for half a stack of them, not one each: {made}");
}

#[test]
fn a_thread_that_must_not_block_or_says_that_it_blocks_runs_no_item() {
    let (_pools, queue) = queue(1);
    let (atomic, blocking) = inside(&queue, |queue| {
        let other = |here| move || thread::current().id() != here;
        let here = thread::current().id();
        let inner = queue.spawn(other(here));
        let section = AtomicSection::enter("test");
        let atomic = inner.join().unwrap();
        drop(section);
        let inner = queue.spawn(other(here));
        (atomic, blocking("the test", || inner.join().unwrap()))
    });
    assert!(atomic && blocking, "another worker did");
    assert_eq!(queue.stats().taken_back, 0);
    let _ = context::take_violation();
}

#[test]
fn items_that_the_limiter_holds_back_are_not_run_past_it() {
    let pools = pools(2);
    let limited = builder().max_active(1).build(&pools).expect("a queue");
    let queue = builder().build(&pools).expect("a queue on the same pools");
    let (gate, over) = (Arc::new(Completion::new()), Arc::new(AtomicBool::new(false)));
    let waiter = {
        let (gate, over, limited) = (Arc::clone(&gate), Arc::clone(&over), limited.clone());
        queue.spawn(move || {
            let (set, read) = (Arc::clone(&over), over);
            let first = limited.spawn(move || {
                spin_until(|| gate.is_complete());
                set.store(true, Ordering::SeqCst);
            });
            let in_turn = limited.spawn(move || read.load(Ordering::SeqCst)).join().unwrap();
            first.join().unwrap();
            in_turn
        })
    };
    spin_until(|| pools.report()[0].blocked == 1 || waiter.is_finished());
    gate.complete();
    assert!(waiter.join().unwrap());
}

#[test]
fn a_strict_queue_s_item_is_run_by_a_worker_of_its_pool() {
    let machine = Machine::live().expect("this machine");
    let pools = WorkerPools::new(&machine);
    let queue = builder().strict(true).build(&pools).expect("a queue");
    let here = thread::current().id();
    for _ in 0..200 {
        assert!(queue.spawn(move || thread::current().id() != here).join().unwrap());
    }
    assert!(queue.stats().taken_back == 0);
}

#[test]
fn a_waiter_that_is_no_worker_takes_back_on_a_cpu_of_the_pod() {
    if !corewise_sync::sys::KERNEL_THREADS {
        // By the clock, an item that waits for a CPU computes: others start beside it.
        return;
    }
    let machine = Machine::live().expect("this machine");
    let cpus = machine.housekeeping().len();
    let pools = WorkerPools::new(&machine);
    let queue = builder().build(&pools).expect("a queue");
    let (gate, inside) = (Arc::new(Completion::new()), Arc::new(Countdown::new(cpus)));
    for _ in 0..cpus {
        let (gate, inside) = (Arc::clone(&gate), Arc::clone(&inside));
        drop(queue.spawn(move || {
            inside.done();
            spin_until(|| gate.is_complete());
        }));
    }
    inside.wait();
    // All cores of the pod are taken: no worker will run it.
    let here = thread::current().id();
    assert!(queue.spawn(move || thread::current().id() == here).join().unwrap());
    assert_eq!(queue.stats().taken_back, 1);
    gate.complete();
}
