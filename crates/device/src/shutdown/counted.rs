//! What a shutdown needs to count: made when it begins to, so that the loop pays for none of it.

use super::plan::{Below, Outline};
use crate::DeviceId;
use crate::counters::Counters;

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
