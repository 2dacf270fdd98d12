//! Faults: for models that have to fail.

use std::sync::Arc;

use corewise_sync::Unparker;
use corewise_sync::fence::FencePolicy;

use crate::pool::group::Group;
use crate::pwq::Pwq;
use crate::task::claim::{Claimed, Container};
use crate::task::header::LentItem;
use crate::task::header::{Header, Queued};

impl<F: FencePolicy> Group<F> {
    /// Pushes as if the ring were full.
    pub(super) fn push_spilled(self: &Arc<Self>, index: usize, list: u32, queued: Queued) {
        let pool = &self.pools[index];
        let reading = pool.lists.at(list).spill(queued, &pool.word);
        self.has_pushed(index, reading);
    }

    /// Carries out a Want that joins the list, and settles nothing.
    pub(super) fn want_hastily(
        self: &Arc<Self>,
        pool: usize,
        item: LentItem<'_>,
        unparker: Unparker,
    ) {
        self.pools[pool].inner.lock().wants.add(item, unparker);
    }
}

impl Header {
    /// Touches the slot as its next queuer does, as soon as the item has started, and doesn't wait
    /// for lookers.
    pub(super) fn fill_hastily(&self) {
        if !self.state.snapshot().pending() {
            self.job.with_mut(|_| ());
        }
    }

    /// Touches the job slot, as a reader does.
    pub(super) fn touch_job(&self) {
        self.job.with(|_| ());
    }
}

impl LentItem<'_> {
    /// Cancels an item that it takes for found although another thread still has it.
    pub(super) fn cancel_hastily(self) -> bool {
        let now = self.state.snapshot();
        let placed = matches!(self.place(now.seq()), Container::Ring(_));
        if !now.pending() || now.claimed() || !placed || !self.state.claim(now) {
            return false;
        }
        if let Container::Ring(cell) = self.place(now.seq()) {
            // SAFETY: the claim keeps others from the slot.
            if let Some(ticket) = unsafe { self.job() }.ticket.as_ref() {
                let pwq = Pwq::of(ticket);
                let list = pwq.group.pools[pwq.pool].lists.at(ticket.stripe());
                list.ring.take_this(cell, self.pointer());
            }
        }
        drop(Claimed(self.pointer()));
        true
    }

    /// Carries out a [`LentItem::claim`] that doesn't check whether the queuer has filled the slot
    /// yet. Touches the slot as a claimant does, and gives it back.
    pub(super) fn claim_hastily(self) {
        let now = self.state.snapshot();
        if now.pending() && !now.claimed() && self.state.claim(now) {
            self.touch_job();
            self.state.unclaim();
        }
    }
}
