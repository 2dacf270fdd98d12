//! What joins one queue with one pool: the kernel's `pool_workqueue`.
//!
//! An instance that is queued holds a [`Ticket`](crate::pwq::ticket::Ticket): its link, and the colour that
//! it is counted as.
//! Everything that queueing writes (the link's reference count, the tally) lies on lines that only
//! this queue on this pod uses: no line is shared by all CPUs.

pub(crate) mod carried;
pub(crate) mod counts;
pub(crate) mod deferred;
pub(crate) mod flush;
pub(crate) mod limit;
pub(crate) mod limit_policy;
pub(crate) mod limit_slot;
mod part;
pub(crate) mod slot;
pub(crate) mod table;
pub(crate) mod ticket;
pub(crate) mod waiting;

use std::collections::HashSet;
use std::ptr::{self, NonNull};
use std::sync::{Arc, Weak};

use corewise_sync::atomic::{AtomicU64, Ordering};
use corewise_sync::fence::FullFence;
use corewise_sync::hazard::Hazards;
use corewise_sync::{CachePadded, Mutex};
use corewise_topology::{AffinityScope, CpuSet};

use crate::attributes::QueueKind;
use crate::pool::Pool;
use crate::pool::excuse::Excuse;
use crate::pool::group::Group;
use crate::pools::WorkerPools;
use crate::pools::groups::Lease;
use crate::pools::rescuer::Rescuer;
use crate::pwq::carried::Carried;
use crate::pwq::flush::Colours;
use crate::pwq::limit::{CountedBy, Limiter};
use crate::pwq::limit_policy::UNLIMITED;
use crate::pwq::limit_slot::Slot;
use crate::pwq::part::Part;
use crate::pwq::slot::{Seat, Tied};
use crate::pwq::ticket::Ticket;
use crate::pwq::waiting::{Waiting, Waits};
use crate::task::claim::Place;
use crate::task::header::{Header, Queued};
use crate::task::vtable::Lent;

/// What all links of a queue have in common, former links included.
pub(crate) struct Shared {
    /// I: number of the queue in its worker pools, never used again; not 0.
    pub(crate) id: u64,
    /// I: the name for reports.
    pub(crate) name: String,
    /// I: what it is.
    pub(crate) kind: QueueKind,
    /// I: whether a freeze of the pools holds its work back.
    pub(crate) freezable: bool,
    /// I: whether its items aren't counted for the cores that they compute on.
    pub(crate) cpu_intensive: bool,
    /// I: whether it is counted how long its items run.
    pub(crate) timed: bool,
    /// I: whether it is the queue below another one, which takes work also while it is drained.
    pub(crate) is_below: bool,
    /// I: who runs its work where no worker can.
    pub(crate) rescuer: Option<Rescuer>,
    pub(crate) colours: Colours,
    /// Who may be active, and who waits.
    pub(crate) limiter: Limiter<Queued>,
    /// L: is the lock, held while the limiter is told; guards what it was told to divide.
    pub(crate) limit: Mutex<Limit>,
    /// The futures that wait to be woken.
    pub(crate) waiting: Waiting<Weak<dyn Waits>>,
    /// What links that are gone had counted.
    former: Counters,
    /// The pools'.
    pub(crate) hazards: Arc<Hazards>,
    /// Keeps the pools open for as long as anything is queued, or can be.
    pub(crate) pools: WorkerPools,
}

/// How many instances of a queue may be active, and which CPUs they are divided by.
pub(crate) struct Limit {
    /// [`UNLIMITED`] where there is none.
    pub(crate) max_active: usize,
    /// As in the attributes.
    pub(crate) cpus: Option<CpuSet>,
}

/// What a queue is, for good.
pub(crate) struct Traits {
    pub(crate) kind: QueueKind,
    pub(crate) freezable: bool,
    pub(crate) cpu_intensive: bool,
    pub(crate) timed: bool,
    pub(crate) is_below: bool,
    pub(crate) rescuer: Option<Rescuer>,
}

