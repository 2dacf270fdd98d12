//! What is to be shut down: the snapshot that a shutdown works from.

use crate::driver::Bound;
use crate::{Cancel, DeviceId, Graph};
use std::sync::Arc;

/// What there is to do for a device. A snapshot, taken once when the shutdown begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// It never came up: it is done before it begins, and stands on no timeline.
    Absent,
    /// It is up, but has no callback: done on the spot.
    NoCallback,
    /// Its callback runs in the caller's thread.
    Sync,
    /// Its callback may run on a helper.
    Async,
}

impl Kind {
    pub(super) fn has_callback(self) -> bool {
        matches!(self, Kind::Sync | Kind::Async)
    }
}

/// What is to be shut down, and how.
pub(crate) struct ShutdownPlan {
    pub graph: Arc<Graph>,
    /// By device.
    pub bound: Vec<Option<Arc<dyn Bound>>>,
    /// By device.
    pub kinds: Vec<Kind>,
    /// CPUs that work may run on.
    pub cpus: usize,
    /// The most helpers that there may be at once.
    pub max_helpers: usize,
    /// Leaves the rest undone.
    pub abort: Cancel,
    /// Somebody is told about finished callbacks: the shutdown ends after the last telling.
    pub observed: bool,
}

/// Synchronous devices by bit, where there are few enough.
pub(super) struct Below {
    /// By device: those that need it to be finished first, directly or not.
    pub(super) masks: Vec<u64>,
    /// By device: its own bit, if it is one of them.
    pub(super) own: Vec<u64>,
}

impl Below {
    /// `None` where there is no synchronous device, or more of them than bits.
    pub(super) fn new(graph: &Graph, kinds: &[Kind], sync: usize) -> Option<Below> {
        if sync == 0 || sync > u64::BITS as usize {
            return None;
        }
        let mut below = Below { masks: vec![0; graph.len()], own: vec![0; graph.len()] };
        let mut bits = (0..u64::BITS).map(|n| 1u64 << n);
        // In base order: what a device needs comes before it.
        for &id in graph.order() {
            let through = |n: &DeviceId| below.masks[n.index()] | below.own[n.index()];
            below.masks[id.index()] = graph.needs(id).iter().map(through).fold(0, |a, b| a | b);
            if kinds[id.index()] == Kind::Sync {
                below.own[id.index()] = bits.next().expect("as many bits as synchronous devices");
            }
        }
        Some(below)
    }
}
