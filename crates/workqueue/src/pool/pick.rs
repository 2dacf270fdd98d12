//! Taking particular items out of a pool: a claimed one, one of a certain queue, all of a pool that
//! nobody serves any more.

use std::ptr::NonNull;
use std::sync::Arc;

use corewise_sync::fence::FencePolicy;

use super::group::Group;
use super::publication::Label;
use crate::claim::{Claimed, Place};
use crate::item::{Header, Queued, Running};
use crate::link::Shared;

impl<F: FencePolicy> Group<F> {
    /// Takes an item that the caller has claimed out of the list of a pool; `None` where it isn't
    /// in there (yet, or any more).
    pub(crate) fn unlist(
        self: &Arc<Self>,
        index: usize,
        _stripe: u32,
        item: &Header,
    ) -> Option<Queued> {
        let pool = &self.pools[index];
        let mut inner = pool.inner.lock();
        inner.drain(pool);
        // SAFETY: an item is made `Listed` under the lock of its link's pool. Who pops it starts it,
        // hands it over, or says `Nowhere`, under the same lock. It is claimed and wasn't handed
        // over, so a `Listed` one is in the list.
        let found = (item.place(item.state.snapshot().seq()) == Place::Listed)
            .then(|| unsafe { inner.list.remove(NonNull::from(item)) });
        // What else was in the inbox is in the list now, where a worker of another pod that is about
        // to sleep may have looked before: a transition as any other.
        let action = self.settle(index, &mut inner, false);
        drop(inner);
        self.perform(index, action);
        found
    }

    /// Ends the claim of an item of a pool that is to stay where it is. If a worker's turn came to
    /// take it meanwhile, it is the next one again.
    pub(crate) fn give_back(self: &Arc<Self>, index: usize, _stripe: u32, claimed: Claimed) {
        let pool = &self.pools[index];
        let mut inner = pool.inner.lock();
        inner.drain(pool);
        let header = claimed.header();
        if header.place(header.state.snapshot().seq()) == Place::Nowhere {
            // LetGo by a worker.
            let queued = claimed.release();
            queued.set_place(Place::Listed);
            inner.list.push_front(queued);
        } else {
            // In the list; or its queuer is about to push it. Who takes it out needs this lock.
            claimed.stay();
        }
        let action = self.settle(index, &mut inner, false);
        drop(inner);
        self.perform(index, action);
    }

    /// Takes and starts the oldest item of a queue, for who runs it without being a worker of the
    /// pool: a rescuer.
    pub(crate) fn take_for(self: &Arc<Self>, index: usize, queue: &Shared) -> Option<Running> {
        let pool = &self.pools[index];
        let mut inner = pool.inner.lock();
        inner.drain(pool);
        let is_its = |item: &Header| {
            // SAFETY: the item is in the list, whose lock we hold: its slot is filled, and a claimant
            // writes it only when the item is out of here.
            let job = unsafe { item.job() };
            job.ticket.as_ref().is_some_and(|ticket| ticket.link.shared.id == queue.id)
        };
        let mut running = None;
        // One that runs elsewhere, or is claimed, is somebody else's from here on: the next one.
        while let Some(queued) = inner.list.take_first(is_its) {
            running = queued.start();
            if running.is_some() {
                break;
            }
        }
        let action = self.settle(index, &mut inner, false);
        drop(inner);
        self.perform(index, action);
        running
    }

    /// The oldest items that wait in the list of a pool: `most` of them.
    pub(crate) fn waiting_items(&self, index: usize, most: usize) -> Vec<Label> {
        let inner = self.pools[index].inner.lock();
        // SAFETY: as in `take_for`.
        inner.list.iter().take(most).map(|item| unsafe { item.job() }.label()).collect()
    }

    /// The queues with a rescuer whose items wait in the list of a pool.
    pub(crate) fn waiting_queues(self: &Arc<Self>, index: usize) -> Vec<Arc<Shared>> {
        let inner = self.pools[index].inner.lock();
        let mut queues: Vec<Arc<Shared>> = Vec::new();
        for item in inner.list.iter() {
            // SAFETY: as in `take_for`.
            let ticket = unsafe { item.job() }.ticket.as_ref();
            let Some(queue) = ticket.map(|ticket| &ticket.link.shared) else { continue };
            if queue.rescuer.is_some() && queues.iter().all(|known| known.id != queue.id) {
                queues.push(Arc::clone(queue));
            }
        }
        queues
    }

    /// Cancels what lies in a closed pool without workers. One after the other, each outside the
    /// lock: that runs the user's destructors.
    pub(super) fn refuse(&self, index: usize) {
        loop {
            let refused = {
                let mut inner = self.pools[index].inner.lock();
                // A saturated pod may have given it a worker again.
                let next = if inner.counts.total == 0 { inner.list.pop_front() } else { None };
                self.publish(index, &inner);
                match next {
                    Some(queued) => queued.claim(),
                    None => return,
                }
            };
            drop(refused);
        }
    }

    /// For models that have to fail: takes an item under the lock, and starts it after.
    #[cfg(loom)]
    pub(crate) fn start_unlocked(&self, index: usize) -> Option<Running> {
        let queued = {
            let mut inner = self.pools[index].inner.lock();
            inner.drain(&self.pools[index]);
            inner.list.pop_front()?
        };
        queued.start()
    }
}
