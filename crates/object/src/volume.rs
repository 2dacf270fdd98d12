//! A volume that is open: writes that aren't in the store yet, the map of those that are, and the belief that there is no other server.
//!
//! A write is done once it is in the batch that is open. A batch is sealed when it is large, when somebody flushes, and a while
//! after its first write. Its segment is uploaded; its record is appended behind those of all batches before it; then the map
//! has it. README.md has the protocol.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use corewise_sync::Mutex;
use futures_util::future::try_join_all;
use tokio::sync::{Notify, Semaphore, TryAcquireError, oneshot, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::batch::{Batch, Chunk};
use crate::format::{BLOCK, Changes, HEAD, Head, Kind, Opening, Place, frame_data, object};
use crate::log::{self, Appended, Ask, NotOpen, Writer};
use crate::map::Map;
use crate::policy;
use crate::store::{Failure, Store, Tries};

/// How often a read looks again where a segment was gone.
const LOOKS: usize = 8;
/// Segments that are uploaded at the same time.
const UPLOADS: usize = 4;
/// Pause between two deletions.
const DELETE_PAUSE: Duration = Duration::from_millis(10);

/// Why a volume doesn't do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Another writer has opened it. For good.
    Fenced(String),
    /// It was closed. For good.
    Closed,
    /// The store doesn't answer in time.
    Store(String),
    /// Something in the store isn't as it was written.
    Damaged(String),
}

/// What a volume takes and waits for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tuning {
    /// Blocks of a batch that is sealed for its size.
    pub(crate) batch: usize,
    /// Blocks that may wait for the store.
    pub(crate) dirty: usize,
    /// How long a write waits at most before it is sent, if nobody flushes.
    pub(crate) age: Duration,
    /// How long a request waits for the store.
    pub(crate) patience: Duration,
    /// Records behind a whole map that are few: see [`policy::map_is_due`].
    pub(crate) few: u64,
}

/// A part of what was read.
#[derive(Clone, Debug)]
pub(crate) enum Part {
    Data(Bytes),
    /// So many blocks.
    Zero(u64),
}

/// Where a part of what is to be read lies.
#[derive(Clone, Debug)]
enum Source {
    Here(Part),
    /// First block, number of blocks.
    There(Place, u64),
}

/// A batch on its way.
#[derive(Debug)]
struct Sealed {
    seq: u64,
    batch: Arc<Batch>,
}

/// A sealed batch that the committer gets.
#[derive(Debug)]
struct Upload {
    seq: u64,
    blocks: usize,
    changes: Changes,
    done: oneshot::Receiver<()>,
}

#[derive(Debug)]
struct State {
    /// The batch that takes writes.
    open: Batch,
    /// Those on their way, the oldest first.
    sealed: VecDeque<Sealed>,
    /// For the committer, in the same order.
    uploads: VecDeque<Upload>,
    map: Map,
    /// The number of the record of the open batch.
    next: u64,
    epochs: Vec<u64>,
    /// The record up to which there is a whole map, and entries of records since.
    mapped: u64,
    since: u64,
    /// When it was last known that there is no other writer.
    looked: Instant,
    /// Somebody looks already.
    looking: bool,
    /// Why nothing is served any more.
    dead: Option<Fault>,
}

/// A volume in a store.
#[derive(Debug)]
pub(crate) struct Volume {
    pub(crate) store: Arc<Store>,
    writer: Writer,
    pub(crate) opening: Opening,
    tuning: Tuning,
    lease: Duration,
    /// Changes wait until then: the writer before may still be believed.
    hold: Instant,
    /// L: is the lock; guards what the volume is at. Never held across a wait.
    state: Mutex<State>,
    /// There is a batch to commit.
    work: Notify,
    /// The last record that is there.
    durable: watch::Sender<u64>,
    /// Blocks that may still come.
    room: Semaphore,
    uploading: Semaphore,
    /// Held while a record is appended, and while it is looked whether somebody else has appended one.
    appending: tokio::sync::Mutex<()>,
}

