//! Cache of frames that were read, up to a number of bytes, and the frames in flight: two readers
//! of one frame make one request.
//!
//! The key of a frame is the random id of its segment, and its address there. Neither is ever
//! reused. So no data here is stale: the map has the present address of a block, and a block that
//! is written again has another one.
//!
//! [`Streams`] follow sequential readers, and decide how far ahead the next blocks are fetched for
//! them.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use corewise_sync::{Counter, Mutex};
use quick_cache::{OptionsBuilder, Weighter};
use tokio::sync::watch;

/// Key of a frame: its segment's id, and its first byte there.
pub(crate) type Key = (u128, u32);

/// Bytes that a frame takes beside its blocks.
const BESIDE: u64 = 128;
/// Bytes of a typical frame, for the expected number of frames.
const USUAL: u64 = 64 << 10;
/// Number of parts with a lock each. Readers share it; more parts make the cached set more uneven.
const SHARDS: usize = 4;

type Frames = quick_cache::sync::Cache<Key, Bytes, Weight>;

#[derive(Clone, Copy, Debug)]
struct Weight;

impl Weighter<Key, Bytes> for Weight {
    fn weight(&self, _: &Key, blocks: &Bytes) -> u64 {
        blocks.len() as u64 + BESIDE
    }
}

/// Statistics of the [read cache](crate::ObjectOptions::read_cache) so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CacheUse {
    /// Frames (of up to 128 KiB) that readers asked for, and that were in memory or in flight.
    pub hits: u64,
    /// Frames that a reader had to fetch.
    pub misses: u64,
    /// Bytes that are kept now.
    pub bytes: u64,
}

/// Frames of a volume.
#[derive(Debug)]
pub(crate) struct Cache {
    /// Cached frames. `None`: nothing is cached. Frames that are read again are preferred to those
    /// of a scan.
    frames: Option<Frames>,
    /// L: is the lock; guards the frames in flight. Never held across a wait.
    under_way: Mutex<HashMap<Key, watch::Receiver<Option<Bytes>>>>,
    hits: Counter,
    misses: Counter,
}

/// Result of a lookup.
pub(crate) enum CacheLookup {
    Hit(Bytes),
    /// Another reader fetches it. An error: that failed.
    InFlight(watch::Receiver<Option<Bytes>>),
    /// The caller fetches it.
    Miss(Fetch),
}

/// The duty to fetch a frame. If it is dropped, it passes to another waiter.
pub(crate) struct Fetch {
    cache: Arc<Cache>,
    key: Key,
    told: watch::Sender<Option<Bytes>>,
}

impl Cache {
    /// Creates a cache of at most `bytes` bytes. 0: no cache.
    pub(crate) fn new(bytes: u64) -> Arc<Self> {
        let frames = (bytes != 0).then(|| {
            let mut options = OptionsBuilder::new();
            let count = usize::try_from(bytes / USUAL).unwrap_or(usize::MAX);
            options.estimated_items_capacity(count.max(16)).weight_capacity(bytes).shards(SHARDS);
            let options = options.build().expect("all that it needs was given");
            Frames::with_options(options, Weight, Default::default(), Default::default())
        });
        let (hits, misses) = (Counter::new(), Counter::new());
        Arc::new(Self { frames, under_way: Mutex::default(), hits, misses })
    }

    /// Looks up a frame. A lookup `ahead` of readers isn't counted.
    pub(crate) fn look(self: &Arc<Self>, key: Key, ahead: bool) -> CacheLookup {
        let found = self.find(key);
        if !ahead {
            let is_miss = matches!(found, CacheLookup::Miss(_));
            let count = if is_miss { &self.misses } else { &self.hits };
            count.add(1);
        }
        found
    }

    fn find(self: &Arc<Self>, key: Key) -> CacheLookup {
        let mut under_way = self.under_way.lock();
        if let Some(told) = under_way.get(&key) {
            return CacheLookup::InFlight(told.clone());
        }
        // Checked under the lock: a frame that was in flight a moment ago was put there before.
        if let Some(here) = self.frames.as_ref().and_then(|frames| frames.get(&key)) {
            return CacheLookup::Hit(here);
        }
        let (told, fetched) = watch::channel(None);
        under_way.insert(key, fetched);
        CacheLookup::Miss(Fetch { cache: Arc::clone(self), key, told })
    }

    /// Returns a cached frame, unless a change near it is in progress, for a caller that may not
    /// wait. This isn't counted.
    pub(crate) fn kept(&self, key: Key) -> Option<Bytes> {
        self.frames.as_ref()?.try_get(&key).ok()?
    }

