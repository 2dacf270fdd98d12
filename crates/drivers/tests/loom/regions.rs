//! Models of a mirror's regions: writes, the resync, and the keeper that takes bits away.
//! `src/mirror/README.md` names the steps.

use std::sync::Arc;

use corewise_drivers::model::{RegionAge, RegionEntry, Regions};
use corewise_sync::atomic::{AtomicBool, Ordering};
use corewise_sync::cell::UnsafeCell;
use corewise_sync::model;

struct Shared {
    regions: Regions,
    /// P: owned by the writer inside, or by the resync that holds the region. Loom reports a race.
    bytes: UnsafeCell<u32>,
    /// A: the bit on disk.
    bit: AtomicBool,
    /// A: true if a leg is out.
    out: AtomicBool,
}

// SAFETY: the models check this: one thread at a time touches `bytes`.
unsafe impl Sync for Shared {}
// SAFETY: nothing in it belongs to a thread.
unsafe impl Send for Shared {}

fn dirty() -> Arc<Shared> {
    let regions = Regions::new(4096, 12);
    regions.mark(0);
    Arc::new(Shared {
        regions,
        bytes: UnsafeCell::new(0),
        bit: AtomicBool::new(true),
        out: AtomicBool::new(false),
    })
}

impl Shared {
    fn touch(&self) {
        // SAFETY: the caller has the region; loom checks it.
        self.bytes.with_mut(|bytes| unsafe { *bytes += 1 });
    }

    /// Acts as the resync, which has the region.
    fn resync(&self) {
        assert!(self.regions.is_held(0));
        self.touch();
        self.regions.unlock(0, true);
    }
}

fn a_write_meets_the_resync(waits: bool) {
    let shared = dirty();
    shared.regions.mark_stale(0);
    let theirs = Arc::clone(&shared);
    let writer = loom::thread::spawn(move || {
        let inside = theirs.regions.enter(0..1) == RegionEntry::In;
        if inside {
            theirs.touch();
            if theirs.regions.exit(0..1) {
                theirs.resync();
            }
        }
        inside
    });
    if shared.regions.lock(0) || !waits {
        shared.resync();
    }
    let inside = writer.join().unwrap();
    assert_eq!(shared.regions.stale(), 0, "the resync came to its end");
    // SAFETY: no other thread is left.
    let touched = shared.bytes.with(|bytes| unsafe { *bytes });
    assert_eq!(touched, 1 + u32::from(inside));
    assert_eq!(shared.regions.enter(0..1), RegionEntry::In, "writes are let in again");
}

#[test]
fn loom_a_write_and_the_resync_are_never_in_a_region_at_once() {
    loom::model(|| a_write_meets_the_resync(true));
}

#[test]
fn loom_a_resync_that_does_not_wait_for_the_writer_races_it() {
    model::must_fail("loom_a_resync_that_does_not_wait_for_the_writer_races_it", || {
        loom::model(|| a_write_meets_the_resync(false));
    });
}

/// Models the keeper, which takes the bit away, and a write that relies on the bit.
fn a_write_meets_the_keeper(asks: bool) {
    let shared = dirty();
    assert_eq!(shared.regions.age(0), RegionAge::Young);
    let theirs = Arc::clone(&shared);
    let writer = loom::thread::spawn(move || {
        if theirs.regions.enter(0..1) == RegionEntry::In {
            assert!(theirs.bit.load(Ordering::Relaxed), "a write without its bit on disk");
            let _ = theirs.regions.exit(0..1);
        }
    });
    if shared.regions.age(0) == RegionAge::Old && (shared.regions.clean(0) || !asks) {
        shared.bit.store(false, Ordering::Relaxed);
    }
    writer.join().unwrap();
}

#[test]
fn loom_no_write_is_in_flight_where_the_bit_is_gone() {
    loom::model(|| a_write_meets_the_keeper(true));
}

#[test]
fn loom_a_keeper_that_ignores_the_word_clears_a_bit_too_early() {
    model::must_fail("loom_a_keeper_that_ignores_the_word_clears_a_bit_too_early", || {
        loom::model(|| a_write_meets_the_keeper(false))
    });
}

/// Models a write that drops a leg: the bit of its region has to stay for the leg's return.
fn a_drop_meets_the_keeper(look_first: bool) {
    let shared = dirty();
    assert_eq!(shared.regions.enter(0..1), RegionEntry::In);
    let theirs = Arc::clone(&shared);
    let writer = loom::thread::spawn(move || {
        theirs.out.store(true, Ordering::Relaxed);
        let _ = theirs.regions.exit(0..1);
    });
    assert_eq!(shared.regions.age(0), RegionAge::Young);
    let early = shared.out.load(Ordering::Relaxed);
    let old = shared.regions.age(0) == RegionAge::Old;
    let out = if look_first { shared.out.load(Ordering::Relaxed) } else { early };
    if old && !out {
        assert!(!shared.regions.clean(0), "the leg that is out lacks this region");
    }
    writer.join().unwrap();
}

#[test]
fn loom_the_bits_that_a_dropped_leg_needs_stay() {
    loom::model(|| a_drop_meets_the_keeper(true));
}

#[test]
fn loom_a_keeper_that_asks_for_dropped_legs_before_its_look_takes_their_bits() {
    model::must_fail(
        "loom_a_keeper_that_asks_for_dropped_legs_before_its_look_takes_their_bits",
        || loom::model(|| a_drop_meets_the_keeper(false)),
    );
}
