//! The part that all pool_workqueues of a queue have in common: the queue itself, without its
//! handles; and its reports.

use std::collections::BTreeMap;
use std::ptr;
use std::sync::{Arc, Weak};

use corewise_sync::Mutex;
use corewise_sync::atomic::aside::AtomicU64;
use corewise_sync::atomic::{AtomicUsize, Ordering, fence};
use corewise_sync::hazard::Hazards;
use corewise_topology::AffinityScope;

use crate::attributes::{Attributes, MAX_ACTIVE_LIMIT, PoolKey, QueueKind};
use crate::error::shielded;
use crate::pool::Pool;
use crate::pool::group::Group;
use crate::pools::WorkerPools;
use crate::pwq::flush::Colours;
use crate::pwq::limit::{CountedBy, Limiter, UNLIMITED, effective};
use crate::pwq::slot::{PwqSlot, RealCounts, Tally};
use crate::pwq::waiting::{WaitList, Waits, stop_in_turn};
use crate::pwq::{Pwq, push};
use crate::report::Counters;
use crate::report::{LinkDump, QueueDump, QueueStats, SlotDump, SlotPlace};
use crate::task::header::LentItem;
use crate::task::header::Queued;
use crate::timekeeper::Registered;
use crate::timekeeper::rescuer::Rescuer;

/// The state that all pwqs of a queue have in common, former pwqs included.
pub(crate) struct QueueCore {
    /// I: number of the queue in its worker pools, never used again; not 0.
    pub(crate) id: u64,
    /// I: the name for reports.
    pub(crate) name: String,
    pub(crate) traits: Traits,
    /// I: the rescuer, which runs its work if no worker can.
    pub(crate) rescuer: Option<Rescuer>,
    pub(crate) colours: Colours<RealCounts, Pwq>,
    /// The limiter, which decides which instances may be active, and holds the others back.
    pub(crate) limiter: Limiter<Queued>,
    /// L: is the lock, held while a change is committed and passed to the limiter; guards the
    /// attributes.
    pub(crate) attributes: Mutex<Attributes>,
    /// The futures that wait to be woken.
    pub(crate) waiting: WaitList<Weak<dyn Waits>>,
    /// Counts of the pwqs that are gone.
    pub(crate) former: Counters,
    /// The timekeeper of the pools.
    pub(crate) hazards: Arc<Hazards>,
    /// A lease that keeps the pools open for as long as an item is queued, or can be.
    pub(crate) pools: WorkerPools,
    /// I: the places for closures of `try_spawn`, if they are limited.
    pub(crate) room: Option<Arc<Room>>,
}

/// The traits of a queue, which never change.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Traits {
    /// I: the kind.
    pub(crate) kind: QueueKind,
    /// I: true if the queue measures the run time of its items.
    pub(crate) timed: bool,
    /// I: maximum of closures of `try_spawn` at once, if it counts them.
    pub(crate) capacity: Option<usize>,
    /// I: true for a queue below another one, which takes work also while it is drained.
    pub(crate) is_below: bool,
}

impl QueueCore {
    /// Creates a queue with a new number. `counted_by`, `places`: see [`Limiter::new`]. Its maximum
    /// is still to be [divided](QueueCore::divide).
    pub(crate) fn new(
        name: String,
        pools: &WorkerPools,
        traits: Traits,
        attributes: Attributes,
        rescuer: Option<Rescuer>,
        (counted_by, places): (CountedBy, usize),
    ) -> Arc<QueueCore> {
        Arc::new(QueueCore {
            id: pools.next_queue(),
            name,
            traits,
            rescuer,
            colours: Colours::new(),
            limiter: Limiter::new(counted_by, places),
            attributes: Mutex::new(attributes),
            waiting: WaitList::new(pools.pods().scope(AffinityScope::CacheShard).len()),
            former: Counters::default(),
            hazards: Arc::clone(pools.hazards()),
            pools: pools.clone(),
            room: traits.capacity.map(Room::new),
        })
    }

