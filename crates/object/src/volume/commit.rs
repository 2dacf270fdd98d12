//! Writes of a volume to the store: segments, the sequence of records, and whole maps.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join;
use tokio::time::sleep;

use super::policy;
use super::{Fault, State, Upload, Volume};
use crate::format::{
    BLOCK, Batch, BuiltSegment, Changes, Codec, HEAD, Head, Kind, Opening, Segment, WholeMap, names,
};
use crate::log::{self, AppendOutcome};
use crate::store::{Failure, Retries, Store};

/// Pause between two deletions.
const DELETE_PAUSE: Duration = Duration::from_millis(10);
/// Pieces above which another thread builds the map: this one serves all clients.
const LARGE: usize = 4096;

/// The reason with which a volume ends if one of its tasks panics.
const PANICKED: &str =
    "changes could not be sent to the store, by a bug in corewise (the log has its panic)";

/// Ends the volume if the task that holds this panics. Otherwise later writes would never be sent,
/// and no flush would ever end.
struct PanicGuard<'a>(&'a Volume);

impl Drop for PanicGuard<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.end(Fault::Store(PANICKED.into()));
        }
    }
}

impl Volume {
    /// Puts a batch's segment into the store, and verifies it, unless it goes with the record.
    /// Returns the changes to record, and the data that goes with them.
    pub(super) async fn upload(&self, seq: u64, batch: Arc<Batch>) -> Option<BuiltSegment> {
        let _turn = self.uploading.acquire().await;
        let (writer, inline) = (self.writer, self.tuning.inline);
        let build = move |codec: &Codec| batch.segment(seq, &writer, codec, inline);
        let (payload, changes) = self.build(build).await?;
        if payload.is_empty() || changes.in_record {
            return Some((payload, changes));
        }
        let name = names::segment(seq, writer.epoch);
        self.put_segment(&self.store, &name, &payload).await;
        Some((Vec::new(), changes))
    }

    /// Builds a segment: on another thread if that is expensive, since this thread serves all
    /// clients.
    pub(crate) async fn build(
        &self,
        how: impl FnOnce(&Codec) -> BuiltSegment + Send + 'static,
    ) -> Option<BuiltSegment> {
        if !self.codec.is_work() {
            return Some(how(&self.codec));
        }
        let codec = self.codec.clone();
        let built = tokio::task::spawn_blocking(move || how(&codec)).await;
        if built.is_err() {
            self.end(Fault::Store("a segment could not be made of what was written".into()));
        }
        built.ok()
    }

    pub(crate) async fn put_segment(&self, store: &Store, name: &str, payload: &[Bytes]) {
        let bytes: u64 = payload.iter().map(|part| part.len() as u64).sum();
        let mut tries = Retries::new(None);
        loop {
            let asked = store.put(name, payload, false).await;
            let why = match (asked, store.size(name).await) {
                (_, Ok(found)) if found == bytes => return,
                (Err(Failure::Other(why)), _) | (_, Err(Failure::Other(why))) => why,
                _ => "the store acknowledged a segment that isn't there".into(),
            };
            tries.again("a segment", &why).await;
        }
    }

    /// Appends the records of all batches, in order.
    pub(super) async fn commit_all(self: Arc<Self>) {
        let _guard = PanicGuard(&self);
        loop {
            let Some(mut upload) = self.next_upload().await else { return };
            let Ok((data, mut changes)) = (&mut upload.done).await else {
                // The volume has ended, or the upload panicked.
                return self.end(Fault::Store(PANICKED.into()));
            };
            if let Some(taken) = &mut changes.taken {
                if !self.put_snapshot(upload.seq, taken).await {
                    return;
                }
            }
            let named = (upload.seq, self.writer);
            let (head, object) = self.codec.object(Kind::Commit, named, &changes.encode());
            if !self.append(&head, &[vec![object], data].concat()).await {
                return;
            }
            let dead = self.apply(upload.seq, &changes);
            self.room.add_permits(upload.blocks);
            self.durable.send_modify(|durable| *durable = upload.seq.max(*durable));
            if !dead.is_empty() {
                let names = dead.iter().map(Segment::name).collect();
                let moved = !changes.moved.is_empty();
                tokio::spawn(Arc::clone(&self).delete(names, moved));
            }
            self.write_map(upload.seq);
        }
    }

    async fn next_upload(&self) -> Option<Upload> {
        loop {
            {
                let mut state = self.state.write();
                if state.dead.is_some() {
                    return None;
                }
                if let Some(upload) = state.uploads.pop_front() {
                    return Some(upload);
                }
            }
            self.work.notified().await;
        }
    }

