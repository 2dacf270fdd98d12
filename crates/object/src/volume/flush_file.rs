//! The flush file of a volume that is served: what becomes of flushes while it isn't what it was.
//!
//! ../local/README.md has the protocol.

use std::sync::Arc;

use tokio::time::timeout;

use super::{Fault, Volume};
use crate::events::ObjectEvent;
use crate::format::Changes;
use crate::local::{FileOut, Local};

impl Volume {
    /// Keeps flushes in a file from now on.
    pub(crate) fn keep_flushes(self: &Arc<Self>, local: Arc<Local>) {
        self.state.write().local = Some(Arc::clone(&local));
        tokio::spawn(Arc::clone(self).watch_flush_file(local));
    }

    /// Why flushes wait for the store though they are to be kept in a file.
    pub(crate) fn flush_file_fault(&self) -> Option<String> {
        let state = self.state.read();
        let local = state.local.as_ref()?;
        let FileOut { why, .. } = local.fault()?;
        Some(format!("the flush file {}: {why}", local.name()))
    }

    /// What brings the flush file back, where it isn't used.
    pub(super) fn flush_file_todo(&self) -> Option<&'static str> {
        Some(self.state.read().local.as_ref()?.fault()?.todo)
    }

    /// Looks at the file, and has the store get what is flushed while it isn't used.
    async fn watch_flush_file(self: Arc<Self>, local: Arc<Local>) {
        let mut is_out = false;
        while self.state.read().dead.is_none() {
            // So a head is renewed once a second at most, and never where the store keeps up.
            let renews = local.is_due().await;
            local.look(renews).await;
            let Some(FileOut { why, todo, for_good }) = local.fault() else { continue };
            if !std::mem::replace(&mut is_out, true) {
                let file = local.name();
                tracing::error!(device = self.device(), at = %self.store, file, error = why, "the flush file isn't used any more, and flushes wait for the store. {todo}");
                self.tell(&ObjectEvent::FlushFileOut { why });
            }
            // Without the file all that was flushed is in the store alone. If that fails, it is
            // tried again.
            if self.flush_without_file().await.is_err() {
                continue;
            }
            if for_good {
                return;
            }
            if local.begin_again().await && self.take_up(&local).await {
                is_out = false;
                tracing::warn!(device = self.device(), at = %self.store, "the flush file is used again");
                self.tell(&ObjectEvent::FlushFileBack);
            }
        }
    }

    /// Makes durable in the store what was written, and says there that no flush file is needed for
    /// what was flushed, unless the file is used again by now.
    pub(super) async fn flush_without_file(self: &Arc<Self>) -> Result<(), Fault> {
        {
            let mut state = self.state.write();
            if let Some(dead) = &state.dead {
                return Err(dead.clone());
            }
            // Under the volume's lock, as the file is taken up.
            let is_out = state.local.as_ref().is_some_and(|local| local.fault().is_some());
            if is_out && std::mem::replace(&mut state.tells_local, false) {
                self.seal(&mut state);
                let changes = Changes { local: Some(false), ..Changes::default() };
                self.send_record(&mut state, changes);
            }
        }
        self.flush_to_store().await
    }

    /// Has flushes go to a file again that was begun anew. False: the store doesn't take it.
    async fn take_up(self: &Arc<Self>, local: &Local) -> bool {
        let seq = {
            let mut state = self.state.write();
            if state.dead.is_some() {
                return false;
            }
            // All changes in front of the record are in the store with it, and all behind it are
            // noted for the file.
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
