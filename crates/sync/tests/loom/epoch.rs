//! Models of epochs: after a grace period no thread reads any more, and a waiter is woken. Without
//! either fence both go wrong. `src/epoch/README.md` names the steps.

use std::sync::Arc;

use corewise_sync::atomic::{AtomicBool, Ordering};
use corewise_sync::cell::UnsafeCell;
use corewise_sync::epoch::{Epochs, ReadMostly, Reader};
use corewise_sync::fence::{Asymmetric, AsymmetricPolicy, NoHeavy, NoLight};
use corewise_sync::model::must_fail;
use corewise_sync::thread;

fn model(f: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    // Store buffering needs one preemption on each side.
    builder.preemption_bound = Some(3);
    builder.check(f);
}

/// An object that is published, and its readers.
struct Shared {
    published: AtomicBool,
    /// P: read inside a section that found it published; its owner's again after a grace period.
    /// Loom reports a race.
    thing: UnsafeCell<u32>,
}

// SAFETY: what the models check: nobody reads `thing` while it is written.
unsafe impl Sync for Shared {}
// SAFETY: nothing in it belongs to a thread.
unsafe impl Send for Shared {}

impl Shared {
    fn new() -> Arc<Shared> {
        Arc::new(Shared { published: AtomicBool::new(true), thing: UnsafeCell::new(1) })
    }

    fn read<A: AsymmetricPolicy>(&self, reader: &Reader<A>) {
        let _section = reader.enter();
        if self.published.load(Ordering::Relaxed) {
            // SAFETY: published, and in a section: loom checks it.
            assert_eq!(self.thing.with(|thing| unsafe { *thing }), 1);
        }
    }

    fn take_away<A: AsymmetricPolicy>(&self, epochs: &Epochs<A>) {
        self.published.store(false, Ordering::Relaxed);
        epochs.synchronize();
        // SAFETY: nobody reads it any more: loom checks it.
        self.thing.with_mut(|thing| unsafe { *thing = 0 });
    }
}

fn a_reader_meets_a_writer<A: AsymmetricPolicy>() {
    model(|| {
        let (shared, epochs) = (Shared::new(), Epochs::<A>::default());
        let reader = {
            let (shared, reader) = (Arc::clone(&shared), epochs.reader());
            thread::spawn(move || shared.read(&reader))
        };
        shared.take_away(&epochs);
        reader.join().unwrap();
    });
}

#[test]
fn loom_epoch_after_a_grace_period_nobody_reads() {
    a_reader_meets_a_writer::<Asymmetric>();
}

#[test]
fn loom_epoch_without_the_light_fences_somebody_still_reads() {
    let test = "loom_epoch_without_the_light_fences_somebody_still_reads";
    let said = must_fail(test, a_reader_meets_a_writer::<NoLight>);
    assert!(said.is_empty() || said.contains("Causality violation"), "{said}");
}

#[test]
fn loom_epoch_without_the_heavy_fences_somebody_still_reads() {
    let test = "loom_epoch_without_the_heavy_fences_somebody_still_reads";
    let said = must_fail(test, a_reader_meets_a_writer::<NoHeavy>);
    assert!(said.is_empty() || said.contains("Causality violation"), "{said}");
}

/// Runs a section that has begun before the writer comes: only its end, and the writer's sleep, are
/// at stake.
fn a_section_ends_while_somebody_waits<A: AsymmetricPolicy>() {
    model(|| {
        let (shared, epochs) = (Shared::new(), Epochs::<A>::default());
        let reader = epochs.reader();
        let section = reader.enter();
        let writer = {
            let (shared, epochs) = (Arc::clone(&shared), epochs.clone());
            thread::spawn(move || shared.take_away(&epochs))
        };
        drop(section);
        writer.join().unwrap();
    });
}

#[test]
fn loom_epoch_the_end_of_the_section_wakes_a_sleeper() {
    a_section_ends_while_somebody_waits::<Asymmetric>();
}

#[test]
fn loom_epoch_without_the_light_fences_the_writer_sleeps_for_ever() {
    let test = "loom_epoch_without_the_light_fences_the_writer_sleeps_for_ever";
    let said = must_fail(test, a_section_ends_while_somebody_waits::<NoLight>);
    assert!(said.is_empty() || said.contains("deadlock"), "{said}");
}

#[test]
fn loom_epoch_without_the_heavy_fences_the_writer_sleeps_for_ever() {
    let test = "loom_epoch_without_the_heavy_fences_the_writer_sleeps_for_ever";
    let said = must_fail(test, a_section_ends_while_somebody_waits::<NoHeavy>);
    assert!(said.is_empty() || said.contains("deadlock"), "{said}");
}

#[test]
fn loom_epoch_a_reader_that_comes_again_and_again_keeps_nobody() {
    model(|| {
        let (shared, epochs) = (Shared::new(), Epochs::new());
        let reader = {
            let (shared, reader) = (Arc::clone(&shared), epochs.reader());
            thread::spawn(move || {
                shared.read(&reader);
                shared.read(&reader);
            })
        };
        shared.take_away(&epochs);
        reader.join().unwrap();
    });
}