impl Volume {
    /// Opens or makes it, and fences the writer that has it.
    pub(crate) async fn open(
        store: Arc<Store>,
        ask: Ask,
        tuning: Tuning,
    ) -> Result<Arc<Self>, NotOpen> {
        let opened = log::open(&store, &ask).await?;
        let epoch = opened.writer.epoch;
        let state = State {
            open: Batch::default(),
            sealed: VecDeque::new(),
            uploads: VecDeque::new(),
            map: opened.map,
            next: epoch + 1,
            epochs: opened.epochs,
            mapped: opened.mapped,
            since: 0,
            // It was there when the list was made, which is a while ago: the first read looks.
            looked: Instant::now() - ask.lease,
            looking: false,
            dead: None,
        };
        let volume = Arc::new(Self {
            store,
            writer: opened.writer,
            opening: opened.opening,
            tuning,
            lease: ask.lease,
            hold: Instant::now() + opened.hold,
            state: Mutex::new(state),
            work: Notify::new(),
            durable: watch::Sender::new(epoch),
            room: Semaphore::new(tuning.dirty),
            uploading: Semaphore::new(UPLOADS),
            appending: tokio::sync::Mutex::new(()),
        });
        tokio::spawn(Arc::clone(&volume).commit_all());
        if !opened.garbage.is_empty() {
            tokio::spawn(Arc::clone(&volume).delete(opened.garbage));
        }
        Ok(volume)
    }

    /// Writes blocks, or zeroes. Done once it is in memory.
    pub(crate) async fn change(
        self: &Arc<Self>,
        start: u64,
        len: u64,
        chunk: Chunk,
    ) -> Result<(), Fault> {
        if Instant::now() < self.hold {
            sleep_until(self.hold).await;
        }
        let blocks = match &chunk {
            Chunk::Data(_) => len as usize,
            Chunk::Zero => 1,
        };
        self.wait_for_room(blocks).await?;
        let mut state = self.state.lock();
        if let Some(dead) = &state.dead {
            return Err(dead.clone());
        }
        let first = state.open.blocks == 0;
        state.open.chunks.put(start, len, chunk, |_, _| ());
        state.open.blocks += blocks;
        if state.open.blocks >= self.tuning.batch {
            self.seal(&mut state);
        } else if first {
            let (volume, seq) = (Arc::clone(self), state.next);
            tokio::spawn(async move {
                sleep(volume.tuning.age).await;
                let mut state = volume.state.lock();
                if state.next == seq {
                    volume.seal(&mut state);
                }
            });
        }
        Ok(())
    }

    /// Takes room for blocks, which is given back when their batch is durable.
    async fn wait_for_room(self: &Arc<Self>, blocks: usize) -> Result<(), Fault> {
        let blocks = u32::try_from(blocks).expect("a request is small");
        match self.room.try_acquire_many(blocks) {
            Ok(room) => {
                room.forget();
                return Ok(());
            }
            Err(TryAcquireError::Closed) => return Err(self.why_dead()),
            Err(TryAcquireError::NoPermits) => self.seal(&mut self.state.lock()),
        }
        match timeout(self.tuning.patience, self.room.acquire_many(blocks)).await {
            Ok(Ok(room)) => {
                room.forget();
                Ok(())
            }
            Ok(Err(_)) => Err(self.why_dead()),
            Err(_) => {
                Err(Fault::Store("it doesn't take what was written so far: no more room".into()))
            }
        }
    }

    /// Why it serves nothing any more, in a few words.
    pub(crate) fn why_ended(&self) -> Option<String> {
        match self.state.lock().dead.as_ref()? {
            Fault::Closed => Some("closed".into()),
            Fault::Fenced(why) | Fault::Store(why) | Fault::Damaged(why) => Some(why.clone()),
        }
    }

