//! An open volume: writes that aren't in the store yet, the map of those that are, and the belief
//! that there is no other server.
//!
//! A write is done once it is in the open batch. A batch is sealed when it is large, on a flush,
//! and a while after its first write. Its segment is uploaded, unless it is so small that it goes
//! with the record. Its record is appended behind those of all earlier batches. Then the map has
//! it. ../README.md has the protocol.

mod cache;
mod commit;
mod compact;
mod health;
mod host_cache;
pub(crate) mod opening;
pub(crate) mod policy;
mod read;
mod snapshots;

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use corewise_sync::time::BootStamp;
use corewise_sync::{Mutex, RwLock};
use tokio::runtime::Handle;
use tokio::sync::{Notify, Semaphore, TryAcquireError, oneshot, watch};
use tokio::time::{sleep, timeout};

use self::cache::Cache;
pub use self::cache::CacheUse;
pub(crate) use self::health::Observer;
use self::health::Refusal;
pub use self::health::{ObjectEvent, StoreRefusal};
use self::policy::Compaction;
pub use self::snapshots::ObjectSnapshot;
pub(crate) use self::snapshots::check_snapshot_name;
use crate::format::{Batch, BuiltSegment, Chunk, Codec, Kind, Opening};
use crate::format::{Map, Writer};
use crate::local::{self, Local};
use crate::log::{self, AppendOutcome, NotOpen, OpenRequest};
use crate::store::{Store, within};
use cache::Streams;

/// Maximum wait of a write while compaction is behind.
const BEHIND: Duration = Duration::from_secs(1);
/// Message of a close about recent writes, if the flush failed.
const KEPT_THERE: &str = "the flush file has all flushed writes: start the server again with it";
const MAY_BE_LOST: &str = "recent writes may be lost";
/// Segments that are uploaded at the same time.
const UPLOADS: usize = 4;

/// The reason why a volume can't do an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Another writer has opened the volume. For good.
    Fenced(String),
    /// The volume was closed. For good.
    Closed,
    /// The store doesn't answer in time.
    Store(String),
    /// The store has no room.
    Full(String),
    /// An object in the store isn't as it was written.
    Damaged(String),
    /// The operation can't be done as requested.
    Refused(String),
    /// The store has everything, and isn't found by the volume's location any more.
    Moved(String),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Closed => f.write_str("the volume was closed"),
            Fault::Store(why) => write!(f, "the object store: {why}"),
            Fault::Full(why) => write!(f, "the object store is full: {why}"),
            Fault::Fenced(why) | Fault::Damaged(why) | Fault::Refused(why) | Fault::Moved(why) => {
                f.write_str(why)
            }
        }
    }
}

/// Limits of a volume.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tuning {
    /// Blocks of a batch that is sealed for its size.
    pub(crate) batch: usize,
    /// Most blocks of data that lie in their record.
    pub(crate) inline: u64,
    /// Blocks that may wait for the store.
    pub(crate) dirty: usize,
    /// Maximum wait of a write before it is sent, if there is no flush.
    pub(crate) age: Duration,
    /// Time for which a request waits for the store.
    pub(crate) patience: Duration,
    /// Bytes of frames in the read cache.
    pub(crate) cache: u64,
    /// Number of records behind a whole map that are few: see `policy::map_is_due`.
    pub(crate) few: u64,
    pub(crate) compaction: Compaction,
}

/// A part of the result of a read.
#[derive(Clone, Debug)]
pub(crate) enum Part {
    Data(Bytes),
    /// Number of zero blocks.
    Zero(u64),
}

/// A batch on its way to the store.
#[derive(Debug)]
struct SealedBatch {
    seq: u64,
    batch: Arc<Batch>,
}

/// A sealed batch that the committer gets.
#[derive(Debug)]
struct Upload {
    seq: u64,
    blocks: usize,
    /// The changes to record, once the segment is there, and the data that goes with them.
    done: oneshot::Receiver<BuiltSegment>,
}

