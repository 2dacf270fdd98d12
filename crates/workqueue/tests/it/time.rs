//! Tests of the timekeeper with real threads. No test here measures time: each waits for what has
//! to happen.

use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use corewise_sync::Mutex;
use corewise_sync::atomic::{AtomicUsize, Ordering};
use corewise_topology::{AffinityScope, Machine};
use corewise_workqueue::{PoolsBuilder, QueueError, Queued, Ticker, Work, WorkerPools, Workqueue};

use crate::spin::spin_until;

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
    // A join might take the item back and run it here.
    drop(queue.spawn(move || tell.send(()).expect("it listens")));
    computes.join().expect("it saw that the other ran");
    let stats = queue.stats();
    assert!(stats.cpu_intensive + stats.blocked_untold >= 1, "{stats:?}");
}

#[test]
fn an_item_that_blocks_without_telling_gets_a_replacement() {
    if !corewise_sync::sys::KERNEL_THREADS {
        // The pool can't know here that a thread sleeps.
        return;
    }
    let pools = one_cpu().build();
    let queue = queue(&pools);
    let (tell, told) = mpsc::channel();
    // A wait that the pool knows nothing of.
    let blocks = queue.spawn(move || told.recv());
    // A join might take the item back and run it here.
    drop(queue.spawn(move || tell.send(7).expect("it listens")));
    assert_eq!(blocks.join().expect("no panic"), Ok(7));
    // The timekeeper counts after it has let the other one start.
    spin_until(|| queue.stats().blocked_untold != 0);
    assert_eq!(queue.stats().blocked_untold, 1);
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
    let (ran, runs) = mpsc::channel();
    let (queue, work) = (queue(&pools), Work::new(move || ran.send(()).unwrap()));
    assert_eq!(queue.queue_delayed(&work, Duration::from_micros(1)), Ok(Queued::Now));
    runs.recv().unwrap();
    work.flush();
    drop((queue, pools));
    assert!(told.recv().is_err(), "the callback is dropped with the pools");
    drop(work);
}

/// Starts a ticker, and returns the receiver of its ticks.
fn ticking(
    queue: &Workqueue,
    mut tick: impl FnMut(u64) + Send + 'static,
) -> (Ticker, Receiver<u64>) {
    let (tell, told) = mpsc::channel();
    let mut ticks = 0;
    let ticker = queue.every(Duration::from_micros(200), move || {
        ticks += 1;
        let _ = tell.send(ticks);
        tick(ticks);
    });
    (ticker.expect("it is open"), told)
}

#[test]
fn ticks_come_until_the_ticker_is_stopped_or_dropped_and_then_none() {
    let pools = one_cpu().build();
    let queue = queue(&pools);
    for stop in [Ticker::stop, drop] {
        let (ticker, told) = ticking(&queue, |_| ());
        assert_eq!([(); 3].map(|()| told.recv().unwrap()), [1, 2, 3]);
        stop(ticker);
        // The function is dropped, and with it the sender: a tick that runs may send once more.
        queue.flush();
        assert!(told.try_iter().count() < 1_000_000);
        assert_eq!(told.try_recv(), Err(mpsc::TryRecvError::Disconnected));
    }
}

#[test]
fn a_tick_that_panics_is_followed_by_the_next_and_one_that_drops_its_ticker_by_none() {
    let pools = one_cpu().build();
    let queue = queue(&pools);
    let own = Arc::new(Mutex::new(None::<Ticker>));
    let inside = Arc::clone(&own);
    let (ticker, told) = ticking(&queue, move |n| {
        assert!(n != 1, "on purpose");
        if let Some(ticker) = inside.lock().take() {
            drop(ticker);
        }
    });
    *own.lock() = Some(ticker);
    spin_until(|| own.lock().is_none());
    let ticks = told.iter().count();
    assert!(ticks >= 2, "{ticks}");
}

#[test]
fn ticks_go_on_while_their_queue_is_drained_and_end_with_it() {
    let pools = WorkerPools::new(&Machine::synthetic("numa:1 l3:1 core:2 pu:1").unwrap());
    let queue = queue(&pools);
    let (ticker, told) = ticking(&queue, |_| ());
    let (go, waits) = mpsc::channel();
    queue.spawn(move || waits.recv());
    std::thread::scope(|scope| {
        scope.spawn(|| queue.drain());
        // It has begun once something is refused.
        spin_until(|| queue.try_spawn(|| ()).is_err());
        let before = told.try_iter().last().unwrap_or_default();
        let after = [(); 3].map(|()| told.recv().expect("it goes on"));
        assert_eq!(after, [before + 1, before + 2, before + 3]);
        assert!(queue.try_spawn(|| ()).is_err(), "the drain waits");
        go.send(()).expect("the item waits");
    });
    queue.destroy();
    told.try_iter().for_each(drop);
    assert_eq!(told.try_recv(), Err(mpsc::TryRecvError::Empty), "no tick is left, but its ticker");
    assert_eq!(queue.every(Duration::from_secs(1), || ()).err(), Some(QueueError::Closed));
    drop(ticker);
    assert!(told.recv().is_err());
}

#[test]
#[should_panic(expected = "wants a period")]
fn a_tick_each_0_s_is_refused() {
    let pools = one_cpu().build();
    let _ = queue(&pools).every(Duration::ZERO, || ());
}