    fn why_dead(&self) -> Fault {
        self.state.lock().dead.clone().unwrap_or(Fault::Closed)
    }

    /// Makes durable what was written. A failure loses nothing: it is sent on, and a later flush may succeed.
    pub(crate) async fn flush(self: &Arc<Self>) -> Result<(), Fault> {
        let target = {
            let mut state = self.state.lock();
            if let Some(dead) = &state.dead {
                return Err(dead.clone());
            }
            self.seal(&mut state);
            state.next - 1
        };
        let mut durable = self.durable.subscribe();
        let reached = durable.wait_for(|durable| *durable >= target);
        match timeout(self.tuning.patience, reached).await {
            Ok(Ok(reached)) if *reached != u64::MAX => Ok(()),
            Ok(_) => Err(self.why_dead()),
            Err(_) => Err(Fault::Store("it doesn't take what was written in time".into())),
        }
    }

    /// Gives the open batch its number, and sends it on its way.
    fn seal(self: &Arc<Self>, state: &mut State) {
        if state.open.blocks == 0 || state.dead.is_some() {
            return;
        }
        let batch = Arc::new(std::mem::take(&mut state.open));
        let seq = state.next;
        state.next += 1;
        let (payload, changes) = batch.segment(seq, self.writer.epoch, self.writer.nonce);
        let (told, done) = oneshot::channel();
        let blocks = batch.blocks;
        state.sealed.push_back(Sealed { seq, batch });
        state.uploads.push_back(Upload { seq, blocks, changes, done });
        let volume = Arc::clone(self);
        tokio::spawn(async move {
            volume.upload(seq, &payload).await;
            let _ = told.send(());
        });
        self.work.notify_one();
    }

    /// Puts a segment into the store, and looks whether it is there.
    async fn upload(&self, seq: u64, payload: &[Bytes]) {
        if payload.is_empty() {
            return;
        }
        let _turn = self.uploading.acquire().await;
        let bytes: u64 = payload.iter().map(|part| part.len() as u64).sum();
        let name = log::segment(seq, self.writer.epoch);
        let mut tries = Tries::new(None);
        loop {
            let asked = self.store.put(&name, payload, false).await;
            let why = match (asked, self.store.size(&name).await) {
                (_, Ok(found)) if found == bytes => return,
                (Err(Failure::Other(why)), _) | (_, Err(Failure::Other(why))) => why,
                _ => "it took a segment that isn't there".into(),
            };
            tries.again("a segment", &why).await;
        }
    }

    /// Appends the records of all batches, one behind the other.
    async fn commit_all(self: Arc<Self>) {
        loop {
            let Some(mut upload) = self.next_upload().await else { return };
            if (&mut upload.done).await.is_err() {
                return;
            }
            let Writer { epoch, nonce } = self.writer;
            let body = upload.changes.encode();
            let head = Head::new(Kind::Commit, upload.seq, epoch, nonce, &body);
            if !self.append(&head, &body).await {
                return;
            }
            let dead = self.apply(&upload);
            self.room.add_permits(upload.blocks);
            self.durable.send_modify(|durable| *durable = upload.seq.max(*durable));
            if !dead.is_empty() {
                let names = dead.into_iter().map(|(seq, epoch)| log::segment(seq, epoch));
                tokio::spawn(Arc::clone(&self).delete(names.collect()));
            }
            self.write_map(upload.seq).await;
        }
    }

