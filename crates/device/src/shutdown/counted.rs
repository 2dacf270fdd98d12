//! What a shutdown needs to count: made when it begins to, so that the loop pays for none of it.

use super::plan::{Kind, Outline};
use crate::counters::Counters;
use crate::graph::{DeviceId, Graph};

/// Counters, and the order of devices by their needs.
pub(super) struct Counted {
    /// I: the counters are atomic themselves: unfinished children and consumers.
    pub(super) counters: Counters,
    /// I: which synchronous devices each device's end is needed for.
    pub(super) below: Option<Below>,
}

impl Counted {
    /// Nothing is over yet, and nothing is seeded.
    pub(super) fn new(outline: &Outline) -> Counted {
        let (graph, kinds) = (&outline.graph, &outline.kinds);
        let feeds = |d: DeviceId| u32::try_from(graph.feeds(d).len()).expect("as many as devices");
        Counted {
            counters: Counters::new(graph.ids().map(feeds)),
            below: Below::new(graph, kinds, outline.sync),
        }
    }

    /// The bit of a synchronous device, where there are few enough.
    pub(super) fn own(&self, device: DeviceId) -> u64 {
        self.below.as_ref().map_or(0, |b| b.own[device.index()])
    }
}

/// Synchronous devices by bit, where there are few enough.
pub(super) struct Below {
    /// By device: those that need it to be finished first, directly or not.
    pub(super) masks: Vec<u64>,
    /// By device: its own bit, if it is one of them.
    own: Vec<u64>,
}

impl Below {
    /// `None` where there is no synchronous device, or more of them than bits.
    fn new(graph: &Graph, kinds: &[Kind], sync: usize) -> Option<Below> {
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