    /// Counts frames that were used without [`look`](Self::look): `hits` of [`kept`](Self::kept),
    /// and `misses` that were fetched.
    pub(crate) fn count(&self, hits: u64, misses: u64) {
        if hits != 0 {
            self.hits.add(hits);
        }
        if misses != 0 {
            self.misses.add(misses);
        }
    }

    pub(crate) fn usage(&self) -> CacheUse {
        let bytes = self.frames.as_ref().map_or(0, |frames| frames.weight());
        CacheUse { hits: self.hits.total(), misses: self.misses.total(), bytes }
    }
}

impl Fetch {
    /// Completes the fetch.
    pub(crate) fn done(self, blocks: &Bytes) {
        if let Some(frames) = &self.cache.frames {
            frames.insert(self.key, blocks.clone());
        }
        self.told.send_replace(Some(blocks.clone()));
    }
}

impl Drop for Fetch {
    fn drop(&mut self) {
        self.cache.under_way.lock().remove(&self.key);
    }
}

/// Number of sequential readers that are tracked at once.
const STREAMS: usize = 8;
/// Number of reads that are tracked as possible beginnings of a stream.
const BEGINNINGS: usize = 32;
/// Number of sequential reads, including the first one, that make a stream.
const ROW: u32 = 3;
/// Blocks of the first read-ahead.
const FIRST: u64 = 64;
/// Blocks by which concurrent requests may come too late.
const LATE: u64 = 256;
/// Minimum blocks of a request.
const LEAST: u64 = 16;

/// A sequential reader.
#[derive(Clone, Copy, Debug)]
struct Stream {
    /// Block behind the last one that was read.
    next: u64,
    /// Block behind the last one that was requested ahead.
    ahead: u64,
    window: u64,
    used: u64,
}

/// All sequential readers.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    /// Ends of reads, and the number of sequential reads there.
    beginnings: VecDeque<(u64, u32)>,
    streams: Vec<Stream>,
    reads: u64,
}

