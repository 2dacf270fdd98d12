//! The CPUs of a queue: their division among the hardware queues, their online state, and the
//! software queue of each.

use std::iter;
use std::ops::Range;

use corewise_sync::atomic::{AtomicBool, AtomicU64, Ordering};
use corewise_sync::inbox::{Inbox, Node};
use corewise_sync::{CachePadded, Mutex};
use corewise_topology::CpuId;

/// The position of a CPU for the map. CPUs are numbered in the order of these fields, so each node,
/// cache, shard and core is a run of numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CpuPlace {
    /// NUMA node; any number if the machine reports none.
    pub node: u32,
    /// Last-level cache.
    pub llc: u32,
    /// Cache shard.
    pub shard: u32,
    /// Core.
    pub core: u32,
    /// The CPU's own number.
    pub cpu: CpuId,
}

/// The number of hardware queues, and the CPUs that share one. If the driver has room for fewer,
/// neighbours share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HwQueues {
    /// One for each CPU.
    PerCpu,
    /// One for each cache shard (some eight cores that share a cache).
    PerShard,
    /// One for each last-level cache. (In each node, should a cache span several.)
    PerCache,
    /// One for each NUMA node.
    PerNode,
    /// A fixed number, but no more than there are CPUs; each has about as many CPUs as the others.
    Count(usize),
}

impl From<usize> for HwQueues {
    fn from(n: usize) -> Self {
        Self::Count(n)
    }
}

/// The CPUs of a queue. Each has a **slot**: a number from 0, in the order of [`CpuPlace`].
#[derive(Clone, Debug)]
pub struct CpuMap {
    /// The slots by CPU number; `NO_SLOT` for CPUs that the map doesn't know.
    slots: Box<[u32]>,
    /// The CPUs' positions by slot.
    places: Box<[CpuPlace]>,
    /// The CPUs' numbers by slot.
    cpus: Box<[CpuId]>,
}

const NO_SLOT: u32 = u32::MAX;

impl CpuMap {
    /// Assigns slots to the CPUs. An empty list counts as CPU 0.
    pub fn new(mut places: Vec<CpuPlace>) -> Self {
        if places.is_empty() {
            places.push(CpuPlace { node: 0, llc: 0, shard: 0, core: 0, cpu: CpuId::new(0) });
        }
        places.sort_unstable();
        let cpus: Box<[CpuId]> = places.iter().map(|place| place.cpu).collect();
        let last = cpus.iter().max().map_or(0, |cpu| cpu.index());
        let mut slots = vec![NO_SLOT; last + 1];
        for (slot, &cpu) in cpus.iter().enumerate() {
            slots[cpu.index()] = slot as u32;
        }
        Self { slots: slots.into(), places: places.into(), cpus }
    }

    /// Returns the number of slots, at least one.
    pub fn slots(&self) -> usize {
        self.cpus.len()
    }

    /// Returns the slot of `cpu`, if it has one.
    pub fn known(&self, cpu: CpuId) -> Option<usize> {
        match self.slots.get(cpu.index()) {
            Some(&slot) if slot != NO_SLOT => Some(slot as usize),
            _ => None,
        }
    }

    /// Returns the slot of `cpu`. A CPU that wasn't there when the map was made borrows another
    /// one's; software queues take any number of pushers.
    #[inline]
    pub fn slot(&self, cpu: CpuId) -> usize {
        self.known(cpu).unwrap_or(cpu.index() % self.cpus.len())
    }

    /// Returns the CPU of each slot.
    pub fn cpus(&self) -> &[CpuId] {
        &self.cpus
    }

    /// Returns the first slot of each hardware queue, rising from 0. Each queue ends where the next
    /// one begins. There are at most `room` of them.
    pub fn divide(&self, how: HwQueues, room: usize) -> Vec<usize> {
        let same = |a: &CpuPlace, b: &CpuPlace| match how {
            HwQueues::PerCpu | HwQueues::Count(_) => false,
            HwQueues::PerShard => (a.node, a.llc, a.shard) == (b.node, b.llc, b.shard),
            HwQueues::PerCache => (a.node, a.llc) == (b.node, b.llc),
            HwQueues::PerNode => a.node == b.node,
        };
        let groups: Vec<usize> = (0..self.places.len())
            .filter(|&slot| slot == 0 || !same(&self.places[slot - 1], &self.places[slot]))
            .collect();
        let wanted = if let HwQueues::Count(n) = how { n } else { groups.len() };
        let n = wanted.min(room).clamp(1, groups.len());
        (0..n).map(|h| groups[h * groups.len() / n]).collect()
    }
}

