//! What all pool_workqueues of a queue have in common: the queue itself, without its handles.

use std::ptr;
use std::sync::{Arc, Weak};

use corewise_sync::Mutex;
use corewise_sync::atomic::{Ordering, fence};
use corewise_sync::hazard::Hazards;
use corewise_topology::AffinityScope;

use crate::attributes::{Attributes, MAX_ACTIVE_LIMIT, QueueKind};
use crate::error::shielded;
use crate::pools::WorkerPools;
use crate::pwq::Pwq;
use crate::pwq::counts::{Careful, Tally};
use crate::pwq::flush::Colours;
use crate::pwq::limit::{CountedBy, Limiter};
use crate::pwq::limit_policy::{UNLIMITED, effective};
use crate::pwq::report::{self, Deferred};
use crate::pwq::room::Room;
use crate::pwq::submit::push;
use crate::pwq::waiting::{Waiting, Waits, stop_in_turn};
use crate::report::counters::Counters;
use crate::report::{QueueDump, QueueStats};
use crate::task::header::Queued;
use crate::task::vtable::Lent;
use crate::timekeeper::registered::Registered;
use crate::timekeeper::rescuer::Rescuer;

/// What all pwqs of a queue have in common, former pwqs included.
pub(crate) struct QueueCore {
    /// I: number of the queue in its worker pools, never used again; not 0.
    pub(crate) id: u64,
    /// I: the name for reports.
    pub(crate) name: String,
    pub(crate) traits: Traits,
    /// I: who runs its work where no worker can.
    pub(crate) rescuer: Option<Rescuer>,
    pub(crate) colours: Colours<Careful, Pwq>,
    /// Which instances may be active, and which are held back.
    pub(crate) limiter: Limiter<Queued>,
    /// L: is the lock, held while a change is committed and the limiter is told; guards what they are now.
    pub(crate) attributes: Mutex<Attributes>,
    /// The futures that wait to be woken.
    pub(crate) waiting: Waiting<Weak<dyn Waits>>,
    /// What pwqs that are gone had counted.
    pub(crate) former: Counters,
    /// The pools'.
    pub(crate) hazards: Arc<Hazards>,
    /// Keeps the pools open for as long as anything is queued, or can be.
    pub(crate) pools: WorkerPools,
    /// I: the places for closures of `try_spawn`, where there are so many.
    pub(crate) room: Option<Arc<Room>>,
}

/// What a queue is, for good.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Traits {
    /// I: what it is.
    pub(crate) kind: QueueKind,
    /// I: whether it is counted how long its items run.
    pub(crate) timed: bool,
    /// I: how many closures of `try_spawn` it takes at once, if it counts them.
    pub(crate) capacity: Option<usize>,
    /// I: whether it is the queue below another one, which takes work also while it is drained.
    pub(crate) is_below: bool,
}

impl QueueCore {
    /// A queue with a new number. `counted_by`, `places`: see [`Limiter::new`]. Its maximum is still to be
    /// [divided](QueueCore::divide).
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
            waiting: Waiting::new(pools.pods().scope(AffinityScope::CacheShard).len()),
            former: Counters::default(),
            hazards: Arc::clone(pools.hazards()),
            pools: pools.clone(),
            room: traits.capacity.map(Room::new),
        })
    }

    /// How many come before an item that is held back, of an ordered queue.
    pub(crate) fn before(&self, item: Lent<'_>) -> usize {
        let (slot, line) = (self.limiter.slot(0), self.limiter.line_of(0));
        let before = slot.see_held(line, |held| {
            let first = held.iter().take_while(|held| !ptr::eq(*held, &*item));
            first.filter(|held| !held.state.snapshot().claimed()).count()
        });
        before.unwrap_or(0)
    }

    /// The counters of all pwqs, former ones included, and the instances in flight. Each is true,
    /// of slightly different moments.
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

    /// Instances queued and not over, and those ever queued. Those that workers carry count as not over: that
    /// none is in flight is sure, and that some are may be true for a moment longer.
    pub(crate) fn counts(&self) -> (u64, u64) {
        let members = self.colours.members.lock();
        members.all().fold((0, 0), |(in_flight, queued), (slot, _)| {
            (in_flight + slot.tally.in_flight(), queued + slot.tally.queued())
        })
    }

    /// Nothing is queued and nothing runs: true of one moment during the call, where nothing is
    /// queued from outside.
    pub(crate) fn is_empty(&self) -> bool {
        // An item may queue another on a pwq that was looked at already, and end before its own is.
        // Then the number of those ever queued has changed.
        let before = self.counts();
        // Pairs with the Release of the ends that it saw: what those items queued is seen below.
        fence(Ordering::Acquire);
        let after = self.counts();
        before.0 == 0 && before == after
    }

    /// Instances that were let through to a pool and aren't over (a moment ago).
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
        // They come and go too fast to tell.
        self.stats().in_flight().saturating_sub(before.0).max(1)
    }

    /// Divides the maximum among the slots, by its CPUs that can be used now: under the lock of the
    /// attributes, so that the last word stands. `settle` has to follow, and [`QueueCore::warn_of_cut`] once
    /// that is released.
    pub(crate) fn divide(&self, attributes: &Attributes) {
        let max_active = effective(attributes.max_active);
        let usable = match max_active {
            UNLIMITED => Default::default(),
            _ => self.pools.usable_cpus(attributes.cpus.as_ref()),
        };
        self.limiter.set_max_active(max_active, &usable);
    }

    /// Says so where a maximum is more than there can be. With no lock held: a subscriber is the
    /// user's code.
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
        report::of(self, pool)
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

impl AsRef<Colours<Careful, Pwq>> for QueueCore {
    fn as_ref(&self) -> &Colours<Careful, Pwq> {
        &self.colours
    }
}
