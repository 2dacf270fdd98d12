//! Which legs of a mirror are used, and which ones its record may call in sync: two words, each change of which has
//! a name here. `README.md` beside this file argues it.
//!
//! | legs | set by | means |
//! |---|---|---|
//! | in sync | the keeper's `promote`, until a drop | they have everything that was acknowledged |
//! | being resynced | the keeper's `rebuild`, until `promote` or a drop | changes go there, reads don't |
//! | claimed | the keeper's `claim`, until its `recorded` | a head that counts, or may be on disk, calls them in sync |
//!
//! A leg in sync is always claimed. One that is claimed and not in sync keeps changes from being acknowledged.

use corewise_sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The states of up to 32 legs, as masks.
pub struct LegStates {
    /// A: bit n is set while leg n is in sync, bit 32 + n while it is being resynced; never both. All
    /// changes are read-modify-writes, so two failing writes can't each drop the leg that the other
    /// one relies on.
    state: AtomicU64,
    /// A: legs that are claimed; changed by the keeper only. The orderings are argued where it is changed.
    claimed: AtomicU32,
    /// I: legs that are never dropped: what fails there fails.
    pinned: u32,
}

fn split(state: u64) -> (u32, u32) {
    (state as u32, (state >> 32) as u32)
}

impl LegStates {
    /// These are in sync. Nothing is known of the record yet: all are claimed.
    pub fn new(in_sync: u32) -> Self {
        let (state, claimed) = (AtomicU64::new(in_sync.into()), AtomicU32::new(u32::MAX));
        Self { state, claimed, pinned: 0 }
    }

    fn state(&self) -> (u32, u32) {
        // Acquire: pairs with the changes, so that a thread that sees a leg dropped or taken back sees what was
        // done before.
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

    /// These are never dropped. Before anybody else sees the mirror.
    pub fn pin(&mut self, legs: u32) {
        self.pinned = legs;
    }

    /// These are in sync, and no others are used. Before anybody else sees the mirror.
    pub fn set(&self, in_sync: u32) {
        self.state.store(in_sync.into(), Ordering::Release);
    }

    /// A change, or what the mirror does for itself, has succeeded on some legs and failed on others. `None`:
    /// no leg in sync has it, or one that is pinned hasn't: it failed, and no leg is the worse for it. Else it
    /// has succeeded, and those on which it failed are out: which ones those are.
    ///
    /// One step: a leg that comes in sync in the middle would make a change count of which the leg that
    /// is copied from knows nothing.
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

    /// Takes leg `n` out; false where it was out, is pinned, or is the last one that has everything.
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

    /// Claim: the legs that are being resynced, and that a head may call in sync from now on.
    ///
    /// A change that fails on one of them has either dropped it before, so that it isn't among them; or finds it claimed.
    pub fn claim(&self) -> u32 {
        let new = self.rebuilding();
        // Ordered by the change of `state` behind it.
        self.claimed.fetch_or(new, Ordering::Relaxed);
        // Not a load: this and a drop are two changes of one word, and the second one sees the first. Release pairs
        // with the Acquire of a drop behind it, or of the thread that sees that: then `is_behind` sees the claim.
        let (_, rebuilding) = split(self.state.fetch_or(0, Ordering::AcqRel));
        rebuilding & new
    }

    /// Those of `legs` that are still being resynced have everything now; which ones those are. They are claimed.
    pub fn promote(&self, legs: u32) -> u32 {
        let before = self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, |state| {
            let done = u64::from(split(state).1 & legs);
            Some((state | done) & !(done << 32))
        });
        match before {
            Ok(state) | Err(state) => split(state).1 & legs,
        }
    }

    /// A head that calls these in sync, as they were a moment ago, is durable on one of them, and newer than all others:
    /// no other leg is claimed any more.
    pub fn recorded(&self, in_sync: u32) {
        // Release: once that is durable; pairs with `is_behind`.
        self.claimed.store(in_sync, Ordering::Release);
    }

    /// Whether the record may call a leg in sync that isn't: then no change that it lacks may be acknowledged.
    pub fn is_behind(&self) -> bool {
        // Acquire: who acknowledges because of it comes behind what is durable.
        self.claimed.load(Ordering::Acquire) & !self.in_sync() != 0
    }

    /// Whether the record says what is so, as far as is known.
    pub fn is_recorded(&self) -> bool {
        self.claimed.load(Ordering::Relaxed) == self.in_sync()
    }
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
