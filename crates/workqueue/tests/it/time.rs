//! What the timekeeper does for real threads. No test here measures time: each waits for what has to
//! happen.

use std::sync::{Arc, mpsc};
use std::time::Duration;

use corewise_sync::atomic::{AtomicUsize, Ordering};
use corewise_topology::{AffinityScope, Machine};
use corewise_workqueue::{PoolsBuilder, Queued, Work, WorkerPools, Workqueue};

/// Pools of a machine with one CPU; the workers are not pinned.
fn one_cpu() -> PoolsBuilder {
    let machine = Machine::synthetic("numa:1 l3:1 core:1 pu:1").expect("a valid description");
    WorkerPools::builder(&machine)
}

fn queue(pools: &WorkerPools) -> Workqueue {
    Workqueue::builder("test").scope(AffinityScope::System).build(pools).expect("a queue")
}

#[test]
fn automatic_cpu_intensive_other_work_runs_beside_an_item_that_computes() {
    let pools = one_cpu().build();
    let queue = queue(&pools);
    let (tell, told) = mpsc::channel();
    let computes = queue.spawn(move || {
        while told.try_recv().is_err() {
            std::hint::spin_loop();
        }
    });
    // Not joined, or the item might be taken back and run here.
    drop(queue.spawn(move || tell.send(()).expect("it listens")));
    computes.join().expect("it saw that the other ran");
    let stats = queue.stats();
    assert!(stats.cpu_intensive + stats.blocked_untold >= 1, "{stats:?}");
}

#[test]
fn an_item_that_blocks_without_telling_gets_a_replacement() {
    let pools = one_cpu().build();
    let queue = queue(&pools);
    let (tell, told) = mpsc::channel();
    // A wait that the pool knows nothing of.
    let blocks = queue.spawn(move || told.recv());
    // Not joined, or the item might be taken back and run here.
    drop(queue.spawn(move || tell.send(7).expect("it listens")));
    assert_eq!(blocks.join().expect("no panic"), Ok(7));
    // The timekeeper counts after it has let the other one start.
    while queue.stats().blocked_untold == 0 {
        std::thread::yield_now();
    }
    assert_eq!(queue.stats().blocked_untold, 1);
}

#[test]
fn declared_cpu_intensive_running_items_are_not_counted_for_concurrency() {
    // Nothing is found here: the queue says it.
    let pools = one_cpu().cpu_intensive_after(Duration::ZERO).build();
    let queue = Workqueue::builder("test").scope(AffinityScope::System).cpu_intensive();
    let queue = queue.build(&pools).expect("a queue");
    let (tell, told) = mpsc::channel();
    let computes = queue.spawn(move || {
        while told.try_recv().is_err() {
            std::hint::spin_loop();
        }
    });
    // Not joined, or the item might be taken back and run here.
    drop(queue.spawn(move || tell.send(()).expect("it listens")));
    computes.join().expect("it saw that the other ran");
    let stats = queue.stats();
    assert_eq!((stats.cpu_intensive, stats.blocked_untold), (0, 0));
}

#[test]
fn a_spawn_handler_makes_the_workers_and_shutdown_waits_for_them() {
    let made = Arc::new(AtomicUsize::new(0));
    let counts = Arc::clone(&made);
    let pools = one_cpu().spawn_handler(move |worker| {
        counts.fetch_add(1, Ordering::Relaxed);
        std::thread::Builder::new().name(format!("my-{}", worker.name())).spawn(|| worker.run())?;
        Ok(())
    });
    let pools = pools.build();
    let queue = queue(&pools);
    let name = queue.spawn(|| std::thread::current().name().map(String::from));
    assert_eq!(name.join().expect("no panic").as_deref(), Some("my-cw-sys0:0"));
    assert!(made.load(Ordering::Relaxed) >= 1);
    pools.shutdown();
    assert_eq!(pools.report()[0].workers, 0);
}

#[test]
fn a_queue_is_not_built_where_the_spawn_handler_fails() {
    let pools = one_cpu().spawn_handler(|_| Err(std::io::Error::other("no more")));
    let error = Workqueue::builder("test").build(&pools.build()).expect_err("no thread");
    assert!(error.to_string().contains("no more"), "{error}");
}

#[test]
fn delayed_items_run_by_themselves_when_their_time_has_come() {
    let pools = one_cpu().build();
    let queue = queue(&pools);
    let (tell, told) = mpsc::channel();
    let item = |n: u32| {
        let tell = tell.clone();
        Work::new(move || tell.send(n).expect("it listens"))
    };
    let (late, early, never) = (item(2), item(1), item(0));
    assert_eq!(queue.queue_delayed(&never, Duration::from_secs(3600)), Ok(Queued::Now));
    assert_eq!(queue.queue_delayed(&late, Duration::from_millis(40)), Ok(Queued::Now));
    assert_eq!(
        queue.queue_delayed(&early, Duration::from_millis(1)),
        Ok(Queued::Now),
        "it wakes the thread anew"
    );
    let mut ran = [(); 2].map(|()| told.recv().expect("it runs"));
    ran.sort();
    assert_eq!(ran, [1, 2]);
    pools.shutdown();
    assert!(!never.is_pending());
    assert!(told.try_recv().is_err());
}

/// Cancels another item where it is dropped.
struct CancelsOnDrop(Work);

impl Drop for CancelsOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

#[test]
fn a_destructor_may_cancel_what_is_cancelled_together_with_its_item() {
    let pools = one_cpu().build();
    let queue = queue(&pools);
    let later = std::time::Duration::from_secs(3600);
    let middle = Work::new(|| ());
    let around = || {
        let guard = CancelsOnDrop(middle.clone());
        // The timer has the only handle.
        queue.queue_delayed(&Work::new(move || _ = &guard), later).unwrap();
    };
    around();
    assert_eq!(queue.queue_delayed(&middle, later), Ok(Queued::Now));
    around();
    queue.destroy();
    assert!(!middle.is_pending());
}

#[test]
fn an_item_that_was_delayed_keeps_nothing_of_its_pools() {
    let (tell, told) = mpsc::channel::<()>();
    let pools = one_cpu().on_stall(move |_| drop(tell.clone())).build();
    let (queue, work) = (queue(&pools), Work::new(|| ()));
    assert_eq!(queue.queue_delayed(&work, Duration::from_micros(1)), Ok(Queued::Now));
    work.flush();
    drop((queue, pools));
    assert!(told.recv().is_err(), "the callback is dropped with the pools");
    drop(work);
}
