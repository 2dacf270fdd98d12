//! The places between which a line went, and whether the words that were written there were wanted.

use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use corewise_sim::{
    Access, Costs, Machine, Mask, Tally, access, allocated, burn, current, freed, lock_waited,
    moment, run, set_affinity, thread, touch,
};

#[repr(align(64))]
struct Line([AtomicU64; 8]);

fn pin(cpu: usize) {
    let mut only = Mask::EMPTY;
    only.set(cpu);
    assert!(set_affinity(current().expect("simulated"), only));
}

#[track_caller]
fn add(counter: &AtomicU64) {
    access(std::ptr::from_ref(counter).addr(), Access::Locked, Location::caller());
    counter.fetch_add(1, Ordering::SeqCst);
}

#[track_caller]
fn own(counter: &AtomicU64) {
    add(counter);
    burn(1000.0);
}

#[track_caller]
fn theirs(counter: &AtomicU64) {
    add(counter);
    burn(1000.0);
}

/// Two CPUs that count in turns, on two words of one line.
fn two_that_count(words: [usize; 2]) -> Tally {
    let line = Arc::new(Line(Default::default()));
    let outcome = run(Machine::flat(2), Costs::sapphire_rapids_16(), 1, move || {
        let other = Arc::clone(&line);
        let second = thread::spawn(move || {
            pin(1);
            (0..100).for_each(|_| theirs(&other.0[words[1]]));
        });
        (0..100).for_each(|_| own(&line.0[words[0]]));
        second.join().expect("it ended well");
    });
    outcome.tally
}

/// What went from one CPU's place to the other's, both ways.
fn between(tally: &Tally) -> (u64, u64) {
    let differ = tally.pairs.iter().filter(|(pair, _)| pair.site != pair.from);
    differ.fold((0, 0), |sum, (_, of)| (sum.0 + of.count.transfers(), sum.1 + of.apart))
}

#[test]
fn two_words_of_a_line_are_false_sharing_and_one_word_is_not() {
    let (transfers, apart) = between(&two_that_count([0, 7]));
    assert!(transfers > 150, "{transfers}");
    assert_eq!(apart, transfers, "nobody wrote what the other was after");
    let (transfers, apart) = between(&two_that_count([3, 3]));
    assert!(transfers > 150 && apart == 0, "{transfers} {apart}");
}

#[test]
fn the_user_of_new_memory_takes_the_line_from_its_allocator() {
    let outcome = run(Machine::flat(2), Costs::sapphire_rapids_16(), 1, || {
        let line = Arc::new(Line(Default::default()));
        let at = Arc::as_ptr(&line).addr();
        allocated(at, 64);
        let reader = thread::spawn(move || {
            pin(1);
            touch(at, 64, Access::Load);
            freed(at);
            drop(line);
        });
        reader.join().expect("it ended well");
    });
    let transfers: u64 = outcome.tally.pairs.values().map(|of| of.count.transfers()).sum();
    assert_eq!(transfers, 2, "one to read it, one to have it alone: {:?}", outcome.tally.pairs);
}

#[test]
fn time_between_the_marks_of_a_lock_is_a_wait_for_it() {
    let outcome = run(Machine::flat(1), Costs::sapphire_rapids_16(), 1, || {
        let began = moment();
        burn(500.0);
        lock_waited(began);
    });
    assert!((outcome.tally.lock_waits - 500.0).abs() < 1.0, "{}", outcome.tally.lock_waits);
}
