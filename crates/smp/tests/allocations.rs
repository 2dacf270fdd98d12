//! Allocations of calls: none at all, if the function and the value fit in a cell.
#![cfg(not(loom))]

use std::alloc::{GlobalAlloc, Layout, System};
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use corewise_smp::{AllCpus, AnyOf, Smp, Targets};
use corewise_sync::atomic::{AtomicU64, Ordering};
use corewise_topology::{CpuId, CpuSet, Machine};

/// An allocator that counts the allocations of all threads, including the targets.
struct Counting;

/// A: only ever added to.
static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: the system's allocator does all of it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

const CALLS: u64 = 500;

/// Returns how many allocations that many calls make, after some to warm up: pools grow, and the
/// system chooses when threads start. So it returns the least of some rounds.
fn allocations(mut call: impl FnMut(u64)) -> u64 {
    let mut round = || {
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        (0..CALLS).for_each(&mut call);
        ALLOCATIONS.load(Ordering::Relaxed) - before
    };
    round();
    (0..4).map(|_| round()).min().expect("there are rounds")
}

struct Unpark(Thread);
impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
    fn wake_by_ref(self: &Arc<Self>) {
        self.0.unpark();
    }
}

fn block_on<T>(waker: &Waker, future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let mut cx = Context::from_waker(waker);
    loop {
        match future.as_mut().poll(&mut cx) {
            Poll::Ready(value) => return value,
            Poll::Pending => thread::park(),
        }
    }
}

/// Tests both in one test, since all threads of the process are counted.
#[test]
fn a_call_of_up_to_64_bytes_allocates_nothing_and_a_larger_one_is_boxed() {
    let smp = Smp::new(&Machine::synthetic("core:4 pu:1").unwrap()).unwrap();
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let set: CpuSet = "1-3".parse().unwrap();
    let every = CpuSet::full(4);
    let counts = [
        (
            "one, waited for",
            allocations(|n| {
                let value = [n; 8];
                let answer =
                    smp.call(CpuId::new(1), move || value.map(|v| v + 1)).unwrap().wait().unwrap();
                assert_eq!(answer, [n + 1; 8]);
            }),
        ),
        (
            "one, awaited",
            allocations(|n| {
                let call = smp.call(CpuId::new(2), move || [n; 8]).unwrap();
                assert_eq!(block_on(&waker, call).unwrap(), [n; 8]);
            }),
        ),
        (
            "one, and its handle dropped",
            allocations(|n| {
                drop(smp.call(CpuId::new(1), move || [n; 8]));
                smp.call(CpuId::new(1), || ()).unwrap().wait().unwrap();
            }),
        ),
        (
            "one, not waited for",
            allocations(|n| {
                let value = [n; 8];
                smp.detached().call(CpuId::new(1), move || assert_eq!(value[7], n)).unwrap();
                smp.call(CpuId::new(1), || ()).unwrap().wait().unwrap();
            }),
        ),
        (
            "one that borrows",
            allocations(|n| {
                assert_eq!(smp.run(CpuId::new(3), || n + 1).unwrap(), n + 1);
            }),
        ),
        (
            "any",
            allocations(|n| {
                assert_eq!(smp.call(AnyOf(&set), move || [n; 8]).unwrap().wait().unwrap(), [n; 8]);
            }),
        ),
        (
            "many, waited for",
            allocations(|n| {
                let answers =
                    smp.call_each(&set, move |cpu| [n + u64::from(cpu.number()); 8]).wait();
                assert!(answers.values.iter().all(|(cpu, answer)| {
                    answer.as_ref().is_ok_and(|value| *value == [n + u64::from(cpu.number()); 8])
                }));
                assert_eq!(answers.values.len(), 3);
            }),
        ),
        (
            "many, awaited",
            allocations(|_| {
                assert_eq!(block_on(&waker, smp.call_each(AllCpus, |cpu| cpu)).values.len(), 4);
            }),
        ),
        (
            "some of many",
            allocations(|_| {
                let wanted = |cpu| cpu > CpuId::new(1);
                assert_eq!(smp.call_each(every.filter(wanted), |cpu| cpu).wait().values.len(), 2);
            }),
        ),
        (
            "many, not waited for",
            allocations(|_| {
                let reach = smp.detached().call_each(&every, |_| ());
                assert_eq!(reach.reached.len(), 4);
                let _ = smp.call_each(AllCpus, |_| ()).wait();
            }),
        ),
    ];
    for (what, count) in counts {
        assert_eq!(count, 0, "{what}");
    }
    let large = allocations(|n| {
        let value = [n; 16];
        assert_eq!(smp.call(CpuId::new(1), move || value[15]).unwrap().wait().unwrap(), n);
    });
    assert_eq!(large, CALLS, "the counter counts");
}
