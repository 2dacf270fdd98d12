//! Reads of a volume: the addresses of blocks, their content, and the check whether it may be
//! returned.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::pin::pin;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::{FutureExt as _, try_join_all};

use super::cache::{CacheLookup, Fetch, Key};
use super::policy;
use super::{Fault, Part, State, Volume};
use crate::format::{
    BLOCK, Batch, BlockPlace, Chunk, Codec, FrameAddress, HEAD, Head, Map, Segment, names,
};
use crate::log;
use crate::store::{Failure, Retries, Store, within};

/// Number of attempts of a read when a segment was gone.
const LOOKS: usize = 8;

/// Bytes above which another thread decodes: this one serves all clients.
const ELSEWHERE: u32 = 256 << 10;
/// Maximum bytes ahead of one sequential reader, and the divisor for its maximum part of the cache:
/// eight of them take half of it.
const AHEAD: u64 = 16 << 20;
const AHEAD_PART: u64 = 16;

/// Source of a part of a read.
#[derive(Clone, Debug)]
enum Source {
    Memory(Part),
    Store(StoredRange),
}

/// Address of blocks in a segment, as it was known at the lookup.
#[derive(Clone, Copy, Debug)]
pub(super) struct StoredRange {
    /// The first of the blocks.
    start: u64,
    /// Number of blocks.
    pub(super) len: u64,
    pub(super) place: BlockPlace,
    pub(super) segment: Option<Segment>,
}

impl StoredRange {
    pub(super) fn key(&self) -> Key {
        (self.segment.map_or(0, |segment| segment.id), self.place.at)
    }

    fn damaged(&self, why: &str) -> Fault {
        Fault::Damaged(format!("{}: {why}", self.name()))
    }

    fn name(&self) -> String {
        self.segment.map_or_else(|| names::segment(self.place.segment, 0), |of| of.name())
    }

    /// Returns these blocks of the frame.
    pub(super) fn part(&self, frame: &Bytes) -> Result<Part, Fault> {
        let from = u64::from(self.place.skip) * BLOCK;
        let to = from + self.len * BLOCK;
        if to > frame.len() as u64 {
            return Err(self.damaged("a frame is too short"));
        }
        Ok(Part::Data(frame.slice(from as usize..to as usize)))
    }

    pub(super) fn spot(&self) -> FrameAddress {
        let (id, at) = self.key();
        FrameAddress { id, at, start: self.start - u64::from(self.place.skip) }
    }
}

impl Volume {
    /// Reads the blocks of a range.
    pub(crate) async fn read(self: &Arc<Self>, start: u64, len: u64) -> Result<Vec<Part>, Fault> {
        // Several requests, each with its own retries.
        let read = within(self.tuning.patience, self.read_now(start, len)).await;
        let read = read.unwrap_or_else(|_| Err(self.unanswered()));
        if let Err(Fault::Damaged(why)) = &read {
            if !self.has_ended() {
                self.lacks_data(why);
            }
        }
        read
    }

    async fn read_now(self: &Arc<Self>, start: u64, len: u64) -> Result<Vec<Part>, Fault> {
        let mut failed = String::new();
        for _ in 0..LOOKS {
            let sources = self.sources(start, len)?;
            let mut fetch = pin!(self.fetch(sources));
            // The read's own blocks come first.
            let fetched = fetch.as_mut().now_or_never();
            self.read_ahead(start, len);
            let fetched = match fetched {
                Some(fetched) => fetched,
                None => fetch.await,
            };
            // It was compacted meanwhile, by this writer or a later one; another record may have
            // taken the place of a record since.
            let why = match fetched {
                Ok(Ok(parts)) => {
                    // The data is as it was at the lookup, so it is old if there is another writer.
                    self.believe().await?;
                    return Ok(parts);
                }
                Ok(Err(name)) => format!("{name} is missing"),
                Err(Fault::Damaged(why)) if why != failed => why,
                Err(fault) => return Err(fault),
            };
            self.look(true).await?;
            failed = why;
        }
        Err(Fault::Damaged(failed))
    }

