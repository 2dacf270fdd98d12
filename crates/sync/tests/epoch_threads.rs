//! Epochs on real threads: readers that never stop, and writers that take away what they read.
#![cfg(not(any(loom, shuttle)))]
#![allow(clippy::unwrap_used)] // a test says what it expects by unwrapping it

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;

use corewise_sync::context;
use corewise_sync::epoch::{Epochs, ReadMostly, Section};
use corewise_sync::panics;

const WRITES: u64 = if cfg!(miri) { 20 } else { 2_000 };

/// A value that records its drop, and is overwritten then.
struct Watched {
    number: u64,
    check: u64,
    drops: Arc<AtomicUsize>,
}

impl Watched {
    fn new(number: u64, drops: &Arc<AtomicUsize>) -> Watched {
        Watched { number, check: !number, drops: Arc::clone(drops) }
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.check = self.number;
        self.drops.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn readers_see_whole_values_that_never_go_back_and_each_is_dropped_once() {
    let drops = Arc::new(AtomicUsize::new(0));
    let cell = ReadMostly::new(Watched::new(0, &drops));
    let (over, reads) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let mut last = 0;
                while !over.load(Ordering::Relaxed) {
                    let value = cell.read();
                    assert_eq!(value.check, !value.number, "freed while it was read");
                    assert!(value.number >= last, "went back");
                    last = value.number;
                    reads.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for number in 1..=WRITES {
            match number % 3 {
                0 => assert_eq!(cell.swap(Watched::new(number, &drops)).number, number - 1),
                1 => cell.replace(Watched::new(number, &drops)),
                _ => cell.update(|old| Watched::new(old.number + 1, &drops)),
            }
        }
        while reads.load(Ordering::Relaxed) < 1000 {
            thread::yield_now();
        }
        over.store(true, Ordering::Relaxed);
    });
    drop(cell);
    assert_eq!(drops.load(Ordering::Relaxed) as u64, WRITES + 1);
}

/// An observer that records that its thread is about to sleep.
struct Told(Arc<AtomicBool>);

impl context::BlockingObserver for Told {
    fn begin(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
    fn end(&self) {}
}

#[test]
fn a_waiter_sleeps_until_the_section_ends() {
    let epochs = Epochs::new();
    let (inside, ended) = (Barrier::new(2), AtomicBool::new(false));
    let told = Arc::new(AtomicBool::new(false));
    thread::scope(|scope| {
        let writer = scope.spawn(|| {
            inside.wait();
            let _observed = context::observe(std::rc::Rc::new(Told(Arc::clone(&told))));
            epochs.synchronize();
            assert!(ended.load(Ordering::Relaxed), "the section was open");
        });
        let section = epochs.enter();
        inside.wait();
        // Asleep, or about to be: its checks have failed.
        while !told.load(Ordering::Relaxed) {
            thread::yield_now();
        }
        ended.store(true, Ordering::Relaxed);
        drop(section);
        writer.join().unwrap();
    });
}

#[test]
fn sections_nest_and_only_the_outermost_counts() {
    let epochs = Epochs::new();
    let outer = epochs.enter();
    drop(epochs.enter());
    thread::scope(|scope| {
        let waits = scope.spawn(|| epochs.synchronize());
        assert!(!waits.is_finished());
        drop(outer);
    });
    epochs.synchronize();
}

#[test]
fn epochs_do_not_wait_for_each_other_and_there_may_be_many() {
    let all: Vec<_> = (0..50).map(|_| Epochs::new()).collect();
    for _ in 0..2 {
        for (i, epochs) in all.iter().enumerate() {
            let _section = epochs.enter();
            let others = all.iter().enumerate().filter(|&(j, _)| j != i);
            thread::scope(|scope| {
                scope.spawn(|| others.for_each(|(_, other)| other.synchronize()));
            });
        }
    }
}

/// Reads a cell on another thread, until the end of `f`.
fn while_somebody_reads<T: Send + Sync>(cell: &ReadMostly<T>, f: impl FnOnce(&dyn Fn())) {
    let (begun, stop) = (Barrier::new(2), Barrier::new(2));
    thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let _read = cell.read();
            begun.wait();
            stop.wait();
        });
        begun.wait();
        f(&|| {
            stop.wait();
            while !reader.is_finished() {
                thread::yield_now();
            }
        });
    });
}

#[test]
fn a_writer_does_not_wait_for_a_reader_and_the_next_one_drops_what_that_has_read() {
    let drops = Arc::new(AtomicUsize::new(0));
    let new = |number| Watched::new(number, &drops);
    let cell = ReadMostly::new(new(0));
    while_somebody_reads(&cell, |let_it_end| {
        // Each but the first may have been found by the reader, which is inside.
        (1..=5).for_each(|number| cell.replace(new(number)));
        cell.update(|old| new(old.number + 1));
        assert_eq!(drops.load(Ordering::Relaxed), 0);
        let_it_end();
        assert_eq!(drops.load(Ordering::Relaxed), 0, "a reader drops nothing");
        cell.replace(new(7));
        assert_eq!(drops.load(Ordering::Relaxed), 7);
    });
    assert_eq!(cell.read().number, 7);
}

