//! What would be wrong: for models that have to fail.

use std::sync::Arc;

use corewise_sync::Unparker;
use corewise_sync::fence::FencePolicy;

use crate::pool::group::Group;
use crate::task::header::Header;
use crate::task::running::Running;
use crate::task::vtable::Lent;

impl<F: FencePolicy> Group<F> {
    /// A Drain that says that the list has something after it has emptied the inbox.
    pub(super) fn drain_late(&self) {
        for stripe in self.pools.iter().flat_map(|pool| pool.stripes.iter()) {
            let mut stripe = stripe.lock();
            if stripe.has_pushed() {
                stripe.empties_inbox();
                stripe.says_listed();
            }
        }
    }

    /// Takes an item under the lock, and starts it after.
    pub(super) fn start_unlocked(&self, index: usize) -> Option<Running> {
        let queued = self.pools[index].stripes.at(0).lock().pop()?;
        queued.start()
    }

    /// A Want that comes onto the list, and settles nothing.
    pub(super) fn want_hastily(self: &Arc<Self>, pool: usize, item: Lent<'_>, unparker: Unparker) {
        self.pools[pool].inner.lock().wants.add(item, unparker);
    }
}

impl Header {
    /// Touches the slot as its next queuer does, as soon as the item has started, and doesn't wait for
    /// those who look.
    pub(super) fn fill_hastily(&self) {
        if !self.state.snapshot().pending() {
            self.job.with_mut(|_| ());
        }
    }

    /// As one does that reads the slot.
    pub(super) fn touch_job(&self) {
        self.job.with(|_| ());
    }
}

impl Lent<'_> {
    /// A [`Lent::try_claim`] that doesn't look whether the queuer has filled the slot yet. Touches the slot as a
    /// claimant does, and gives it back.
    pub(super) fn claim_hastily(self) {
        let now = self.state.snapshot();
        if now.pending() && !now.claimed() && self.state.claim(now) {
            self.touch_job();
            self.state.unclaim();
        }
    }
}