#[test]
fn loom_epoch_two_who_wait_for_one_section_both_go_on() {
    model(|| {
        let epochs = Epochs::new();
        let reader = epochs.reader();
        let section = reader.enter();
        let writers = [epochs.clone(), epochs.clone()]
            .map(|epochs| thread::spawn(move || epochs.synchronize()));
        drop(section);
        writers.into_iter().for_each(|writer| writer.join().unwrap());
    });
}

#[test]
fn loom_epoch_a_slot_goes_from_thread_to_thread() {
    model(|| {
        let (shared, epochs) = (Shared::new(), Epochs::new());
        let readers = {
            let (shared, epochs) = (Arc::clone(&shared), epochs.clone());
            thread::spawn(move || {
                // The second takes the slot that the first has given back.
                shared.read(&epochs.reader());
                shared.read(&epochs.reader());
            })
        };
        shared.take_away(&epochs);
        readers.join().unwrap();
    });
}

fn a_cell_is_read_and_replaced<A: AsymmetricPolicy>() {
    model(|| {
        let cell = Arc::new(ReadMostly::with_epochs(Epochs::<A>::default(), Box::new(1)));
        let reader = {
            let cell = Arc::clone(&cell);
            // It uses the thread's own slot.
            thread::spawn(move || {
                let read = **cell.read();
                assert!(read == 1 || read == 2);
            })
        };
        assert_eq!(*cell.swap(Box::new(2)), 1);
        assert_eq!(**cell.read(), 2);
        reader.join().unwrap();
    });
}

#[test]
fn loom_epoch_a_cell_that_is_replaced_is_read_before_or_after() {
    a_cell_is_read_and_replaced::<Asymmetric>();
}

/// A value that is overwritten when it is dropped, so that loom sees where that is.
struct Spoilt(UnsafeCell<u32>);

// SAFETY: what the models check: nobody reads it while it is dropped.
unsafe impl Sync for Spoilt {}
// SAFETY: nothing in it belongs to a thread.
unsafe impl Send for Spoilt {}

impl Spoilt {
    fn new(number: u32) -> Spoilt {
        Spoilt(UnsafeCell::new(number))
    }

    fn number(&self) -> u32 {
        // SAFETY: in a section: loom checks it.
        self.0.with(|number| unsafe { *number })
    }
}

impl Drop for Spoilt {
    fn drop(&mut self) {
        // SAFETY: the last owner's.
        self.0.with_mut(|number| unsafe { *number = 0 });
    }
}

fn an_old_value_is_dropped_behind_its_readers<A: AsymmetricPolicy>() {
    model(|| {
        let cell = Arc::new(ReadMostly::with_epochs(Epochs::<A>::default(), Spoilt::new(1)));
        let reader = {
            let cell = Arc::clone(&cell);
            thread::spawn(move || {
                // The first one takes a slot, under a lock that would order the rest.
                drop(cell.epochs().enter());
                assert_ne!(cell.read().number(), 0);
            })
        };
        cell.replace(Spoilt::new(2));
        // This drops what the first one has left, if that is over.
        cell.replace(Spoilt::new(3));
        assert_eq!(cell.read().number(), 3);
        reader.join().unwrap();
    });
}

#[test]
fn loom_epoch_an_old_value_that_is_left_to_the_next_writer_is_dropped_behind_its_readers() {
    an_old_value_is_dropped_behind_its_readers::<Asymmetric>();
}

#[test]
fn loom_epoch_without_the_light_fences_an_old_value_is_dropped_under_a_reader() {
    let test = "loom_epoch_without_the_light_fences_an_old_value_is_dropped_under_a_reader";
    let said = must_fail(test, an_old_value_is_dropped_behind_its_readers::<NoLight>);
    assert!(said.is_empty() || said.contains("Causality violation"), "{said}");
}

#[test]
fn loom_epoch_without_the_heavy_fences_an_old_value_is_dropped_under_a_reader() {
    let test = "loom_epoch_without_the_heavy_fences_an_old_value_is_dropped_under_a_reader";
    let said = must_fail(test, an_old_value_is_dropped_behind_its_readers::<NoHeavy>);
    assert!(said.is_empty() || said.contains("Causality violation"), "{said}");
}

#[test]
fn loom_epoch_two_writers_drop_what_they_replace_and_each_value_once() {
    model(|| {
        let cell = Arc::new(ReadMostly::new(Spoilt::new(1)));
        let other = {
            let cell = Arc::clone(&cell);
            thread::spawn(move || cell.replace(Spoilt::new(2)))
        };
        cell.replace(Spoilt::new(3));
        other.join().unwrap();
        assert_ne!(cell.read().number(), 0);
    });
}

#[test]
fn loom_epoch_two_updates_of_a_cell_are_both_done() {
    model(|| {
        let cell = Arc::new(ReadMostly::new(1));
        let other = {
            let cell = Arc::clone(&cell);
            thread::spawn(move || cell.update(|n| n + 10))
        };
        cell.update(|n| n + 100);
        other.join().unwrap();
        assert_eq!(*cell.read(), 111);
    });
}
