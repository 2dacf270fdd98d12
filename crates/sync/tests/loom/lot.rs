//! Sleeping on a word in a system without futexes: a sleeper is never left behind.

use std::sync::Arc;

use corewise_sync::atomic::{AtomicU32, Ordering};
use corewise_sync::model::{ParkingLot, bounded, must_fail};
use corewise_sync::thread;

struct Shared {
    lot: ParkingLot,
    word: AtomicU32,
    other: AtomicU32,
}

fn shared() -> Arc<Shared> {
    let zero = || AtomicU32::new(0);
    Arc::new(Shared { lot: ParkingLot::new(), word: zero(), other: zero() })
}

fn sleeps_until_set(shared: &Shared) {
    while shared.word.load(Ordering::Acquire) == 0 {
        shared.lot.wait(&shared.word, 0, None);
    }
}

#[test]
fn loom_lot_what_is_written_before_a_wake_up_is_not_slept_through() {
    loom::model(|| {
        let shared = shared();
        let its = Arc::clone(&shared);
        let sleeper = thread::spawn(move || sleeps_until_set(&its));
        shared.word.store(1, Ordering::Release);
        shared.lot.wake(&shared.word, 1);
        sleeper.join().unwrap();
    });
}

#[test]
fn loom_lot_all_sleepers_on_a_word_are_woken_and_those_on_another_sleep_on() {
    // Three threads with several locks each.
    bounded(2, || {
        let shared = shared();
        let sleepers = [0, 1].map(|_| {
            let its = Arc::clone(&shared);
            thread::spawn(move || sleeps_until_set(&its))
        });
        // This wakes none: the sleepers are on the other word.
        shared.lot.wake(&shared.other, u32::MAX);
        shared.word.store(1, Ordering::Release);
        shared.lot.wake(&shared.word, u32::MAX);
        sleepers.into_iter().for_each(|sleeper| sleeper.join().unwrap());
    });
}

#[test]
fn loom_lot_a_wake_up_before_the_write_is_lost() {
    let said = must_fail("loom_lot_a_wake_up_before_the_write_is_lost", || {
        loom::model(|| {
            let shared = shared();
            let its = Arc::clone(&shared);
            let sleeper = thread::spawn(move || sleeps_until_set(&its));
            shared.lot.wake(&shared.word, 1);
            shared.word.store(1, Ordering::Release);
            sleeper.join().unwrap();
        });
    });
    assert!(said.is_empty() || said.contains("deadlock"), "{said}");
}
