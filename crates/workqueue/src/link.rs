//! What joins one queue with one pool: the kernel's `pool_workqueue`.
//!
//! An instance that is queued holds a [`Ticket`]: its link, and the colour that it is counted as.
//! Everything that queueing writes (the link's reference count, the tally) lies on lines that only
//! this queue on this pod uses: no line is shared by all CPUs.

use std::sync::Arc;

use corewise_sync::CachePadded;
use corewise_sync::atomic::{AtomicU64, Ordering};

use crate::colours::{Colours, Counted, Tally};
use crate::pool::group::Group;

/// What all links of a queue have in common, former links included.
pub(crate) struct Shared {
    /// I: number of the queue in its worker pools, never used again; not 0.
    pub(crate) id: u64,
    /// I: the name for reports.
    pub(crate) name: String,
    pub(crate) colours: Colours,
    /// What links that are gone had counted.
    former: Counters,
}

impl Shared {
    pub(crate) fn new(id: u64, name: String) -> Arc<Shared> {
        let colours = Colours::new();
        Arc::new(Shared { id, name, colours, former: Counters::default() })
    }

    /// The counters of all links, former ones included, and the instances in flight. Each is true,
    /// of slightly different moments.
    pub(crate) fn totals(&self) -> Totals {
        let mut totals = Totals::default();
        self.former.add_to(&mut totals);
        self.colours.each(|link| {
            link.counters.add_to(&mut totals);
            totals.in_flight += link.tally.in_flight() as u64;
        });
        totals
    }
}

/// Counters of a link.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    /// A: statistics: instances ever queued here.
    queued: AtomicU64,
    /// A: statistics: instances queued here that ran in another pod.
    overflowed: AtomicU64,
}

/// Plain numbers of [`Counters`], summed.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Totals {
    pub(crate) queued: u64,
    pub(crate) overflowed: u64,
    /// Instances queued and not over.
    pub(crate) in_flight: u64,
}

impl Counters {
    fn add_to(&self, totals: &mut Totals) {
        totals.queued += self.queued.load(Ordering::Relaxed);
        totals.overflowed += self.overflowed.load(Ordering::Relaxed);
    }
}

/// One queue on one pool.
pub(crate) struct Link {
    tally: CachePadded<Tally>,
    counters: CachePadded<Counters>,
    /// I: the queue.
    pub(crate) shared: Arc<Shared>,
    /// I: the pools of the queue's attributes, as they were when this link was made.
    pub(crate) group: Arc<Group>,
    /// I: which of them.
    pub(crate) pool: usize,
}

impl Link {
    /// Joins a queue with a pool. From here on flushes look at it.
    pub(crate) fn new(shared: &Arc<Shared>, group: &Arc<Group>, pool: usize) -> Arc<Link> {
        let link = Arc::new(Link {
            tally: CachePadded::new(Tally::new()),
            counters: CachePadded::default(),
            shared: Arc::clone(shared),
            group: Arc::clone(group),
            pool,
        });
        shared.colours.add(&link);
        link
    }

    /// What was counted here.
    pub(crate) fn totals(&self) -> Totals {
        let mut totals = Totals::default();
        self.counters.add_to(&mut totals);
        totals.in_flight = self.in_flight() as u64;
        totals
    }

    /// Instances queued here and not over (a moment ago).
    pub(crate) fn in_flight(&self) -> usize {
        self.tally.in_flight()
    }
}

impl Counted for Link {
    fn tally(&self) -> &Tally {
        &self.tally
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        let mut totals = Totals::default();
        self.counters.add_to(&mut totals);
        let former = &self.shared.former;
        former.queued.fetch_add(totals.queued, Ordering::Relaxed);
        former.overflowed.fetch_add(totals.overflowed, Ordering::Relaxed);
    }
}

/// Counts one instance in its queue, from queueing until dropped.
pub(crate) struct Ticket {
    /// I: where it was queued.
    pub(crate) link: Arc<Link>,
    colour: usize,
}

impl Ticket {
    pub(crate) fn new(link: &Arc<Link>) -> Ticket {
        let colour = link.shared.colours.enter(&link.tally);
        link.counters.queued.fetch_add(1, Ordering::Relaxed);
        Ticket { link: Arc::clone(link), colour }
    }

    /// The instance runs away from its home pod; counted.
    pub(crate) fn overflowed(&self) {
        self.link.counters.overflowed.fetch_add(1, Ordering::Relaxed);
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.link.shared.colours.leave(&self.link.tally, self.colour);
    }
}