    /// Returns the number of items before a held one, of an ordered queue.
    pub(crate) fn before(&self, item: LentItem<'_>) -> usize {
        let (slot, line) = (self.limiter.slot(0), self.limiter.line_of(0));
        let before = slot.see_held(line, |held| {
            let first = held.iter().take_while(|held| !ptr::eq(*held, &*item));
            first.filter(|held| !held.state.snapshot().claimed()).count()
        });
        before.unwrap_or(0)
    }

    /// Returns the counters of all pwqs, former ones included, and the instances in flight. Each is
    /// exact, but they are of slightly different moments.
    pub(crate) fn stats(&self) -> QueueStats {
        let carried = Deferred::of(self);
        let mut stats = QueueStats::default();
        // All under one lock: what a pwq has counted goes to `former` when it is collected.
        let members = self.colours.members.lock();
        for (slot, pwq) in members.all() {
            carried.add_to(&mut stats, slot, Tally::queued);
            pwq.into_iter().for_each(|pwq| pwq.counters.add_to(&mut stats));
        }
        self.former.add_to(&mut stats);
        stats
    }

    /// Returns the numbers of instances in flight and of those ever queued. Carried ends count as
    /// in flight: if the number is 0, none is in flight, but it may be above 0 for a moment longer.
    pub(crate) fn counts(&self) -> (u64, u64) {
        let members = self.colours.members.lock();
        members.all().fold((0, 0), |(in_flight, queued), (slot, _)| {
            (in_flight + slot.tally.in_flight(), queued + slot.tally.queued())
        })
    }

    /// Returns true if nothing was queued and nothing ran at one moment during the call, if nothing
    /// is queued from outside.
    pub(crate) fn is_empty(&self) -> bool {
        // An item may queue another on a pwq that was read already, and end before its own pwq is
        // read. Then the number of those ever queued has changed.
        let before = self.counts();
        // Pairs with the Release of the ends that it saw: the items that those queued are seen
        // below.
        fence(Ordering::Acquire);
        let after = self.counts();
        before.0 == 0 && before == after
    }

    /// Returns the number of active instances a moment ago.
    pub(crate) fn active(&self) -> u64 {
        let held = || {
            let of_slot = self.limiter.slots().map(|slot| slot.held());
            of_slot.fold((0, 0), |sum, slot| (sum.0 + slot.0 as u64, sum.1 + slot.1))
        };
        let mut before = held();
        for _ in 0..4 {
            let in_flight = self.stats().in_flight();
            let after = held();
            // One that is cancelled between two readings would be taken for one that is held and
            // not in flight, and hide an active one.
            if after == before {
                return in_flight.saturating_sub(after.0);
            }
            before = after;
        }
        // They come and go too fast to count.
        self.stats().in_flight().saturating_sub(before.0).max(1)
    }

    /// Divides the maximum among the slots, by its CPUs that can be used now: under the lock of the
    /// attributes, so that the last word stands. `settle` has to follow, and
    /// [`QueueCore::warn_of_cut`] once that is released.
    pub(crate) fn divide(&self, attributes: &Attributes) {
        let max_active = effective(attributes.max_active);
        let usable = match max_active {
            UNLIMITED => Default::default(),
            _ => self.pools.usable_cpus(attributes.cpus.as_ref()),
        };
        self.limiter.set_max_active(max_active, &usable);
    }

    /// Logs a maximum that is too large. The caller holds no lock: a subscriber is the user's code.
    pub(crate) fn warn_of_cut(&self, max_active: usize) {
        if max_active > MAX_ACTIVE_LIMIT {
            tracing::warn!(
                queue = self.name,
                max_active,
                "max_active exceeds {MAX_ACTIVE_LIMIT}, and is reduced to that"
            );
        }
    }
}