    /// Appends a record. Returns false if there is another writer.
    async fn append(&self, head: &Head, object: &[Bytes]) -> bool {
        let _alone = self.appending.lock().await;
        let began = (self.clock)();
        let (traced, earlier) = self.state.read().traced;
        let traces = began.since(traced) >= self.lease;
        let append = log::append(&self.store, head, object, None);
        let trace = async {
            match traces {
                true => self.is_there(earlier).await,
                false => None,
            }
        };
        let (appended, is_there) = join(append, trace).await;
        match appended {
            // A server that has opened the volume would have the record.
            Ok(AppendOutcome::Ours) if is_there == Some(false) => {
                self.lost(earlier, head.seq).await;
                false
            }
            Ok(AppendOutcome::Ours) => {
                let mut state = self.state.write();
                state.looked = Some(began);
                if is_there.is_some() {
                    state.traced = (began, head.seq);
                }
                true
            }
            Ok(AppendOutcome::Others(found)) => {
                self.fenced(&found);
                false
            }
            // The append is retried for ever.
            Err(_) => false,
        }
    }

    /// Returns true if a record of this writer exists, and isn't another one's. A store that fails
    /// proves neither.
    pub(super) async fn is_there(&self, seq: u64) -> Option<bool> {
        match self.store.get(&names::record(seq), Some(0..HEAD as u64)).await {
            Ok(found) => Some(Head::decode(&found).ok()?.writer == self.writer.nonce),
            Err(Failure::Missing) => Some(false),
            Err(_) => None,
        }
    }

    /// Handles a record that is gone, although the last one existed a moment ago.
    pub(super) async fn lost(&self, gone: u64, last: u64) {
        let next = self.store.get(&names::record(last + 1), Some(0..HEAD as u64)).await;
        // Another server has opened the volume since, and deletes records that its map covers.
        if let Some(by) = next.ok().and_then(|next| Head::decode(&next).ok()) {
            return self.fenced(&by);
        }
        let why = format!(
            "record {gone} is gone: the store was rolled back to an older state, or objects were \
             deleted"
        );
        self.lost_for_good(why);
    }

    /// Applies the batch's changes to the map. Returns the segments to delete.
    fn apply(&self, seq: u64, changes: &Changes) -> Vec<Segment> {
        let mut state = self.state.write();
        let mut dead = state.map.apply(seq, self.writer.epoch, changes);
        // A record behind the newest map, and that of the map itself, stay until the next one
        // exists.
        let stays = |state: &State, of: &Segment| of.in_record && !state.spares(of.number);
        let stay: u64 = dead.iter().filter(|of| stays(&state, of)).map(|of| of.bytes).sum();
        dead.retain(|of| !stays(&state, of));
        state.dead_records += stay;
        state.since += changes.entries.len() as u64;
        state.through = changes.through.max(state.through);
        state.size = changes.size.max(state.size);
        state.recorded_local = changes.local.unwrap_or(state.recorded_local);
        if let Some(local) = &state.local {
            local.stored(state.through);
        }
        if state.sealed.front().is_some_and(|first| first.seq == seq) {
            state.sealed.pop_front();
        }
        let sum = state.map.segments.sum();
        drop(state);
        let allowed = policy::garbage_allowed(sum, self.tuning.compaction);
        self.behind.send_replace(policy::is_behind((sum.garbage(), allowed)));
        self.compacting.notify_one();
        dead
    }

    /// Ends the volume, as another writer has begun.
    pub(super) fn fenced(&self, by: &Head) {
        let why = format!("another server has opened the volume (record {})", by.seq);
        tracing::error!(device = self.device(), at = %self.store, "{why}; this server no longer serves it");
        self.end(Fault::Fenced(why));
    }

    /// Ends the volume: nothing is served any more.
    pub(super) fn end(&self, why: Fault) {
        let is_first = {
            let mut state = self.state.write();
            let is_first = state.dead.is_none();
            state.dead.get_or_insert(why.clone());
            is_first
        };
        if is_first {
            self.tell_end(&why);
        }
        // Another server may delete them: open files would keep their room.
        self.store.folder().into_iter().for_each(|folder| folder.files.close());
        self.room.close();
        self.durable.send_replace(u64::MAX);
        self.work.notify_one();
        self.sent.notify_one();
        self.compacting.notify_one();
    }

    /// Returns the present map.
    pub(super) fn whole(&self, state: &State) -> WholeMap {
        let (size, through, local) = (state.size, state.through, state.recorded_local);
        let opening = Opening { size, through, local, ..self.opening.clone() };
        state.map.whole(opening, state.epochs.clone())
    }

