//! How many instances of a queue are active at once, and which wait: `max_active`, ordered queues
//! and draining.
//!
//! Read `limit.md` beside this file first.

use corewise_sync::CachePadded;
use corewise_sync::fence::{FencePolicy, FullFence};

use crate::pools::UsableCpus;
use crate::pwq::limit_policy::{UNLIMITED, node_max};
use crate::pwq::limit_slot::{Hold, Slot};

/// What a queue's instances are counted by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CountedBy {
    /// By node, however many pods it has: unbound queues. The last slot is for pods that lie in no
    /// node.
    Node,
    /// By pool, which is a CPU: bound queues.
    Pool,
    /// All together, and one at a time: ordered queues.
    Queue,
}

/// The slots of a queue. They are the queue's for its whole life, whatever its attributes.
pub(crate) struct Limiter<T: Hold, F: FencePolicy = FullFence> {
    /// I: what they stand for.
    pub(crate) counted_by: CountedBy,
    /// I: the slots; what changes in them, they guard.
    slots: Box<[CachePadded<Slot<T, F>>]>,
}

impl<T: Hold, F: FencePolicy> Limiter<T, F> {
    /// Without a limit yet. `places`: how many nodes or pools there are.
    pub(crate) fn new(counted_by: CountedBy, places: usize) -> Self {
        let (slots, limit) = match counted_by {
            CountedBy::Node => (places + 1, UNLIMITED),
            CountedBy::Pool => (places, UNLIMITED),
            CountedBy::Queue => (1, 1),
        };
        Limiter {
            counted_by,
            slots: (0..slots).map(|_| CachePadded::new(Slot::new(limit))).collect(),
        }
    }

    /// The slot of a pool, by its index and its node.
    pub(crate) fn slot_of(&self, pool: usize, node: Option<u32>) -> usize {
        let last = self.slots.len() - 1;
        match self.counted_by {
            CountedBy::Node => node.map_or(last, |node| (node as usize).min(last)),
            CountedBy::Pool => pool.min(last),
            CountedBy::Queue => 0,
        }
    }

    /// What stands for a pwq among those that wait: with ordered queues they all wait in one line.
    pub(crate) fn line_of(&self, pwq: usize) -> usize {
        if self.counted_by == CountedBy::Queue { 0 } else { pwq }
    }

    /// By number.
    #[inline]
    pub(crate) fn slot(&self, slot: usize) -> &Slot<T, F> {
        &self.slots[slot]
    }

    /// All of them.
    pub(crate) fn slots(&self) -> impl Iterator<Item = &Slot<T, F>> {
        self.slots.iter().map(|slot| &**slot)
    }

    /// Divides a maximum ([`UNLIMITED`]: there is none) among the slots. Ordered queues keep theirs.
    /// [`Slot::settle`] has to follow.
    pub(crate) fn set_max_active(&self, max_active: usize, cpus: &UsableCpus) {
        let last = self.slots.len() - 1;
        for (index, slot) in self.slots.iter().enumerate() {
            let limit = match self.counted_by {
                CountedBy::Queue => return,
                CountedBy::Pool => max_active,
                CountedBy::Node if index == last => max_active,
                CountedBy::Node => {
                    let here = cpus.by_node.get(index).copied().unwrap_or(0);
                    node_max(max_active, here, cpus.total)
                }
            };
            slot.set_limit(limit);
        }
    }
}

#[cfg(test)]
mod stepped {
    //! The slots stepped by hand, over numbers instead of work items.

    use std::collections::VecDeque;

    use super::*;
    use crate::pwq::limit_slot::Admission;

    impl Hold for u32 {
        type List = VecDeque<u32>;
        fn append(self, list: &mut VecDeque<u32>) {
            list.push_back(self);
        }
        fn take(list: &mut VecDeque<u32>) -> Option<u32> {
            list.pop_front()
        }
        fn len(list: &VecDeque<u32>) -> usize {
            list.len()
        }
    }

    /// As a queuer does; what may go at once, or is let through by it, goes to `out`.
    fn queue(slot: &Slot<u32>, pwq: usize, item: u32, out: &mut Vec<u32>) {
        match slot.admit(slot.gate()) {
            Admission::Wait => slot.hold(pwq, item, &mut |item| out.push(item)),
            _ => out.push(item),
        }
    }

    fn put(slot: &Slot<u32>, out: &mut Vec<u32>) {
        slot.put(&mut |item| out.push(item));
    }

