//! Frames that were read, in memory up to a number of bytes, and those that are being fetched: two readers of one frame make one request.
//!
//! A frame is found by the random id of its segment, and its place there, and neither is ever used for another one. So there is no old
//! data here: the map says where a block lies now, and a block that is written again lies elsewhere.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use corewise_sync::{Counter, Mutex};
use quick_cache::{OptionsBuilder, Weighter};
use tokio::sync::watch;

/// Which frame: its segment's id, and its first byte there.
pub(crate) type Key = (u128, u32);

/// Bytes that a frame takes beside its blocks.
const BESIDE: u64 = 128;
/// Bytes of a frame, for the number of frames to expect.
const USUAL: u64 = 64 << 10;
/// Parts with a lock each. Readers share it; each part more makes what is kept more uneven.
const SHARDS: usize = 4;

type Frames = quick_cache::sync::Cache<Key, Bytes, Weight>;

#[derive(Clone, Copy, Debug)]
struct Weight;

impl Weighter<Key, Bytes> for Weight {
    fn weight(&self, _: &Key, blocks: &Bytes) -> u64 {
        blocks.len() as u64 + BESIDE
    }
}

/// What the [read cache](crate::ObjectOptions::read_cache) was worth so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CacheUse {
    /// Frames (of up to 128 KiB) that readers asked for, and that were in memory or on their way.
    pub hits: u64,
    /// Those that a reader had to fetch.
    pub misses: u64,
    /// Bytes that are kept now.
    pub bytes: u64,
}

/// Frames of a volume.
#[derive(Debug)]
pub(crate) struct Cache {
    /// `None`: nothing is kept. It keeps those that are read again rather than those of a scan.
    frames: Option<Frames>,
    /// L: is the lock. Never held across a wait.
    under_way: Mutex<HashMap<Key, watch::Receiver<Option<Bytes>>>>,
    hits: Counter,
    misses: Counter,
}

/// What is known of a frame.
pub(crate) enum Look {
    Here(Bytes),
    /// Somebody fetches it. An error: that came to nothing.
    UnderWay(watch::Receiver<Option<Bytes>>),
    /// It is the caller that fetches it.
    Yours(Fetch),
}

/// The duty to fetch a frame. Dropped, it passes to somebody else that waits for it.
pub(crate) struct Fetch {
    cache: Arc<Cache>,
    key: Key,
    told: watch::Sender<Option<Bytes>>,
}

impl Cache {
    /// Keeps so many bytes at most; 0: none.
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

    /// Looks for a frame; `ahead` of readers, which doesn't count.
    pub(crate) fn look(self: &Arc<Self>, key: Key, ahead: bool) -> Look {
        let found = self.find(key);
        if !ahead {
            let is_miss = matches!(found, Look::Yours(_));
            let count = if is_miss { &self.misses } else { &self.hits };
            count.add(1);
        }
        found
    }

    fn find(self: &Arc<Self>, key: Key) -> Look {
        let mut under_way = self.under_way.lock();
        if let Some(told) = under_way.get(&key) {
            return Look::UnderWay(told.clone());
        }
        // Under the lock: one that was under way a moment ago was put there before.
        if let Some(here) = self.frames.as_ref().and_then(|frames| frames.get(&key)) {
            return Look::Here(here);
        }
        let (told, fetched) = watch::channel(None);
        under_way.insert(key, fetched);
        Look::Yours(Fetch { cache: Arc::clone(self), key, told })
    }

    /// A frame that is kept, unless somebody changes what is kept near it: for one that may not wait. It doesn't count.
    pub(crate) fn kept(&self, key: Key) -> Option<Bytes> {
        self.frames.as_ref()?.try_get(&key).ok()?
    }

    /// So many of [`kept`](Self::kept) were used.
    pub(crate) fn count(&self, hits: u64) {
        if hits != 0 {
            self.hits.add(hits);
        }
    }

    pub(crate) fn usage(&self) -> CacheUse {
        let bytes = self.frames.as_ref().map_or(0, |frames| frames.weight());
        CacheUse { hits: self.hits.total(), misses: self.misses.total(), bytes }
    }
}

impl Fetch {
    /// It has come.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(cache: &Arc<Cache>, id: u128) -> bool {
        match cache.look((id, 64), false) {
            Look::Here(found) => {
                assert_eq!(found[0], id as u8);
                true
            }
            Look::Yours(fetch) => {
                fetch.done(&vec![id as u8; 4096].into());
                false
            }
            Look::UnderWay(_) => panic!("nobody fetches"),
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
        let Look::Yours(ahead) = cache.look((1, 0), true) else { panic!("it isn't there") };
        let counts = || (cache.usage().hits, cache.usage().misses);
        assert_eq!(counts(), (0, 0));
        assert!(matches!(cache.look((1, 0), false), Look::UnderWay(_)));
        ahead.done(&Bytes::from_static(b"data"));
        assert!(matches!(cache.look((1, 0), false), Look::Here(_)));
        assert_eq!(counts(), (2, 0));
        assert!(!fill(&cache, 2) && fill(&cache, 2));
        assert_eq!(counts(), (3, 1));
    }

    #[test]
    fn one_that_fetches_tells_all_and_its_end_without_a_frame_passes_the_duty_on() {
        let cache = Cache::new(1 << 20);
        let Look::Yours(fetch) = cache.look((1, 0), false) else { panic!("it isn't there") };
        let Look::UnderWay(told) = cache.look((1, 0), false) else { panic!("it is under way") };
        drop(fetch);
        assert!(told.has_changed().is_err() && told.borrow().is_none());
        let Look::Yours(fetch) = cache.look((1, 0), false) else { panic!("it is nobody's") };
        let Look::UnderWay(told) = cache.look((1, 0), false) else { panic!("it is under way") };
        fetch.done(&Bytes::from_static(b"data"));
        assert_eq!(told.borrow().as_deref(), Some(&b"data"[..]));
        assert!(matches!(cache.look((1, 0), false), Look::Here(_)));
        assert!(matches!(cache.look((1, 64), false), Look::Yours(_)), "another place");
    }
}