    /// Builds the object of a whole map, on another thread if it is large. Returns `None` if the
    /// volume ends.
    pub(super) async fn whole_object(
        &self,
        kind: Kind,
        seq: u64,
        whole: WholeMap,
    ) -> Option<Bytes> {
        let (codec, writer) = (self.codec.clone(), self.writer);
        let is_small = whole.entries.len() < LARGE;
        let make = move || codec.object(kind, (seq, writer), &whole.encode()).1;
        if is_small {
            return Some(make());
        }
        let made = tokio::task::spawn_blocking(make).await;
        if made.is_err() {
            self.end(Fault::Store("a map could not be made".into()));
        }
        made.ok()
    }

    /// Writes the whole map when there are many records since the last one. Commits continue
    /// meanwhile.
    fn write_map(self: &Arc<Self>, seq: u64) {
        let state = self.state.read();
        let (records, places) = (seq - state.mapped, state.map.places.len() as u64);
        // A clone that no longer needs its parent can say so once it has a map.
        let leaves = !state.alone && state.mapped == 0 && state.map.segments.is_alone();
        // The map is written early if there is little room.
        let gives = state.budget < (self.tuning.batch as u64) * BLOCK
            && policy::map_gives_room(state.dead_records, places);
        let is_due =
            leaves || gives || policy::map_is_due(records, self.tuning.few, state.since, places);
        if state.mapping || !is_due {
            return;
        }
        let (whole, since) = (self.whole(&state), (state.since, state.dead_records));
        drop(state);
        self.state.write().mapping = true;
        let volume = Arc::clone(self);
        tokio::spawn(async move {
            let written = volume.has_earlier().await && volume.put_map(seq, whole).await;
            let old = volume.mapped(seq, since, written);
            volume.delete(old, false).await;
        });
    }

    /// Looks for the record that a later check would ask for, which may be deleted once there is a
    /// map: only it shows that a store has lost writes.
    async fn has_earlier(&self) -> bool {
        // So no record is appended that asks for it later.
        let _alone = self.appending.lock().await;
        let (earlier, last) = {
            let state = self.state.read();
            (state.traced.1, state.not_there() - 1)
        };
        let is_there = self.is_there(earlier).await;
        match is_there {
            Some(true) => self.state.write().traced = ((self.clock)(), last),
            Some(false) => self.lost(earlier, last).await,
            None => {}
        }
        is_there == Some(true)
    }

    /// Handles the end of writing a whole map, made after `since` entries and bytes of dead
    /// records. Returns the objects that are no longer needed if it was `written`.
    fn mapped(self: &Arc<Self>, seq: u64, since: (u64, u64), written: bool) -> Vec<String> {
        let mut state = self.state.write();
        state.mapping = false;
        if !written {
            // The next record is as good an occasion.
            return Vec::new();
        }
        let before = std::mem::replace(&mut state.mapped, seq);
        state.since -= since.0;
        state.dead_records -= since.1;
        // The last one stays: it shows a writer that creates a record in a cleared place its
        // mistake. In front of the previous map only records with data are left: each is deleted
        // when its data is dead.
        let spared = (before.max(1)..seq).filter(|old| state.spares(*old));
        let mut old: Vec<String> = spared.map(names::record).collect();
        if before > self.writer.epoch {
            old.push(names::whole_map(before, self.writer.epoch));
        }
        tokio::spawn(Arc::clone(self).leave_parent());
        old
    }

    /// Puts a whole map into the store. Returns false if it may not exist.
    async fn put_map(&self, seq: u64, whole: WholeMap) -> bool {
        let Some(object) = self.whole_object(Kind::Map, seq, whole).await else { return false };
        let name = names::whole_map(seq, self.writer.epoch);
        let bytes = object.len() as u64;
        let written = self.store.put(&name, &[object], false).await;
        written.is_ok() && self.store.size(&name).await == Ok(bytes)
    }

    /// Deletes objects, at a bounded rate. One that stays is found when the volume is opened again.
    pub(super) async fn delete(self: Arc<Self>, names: Vec<String>, moved: bool) {
        let store = if moved { &self.moves } else { &self.store };
        for name in names {
            let mut tries = Retries::new(Some(self.tuning.patience));
            while let Err(Failure::Other(why)) = store.delete(&name).await {
                if !tries.again(&name, &why).await {
                    break;
                }
            }
            sleep(DELETE_PAUSE).await;
        }
    }
}
