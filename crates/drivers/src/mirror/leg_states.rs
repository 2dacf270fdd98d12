//! The states of a mirror's legs: those that are used, and those that its record may call in sync.
//! Each change of these two words has a name here. `README.md` beside this file argues it.
//!
//! | legs | set by | means |
//! |---|---|---|
//! | in sync | `promote`, until a drop | they have everything that was acknowledged |
//! | being resynced | `rebuild`, until `promote` or a drop | changes go there, reads don't |
//! | claimed | `claim`, until `recorded` | a head that may be on disk calls them in sync |
//!
//! A leg in sync is always claimed. One that is claimed and not in sync keeps changes from being
//! acknowledged.

use std::ops::Range;
use std::time::Duration;

use corewise_blockmq::Geometry;
use corewise_sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The states of up to 32 legs, as masks.
pub struct LegStates {
    /// A: bit n is set while leg n is in sync, bit 32 + n while it is being resynced; never both.
    /// All changes are read-modify-writes, so two failing writes can't each drop the leg that the
    /// other one relies on.
    state: AtomicU64,
    /// A: legs that are claimed; changed by the keeper only. The orderings are argued where it is
    /// changed.
    claimed: AtomicU32,
    /// I: legs that are never dropped: a change that fails there fails.
    pinned: u32,
}

fn split(state: u64) -> (u32, u32) {
    (state as u32, (state >> 32) as u32)
}

impl LegStates {
    /// Creates the states with these legs in sync. The record's content is unknown yet: all are
    /// claimed.
    pub fn new(in_sync: u32) -> Self {
        let (state, claimed) = (AtomicU64::new(in_sync.into()), AtomicU32::new(u32::MAX));
        Self { state, claimed, pinned: 0 }
    }

    fn state(&self) -> (u32, u32) {
        // Acquire: pairs with the changes, so that a thread that sees a leg dropped or taken back
        // sees the earlier writes.
        split(self.state.load(Ordering::Acquire))
    }

    /// Legs that have everything.
    pub fn in_sync(&self) -> u32 {
        self.state().0
    }

    /// Legs that are being resynced.
    pub fn rebuilding(&self) -> u32 {
        self.state().1
    }

    /// Legs that changes go to.
    pub fn active(&self) -> u32 {
        let (in_sync, rebuilding) = self.state();
        in_sync | rebuilding
    }

    /// Marks these as never dropped. Called before any other thread sees the mirror.
    pub fn pin(&mut self, legs: u32) {
        self.pinned = legs;
    }

    /// Makes these legs in sync, and uses no others. The caller calls it before any other thread
    /// sees the mirror.
    pub fn set(&self, in_sync: u32) {
        self.state.store(in_sync.into(), Ordering::Release);
    }

    /// Settles a change, or a request of the mirror's own, that has succeeded on some legs and
    /// failed on others. Returns `None` if no leg in sync has it, or a pinned leg lacks it: it has
    /// failed, and no leg is dropped. Otherwise it has succeeded, and the legs on which it failed
    /// are out; the result names these.
    ///
    /// It is one step. Otherwise a leg could come in sync in the middle, and a change would count
    /// that the source of its copy lacks.
    pub fn settle(&self, succeeded: u32, failed: u32) -> Option<u32> {
        let may = |in_sync: u32| in_sync & succeeded != 0 && failed & self.pinned == 0;
        if failed == 0 {
            return may(self.in_sync()).then_some(0);
        }
        let after = |state: u64| {
            let gone = u64::from(failed) | u64::from(failed) << 32;
            may(state as u32).then_some(state & !gone)
        };
        let before = self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, after).ok()?;
        let (in_sync, rebuilding) = split(before);
        Some((in_sync | rebuilding) & failed)
    }

    /// Takes leg `n` out. Returns false if it was out, is pinned, or is the last one that has
    /// everything.
    pub fn drop_leg(&self, n: usize) -> bool {
        if self.pinned & 1 << n != 0 {
            return false;
        }
        self.state
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |state| {
                let left = state & !(1 << n | 1 << (32 + n));
                (left as u32 != 0 && left != state).then_some(left)
            })
            .is_ok()
    }

    /// Lets changes go to these legs, which were out.
    pub fn rebuild(&self, legs: u32) {
        self.state.fetch_or(u64::from(legs) << 32, Ordering::AcqRel);
    }

    /// Claims the legs that are being resynced, which a head may call in sync from now on (Claim).
    ///
    /// A change that fails on one of them has either dropped it before, so that it isn't among
    /// them; or finds it claimed.
    pub fn claim(&self) -> u32 {
        let new = self.rebuilding();
        // The later change of `state` orders this.
        self.claimed.fetch_or(new, Ordering::Relaxed);
        // A load wouldn't do: this and a drop are two changes of one word, and the second one sees
        // the first. Release pairs with the Acquire of a later drop, or of the thread that sees the
        // drop: then `is_behind` sees the claim.
        let (_, rebuilding) = split(self.state.fetch_or(0, Ordering::AcqRel));
        rebuilding & new
    }

    /// Makes in sync those of `legs` that are still being resynced, and returns them. They are
    /// claimed.
    pub fn promote(&self, legs: u32) -> u32 {
        let before = self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, |state| {
            let done = u64::from(split(state).1 & legs);
            Some((state | done) & !(done << 32))
        });
        match before {
            Ok(state) | Err(state) => split(state).1 & legs,
        }
    }

    /// Ends all claims but those of `in_sync`: a head that calls these in sync is durable on one of
    /// them, and newer than all others.
    pub fn recorded(&self, in_sync: u32) {
        // Release: the head is durable by then; pairs with `is_behind`.
        self.claimed.store(in_sync, Ordering::Release);
    }

    /// Returns true if the record may call a leg in sync that isn't: then no change that it lacks
    /// may be acknowledged.
    pub fn is_behind(&self) -> bool {
        // Acquire: a thread that acknowledges because of this sees the durable head.
        self.claimed.load(Ordering::Acquire) & !self.in_sync() != 0
    }

    /// Returns true if the record is right, as far as is known.
    pub fn is_recorded(&self) -> bool {
        self.claimed.load(Ordering::Relaxed) == self.in_sync()
    }
}

