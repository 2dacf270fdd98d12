//! Policy of a mirror: which leg a read goes to, how fast it resyncs, how large its regions are. Pure.

use std::ops::Range;
use std::time::Duration;

/// Most regions of a mirror: what 8 KiB of bits have room for.
use corewise_blockmq::Geometry;

pub(super) const MOST_REGIONS: u64 = 65_536;
/// Smallest region: a smaller one would have more writes wait for the record, and a resync of it takes a
/// moment anyway.
pub(super) const SMALLEST_REGION: u32 = 20;
/// Regions that get their bits at once where writes follow each other.
const AHEAD: usize = 8;
/// Rounds of bits after which, within one time of cleaning, twice as many regions get theirs at once.
const ROUNDS: u32 = 32;
/// Reads of a leg that may fail before it is dropped, where the place can be written anew. As many as the
/// kernel forgives within an hour.
pub(super) const MOST_FORGIVEN: u64 = 20;
/// How long after a try to make a region alike that failed the resync goes on: it may try there again.
pub(super) const AGAIN: Duration = Duration::from_secs(5);
/// Reads that follow each other stay on a disk that seeks while it has no more than so many others in
/// flight than the least busy leg.
const SEQUENTIAL_SLACK: u64 = 8;

/// A leg as a read sees it.
#[derive(Clone, Copy, Debug)]
pub(super) struct View {
    pub(super) leg: usize,
    /// Requests in flight.
    pub(super) in_flight: u64,
    /// Where its last read ended.
    pub(super) head: u64,
    pub(super) rotational: bool,
}

/// The leg for a read at `offset`: as `read_balance` of the kernel's raid1. A disk that seeks keeps what
/// follows its last read; else it is the leg with the fewest requests in flight, and among those the
/// one whose head is nearest.
pub(super) fn choose(legs: impl Iterator<Item = View> + Clone, offset: u64) -> Option<usize> {
    let least = legs.clone().map(|leg| leg.in_flight).min()?;
    let follows = |leg: &View| {
        leg.rotational && leg.head == offset && leg.in_flight <= least + SEQUENTIAL_SLACK
    };
    let nearest = |leg: &View| (leg.in_flight, leg.head.abs_diff(offset), leg.leg);
    legs.clone().find(follows).or_else(|| legs.min_by_key(nearest)).map(|leg| leg.leg)
}

/// Why a leg that comes late can't serve a mirror that others use already; `None`: it can. Its limits don't
/// matter, its queue keeps them.
pub(super) fn misfit(mirror: &Geometry, leg: &Geometry) -> Option<&'static str> {
    let misfits = [
        (leg.block_size > mirror.block_size, "its blocks are larger than the mirror's"),
        (leg.read_only && !mirror.read_only, "it is read-only"),
        (leg.can_flush && !mirror.can_flush, "it needs flushes, but the mirror gets none"),
        (mirror.can_discard && !leg.can_discard, "it cannot discard, but the mirror can"),
        (
            mirror.can_write_zeroes && !leg.can_write_zeroes,
            "it cannot write zeroes, but the mirror can",
        ),
    ];
    misfits.into_iter().find_map(|(is_one, why)| is_one.then_some(why))
}

/// How long the resync waits after a step of `bytes` that took `took`: it keeps to `most` bytes a
/// second, and to `least` while others have work for the legs.
pub(super) fn pause(bytes: u64, took: Duration, busy: bool, least: u64, most: u64) -> Duration {
    let rate = if busy { least.min(most) } else { most };
    let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(rate.max(1));
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX)).saturating_sub(took)
}

/// The regions whose bits are set with that of region `n`. Where the one in front has its bit, somebody
/// writes in order, and would wait at each region. Where bits were set in so many `rounds` lately,
/// somebody writes all over the place: then the bits become coarse, twice as coarse each time, so
/// that all of a device takes some hundreds of rounds.
pub(super) fn with(n: usize, follows: bool, rounds: u32, regions: usize) -> Range<usize> {
    let group = 1 << (rounds / ROUNDS).min(MOST_REGIONS.trailing_zeros());
    let start = n / group * group;
    let end = (start + group).max(if follows { n + AHEAD } else { 0 });
    start..end.min(regions)
}