    async fn next_upload(&self) -> Option<Upload> {
        loop {
            {
                let mut state = self.state.lock();
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

    /// Appends a record. False: there is another writer.
    async fn append(&self, head: &Head, body: &[u8]) -> bool {
        let _alone = self.appending.lock().await;
        let began = Instant::now();
        match log::append(&self.store, head, body, None).await {
            Ok(Appended::Ours) => {
                self.state.lock().looked = began;
                true
            }
            Ok(Appended::Others(found)) => {
                self.fenced(&found);
                false
            }
            // It is tried for ever.
            Err(_) => false,
        }
    }

    /// The map has what the batch had. The segments that are no longer needed.
    fn apply(&self, upload: &Upload) -> Vec<(u64, u64)> {
        let mut state = self.state.lock();
        let dead = state.map.apply(upload.seq, self.writer.epoch, &upload.changes);
        state.since += upload.changes.entries.len() as u64;
        if state.sealed.front().is_some_and(|first| first.seq == upload.seq) {
            state.sealed.pop_front();
        }
        dead
    }

    /// Another writer has begun.
    fn fenced(&self, by: &Head) {
        let why = format!("another server has opened the volume (record {})", by.seq);
        tracing::error!(at = %self.store, "{why}; this one serves it no more");
        self.end(Fault::Fenced(why));
    }

    /// Nothing is served any more.
    fn end(&self, why: Fault) {
        self.state.lock().dead.get_or_insert(why);
        self.room.close();
        self.durable.send_replace(u64::MAX);
        self.work.notify_one();
    }

    /// Writes the whole map where the records since the last one have become many, and deletes those.
    async fn write_map(self: &Arc<Self>, seq: u64) {
        let Writer { epoch, nonce } = self.writer;
        let (body, records, before) = {
            let state = self.state.lock();
            let (records, places) = (seq - state.mapped, state.map.places.len() as u64);
            if !policy::map_is_due(records, self.tuning.few, state.since, places) {
                return;
            }
            let whole = state.map.whole(self.opening.clone(), state.epochs.clone());
            // The last one stays: by it, a writer that creates a record in a place that was cleared finds that it did.
            let old = (state.mapped.max(1)..seq).filter(|seq| !state.epochs.contains(seq));
            (whole.encode(), old.collect::<Vec<_>>(), state.mapped)
        };
        let head = Head::new(Kind::Map, seq, epoch, nonce, &body);
        let data = [object(&head, &body)];
        let name = log::whole_map(seq, epoch);
        let written = self.store.put(&name, &data, false).await;
        let found = self.store.size(&name).await;
        if written.is_err() || found != Ok(data[0].len() as u64) {
            // The next record is as good a time.
            return;
        }
        let mut state = self.state.lock();
        (state.mapped, state.since) = (seq, 0);
        drop(state);
        let mut old: Vec<String> = records.into_iter().map(log::record).collect();
        if before > self.writer.epoch {
            old.push(log::whole_map(before, epoch));
        }
        tokio::spawn(Arc::clone(self).delete(old));
    }

    /// Deletes objects, at a bounded rate. One that stays is found when the volume is opened again.
    async fn delete(self: Arc<Self>, names: Vec<String>) {
        for name in names {
            let mut tries = Tries::new(Some(self.tuning.patience));
            while let Err(Failure::Other(why)) = self.store.delete(&name).await {
                if !tries.again(&name, &why).await {
                    break;
                }
            }
            sleep(DELETE_PAUSE).await;
        }
    }

    /// The blocks of a range.
    pub(crate) async fn read(self: &Arc<Self>, start: u64, len: u64) -> Result<Vec<Part>, Fault> {
        let mut missed = String::new();
        for _ in 0..LOOKS {
            let sources = self.sources(start, len)?;
            match self.fetch(sources).await? {
                Ok(parts) => {
                    // It is as it was when it was looked up, so it is old if there is another writer.
                    self.believe().await?;
                    return Ok(parts);
                }
                // It was collected meanwhile, by this writer or by a later one.
                Err(name) => {
                    self.look(true).await?;
                    missed = name;
                }
            }
        }
        Err(Fault::Damaged(format!("{missed} is missing")))
    }

    /// Where a range lies now.
    fn sources(&self, start: u64, len: u64) -> Result<Vec<Source>, Fault> {
        let state = self.state.lock();
        if let Some(dead) = &state.dead {
            return Err(dead.clone());
        }
        let mut sources = Vec::new();
        let batches = state.sealed.iter().map(|sealed| &*sealed.batch).rev();
        let batches: Vec<&Batch> = std::iter::once(&state.open).chain(batches).collect();
        look_up(&batches, &state.map, start, len, &mut sources);
        Ok(sources)
    }

    /// What lies there. An inner error: a segment is missing.
    async fn fetch(&self, sources: Vec<Source>) -> Result<Result<Vec<Part>, String>, Fault> {
        let places: Vec<Place> = sources
            .iter()
            .filter_map(|source| match source {
                Source::There(place, _) => Some(*place),
                Source::Here(_) => None,
            })
            .collect();
        let spans = policy::spans(&places);
        let fetched = try_join_all(spans.iter().map(|span| self.fetch_span(span))).await?;
        let mut parts = Vec::with_capacity(sources.len());
        for source in sources {
            match source {
                Source::Here(part) => parts.push(part),
                Source::There(place, len) => {
                    let found = spans.iter().position(|span| span.has(&place));
                    let span = found.expect("the spans were made of all places");
                    let Some(bytes) = &fetched[span] else {
                        return Ok(Err(self.segment_name(&place)));
                    };
                    let from = (place.at - spans[span].from) as usize;
                    let frame = bytes.slice(from..from + place.stored as usize);
                    let data = frame_data(&frame).map_err(|why| {
                        Fault::Damaged(format!("{}: {why}", self.segment_name(&place)))
                    })?;
                    let from = u64::from(place.skip) * BLOCK;
                    let to = from + len * BLOCK;
                    if to > data.len() as u64 {
                        let why = format!("{}: a frame is too short", self.segment_name(&place));
                        return Err(Fault::Damaged(why));
                    }
                    parts.push(Part::Data(data.slice(from as usize..to as usize)));
                }
            }
        }
        Ok(Ok(parts))
    }

    fn segment_name(&self, place: &Place) -> String {
        let state = self.state.lock();
        let epoch = state.map.segments.get(&place.segment).map_or(0, |segment| segment.epoch);
        log::segment(place.segment, epoch)
    }

    /// Bytes of a segment. `None`: it is missing.
    async fn fetch_span(&self, span: &policy::Span) -> Result<Option<Bytes>, Fault> {
        let epoch = {
            let state = self.state.lock();
            state.map.segments.get(&span.segment).map(|segment| segment.epoch)
        };
        let Some(epoch) = epoch else { return Ok(None) };
        let name = log::segment(span.segment, epoch);
        let range = Some(u64::from(span.from)..u64::from(span.to));
        let want = (span.to - span.from) as usize;
        match log::fetch(&self.store, &name, range, Some(self.tuning.patience)).await {
            Ok(Some(bytes)) if bytes.len() != want => {
                Err(Fault::Damaged(format!("{name} is too short")))
            }
            Ok(found) => Ok(found),
            Err(why) => Err(Fault::Store(why)),
        }
    }

    /// Waits until it is sure that at a moment that is no longer ago than the lease there was no other writer.
    async fn believe(self: &Arc<Self>) -> Result<(), Fault> {
        let age = {
            let state = self.state.lock();
            if let Some(dead) = &state.dead {
                return Err(dead.clone());
            }
            state.looked.elapsed()
        };
        if age >= self.lease {
            return self.look(false).await;
        }
        // Before it has run out, so that nobody waits.
        if age >= self.lease / 2 && !std::mem::replace(&mut self.state.lock().looking, true) {
            let volume = Arc::clone(self);
            tokio::spawn(async move {
                let _ = volume.look(true).await;
                volume.state.lock().looking = false;
            });
        }
        Ok(())
    }

    /// Looks whether there is another writer: `always`, or unless somebody else has just looked.
    async fn look(&self, always: bool) -> Result<(), Fault> {
        let _alone = self.appending.lock().await;
        let mut tries = Tries::new(Some(self.tuning.patience));
        loop {
            let began = Instant::now();
            let name = {
                let state = self.state.lock();
                if let Some(dead) = &state.dead {
                    return Err(dead.clone());
                }
                if !always && state.looked.elapsed() < self.lease {
                    return Ok(());
                }
                let next = state.sealed.front().map_or(state.next, |first| first.seq);
                log::record(next)
            };
            // LookForNext
            let why = match self.store.get(&name, Some(0..HEAD as u64)).await {
                Err(Failure::Missing) => {
                    self.state.lock().looked = began;
                    return Ok(());
                }
                Ok(found) => match Head::decode(&found) {
                    // It was appended just now, and the map doesn't have it yet.
                    Ok(found) if found.writer == self.writer.nonce => "it is our own".into(),
                    Ok(found) => {
                        self.fenced(&found);
                        return Err(self.why_dead());
                    }
                    Err(damaged) => damaged.to_string(),
                },
                Err(Failure::Other(why)) => why,
                Err(Failure::Exists) => "it gave no object".into(),
            };
            if !tries.again("the next record", &why).await {
                return Err(Fault::Store(why));
            }
        }
    }

    /// Which parts of a range hold data: number of blocks, and whether they do, in order.
    pub(crate) fn extents(&self, start: u64, len: u64) -> Result<Vec<(u64, bool)>, Fault> {
        let sources = self.sources(start, len)?;
        let of = |source| match source {
            Source::Here(Part::Zero(len)) => (len, false),
            Source::Here(Part::Data(data)) => (data.len() as u64 / BLOCK, true),
            Source::There(_, len) => (len, true),
        };
        Ok(sources.into_iter().map(of).collect())
    }

    /// Flushes, and says in the log that this writer has ended.
    pub(crate) async fn close(self: &Arc<Self>) -> Result<(), Fault> {
        self.flush().await?;
        let seq = {
            let mut state = self.state.lock();
            if let Some(dead) = &state.dead {
                return Err(dead.clone());
            }
            if state.open.blocks != 0 || !state.sealed.is_empty() {
                return Err(Fault::Store("something was written while it was closed".into()));
            }
            // Before the record is there: from then on nobody is told anything that a next writer may have changed.
            state.dead = Some(Fault::Closed);
            state.next
        };
        self.end(Fault::Closed);
        if Instant::now() < self.hold {
            // The writer before may still be believed, so the next one has to wait: it finds no end.
            return Ok(());
        }
        let head = Head::new(Kind::Close, seq, self.writer.epoch, self.writer.nonce, &[]);
        let _alone = self.appending.lock().await;
        match log::append(&self.store, &head, &[], Some(self.tuning.patience)).await {
            Ok(Appended::Ours) => Ok(()),
            Ok(Appended::Others(found)) => {
                Err(Fault::Fenced(format!("another server has opened it (record {})", found.seq)))
            }
            Err(why) => Err(Fault::Store(why)),
        }
    }
}

/// Looks a range up in the batches, the newest first, and then in the map.
fn look_up(batches: &[&Batch], map: &Map, start: u64, len: u64, sources: &mut Vec<Source>) {
    let Some((first, older)) = batches.split_first() else {
        for (_, len, place) in map.places.parts(start, len) {
            sources.push(match place {
                Some(place) => Source::There(place, len),
                None => Source::Here(Part::Zero(len)),
            });
        }
        return;
    };
    if first.chunks.is_empty() {
        return look_up(older, map, start, len, sources);
    }
    for (start, len, chunk) in first.chunks.parts(start, len) {
        match chunk {
            Some(Chunk::Zero) => sources.push(Source::Here(Part::Zero(len))),
            Some(Chunk::Data(data)) => {
                let data = data.slice(..(len * BLOCK) as usize);
                sources.push(Source::Here(Part::Data(data)));
            }
            None => look_up(older, map, start, len, sources),
        }
    }
}
