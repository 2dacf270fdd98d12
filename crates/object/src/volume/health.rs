//! Health of a volume that is served, and its reports to the observer.
//!
//! * The store's writes: a store that refuses them, or is silent, is reported. If it is almost
//!   full, data is refused while there is still room for all accepted writes, and for operations
//!   that free room.
//! * The identity of the store: whether it is still the one that was opened, continuously for a
//!   folder, and at an orderly end.
//! * Flushes while the flush file isn't what it was: `../local/README.md` has the protocol.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use corewise_sync::time::wall;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::{Fault, Volume, policy};
use crate::format::{BLOCK, Changes};
use crate::local::{FileOut, Local};
use crate::store::Presence;

/// The remedy for a folder that isn't where it was, as a sentence without its full stop.
pub(super) const PUT_BACK: &str =
    "Put the folder back in its place, or change the location before the next start";

/// An event of an open volume.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ObjectEvent {
    /// Another server has opened the volume: this one no longer serves it.
    Fenced {
        /// The reason, in words.
        why: String,
    },
    /// The writes of this server are gone from the store: they were deleted, or an older state was
    /// restored. This server no longer serves the volume.
    Lost {
        /// The reason, in words.
        why: String,
    },
    /// An object with data of the volume is missing from the store, or damaged: reads of that data
    /// fail. Only the first one is reported.
    Damaged {
        /// The reason, in words.
        why: String,
    },
    /// The [flush file](crate::ObjectOptions::flush_file) isn't what it was: it was unlinked,
    /// renamed, replaced, truncated or overwritten, or it can't be written. Flushes wait for the
    /// store meanwhile, and lose nothing by that.
    FlushFileOut {
        /// The reason, in words.
        why: String,
    },
    /// Flushes go to the flush file again.
    FlushFileBack,
    /// The folder of the volume isn't at its location any more: it was renamed, or its file system
    /// unmounted. Writes still reach the folder that was opened.
    Moved {
        /// The reason, in words.
        why: String,
    },
    /// The store takes no writes: it refuses them, is full, or doesn't answer. Accepted writes wait
    /// for it.
    Unwritable {
        /// The reason, in words.
        why: String,
    },
    /// The store takes writes again.
    Writable,
}

type ObserverFn = dyn Fn(&ObjectEvent) + Send + Sync;

/// The function that gets the events.
#[derive(Clone, Default)]
pub(crate) struct Observer(Option<Arc<ObserverFn>>);

impl Observer {
    pub(crate) fn new(observer: impl Fn(&ObjectEvent) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(observer)))
    }

    pub(crate) fn tell(&self, event: &ObjectEvent) {
        if let Some(observer) = &self.0 {
            observer(event);
        }
    }
}

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "an observer" } else { "none" })
    }
}

/// Pause between two checks: of the store while something waits for it, and of the folder of a
/// volume in use.
const LOOK: Duration = Duration::from_secs(1);

/// Number of successive checks without progress after which the store is reported: after a failed
/// request, and without an answer. They are counted, so that a pause of the server is one check.
const FAILED: u32 = 2;
const SILENT: u32 = 10;

/// A store that takes no writes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoreRefusal {
    /// The reason, in words.
    pub why: String,
    /// Time of the beginning, since 1970.
    pub since: Duration,
}

/// The reasons why the store takes no writes.
#[derive(Debug, Default)]
pub(super) struct Refusal {
    /// Message that the store has no room.
    full: Option<String>,
    /// Message that accepted writes don't reach the store.
    stuck: Option<String>,
    /// Time at which the first of both began, since 1970.
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
    /// Returns why the store takes no writes, and since when.
    pub(crate) fn refusal(&self) -> Option<StoreRefusal> {
        if self.has_ended() {
            return None;
        }
        let refusal = self.refusal.lock();
        Some(StoreRefusal { why: refusal.why()?.clone(), since: refusal.since })
    }

    /// Returns the bytes of changes that aren't in the store yet.
    pub(crate) fn not_stored(&self) -> u64 {
        (self.tuning.dirty - self.room.available_permits()) as u64 * BLOCK
    }

    /// Reports a store that takes none of the waiting writes, and the end of that.
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
                // If clients have stopped writing, nothing else asks for room.
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
                    let why = trouble.strip_prefix(": ").unwrap_or("the store doesn't answer");
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

