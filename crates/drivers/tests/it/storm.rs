//! Submitters against a thread that quiesces and freezes all the time, over real devices: no
//! request is lost.
#![cfg(not(loom))]

use std::sync::Arc;

use corewise_blockmq::model::ByHand;
use corewise_blockmq::{Queue, Request};
use corewise_drivers::{FileDriver, FileOptions, Memory};
use corewise_sync::Countdown;
use corewise_sync::atomic::{AtomicBool, AtomicU64, Ordering};
use corewise_topology::CpuId;

use crate::common::{Rig, Rng, STALL};

/// Runs two submitters of `each` requests against a thread that quiesces and freezes all the time.
fn storm(queue: &Arc<Queue>, each: u64) {
    let threads = 2;
    let left = Arc::new(Countdown::new((threads * each) as usize));
    let failed = Arc::new(AtomicU64::new(0));
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for t in 0..threads {
            let (queue, left, failed) = (queue.clone(), left.clone(), failed.clone());
            scope.spawn(move || {
                let mut rng = Rng::new(t + 1);
                for _ in 0..each {
                    let (left, failed) = (left.clone(), failed.clone());
                    let rq =
                        Request::discard(rng.below(1000) * 512, 512).on_complete(move |done| {
                            if done.result.is_err() {
                                failed.fetch_add(1, Ordering::Relaxed);
                            }
                            left.done();
                        });
                    // From any CPU of the map: submitters of different slots meet on each queue.
                    queue.submit_on(CpuId::new(rng.below(8) as u32), rq);
                }
            });
        }
        scope.spawn(|| {
            let mut rng = Rng::new(99);
            while !over.load(Ordering::Relaxed) {
                if rng.below(3) == 0 { drop(queue.freeze()) } else { drop(queue.quiesce()) }
            }
        });
        let done = left.wait_timeout(STALL);
        over.store(true, Ordering::Relaxed);
        assert!(done, "stalled with {} to go: {queue:?} {:#?}", left.remaining(), queue.stats());
    });
    assert_eq!(failed.load(Ordering::Relaxed), 0);
    queue.drain();
    let stats = queue.stats();
    let dispatched: u64 = stats.iter().map(|s| s.dispatched).sum();
    let completed: u64 = stats.iter().map(|s| s.completed).sum();
    let merged: u64 = stats.iter().map(|s| s.merged).sum();
    assert_eq!((dispatched + merged, completed), (threads * each, dispatched), "each exactly once");
    assert_eq!(queue.inside(), 0);
}

#[test]
fn a_memory_device_and_one_in_a_file_lose_nothing_under_quiesce_and_freeze() {
    let rig = Rig::live();
    storm(&rig.queue(Memory::new(1 << 30).unwrap()), 100_000);
    let dir = tempfile::tempdir().unwrap();
    let options = FileOptions::new(dir.path().join("disk")).size(1 << 20).depth(8).queues(2);
    storm(&rig.queue(FileDriver::open(options, &rig.wq).unwrap()), 2_000);
}
