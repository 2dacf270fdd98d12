//! A test that a request allocates nothing in steady state: its box was used before.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used)] // a test says what it expects by unwrapping it

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;

use common::{Held, block};
use corewise_blockmq::Queue;
use corewise_blockmq::model::{BuildByHand, ByHand};
use corewise_topology::{CpuId, CpuSet, Machine, current_cpu, pin_current_thread};

/// A counting wrapper of the system's allocator.
struct Counting;

thread_local! {
    /// Number of the calling thread's allocations: the test's harness has threads too.
    static ALLOCATED: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: the system's allocator does it all, with the caller's arguments.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATED.set(ALLOCATED.get() + 1);
        // SAFETY: as the caller's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: as the caller's.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

#[test]
fn a_request_allocates_nothing_once_its_box_is_there() {
    let machine = Machine::synthetic("l3:1 core:4 pu:1").unwrap();
    let driver = Held::default();
    let queue = Queue::builder(&machine, Arc::new(driver.clone())).depth(64).build_by_hand();
    let round = || {
        for cpu in 0..4 {
            for n in 0..16 {
                queue.submit_on(CpuId::new(cpu), block(n));
            }
        }
        while queue.step(0).is_some() {}
        driver.order.lock().clear();
        driver.finish_all();
        while queue.step(0).is_some() {}
    };
    // Each CPU on which requests end has histograms of its own, made when the first request ends
    // there.
    let here = current_cpu().expect("a test's thread is on a CPU");
    pin_current_thread(&CpuSet::from_iter([here])).unwrap();
    // The lists grow to what they need.
    (0..3).for_each(|_| round());
    let before = ALLOCATED.get();
    (0..100).for_each(|_| round());
    assert_eq!(ALLOCATED.get() - before, 0, "for 6400 requests");
    assert_eq!(queue.inside(), 0);
}