// The CPUs of each hardware queue, and the CPUs that are online.

/// The layout of a queue: its CPUs and their hardware queues, which stay, and the CPUs that are
/// online.
pub(crate) struct Layout {
    pub(crate) map: CpuMap,
    /// The hardware queue of each slot.
    hctx_of: Box<[u32]>,
    /// The first slot of each hardware queue, and the number of slots behind the last one.
    first: Box<[usize]>,
    /// A: true if the CPU of the slot is online. Changed at any time, under `changing`; Relaxed, it
    /// is advice.
    online: Box<[AtomicBool]>,
    /// L: is the lock; guards the epoch of the machine's masks that were seen last. Its holder
    /// changes which CPUs are online, and the marks of hardware queues that follow from it. Held
    /// for short: no user code, no wait inside.
    pub(crate) changing: Mutex<u64>,
}

impl Layout {
    /// Creates a layout whose hardware queues begin at the slots `first`; see [`CpuMap::divide`].
    pub(crate) fn new(map: CpuMap, first: &[usize]) -> Self {
        let slots = map.slots();
        let first: Box<[usize]> = first.iter().copied().chain([slots]).collect();
        let sizes = first.windows(2).map(|pair| pair[1] - pair[0]);
        let hctx_of =
            (0..).zip(sizes).flat_map(|(hctx, size)| iter::repeat_n(hctx, size)).collect();
        let online = (0..slots).map(|_| AtomicBool::new(true)).collect();
        Self { map, hctx_of, first, online, changing: Mutex::new(0) }
    }

    /// Returns the number of hardware queues.
    pub(crate) fn hw_queues(&self) -> usize {
        self.first.len() - 1
    }

    /// Returns the hardware queue of a slot.
    #[inline]
    pub(crate) fn hctx_of(&self, slot: usize) -> usize {
        self.hctx_of[slot] as usize
    }

    /// Returns the slots of a hardware queue; empty if there is no such queue.
    pub(crate) fn slots_of(&self, hctx: usize) -> Range<usize> {
        match self.first.get(hctx..hctx + 2) {
            Some(&[begin, end]) => begin..end,
            _ => 0..0,
        }
    }

    /// Returns the slot whose counters count a run that no CPU asked for: the first one of the
    /// hardware queue.
    pub(crate) fn some_slot_of(&self, hctx: usize) -> usize {
        self.first[hctx]
    }

    /// Returns true if the CPU of a slot is online.
    pub(crate) fn is_online(&self, slot: usize) -> bool {
        self.online[slot].load(Ordering::Relaxed)
    }

    /// Records whether the CPU of a slot is online, and returns true if that is new. The caller
    /// holds `changing`.
    pub(crate) fn set_online(&self, slot: usize, is: bool) -> bool {
        self.online[slot].swap(is, Ordering::Relaxed) != is
    }

    /// Returns the CPUs of a hardware queue.
    pub(crate) fn cpus_of(&self, hctx: usize) -> &[CpuId] {
        &self.map.cpus()[self.slots_of(hctx)]
    }
}

// The software queues of a queue: one inbox per CPU; and for each hardware queue a bitmap of those
// of its CPUs' that are in use.
//
// Each CPU pushes to an inbox of its own, so submitters don't meet. The runner must not look at
// 512 inboxes to find one request, so the push that finds its inbox empty sets the inbox's bit:
//
// ```text
// submitter                          runner
// Push to the inbox                  Collect: word = swap bitmap word with 0
// if it was empty: Mark the bit      for each bit: take the inbox
// ```
//
// A later pusher whose push found the inbox non-empty may run the queue before the first one has
// set the bit, and find nothing. Its request rides with the first one's, which marks and then runs.
//
// The inboxes belong to the queue, as the CPUs do, and each hardware queue's bitmap has a bit for
// every one of them. So the hardware queue of a CPU may change while the queue is frozen, when all
// hardware queues are empty. The change makes or frees no memory that a thread might still read.

