//! A queue that is dropped while its requests complete on other threads: each completes once, and
//! nothing is left.
#![cfg(not(loom))]

use std::sync::Arc;

use crate::common::{Held, block};
use corewise_blockmq::model::{BuildByHand, ByHand};
use corewise_blockmq::{IoErrorKind, Queue};
use corewise_sync::atomic::{AtomicU32, Ordering};
use corewise_topology::{CpuId, Machine};

#[test]
fn a_queue_that_is_dropped_during_its_last_completions_leaves_nothing_behind() {
    let machine = Machine::synthetic("l3:1 core:2 pu:1").unwrap();
    let rounds = if cfg!(miri) { 4 } else { 2_000 };
    for round in 0..rounds {
        let driver = Held::default();
        let (requests, order) = (Arc::clone(&driver.requests), Arc::clone(&driver.order));
        let queue = Queue::builder(&machine, Arc::new(driver)).depth(3).build_by_hand();
        let (finished, gone) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
        for n in 0..5 {
            let (finished, gone) = (Arc::clone(&finished), Arc::clone(&gone));
            // The CPU is given by number: Miri doesn't know its own.
            let rq = block(n).on_complete(move |done| {
                let kind = done.result.map_err(|error| error.kind());
                let count = if kind == Err(IoErrorKind::Gone) { gone } else { finished };
                count.fetch_add(1, Ordering::SeqCst);
            });
            queue.submit_on(CpuId::new(0), rq);
        }
        while queue.step(0).is_some() {}
        assert_eq!(requests.lock().len(), 3, "the other two wait for a tag");
        std::thread::scope(|scope| {
            let requests = &requests;
            scope.spawn(move || {
                loop {
                    let next = requests.lock().pop_front();
                    let Some(rq) = next else { break };
                    rq.complete(Ok(()));
                }
            });
            (0..round % 50).for_each(|_| std::hint::spin_loop());
            drop(queue);
        });
        assert_eq!((finished.load(Ordering::SeqCst), gone.load(Ordering::SeqCst)), (3, 2));
        assert_eq!(Arc::strong_count(&order), 1, "the driver went with the last of them");
    }
}
