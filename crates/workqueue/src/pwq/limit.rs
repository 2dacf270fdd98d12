//! Limits on the active instances of a queue: `max_active`, ordered queues and draining. A slot
//! counts instances against a maximum and holds those beyond it back; a limiter divides a queue's
//! maximum among its slots.
//!
//! Read `limit.md` beside this file first: the comments here use its names for the steps.

use std::collections::VecDeque;
use std::marker::PhantomData;

use corewise_sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use corewise_sync::fence::{FencePolicy, FullFence};
use corewise_sync::{CachePadded, Mutex, MutexGuard};

use crate::pools::UsableCpus;

/// Gate bit: there is a maximum.
const LIMITED: u32 = 1;
/// Gate bit: instances are held back, or a thread is about to push some that were.
const HELD: u32 = 1 << 1;
/// Gate bit: only items that the queue's own items queue are accepted.
const DRAINING: u32 = 1 << 2;
/// Gate bit: nothing is accepted any more.
const CLOSED: u32 = 1 << 3;

/// An instance that a slot can hold back, and the list for it.
pub(crate) trait Hold: Sized + Send {
    /// A list, first in, first out, whose items can be taken out of its middle too.
    type List: Default + Send;
    /// Appends an instance.
    fn append(self, list: &mut Self::List);
    /// Takes out the oldest unclaimed one; drops claimed ones from the list.
    fn take(list: &mut Self::List) -> Option<Self>;
    /// Returns their number.
    fn len(list: &Self::List) -> usize;
}

/// A reading of a slot's gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Gate(u32);

impl Gate {
    /// Returns true if nothing has to be checked: there is no limit, drain or close.
    #[inline]
    pub(crate) fn open(self) -> bool {
        self.0 == 0
    }
    /// Returns true if only chained work is accepted.
    pub(crate) fn draining(self) -> bool {
        self.0 & DRAINING != 0
    }
    /// Returns true if nothing is accepted.
    pub(crate) fn closed(self) -> bool {
        self.0 & CLOSED != 0
    }
    /// Returns true if an instance may try to get through without the lock: no other is before it.
    fn unobstructed(self) -> bool {
        self.0 & HELD == 0
    }
    fn limited(self) -> bool {
        self.0 & LIMITED != 0
    }
}

/// The way in which an instance got through without waiting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub(crate) enum Admission {
    /// The instance is free: without a limit it isn't counted.
    Free,
    /// The instance is counted, and has to be [`put`](LimitSlot::put) back.
    Counted,
    /// The instance has to be held back.
    Wait,
}

/// A slot: the number of active instances, their maximum, and those that wait.
pub(crate) struct LimitSlot<T: Hold, F: FencePolicy = FullFence> {
    /// A: bits; written under the lock of `inner`, read by each queuer.
    gate: AtomicU32,
    /// A: instances that are counted: let through and not over.
    active: AtomicUsize,
    /// A: maximum of active instances; written under the lock of `inner`.
    max: AtomicUsize,
    /// L: is the lock; guards the held instances, and the state that the gate mirrors.
    inner: Mutex<SlotState<T>>,
    fence: PhantomData<F>,
}

struct SlotState<T: Hold> {
    /// The held instances, by pwq. The pwq whose turn it is comes first, and none is empty.
    held: VecDeque<(usize, T::List)>,
    /// Number of times that an instance came to be held, or ceased to be: between two equal
    /// readings the same ones were held.
    moves: u64,
    /// True while a thread pushes held instances. Only one does, so that the order is kept.
    moving: bool,
    /// Number of times that the limit or the marks were set.
    changes: u64,
    limit: usize,
    /// The gate's bits that are set from outside.
    marks: u32,
}

impl<T: Hold, F: FencePolicy> LimitSlot<T, F> {
    pub(crate) fn new(limit: usize) -> Self {
        let inner = SlotState {
            held: VecDeque::new(),
            moves: 0,
            moving: false,
            changes: 0,
            limit,
            marks: 0,
        };
        LimitSlot {
            gate: AtomicU32::new(inner.gate()),
            active: AtomicUsize::new(0),
            max: AtomicUsize::new(limit),
            inner: Mutex::new(inner),
            fence: PhantomData,
        }
    }

