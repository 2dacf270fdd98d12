//! The rules of a work item's state, of waiting for it and of cancelling it (rule 4.3), one test
//! each, on real threads. Their races are model-checked in `tests/loom/work.rs` and
//! `tests/loom/claim.rs`.

use std::sync::{Arc, mpsc};
use std::time::Duration;

use corewise_sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use corewise_sync::{Completion, Mutex};
use corewise_topology::Machine;
use corewise_workqueue::{QueueError, Queued, Work, WorkerPools, Workqueue};

use crate::setup::{counting, occupy, queue};
use crate::spin::spin_until;

/// Returns an item whose runs report their start on the first channel, and end by a message on the
/// second.
fn stepped() -> (Work, mpsc::Receiver<()>, mpsc::Sender<()>) {
    let (inside, at_start) = mpsc::channel();
    let (go_on, gate) = mpsc::channel();
    let gate = Mutex::new(gate);
    let work = Work::new(move || {
        inside.send(()).expect("the test waits");
        gate.lock().recv().expect("the test says so");
    });
    (work, at_start, go_on)
}

#[test]
fn pending_is_refused_and_cleared_just_before_the_function_runs() {
    let (_pools, queue) = queue(2);
    let (work, at_start, go_on) = stepped();
    assert_eq!(queue.queue(&work), Ok(Queued::Now));
    at_start.recv().unwrap();
    assert!(!work.is_pending() && work.is_running());
    assert_eq!(queue.queue(&work), Ok(Queued::Now), "while it runs it can be queued");
    assert_eq!(queue.queue(&work), Ok(Queued::AlreadyPending), "once");
    go_on.send(()).unwrap();
    at_start.recv().unwrap();
    go_on.send(()).unwrap();
    work.flush();
    assert!(!work.is_pending() && !work.is_running());
}

#[test]
fn an_item_may_be_freed_from_inside_its_own_function() {
    let (_pools, queue) = queue(1);
    let own = Arc::new(Mutex::new(None::<Work>));
    let freed = Arc::new(AtomicBool::new(false));
    let work = {
        let (own, freed) = (Arc::clone(&own), Arc::clone(&freed));
        Work::new(move || {
            drop(own.lock().take());
            freed.store(true, Ordering::SeqCst);
        })
    };
    let gate = occupy(&queue);
    assert_eq!(queue.queue(&work), Ok(Queued::Now));
    *own.lock() = Some(work);
    gate.complete();
    queue.flush();
    assert!(freed.load(Ordering::SeqCst));
    assert_eq!(Arc::strong_count(&own), 1, "the function is gone, and what it captured");
}

#[test]
fn flush_work_waits_for_the_last_queued_instance_only() {
    let (_pools, queue) = queue(2);
    let own = Arc::new(Mutex::new(None::<Work>));
    let stop = Arc::new(AtomicBool::new(false));
    let work = {
        let (own, stop, queue) = (Arc::clone(&own), Arc::clone(&stop), queue.clone());
        Work::new(move || {
            if !stop.load(Ordering::SeqCst) {
                queue.queue(own.lock().as_ref().unwrap()).unwrap();
            }
        })
    };
    *own.lock() = Some(work.clone());
    assert_eq!(queue.queue(&work), Ok(Queued::Now));
    // It is always queued again: a flush that waited for later instances too would never end.
    for _ in 0..100 {
        work.flush();
    }
    stop.store(true, Ordering::SeqCst);
    queue.flush();
    while work.flush() {}
    assert!(!work.flush(), "nothing to wait for");
    own.lock().take();
}

#[test]
fn cancel_work_takes_it_out_of_the_queue_and_says_whether_it_was_pending() {
    let (_pools, queue) = queue(1);
    let gate = occupy(&queue);
    let (before, ran_before) = counting();
    let (work, ran) = counting();
    let (after, ran_after) = counting();
    for item in [&before, &work, &after] {
        assert_eq!(queue.queue(item), Ok(Queued::Now));
    }
    assert!(work.cancel());
    assert!(!work.cancel(), "it isn't pending any more");
    assert!(!work.is_pending() && !work.flush());
    gate.complete();
    queue.flush();
    let runs = [&ran_before, &ran, &ran_after].map(|runs| runs.load(Ordering::SeqCst));
    assert_eq!(runs, [1, 0, 1], "its neighbours in the list are untouched");
    assert_eq!(queue.queue(&work), Ok(Queued::Now), "and it can be queued again");
    work.flush();
    assert_eq!(ran.load(Ordering::SeqCst), 1);
    queue.flush();
    let stats = queue.stats();
    assert_eq!(stats.queued, stats.completed, "a cancelled instance is over");
}