/// Software queues, one for each CPU of a queue.
pub struct SoftwareQueues<N: Node> {
    inboxes: Box<[CachePadded<Inbox<N>>]>,
}

/// The map of the software queues that hold something for one hardware queue.
#[derive(Debug)]
pub struct CtxMap {
    /// A: bit n of word w is set if software queue 64 w + n may hold something.
    words: Box<[AtomicU64]>,
}

impl CtxMap {
    /// Creates a map in which no bit of `slots` is set.
    pub fn new(slots: usize) -> Self {
        Self { words: (0..slots.max(1).div_ceil(64)).map(|_| AtomicU64::new(0)).collect() }
    }

    /// Returns true if something may have been pending a moment ago. Relaxed: the protocols put
    /// their fence before it.
    pub fn has_pending(&self) -> bool {
        self.words.iter().any(|word| word.load(Ordering::Relaxed) != 0)
    }
}

impl<N: Node> SoftwareQueues<N> {
    /// Creates `n` empty queues, at least one.
    pub fn new(n: usize) -> Self {
        Self { inboxes: (0..n.max(1)).map(|_| CachePadded::new(Inbox::new())).collect() }
    }

    /// Puts a request into queue `slot`, which belongs to `map`'s hardware queue. Lock-free.
    pub fn push(&self, map: &CtxMap, slot: usize, node: N) {
        if self.inboxes[slot].push(node) {
            // Mark. Release: the thread that takes the bit finds the node in the inbox.
            map.words[slot / 64].fetch_or(1 << (slot % 64), Ordering::AcqRel);
        }
    }

    /// Moves all requests that are pending for `map`'s hardware queue to the end of `list`: each
    /// queue's requests in their order, the queues in turn.
    pub fn collect(&self, map: &CtxMap, list: &mut impl Extend<N>) {
        for (w, word) in map.words.iter().enumerate() {
            if word.load(Ordering::Relaxed) == 0 {
                continue;
            }
            // Collect, pairs with Mark.
            let mut bits = word.swap(0, Ordering::AcqRel);
            while bits != 0 {
                let slot = w * 64 + bits.trailing_zeros() as usize;
                bits &= bits - 1;
                list.extend(self.inboxes[slot].take());
            }
        }
    }
}

// Policy: the hardware queue that stands in for one that has lost its CPUs, and the CPU on which a
// worker runs a hardware queue. Pure functions over plain numbers.

/// Number of asynchronous runs that go to one CPU of a hardware queue before the next one's turn,
/// as the kernel's `BLK_MQ_CPU_WORK_BATCH`.
const BATCH: usize = 8;

/// Returns for each hardware queue (given by its slots) the slot that gets its requests if none of
/// its own CPUs is online; `None` if one is. Slots are in the order of nodes, caches and cores, so
/// the nearest online one shares most with it. If no CPU is online at all, all hardware queues keep
/// their requests.
pub(crate) fn heirs(hctxs: &[Range<usize>], online: &[bool]) -> Vec<Option<usize>> {
    let heir = |slots: &Range<usize>| {
        if slots.clone().any(|slot| online[slot]) {
            return None;
        }
        let distance = |slot: usize| slot.abs_diff(slots.start);
        (0..online.len()).filter(|&slot| online[slot]).min_by_key(|&slot| distance(slot))
    };
    hctxs.iter().map(heir).collect()
}