    /// Returns the obstacles. The caller has counted its instance in, in its pwq, before. The
    /// thread that changes the gate reads those counts afterwards, and one of the two sees the
    /// other. Both accesses of both sides are `SeqCst`, so no fence is needed (but for loom, which
    /// takes `SeqCst` accesses for weaker ones).
    #[inline]
    pub(crate) fn gate(&self) -> Gate {
        F::implied();
        Gate(self.gate.load(Ordering::SeqCst))
    }

    /// Returns the gate as a hint, if nothing depends on it yet.
    #[inline]
    pub(crate) fn glance(&self) -> Gate {
        Gate(self.gate.load(Ordering::Relaxed))
    }

    /// Returns true if the limit had a place for one more a moment ago.
    pub(crate) fn has_place(&self) -> bool {
        let gate = self.glance();
        gate.open()
            || gate.unobstructed()
                && (!gate.limited()
                    || self.active.load(Ordering::Relaxed) < self.max.load(Ordering::Relaxed))
    }

    /// Tries to get an instance through that read `gate`, without the lock.
    #[inline]
    pub(crate) fn admit(&self, gate: Gate) -> Admission {
        if !gate.unobstructed() {
            Admission::Wait
        } else if !gate.limited() {
            Admission::Free
        } else if self.try_get() {
            Admission::Counted
        } else {
            Admission::Wait
        }
    }

    /// Holds an instance back, behind the older ones of its pwq; lets it through, by `push`, as
    /// soon as it may go: maybe at once.
    pub(crate) fn hold(&self, pwq: usize, item: T, push: &mut dyn FnMut(T)) {
        let mut inner = self.inner.lock();
        inner.append(pwq, item);
        // Announce; `move_on` has the fence and looks again.
        self.publish(&inner);
        self.move_on(inner, push);
    }

    /// Gives the place of a counted instance back, which is over: the next one may go.
    #[inline]
    pub(crate) fn put(&self, push: &mut dyn FnMut(T)) {
        // Give. Release: the instance that gets its place sees this one's writes.
        self.active.fetch_sub(1, Ordering::Release);
        // Pairs with the fence in `move_on`.
        F::full();
        // Look.
        if self.gate.load(Ordering::Relaxed) & HELD != 0 {
            self.move_on(self.inner.lock(), push);
        }
    }

    /// Carries out Lend: a place beyond the maximum, to be [`put`](LimitSlot::put) back, for an
    /// instance that the holder of another place waits for.
    pub(crate) fn lend(&self) {
        // Relaxed: no instance gave this place up. A look for one meanwhile finds one less, as it
        // has to.
        self.active.fetch_add(1, Ordering::Relaxed);
    }

    /// Shows `see` a pwq's held instances, under the lock; returns `None` if there are none.
    pub(crate) fn see_held<R>(&self, pwq: usize, see: impl FnOnce(&T::List) -> R) -> Option<R> {
        let inner = self.inner.lock();
        inner.held.iter().find(|(of, _)| *of == pwq).map(|(_, list)| see(list))
    }

    /// Calls `take` to take one of a pwq's held instances, if there are any, under the lock: for
    /// its claimant.
    pub(crate) fn take_held(
        &self,
        pwq: usize,
        take: impl FnOnce(&mut T::List) -> Option<T>,
    ) -> Option<T> {
        let mut inner = self.inner.lock();
        let taken = take(&mut inner.held.iter_mut().find(|(of, _)| *of == pwq)?.1);
        inner.moves += 1;
        inner.held.retain(|(_, list)| T::len(list) > 0);
        self.publish(&inner);
        taken
    }

    /// Changes the maximum. Instances that are active beyond a lower one continue. If it rises,
    /// `settle` has to follow.
    pub(crate) fn set_limit(&self, limit: usize) {
        self.change(|inner| inner.limit = limit);
    }