impl Registered for QueueCore {
    fn id(&self) -> u64 {
        self.id
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn rescuer(&self) -> Option<&Rescuer> {
        self.rescuer.as_ref()
    }

    fn in_flight(&self) -> u64 {
        self.stats().in_flight()
    }

    fn cancel_waiting(&self) {
        for future in self.waiting.close() {
            // As in `stop_in_turn`.
            shielded("dropping a spawned future", || {
                if let Some(future) = Weak::upgrade(&future) {
                    if future.shut() {
                        stop_in_turn(future);
                    }
                }
            });
        }
    }

    fn dump(&self, pool: &dyn Fn(usize, usize) -> Option<usize>) -> QueueDump {
        of(self, pool)
    }

    fn counters(&self) -> &Counters {
        &self.former
    }

    fn divide_again(&self) {
        let attributes = self.attributes.lock();
        if attributes.max_active != 0 {
            self.divide(&attributes);
        }
    }

    fn close(&self) {
        self.limiter.slots().for_each(|slot| slot.close());
    }

    fn settle(&self) {
        self.limiter.slots().for_each(|slot| slot.settle(&mut push));
    }
}

impl AsRef<Colours<RealCounts, Pwq>> for QueueCore {
    fn as_ref(&self) -> &Colours<RealCounts, Pwq> {
        &self.colours
    }
}

/// A limited number of places for closures.
pub(crate) struct Room {
    /// I: number of places.
    places: usize,
    /// A: number of taken places. It orders no other memory, so Relaxed.
    taken: AtomicUsize,
    /// A: number of times that none was free. A counter, so Relaxed.
    refused: AtomicU64,
}

/// A place in a [`Room`], until it is dropped.
pub(crate) struct Permit(Arc<Room>);

impl Room {
    pub(crate) fn new(places: usize) -> Arc<Room> {
        Arc::new(Room { places, taken: AtomicUsize::new(0), refused: AtomicU64::new(0) })
    }

    /// Takes a place, if there is one.
    pub(crate) fn enter(self: &Arc<Room>) -> Option<Permit> {
        let one_more = |taken: usize| (taken < self.places).then(|| taken + 1);
        let taken = self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more);
        if taken.is_err() {
            self.refused.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        Some(Permit(Arc::clone(self)))
    }

    /// Returns how many places there are.
    pub(crate) fn places(&self) -> usize {
        self.places
    }

