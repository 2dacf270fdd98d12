//! Models of the states of a mirror's legs: changes that fail on one of them, and the keeper that
//! calls another one in sync. `src/mirror/README.md` names the steps.

use std::sync::Arc;

use corewise_drivers::model::LegStates;
use corewise_sync::Mutex;
use corewise_sync::model;

const ONE: u32 = 0b01;
const OTHER: u32 = 0b10;

/// Makes the states where leg 0 is in sync, and the record says so; leg 1 is being resynced.
fn resyncing() -> Arc<LegStates> {
    let states = LegStates::new(ONE);
    states.recorded(ONE);
    states.rebuild(OTHER);
    Arc::new(states)
}

#[test]
fn loom_a_leg_that_a_head_calls_in_sync_lacks_no_acknowledged_change() {
    loom::model(|| announced_against_a_failure(true));
}

#[test]
fn loom_without_a_second_look_a_head_may_call_a_leg_in_sync_that_was_just_dropped() {
    let name = "loom_without_a_second_look_a_head_may_call_a_leg_in_sync_that_was_just_dropped";
    model::must_fail(name, || loom::model(|| announced_against_a_failure(false)));
}

/// Models a change that fails on leg 1 while the keeper announces that leg, promotes it, and
/// records the state.
fn announced_against_a_failure(looks: bool) {
    let states = resyncing();
    // The legs that the newest head on disk calls in sync: all that a kill leaves.
    let disk = Arc::new(Mutex::new(ONE));
    let (theirs, their_disk) = (Arc::clone(&states), Arc::clone(&disk));
    let change = loom::thread::spawn(move || {
        // Acknowledged at once if the record isn't behind; else it waits for the keeper.
        let lacks = theirs.settle(ONE, OTHER).is_some() && !theirs.is_behind();
        if lacks {
            assert_eq!(*their_disk.lock() & OTHER, 0, "a kill now, and the change is lost");
        }
        lacks
    });
    let seen = states.rebuilding();
    let new = if looks { states.claim() } else { states.claim() | seen };
    *disk.lock() = ONE | new;
    states.promote(new);
    if !states.is_recorded() {
        let in_sync = states.in_sync();
        *disk.lock() = in_sync;
        states.recorded(in_sync);
    }
    let acknowledged = change.join().unwrap();
    assert!(!acknowledged || *disk.lock() & OTHER == 0, "a kill now, and the change is lost");
}

/// Models two changes, each of which fails on another leg, and the end of a resync.
#[test]
fn loom_a_change_counts_only_where_a_leg_has_it_that_stays_in_sync() {
    loom::model(|| {
        let states = resyncing();
        let fails = |lacks: u32, has: u32| {
            let states = Arc::clone(&states);
            loom::thread::spawn(move || states.settle(has, lacks).is_some())
        };
        let (on_one, on_other) = (fails(ONE, OTHER), fails(OTHER, ONE));
        let new = states.claim();
        states.promote(new);
        let (without_one, without_other) = (on_one.join().unwrap(), on_other.join().unwrap());
        let in_sync = states.in_sync();
        assert_ne!(in_sync, 0, "somebody has everything");
        assert!(!without_one || in_sync & ONE == 0, "leg 0 lacks a change that counts");
        assert!(!without_other || states.active() & OTHER == 0, "leg 1 lacks one that counts");
    });
}