    /// Sets whether only chained work is accepted.
    pub(crate) fn set_draining(&self, draining: bool) {
        self.mark(DRAINING, draining);
    }

    /// Refuses all instances from now on. Held instances will still be let through.
    pub(crate) fn close(&self) {
        self.mark(CLOSED, true);
    }

    /// Lets the instances through that may go. This is a step of its own, since `push` may call
    /// user code (a handler that makes threads), and so runs without any lock.
    pub(crate) fn settle(&self, push: &mut dyn FnMut(T)) {
        self.move_on(self.inner.lock(), push);
    }

    /// Returns the numbers of active instances, of their maximum ([`UNLIMITED`]: none), and of held
    /// ones, a moment ago.
    pub(crate) fn sizes(&self) -> (usize, usize, usize) {
        let inner = self.inner.lock();
        (self.active.load(Ordering::Relaxed), inner.limit, inner.many())
    }

    /// Returns the number of active instances, if all of them have to proceed before a held one
    /// can; `None` if one may go at once, let through by any thread. Returns, too, how often the
    /// limit or the marks were set.
    pub(crate) fn in_the_way(&self) -> (Option<usize>, u64) {
        let inner = self.inner.lock();
        let active = self.active.load(Ordering::Relaxed);
        ((active >= inner.limit).then_some(active), inner.changes)
    }

    /// Returns the number of held instances, and how often that has changed.
    pub(crate) fn held(&self) -> (usize, u64) {
        let inner = self.inner.lock();
        (inner.many(), inner.moves)
    }

    fn mark(&self, mark: u32, set: bool) {
        self.change(|inner| {
            inner.marks = if set { inner.marks | mark } else { inner.marks & !mark }
        });
    }

    fn change(&self, edit: impl FnOnce(&mut SlotState<T>)) {
        let mut inner = self.inner.lock();
        edit(&mut inner);
        inner.changes += 1;
        self.publish(&inner);
    }

    /// Mirrors the guarded state. SeqCst: see `gate`; the fence that follows is for loom.
    fn publish(&self, inner: &SlotState<T>) {
        let gate = inner.gate();
        self.max.store(inner.limit, Ordering::Relaxed);
        if self.gate.load(Ordering::Relaxed) != gate {
            self.gate.store(gate, Ordering::SeqCst);
        }
    }

    /// Lets those through that may go, in turn by pwq. One thread at a time pushes, outside of the
    /// lock; a thread that comes meanwhile leaves it to that one, which looks again under the lock.
    fn move_on<'a>(&'a self, mut inner: MutexGuard<'a, SlotState<T>>, push: &mut dyn FnMut(T)) {
        if inner.moving {
            return;
        }
        // Pairs with the fence in `put`: either that one reads HELD, or `try_get` here finds what
        // it gave back.
        F::full();
        loop {
            let next = self.next(&mut inner);
            inner.moving = next.is_some();
            self.publish(&inner);
            let Some(item) = next else { return };
            drop(inner);
            push(item);
            inner = self.inner.lock();
        }
    }

    /// Returns the next one that may go, with a place taken for it.
    fn next(&self, inner: &mut SlotState<T>) -> Option<T> {
        if inner.held.is_empty() || !self.try_get() {
            return None;
        }
        let next = inner.next();
        if next.is_none() {
            // All of them were claimed. No thread has to look: one that missed the place meanwhile
            // has yet to take the lock.
            self.active.fetch_sub(1, Ordering::Release);
        }
        next
    }

    /// Takes a place. Acquire pairs with the Release of `put`.
    fn try_get(&self) -> bool {
        let max = self.max.load(Ordering::Relaxed);
        let next = |now| (now < max).then_some(now + 1);
        self.active.fetch_update(Ordering::Acquire, Ordering::Relaxed, next).is_ok()
    }
}

