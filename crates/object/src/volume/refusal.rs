//! Whether the store takes what is written: one that refuses it, or is silent, is reported; and where it is almost full,
//! data is refused while there is still room for all that was taken, and for what gives room back.

use std::sync::Arc;
use std::time::Duration;

use corewise_sync::time::wall;
use tokio::time::{Instant, sleep, timeout_at};

use super::policy;
use super::{Fault, Volume};
use crate::events::ObjectEvent;
use crate::format::BLOCK;

/// Pause between two looks while something waits for the store.
const LOOK: Duration = Duration::from_secs(1);

/// Looks in a row at which the store has taken nothing before that is reported: after a request
/// failed, and without an answer. They are counted, so a pause of the server is one look.
const FAILED: u32 = 2;
const SILENT: u32 = 10;

/// Why the store takes no writes.
#[derive(Debug, Default)]
pub(super) struct Refusal {
    /// There is no room for them.
    full: Option<String>,
    /// Those that were taken from clients don't get there.
    stuck: Option<String>,
    /// When the first of both began, since 1970.
    since: Duration,
}

impl Refusal {
    fn why(&self) -> Option<&String> {
        self.stuck.as_ref().or(self.full.as_ref())
    }

    pub(super) fn full(&self) -> Option<String> {
        self.full.clone()
    }

    pub(super) fn stuck(&self) -> Option<String> {
        self.stuck.clone()
    }
}

impl Volume {
    /// Why the store takes no writes, and since when, as time since 1970.
    pub(crate) fn refusal(&self) -> Option<(String, Duration)> {
        if self.has_ended() {
            return None;
        }
        let refusal = self.refusal.lock();
        Some((refusal.why()?.clone(), refusal.since))
    }

    /// Bytes of changes that aren't in the store yet.
    pub(crate) fn not_stored(&self) -> u64 {
        (self.tuning.dirty - self.room.available_permits()) as u64 * BLOCK
    }

    /// Reports a store that takes nothing of what waits for it, and the end of that.
    pub(super) async fn watch_writes(self: Arc<Self>) {
        loop {
            self.sent.notified().await;
            let (mut last, mut looks) = (None, 0);
            loop {
                let (waits, ended) = {
                    let state = self.state.read();
                    (!state.sealed.is_empty(), state.dead.is_some())
                };
                if ended {
                    return;
                }
                // Nobody asks for room where clients write no more.
                if self.refusal.lock().full.is_some() {
                    self.measure().await;
                }
                let is_full = self.refusal.lock().full.is_some();
                let durable = *self.durable.borrow();
                let is_still = last.replace(durable) == Some(durable);
                if !waits || !is_still {
                    self.told_stuck(None);
                }
                if !waits && !is_full {
                    break;
                }
                looks = if waits && is_still { looks + 1 } else { 0 };
                let trouble = self.store.trouble();
                if looks >= SILENT || looks >= FAILED && !trouble.is_empty() {
                    let why = trouble.strip_prefix(": ").unwrap_or("it doesn't answer");
                    self.told_stuck(Some(why.to_owned()));
                }
                sleep(LOOK).await;
            }
        }
    }

    fn told_stuck(&self, why: Option<String>) {
        match (self.note_refusal(|refusal| &mut refusal.stuck, why.clone()), why) {
            (false, Some(why)) => {
                tracing::error!(device = self.device(), at = %self.store, "the object store takes no writes: {why}. Is it read-only or full, may this user write there, does it answer? The waiting writes are sent once it does");
            }
            (true, None) => {
                tracing::warn!(device = self.device(), at = %self.store, "the object store takes writes again");
            }
            _ => {}
        }
    }

    /// Changes are refused for lack of room, or aren't: the log is told once.
    pub(super) fn told_full(&self, why: Option<String>) {
        match (self.note_refusal(|refusal| &mut refusal.full, why.clone()), why) {
            (false, Some(why)) => {
                tracing::warn!(device = self.device(), at = %self.store, "the object store is full, so writes are refused: {why}");
                // The watch ends it.
                self.sent.notify_one();
            }
            (true, None) => {
                tracing::warn!(device = self.device(), at = %self.store, "the object store has room again")
            }
            _ => {}
        }
    }

    /// Sets one of the reasons, and tells the observer of the first one and of the end of the last.
    /// Returns whether there was one before.
    fn note_refusal(
        &self,
        which: impl FnOnce(&mut Refusal) -> &mut Option<String>,
        why: Option<String>,
    ) -> bool {
        let (was, event) = {
            let mut refusal = self.refusal.lock();
            let before = refusal.why().is_some();
            let was = std::mem::replace(which(&mut refusal), why).is_some();
            let event = match (before, refusal.why().cloned()) {
                (false, Some(why)) => {
                    refusal.since = wall();
                    Some(ObjectEvent::Unwritable { why })
                }
                (true, None) => Some(ObjectEvent::Writable),
                _ => None,
            };
            (was, event)
        };
        event.iter().for_each(|event| self.tell(event));
        was
    }

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