    /// Records whether changes are refused for lack of room, and logs each change of that once.
    pub(super) fn told_full(&self, why: Option<String>) {
        match (self.note_refusal(|refusal| &mut refusal.full, why.clone()), why) {
            (false, Some(why)) => {
                tracing::warn!(device = self.device(), at = %self.store, "the object store is full, so writes are refused: {why}");
                // The watch ends the refusal.
                self.sent.notify_one();
            }
            (true, None) => {
                tracing::warn!(device = self.device(), at = %self.store, "the object store has room again")
            }
            _ => {}
        }
    }

    /// Sets one of the reasons, and reports the first one and the end of the last to the observer.
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

    /// Measures the store's room anew. Returns the bytes that wait for the store.
    pub(super) async fn measure(&self) -> u64 {
        let before = self.not_stored();
        let room = self.store.room().await;
        let (pending, budget) = {
            let mut state = self.state.write();
            // A batch that reached the store meanwhile may or may not be in the measured room. So
            // it may count twice, and never not at all.
            let pending = self.not_stored().max(before);
            state.budget = room.map_or(u64::MAX, |room| policy::budget(room, pending));
            (pending, state.budget)
        };
        // The threshold keeps a few blocks from changing the state.
        if budget >= self.tuning.batch as u64 * BLOCK {
            self.told_full(None);
        }
        pending
    }

    /// Waits until there is room for `bytes` bytes of data, which another write may take. An error:
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
            // Data in flight counts for more room than it takes.
            let is_over = pending == 0 || self.store.is_full() || Instant::now() >= until;
            if is_over {
                let why = self.lacking().await;
                self.told_full(Some(why.clone()));
                return Err(Fault::Full(why));
            }
            self.seal(&mut self.state.write());
            // An error: checks once more, and gives up.
            let _ = timeout_at(until, durable.changed()).await;
        }
    }

    async fn lacking(&self) -> String {
        match self.store.room().await {
            Some(room) => format!(
                "{} of {} bytes are free, and {} are reserved for trims and deletions: free space \
                 in the store, or trim",
                room.free,
                room.total,
                policy::kept(room)
            ),
            None => "free space in the store, or trim".into(),
        }
    }
}

impl Volume {
    /// Checks the volume's folder and its room after each request to the store, at most once a
    /// second.
    pub(super) async fn watch_store(self: Arc<Self>) {
        if !self.store.is_measured() {
            return;
        }
        while self.state.read().dead.is_none() {
            self.store.is_asked().await;
            self.look_at_folder().await;
            self.measure().await;
            if self.state.read().budget > 0 {
                self.store.keep_reserve().await;
            }
            sleep(LOOK).await;
        }
    }

    /// Checks whether the folder is where it was: a deleted one is lost, a moved one is reported.
    /// Deleted objects are closed. Blocks as long as its file system does.
    async fn look_at_folder(&self) {
        let Some(folder) = self.store.folder().cloned() else { return };
        // An error: the check panicked.
        let look = move || {
            folder.files.close_deleted();
            folder.presence()
        };
        let Ok(presence) = spawn_blocking(look).await else { return };
        let moved = match presence {
            Presence::Deleted(why) => return self.lost_for_good(why),
            Presence::Moved(why) => Some(why),
            Presence::Here => None,
        };
        let was = std::mem::replace(&mut *self.moved.lock(), moved.clone());
        match (was, moved) {
            (None, Some(why)) => {
                tracing::error!(device = self.device(), at = %self.store, "{why}. {PUT_BACK}");
                self.tell(&ObjectEvent::Moved { why });
            }
            (Some(_), None) => {
                tracing::warn!(device = self.device(), at = %self.store, "the folder is back");
            }
            _ => {}
        }
    }

    /// Records that an object with data is missing or damaged for good: it was requested again, and
    /// there is no other writer.
    pub(crate) fn lacks_data(&self, why: &str) {
        if self.damage.set(why.to_owned()).is_ok() {
            let device = self.device();
            tracing::error!(device, at = %self.store, "data of the volume is missing or damaged: \
                                                       {why}. Restore the object from a copy or \
                                                       an older version, then restart the server");
            self.tell(&ObjectEvent::Damaged { why: why.to_owned() });
        }
    }

    /// Ends the volume, as its writes are gone from the store.
    pub(super) fn lost_for_good(&self, why: String) {
        if self.state.read().dead.is_none() {
            tracing::error!(device = self.device(), at = %self.store, "{why}; this server no longer serves the volume");
            self.end(Fault::Damaged(why));
        }
    }