impl Shared {
    /// A queue with a new number. `counted_by`, `places`: see [`Limiter::new`].
    pub(crate) fn new(
        name: String,
        pools: &WorkerPools,
        Traits { kind, freezable, cpu_intensive, timed, is_below, rescuer }: Traits,
        (counted_by, places): (CountedBy, usize),
    ) -> Arc<Shared> {
        Arc::new(Shared {
            id: pools.next_queue(),
            name,
            kind,
            freezable,
            cpu_intensive,
            timed,
            is_below,
            rescuer,
            colours: Colours::new(),
            limiter: Limiter::new(counted_by, places),
            limit: Mutex::new(Limit { max_active: UNLIMITED, cpus: None }),
            waiting: Waiting::new(pools.pods().scope(AffinityScope::CacheShard).len()),
            former: Counters::default(),
            hazards: Arc::clone(pools.hazards()),
            pools: pools.clone(),
        })
    }

    /// The timekeeper found an instance that keeps a core from others. It doesn't know by which
    /// link it came, so it is counted here.
    pub(crate) fn caught(&self, why: Excuse) {
        let counter = match why {
            Excuse::Asleep => &self.former.blocked_untold,
            _ => &self.former.cpu_intensive,
        };
        counter.fetch_add(1, Ordering::Relaxed);
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

    /// Its rescuer was called.
    pub(crate) fn mayday(&self) {
        self.former.maydays.fetch_add(1, Ordering::Relaxed);
    }

    /// Its rescuer has run an instance.
    pub(crate) fn rescued(&self) {
        self.former.rescued.fetch_add(1, Ordering::Relaxed);
    }

    /// The counters of all links, former ones included, and the instances in flight. Each is true,
    /// of slightly different moments.
    pub(crate) fn totals(&self) -> Totals {
        let carried = Carried::of(self);
        let mut totals = Totals::default();
        // All under one lock: what a link has counted goes to `former` when it is collected.
        let members = self.colours.members.lock();
        for (seat, link) in members.all() {
            // In this order: what is in flight then is among those that were queued.
            totals.in_flight += carried.in_flight(seat);
            totals.queued += carried.queued(seat, seat.tally.queued());
            link.into_iter().for_each(|link| link.counters.add_to(&mut totals));
        }
        self.former.add_to(&mut totals);
        totals
    }

    /// Instances queued and not over, and those ever queued. What workers carry counts as not over: that
    /// none is in flight is sure, and that some are may be true for a moment longer.
    pub(crate) fn counts(&self) -> (u64, u64) {
        let members = self.colours.members.lock();
        members.all().fold((0, 0), |(in_flight, queued), (seat, _)| {
            (in_flight + seat.tally.in_flight(), queued + seat.tally.queued())
        })
    }
}

/// Counters of a link.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    /// A: statistics: instances queued here that ran in another pod.
    pub(crate) overflowed: AtomicU64,
    /// A: statistics: instances found to compute for long.
    cpu_intensive: AtomicU64,
    /// A: statistics: instances found asleep.
    blocked_untold: AtomicU64,
    /// A: statistics: calls for the rescuer.
    maydays: AtomicU64,
    /// A: statistics: instances run by the rescuer.
    rescued: AtomicU64,
    /// A: statistics: instances queued here that were cancelled.
    pub(crate) cancelled: AtomicU64,
    /// A: statistics: nanoseconds that instances queued here have run, where the queue is timed.
    pub(crate) run_ns: AtomicU64,
    /// A: statistics: instances queued here that were run by who waited for them.
    pub(crate) taken_back: AtomicU64,
}

/// Plain numbers of [`Counters`], summed.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Totals {
    pub(crate) queued: u64,
    pub(crate) overflowed: u64,
    pub(crate) cpu_intensive: u64,
    pub(crate) blocked_untold: u64,
    pub(crate) maydays: u64,
    pub(crate) rescued: u64,
    pub(crate) cancelled: u64,
    pub(crate) run_ns: u64,
    pub(crate) taken_back: u64,
    /// Instances queued and not over.
    pub(crate) in_flight: u64,
}

impl Counters {
    fn add_to(&self, totals: &mut Totals) {
        totals.overflowed += self.overflowed.load(Ordering::Relaxed);
        totals.cpu_intensive += self.cpu_intensive.load(Ordering::Relaxed);
        totals.blocked_untold += self.blocked_untold.load(Ordering::Relaxed);
        totals.maydays += self.maydays.load(Ordering::Relaxed);
        totals.rescued += self.rescued.load(Ordering::Relaxed);
        totals.cancelled += self.cancelled.load(Ordering::Relaxed);
        totals.run_ns += self.run_ns.load(Ordering::Relaxed);
        totals.taken_back += self.taken_back.load(Ordering::Relaxed);
    }
}