#[derive(Debug)]
pub(crate) struct State {
    /// The batch that takes writes, with the number of changes before it.
    open: Batch,
    batches: u64,
    /// Batches on their way, the oldest first.
    sealed: VecDeque<SealedBatch>,
    /// Uploads for the committer, in the same order.
    uploads: VecDeque<Upload>,
    pub(crate) map: Map,
    /// The next number of a record.
    pub(crate) next: u64,
    pub(crate) epochs: Vec<u64>,
    /// Changes of the whole history: made, and in the store.
    made: u64,
    through: u64,
    /// Size in bytes, as the store has it.
    size: u64,
    /// Bytes of data that may be accepted before the store's room is measured again.
    budget: u64,
    /// Bytes of records that are deleted once there is a newer map.
    dead_records: u64,
    /// The flush file. None: flushes go to the store alone.
    pub(crate) local: Option<Arc<Local>>,
    /// True if the store has a record that flushes may be in that file only: in the records that
    /// exist, and in all that were begun.
    recorded_local: bool,
    tells_local: bool,
    /// The record up to which there is a whole map, and the number of entries since.
    pub(crate) mapped: u64,
    since: u64,
    /// True while a map is being written.
    mapping: bool,
    /// Time of the last check that found no other writer. `None`: unknown.
    looked: Option<BootStamp>,
    /// Time of the last check for an earlier record, and the newest record then.
    traced: (BootStamp, u64),
    /// True while a check is in progress.
    looking: bool,
    /// True while the volume is being closed: nothing is moved any more.
    pub(crate) closing: bool,
    /// True if it is no clone, or has told its parent that it needs nothing of it any more.
    alone: bool,
    /// The reason why nothing is served any more.
    pub(crate) dead: Option<Fault>,
}

impl State {
    /// Returns the first record that doesn't exist yet, or that the map doesn't have yet.
    fn not_there(&self) -> u64 {
        self.sealed.front().map_or(self.next, |first| first.seq)
    }

    /// Returns true if a record may be deleted.
    fn spares(&self, seq: u64) -> bool {
        self.map.spares(seq, self.mapped, &self.epochs)
    }
}

/// A volume in a store.
#[derive(Debug)]
pub(crate) struct Volume {
    /// Name of the device in log lines.
    device: Option<String>,
    pub(crate) store: Arc<Store>,
    /// Store of compaction, which is the same one with separate counts of requests.
    pub(crate) moves: Store,
    /// Locations of the segments of a clone's ancestors, in order.
    homes: Vec<Store>,
    pub(crate) writer: Writer,
    pub(crate) opening: Opening,
    pub(crate) codec: Codec,
    pub(crate) tuning: Tuning,
    /// Runtime of the volume's thread.
    runtime: Handle,
    lease: Duration,
    /// The clock of leases.
    clock: fn() -> BootStamp,
    /// Time until which changes wait, as the previous writer may still be believed.
    hold: BootStamp,
    /// L: is the lock; guards the volume's state. Never held across a wait.
    pub(crate) state: RwLock<State>,
    pub(crate) cache: Arc<Cache>,
    /// L: is the lock; guards the sequential readers.
    streams: Mutex<Streams>,
    /// Notified when there is a batch to commit.
    work: Notify,
    /// Notified when there may be something to compact.
    pub(crate) compacting: Notify,
    /// True while compaction doesn't keep up with writes.
    pub(crate) behind: watch::Sender<bool>,
    /// The last record that exists.
    pub(crate) durable: watch::Sender<u64>,
    /// Permits for blocks that may still be accepted.
    room: Semaphore,
    uploading: Semaphore,
    /// Held while a record is appended, and during a check whether another writer has appended one.
    appending: tokio::sync::Mutex<()>,
    /// Held while a snapshot is taken or deleted.
    snapshotting: Arc<tokio::sync::Mutex<()>>,
    /// L: is the lock; guards the reason why the volume's folder isn't found by its location, if it
    /// isn't.
    pub(super) moved: Mutex<Option<String>>,
    /// I: set once; the first object with data that was missing or damaged when it was read.
    damage: OnceLock<String>,
    /// L: is the lock; guards the reason why the store takes no writes, if it takes none.
    refusal: Mutex<Refusal>,
    /// Notified when something waits for the store.
    sent: Notify,
    /// I: set once the volume is open; gets the events, on the volume's thread.
    observer: OnceLock<Observer>,
}