#[test]
fn cancel_work_of_a_running_item_leaves_it_running() {
    let (_pools, queue) = queue(2);
    let (work, at_start, go_on) = stepped();
    assert_eq!(queue.queue(&work), Ok(Queued::Now));
    at_start.recv().unwrap();
    assert!(!work.cancel(), "nothing is pending");
    assert_eq!(queue.queue(&work), Ok(Queued::Now));
    assert!(work.cancel(), "the second instance was, in a list or handed over");
    assert!(work.is_running());
    go_on.send(()).unwrap();
    work.flush();
    assert!(at_start.try_recv().is_err(), "the cancelled one doesn't run");
}

#[test]
fn a_flush_that_waits_for_a_cancelled_instance_ends() {
    let (_pools, queue) = queue(1);
    let gate = occupy(&queue);
    let (work, ran) = counting();
    assert_eq!(queue.queue(&work), Ok(Queued::Now));
    std::thread::scope(|scope| {
        let both = [(); 2].map(|()| scope.spawn(|| work.flush()));
        assert!(work.cancel());
        let _ = both.map(|flush| flush.join().unwrap());
    });
    gate.complete();
    queue.flush();
    assert_eq!(ran.load(Ordering::SeqCst), 0);
}

#[test]
fn cancel_work_sync_works_against_an_item_that_queues_itself() {
    let (_pools, queue) = queue(2);
    let own = Arc::new(Mutex::new(None::<Work>));
    let runs = Arc::new(AtomicUsize::new(0));
    let work = {
        let (own, runs, queue) = (Arc::clone(&own), Arc::clone(&runs), queue.clone());
        Work::new(move || {
            runs.fetch_add(1, Ordering::SeqCst);
            let _ = queue.queue(own.lock().as_ref().unwrap());
        })
    };
    *own.lock() = Some(work.clone());
    for _ in 0..200 {
        let before = runs.load(Ordering::SeqCst);
        assert_eq!(queue.queue(&work), Ok(Queued::Now));
        spin_until(|| runs.load(Ordering::SeqCst) > before);
        work.cancel_sync();
        assert!(!work.is_pending() && !work.is_running() && !work.is_disabled());
        let after = runs.load(Ordering::SeqCst);
        std::thread::yield_now();
        assert_eq!(runs.load(Ordering::SeqCst), after);
    }
    own.lock().take();
}

#[test]
fn cancel_work_sync_waits_for_the_running_instance() {
    let (_pools, queue) = queue(2);
    let (work, at_start, go_on) = stepped();
    assert_eq!(queue.queue(&work), Ok(Queued::Now));
    at_start.recv().unwrap();
    std::thread::scope(|scope| {
        let cancel = scope.spawn(|| {
            let was_pending = work.cancel_sync();
            (was_pending, work.is_running())
        });
        spin_until(|| work.is_disabled());
        assert_eq!(queue.queue(&work), Err(QueueError::Disabled), "meanwhile it is refused");
        go_on.send(()).unwrap();
        assert_eq!(cancel.join().unwrap(), (false, false));
    });
    assert_eq!(queue.queue(&work), Ok(Queued::Now), "afterwards it isn't");
    at_start.recv().unwrap();
    go_on.send(()).unwrap();
    work.flush();
}

#[test]
fn disable_is_counted_and_enable_is_true_at_zero_and_makes_nothing_up() {
    let (_pools, queue) = queue(1);
    let gate = occupy(&queue);
    let (work, ran) = counting();
    assert_eq!(queue.queue(&work), Ok(Queued::Now));
    assert!(work.disable(), "what is pending is dropped");
    assert!(!work.disable(), "and there was nothing more");
    assert!(work.is_disabled());
    assert_eq!(queue.queue(&work), Err(QueueError::Disabled), "refused, and no trace is left:");
    assert!(!work.is_pending() && queue.stats().queued == 2);
    assert!(!work.enable());
    assert_eq!(queue.queue(&work), Err(QueueError::Disabled));
    assert!(work.enable());
    gate.complete();
    queue.flush();
    assert_eq!(ran.load(Ordering::SeqCst), 0, "enabling queues nothing");
    assert_eq!(queue.queue(&work), Ok(Queued::Now));
    work.flush();
    assert_eq!(ran.load(Ordering::SeqCst), 1);
}

