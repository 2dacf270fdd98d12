//! Reads of a volume: where blocks lie, what lies there, and whether it may be believed.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::try_join_all;
use tokio::time::Instant;

use super::{Fault, Part, Volume};
use crate::batch::{Batch, Chunk};
use crate::codec::Spot;
use crate::format::{BLOCK, HEAD, Head, Place};
use crate::log;
use crate::map::{Map, Segment};
use crate::policy;
use crate::store::{Failure, Tries};

/// How often a read looks again where a segment was gone.
const LOOKS: usize = 8;

/// Where a part of what is to be read lies.
#[derive(Clone, Debug)]
enum Source {
    Here(Part),
    There(Lies),
}

/// Where blocks lie, in a segment as it was known when it was looked.
#[derive(Clone, Copy, Debug)]
struct Lies {
    /// The first of the blocks.
    start: u64,
    /// How many.
    len: u64,
    place: Place,
    segment: Option<Segment>,
}

impl Lies {
    fn name(&self) -> String {
        log::segment(self.place.segment, self.segment.map_or(0, |segment| segment.epoch))
    }

    fn spot(&self) -> Spot {
        let id = self.segment.map_or(0, |segment| segment.id);
        Spot { id, at: self.place.at, start: self.start - u64::from(self.place.skip) }
    }
}

impl Volume {
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
                Source::There(lies) => Some(lies.place),
                Source::Here(_) => None,
            })
            .collect();
        let spans = policy::spans(&places);
        let fetched = try_join_all(spans.iter().map(|span| self.fetch_span(span))).await?;
        let mut parts = Vec::with_capacity(sources.len());
        for source in sources {
            match source {
                Source::Here(part) => parts.push(part),
                Source::There(lies) => {
                    let place = lies.place;
                    let found = spans.iter().position(|span| span.has(&place));
                    let span = found.expect("the spans were made of all places");
                    let Some(bytes) = &fetched[span] else { return Ok(Err(lies.name())) };
                    let from = (place.at - spans[span].from) as usize;
                    let frame = bytes.slice(from..from + place.stored as usize);
                    let damaged = |why| Fault::Damaged(format!("{}: {why}", lies.name()));
                    let data = self
                        .codec
                        .data(&lies.spot(), &frame)
                        .map_err(|why| damaged(why.to_string()))?;
                    let from = u64::from(place.skip) * BLOCK;
                    let to = from + lies.len * BLOCK;
                    if to > data.len() as u64 {
                        return Err(damaged("a frame is too short".into()));
                    }
                    parts.push(Part::Data(data.slice(from as usize..to as usize)));
                }
            }
        }
        Ok(Ok(parts))
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
            Source::There(lies) => (lies.len, true),
        };
        Ok(sources.into_iter().map(of).collect())
    }
}

/// Looks a range up in the batches, the newest first, and then in the map.
fn look_up(batches: &[&Batch], map: &Map, start: u64, len: u64, sources: &mut Vec<Source>) {
    let Some((first, older)) = batches.split_first() else {
        for (start, len, place) in map.places.parts(start, len) {
            sources.push(match place {
                Some(place) => {
                    let segment = map.segments.get(&place.segment).copied();
                    Source::There(Lies { start, len, place, segment })
                }
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