// Policy of a mirror: the leg of a read, the pace of a resync, the size of regions. Pure.

/// Largest number of regions of a mirror: 8 KiB of bits have room for it.
pub(super) const MOST_REGIONS: u64 = 65_536;
/// Size of the smallest region, as a power of two: a smaller one would make more writes wait for
/// the record, and a resync of it takes a moment anyway.
pub(super) const SMALLEST_REGION: u32 = 20;
/// Number of regions that get their bits at once if writes follow each other.
const AHEAD: usize = 8;
/// Number of rounds of bits within one cleaning time after which twice as many regions get their
/// bits at once.
const ROUNDS: u32 = 32;
/// Number of reads of a leg that may fail before it is dropped, if the place can be written anew.
/// The kernel forgives as many within an hour.
pub(super) const MOST_FORGIVEN: u64 = 20;
/// Time after which the resync continues when a region could not be made alike: it may retry there.
pub(super) const AGAIN: Duration = Duration::from_secs(5);
/// Slack of sequential reads: they stay on a disk that seeks as long as it has at most this many
/// more requests in flight than the least busy leg.
const SEQUENTIAL_SLACK: u64 = 8;

/// A leg from the view of a read.
#[derive(Clone, Copy, Debug)]
pub(super) struct LegView {
    pub(super) leg: usize,
    /// Requests in flight.
    pub(super) in_flight: u64,
    /// End of its last read.
    pub(super) head: u64,
    pub(super) rotational: bool,
}

/// Chooses the leg for a read at `offset`, as `read_balance` of the kernel's raid1. A disk that
/// seeks keeps reads that follow its last one. Otherwise the choice is the leg with the fewest
/// requests in flight, and among those the one whose head is nearest.
pub(super) fn choose(legs: impl Iterator<Item = LegView> + Clone, offset: u64) -> Option<usize> {
    let least = legs.clone().map(|leg| leg.in_flight).min()?;
    let follows = |leg: &LegView| {
        leg.rotational && leg.head == offset && leg.in_flight <= least + SEQUENTIAL_SLACK
    };
    let nearest = |leg: &LegView| (leg.in_flight, leg.head.abs_diff(offset), leg.leg);
    legs.clone().find(follows).or_else(|| legs.min_by_key(nearest)).map(|leg| leg.leg)
}

/// Returns why a leg that comes late can't serve a mirror that others use already, and what to do;
/// `None`: it can. Its limits don't matter, its queue keeps them.
pub(super) fn misfit(mirror: &Geometry, leg: &Geometry) -> Option<String> {
    let restart = "restart the mirror with this leg, or use another one";
    let (theirs, ours) = (leg.block_size, mirror.block_size);
    if theirs > ours {
        return Some(format!(
            "its block size {theirs} is larger than the mirror's {ours}; use one with at most {ours}"
        ));
    }
    if leg.read_only && !mirror.read_only {
        let why = "it is read-only, but the mirror takes writes; make it writable, or use another";
        return Some(why.to_owned());
    }
    let misfits = [
        (leg.can_flush && !mirror.can_flush, "it needs flushes, but the mirror sends none"),
        (mirror.can_discard && !leg.can_discard, "it cannot discard, but the mirror can"),
        (
            mirror.can_write_zeroes && !leg.can_write_zeroes,
            "it cannot write zeroes, but the mirror can",
        ),
    ];
    misfits.into_iter().find_map(|(is_one, why)| is_one.then(|| format!("{why}; {restart}")))
}

