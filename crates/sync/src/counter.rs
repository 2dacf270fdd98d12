//! A counter that threads add to without writing to each other's memory.

use std::fmt;
use std::sync::{Arc, OnceLock};

use crate::facade::atomic::{AtomicU64, Ordering};
use crate::facade::backend::constructor;
use crate::own::{self, Slot, Slots};

/// A counter for frequent additions by any number of threads, which don't slow each other down, and
/// for rare reads. Each thread has a count of its own (128 bytes), and a read adds them up.
///
/// An addition costs about two nanoseconds and no locked instruction. A thread's first addition
/// takes a lock and allocates. A thread that ends leaves its count to the next one. Dropping the
/// counter frees all.
///
/// ```
/// use corewise_sync::Counter;
///
/// static SERVED: Counter = Counter::new();
///
/// std::thread::scope(|scope| {
///     for _ in 0..4 {
///         scope.spawn(|| (0..10).for_each(|_| SERVED.add(1)));
///     }
/// });
/// assert_eq!(SERVED.total(), 40);
/// ```
///
/// The kernel's `percpu_counter` has a count for each CPU. A thread of user space may be moved
/// between its load and its store, so a count of a CPU would need a locked instruction: five
/// nanoseconds more.
pub struct Counter {
    /// The counts of the threads, created at the first addition.
    counts: OnceLock<Arc<Slots<Count>>>,
    /// A: additions by threads that are ending and have no count any more. Relaxed: it orders
    /// nothing.
    rest: AtomicU64,
}

/// Sum of the additions of one thread, and of earlier owners of its count, on cache lines of its
/// own.
#[derive(Default)]
#[repr(align(128))]
struct Count {
    /// A: the number. Stored only by the thread that has it; Relaxed, since it orders nothing.
    number: AtomicU64,
}

impl Slot for Count {
    fn is_free(&self) -> bool {
        true
    }
}

impl Counter {
    constructor! {
        /// Creates a counter at 0. (`const`, except in builds for loom.)
        pub fn new() -> Counter {
            Counter { counts: OnceLock::new(), rest: AtomicU64::new(0) }
        }
    }

    /// Adds. Wraps around at 2^64. Any context, but no signal handler.
    #[inline]
    pub fn add(&self, n: u64) {
        let counts = self.counts.get_or_init(|| Arc::new(Slots::new()));
        match own::own(counts) {
            // Not locked: the number has one writer, this thread.
            Some(count) => {
                let sum = count.number.load(Ordering::Relaxed).wrapping_add(n);
                count.number.store(sum, Ordering::Relaxed);
            }
            None => self.add_to_the_rest(n),
        }
    }

    /// Adds in a destructor of a thread that ends.
    #[cold]
    fn add_to_the_rest(&self, n: u64) {
        self.rest.fetch_add(n, Ordering::Relaxed);
    }

    /// Returns the sum: at least the additions that happened before the call, at most those until
    /// the return (as long as nothing wraps around). Takes a lock, and reads as many counts as
    /// threads have added at the same time.
    pub fn total(&self) -> u64 {
        let rest = self.rest.load(Ordering::Relaxed);
        let sum = |counts: &[Arc<Count>]| {
            let numbers = counts.iter().map(|count| count.number.load(Ordering::Relaxed));
            numbers.fold(rest, u64::wrapping_add)
        };
        self.counts.get().map_or(rest, |counts| counts.look(sum))
    }
}

impl Default for Counter {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Counter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Counter").field(&self.total()).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::thread;

    use super::*;

    #[test]
    fn nothing_is_lost_where_many_threads_add_to_many_counters() {
        static COUNTERS: [Counter; 50] = [const { Counter::new() }; 50];
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for n in 0..10_000 {
                        COUNTERS[n % 50].add(1);
                    }
                });
            }
        });
        assert!(COUNTERS.iter().all(|counter| counter.total() == 800), "{COUNTERS:?}");
    }

    #[test]
    fn threads_that_come_one_after_another_share_a_count() {
        let counter = Arc::new(Counter::new());
        for _ in 0..10 {
            let counter = Arc::clone(&counter);
            thread::spawn(move || counter.add(1)).join().unwrap();
        }
        assert_eq!(counter.total(), 10);
        assert_eq!(counter.counts.get().unwrap().look(<[_]>::len), 1);
    }

    #[test]
    fn an_addition_by_a_destructor_of_a_thread_is_counted() {
        struct AddsAtItsEnd(Cell<Option<Arc<Counter>>>);
        impl Drop for AddsAtItsEnd {
            fn drop(&mut self) {
                if let Some(counter) = self.0.take() {
                    counter.add(1);
                }
            }
        }
        thread_local! {
            // Initialized before the thread's list of slots, so that it may be dropped after it.
            static LAST: AddsAtItsEnd = const { AddsAtItsEnd(Cell::new(None)) };
        }
        let counter = Arc::new(Counter::new());
        let theirs = Arc::clone(&counter);
        thread::spawn(move || {
            LAST.with(|last| last.0.set(Some(Arc::clone(&theirs))));
            theirs.add(1);
        })
        .join()
        .unwrap();
        assert_eq!(counter.total(), 2);
    }

    #[test]
    fn a_counter_at_the_address_of_one_that_was_dropped_begins_at_0() {
        for _ in 0..100 {
            let counter = Counter::new();
            counter.add(1);
            assert_eq!(counter.total(), 1);
        }
    }
}