/// Returns the CPU slot on which a worker makes the `turn`th run of a hardware queue with these
/// slots. Its online CPUs take turns of several runs each, so that the first one doesn't do all the
/// work and the caches stay warm. `None` if none is online: any CPU may run it.
pub(crate) fn slot_for_run(
    slots: Range<usize>,
    online: impl Fn(usize) -> bool,
    turn: usize,
) -> Option<usize> {
    let n = slots.len();
    let first = (turn / BATCH).checked_rem(n)?;
    (0..n).map(|i| slots.start + (first + i) % n).find(|&slot| online(slot))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cpus(n: u32, per_llc: u32) -> CpuMap {
        // Numbered across the caches, as firmware likes to do.
        let llcs = n / per_llc;
        let place = |cpu| {
            let llc = cpu % llcs;
            CpuPlace { node: llc / 2, llc, shard: cpu / llcs / 2, core: cpu, cpu: CpuId::new(cpu) }
        };
        CpuMap::new((0..n).map(place).collect())
    }

    /// Returns the CPUs of each hardware queue.
    fn groups(map: &CpuMap, how: HwQueues, room: usize) -> Vec<Vec<u32>> {
        let numbers = |cpus: &[CpuId]| cpus.iter().copied().map(CpuId::number).collect();
        let mut first = map.divide(how, room);
        first.push(map.slots());
        first.windows(2).map(|w| numbers(&map.cpus()[w[0]..w[1]])).collect()
    }

    #[test]
    fn a_hardware_queue_never_spans_two_caches_where_it_need_not() {
        let map = cpus(8, 4);
        assert_eq!(groups(&map, HwQueues::Count(2), 9), [[0, 2, 4, 6], [1, 3, 5, 7]]);
        assert_eq!(map.slot(CpuId::new(5)), 6);
    }

    #[test]
    fn hardware_queues_follow_cpus_shards_caches_and_nodes() {
        let map = cpus(16, 4);
        for (how, room, sizes) in [
            (HwQueues::PerCpu, 99, &[1; 16][..]),
            (HwQueues::PerShard, 99, &[2; 8]),
            (HwQueues::PerCache, 99, &[4; 4]),
            (HwQueues::PerNode, 99, &[8; 2]),
            // With less room neighbours share one, and no cache is cut.
            (HwQueues::PerCache, 3, &[4, 4, 8]),
            (HwQueues::PerShard, 1, &[16]),
            (HwQueues::PerNode, 0, &[16]),
        ] {
            let found: Vec<_> = groups(&map, how, room).iter().map(Vec::len).collect();
            assert_eq!(found, sizes, "{how:?}, room {room}");
        }
    }

    #[test]
    fn every_cpu_has_one_place_and_the_queues_differ_by_one_cpu_at_most() {
        for n in 1..40 {
            for hw in 1..50 {
                let map = cpus(n, 1);
                let groups = groups(&map, HwQueues::Count(hw), 99);
                assert_eq!(groups.len(), hw.min(n as usize));
                let sizes = || groups.iter().map(Vec::len);
                assert_eq!(sizes().sum::<usize>(), n as usize);
                assert!(sizes().max().unwrap() - sizes().min().unwrap() <= 1);
                for cpu in 0..n {
                    assert_eq!(map.cpus()[map.slot(CpuId::new(cpu))], CpuId::new(cpu));
                }
            }
        }
    }

    #[test]
    fn an_unknown_cpu_and_a_machine_without_cpus_still_have_a_place() {
        assert_eq!(cpus(4, 4).slot(CpuId::new(1002)), 2);
        assert_eq!(cpus(4, 4).known(CpuId::new(1002)), None);
        let none = CpuMap::new(Vec::new());
        assert_eq!((none.slot(CpuId::new(3)), none.divide(HwQueues::Count(7), 9)), (0, vec![0]));
    }
}

#[cfg(test)]
mod policy_tests {
    use super::*;

    #[test]
    fn a_hardware_queue_without_an_online_cpu_gives_its_requests_to_the_nearest() {
        for (online, want) in [
            ([true, false, true, false, false, true], [None, None, None]),
            ([true, true, false, false, false, true], [None, Some(1), None]),
            ([true, false, false, false, false, false], [None, Some(0), Some(0)]),
            ([false; 6], [None, None, None]),
        ] {
            assert_eq!(heirs(&[0..2, 2..4, 4..6], &online), want);
        }
    }

    #[test]
    fn runs_from_afar_go_round_the_online_cpus_in_batches() {
        let on = |turn| slot_for_run(2..5, |slot| slot != 3, turn);
        let got: Vec<_> = (0..25).step_by(8).map(on).collect();
        assert_eq!(got, [Some(2), Some(4), Some(4), Some(2)]);
        assert_eq!(on(7), Some(2), "one batch, one CPU");
        assert_eq!(slot_for_run(2..5, |_| false, 0), None);
        assert_eq!(slot_for_run(0..0, |_| true, 3), None);
    }
}
