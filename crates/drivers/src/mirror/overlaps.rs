//! Which changes of a mirror are in flight at the same time, and touch the same bytes. Each leg may do these in an order of its
//! own: once both are acknowledged the legs differ. So the regions where they overlap are called stale before the later one is
//! sent, and the resync makes them alike when both are gone.

use std::ops::Range;

use corewise_sync::{CachePadded, SpinLock};

/// Regions share so many lists.
const LISTS: usize = 16;

/// The bytes of the changes that are on their way to the legs.
pub(super) struct Overlaps {
    /// L: is the lock, held for a look at those that are in flight in its regions; guards their bytes.
    lists: [CachePadded<SpinLock<Vec<Range<u64>>>>; LISTS],
}

impl Default for Overlaps {
    fn default() -> Self {
        Self { lists: std::array::from_fn(|_| CachePadded::new(SpinLock::new(Vec::new()))) }
    }
}

impl Overlaps {
    /// A change of `bytes`, in `regions`, goes to the legs. Says which of them others change at the same time, from the first to
    /// the last of these. Any context.
    pub(super) fn begin(&self, regions: Range<usize>, bytes: &Range<u64>) -> Option<Range<u64>> {
        // Two that overlap share a region, so that the later one finds the other in its list.
        let mut shared: Option<Range<u64>> = None;
        for n in lists(regions) {
            let mut list = self.lists[n].lock();
            for other in list.iter() {
                let (start, end) = (bytes.start.max(other.start), bytes.end.min(other.end));
                if start < end {
                    let so_far = shared.unwrap_or(start..end);
                    shared = Some(so_far.start.min(start)..so_far.end.max(end));
                }
            }
            list.push(bytes.clone());
        }
        shared
    }

    /// A change that [began](Overlaps::begin) has ended on all legs. Any context.
    pub(super) fn end(&self, regions: Range<usize>, bytes: &Range<u64>) {
        for n in lists(regions) {
            let mut list = self.lists[n].lock();
            // One like another is as good.
            if let Some(at) = list.iter().position(|other| other == bytes) {
                list.swap_remove(at);
            }
        }
    }
}

fn lists(regions: Range<usize>) -> impl Iterator<Item = usize> {
    regions.take(LISTS).map(|n| n % LISTS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_of_the_same_bytes_are_found_as_long_as_both_are_in_flight() {
        let overlaps = Overlaps::default();
        assert_eq!(overlaps.begin(0..1, &(0..4096)), None);
        assert_eq!(overlaps.begin(0..1, &(4096..8192)), None, "a neighbour");
        assert_eq!(overlaps.begin(0..1, &(512..5000)), Some(512..5000));
        overlaps.end(0..1, &(4096..8192));
        overlaps.end(0..1, &(512..5000));
        assert_eq!(overlaps.begin(0..1, &(4000..8192)), Some(4000..4096));
        overlaps.end(0..1, &(0..4096));
        overlaps.end(0..1, &(4000..8192));
        assert_eq!(overlaps.begin(0..1, &(0..8192)), None);
    }

    #[test]
    fn a_change_of_many_regions_is_found_in_each() {
        let overlaps = Overlaps::default();
        let mib = |n: u64| (n << 20)..((n + 1) << 20);
        assert_eq!(overlaps.begin(3..103, &(3 << 20..103 << 20)), None);
        for n in [3, 50, 102] {
            assert_eq!(overlaps.begin(n..n + 1, &mib(n as u64)), Some(mib(n as u64)));
            overlaps.end(n..n + 1, &mib(n as u64));
        }
        assert_eq!(overlaps.begin(103..104, &mib(103)), None, "another one of a list");
        overlaps.end(3..103, &(3 << 20..103 << 20));
        assert_eq!(overlaps.begin(50..51, &mib(50)), None);
    }
}
