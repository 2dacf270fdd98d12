//! The end of the pools, on real threads, and the waits in it.

use std::cell::RefCell;
use std::sync::{Arc, Barrier, mpsc};
use std::time::Duration;

use corewise_sync::Completion;
use corewise_sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use corewise_topology::{AffinityScope, CpuId, Machine};
use corewise_workqueue::{
    Activity, At, QueueError, QueueKind, StallReport, Work, WorkerPools, Workqueue,
};

use crate::setup::pools;
use crate::spin::spin_until;

fn queue(pools: &WorkerPools, scope: AffinityScope) -> Workqueue {
    Workqueue::builder("test").scope(scope).strict(true).build(pools).expect("a queue")
}

/// Runs its function when the thread that set it ends.
struct AtThreadEnd(Box<dyn Fn()>);

impl Drop for AtThreadEnd {
    fn drop(&mut self) {
        (self.0)();
    }
}

thread_local! {
    static AT_THREAD_END: RefCell<Option<AtThreadEnd>> = const { RefCell::new(None) };
}

fn at_thread_end(then: impl Fn() + 'static) {
    AT_THREAD_END.with(|slot| *slot.borrow_mut() = Some(AtThreadEnd(Box::new(then))));
}

#[test]
fn shutdown_waits_until_the_threads_have_ended() {
    let pools = pools(1);
    let queue = queue(&pools, AffinityScope::System);
    let ended = Arc::new(AtomicBool::new(false));
    let says = Arc::clone(&ended);
    let mark = move || {
        at_thread_end(move || {
            // This gives a shutdown that doesn't wait every chance to be seen.
            (0..1000).for_each(|_| std::thread::yield_now());
            says.store(true, Ordering::SeqCst);
        });
    };
    queue.spawn(mark).join().unwrap();
    pools.shutdown();
    assert!(ended.load(Ordering::SeqCst));
}

#[test]
fn each_of_two_shutdowns_at_once_waits_for_the_workers() {
    let pools = pools(1);
    let queue = queue(&pools, AffinityScope::System);
    let (gate, ran) = (Arc::new(Completion::new()), Arc::new(AtomicBool::new(false)));
    let (waits, says) = (Arc::clone(&gate), Arc::clone(&ran));
    drop(queue.spawn(move || {
        waits.wait();
        says.store(true, Ordering::SeqCst);
    }));
    std::thread::scope(|scope| {
        let callers = [(); 2].map(|()| {
            scope.spawn(|| {
                pools.shutdown();
                ran.load(Ordering::SeqCst)
            })
        });
        spin_until(|| queue.queue(&Work::new(|| ())).is_err());
        // The pools are closed. This gives a shutdown that doesn't wait every chance to be seen.
        (0..1000).for_each(|_| std::thread::yield_now());
        gate.complete();
        for caller in callers {
            assert!(caller.join().unwrap(), "it returned while a worker was still there");
        }
    });
}

#[test]
fn items_of_two_pods_may_both_shut_down() {
    for _ in 0..200 {
        let pools = pools(2);
        let queue = queue(&pools, AffinityScope::Cpu);
        let both = Arc::new(Barrier::new(2));
        let items = [0, 1].map(|cpu| {
            let (pools, both) = (pools.clone(), Arc::clone(&both));
            queue.at(At::Cpu(CpuId::new(cpu))).spawn(move || {
                both.wait();
                pools.shutdown();
            })
        });
        // Both are queued before either closes the pools: they wait for each other.
        for item in items {
            item.join().unwrap();
        }
    }
}

#[test]
fn dropping_the_last_handle_runs_what_is_queued_and_ends_the_workers() {
    let pools = pools(1);
    let queue = queue(&pools, AffinityScope::System);
    let (gate, ran) = (Arc::new(Completion::new()), Arc::new(AtomicUsize::new(0)));
    let (waits, (ended, over)) = (Arc::clone(&gate), mpsc::channel());
    drop(queue.spawn(move || {
        at_thread_end(move || ended.send(()).expect("the test waits"));
        spin_until(|| waits.is_complete());
    }));
    for _ in 0..10 {
        let ran = Arc::clone(&ran);
        drop(queue.spawn(move || ran.fetch_add(1, Ordering::SeqCst)));
    }
    drop((queue, pools));
    gate.complete();
    over.recv().unwrap();
    assert_eq!(ran.load(Ordering::SeqCst), 10);
}