impl Streams {
    /// Records a read. Returns the blocks to fetch ahead now; at most `most` may be in flight or
    /// unread for one reader.
    pub(crate) fn read(&mut self, start: u64, len: u64, most: u64) -> Option<Range<u64>> {
        if most < LEAST {
            return None;
        }
        self.reads += 1;
        let end = start + len;
        let of = |stream: &&mut Stream| {
            start + LATE >= stream.next && start <= stream.next.max(stream.ahead)
        };
        if let Some(stream) = self.streams.iter_mut().find(of) {
            stream.used = self.reads;
            stream.next = stream.next.max(end);
            stream.ahead = stream.ahead.max(stream.next);
            if stream.ahead - stream.next > stream.window / 2 {
                return None;
            }
            stream.window = (stream.window * 2).min(most);
            let range = stream.ahead..stream.next + stream.window;
            stream.ahead = range.end.max(range.start);
            return (!range.is_empty()).then_some(range);
        }
        let before = self.beginnings.iter().position(|(ended, _)| *ended == start);
        let row = before.and_then(|at| self.beginnings.remove(at)).map_or(1, |(_, row)| row + 1);
        if row < ROW {
            if self.beginnings.len() == BEGINNINGS {
                self.beginnings.pop_front();
            }
            self.beginnings.push_back((end, row));
            return None;
        }
        let window = FIRST.min(most);
        let stream = Stream { next: end, ahead: end + window, window, used: self.reads };
        if self.streams.len() < STREAMS {
            self.streams.push(stream);
        } else if let Some(oldest) = self.streams.iter_mut().min_by_key(|stream| stream.used) {
            *oldest = stream;
        }
        Some(end..end + window)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(cache: &Arc<Cache>, id: u128) -> bool {
        match cache.look((id, 64), false) {
            CacheLookup::Hit(found) => {
                assert_eq!(found[0], id as u8);
                true
            }
            CacheLookup::Miss(fetch) => {
                fetch.done(&vec![id as u8; 4096].into());
                false
            }
            CacheLookup::InFlight(_) => panic!("nobody fetches"),
        }
    }

    #[test]
    fn it_keeps_no_more_bytes_than_it_may_and_a_scan_does_not_drive_out_those_that_are_read_again()
    {
        let size = 100 * (4096 + BESIDE);
        let cache = Cache::new(size);
        (0..40).for_each(|id| assert!(!fill(&cache, id)));
        for _ in 1..4 {
            (0..40).for_each(|id| assert!(fill(&cache, id)));
        }
        for id in 1000..2000 {
            fill(&cache, id);
            assert!(cache.usage().bytes <= size, "{:?}", cache.usage());
        }
        let kept = (0..40).filter(|id| fill(&cache, *id)).count();
        assert!(kept > 30, "{kept}");
        let none = Cache::new(0);
        assert!(!fill(&none, 1) && !fill(&none, 1));
        assert_eq!(none.usage(), CacheUse { hits: 0, misses: 2, bytes: 0 });
    }

    #[test]
    fn what_readers_find_and_what_they_have_to_fetch_is_counted_and_what_is_fetched_ahead_is_not() {
        let cache = Cache::new(1 << 20);
        let CacheLookup::Miss(ahead) = cache.look((1, 0), true) else { panic!("it isn't there") };
        let counts = || (cache.usage().hits, cache.usage().misses);
        assert_eq!(counts(), (0, 0));
        assert!(matches!(cache.look((1, 0), false), CacheLookup::InFlight(_)));
        ahead.done(&Bytes::from_static(b"data"));
        assert!(matches!(cache.look((1, 0), false), CacheLookup::Hit(_)));
        assert_eq!(counts(), (2, 0));
        assert!(!fill(&cache, 2) && fill(&cache, 2));
        assert_eq!(counts(), (3, 1));
    }

    #[test]
    fn one_that_fetches_tells_all_and_its_end_without_a_frame_passes_the_duty_on() {
        let cache = Cache::new(1 << 20);
        let CacheLookup::Miss(fetch) = cache.look((1, 0), false) else { panic!("it isn't there") };
        let CacheLookup::InFlight(told) = cache.look((1, 0), false) else {
            panic!("it is under way")
        };
        drop(fetch);
        assert!(told.has_changed().is_err() && told.borrow().is_none());
        let CacheLookup::Miss(fetch) = cache.look((1, 0), false) else { panic!("it is nobody's") };
        let CacheLookup::InFlight(told) = cache.look((1, 0), false) else {
            panic!("it is under way")
        };
        fetch.done(&Bytes::from_static(b"data"));
        assert_eq!(told.borrow().as_deref(), Some(&b"data"[..]));
        assert!(matches!(cache.look((1, 0), false), CacheLookup::Hit(_)));
        assert!(matches!(cache.look((1, 64), false), CacheLookup::Miss(_)), "another place");
    }

    #[test]
    fn a_reader_in_a_row_has_each_block_fetched_once_ahead_and_no_more_than_the_most() {
        let mut streams = Streams::default();
        let (mut fetched, mut begun) = (0, None);
        for n in 0..1000 {
            let (start, end) = (n * 8, n * 8 + 8);
            if let Some(range) = streams.read(start, 8, 512) {
                let at = *begun.get_or_insert(range.start);
                assert_eq!(range.start, at + fetched, "none twice, none left out");
                fetched += range.end - range.start;
                assert!(range.end <= end + 512);
            }
            if let Some(begun) = begun {
                assert!(begun + fetched >= end, "it is ahead");
            }
        }
        assert_eq!(begun, Some(24));
    }

    #[test]
    fn random_readers_fetch_nothing_ahead_and_drive_out_no_stream() {
        let mut random = fastrand::Rng::with_seed(1);
        let mut streams = Streams::default();
        let mut ahead = 0;
        for n in 0..1000 {
            for _ in 0..20 {
                let start = (1 << 40) + random.u64(0..1 << 30);
                assert_eq!(streams.read(start, 1, 512), None);
            }
            // Its first sequential reads come while others read.
            ahead += streams.read(n * 8, 8, 512).map_or(0, |range| range.end - range.start);
        }
        assert!(ahead > 7000, "{ahead}");
    }

    #[test]
    fn requests_that_overtake_each_other_are_one_stream_and_a_small_cache_has_none() {
        let mut streams = Streams::default();
        let _ = (0..4).filter_map(|n| streams.read(n * 8, 8, 512)).count();
        let mut ahead = 0;
        for n in (4..400).map(|n| n ^ 1) {
            ahead += streams.read(n * 8, 8, 512).map_or(0, |range| range.end - range.start);
        }
        assert_eq!(streams.streams.len(), 1);
        assert!((3000..4000).contains(&ahead), "{ahead}");
        assert_eq!((0..9).filter_map(|n| streams.read(90_000 + n, 1, LEAST - 1)).count(), 0);
    }
}