    /// Returns the blocks of a range if they are in memory, for a caller that may not wait. `None`:
    /// [`read`](Self::read) has to decide.
    pub(crate) fn read_at_once(self: &Arc<Self>, start: u64, len: u64) -> Option<Vec<Part>> {
        let (sources, looked, looking) = {
            let state = self.state.try_read()?;
            (state.sources(start, len).ok()?, state.looked, state.looking)
        };
        let (mut hits, mut misses) = (0, 0);
        let mut parts = Vec::with_capacity(sources.len());
        let mut work = 0;
        for source in sources {
            parts.push(match source {
                Source::Memory(part) => part,
                Source::Store(lies) => match self.cache.kept(lies.key()) {
                    Some(frame) if lies.segment.is_some() => {
                        hits += 1;
                        lies.part(&frame).ok()?
                    }
                    _ => {
                        misses += 1;
                        work += lies.place.stored;
                        if self.codec.is_work() && work > ELSEWHERE {
                            return None;
                        }
                        self.cached_by_host(&lies)?
                    }
                },
            });
        }
        // Believe, as in a read that waits; only the volume's thread asks the store.
        let age = self.trusts(looked)?;
        if age >= self.lease / 2 && !looking {
            return None;
        }
        // Data in the host's cache isn't fetched ahead. One missed read makes no difference to a
        // stream.
        let streams = if misses == 0 { self.streams.try_lock() } else { None };
        let ahead = streams.and_then(|mut all| all.read(start, len, self.most_ahead()));
        if let Some(ahead) = ahead {
            drop(self.runtime.spawn(Arc::clone(self).fetch_ahead(ahead)));
        }
        self.cache.count(hits, misses);
        Some(parts)
    }

    /// Returns the present sources of a range.
    fn sources(&self, start: u64, len: u64) -> Result<Vec<Source>, Fault> {
        self.state.read().sources(start, len)
    }

    /// Fetches the content. An inner error: a segment is missing.
    async fn fetch(&self, sources: Vec<Source>) -> Result<Result<Vec<Part>, String>, Fault> {
        let frames = match self.frames(&there(&sources), false).await? {
            Ok(frames) => frames,
            Err(name) => return Ok(Err(name)),
        };
        let mut parts = Vec::with_capacity(sources.len());
        for source in sources {
            match source {
                Source::Memory(part) => parts.push(part),
                Source::Store(lies) => parts.push(lies.part(&frames[&lies.key()])?),
            }
        }
        Ok(Ok(parts))
    }

    /// Returns the blocks of frames, for a reader or `ahead` of one: from the cache, fetched here,
    /// or by another reader. An inner error: a segment is missing.
    async fn frames(
        &self,
        all: &[StoredRange],
        ahead: bool,
    ) -> Result<Result<HashMap<Key, Bytes>, String>, Fault> {
        let mut found = HashMap::new();
        let mut seen = HashSet::new();
        let mut wanted: Vec<StoredRange> =
            all.iter().filter(|lies| seen.insert(lies.key())).copied().collect();
        while !wanted.is_empty() {
            let (mut mine, mut others) = (Vec::new(), Vec::new());
            for lies in wanted.drain(..) {
                if lies.segment.is_none() {
                    return Ok(Err(lies.name()));
                }
                match self.cache.look(lies.key(), ahead) {
                    CacheLookup::Hit(data) => drop(found.insert(lies.key(), data)),
                    CacheLookup::InFlight(told) => others.push((lies, told)),
                    CacheLookup::Miss(fetch) => mine.push((lies, fetch)),
                }
            }
            // These come first, since others may wait for them.
            let places: Vec<BlockPlace> = mine.iter().map(|(lies, _)| lies.place).collect();
            let spans = policy::spans(&places);
            let mut by_span: Vec<Vec<(StoredRange, Fetch)>> =
                spans.iter().map(|_| Vec::new()).collect();
            for one in mine {
                let span = spans.iter().position(|span| span.has(&one.0.place));
                by_span[span.expect("the spans were made of all places")].push(one);
            }
            let fetches = spans.iter().zip(by_span).map(|(span, of)| self.fetch_span(span, of));
            for fetched in try_join_all(fetches).await? {
                match fetched {
                    Ok(frames) => found.extend(frames),
                    Err(name) => return Ok(Err(name)),
                }
            }
            for (lies, mut told) in others {
                let came = match told.wait_for(Option::is_some).await {
                    Ok(data) => data.clone(),
                    Err(_) => None,
                };
                match came {
                    Some(data) => drop(found.insert(lies.key(), data)),
                    // It failed there, possibly by another reader's timeout.
                    None => wanted.push(lies),
                }
            }
        }
        Ok(Ok(found))
    }

