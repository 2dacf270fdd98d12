//! A small seeded random number generator, so that an order or a resampling can be repeated.

/// Sebastiano Vigna's SplitMix64: a counter, hashed. Good enough to shuffle and to resample; not
/// for secrets.
#[derive(Debug, Clone)]
pub struct Rng {
    counter: u64,
}

impl Rng {
    /// One with this seed: it gives the same numbers each time.
    pub fn new(seed: u64) -> Self {
        Rng { counter: seed }
    }

    /// The next number; each is as likely as any other.
    pub(crate) fn next(&mut self) -> u64 {
        self.counter = self.counter.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.counter;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`, which isn't 0. The bias of the multiplication is below `n / 2^64`.
    pub fn below(&mut self, n: usize) -> usize {
        debug_assert!(n > 0);
        ((u128::from(self.next()) * n as u128) >> 64) as usize
    }

    /// Puts the items into a random order, each order as likely as any other (Fisher and Yates).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_numbers_and_another_seed_others() {
        let numbers = |seed| {
            let mut rng = Rng::new(seed);
            (0..8).map(|_| rng.next()).collect::<Vec<_>>()
        };
        assert_eq!(numbers(1), numbers(1));
        assert_ne!(numbers(1), numbers(2));
        // The first output for seed 0, as its author's reference code gives it.
        assert_eq!(Rng::new(0).next(), 0xe220_a839_7b1d_cdaf);
    }

    #[test]
    fn every_number_below_the_bound_comes_about_equally_often() {
        let mut rng = Rng::new(7);
        let mut counts = [0u32; 5];
        for _ in 0..50_000 {
            counts[rng.below(5)] += 1;
        }
        // Five standard deviations around 10 000.
        assert!(counts.iter().all(|&c| (9_550..=10_450).contains(&c)), "{counts:?}");
    }

    #[test]
    fn a_shuffle_reaches_every_order() {
        let mut rng = Rng::new(3);
        let mut shuffled = || {
            let mut items = [1, 2, 3];
            rng.shuffle(&mut items);
            items
        };
        let seen: std::collections::HashSet<_> = (0..200).map(|_| shuffled()).collect();
        assert_eq!(seen.len(), 6);
    }
}
