//! Which CPU goes to which hardware queue, and which CPUs are online.

use corewise_topology::CpuId;
use std::iter;
use std::ops::Range;

use corewise_sync::Mutex;
use corewise_sync::atomic::{AtomicBool, Ordering};

use crate::percpu::map::CpuMap;

/// The layout of a queue: its CPUs and their hardware queues, which stay, and which of the CPUs are
/// online.
pub(crate) struct Layout {
    pub(crate) map: CpuMap,
    /// The hardware queue of each slot.
    hctx_of: Box<[u32]>,
    /// The first slot of each hardware queue, and the number of slots behind the last one.
    first: Box<[usize]>,
    /// A: whether the CPU of each slot is online. Changed at any time, under `changing`; Relaxed, it is advice.
    online: Box<[AtomicBool]>,
    /// L: is the lock; guards the epoch of the machine's masks that were seen last. Its holder, one
    /// at a time, changes which CPUs are online, and the marks of hardware queues that follow from
    /// it. Held for short: no user code, no wait inside.
    pub(crate) changing: Mutex<u64>,
}

impl Layout {
    /// A layout whose hardware queues begin at the slots `first`; see [`CpuMap::divide`].
    pub(crate) fn new(map: CpuMap, first: &[usize]) -> Self {
        let slots = map.slots();
        let first: Box<[usize]> = first.iter().copied().chain([slots]).collect();
        let sizes = first.windows(2).map(|pair| pair[1] - pair[0]);
        let hctx_of =
            (0..).zip(sizes).flat_map(|(hctx, size)| iter::repeat_n(hctx, size)).collect();
        let online = (0..slots).map(|_| AtomicBool::new(true)).collect();
        Self { map, hctx_of, first, online, changing: Mutex::new(0) }
    }

    /// How many hardware queues there are.
    pub(crate) fn hw_queues(&self) -> usize {
        self.first.len() - 1
    }

    /// The hardware queue of a slot.
    #[inline]
    pub(crate) fn hctx_of(&self, slot: usize) -> usize {
        self.hctx_of[slot] as usize
    }

    /// The slots of a hardware queue; empty where there is none.
    pub(crate) fn slots_of(&self, hctx: usize) -> Range<usize> {
        match self.first.get(hctx..hctx + 2) {
            Some(&[begin, end]) => begin..end,
            _ => 0..0,
        }
    }

    /// A slot in whose counters a run is counted that nobody's CPU asked for: the first one of the
    /// hardware queue.
    pub(crate) fn some_slot_of(&self, hctx: usize) -> usize {
        self.first[hctx]
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