    /// Fetches the frames of a span. An inner error: the segment is missing.
    async fn fetch_span(
        &self,
        span: &policy::Span,
        frames: Vec<(StoredRange, Fetch)>,
    ) -> Result<Result<Vec<(Key, Bytes)>, String>, Fault> {
        let Some((first, _)) = frames.first() else { return Ok(Ok(Vec::new())) };
        let name = first.name();
        let store = self
            .home(first.segment.map_or(0, |segment| segment.home))
            .ok_or_else(|| first.damaged("the object belongs to no ancestor of the volume"))?;
        let range = Some(u64::from(span.from)..u64::from(span.to));
        let found = log::fetch(store, &name, range, Some(self.tuning.patience)).await;
        let Some(bytes) = found.map_err(Fault::Store)? else { return Ok(Err(name)) };
        if bytes.len() != (span.to - span.from) as usize {
            return Err(first.damaged("the object is too short"));
        }
        let (from, codec) = (span.from, self.codec.clone());
        let decode =
            move || frames.into_iter().map(|one| came(one, &bytes, from, &codec)).collect();
        let decoded: Result<_, Fault> = if self.codec.is_work() && span.to - from > ELSEWHERE {
            let elsewhere = tokio::task::spawn_blocking(decode).await;
            elsewhere
                .map_err(|_| Fault::Store("the blocks that came could not be decoded".into()))?
        } else {
            decode()
        };
        decoded.map(Ok)
    }

    /// Returns the store of a segment by its [home](Segment::home).
    pub(super) fn home(&self, home: u32) -> Option<&Store> {
        match home {
            0 => Some(&self.store),
            home => self.homes.get(home as usize - 1),
        }
    }

    /// Fetches the next blocks of a sequential reader.
    fn read_ahead(self: &Arc<Self>, start: u64, len: u64) {
        let ahead = self.streams.lock().read(start, len, self.most_ahead());
        let Some(ahead) = ahead else { return };
        let mut fetch = Box::pin(Arc::clone(self).fetch_ahead(ahead));
        // It begins now: otherwise reads that came together with this one would each request the
        // next blocks.
        if fetch.as_mut().now_or_never().is_none() {
            tokio::spawn(fetch);
        }
    }

    /// Returns the maximum number of blocks ahead of one reader.
    fn most_ahead(&self) -> u64 {
        (self.tuning.cache / AHEAD_PART).min(AHEAD) / BLOCK
    }

    async fn fetch_ahead(self: Arc<Self>, ahead: Range<u64>) {
        let Ok(sources) = self.sources(ahead.start, ahead.end - ahead.start) else { return };
        // The read that wants it finds out whether it came.
        let _ = self.frames(&there(&sources), true).await;
    }

    fn unanswered(&self) -> Fault {
        Fault::Store(format!("no answer in time{}", self.store.trouble()))
    }

    /// Waits until it is certain that at a moment no longer ago than the lease there was no other
    /// writer.
    pub(super) async fn believe(self: &Arc<Self>) -> Result<(), Fault> {
        let looked = {
            let state = self.state.read();
            if let Some(dead) = &state.dead {
                return Err(dead.clone());
            }
            state.looked
        };
        let Some(age) = self.trusts(looked) else {
            let looked = within(self.tuning.patience, self.look(false)).await;
            return looked.unwrap_or_else(|_| Err(self.unanswered()));
        };
        // The check comes before the lease has run out, so that no read waits.
        if age >= self.lease / 2 && !std::mem::replace(&mut self.state.write().looking, true) {
            let volume = Arc::clone(self);
            tokio::spawn(async move {
                let _ = volume.look(true).await;
                volume.state.write().looking = false;
            });
        }
        Ok(())
    }

