//! A store that is almost full: data is refused while there is still room for all that was taken,
//! and for what gives room back.

use std::sync::Arc;

use tokio::time::{Instant, timeout_at};

use super::{Fault, Volume};
use crate::format::BLOCK;
use crate::policy;

impl Volume {
    /// Measures the store's room anew. Returns how many bytes wait for the store.
    pub(super) async fn measure(&self) -> u64 {
        let before = self.not_stored();
        let room = self.store.room().await;
        let (pending, budget) = {
            let mut state = self.state.write();
            // Of a batch that came into the store meanwhile it isn't known whether the room has it:
            // it counts twice then, and never in neither.
            let pending = self.not_stored().max(before);
            state.budget = room.map_or(u64::MAX, |room| policy::budget(room, pending));
            (pending, state.budget)
        };
        // So that a few blocks more or fewer are no news.
        if budget >= self.tuning.batch as u64 * BLOCK {
            self.told_full(None);
        }
        pending
    }

    /// Waits until there is room for so many bytes of data, which somebody else may take. An error:
    /// the store is full.
    pub(super) async fn find_room(self: &Arc<Self>, bytes: u64) -> Result<(), Fault> {
        if bytes <= self.state.read().budget {
            return Ok(());
        }
        let until = Instant::now() + self.tuning.patience;
        loop {
            let mut durable = self.durable.subscribe();
            if *durable.borrow() == u64::MAX {
                return Err(self.why_dead());
            }
            let pending = self.measure().await;
            if bytes <= self.state.read().budget {
                return Ok(());
            }
            // Where some is on its way, it counts for more room than it takes.
            let is_over = pending == 0 || self.store.is_full() || Instant::now() >= until;
            if is_over {
                let why = self.lacking().await;
                self.told_full(Some(why.clone()));
                return Err(Fault::Full(why));
            }
            self.seal(&mut self.state.write());
            // An error: looks once more, and gives up.
            let _ = timeout_at(until, durable.changed()).await;
        }
    }

    async fn lacking(&self) -> String {
        match self.store.room().await {
            Some(room) => format!(
                "{} of {} bytes are free, and {} are kept for trims and deletions: free some there, or trim",
                room.free,
                room.total,
                policy::kept(room)
            ),
            None => "free some there, or trim".into(),
        }
    }
}
