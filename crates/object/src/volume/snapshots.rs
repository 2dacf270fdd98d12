//! Snapshots of a volume that is open. ../README.md argues why one has what was written before it, and keeps it.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use tokio::sync::oneshot;
use tokio::time::timeout;

use super::{Fault, State, Volume};
use crate::batch::Batch;
use crate::format::{Changes, Kind, Taken};
use crate::log;
use crate::snapshot::ObjectSnapshot;

impl Volume {
    /// Keeps what is written now, also where flushes are in a file. An error: the snapshot may come later.
    pub(crate) async fn snapshot(
        self: &Arc<Self>,
        name: Option<String>,
    ) -> Result<ObjectSnapshot, Fault> {
        let volume = Arc::clone(self);
        self.in_time(async move { volume.take(name).await }).await
    }

    /// Gives up a snapshot, and what only it needs. An error: it may come to that later.
    pub(crate) async fn delete_snapshot(self: &Arc<Self>, name: String) -> Result<(), Fault> {
        let volume = Arc::clone(self);
        self.in_time(async move { volume.drop_one(&name).await }).await
    }

    /// All of them, in order.
    pub(crate) async fn snapshots(self: &Arc<Self>) -> Result<Vec<ObjectSnapshot>, Fault> {
        let all = {
            let state = self.state.lock();
            let all = state.map.snapshots.iter();
            all.map(|(number, taken)| ObjectSnapshot::of(*number, taken)).collect()
        };
        self.believe().await?;
        Ok(all)
    }

    /// It goes on if nobody waits any more, so that the next one finds it done.
    async fn in_time<T: Send + 'static>(
        &self,
        what: impl Future<Output = Result<T, Fault>> + Send + 'static,
    ) -> Result<T, Fault> {
        match timeout(self.tuning.patience, tokio::spawn(what)).await {
            Ok(Ok(done)) => done,
            Ok(Err(_)) => Err(Fault::Store("it panicked".into())),
            Err(_) => Err(self.too_slow()),
        }
    }

    async fn take(self: Arc<Self>, name: Option<String>) -> Result<ObjectSnapshot, Fault> {
        let _alone = self.snapshotting.lock().await;
        self.wait_for_others().await;
        let seq = {
            let mut state = self.state.lock();
            let number = |name: &str| find(&state, name).map(|(number, _)| number);
            if let Some(number) = name.as_deref().and_then(number) {
                let name = name.unwrap_or_default();
                let why = format!("there is a snapshot '{name}' already (number {number})");
                return Err(Fault::Refused(why));
            }
            // All that was written is in front of it.
            self.seal(&mut state);
            let name = name.unwrap_or_else(|| state.next.to_string());
            let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            let (time, epoch) = (time.as_millis() as u64, self.writer.epoch);
            let taken = Some(Taken { epoch, name, time, size: 0 });
            self.send_changes(&mut state, Changes { taken, ..Changes::default() })?
        };
        self.recorded(seq).await?;
        let state = self.state.lock();
        let taken = state.map.snapshots.get(&seq).ok_or(Fault::Closed)?;
        Ok(ObjectSnapshot::of(seq, taken))
    }

    async fn drop_one(self: Arc<Self>, name: &str) -> Result<(), Fault> {
        let _alone = self.snapshotting.lock().await;
        self.wait_for_others().await;
        let (number, taken, seq) = {
            let mut state = self.state.lock();
            let Some((number, taken)) = find(&state, name) else {
                return Err(Fault::Refused(format!("there is no snapshot '{name}'")));
            };
            let changes = Changes { dropped: number, ..Changes::default() };
            (number, taken, self.send_changes(&mut state, changes)?)
        };
        self.recorded(seq).await?;
        Arc::clone(&self).delete(vec![log::snapshot(number, taken.epoch)], false).await;
        Ok(())
    }

    /// Sends a record without writes on its way. Its number.
    fn send_changes(&self, state: &mut State, changes: Changes) -> Result<u64, Fault> {
        if let Some(dead) = &state.dead {
            return Err(dead.clone());
        }
        if state.closing {
            return Err(Fault::Closed);
        }
        let (told, done) = oneshot::channel();
        let _ = told.send(changes);
        Ok(self.send(state, Arc::new(Batch::default()), done))
    }

    /// Waits until a record is there.
    async fn recorded(&self, seq: u64) -> Result<(), Fault> {
        let mut durable = self.durable.subscribe();
        match durable.wait_for(|durable| *durable >= seq).await {
            Ok(reached) if *reached != u64::MAX => Ok(()),
            _ => Err(self.why_dead()),
        }
    }

    /// Puts the map that a snapshot has into the store, before its record. False: the volume ends.
    pub(super) async fn put_snapshot(&self, seq: u64, taken: &mut Taken) -> bool {
        let whole = {
            let state = self.state.lock();
            taken.size = state.size;
            let mut whole = self.whole(&state);
            whole.snapshots.clear();
            whole.segments.retain(|listed| listed.died == 0);
            whole
        };
        let Some(object) = self.whole_object(Kind::Snapshot, seq, whole).await else {
            return false;
        };
        let name = log::snapshot(seq, self.writer.epoch);
        self.put_segment(&self.store, &name, &[object]).await;
        true
    }
}

/// The snapshot of this name, or number.
fn find(state: &State, name: &str) -> Option<(u64, Taken)> {
    let mut all = state.map.snapshots.iter();
    let found = all.find(|(number, taken)| taken.name == name || number.to_string() == name)?;
    Some((*found.0, found.1.clone()))
}
