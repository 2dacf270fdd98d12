//! Whether the store is still the one that was opened: at each moment where it is a folder, and at
//! an orderly end.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::spawn_blocking;
use tokio::time::sleep;

use super::{Fault, Volume};
use crate::events::ObjectEvent;
use crate::store::Presence;

/// Pause between two looks at the folder of a volume that is in use.
const LOOK: Duration = Duration::from_secs(1);

impl Volume {
    /// Looks at the volume's folder, and at its room, after each request to the store, and once a
    /// second at most.
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

    /// Finds out whether the folder is where it was: one that was deleted is lost, one that was
    /// moved is told of. Blocks for as long as its file system.
    async fn look_at_folder(&self) {
        let Some(folder) = self.store.folder().cloned() else { return };
        // An error: the look panicked.
        let Ok(presence) = spawn_blocking(move || folder.presence()).await else { return };
        let moved = match presence {
            Presence::Deleted(why) => return self.lost_for_good(why),
            Presence::Moved(why) => Some(why),
            Presence::Here => None,
        };
        let was = std::mem::replace(&mut *self.moved.lock(), moved.clone());
        match (was, moved) {
            (None, Some(why)) => {
                tracing::error!(device = self.device(), at = %self.store, "{why}");
                self.tell(&ObjectEvent::Moved { why });
            }
            (Some(_), None) => {
                tracing::warn!(device = self.device(), at = %self.store, "the folder is back");
            }
            _ => {}
        }
    }

    /// An object with data is missing or damaged, and stays so: it was asked for again, and there
    /// is no other writer.
    pub(crate) fn lacks_data(&self, why: &str) {
        if self.damage.set(why.to_owned()).is_ok() {
            let device = self.device();
            tracing::error!(device, at = %self.store, "data of the volume is missing or damaged: {why}. Put the object back from a copy or an older version, then restart the server");
            self.tell(&ObjectEvent::Damaged { why: why.to_owned() });
        }
    }

    /// What was written isn't there any more.
    pub(super) fn lost_for_good(&self, why: String) {
        if self.state.read().dead.is_none() {
            tracing::error!(device = self.device(), at = %self.store, "{why}; this server serves the volume no more");
            self.end(Fault::Damaged(why));
        }
    }

    /// Looks for this writer's last record, and for the one that a later look would ask for: nobody
    /// asks for them again.
    pub(super) async fn find_trace(&self) -> Result<(), Fault> {
        let _alone = self.appending.lock().await;
        let (earlier, last) = {
            let state = self.state.read();
            (state.traced.1, state.not_there() - 1)
        };
        for seq in [last, earlier] {
            // A store that fails says neither: the record of the end will.
            if self.is_there(seq).await == Some(false) {
                self.lost(seq, last).await;
                return Err(self.why_dead());
            }
        }
        Ok(())
    }

    /// Whether the next server finds the volume by its location: a folder may have been moved.
    pub(super) async fn is_where_it_was(&self) -> Result<(), Fault> {
        self.look_at_folder().await;
        match self.moved.lock().clone() {
            Some(why) => Err(Fault::Moved(why)),
            None => Ok(()),
        }
    }
}
