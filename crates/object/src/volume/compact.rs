//! Compaction: segments of which little is in use are combined into new ones, so that their space
//! is freed and the map shrinks.
//!
//! The new segment is in the store before its record has a number, so no flush waits for its
//! upload. README.md argues why a move undoes no write, and deletes nothing that is needed.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, sleep_until};

use super::{Fault, Volume, policy};
use crate::format::{BLOCK, Batch, Changes, Codec, FrameAddress, MapEntry, SegmentBuilder, names};
use crate::log;

/// Bit in the number of a segment that was made by moving. The other bits are the number of the
/// next record when it was begun: its own record has that number or a later one, so no other
/// segment has both.
const MOVED: u64 = 1 << 63;
/// Pieces of the map that are examined under one lock.
const PIECES: usize = 1024;
/// Pause after a failure of the store.
const PAUSE: Duration = Duration::from_secs(3);

impl Volume {
    /// Compacts whenever that is due, until nothing is served any more.
    pub(crate) async fn compact_all(self: Arc<Self>) {
        // Otherwise the next server couldn't tell by the log that the previous one may still be
        // believed.
        self.wait_for_others().await;
        // Segments that can't be read: each request reports that to its client, and they stay as
        // they are.
        let mut bad = BTreeSet::new();
        let mut suspect = None;
        loop {
            self.compacting.notified().await;
            loop {
                if self.state.read().dead.is_some() {
                    return;
                }
                let victims = self.victims(&bad);
                if victims.is_empty() {
                    // Also if all the garbage is in unreadable segments: no write waits for work
                    // that isn't done.
                    self.behind.send_replace(false);
                    break;
                }
                // A round that finds nothing to move must not starve other tasks.
                tokio::task::yield_now().await;
                match self.gather(&victims).await {
                    Ok(true) => {}
                    Ok(false) => break,
                    Err((_, Fault::Store(why))) => {
                        tracing::debug!(why, "compaction goes on later");
                        sleep(PAUSE).await;
                    }
                    Err((segment, why)) => {
                        // It is retried once: it may have been damaged in transit, or deleted by a
                        // server that has opened the volume.
                        if suspect.replace(segment) != Some(segment)
                            || self.look(true).await.is_err()
                        {
                            continue;
                        }
                        let segment_of = self.state.read().map.segments.get(segment).copied();
                        let name = segment_of.map_or_else(String::new, |of| of.name());
                        self.lacks_data(&format!("{name}: {why}"));
                        bad.insert(segment);
                    }
                }
            }
        }
    }

    /// Returns the segments whose data is moved next. Empty: compaction isn't due.
    fn victims(&self, bad: &BTreeSet<u64>) -> BTreeSet<u64> {
        let state = self.state.read();
        let map = &state.map;
        let most = (self.tuning.batch as u64).max(map.places.len() as u64 / policy::SCANNED);
        let all = map.segments.loose().filter(|(number, _)| !bad.contains(number));
        policy::victims(map.segments.sum(), all, self.tuning.compaction, most)
    }

    /// Moves the data in these segments. False: the volume ends. An error has the number of its
    /// segment.
    async fn gather(self: &Arc<Self>, victims: &BTreeSet<u64>) -> Result<bool, (u64, Fault)> {
        let mut group = Vec::new();
        let mut blocks = 0;
        let mut entries = self.entries_of(victims).await.into_iter().peekable();
        while let Some(entry) = entries.next() {
            blocks += entry.len;
            group.push(entry);
            let next = entries.peek().map_or(u64::MAX, |next| next.len);
            if blocks.saturating_add(next) <= self.tuning.batch as u64 {
                continue;
            }
            let began = Instant::now();
            if !self.move_to_one(std::mem::take(&mut group)).await? {
                return Ok(false);
            }
            let takes = policy::pace(blocks * BLOCK, self.tuning.compaction, self.garbage());
            sleep_until(began + takes).await;
            blocks = 0;
        }
        Ok(true)
    }

    /// Returns the garbage, and the allowed amount.
    fn garbage(&self) -> (u64, u64) {
        let sum = self.state.read().map.segments.sum();
        (sum.garbage(), policy::garbage_allowed(sum, self.tuning.compaction))
    }

    /// Returns the pieces of the map that lie in these segments, in order.
    async fn entries_of(&self, victims: &BTreeSet<u64>) -> Vec<MapEntry> {
        let mut found = Vec::new();
        let mut from = 0;
        loop {
            let mut seen = 0;
            {
                let state = self.state.read();
                for (start, len, place) in state.map.places.iter_from(from).take(PIECES) {
                    (seen, from) = (seen + 1, start + len);
                    if victims.contains(&place.segment) {
                        found.push(MapEntry { start, len, place: Some(*place) });
                    }
                }
            }
            if seen < PIECES {
                return found;
            }
            tokio::task::yield_now().await;
        }
    }

