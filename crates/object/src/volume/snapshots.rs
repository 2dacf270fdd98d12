//! Snapshots of an open volume. ../README.md argues why a snapshot has all earlier writes, and
//! keeps them.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use super::{Fault, State, Volume};
use crate::format::{Batch, Changes, Kind, SnapshotRecord, names};
use crate::log::NotOpen;
use crate::log::clone::{self, CloneMark, DropMark};

/// Maximum bytes of a name.
const LONGEST: usize = 64;

/// A kept state of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ObjectSnapshot {
    /// The snapshot's name, or its number in digits.
    pub name: String,
    /// The record of the volume's log by which it was taken. Later snapshots have greater numbers.
    pub number: u64,
    /// Time at which it was taken, by the clock of the server that took it; to a millisecond.
    pub taken: SystemTime,
    /// Size of the volume then, in bytes.
    pub size: u64,
    /// Locations in the store of the volumes that share its data. While there are any, it can't be
    /// deleted.
    pub clones: Vec<String>,
}

impl ObjectSnapshot {
    pub(crate) fn of(number: u64, taken: &SnapshotRecord) -> Self {
        Self {
            name: taken.name.clone(),
            number,
            taken: SystemTime::UNIX_EPOCH + Duration::from_millis(taken.time),
            size: taken.size,
            clones: Vec::new(),
        }
    }
}

/// Checks the name of a snapshot: 1 to 64 letters, digits, dots, dashes and underscores, the first
/// of which is a letter. (A snapshot without a name goes by its number.)
///
/// # Errors
/// The name is invalid. The message says what is allowed.
pub(crate) fn check_snapshot_name(name: &str) -> Result<(), String> {
    let may = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    if name.starts_with(|c: char| c.is_ascii_alphabetic())
        && name.len() <= LONGEST
        && name.chars().all(may)
    {
        return Ok(());
    }
    Err(format!(
        // Debug: a name, quoted.
        "{name:?} is not a snapshot name: use up to {LONGEST} letters, digits, dots, dashes and \
         underscores, and begin with a letter"
    ))
}

fn of_mark(why: NotOpen) -> Fault {
    match why {
        NotOpen::Store(why) => Fault::Store(why),
        other => Fault::Damaged(format!("a clone's mark: {other}")),
    }
}

impl Volume {
    /// Takes a snapshot of the present state, even if flushes are kept in a file. After an error,
    /// the snapshot may still appear.
    pub(crate) async fn snapshot(
        self: &Arc<Self>,
        name: Option<String>,
    ) -> Result<ObjectSnapshot, Fault> {
        let volume = Arc::clone(self);
        self.in_time(async move { volume.take(name).await }).await
    }

    /// Deletes a snapshot, and the objects that only it needs. Returns the deleted one. After an
    /// error, it may still be deleted.
    pub(crate) async fn delete_snapshot(
        self: &Arc<Self>,
        name: String,
    ) -> Result<ObjectSnapshot, Fault> {
        let volume = Arc::clone(self);
        self.in_time(async move { volume.drop_one(&name).await }).await
    }

    /// Returns all snapshots, in order, with their clones.
    pub(crate) async fn snapshots(self: &Arc<Self>) -> Result<Vec<ObjectSnapshot>, Fault> {
        let mut all: Vec<ObjectSnapshot> = {
            let state = self.state.read();
            let all = state.map.snapshots.iter();
            all.map(|(number, taken)| ObjectSnapshot::of(*number, taken)).collect()
        };
        self.believe().await?;
        for mark in clone::marks(&self.store, self.patience()).await.map_err(Fault::Store)? {
            let Some(of) = all.iter_mut().find(|one| one.number == mark.snapshot) else { continue };
            match self.clone_of(&mark).await {
                Ok(place) => of.clones.extend(place),
                // Only that snapshot can't be deleted for it.
                Err(Fault::Damaged(why)) => of.clones.push(format!("? ({why})")),
                Err(fault) => return Err(fault),
            }
        }
        Ok(all)
    }

    fn patience(&self) -> Option<Duration> {
        Some(self.tuning.patience)
    }

    async fn place_of(&self, mark: &CloneMark) -> Result<Option<String>, Fault> {
        let place = clone::place_of(&self.store, &self.codec, mark, self.patience()).await;
        place.map_err(of_mark)
    }