impl<T: Hold> SlotState<T> {
    fn gate(&self) -> u32 {
        let held = self.moving || !self.held.is_empty();
        let limited = self.limit != UNLIMITED;
        self.marks | (LIMITED * u32::from(limited)) | (HELD * u32::from(held))
    }

    fn append(&mut self, pwq: usize, item: T) {
        let at = self.held.iter().position(|(of, _)| *of == pwq).unwrap_or_else(|| {
            self.held.push_back((pwq, T::List::default()));
            self.held.len() - 1
        });
        item.append(&mut self.held[at].1);
        self.moves += 1;
    }

    fn many(&self) -> usize {
        self.held.iter().map(|(_, list)| T::len(list)).sum()
    }

    /// Returns the oldest of the pwq whose turn it is.
    fn next(&mut self) -> Option<T> {
        self.moves += 1;
        while let Some((pwq, mut list)) = self.held.pop_front() {
            let item = T::take(&mut list);
            if T::len(&list) > 0 {
                // Round robin: the other pwqs first.
                self.held.push_back((pwq, list));
            }
            if item.is_some() {
                return item;
            }
        }
        None
    }
}

/// The scope by which a queue's instances are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CountedBy {
    /// A node, however many pods it has: unbound queues. The last slot is for pods that lie in no
    /// node.
    Node,
    /// A pool, which is a CPU: bound queues.
    Pool,
    /// All together, and one at a time: ordered queues.
    Queue,
}

/// The slots of a queue. They are the queue's for its whole life, whatever its attributes.
pub(crate) struct Limiter<T: Hold, F: FencePolicy = FullFence> {
    /// I: the scope of a slot.
    pub(crate) counted_by: CountedBy,
    /// I: the slots, which guard their own changes.
    slots: Box<[CachePadded<LimitSlot<T, F>>]>,
}

impl<T: Hold, F: FencePolicy> Limiter<T, F> {
    /// Creates a limiter without a limit yet. `places` is the number of nodes or pools.
    pub(crate) fn new(counted_by: CountedBy, places: usize) -> Self {
        let (slots, limit) = match counted_by {
            CountedBy::Node => (places + 1, UNLIMITED),
            CountedBy::Pool => (places, UNLIMITED),
            CountedBy::Queue => (1, 1),
        };
        Limiter {
            counted_by,
            slots: (0..slots).map(|_| CachePadded::new(LimitSlot::new(limit))).collect(),
        }
    }

    /// Returns the slot of a pool, by its index and its node.
    pub(crate) fn slot_of(&self, pool: usize, node: Option<u32>) -> usize {
        let last = self.slots.len() - 1;
        match self.counted_by {
            CountedBy::Node => node.map_or(last, |node| (node as usize).min(last)),
            CountedBy::Pool => pool.min(last),
            CountedBy::Queue => 0,
        }
    }

    /// Returns the key of a pwq among the waiting ones: with ordered queues they all wait in one
    /// line.
    pub(crate) fn line_of(&self, pwq: usize) -> usize {
        if self.counted_by == CountedBy::Queue { 0 } else { pwq }
    }

    /// Returns the slot with this number.
    #[inline]
    pub(crate) fn slot(&self, slot: usize) -> &LimitSlot<T, F> {
        &self.slots[slot]
    }

    /// Returns all slots.
    pub(crate) fn slots(&self) -> impl Iterator<Item = &LimitSlot<T, F>> {
        self.slots.iter().map(|slot| &**slot)
    }