impl Volume {
    /// Opens or makes the volume, and fences the writer that has it.
    pub(crate) async fn open(
        store: Arc<Store>,
        request: OpenRequest,
        tuning: Tuning,
    ) -> Result<Arc<Self>, NotOpen> {
        let opened = log::open(&store, &request).await?;
        let epoch = opened.writer.epoch;
        let state = State {
            open: Batch::default(),
            batches: 0,
            sealed: VecDeque::new(),
            uploads: VecDeque::new(),
            map: opened.map,
            next: epoch + 1,
            epochs: opened.epochs,
            made: opened.through,
            through: opened.through,
            size: opened.opening.size,
            budget: u64::MAX,
            dead_records: 0,
            local: None,
            recorded_local: opened.opening.local,
            tells_local: opened.opening.local,
            mapped: opened.mapped,
            since: 0,
            mapping: false,
            // The list is a while old: the first read checks again.
            looked: None,
            traced: ((request.clock)(), epoch),
            looking: false,
            closing: false,
            alone: opened.opening.origin.is_none(),
            dead: None,
        };
        let origin = opened.opening.origin.as_ref();
        let homes = origin.map_or(&[][..], |origin| &origin.homes);
        let volume = Arc::new(Self {
            device: request.device,
            moves: store.apart(),
            homes: homes.iter().map(|home| store.beside(home)).collect(),
            store,
            writer: opened.writer,
            opening: opened.opening,
            codec: opened.codec,
            tuning,
            runtime: Handle::current(),
            lease: request.lease,
            clock: request.clock,
            hold: (request.clock)().plus(opened.hold),
            state: RwLock::new(state),
            cache: Cache::new(tuning.cache),
            streams: Mutex::default(),
            work: Notify::new(),
            compacting: Notify::new(),
            behind: watch::Sender::new(false),
            durable: watch::Sender::new(epoch),
            room: Semaphore::new(tuning.dirty),
            uploading: Semaphore::new(UPLOADS),
            appending: tokio::sync::Mutex::new(()),
            snapshotting: Arc::default(),
            moved: Mutex::default(),
            damage: OnceLock::new(),
            refusal: Mutex::default(),
            sent: Notify::new(),
            observer: OnceLock::new(),
        });
        if volume.store.is_measured() {
            volume.measure().await;
        }
        tokio::spawn(Arc::clone(&volume).commit_all());
        volume.compacting.notify_one();
        tokio::spawn(Arc::clone(&volume).compact_all());
        tokio::spawn(Arc::clone(&volume).leave_parent());
        tokio::spawn(Arc::clone(&volume).watch_store());
        tokio::spawn(Arc::clone(&volume).watch_writes());
        if !opened.garbage.is_empty() {
            tokio::spawn(Arc::clone(&volume).delete(opened.garbage, false));
        }
        Ok(volume)
    }

    /// Writes blocks, or zeroes. It is done once they are in memory.
    pub(crate) async fn change(
        self: &Arc<Self>,
        start: u64,
        len: u64,
        chunk: Chunk,
    ) -> Result<(), Fault> {
        self.wait_for_others().await;
        let (blocks, bytes) = (chunk.blocks(len), chunk.bytes(len));
        if *self.behind.borrow() {
            // The wait is bounded: a store that can't be read from must not keep clients from
            // writing.
            let mut behind = self.behind.subscribe();
            let _ = timeout(BEHIND, behind.wait_for(|behind| !behind)).await;
        }
        loop {
            self.find_room(bytes).await?;
            self.wait_for_room(blocks).await?;
            let mut state = self.state.write();
            if let Some(dead) = &state.dead {
                return Err(dead.clone());
            }
            if bytes <= state.budget {
                self.accept(&mut state, start, len, chunk);
                return Ok(());
            }
            // Another write was faster.
            drop(state);
            self.room.add_permits(blocks);
        }
    }