/// Returns how long the resync waits after a step of `bytes` that took `took`. It keeps to `most`
/// bytes a second, and to `least` while other requests use the legs.
pub(super) fn pause(bytes: u64, took: Duration, busy: bool, least: u64, most: u64) -> Duration {
    let rate = if busy { least.min(most) } else { most };
    let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(rate.max(1));
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX)).saturating_sub(took)
}

/// Returns the regions whose bits are set with that of region `n`. If the one in front has its bit,
/// writes come in order, and would wait at each region. If bits were set in many `rounds` lately,
/// writes are scattered. Then the bits become coarse, twice as coarse each time, so that a whole
/// device takes some hundreds of rounds.
pub(super) fn with(n: usize, follows: bool, rounds: u32, regions: usize) -> Range<usize> {
    let group = 1 << (rounds / ROUNDS).min(MOST_REGIONS.trailing_zeros());
    let start = n / group * group;
    let end = (start + group).max(if follows { n + AHEAD } else { 0 });
    start..end.min(regions)
}

/// Returns the size of a region, as a power of two.
pub(super) fn region_shift(size: u64) -> u32 {
    let least = size.div_ceil(MOST_REGIONS).next_power_of_two().trailing_zeros();
    least.max(SMALLEST_REGION)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn states(in_sync: u32, rebuilding: u32) -> LegStates {
        let states = LegStates::new(in_sync);
        states.rebuild(rebuilding);
        states
    }

    #[test]
    fn the_last_leg_that_has_everything_is_never_dropped() {
        let legs = states(0b111, 0);
        assert!(legs.drop_leg(0));
        assert!(!legs.drop_leg(0), "it was out");
        legs.rebuild(1);
        assert!(legs.drop_leg(2));
        assert!(!legs.drop_leg(1), "leg 0 lacks something yet");
        assert_eq!((legs.in_sync(), legs.rebuilding(), legs.active()), (0b010, 0b001, 0b011));
        assert!(legs.drop_leg(0));
    }

    #[test]
    fn a_change_counts_where_a_leg_in_sync_has_it_and_only_then_a_leg_is_dropped_for_it() {
        let three = states(0b011, 0b100);
        assert_eq!(three.settle(0b100, 0b011), None, "the source has failed");
        assert_eq!(three.settle(0b111, 0), Some(0));
        assert_eq!(three.settle(0b001, 0b110), Some(0b110));
        assert_eq!((three.in_sync(), three.rebuilding()), (0b001, 0));
        assert_eq!((three.settle(0b110, 0), three.settle(0b001, 0b110)), (None, Some(0)));
        let mut pinned = states(0b11, 0);
        pinned.pin(0b01);
        assert_eq!((pinned.settle(0b10, 0b01), pinned.drop_leg(0)), (None, false));
        assert_eq!(pinned.settle(0b01, 0b10), Some(0b10));
    }

    #[test]
    fn only_a_leg_that_did_not_fail_meanwhile_is_in_sync_after_its_resync() {
        let legs = states(0b001, 0b110);
        assert!(legs.drop_leg(2));
        assert_eq!(legs.promote(0b110), 0b010);
        assert_eq!((legs.in_sync(), legs.rebuilding()), (0b011, 0));
    }

    #[test]
    fn a_leg_that_a_head_may_call_in_sync_and_that_is_not_keeps_changes_from_being_acknowledged() {
        let legs = states(0b01, 0b10);
        assert!(legs.is_behind(), "nothing is known of what is on disk");
        legs.recorded(0b01);
        assert!(!legs.is_behind() && legs.is_recorded());
        assert_eq!(legs.claim(), 0b10);
        assert!(legs.is_behind(), "the head may be on disk, and the leg isn't in sync yet");
        assert_eq!(legs.promote(0b10), 0b10);
        assert!(!legs.is_behind() && legs.is_recorded());
        assert!(legs.drop_leg(1) && legs.is_behind());
        legs.recorded(0b01);
        assert!(!legs.is_behind());
    }
}

#[cfg(test)]
mod policy_tests {
    use super::*;

    fn view(leg: usize, in_flight: u64, head: u64, rotational: bool) -> LegView {
        LegView { leg, in_flight, head, rotational }
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
        // The number of rounds if each write goes to another region.
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
