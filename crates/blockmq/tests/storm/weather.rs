//! What is done to the storm's queues meanwhile.

use std::sync::Arc;
use std::time::Duration;

use corewise_blockmq::{Queue, TagSet};
use corewise_sync::atomic::{AtomicBool, Ordering};
use corewise_topology::{CpuId, Machine};

use crate::common::Rng;
use crate::disk::{CPUS, Platter};

/// Does one thing to one of the queues, or to all, and undoes it.
pub fn disturb(disks: &[(Arc<Queue>, Arc<Platter>)], machine: &Machine, rng: &mut Rng) {
    let (queue, platter) = &disks[rng.below(disks.len() as u64) as usize];
    match rng.below(9) {
        0 => {
            queue.quiesce();
            assert!(queue.is_quiesced());
            queue.unquiesce().unwrap();
        }
        1 => {
            queue.quiesce_nowait();
            queue.quiesce_nowait();
            queue.unquiesce().unwrap();
            queue.run(0);
            queue.unquiesce().unwrap();
        }
        2 => {
            queue.freeze();
            queue.quiesce();
            assert_eq!(platter.had(), 0, "the driver of a frozen queue has requests");
            assert_eq!(queue.stats().iter().map(|s| s.in_flight).sum::<u64>(), 0);
            queue.unquiesce().unwrap();
            queue.unfreeze().unwrap();
        }
        3 => {
            // The order that cannot deadlock.
            queue.quiesce_nowait();
            queue.start_freeze();
            queue.unquiesce().unwrap();
            queue.drain();
            queue.unfreeze().unwrap();
        }
        4 | 5 => {
            // The last one is refused.
            let _ = machine.set_online(CpuId::new(rng.below(CPUS) as u32), rng.below(2) == 0);
            if rng.below(4) == 0 {
                queue.wait_drained();
            }
        }
        6 => {
            let hctx = rng.below(queue.stats().len() as u64) as usize;
            queue.stop(hctx);
            queue.run(hctx);
            queue.start(hctx);
        }
        7 => {
            let all: Vec<&Queue> = disks.iter().map(|(queue, _)| &**queue).collect();
            Queue::quiesce_all(&all);
            all.iter().for_each(|queue| _ = queue.unquiesce().unwrap());
        }
        _ => queue.run_all_later(Duration::from_micros(rng.below(2000))),
    }
}

/// Somebody else who wants tags of a set: number 0 waits, others go without.
pub fn want_tags(cpu: usize, tags: &TagSet, over: &AtomicBool) {
    while !over.load(Ordering::Relaxed) {
        let tag = if cpu == 0 { Some(tags.get(cpu)) } else { tags.try_get(cpu) };
        std::thread::yield_now();
        if let Some(tag) = tag {
            tags.put(cpu, tag);
        }
    }
}
