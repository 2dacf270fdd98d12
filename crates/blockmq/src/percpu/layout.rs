//! Which CPU goes to which hardware queue: the part of a queue that may change while it lives.

use corewise_topology::CpuId;
use std::ops::Range;

use corewise_sync::Mutex;
use corewise_sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::percpu::map::CpuMap;

/// The layout of a queue: its CPUs, which stay, and their hardware queues, which may change.
///
/// It is changed in place, and only while the queue is **frozen**: who enters after the thaw sees the change,
/// since the thaw is a Release and entering an Acquire (`usage.rs`). So the loads and stores here are Relaxed.
/// A thread that looks without being counted in (a worker that looks for a CPU, a look at the statistics) may see half
/// of a change, and uses what it saw only where any answer will do.
pub(crate) struct Layout {
    pub(crate) map: CpuMap,
    /// A: the hardware queue of each slot. Relaxed, see above.
    hctx_of: Box<[AtomicU32]>,
    /// A: the first slot of each hardware queue, and the number of slots behind the last one.
    first: Box<[AtomicU32]>,
    /// A: how many hardware queues there are.
    hw_queues: AtomicU32,
    /// A: whether the CPU of each slot is online. Changed at any time, under `changing`; Relaxed, it is advice.
    online: Box<[AtomicBool]>,
    /// L: is the lock; guards the epoch of the machine's masks that were seen last. Its holder, one at a time,
    /// changes the layout, which CPUs are online, and the marks of hardware queues that follow from both. Held for
    /// short: no user code, no wait inside.
    pub(crate) changing: Mutex<u64>,
}

impl Layout {
    /// A layout whose hardware queues begin at the slots `first`.
    pub(crate) fn new(map: CpuMap, first: &[usize]) -> Self {
        let zeroes = |n| (0..n).map(|_| AtomicU32::new(0)).collect();
        let slots = map.slots();
        let layout = Self {
            map,
            hctx_of: zeroes(slots),
            first: zeroes(slots + 1),
            hw_queues: AtomicU32::new(0),
            online: (0..slots).map(|_| AtomicBool::new(true)).collect(),
            changing: Mutex::new(0),
        };
        layout.replace(first);
        layout
    }

    /// Changes which CPUs share a hardware queue; see [`CpuMap::divide`]. The queue is frozen and empty, or
    /// nobody has it yet.
    pub(crate) fn replace(&self, first: &[usize]) {
        let slots = self.map.slots();
        for (hctx, &begin) in first.iter().enumerate() {
            let end = first.get(hctx + 1).copied().unwrap_or(slots);
            self.first[hctx].store(begin as u32, Ordering::Relaxed);
            self.first[hctx + 1].store(end as u32, Ordering::Relaxed);
            for slot in begin..end {
                self.hctx_of[slot].store(hctx as u32, Ordering::Relaxed);
            }
        }
        self.hw_queues.store(first.len() as u32, Ordering::Relaxed);
    }

    /// How many hardware queues there are.
    pub(crate) fn hw_queues(&self) -> usize {
        self.hw_queues.load(Ordering::Relaxed) as usize
    }

    /// The hardware queue of a slot.
    #[inline]
    pub(crate) fn hctx_of(&self, slot: usize) -> usize {
        self.hctx_of[slot].load(Ordering::Relaxed) as usize
    }

    /// The slots of a hardware queue; empty where it has none now.
    pub(crate) fn slots_of(&self, hctx: usize) -> Range<usize> {
        if hctx >= self.hw_queues() {
            return 0..0;
        }
        let at = |n: usize| self.first[n].load(Ordering::Relaxed) as usize;
        let (begin, end) = (at(hctx), at(hctx + 1));
        begin.min(end)..end
    }

    /// A slot in whose counters a run is counted that nobody's CPU asked for: one of the hardware queue's own, or that
    /// of the first CPU where it has none, or seems to.
    pub(crate) fn some_slot_of(&self, hctx: usize) -> usize {
        self.slots_of(hctx).next().unwrap_or(0)
    }

    /// Whether the CPU of a slot is online.
    pub(crate) fn is_online(&self, slot: usize) -> bool {
        self.online[slot].load(Ordering::Relaxed)
    }

    /// Says whether the CPU of a slot is online; true where that is new. Under `changing`.
    pub(crate) fn set_online(&self, slot: usize, is: bool) -> bool {
        self.online[slot].swap(is, Ordering::Relaxed) != is
    }

    /// The CPUs of a hardware queue.
    pub(crate) fn cpus_of(&self, hctx: usize) -> &[CpuId] {
        &self.map.cpus()[self.slots_of(hctx)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::percpu::map::CpuPlace;

    #[test]
    fn a_thread_that_sees_half_of_a_change_still_finds_a_slot_to_count_in() {
        let place = |cpu| CpuPlace { node: 0, llc: 0, shard: 0, core: cpu, cpu: CpuId::new(cpu) };
        let layout = Layout::new(CpuMap::new((0..2).map(place).collect()), &[0, 1]);
        assert_eq!([0, 1, 2].map(|hctx| layout.some_slot_of(hctx)), [0, 1, 0]);
        // `replace` makes one hardware queue of two, and hasn't said yet how many there are.
        layout.first[1].store(2, Ordering::Relaxed);
        assert_eq!([0, 1].map(|hctx| layout.some_slot_of(hctx)), [0, 0]);
    }
}
