//! Taking particular items out of a pool: a claimed one, one of a certain queue, all of a pool that
//! nobody serves any more.

use std::collections::BTreeSet;

use corewise_sync::fence::FencePolicy;
use corewise_sync::inbox::Node;

use super::cpu_list::CpuList;
use super::group::Group;
use crate::task::claim::Place;
use crate::task::header::{Header, Queued};
use crate::task::publication::Label;
use crate::task::running::Running;
use crate::task::ticket::{Awaited, Ticket};
use crate::task::vtable::Lent;

/// Whether a flush of the queue with this number waits for an item, which lies in a list whose lock is held.
fn is_awaited(item: &Header, queue: u64, awaited: Awaited) -> bool {
    // SAFETY: its slot is filled, and a claimant writes it only when the item is out of the list.
    let ticket = unsafe { item.job() }.ticket.as_ref();
    ticket.is_some_and(|ticket| ticket.home().queue == queue && awaited.has(ticket.colour()))
}

/// How many items of a list are looked through for one that a flush waits for.
const NEAR: usize = 64;

impl<F: FencePolicy> Group<F> {
    /// Takes an item that the caller has claimed out of the list of a pool; `None` where it isn't
    /// in there (yet, or any more).
    pub(crate) fn unlist(
        &self,
        index: usize,
        list: u32,
        item: Lent<'_>,
        place: Place,
    ) -> Option<Queued> {
        let list = self.pools[index].lists.at(list);
        if let Place::Ring(cell) = place {
            // It is out where that succeeds, and nobody else has it or gets it. Else its appender hasn't filled
            // the cell yet, or its taker will say `Nowhere`.
            let found = list.ring.take_this(cell, item.pointer());
            // SAFETY: it was in the ring, and is out.
            return found.then(|| unsafe { Queued::from_raw(item.pointer()) });
        }
        let mut overflow = list.lock();
        overflow.drain();
        // SAFETY: an item is made `Listed` under the lock of the list of its link's pool that its
        // ticket names. Its popper starts it, hands it over, puts it into the ring or says `Nowhere`, under the
        // same lock. It is claimed and wasn't handed over, so a `Listed` one is in the list.
        (item.place(item.state.snapshot().seq()) == Place::Listed)
            .then(|| unsafe { overflow.remove(item.pointer()) })
    }

    /// Takes and starts the oldest item of a queue (of one of the lists), for a thread that runs it without
    /// being a worker of the pool: a rescuer.
    pub(crate) fn take_for(&self, index: usize, queue: u64) -> Option<Running> {
        let is_its = |item: &Header| {
            // SAFETY: the item is held, or in the list whose lock we hold: its slot is filled, and a claimant
            // writes it only when the item is out of here.
            unsafe { item.job() }.label(item.table).queue == queue
        };
        self.pools[index].lists.iter().find_map(|list| list.start_first(usize::MAX, is_its))
    }

    /// Shows each item that waits in a pool with its ticket, and whether it is one of those that
    /// [`Group::take_awaited`] looks at.
    pub(crate) fn see_waiting(&self, index: usize, mut see: impl FnMut(&Header, &Ticket, bool)) {
        for list in self.pools[index].lists.iter() {
            let mut at = 0;
            list.see(|item| {
                // SAFETY: as in `take_for`.
                if let Some(ticket) = unsafe { item.job() }.ticket.as_ref() {
                    see(item, ticket, at < NEAR);
                }
                at += 1;
                true
            });
        }
    }

    /// Whether [`Group::take_awaited`] finds an item, and no worker can come for it.
    pub(crate) fn calls_for(&self, index: usize, queue: u64, awaited: Awaited) -> bool {
        let found = |list: &CpuList<F>| {
            let (mut found, mut seen) = (false, 0);
            list.see(|item| {
                seen += 1;
                found = is_awaited(item, queue, awaited);
                !found && seen < NEAR
            });
            found
        };
        !awaited.any && self.is_short(index) && self.pools[index].lists.iter().any(found)
    }

    /// Takes and starts an item that a flush of the queue waits for, for the flusher. Only the oldest of
    /// each list are looked at, so that all of them take no longer than there are items.
    pub(crate) fn take_awaited(
        &self,
        index: usize,
        queue: u64,
        awaited: Awaited,
    ) -> Option<Running> {
        let is_its = |item: &Header| is_awaited(item, queue, awaited);
        self.pools[index].lists.iter().find_map(|list| list.start_first(NEAR, is_its))
    }

    /// The oldest items that wait in a pool, as far as that is known: `most` of them.
    pub(crate) fn waiting_items(&self, index: usize, most: usize) -> Vec<Label> {
        let mut items = Vec::new();
        for list in self.pools[index].lists.iter() {
            list.see(|item| {
                if items.len() < most {
                    // SAFETY: as in `take_for`.
                    items.push(unsafe { item.job() }.label(item.table));
                }
                items.len() < most
            });
        }
        items
    }

    /// The numbers of the queues whose items wait in a pool.
    pub(crate) fn waiting_queues(&self, index: usize) -> BTreeSet<u64> {
        let mut queues = BTreeSet::new();
        for list in self.pools[index].lists.iter() {
            list.see(|item| {
                // SAFETY: as in `take_for`.
                queues.extend(
                    unsafe { item.job() }.ticket.as_ref().map(|ticket| ticket.home().queue),
                );
                true
            });
        }
        queues
    }

    /// Cancels what lies in a closed pool without workers. One after the other, each outside the
    /// locks: that runs the user's destructors.
    pub(super) fn refuse(&self, index: usize) {
        let pool = &self.pools[index];
        loop {
            // Both locks: a saturated pod may give the pool a worker again, and a claimant is to
            // find it out of the list.
            let inner = pool.inner.lock();
            let claim_next = || pool.lists.iter().find_map(|list| list.take_any(Queued::claim));
            let Some(refused) = (inner.counts.total == 0).then(claim_next).flatten() else {
                return;
            };
            drop(inner);
            drop(refused);
        }
    }
}
