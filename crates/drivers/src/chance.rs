//! Numbers by chance that are the same in each run with the same seed, in each order of askers. Pure.

/// A number that depends on `seed` and `n` only, and looks like chance: splitmix64, by Sebastiano
/// Vigna.
pub(super) fn number(seed: u64, n: u64) -> u64 {
    let mut x = seed.wrapping_add(n.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

/// True for a share of `rate` of all `n`: never for 0 (or less, or no number), always from 1 on.
pub(super) fn happens(rate: f64, seed: u64, n: u64) -> bool {
    // 53 bits are what an f64 holds exactly: a number from 0 up to, without, 1.
    (number(seed, n) >> 11) as f64 / (1u64 << 53) as f64 <= rate && rate > 0.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_is_the_rate_and_the_seed_decides_which() {
        let hits = |rate, seed| (0..10_000).filter(|&n| happens(rate, seed, n)).count();
        assert_eq!((hits(0.0, 1), hits(1.0, 1), hits(f64::NAN, 1)), (0, 10_000, 0));
        assert!((900..1100).contains(&hits(0.1, 1)), "{}", hits(0.1, 1));
        let which = |seed| (0..100).filter(|&n| happens(0.5, seed, n)).collect::<Vec<_>>();
        assert_eq!(which(7), which(7));
        assert_ne!(which(7), which(8));
    }
}
