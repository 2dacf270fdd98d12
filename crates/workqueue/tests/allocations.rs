//! Queueing a `Work` again and again allocates nothing, whatever the queue, nor does a join inside
//! an item; a spawn allocates once.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use corewise_topology::Machine;
use corewise_workqueue::{QueueBuilder, QueueKind, Queued, Work, WorkerPools, Workqueue};

#[path = "support/spin.rs"]
mod spin;
use spin::spin_until;

/// Counts the allocations of the test's thread and of the workers, while that is wanted. Not those
/// of the timekeeper, which allocates when it looks at a pool that has more work than it can take.
struct Counting;

thread_local! {
    static COUNTED: Cell<bool> = const { Cell::new(false) };
}

static WANTED: AtomicBool = AtomicBool::new(false);
static COUNT: AtomicUsize = AtomicUsize::new(0);

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: it passes everything on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if WANTED.load(Ordering::Relaxed) && COUNTED.get() {
            COUNT.fetch_add(1, Ordering::Relaxed);
        }
        // SAFETY: as the caller says.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as the caller says; `alloc` gave what the system's allocator had given.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// Returns how often `what` allocates, after one call to warm up. Takes the least of some tries: a
/// pool that makes one more worker just then allocates for that thread.
fn allocations(mut what: impl FnMut()) -> usize {
    what();
    let mut once = || {
        COUNT.store(0, Ordering::SeqCst);
        WANTED.store(true, Ordering::SeqCst);
        what();
        WANTED.store(false, Ordering::SeqCst);
        COUNT.load(Ordering::SeqCst)
    };
    (0..5).map(|_| once()).min().expect("some tries")
}

const ROUNDS: usize = 1_000;

/// Queues four items, over and over, and waits for each without a flush, which has to allocate.
fn again_and_again(queue: &Workqueue) -> usize {
    let works: Vec<_> = (0..4).map(|_| Work::new(|| ())).collect();
    allocations(|| {
        for _ in 0..ROUNDS {
            works.iter().for_each(|work| assert_eq!(queue.queue(work), Ok(Queued::Now)));
            // The statistics may.
            COUNTED.set(false);
            spin_until(|| queue.stats().completed == queue.stats().queued);
            COUNTED.set(true);
        }
    })
}

// One test: there is one count.
#[test]
fn queueing_a_work_again_and_a_join_allocate_nothing_and_a_spawn_allocates_once() {
    let machine = Machine::synthetic("numa:1 l3:1 core:2 pu:1").expect("a valid description");
    COUNTED.set(true);
    let pools = WorkerPools::builder(&machine).cpu_intensive_after(Duration::ZERO);
    let pools = pools.spawn_handler(|worker| {
        let run = || {
            COUNTED.set(true);
            worker.run();
        };
        std::thread::Builder::new().spawn(run).map(drop)
    });
    let pools = pools.build();
    let build = |with: fn(QueueBuilder) -> QueueBuilder| {
        with(Workqueue::builder("counted")).build(&pools).expect("a queue")
    };
    let plain = build(|queue| queue);
    assert_eq!(again_and_again(&plain), 0, "a plain queue");
    assert_eq!(again_and_again(&build(|queue| queue.max_active(1))), 0, "held back and let go");
    assert_eq!(again_and_again(&build(|q| q.kind(QueueKind::Ordered))), 0, "an ordered queue");
    assert_eq!(again_and_again(&build(|q| q.kind(QueueKind::Bound))), 0, "a bound queue");

    let ran = Arc::new(AtomicUsize::new(0));
    let spawned = allocations(|| {
        ran.store(0, Ordering::SeqCst);
        for _ in 0..ROUNDS {
            let ran = Arc::clone(&ran);
            drop(plain.spawn(move || ran.fetch_add(1, Ordering::SeqCst)));
        }
        spin_until(|| ran.load(Ordering::SeqCst) == ROUNDS);
    });
    assert_eq!(spawned, ROUNDS, "a closure each");
    let executed = allocations(|| {
        ran.store(0, Ordering::SeqCst);
        for _ in 0..ROUNDS {
            let ran = Arc::clone(&ran);
            let taken = plain.execute(move || {
                ran.fetch_add(1, Ordering::SeqCst);
            });
            assert!(taken.is_ok());
        }
        spin_until(|| ran.load(Ordering::SeqCst) == ROUNDS);
    });
    assert_eq!(executed, ROUNDS, "a closure without a handle each");
    let futures = allocations(|| {
        ran.store(0, Ordering::SeqCst);
        for _ in 0..ROUNDS {
            let ran = Arc::clone(&ran);
            drop(plain.spawn_future(async move { ran.fetch_add(1, Ordering::SeqCst) }));
        }
        spin_until(|| ran.load(Ordering::SeqCst) == ROUNDS);
    });
    assert_eq!(futures, ROUNDS, "a future each");
    let joins = allocations(|| {
        let (own, done) = (plain.clone(), Arc::new(AtomicBool::new(false)));
        let says = Arc::clone(&done);
        let taken = plain.execute(move || {
            for _ in 0..ROUNDS {
                // One that may be offered, and some that are deeper.
                let join = || own.join(|| 1, || 2);
                let join = || own.join(join, join);
                assert_eq!(own.join(join, join), (((1, 2), (1, 2)), ((1, 2), (1, 2))));
            }
            says.store(true, Ordering::SeqCst);
        });
        assert!(taken.is_ok());
        spin_until(|| done.load(Ordering::SeqCst));
    });
    assert_eq!(joins, 2, "the closure of the item, and its mark");
}