    #[test]
    fn stepped_without_a_limit_nothing_is_counted() {
        let (slot, mut out) = (Slot::<u32>::new(UNLIMITED), Vec::new());
        assert!(slot.gate().open());
        for n in 0..100 {
            assert_eq!(slot.admit(slot.gate()), Admission::Free);
            queue(&slot, 0, n, &mut out);
        }
        assert_eq!((out.len(), slot.sizes().0), (100, 0));
    }

    #[test]
    fn stepped_inactive_instances_keep_their_order_and_nobody_passes_them() {
        let (slot, mut out) = (Slot::<u32>::new(1), Vec::new());
        for n in 0..4 {
            queue(&slot, 0, n, &mut out);
        }
        assert_eq!(out, [0]);
        put(&slot, &mut out);
        queue(&slot, 0, 4, &mut out);
        assert_eq!(out, [0, 1], "the place went to the one that waited, not to the newcomer");
        for _ in 0..3 {
            put(&slot, &mut out);
        }
        assert_eq!(out, [0, 1, 2, 3, 4]);
        put(&slot, &mut out);
        assert_eq!(slot.sizes(), (0, 1, 0));
    }

    #[test]
    fn stepped_the_hand_over_goes_round_the_links() {
        let (slot, mut out) = (Slot::<u32>::new(1), Vec::new());
        queue(&slot, 9, 0, &mut out);
        for n in [10, 11, 12] {
            queue(&slot, 1, n, &mut out);
        }
        for n in [20, 21] {
            queue(&slot, 2, n, &mut out);
        }
        queue(&slot, 3, 30, &mut out);
        for _ in 0..6 {
            put(&slot, &mut out);
        }
        assert_eq!(out, [0, 10, 20, 30, 11, 21, 12]);
    }

    #[test]
    fn stepped_a_higher_maximum_lets_those_through_that_wait_and_a_lower_one_stops_nobody() {
        let (slot, mut out) = (Slot::<u32>::new(1), Vec::new());
        for n in 0..5 {
            queue(&slot, 0, n, &mut out);
        }
        slot.set_limit(3);
        slot.settle(&mut |item| out.push(item));
        assert_eq!(out, [0, 1, 2]);
        slot.set_limit(1);
        slot.settle(&mut |item| out.push(item));
        put(&slot, &mut out);
        put(&slot, &mut out);
        assert_eq!(out, [0, 1, 2], "one of three is still active");
        put(&slot, &mut out);
        assert_eq!(out, [0, 1, 2, 3]);
        slot.set_limit(UNLIMITED);
        slot.settle(&mut |item| out.push(item));
        assert_eq!(out, [0, 1, 2, 3, 4]);
        assert!(slot.gate().open());
    }

    #[test]
    fn stepped_cancelling_what_is_held_stalls_nobody() {
        let (slot, mut out) = (Slot::<u32>::new(1), Vec::new());
        queue(&slot, 0, 0, &mut out);
        queue(&slot, 1, 1, &mut out);
        queue(&slot, 2, 2, &mut out);
        assert_eq!(slot.take_held(1, VecDeque::pop_front), Some(1));
        put(&slot, &mut out);
        assert_eq!(out, [0, 2]);
        put(&slot, &mut out);
        assert!(slot.admit(slot.gate()) == Admission::Counted, "nothing is left in the way");
    }

    #[test]
    fn stepped_one_thread_at_a_time_pushes_what_was_held() {
        let slot = Slot::<u32>::new(1);
        let mut out = Vec::new();
        queue(&slot, 0, 0, &mut out);
        queue(&slot, 0, 1, &mut out);
        queue(&slot, 0, 2, &mut out);
        // Each is over as soon as it is pushed: as where a closed pool refuses it.
        slot.put(&mut |item| {
            out.push(item);
            slot.put(&mut |_| unreachable!("the one that pushes already does it"));
        });
        assert_eq!(out, [0, 1, 2]);
        assert_eq!(slot.sizes(), (0, 1, 0));
    }

    #[test]
    fn stepped_max_active_is_divided_by_the_cpus_of_the_nodes() {
        let limiter = Limiter::<u32>::new(CountedBy::Node, 2);
        let cpus = UsableCpus { by_node: vec![12, 4], total: 16 };
        limiter.set_max_active(100, &cpus);
        let limits: Vec<_> = limiter.slots().map(|slot| slot.sizes().1).collect();
        assert_eq!(limits, [75, 25, 100], "the last is for pods that lie in no node");
        assert_eq!(limiter.slot_of(7, Some(1)), 1);
        assert_eq!(limiter.slot_of(7, None), 2);
        let ordered = Limiter::<u32>::new(CountedBy::Queue, 0);
        ordered.set_max_active(100, &cpus);
        assert_eq!(ordered.slot(0).sizes().1, 1);
    }
}