/// How many stripes the counts of a link have at most.
const MAX_STRIPES: usize = 16;

/// One queue on one pool.
pub(crate) struct Link {
    pub(crate) counters: CachePadded<Counters>,
    /// I: the queue.
    pub(crate) shared: Arc<Shared>,
    /// I: the pools of the queue's attributes, as they were when this link was made.
    pub(crate) group: Arc<Group>,
    /// I: which of them.
    pub(crate) pool: usize,
    /// I: that one.
    pub(crate) at: Part<Group, Pool<FullFence>>,
    /// I: the slot of the limiter that its instances are counted in.
    pub(crate) slot: Part<Shared, Slot<Queued>>,
    /// Keeps the pools open.
    _lease: Arc<Lease>,
}

impl Link {
    /// Joins a queue with a pool. From here on flushes look at it. The seat is the queue's.
    pub(crate) fn seated(
        shared: &Arc<Shared>,
        lease: &Arc<Lease>,
        pool: usize,
    ) -> NonNull<Seat<Link>> {
        let group = &lease.group;
        let spec = &group.pools[pool].spec;
        let link = Link {
            counters: CachePadded::default(),
            shared: Arc::clone(shared),
            group: Arc::clone(group),
            pool,
            at: Part::of(group, |group| &group.pools[pool]),
            slot: Part::of(shared, |shared| {
                shared.limiter.slot(shared.limiter.slot_of(pool, spec.node))
            }),
            _lease: Arc::clone(lease),
        };
        shared.colours.fill(spec.cpus.len().clamp(1, MAX_STRIPES), link)
    }

    /// What was counted here, and on its seat since it has that.
    pub(crate) fn totals(&self, seat: &Seat<Link>, carried: &Carried) -> Totals {
        // In this order: see `Shared::totals`.
        let in_flight = carried.in_flight(seat);
        let queued = carried.queued(seat, seat.tally.queued_on_link());
        let mut totals = Totals { in_flight, queued, ..Totals::default() };
        self.counters.add_to(&mut totals);
        totals
    }

    /// What stands for it in that slot, among those that wait.
    pub(crate) fn line(&self) -> usize {
        self.shared.limiter.line_of(ptr::from_ref(self) as usize)
    }

    /// Whether no CPU of its pod can be used (a moment ago).
    #[inline]
    pub(crate) fn away(&self) -> bool {
        self.at.reading().away()
    }

    /// Whether its pod is for no work that may run anywhere (a moment ago).
    #[inline]
    pub(crate) fn away_or_aside(&self) -> bool {
        let reading = self.at.reading();
        reading.away() || reading.aside()
    }

    /// The colours of what the limiter holds back here.
    pub(crate) fn colours_held(&self) -> HashSet<u8> {
        // SAFETY: each is in the list, whose lock is held: its slot is filled, and a claimant writes it
        // only when the item is out of there.
        let colour = |held: &Header| unsafe { held.job() }.ticket.as_ref().map(Ticket::colour);
        let seen = self.slot.see_held(self.line(), |held| held.iter().filter_map(colour).collect());
        seen.unwrap_or_default()
    }

    /// Takes an item that the caller has claimed out of the list of those that the limiter holds
    /// back; `None` where it has left that.
    pub(crate) fn release(&self, item: Lent<'_>) -> Option<Queued> {
        self.slot.with_held(self.line(), |held| {
            let here = item.place(item.state.snapshot().seq()) == Place::Held;
            // SAFETY: an item is made `Held` under the slot's lock, in the list of its link's line,
            // and who takes it out of that says otherwise under the same lock.
            here.then(|| unsafe { held.remove(item.pointer()) })
        })
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        // Who has pushed what was queued here may not be back yet.
        self.shared.hazards.retire(Arc::clone(&self.group) as _);
    }
}

impl Tied for Link {
    fn collected(&self) {
        let mut totals = Totals::default();
        self.counters.add_to(&mut totals);
        let former = &self.shared.former;
        former.overflowed.fetch_add(totals.overflowed, Ordering::Relaxed);
        former.cancelled.fetch_add(totals.cancelled, Ordering::Relaxed);
        former.run_ns.fetch_add(totals.run_ns, Ordering::Relaxed);
        former.taken_back.fetch_add(totals.taken_back, Ordering::Relaxed);
    }
}

impl AsRef<Colours> for Shared {
    fn as_ref(&self) -> &Colours {
        &self.colours
    }
}
