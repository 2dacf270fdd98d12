//! Whether a worker that begins to block hands waiting work on, although a searcher is on its way.
//! Pure: a decision over plain numbers.

use std::time::Duration;

/// A region that is over so soon was no block for those who wait: its worker is back before another
/// one, woken for it, runs.
const SHORT: Duration = Duration::from_micros(50);
/// So many short regions in a row are proof that the next one is short too.
const PROOF: u32 = 8;

/// How long the blocking regions of a pool's workers have been lately.
///
/// A read that finds its page in the cache announces that it may block, as one that waits for the
/// disk does, and takes some microseconds. Handing on there wakes a worker for each item, which finds
/// nothing to do. A single long region ends the proof: a wake-up too many costs less than work that
/// waits behind a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Regions {
    /// Short ones in a row.
    short: u32,
}

impl Regions {
    pub(super) const NEW: Regions = Regions { short: 0 };

    /// Whether handing on pays, for all that is known.
    pub(super) fn hand_on(self) -> bool {
        self.short < PROOF
    }

    /// What a region tells that took so long.
    pub(super) fn learn(&mut self, took: Duration) {
        self.short = if took <= SHORT { (self.short + 1).min(PROOF) } else { 0 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(micros: impl IntoIterator<Item = u64>) -> Regions {
        let mut regions = Regions::NEW;
        micros.into_iter().for_each(|us| regions.learn(Duration::from_micros(us)));
        regions
    }

    #[test]
    fn who_blocks_hands_on_until_its_regions_prove_short() {
        assert!(Regions::NEW.hand_on());
        assert!(after([5; 7]).hand_on());
        assert!(!after([5; 8]).hand_on());
        assert!(!after([5; 1000]).hand_on());
    }

    #[test]
    fn one_long_region_ends_the_proof() {
        let long = after([5; 1000].into_iter().chain([1000]));
        assert!(long.hand_on());
        assert!(after([5, 5, 5, 1000, 5, 5, 5, 5, 5, 5, 5]).hand_on());
    }
}