/// The size of a region, as a power of two.
pub(super) fn region_shift(size: u64) -> u32 {
    let least = size.div_ceil(MOST_REGIONS).next_power_of_two().trailing_zeros();
    least.max(SMALLEST_REGION)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(leg: usize, in_flight: u64, head: u64, rotational: bool) -> View {
        View { leg, in_flight, head, rotational }
    }

    #[test]
    fn the_least_busy_leg_reads_and_among_equals_the_nearest() {
        let legs = [view(0, 2, 0, false), view(1, 1, 900, false), view(2, 1, 500, false)];
        assert_eq!(choose(legs.into_iter(), 400), Some(2));
        assert_eq!(choose(legs.into_iter(), 800), Some(1));
        assert_eq!(choose([].into_iter(), 0), None);
    }

    #[test]
    fn sequential_reads_stay_on_a_seeking_disk_until_it_is_much_busier() {
        let legs = |busy| [view(0, 0, 0, true), view(1, busy, 4096, true)];
        assert_eq!(choose(legs(8).into_iter(), 4096), Some(1));
        assert_eq!(choose(legs(9).into_iter(), 4096), Some(0));
        let flash = [view(0, 0, 0, false), view(1, 1, 4096, false)];
        assert_eq!(choose(flash.into_iter(), 4096), Some(0), "there a seek costs nothing");
    }

    #[test]
    fn a_resync_keeps_to_its_rate_and_to_the_lower_one_behind_others() {
        let ms = Duration::from_millis;
        assert_eq!(pause(1 << 20, ms(0), false, 1 << 20, 1 << 21), ms(500));
        assert_eq!(pause(1 << 20, ms(400), false, 1 << 20, 1 << 21), ms(100));
        assert_eq!(pause(1 << 20, ms(400), true, 1 << 20, 1 << 21), ms(600));
        assert_eq!(pause(1 << 20, ms(600), false, 1 << 20, 1 << 21), ms(0));
        assert_eq!(pause(1 << 20, ms(0), true, 1 << 30, 1 << 20), ms(1000), "never more than most");
        assert_eq!(pause(u64::MAX, ms(0), true, 0, 0), Duration::from_nanos(u64::MAX));
    }

    #[test]
    fn a_leg_that_comes_late_can_do_what_the_mirror_was_said_to_do() {
        let mirror = Geometry { max_transfer: 4096, ..Geometry::new(1 << 20) };
        assert_eq!(misfit(&mirror, &Geometry::new(1 << 30)), None);
        let needy = [
            Geometry { block_size: 4096, ..mirror },
            Geometry { read_only: true, ..mirror },
            Geometry { can_discard: false, ..mirror },
            Geometry { can_write_zeroes: false, ..mirror },
        ];
        assert!(needy.iter().all(|leg| misfit(&mirror, leg).is_some()));
        let never = Geometry { can_flush: false, ..mirror };
        assert!(misfit(&never, &mirror).is_some() && misfit(&mirror, &never).is_none());
    }

    #[test]
    fn a_sequential_writer_gets_the_bits_ahead() {
        assert_eq!(with(5, false, 0, 100), 5..6);
        assert_eq!(with(5, true, 0, 100), 5..13);
        assert_eq!(with(95, true, 0, 100), 95..100);
        assert_eq!(with(99, true, 0, 100), 99..100);
    }

    #[test]
    fn a_random_writer_gets_coarser_and_coarser_bits() {
        assert_eq!(with(5, false, ROUNDS - 1, 100), 5..6);
        assert_eq!(with(5, false, ROUNDS, 100), 4..6);
        assert_eq!(with(5, true, ROUNDS, 100), 4..13);
        assert_eq!(with(70, false, 5 * ROUNDS, 100), 64..96);
        assert_eq!(with(70, false, u32::MAX, 100), 0..100);
        // How many rounds it takes where each write goes to another region.
        let (regions, mut rounds) = (MOST_REGIONS as usize, 0);
        let mut set = vec![false; regions];
        for n in (0..regions).map(|n| n * 40_503 % regions) {
            if !set[n] {
                set[with(n, false, rounds, regions)].fill(true);
                rounds += 1;
            }
        }
        assert!(set.iter().all(|set| *set) && rounds < 700, "{rounds}");
    }

    #[test]
    fn regions_are_a_mebibyte_or_as_large_as_it_takes() {
        assert_eq!(region_shift(1 << 20), 20);
        assert_eq!(region_shift(64 << 30), 20);
        assert_eq!(region_shift((64 << 30) + 1), 21);
        assert_eq!(region_shift(1 << 50), 34);
        assert!((1u64 << 50) >> region_shift(1 << 50) <= MOST_REGIONS);
    }
}
