//! Epochs in a system that refuses `membarrier`: the same on full fences. One process, one test:
//! the refusal is for good.
#![cfg(not(any(loom, shuttle)))]

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use corewise_sync::epoch::ReadMostly;
use corewise_sync::fence::{FenceKind, prepare, refuse_membarrier};

#[test]
fn without_membarrier_a_value_is_still_whole_for_who_reads_it() {
    refuse_membarrier();
    assert_eq!(prepare(), FenceKind::FullFences);
    let cell = ReadMostly::new(vec![0u64; 8]);
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    let value = cell.read();
                    assert!(
                        value.iter().all(|&number| number == value[0]),
                        "freed while it was read"
                    );
                }
            });
        }
        for number in 1..=if cfg!(miri) { 20 } else { 5_000 } {
            let mut old = cell.swap(vec![number; 8]);
            // Overwritten before it is freed.
            old.iter_mut().enumerate().for_each(|(i, spoilt)| *spoilt = i as u64);
        }
        over.store(true, Ordering::Relaxed);
    });
}