    /// Divides a maximum ([`UNLIMITED`]: there is none) among the slots. Ordered queues keep
    /// theirs. [`LimitSlot::settle`] has to follow.
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

/// Number of instances that a node may run at least, however few of the CPUs it has: the kernel's
/// `WQ_DFL_MIN_ACTIVE`.
const MIN_ACTIVE: usize = 8;

/// The value for no limit: `max_active` is 0, the default.
pub(crate) const UNLIMITED: usize = usize::MAX;

/// Returns the `max_active` that holds for the queue as a whole. 0, the default, is no limit of the
/// queue's own.
pub(crate) fn effective(max_active: usize) -> usize {
    if max_active == 0 { UNLIMITED } else { max_active }
}

/// Returns a node's part of an unbound queue's `max_active`: its share by CPUs, rounded up, at
/// least 8 (or all of it, if that is less), at most all of it. `node_cpus` and `total_cpus` are the
/// CPUs that the queue may use now, on the node and in all.
///
/// `node_update_max_active` of the kernel. How many pods the node is divided into doesn't matter.
pub(crate) fn node_max(max_active: usize, node_cpus: usize, total_cpus: usize) -> usize {
    if max_active == UNLIMITED {
        return UNLIMITED;
    }
    let least = MIN_ACTIVE.min(max_active);
    if total_cpus == 0 {
        return least;
    }
    (max_active * node_cpus).div_ceil(total_cpus).clamp(least, max_active)
}

#[cfg(test)]
mod stepped {
    //! The slots stepped by hand, over numbers instead of work items.

    use std::collections::VecDeque;

    use super::*;
    use crate::pwq::limit::Admission;

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

    /// Queues an item as a queuer does; what may go at once, or is let through by it, goes to
    /// `out`.
    fn queue(slot: &LimitSlot<u32>, pwq: usize, item: u32, out: &mut Vec<u32>) {
        match slot.admit(slot.gate()) {
            Admission::Wait => slot.hold(pwq, item, &mut |item| out.push(item)),
            _ => out.push(item),
        }
    }

    fn put(slot: &LimitSlot<u32>, out: &mut Vec<u32>) {
        slot.put(&mut |item| out.push(item));
    }

    #[test]
    fn stepped_without_a_limit_nothing_is_counted() {
        let (slot, mut out) = (LimitSlot::<u32>::new(UNLIMITED), Vec::new());
        assert!(slot.gate().open());
        for n in 0..100 {
            assert_eq!(slot.admit(slot.gate()), Admission::Free);
            queue(&slot, 0, n, &mut out);
        }
        assert_eq!((out.len(), slot.sizes().0), (100, 0));
    }

    #[test]
    fn stepped_inactive_instances_keep_their_order_and_nobody_passes_them() {
        let (slot, mut out) = (LimitSlot::<u32>::new(1), Vec::new());
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
        let (slot, mut out) = (LimitSlot::<u32>::new(1), Vec::new());
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
        let (slot, mut out) = (LimitSlot::<u32>::new(1), Vec::new());
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
        let (slot, mut out) = (LimitSlot::<u32>::new(1), Vec::new());
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
        let slot = LimitSlot::<u32>::new(1);
        let mut out = Vec::new();
        queue(&slot, 0, 0, &mut out);
        queue(&slot, 0, 1, &mut out);
        queue(&slot, 0, 2, &mut out);
        // Each is over as soon as it is pushed: as if a closed pool refused it.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_gets_its_share_by_cpus_and_at_least_min_active_and_at_most_everything() {
        for (max_active, node_cpus, total_cpus, wanted) in [
            (100, 8, 16, 50),
            (100, 4, 16, 25),
            // Rounded up.
            (101, 8, 16, 51),
            (100, 16, 16, 100),
            (100, 1, 512, 8),
            // Its CPUs are offline, or all CPUs are.
            (100, 0, 512, 8),
            (100, 0, 0, 8),
            (2, 0, 0, 2),
            // Less than the minimum: all of it.
            (3, 1, 512, 3),
            (1, 1, 2, 1),
            (8, 1, 2, 8),
            (9, 2, 2, 9),
        ] {
            let found = node_max(max_active, node_cpus, total_cpus);
            assert_eq!(found, wanted, "{max_active}: {node_cpus} of {total_cpus} CPUs");
        }
    }

    #[test]
    fn no_limit_stays_no_limit() {
        assert_eq!(effective(0), UNLIMITED);
        assert_eq!(effective(5), 5);
        assert_eq!(node_max(UNLIMITED, 1, 2), UNLIMITED);
    }
}
