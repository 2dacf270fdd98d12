//! What a shutdown needs to count: made when it begins to, so that the serial loop pays for none of
//! it.

use super::plan::{Below, Kind};
use crate::counters::Counters;
use crate::{DeviceId, Graph};
use corewise_sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Counters, ends, and who is below whom.
pub(super) struct Counted {
    /// I: the counters are atomic themselves: unfinished children and consumers.
    pub(super) counters: Counters,
    /// A: by device, the nanosecond at which it ended; see `released_at`.
    ends: Box<[AtomicU64]>,
    /// I: which synchronous devices each device's end is needed for.
    pub(super) below: Option<Below>,
}

impl Counted {
    /// Nothing is over yet, and nothing is seeded.
    pub(super) fn new(graph: &Graph, kinds: &[Kind]) -> Counted {
        let sync = kinds.iter().filter(|k| **k == Kind::Sync).count();
        let feeds = |d: DeviceId| u32::try_from(graph.feeds(d).len()).expect("as many as devices");
        Counted {
            counters: Counters::new(graph.ids().map(feeds)),
            ends: graph.ids().map(|_| AtomicU64::new(0)).collect(),
            below: Below::new(graph, kinds, sync),
        }
    }

    /// The bit of a synchronous device, where there are few enough.
    pub(super) fn own(&self, device: DeviceId) -> u64 {
        self.below.as_ref().map_or(0, |b| b.own[device.index()])
    }

    /// The latest end of what the device waited for. Reading a clock here instead would cost more,
    /// and could be wrong: two threads that end callbacks may read it in one order, and release in
    /// the other.
    ///
    /// Relaxed: each end is stored before the Release of its device (README.md of the counters),
    /// and whoever asks was told that all of these have happened.
    pub(super) fn released_at(&self, graph: &Graph, device: DeviceId) -> Duration {
        let feeds = graph.feeds(device).iter();
        let ends = feeds.map(|f| self.ends[f.index()].load(Ordering::Relaxed));
        Duration::from_nanos(ends.max().unwrap_or(0))
    }

    /// Of those that depend on the device and were up, the one that ended last: for a device that
    /// nobody was seen to release, since it was free when the counting began. As `released_at`.
    pub(super) fn released_by(
        &self,
        graph: &Graph,
        kinds: &[Kind],
        device: DeviceId,
    ) -> Option<DeviceId> {
        let up = graph.feeds(device).iter().copied().filter(|f| kinds[f.index()] != Kind::Absent);
        // Among equal ends the one that the serial order has last.
        let last = |f: &DeviceId| {
            let end = self.ends[f.index()].load(Ordering::Relaxed);
            (end, std::cmp::Reverse(graph.rank(*f)))
        };
        up.max_by_key(last)
    }

    /// Stores when a device ended, before it releases others.
    pub(super) fn set_end(&self, device: DeviceId, at: Duration) {
        let nanoseconds = u64::try_from(at.as_nanos()).unwrap_or(u64::MAX);
        self.ends[device.index()].store(nanoseconds, Ordering::Relaxed);
    }
}