    /// Checks whether there is another writer: `always`, or unless another caller has just checked.
    pub(crate) async fn look(&self, always: bool) -> Result<(), Fault> {
        // A record that the store doesn't take is retried for ever.
        let alone = within(self.tuning.patience, self.appending.lock()).await;
        let Ok(_alone) = alone else {
            return Err(Fault::Store(format!(
                "the store takes no record{}. Without one, this server can't verify that no other \
                 server has the volume",
                self.store.trouble()
            )));
        };
        let mut tries = Retries::new(Some(self.tuning.patience));
        loop {
            let began = (self.clock)();
            let name = {
                let state = self.state.read();
                if let Some(dead) = &state.dead {
                    return Err(dead.clone());
                }
                if !always && self.trusts(state.looked).is_some() {
                    return Ok(());
                }
                names::record(state.not_there())
            };
            // LookForNext
            let why = match self.store.get(&name, Some(0..HEAD as u64)).await {
                Err(Failure::Missing) => {
                    self.state.write().looked = Some(began);
                    return Ok(());
                }
                Ok(found) => match Head::decode(&found) {
                    // It was appended just now, and the map doesn't have it yet.
                    Ok(found) if found.writer == self.writer.nonce => {
                        "the record is this server's own".into()
                    }
                    Ok(found) => {
                        self.fenced(&found);
                        return Err(self.why_dead());
                    }
                    Err(damaged) => damaged.to_string(),
                },
                Err(Failure::Other(why)) => why,
                Err(Failure::Exists) => "the store returned no object".into(),
            };
            if !tries.again("the next record", &why).await {
                return Err(Fault::Store(why));
            }
        }
    }

    /// Returns the parts of a range by whether they hold data, in order, with their number of
    /// blocks. A copy takes a hole for zeroes.
    pub(crate) async fn extents(
        self: &Arc<Self>,
        start: u64,
        len: u64,
    ) -> Result<Vec<(u64, bool)>, Fault> {
        let sources = self.sources(start, len)?;
        self.believe().await?;
        let of = |source| match source {
            Source::Memory(Part::Zero(len)) => (len, false),
            Source::Memory(Part::Data(data)) => (data.len() as u64 / BLOCK, true),
            Source::Store(lies) => (lies.len, true),
        };
        Ok(sources.into_iter().map(of).collect())
    }
}

impl State {
    /// Returns the present sources of a range.
    fn sources(&self, start: u64, len: u64) -> Result<Vec<Source>, Fault> {
        if let Some(dead) = &self.dead {
            return Err(dead.clone());
        }
        let mut sources = Vec::new();
        let batches = self.sealed.iter().map(|sealed| &*sealed.batch).rev();
        let batches: Vec<&Batch> = std::iter::once(&self.open).chain(batches).collect();
        look_up(&batches, &self.map, start, len, &mut sources);
        Ok(sources)
    }
}

fn there(sources: &[Source]) -> Vec<StoredRange> {
    let lies = sources.iter().filter_map(|source| match source {
        Source::Store(lies) => Some(*lies),
        Source::Memory(_) => None,
    });
    lies.collect()
}

/// Decodes the blocks of a fetched frame, in bytes of its segment from `from` on, for the reader
/// and for all who wait for it.
fn came(
    (lies, fetch): (StoredRange, Fetch),
    bytes: &Bytes,
    from: u32,
    codec: &Codec,
) -> Result<(Key, Bytes), Fault> {
    let from = (lies.place.at - from) as usize;
    let frame = bytes.slice(from..from + lies.place.stored as usize);
    let data = codec.data(&lies.spot(), &frame);
    let mut data = data.map_err(|why| lies.damaged(&why.to_string()))?;
    if bytes.len() > 2 * frame.len() && frame.as_ptr_range().contains(&data.as_ptr()) {
        // A slice would keep its neighbours in memory.
        data = Bytes::copy_from_slice(&data);
    }
    fetch.done(&data);
    Ok((lies.key(), data))
}

/// Looks a range up in the batches, the newest first, and then in the map.
fn look_up(batches: &[&Batch], map: &Map, start: u64, len: u64, sources: &mut Vec<Source>) {
    let Some((first, older)) = batches.split_first() else {
        for (start, len, place) in map.places.parts(start, len) {
            sources.push(match place {
                Some(place) => {
                    let segment = map.segments.get(place.segment).copied();
                    Source::Store(StoredRange { start, len, place, segment })
                }
                None => Source::Memory(Part::Zero(len)),
            });
        }
        return;
    };
    if first.chunks.is_empty() {
        return look_up(older, map, start, len, sources);
    }
    for (start, len, chunk) in first.chunks.parts(start, len) {
        match chunk {
            Some(Chunk::Zero) => sources.push(Source::Memory(Part::Zero(len))),
            Some(Chunk::Data(data)) => {
                let data = data.slice(..(len * BLOCK) as usize);
                sources.push(Source::Memory(Part::Data(data)));
            }
            None => look_up(older, map, start, len, sources),
        }
    }
}