    /// Returns how often a caller found no place.
    pub(crate) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.taken.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Describes a queue, see [`Registered::dump`](crate::timekeeper::Registered::dump).
pub(crate) fn of(queue: &QueueCore, id: &dyn Fn(usize, usize) -> Option<usize>) -> QueueDump {
    let attributes = queue.attributes.lock().clone();
    let PoolKey { scope, strict, cpus, nice, .. } = PoolKey::of(queue.traits.kind, &attributes);
    let mut dump = QueueDump {
        id: queue.id,
        name: queue.name.clone(),
        kind: queue.traits.kind,
        scope,
        strict,
        cpus,
        nice,
        max_active: limit(effective(attributes.max_active)),
        capacity: queue.room.as_ref().map(|room| room.places()),
        refused: queue.room.as_ref().map_or(0, |room| room.refused()),
        timed: queue.traits.timed,
        rescuer: queue.rescuer.is_some(),
        ..QueueDump::default()
    };
    if dump.kind == QueueKind::Ordered {
        dump.max_active = Some(1);
    }
    let mut pods = Vec::new();
    let carried = Deferred::of(queue);
    queue.colours.each(|slot, pwq| {
        pods.push((pwq.pool, pwq.group.pools[pwq.pool].spec.pod));
        if let Some(pool) = id(Arc::as_ptr(&pwq.group).addr(), pwq.pool) {
            let stats = pwq.stats(slot, &carried);
            dump.links.push(LinkDump { pool, stats, in_flight: stats.in_flight() });
        }
    });
    dump.slots = slots(queue, &pods);
    dump.stats = queue.stats();
    dump.in_flight = dump.links.iter().map(|pwq| pwq.in_flight).sum();
    dump.links.sort_by_key(|pwq| pwq.pool);
    dump
}

fn limit(max: usize) -> Option<usize> {
    (max != UNLIMITED).then_some(max)
}

/// Returns the slots that have a limit, or hold an instance back. `pods`: the pod of each pool, by
/// its index.
fn slots(queue: &QueueCore, pods: &[(usize, u32)]) -> Vec<SlotDump> {
    let last = queue.limiter.slots().count().saturating_sub(1);
    let slots = queue.limiter.slots().enumerate().filter_map(|(index, slot)| {
        let (active, max, held) = slot.sizes();
        let place = match queue.limiter.counted_by {
            CountedBy::Queue => SlotPlace::Queue,
            CountedBy::Node if index == last => SlotPlace::NoNode,
            CountedBy::Node => SlotPlace::Node(u32::try_from(index).ok()?),
            CountedBy::Pool => {
                SlotPlace::Pod(pods.iter().find(|(pool, _)| *pool == index).map(|(_, pod)| *pod)?)
            }
        };
        (max != UNLIMITED || held > 0).then_some(SlotDump { place, active, max: limit(max), held })
    });
    slots.collect()
}

/// The counts that the workers of a queue carried a moment ago, by the slot's address.
pub(crate) struct Deferred(BTreeMap<usize, OfSlot>);

#[derive(Clone, Copy, Default)]
struct OfSlot {
    /// Number of instances that were over, before the workers were read.
    over: u64,
    /// Number of instances that had been queued by Reuse, by the slot's count.
    again: u64,
    carried: u64,
    /// Number of instances that the slot doesn't know of.
    more: u64,
}

impl Deferred {
    /// Reads the workers. Takes short locks.
    pub(crate) fn of(queue: &QueueCore) -> Deferred {
        let mut slots = BTreeMap::new();
        let mut groups: Vec<Arc<Group>> = Vec::new();
        for (slot, pwq) in queue.colours.members.lock().all() {
            let (over, again) = (slot.tally.over(), slot.tally.again());
            slots.insert(ptr::from_ref(slot).addr(), OfSlot { over, again, ..OfSlot::default() });
            if let Some(pwq) = pwq {
                if !groups.iter().any(|group| Arc::ptr_eq(group, &pwq.group)) {
                    groups.push(Arc::clone(&pwq.group));
                }
            }
        }
        let pools = groups.iter().flat_map(|group| group.pools.iter());
        let workers: Vec<_> = pools.flat_map(Pool::workers).collect();
        let first: Vec<_> = workers.iter().map(|worker| worker.carry.look()).collect();
        for (worker, first) in workers.iter().zip(first) {
            let now = worker.carry.look();
            let Some(slot) = slots.get_mut(&now.home) else { continue };
            slot.more += now.again();
            // The parts of a number that doesn't change between two rounds existed together at one
            // moment: none of them was on its way from one worker to another, by Reuse. A number
            // that changes counts as in flight.
            if now == first {
                slot.carried += now.many();
            }
        }
        Deferred(slots)
    }

    /// Adds the instances queued here so far, and those of them that are over; carried ends are
    /// over. `known` is the slot's count of those queued.
    pub(crate) fn add_to(
        &self,
        stats: &mut QueueStats,
        slot: &PwqSlot<Pwq>,
        known: fn(&Tally) -> u64,
    ) {
        let (tally, seen) = (&slot.tally, self.0.get(&ptr::from_ref(slot).addr()));
        let OfSlot { over, again, carried, more } = seen.copied().unwrap_or_default();
        // The result is at least the number at one moment since this was made: those over were
        // counted before, and those that came are counted after.
        let in_flight = tally.in_flight().min(tally.ever_came().saturating_sub(over + carried));
        // This comes after: the instances in flight then are among those that were queued. An end
        // that the slot learned of meanwhile isn't counted twice.
        let queued = known(tally) + (again + more).saturating_sub(tally.again());
        stats.queued += queued;
        stats.completed += queued.saturating_sub(in_flight);
    }
}