    /// Moves these pieces to a new segment, and waits for its record. False: the volume ends.
    async fn move_to_one(self: &Arc<Self>, moved: Vec<MapEntry>) -> Result<bool, (u64, Fault)> {
        // Read
        let Some(data) = self.data_of(&moved).await? else { return Ok(true) };
        let id = MOVED | self.state.read().next;
        let starts: Vec<u64> = moved.iter().map(|entry| entry.start).collect();
        let writer = self.writer;
        let built = self.build(move |codec| {
            let mut segment = SegmentBuilder::new(id, codec);
            starts.into_iter().zip(data).for_each(|(start, data)| segment.add(start, data));
            segment.finish(&writer)
        });
        let Some((payload, changes)) = built.await else { return Ok(false) };
        // Upload
        let name = names::segment(id, self.writer.epoch);
        self.put_segment(&self.moves, &name, &payload).await;
        let (told, done) = oneshot::channel();
        let _ = told.send((Vec::new(), Changes { moved, ..changes }));
        // TakeNumber: even behind a close that fails, as no other segment may get this name.
        let seq = loop {
            {
                let mut state = self.state.write();
                if state.dead.is_some() {
                    break None;
                }
                if !state.closing {
                    break Some(self.send(&mut state, Arc::new(Batch::default()), done));
                }
            }
            self.compacting.notified().await;
        };
        let Some(seq) = seq else {
            // If this fails, a later server deletes it.
            let _ = self.moves.delete(&name).await;
            return Ok(false);
        };
        let mut durable = self.durable.subscribe();
        let reached = durable.wait_for(|durable| *durable >= seq).await;
        Ok(reached.is_ok_and(|reached| *reached != u64::MAX))
    }

    /// Returns the content of these pieces. `None`: some of it has moved by now.
    async fn data_of(&self, moved: &[MapEntry]) -> Result<Option<Vec<Bytes>>, (u64, Fault)> {
        let places = |entry: &MapEntry| entry.place.map(|place| (place.segment, place.at));
        let spans =
            policy::spans(&moved.iter().filter_map(|entry| entry.place).collect::<Vec<_>>());
        // The order of the spans: pieces of a frame are adjacent.
        let mut order: Vec<usize> = (0..moved.len()).collect();
        order.sort_by_key(|n| places(&moved[*n]));
        let mut order = order.into_iter().peekable();
        let mut data = vec![Bytes::new(); moved.len()];
        for span in spans {
            let failed = |why| (span.segment, why);
            let of = || self.state.read().map.segments.get(span.segment).copied();
            let Some(segment) = of() else { return Ok(None) };
            let range = Some(u64::from(span.from)..u64::from(span.to));
            let patience = Some(self.tuning.patience);
            let found = log::fetch(&self.moves, &segment.name(), range, patience).await;
            let bytes = match found.map_err(|why| failed(Fault::Store(why)))? {
                Some(bytes) if bytes.len() == (span.to - span.from) as usize => bytes,
                _ if of().is_none() => return Ok(None),
                Some(_) => return Err(failed(Fault::Damaged("the object is too short".into()))),
                None => return Err(failed(Fault::Damaged("the object is missing".into()))),
            };
            let mut here = Vec::new();
            while let Some(n) = order.next_if(|n| moved[*n].place.is_some_and(|at| span.has(&at))) {
                here.push((n, moved[n]));
            }
            let codec = self.codec.clone();
            // This thread serves all clients.
            let decode = move || pieces(here, &bytes, span.from, segment.id, &codec);
            let decoded = tokio::task::spawn_blocking(decode).await;
            let failed_to = || failed(Fault::Damaged("the object could not be decoded".into()));
            for (n, piece) in decoded.map_err(|_| failed_to())?.map_err(failed)? {
                data[n] = piece;
            }
        }
        Ok(Some(data))
    }
}

/// Returns the content of numbered pieces whose frames are in these bytes of a segment, from `from`
/// on. Pieces of a frame are adjacent. The content is copied, so that a frame of which little is in
/// use isn't kept.
fn pieces(
    of: Vec<(usize, MapEntry)>,
    bytes: &Bytes,
    from: u32,
    id: u128,
    codec: &Codec,
) -> Result<Vec<(usize, Bytes)>, Fault> {
    let damaged = |why: &str| Fault::Damaged(why.into());
    let mut last: Option<(FrameAddress, Bytes)> = None;
    let mut found = Vec::with_capacity(of.len());
    for (n, entry) in of {
        let place = entry.place.ok_or_else(|| damaged("a piece lies nowhere"))?;
        let skip = u64::from(place.skip);
        let spot = FrameAddress { id, at: place.at, start: entry.start - skip };
        let whole = match last.take_if(|(known, _)| *known == spot) {
            Some((_, whole)) => whole,
            None => {
                let at = (place.at - from) as usize;
                let frame = bytes.slice(at..at + place.stored as usize);
                codec.data(&spot, &frame).map_err(|why| damaged(&why.0))?
            }
        };
        let piece = (skip * BLOCK) as usize..((skip + entry.len) * BLOCK) as usize;
        let piece = whole.get(piece).ok_or_else(|| damaged("a frame is too short"))?;
        found.push((n, Bytes::copy_from_slice(piece)));
        last = Some((spot, whole));
    }
    Ok(found)
}