#[test]
fn disable_sync_waits_for_the_running_instance_and_the_item_stays_disabled() {
    let (_pools, queue) = queue(2);
    let (work, at_start, go_on) = stepped();
    assert_eq!(queue.queue(&work), Ok(Queued::Now));
    at_start.recv().unwrap();
    std::thread::scope(|scope| {
        let disable = scope.spawn(|| work.disable_sync());
        spin_until(|| work.is_disabled());
        go_on.send(()).unwrap();
        assert!(!disable.join().unwrap());
    });
    assert!(!work.is_running());
    assert_eq!(queue.queue(&work), Err(QueueError::Disabled));
    assert!(work.enable());
    assert_eq!(queue.queue(&work), Ok(Queued::Now));
    at_start.recv().unwrap();
    go_on.send(()).unwrap();
    work.flush();
}

#[test]
fn an_item_has_state_of_its_own_which_each_run_finds_as_the_one_before_has_left_it() {
    let (_pools, queue) = queue(2);
    let (tell, told) = mpsc::channel();
    let mut runs = 0_u64;
    let work = Work::new(move || {
        runs += 1;
        tell.send(runs).expect("the test waits");
        assert!(runs % 100 != 0, "on purpose");
    });
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| (0..2_000).for_each(|_| assert!(queue.queue(&work).is_ok())));
        }
    });
    work.flush();
    drop(work);
    let ran: Vec<_> = told.iter().collect();
    assert!(ran.iter().copied().eq(1..=ran.len() as u64), "{ran:?}");
}

#[test]
fn a_queue_that_refuses_a_mod_delayed_leaves_the_item_where_it_is_pending() {
    let pools = WorkerPools::new(&Machine::synthetic("core:1 pu:1").expect("valid"));
    let build = || Workqueue::builder("test").build(&pools).expect("a queue");
    let (home, destroyed, draining) = (build(), build(), build());
    destroyed.destroy();
    let runs = Arc::<AtomicUsize>::default();
    let counted = Arc::clone(&runs);
    let work = Work::new(move || {
        counted.fetch_add(1, Ordering::SeqCst);
    });
    let hour = Duration::from_secs(3600);
    assert_eq!(home.queue_delayed(&work, hour), Ok(Queued::Now));
    for delay in [Duration::ZERO, hour] {
        assert_eq!(destroyed.mod_delayed(&work, delay), Err(QueueError::Closed));
        assert!(work.is_pending(), "its timer runs");
    }
    // A queue that is drained takes a timer, but nothing at once.
    let gate = Arc::new(Completion::new());
    let waits = Arc::clone(&gate);
    drop(draining.spawn(move || waits.wait()));
    std::thread::scope(|scope| {
        scope.spawn(|| draining.drain());
        let probe = Work::new(|| ());
        while draining.queue(&probe).is_ok() {
            probe.cancel();
        }
        assert_eq!(draining.mod_delayed(&work, Duration::ZERO), Err(QueueError::Draining));
        gate.complete();
    });
    assert!(!work.flush() && work.is_pending(), "a flush doesn't wait for a delay");
    assert!(work.flush_delayed());
    assert_eq!(runs.load(Ordering::SeqCst), 1, "where it was queued");
    // Its waiter is woken before it is counted as over.
    home.flush();
    assert_eq!((home.stats().completed, home.stats().cancelled), (1, 0));
    pools.shutdown();
    assert_eq!(home.mod_delayed(&work, hour), Err(QueueError::Closed));
    assert!(!work.is_pending());
}

#[test]
fn an_item_finds_itself_and_queues_itself_until_its_last_handle_is_gone() {
    let (_pools, queue) = queue(2);
    assert!(Work::current().is_none(), "nothing runs here");
    assert!(queue.spawn(|| Work::current().is_none()).join().unwrap(), "no work item");
    let runs = Arc::new(AtomicUsize::new(0));
    let (again, counted) = (queue.clone(), Arc::clone(&runs));
    let work = Work::new(move || {
        counted.fetch_add(1, Ordering::SeqCst);
        if let Some(own) = Work::current() {
            assert!(own.is_running());
            let _ = again.queue(&own);
        }
    });
    assert_eq!(queue.queue(&work), Ok(Queued::Now));
    spin_until(|| runs.load(Ordering::SeqCst) > 100);
    drop(work);
    // It may have a handle of its own at this moment, and then runs once more.
    queue.drain();
    let over = runs.load(Ordering::SeqCst);
    queue.flush();
    assert_eq!((runs.load(Ordering::SeqCst), queue.active()), (over, 0));
}
