//! The end of the pools, on real threads: who waits for whom.

use std::cell::RefCell;
use std::sync::{Arc, Barrier, mpsc};

use corewise_sync::Completion;
use corewise_sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use corewise_topology::{AffinityScope, Machine};
use corewise_workqueue::{Work, WorkerPools, Workqueue};

fn pools(cpus: u32) -> WorkerPools {
    let machine = Machine::synthetic(&format!("numa:1 l3:1 core:{cpus} pu:1"));
    WorkerPools::new(&machine.expect("a valid description"))
}

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
            // Gives a shutdown that doesn't wait every chance to be seen.
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
        while queue.queue(&Work::new(|| ())) {
            std::thread::yield_now();
        }
        // Closed. Gives a shutdown that doesn't wait every chance to be seen.
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
            queue.spawn_on(cpu, move || {
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
        while !waits.is_complete() {
            std::thread::yield_now();
        }
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