#[test]
fn a_cell_that_is_dropped_takes_its_old_values_along() {
    let drops = Arc::new(AtomicUsize::new(0));
    let (epochs, other) = (Epochs::new(), Epochs::new());
    for outer in [&epochs, &other] {
        let cell = ReadMostly::with_epochs(epochs.clone(), Watched::new(0, &drops));
        // A reader of another cell of these epochs.
        let section = outer.enter();
        thread::scope(|scope| {
            scope.spawn(|| (1..4).for_each(|number| cell.replace(Watched::new(number, &drops))));
        });
        drop(cell);
        drop(section);
        assert_eq!(drops.swap(0, Ordering::Relaxed), 4);
    }
}

#[test]
fn a_writer_that_finds_many_old_values_waits_for_their_readers() {
    let drops = Arc::new(AtomicUsize::new(0));
    let new = |number| Watched::new(number, &drops);
    let cell = ReadMostly::new(new(0));
    while_somebody_reads(&cell, |let_it_end| {
        (1..=64).for_each(|number| cell.replace(new(number)));
        thread::scope(|scope| {
            let told = Arc::new(AtomicBool::new(false));
            let its = Arc::clone(&told);
            let (cell, new) = (&cell, &new);
            let writer = scope.spawn(move || {
                let _observed = context::observe(std::rc::Rc::new(Told(its)));
                cell.replace(new(65));
            });
            while !told.load(Ordering::Relaxed) {
                thread::yield_now();
            }
            assert!(!writer.is_finished());
            let_it_end();
        });
        assert_eq!(drops.load(Ordering::Relaxed), 65);
    });
}

#[test]
fn a_refused_swap_and_an_update_that_panics_change_nothing() {
    let cell = ReadMostly::new(String::from("as it was"));
    let read = cell.read();
    let swap = || cell.swap("new".into());
    let refused = std::panic::catch_unwind(std::panic::AssertUnwindSafe(swap)).unwrap_err();
    assert!(panics::message(&*refused).contains("would wait for itself"));
    drop(read);
    let update = || cell.update(|_| panic!("on purpose"));
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(update)).is_err());
    assert_eq!(*cell.read(), "as it was");
    assert_eq!(cell.swap("new".into()), "as it was", "no section was left open");
}

/// Tests that a blocking call in a section is reported, in builds with debug assertions.
#[test]
fn a_section_is_an_atomic_section_where_that_is_looked_at() {
    let cell = ReadMostly::new(1);
    let before = context::violations();
    let read = cell.read();
    assert_eq!(context::in_atomic_section(), cfg!(debug_assertions));
    context::might_block("a lock");
    drop(read);
    assert_eq!(context::violations() - before, u64::from(cfg!(debug_assertions)));
}

#[test]
fn guards_may_be_dropped_in_any_order() {
    let (one, other) = (ReadMostly::new(1), ReadMostly::new(2));
    let (first, second, third) = (one.read(), other.read(), one.read());
    drop(first);
    assert_eq!((*second, *third), (2, 1));
    drop((second, third));
    assert!(!context::in_atomic_section());
    assert_eq!((one.swap(3), other.swap(4)), (1, 2));
}

/// Tests that destructors of thread-locals may read, even those that run after the thread's slots
/// were given back.
#[test]
fn a_thread_that_ends_may_still_read() {
    static CELL: ReadMostly<u64> = ReadMostly::new(1);
    static SEEN: AtomicU64 = AtomicU64::new(0);
    struct Reads;
    impl Drop for Reads {
        fn drop(&mut self) {
            SEEN.fetch_add(*CELL.read(), Ordering::Relaxed);
        }
    }
    /// A value that keeps its section open while the thread's slots are given back.
    struct Holds(#[allow(dead_code)] Section<'static>);
    thread_local! {
        static FIRST: RefCell<Option<Reads>> = const { RefCell::new(None) };
        static HELD: RefCell<Option<Holds>> = const { RefCell::new(None) };
    }
    for hold in [false, true, false] {
        thread::spawn(move || {
            // Older than the list of slots, so it is dropped after it.
            FIRST.with(|first| *first.borrow_mut() = Some(Reads));
            if hold {
                HELD.with(|held| *held.borrow_mut() = Some(Holds(CELL.epochs().enter())));
            }
            drop(CELL.read());
        })
        .join()
        .unwrap();
    }
    assert_eq!(SEEN.load(Ordering::Relaxed), 3);
    assert_eq!(CELL.swap(2), 1, "nobody is inside");
}