/// Queues an item that runs until its gate is open, and waits undeclared.
fn hangs(queue: &Workqueue) -> Arc<Completion> {
    let (gate, runs) = (Arc::new(Completion::new()), Arc::new(Completion::new()));
    let (opens, says) = (Arc::clone(&gate), Arc::clone(&runs));
    drop(queue.spawn(move || {
        says.complete();
        spin_until(|| opens.is_complete());
    }));
    runs.wait();
    gate
}

const SOON: Duration = Duration::from_millis(1);
const LONG: Duration = Duration::from_secs(3600);

#[test]
fn shutdown_timeout_names_what_is_left_and_goes_on_when_it_has_returned() {
    let pools = pools(2);
    let queue = |name: &str| {
        Workqueue::builder(name).kind(QueueKind::Ordered).build(&pools).expect("a queue")
    };
    let (told, untold) = (queue("told"), queue("untold"));
    let opens = hangs(&untold);
    let (gate, runs) = (Arc::new(Completion::new()), Arc::new(Completion::new()));
    let (waits, says) = (Arc::clone(&gate), Arc::clone(&runs));
    drop(told.spawn(move || {
        says.complete();
        waits.wait();
    }));
    runs.wait();
    spin_until(|| pools.report().iter().all(|pool| pool.blocked != 0));
    let ran = Arc::new(AtomicUsize::new(0));
    for queue in [&told, &told, &untold] {
        let ran = Arc::clone(&ran);
        drop(queue.spawn(move || ran.fetch_add(1, Ordering::SeqCst)));
    }

    let left = pools.shutdown_timeout(SOON).expect_err("two items hang");
    assert!(left.waited >= SOON && left.waiting == 3 && left.threads.is_empty(), "{left:?}");
    let mut queues: Vec<_> = left.running.iter().map(|left| left.item.queue.as_str()).collect();
    queues.sort_unstable();
    assert_eq!(queues, ["told", "untold"]);
    for left in &left.running {
        let item = &left.item;
        assert!(item.function.contains("shutdown") && item.site.file() == file!(), "{left}");
        assert!(item.thread.is_some() && left.for_at_least >= SOON, "{left}");
        let doing = if item.queue == "told" { Activity::Blocked } else { Activity::Running };
        assert_eq!(item.doing, doing);
    }
    assert!(left.to_string().contains("queued on 'untold' at"), "{left}");
    assert_eq!(untold.queue(&Work::new(|| ())), Err(QueueError::Closed), "the pools stay closed");

    gate.complete();
    opens.complete();
    pools.shutdown_timeout(LONG).expect("all return");
    assert_eq!(ran.load(Ordering::SeqCst), 3, "what was queued has run");
    pools.shutdown();
}

#[test]
fn an_item_that_shuts_down_with_a_limit_is_not_among_what_is_left() {
    let pools = pools(2);
    let (hangs_in, ends_in) = (queue(&pools, AffinityScope::System), pools.clone());
    let opens = hangs(&hangs_in);
    let asks = Workqueue::builder("asks").build(&pools).expect("a queue");
    let left = asks.spawn(move || ends_in.shutdown_timeout(SOON)).join().unwrap();
    let left = left.expect_err("an item hangs");
    let [one] = &left.running[..] else { panic!("one item is left: {left}") };
    assert_eq!((one.item.queue.as_str(), left.waiting), ("test", 0));
    opens.complete();
    pools.shutdown_timeout(LONG).expect("all return");
}

#[test]
fn shutdown_timeout_waits_no_longer_for_the_threads_beside_the_pools_and_names_them() {
    let machine = Machine::synthetic("numa:1 l3:1 core:1 pu:1").expect("a valid description");
    let (open, stalled) = (Arc::new(Completion::new()), Arc::new(Completion::new()));
    let (waits, says) = (Arc::clone(&open), Arc::clone(&stalled));
    let hangs_too = move |_: &StallReport| {
        says.complete();
        waits.wait();
    };
    let pools = WorkerPools::builder(&machine).stall_after(SOON).on_stall(hangs_too).build();
    let queue = queue(&pools, AffinityScope::System);
    let opens = hangs(&queue);
    drop(queue.spawn(|| ()));
    stalled.wait();
    opens.complete();
    // Wait until the workers have left, and no other thread exists.
    let threads = loop {
        let left = pools.shutdown_timeout(SOON).expect_err("a callback hangs");
        if !left.threads.is_empty() {
            break left.threads;
        }
    };
    assert_eq!(threads, ["cw-time"]);
    open.complete();
    pools.shutdown_timeout(LONG).expect("it returns");
}