    /// Tries [`change`](Self::change) for a caller that may not wait. False: nothing was done.
    pub(crate) fn change_at_once(
        self: &Arc<Self>,
        start: u64,
        len: u64,
        chunk: impl FnOnce() -> Chunk,
    ) -> bool {
        if self.holds() || *self.behind.borrow() {
            return false;
        }
        let chunk = chunk();
        let blocks = u32::try_from(chunk.blocks(len)).expect("a request is small");
        let Ok(room) = self.room.try_acquire_many(blocks) else { return false };
        let Some(mut state) = self.state.try_write() else { return false };
        if state.dead.is_some() || chunk.bytes(len) > state.budget {
            return false;
        }
        room.forget();
        self.accept(&mut state, start, len, chunk);
        true
    }

    /// Adds a change to the open batch.
    fn accept(self: &Arc<Self>, state: &mut State, start: u64, len: u64, chunk: Chunk) {
        let first = state.open.blocks == 0;
        state.made += 1;
        state.open.through = state.made;
        if let Some(local) = &state.local {
            local.note(local::LocalChange { index: state.made, start, len, chunk: chunk.clone() });
        }
        state.budget -= chunk.bytes(len);
        state.open.blocks += chunk.blocks(len);
        state.open.chunks.put(start, len, chunk, |_, _| ());
        if state.open.blocks >= self.tuning.batch {
            self.seal(state);
        } else if first {
            let (volume, batch) = (Arc::clone(self), state.batches);
            self.runtime.spawn(async move {
                sleep(volume.tuning.age).await;
                let mut state = volume.state.write();
                if state.batches == batch {
                    volume.seal(&mut state);
                }
            });
        }
    }

    /// Waits until no earlier writer may be believed any more.
    pub(crate) async fn wait_for_others(&self) {
        // The sleep is by another clock, so it may be late, and decides nothing.
        while self.holds() {
            sleep(self.hold.since((self.clock)())).await;
        }
    }

    /// Returns true if an earlier writer may still be believed.
    fn holds(&self) -> bool {
        (self.clock)() < self.hold
    }

    /// Returns the age of a check that began at that moment, if it still proves that there is no
    /// other writer.
    fn trusts(&self, looked: Option<BootStamp>) -> Option<Duration> {
        let age = (self.clock)().since(looked?);
        (age < self.lease).then_some(age)
    }

    /// Grows the volume.
    pub(crate) async fn grow(self: &Arc<Self>, size: u64) -> Result<(), Fault> {
        self.wait_for_others().await;
        // The change counts as a block, so that its batch isn't empty.
        self.wait_for_room(1).await?;
        {
            let mut state = self.state.write();
            if let Some(dead) = &state.dead {
                return Err(dead.clone());
            }
            state.open.blocks += 1;
            state.open.through = state.made;
            state.open.size = size;
        }
        self.flush_to_store().await
    }

    /// Takes permits for blocks, which are returned when their batch is durable.
    async fn wait_for_room(self: &Arc<Self>, blocks: usize) -> Result<(), Fault> {
        let blocks = u32::try_from(blocks).expect("a request is small");
        match self.room.try_acquire_many(blocks) {
            Ok(room) => {
                room.forget();
                return Ok(());
            }
            Err(TryAcquireError::Closed) => return Err(self.why_dead()),
            Err(TryAcquireError::NoPermits) => self.seal(&mut self.state.write()),
        }
        match within(self.tuning.patience, self.room.acquire_many(blocks)).await {
            Ok(Ok(room)) => {
                room.forget();
                Ok(())
            }
            Ok(Err(_)) => Err(self.why_dead()),
            Err(_) => Err(self.too_slow()),
        }
    }

    /// Returns a few words on a fault of the volume. It serves nothing any more, lacks data, isn't
    /// found by its location, has a store that takes no writes, or doesn't use its flush file.
    pub(crate) fn condition(&self) -> Option<String> {
        let dead = self.state.read().dead.as_ref().map(|dead| dead.to_string());
        let full = || self.refusal.lock().full().map(|why| Fault::Full(why).to_string());
        let stuck = || Some(format!("the store takes no writes: {}", self.refusal.lock().stuck()?));
        let file = || Some(format!("flushes wait for the store: {}", self.flush_file_fault()?));
        let damage = || Some(format!("data is missing or damaged: {}", self.damage.get()?));
        let moved = || self.moved.lock().clone();
        dead.or_else(damage).or_else(moved).or_else(full).or_else(stuck).or_else(file)
    }

