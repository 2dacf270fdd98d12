//! What is done to the storm's queues meanwhile.

use std::sync::Arc;
use std::time::Duration;

use corewise_blockmq::{Deadline, HwQueues, IoScheduler, Queue, TagSet};
use corewise_sync::atomic::{AtomicBool, Ordering};
use corewise_topology::{CpuId, Machine};

use crate::common::Rng;
use crate::disk::{CPUS, Platter};

/// Does one thing to one of the queues, or to all, and undoes it.
pub fn disturb(disks: &[(Arc<Queue>, Arc<Platter>)], machine: &Machine, rng: &mut Rng) {
    let (queue, platter) = &disks[rng.below(disks.len() as u64) as usize];
    match rng.below(13) {
        0 => {
            queue.quiesce();
            assert!(queue.is_quiesced());
            queue.unquiesce().unwrap();
        }
        1 => {
            queue.quiesce_nowait();
            queue.quiesce_nowait();
            queue.unquiesce().unwrap();
            queue.run_all_async();
            queue.unquiesce().unwrap();
        }
        2 => {
            queue.freeze();
            assert_eq!(platter.had(), 0, "the driver of a frozen queue has requests");
            queue.unfreeze().unwrap();
        }
        3 => {
            if queue.freeze_timeout(Duration::ZERO) {
                queue.unfreeze().unwrap();
            }
        }
        4 => {
            // The order that cannot deadlock.
            queue.quiesce_nowait();
            queue.start_freeze();
            queue.unquiesce().unwrap();
            queue.drain();
            queue.unfreeze().unwrap();
        }
        5 => {
            let how = match rng.below(5) {
                0 => HwQueues::PerCpu,
                1 => HwQueues::PerShard,
                2 => HwQueues::PerCache,
                3 => HwQueues::PerNode,
                _ => HwQueues::Count(1 + rng.below(CPUS) as usize),
            };
            assert!((1..=CPUS as usize).contains(&queue.update_hw_queues(how)));
        }
        6 | 7 => {
            // The last one is refused.
            let _ = machine.set_online(CpuId::new(rng.below(CPUS) as u32), rng.below(2) == 0);
            if rng.below(4) == 0 {
                queue.wait_drained();
            }
        }
        8 => {
            let hctx = rng.below(queue.stats().len() as u64) as usize;
            queue.stop(hctx);
            queue.run(hctx);
            queue.start(hctx);
        }
        9 => queue.set_scheduler(match rng.below(2) {
            0 => IoScheduler::None,
            _ => IoScheduler::Deadline(Deadline { fifo_batch: 2, ..Deadline::default() }),
        }),
        10 => {
            let all: Vec<&Queue> = disks.iter().map(|(queue, _)| &**queue).collect();
            Queue::quiesce_all(&all);
            all.iter().for_each(|queue| _ = queue.unquiesce().unwrap());
        }
        11 => queue.hold_still(|| {
            assert_eq!(queue.stats().iter().map(|s| s.in_flight).sum::<u64>(), 0);
        }),
        _ => queue.run_all_later(Duration::from_micros(rng.below(2000))),
    }
}

/// Somebody else who wants tags of a set: number 0 waits for as long as it takes, others lose patience.
pub fn want_tags(cpu: usize, tags: &TagSet, over: &AtomicBool) {
    let mut rng = Rng::new(9);
    while !over.load(Ordering::Relaxed) {
        let timeout = Duration::from_micros(rng.below(200));
        let tag = if cpu == 0 { Some(tags.get(cpu)) } else { tags.get_timeout(cpu, timeout) };
        std::thread::yield_now();
        if let Some(tag) = tag {
            tags.put(cpu, tag);
        }
    }
}
