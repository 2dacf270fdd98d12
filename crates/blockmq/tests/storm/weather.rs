//! Disturbances of the storm's queues.

use std::sync::Arc;

use corewise_blockmq::{Queue, TagSet};
use corewise_sync::atomic::{AtomicBool, Ordering};
use corewise_topology::{CpuId, Machine};

use crate::common::Rng;
use crate::disk::{CPUS, Platter};

/// Does one thing to one of the queues, or to all, and undoes it.
pub fn disturb(disks: &[(Arc<Queue>, Arc<Platter>)], machine: &Machine, rng: &mut Rng) {
    let (queue, platter) = &disks[rng.below(disks.len() as u64) as usize];
    match rng.below(7) {
        0 => {
            let _quiesced = queue.quiesce();
            assert!(queue.is_quiesced());
        }
        1 => {
            let quiesced = [queue.quiesce_nowait(), queue.quiesce_nowait()];
            let [first, second] = quiesced;
            drop(first);
            queue.run(0);
            drop(second);
        }
        2 => {
            let frozen = queue.freeze();
            let quiesced = queue.quiesce();
            assert_eq!(platter.had(), 0, "the driver of a frozen queue has requests");
            assert_eq!(queue.stats().iter().map(|s| s.in_flight).sum::<u64>(), 0);
            drop(quiesced);
            drop(frozen);
        }
        3 => {
            // This order can't deadlock.
            let quiesced = queue.quiesce_nowait();
            let _frozen = queue.start_freeze();
            drop(quiesced);
            queue.drain();
        }
        4 | 5 => {
            // The last CPU's leaving is refused.
            let _ = machine.set_online(CpuId::new(rng.below(CPUS) as u32), rng.below(2) == 0);
        }
        _ => {
            let all: Vec<_> = disks.iter().map(|(queue, _)| Arc::clone(queue)).collect();
            drop(Queue::quiesce_all(&all));
        }
    }
}

/// Wants tags of a set: number 0 waits, others go without.
pub fn want_tags(cpu: usize, tags: &TagSet, over: &AtomicBool) {
    while !over.load(Ordering::Relaxed) {
        let tag = if cpu == 0 { Some(tags.get(cpu)) } else { tags.try_get(cpu) };
        std::thread::yield_now();
        if let Some(tag) = tag {
            tags.put(cpu, tag);
        }
    }
}