    /// Looks for this writer's last record, and for the one that a later check would ask for, as
    /// nothing else asks for them again.
    pub(super) async fn find_trace(&self) -> Result<(), Fault> {
        let _alone = self.appending.lock().await;
        let (earlier, last) = {
            let state = self.state.read();
            (state.traced.1, state.not_there() - 1)
        };
        for seq in [last, earlier] {
            // A store that fails proves neither: the record of the end will.
            if self.is_there(seq).await == Some(false) {
                self.lost(seq, last).await;
                return Err(self.why_dead());
            }
        }
        Ok(())
    }

    /// Checks that the next server finds the volume by its location: a folder may have been moved.
    pub(super) async fn is_where_it_was(&self) -> Result<(), Fault> {
        self.look_at_folder().await;
        match self.moved.lock().clone() {
            Some(why) => Err(Fault::Moved(format!("{why}. {PUT_BACK}"))),
            None => Ok(()),
        }
    }
}

impl Volume {
    /// Keeps flushes in a file from now on.
    pub(crate) fn keep_flushes(self: &Arc<Self>, local: Arc<Local>) {
        self.state.write().local = Some(Arc::clone(&local));
        tokio::spawn(Arc::clone(self).watch_flush_file(local));
    }

    /// Returns why flushes wait for the store although they are to be kept in a file.
    pub(crate) fn flush_file_fault(&self) -> Option<String> {
        let state = self.state.read();
        let local = state.local.as_ref()?;
        let FileOut { why, .. } = local.fault()?;
        Some(format!("the flush file {}: {why}", local.name()))
    }

    /// Returns what brings the flush file back, if it isn't in use.
    pub(super) fn flush_file_todo(&self) -> Option<&'static str> {
        Some(self.state.read().local.as_ref()?.fault()?.todo)
    }

    /// Watches the file, and has the store get the flushes while the file isn't in use.
    async fn watch_flush_file(self: Arc<Self>, local: Arc<Local>) {
        let mut is_out = false;
        while self.state.read().dead.is_none() {
            // So a head is renewed at most once a second, and never if the store keeps up.
            let renews = local.is_due().await;
            local.look(renews).await;
            let Some(FileOut { why, todo, for_good }) = local.fault() else { continue };
            if !std::mem::replace(&mut is_out, true) {
                let file = local.name();
                tracing::error!(device = self.device(), at = %self.store, file, error = why, "the \
                                                                                              server \
                                                                                              no \
                                                                                              longer \
                                                                                              uses \
                                                                                              the \
                                                                                              flush \
                                                                                              file, \
                                                                                              so \
                                                                                              flushes \
                                                                                              wait \
                                                                                              for \
                                                                                              the \
                                                                                              store. \
                                                                                              {todo}");
                self.tell(&ObjectEvent::FlushFileOut { why });
            }
            // Without the file, everything flushed is only in the store. If the flush fails, it is
            // retried.
            if self.flush_without_file().await.is_err() {
                continue;
            }
            if for_good {
                return;
            }
            if local.begin_again().await && self.take_up(&local).await {
                is_out = false;
                tracing::warn!(device = self.device(), at = %self.store, "the server uses the flush file again");
                self.tell(&ObjectEvent::FlushFileBack);
            }
        }
    }

    /// Makes all writes durable in the store, and records there that no flush file is needed for
    /// flushed changes, unless the file is in use again by now.
    pub(super) async fn flush_without_file(self: &Arc<Self>) -> Result<(), Fault> {
        {
            let mut state = self.state.write();
            if let Some(dead) = &state.dead {
                return Err(dead.clone());
            }
            // Checked under the volume's lock, under which the file is put back into use, too.
            let is_out = state.local.as_ref().is_some_and(|local| local.fault().is_some());
            if is_out && std::mem::replace(&mut state.tells_local, false) {
                self.seal(&mut state);
                let changes = Changes { local: Some(false), ..Changes::default() };
                self.send_record(&mut state, changes);
            }
        }
        self.flush_to_store().await
    }

    /// Puts a file that was begun anew back into use for flushes. False: the store doesn't take it.
    async fn take_up(self: &Arc<Self>, local: &Local) -> bool {
        let seq = {
            let mut state = self.state.write();
            if state.dead.is_some() {
                return false;
            }
            // All changes before the record are in the store with it, and all later ones are noted
            // for the file.
            self.seal(&mut state);
            local.resume();
            state.tells_local = true;
            self.send_record(&mut state, Changes { local: Some(true), ..Changes::default() })
        };
        match timeout(self.tuning.patience, self.recorded(seq)).await {
            Ok(Ok(())) => local.returned(),
            _ => local.stays_out(),
        }
        local.fault().is_none()
    }
}