    /// Returns the location of the clone that left a mark; `None` if that attempt made none.
    /// Another attempt may have made the volume there.
    async fn clone_of(&self, mark: &CloneMark) -> Result<Option<String>, Fault> {
        let Some(place) = self.place_of(mark).await? else { return Ok(None) };
        let begun = clone::has_begun(&self.store, &place, mark, self.patience()).await;
        Ok(begun.map_err(of_mark)?.then_some(place))
    }

    /// Runs an operation exclusively. Once begun, it completes even if the caller has given up, so
    /// that the next caller finds it done. If the caller gives up earlier, it doesn't begin.
    async fn in_time<T: Send + 'static>(
        &self,
        what: impl Future<Output = Result<T, Fault>> + Send + 'static,
    ) -> Result<T, Fault> {
        let until = Instant::now() + self.tuning.patience;
        let Ok(alone) = timeout_at(until, Arc::clone(&self.snapshotting).lock_owned()).await else {
            let why = "another snapshot is still being taken or deleted, so this request did \
                       nothing; try again";
            return Err(Fault::Store(format!("{why}{}", self.store.trouble())));
        };
        let done = tokio::spawn(async move {
            let _alone = alone;
            what.await
        });
        match timeout_at(until, done).await {
            Ok(Ok(done)) => done,
            Ok(Err(_)) => Err(Fault::Store("the request panicked".into())),
            Err(_) => {
                let why = "the request isn't done yet, but continues: list the snapshots before you try \
                     again";
                Err(Fault::Store(format!("{why}{}", self.store.trouble())))
            }
        }
    }

    async fn take(self: Arc<Self>, name: Option<String>) -> Result<ObjectSnapshot, Fault> {
        self.wait_for_others().await;
        let seq = {
            let mut state = self.state.write();
            let number = |name: &str| state.map.find(name).map(|(number, _)| number);
            if let Some(number) = name.as_deref().and_then(number) {
                let name = name.unwrap_or_default();
                let why = format!("there is a snapshot '{name}' already (number {number})");
                return Err(Fault::Refused(why));
            }
            // All earlier writes precede it.
            self.seal(&mut state);
            let name = name.unwrap_or_else(|| state.next.to_string());
            let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            let (time, epoch) = (time.as_millis() as u64, self.writer.epoch);
            let taken = Some(SnapshotRecord { epoch, name, time, size: 0 });
            self.send_changes(&mut state, Changes { taken, ..Changes::default() })?
        };
        self.recorded(seq).await?;
        let state = self.state.read();
        let taken = state.map.snapshots.get(&seq).ok_or(Fault::Closed)?;
        Ok(ObjectSnapshot::of(seq, taken))
    }

    async fn drop_one(self: Arc<Self>, name: &str) -> Result<ObjectSnapshot, Fault> {
        self.wait_for_others().await;
        let (number, taken) = {
            let map = &self.state.read().map;
            map.find(name).ok_or_else(|| Fault::Refused(map.lacks(name)))?
        };
        // Announce
        let epoch = self.writer.epoch;
        let gone = DropMark { snapshot: number, epoch, nonce: self.codec.random() };
        let object = self.codec.object(Kind::Mark, (number, self.writer), &[]).1;
        let told = clone::put(&self.store, &gone.name(), object, self.patience()).await;
        // LookForClones
        let clones = match told {
            Ok(()) => self.clones(number).await,
            Err(why) => Err(Fault::Store(why)),
        };
        let refused = match clones {
            Ok(clones) if clones.is_empty() => None,
            Ok(clones) => {
                let why = format!(
                    "snapshot '{}' has clones. Delete the objects of these first: {}",
                    taken.name,
                    clones.join(", ")
                );
                Some(Fault::Refused(why))
            }
            Err(fault) => Some(fault),
        };
        if let Some(fault) = refused {
            self.withdraw(number).await;
            return Err(fault);
        }
        // Drop
        let seq = {
            let changes = Changes { dropped: number, ..Changes::default() };
            self.send_changes(&mut self.state.write(), changes)?
        };
        self.recorded(seq).await?;
        // If the map stays, the mark does, too, so that no clone that misses the mark finds the
        // map.
        let map = names::snapshot(number, taken.epoch);
        if clone::delete(&self.store, &map, self.patience()).await {
            self.withdraw(number).await;
        }
        Ok(ObjectSnapshot::of(number, &taken))
    }

    /// Returns the locations of the clones of a snapshot. Clones that were begun and don't exist
    /// can't be made any more.
    async fn clones(&self, number: u64) -> Result<Vec<String>, Fault> {
        let mut clones = Vec::new();
        let marks = clone::marks(&self.store, self.patience()).await.map_err(Fault::Store)?;
        for mark in marks.into_iter().filter(|mark| mark.snapshot == number) {
            let Some(place) = self.place_of(&mark).await? else { continue };
            let there = clone::is_there(&self.store, &place, &mark, self.patience()).await;
            if there.map_err(Fault::Store)? {
                clones.push(place);
            } else {
                clone::delete(&self.store, &mark.name(), self.patience()).await;
            }
        }
        Ok(clones)
    }

    /// Withdraws the announcements about a snapshot, by this writer or an earlier one.
    async fn withdraw(&self, number: u64) {
        let all = clone::names(&self.store, "gone", DropMark::parse, self.patience()).await;
        let ours = |gone: &DropMark| gone.snapshot == number && gone.epoch <= self.writer.epoch;
        // Those that stay have no effect once another server has opened the volume.
        for gone in all.unwrap_or_default().into_iter().filter(ours) {
            clone::delete(&self.store, &gone.name(), self.patience()).await;
        }
    }

    /// Deletes the mark at the parent when a clone needs nothing of it any more: neither data, nor
    /// the map that it began with.
    pub(super) async fn leave_parent(self: Arc<Self>) {
        let Some(origin) = &self.opening.origin else { return };
        {
            let state = self.state.read();
            if state.alone || state.mapped == 0 || !state.map.segments.is_alone() {
                return;
            }
        }
        if clone::delete(&self.homes[0], &CloneMark::of(origin).name(), self.patience()).await {
            self.state.write().alone = true;
        }
    }

    /// Sends a record without writes. Returns its number.
    fn send_changes(&self, state: &mut State, changes: Changes) -> Result<u64, Fault> {
        if let Some(dead) = &state.dead {
            return Err(dead.clone());
        }
        if state.closing {
            return Err(Fault::Closed);
        }
        Ok(self.send_record(state, changes))
    }

    /// Sends a record without data.
    pub(super) fn send_record(&self, state: &mut State, changes: Changes) -> u64 {
        let (told, done) = oneshot::channel();
        let _ = told.send((Vec::new(), changes));
        self.send(state, Arc::new(Batch::default()), done)
    }

    /// Waits until a record exists.
    pub(super) async fn recorded(&self, seq: u64) -> Result<(), Fault> {
        let mut durable = self.durable.subscribe();
        match durable.wait_for(|durable| *durable >= seq).await {
            Ok(reached) if *reached != u64::MAX => Ok(()),
            _ => Err(self.why_dead()),
        }
    }

    /// Puts the map of a snapshot into the store, before its record. Returns false if the volume
    /// ends.
    pub(super) async fn put_snapshot(&self, seq: u64, taken: &mut SnapshotRecord) -> bool {
        let whole = {
            let state = self.state.read();
            taken.size = state.size;
            let mut whole = self.whole(&state);
            whole.snapshots.clear();
            whole.segments.retain(|listed| listed.died == 0);
            whole
        };
        let Some(object) = self.whole_object(Kind::Snapshot, seq, whole).await else {
            return false;
        };
        let name = names::snapshot(seq, self.writer.epoch);
        self.put_segment(&self.store, &name, &[object]).await;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_short_begins_with_a_letter_and_has_nothing_strange() {
        for good in ["a", "Monday", "v1.2-rc_3", &"x".repeat(64)] {
            assert_eq!(check_snapshot_name(good), Ok(()));
        }
        for bad in ["", "7", "7up", ".a", "-a", "a/b", "a b", "ä", "a\n", &"x".repeat(65)] {
            assert!(check_snapshot_name(bad).unwrap_err().contains("letters"), "{bad}");
        }
    }
}