    /// Returns what to do if the volume isn't found by its location, or doesn't use its flush file.
    pub(crate) fn displaced(&self) -> Option<&'static str> {
        let is_moved = self.moved.lock().is_some();
        if is_moved { Some(health::PUT_BACK) } else { self.flush_file_todo() }
    }

    /// Returns the name of the device in log lines.
    pub(crate) fn device(&self) -> Option<&str> {
        self.device.as_deref()
    }

    /// Returns true if another writer has opened the volume.
    pub(crate) fn is_fenced(&self) -> bool {
        matches!(self.state.read().dead, Some(Fault::Fenced(_)))
    }

    /// Returns what of the volume is missing from the store, or damaged there.
    pub(crate) fn damage(&self) -> Option<String> {
        match &self.state.read().dead {
            Some(Fault::Damaged(why)) => Some(why.clone()),
            _ => self.damage.get().cloned(),
        }
    }

    /// Returns true if nothing is served any more.
    pub(crate) fn has_ended(&self) -> bool {
        self.state.read().dead.is_some()
    }

    /// Returns true if this writer made the volume.
    pub(crate) fn is_new(&self) -> bool {
        self.writer.epoch == 1
    }

    /// Returns the earlier writers, and the number of changes that they left in the store, of the
    /// whole history.
    pub(crate) fn found(&self) -> (Vec<u64>, u64) {
        let state = self.state.read();
        let before = state.epochs.iter().filter(|epoch| **epoch != self.writer.epoch);
        (before.copied().collect(), self.opening.through)
    }

    pub(crate) fn writer(&self) -> Writer {
        self.writer
    }

    pub(crate) fn codec(&self) -> &Codec {
        &self.codec
    }

    /// Reports events to `observer` from now on.
    pub(crate) fn observe(&self, observer: Observer) {
        // The observer is set once.
        let _ = self.observer.set(observer);
        let dead = self.state.read().dead.clone();
        dead.iter().for_each(|dead| self.tell_end(dead));
    }

    pub(super) fn tell(&self, event: &ObjectEvent) {
        self.observer.get().into_iter().for_each(|observer| observer.tell(event));
    }

    pub(super) fn tell_end(&self, dead: &Fault) {
        match dead {
            Fault::Fenced(why) => self.tell(&ObjectEvent::Fenced { why: why.clone() }),
            Fault::Damaged(why) => self.tell(&ObjectEvent::Lost { why: why.clone() }),
            _ => {}
        }
    }

    fn why_dead(&self) -> Fault {
        self.state.read().dead.clone().unwrap_or(Fault::Closed)
    }

    /// Makes all writes durable: in the flush file, if there is one, or in the store.
    pub(crate) async fn flush(self: &Arc<Self>) -> Result<(), Fault> {
        let (local, last) = {
            let state = self.state.read();
            if let Some(dead) = &state.dead {
                return Err(dead.clone());
            }
            (state.local.clone(), state.made)
        };
        if let Some(local) = local {
            if local.sync(last).await {
                // Without the check, it would promise changes that another server may have replaced
                // long ago.
                return self.believe().await;
            }
            if local.fault().is_some() {
                return self.flush_without_file().await;
            }
        }
        self.flush_to_store().await
    }

    /// Makes writes durable in the store. A failure loses nothing: they are still sent, and a later
    /// flush may succeed.
    pub(crate) async fn flush_to_store(self: &Arc<Self>) -> Result<(), Fault> {
        let target = {
            let mut state = self.state.write();
            if let Some(dead) = &state.dead {
                return Err(dead.clone());
            }
            self.seal(&mut state);
            state.next - 1
        };
        let mut durable = self.durable.subscribe();
        let reached = durable.wait_for(|durable| *durable >= target);
        match within(self.tuning.patience, reached).await {
            Ok(Ok(reached)) if *reached != u64::MAX => Ok(()),
            Ok(_) => Err(self.why_dead()),
            Err(_) => Err(self.too_slow()),
        }
    }

    fn too_slow(&self) -> Fault {
        let why = format!("no acknowledgement of the writes in time{}", self.store.trouble());
        if self.store.is_full() { Fault::Full(why) } else { Fault::Store(why) }
    }

    /// Seals the open batch: gives it a number, and sends it on its way.
    fn seal(self: &Arc<Self>, state: &mut State) {
        if state.open.blocks == 0 || state.dead.is_some() {
            return;
        }
        let batch = Arc::new(std::mem::take(&mut state.open));
        state.batches += 1;
        let (told, done) = oneshot::channel();
        let seq = self.send(state, Arc::clone(&batch), done);
        let volume = Arc::clone(self);
        self.runtime.spawn(async move {
            if let Some(built) = volume.upload(seq, batch).await {
                let _ = told.send(built);
            }
        });
    }

    /// Sends changes on their way under a new number: they are recorded once `done` returns them.
    pub(crate) fn send(
        &self,
        state: &mut State,
        batch: Arc<Batch>,
        done: oneshot::Receiver<BuiltSegment>,
    ) -> u64 {
        let seq = state.next;
        state.next += 1;
        let blocks = batch.blocks;
        state.sealed.push_back(SealedBatch { seq, batch });
        state.uploads.push_back(Upload { seq, blocks, done });
        self.work.notify_one();
        self.sent.notify_one();
        seq
    }

    /// Flushes, and records in the log that this writer has ended.
    pub(crate) async fn close(self: &Arc<Self>) -> Result<(), Fault> {
        self.state.write().closing = true;
        let closed = self.close_now().await;
        self.state.write().closing = false;
        self.compacting.notify_one();
        closed
    }

    async fn close_now(self: &Arc<Self>) -> Result<(), Fault> {
        // With this, nothing is lost whatever the store does.
        let (local, last) = {
            let state = self.state.read();
            (state.local.clone(), state.made)
        };
        let kept = match local {
            Some(local) => local.sync(last).await,
            None => false,
        };
        let writes = if kept { KEPT_THERE } else { MAY_BE_LOST };
        let lost = |fault| match fault {
            Fault::Store(why) => Fault::Store(format!("{why}; {writes}")),
            Fault::Full(why) => Fault::Full(format!("{why}; {writes}")),
            // The file isn't replayed over another server's changes, nor into a store that lost
            // some.
            Fault::Fenced(why) => Fault::Fenced(format!("{why}; {MAY_BE_LOST}")),
            Fault::Damaged(why) => Fault::Damaged(format!("{why}; {MAY_BE_LOST}")),
            other => other,
        };
        self.flush_to_store().await.map_err(lost)?;
        self.find_trace().await.map_err(lost)?;
        let seq = {
            let mut state = self.state.write();
            if let Some(dead) = &state.dead {
                return Err(dead.clone());
            }
            if state.open.blocks != 0 || !state.sealed.is_empty() {
                let why = format!("a write came while the volume was being closed; {MAY_BE_LOST}");
                return Err(Fault::Store(why));
            }
            // This comes before the record exists: from then on no client gets data that a next
            // writer may have changed.
            state.dead = Some(Fault::Closed);
            state.next
        };
        self.end(Fault::Closed);
        if self.holds() {
            // The previous writer may still be believed, so the next one has to wait: it finds no
            // end.
            return self.is_where_it_was().await;
        }
        let (head, object) = self.codec.object(Kind::Close, (seq, self.writer), &[]);
        let _alone = self.appending.lock().await;
        match log::append(&self.store, &head, &[object], Some(self.tuning.patience)).await {
            Ok(AppendOutcome::Ours) => self.is_where_it_was().await,
            Ok(AppendOutcome::Others(found)) => Err(Fault::Fenced(format!(
                "another server has opened the volume (record {})",
                found.seq
            ))),
            Err(why) => Err(Fault::Store(format!(
                "{why}; the store has all writes, but not the record of the end, so the next \
                 server waits for the lease"
            ))),
        }
    }
}
