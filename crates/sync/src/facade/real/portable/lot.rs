//! Words on which threads sleep, over locks and condition variables: a substitute for futexes.
//!
//! The word's address is only its name. *Compare* and *Enlist* are one step for *Wake*, as all
//! three run under one lock. Either a sleeper sees what was written before the wake-up, or the
//! wake-up finds the sleeper.

use std::cell::OnceCell;
use std::sync::Arc;
use std::time::Duration;

use crate::facade::atomic::{AtomicU32, Ordering};
use crate::facade::backend::constructor;
use crate::facade::backend::per_thread;
use crate::facade::lock::{Condvar, Mutex};

/// The sleepers on any words.
#[derive(Debug)]
pub struct ParkingLot {
    /// L: is the lock; guards the sleepers, in the order in which they fell asleep.
    sleepers: Mutex<Vec<Sleeper>>,
}

#[derive(Debug)]
struct Sleeper {
    /// The word's address.
    word: usize,
    bed: Arc<ParkingSpot>,
}

/// The place where one thread sleeps, on any word, so that no other is woken for it.
#[derive(Debug, Default)]
struct ParkingSpot {
    /// L: is the lock; guards whether it has been woken. Taken inside a lot's lock.
    woken: Mutex<bool>,
    /// L: waited on with `woken`.
    wakes: Condvar,
}

per_thread! {
    static OWN: OnceCell<Arc<ParkingSpot>> = OnceCell::new();
}

impl ParkingLot {
    constructor! {
        /// Creates a lot without sleepers.
        pub fn new() -> Self {
            ParkingLot { sleepers: Mutex::new(Vec::new()) }
        }
    }

    /// Sleeps if the word is `expected`, until it is woken or `timeout` is over. May return at any
    /// moment without a reason.
    pub fn wait(&self, word: &AtomicU32, expected: u32, timeout: Option<Duration>) {
        let own = OWN.try_with(|own| Arc::clone(own.get_or_init(Arc::default)));
        // A thread that is about to end may have no spot any more.
        let bed = own.unwrap_or_default();
        {
            let mut sleepers = self.sleepers.lock();
            // Compare. Relaxed: the lock shows everything that was written before a wake-up.
            if word.load(Ordering::Relaxed) != expected {
                return;
            }
            // Enlist.
            *bed.woken.lock() = false;
            sleepers.push(Sleeper { word: address(word), bed: Arc::clone(&bed) });
        }
        let woken = bed.sleep(timeout);
        if !woken {
            // The next wake-up is another's. One that came meanwhile was this one's.
            self.sleepers.lock().retain(|sleeper| !Arc::ptr_eq(&sleeper.bed, &bed));
        }
    }

    /// Wakes up to `threads` of the threads that sleep on the word, the longest sleepers first.
    /// Doesn't access the word, which may be freed.
    pub fn wake(&self, word: &AtomicU32, threads: u32) {
        let mut left = threads;
        let address = address(word);
        self.sleepers.lock().retain(|sleeper| {
            let chosen = sleeper.word == address && left > 0;
            if chosen {
                left -= 1;
                sleeper.bed.wake();
            }
            !chosen
        });
    }
}

impl ParkingSpot {
    /// Returns true if it was woken.
    fn sleep(&self, timeout: Option<Duration>) -> bool {
        let mut woken = self.woken.lock();
        if !*woken {
            woken = match timeout {
                None => self.wakes.wait(woken),
                Some(timeout) => self.wakes.wait_timeout(woken, timeout).0,
            };
        }
        *woken
    }

    fn wake(&self) {
        *self.woken.lock() = true;
        self.wakes.notify_one();
    }
}

fn address(word: &AtomicU32) -> usize {
    std::ptr::from_ref(word).addr()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, channel};

    impl ParkingLot {
        fn until_asleep(&self, threads: usize) {
            while self.sleepers.lock().len() != threads {
                crate::facade::thread::yield_now();
            }
        }
    }

    /// Starts threads that sleep on one word each, in this order. Each sends its number when it
    /// wakes.
    fn asleep(lot: &Arc<ParkingLot>, words: &[&Arc<AtomicU32>]) -> Receiver<usize> {
        let (tell, told) = channel();
        for (n, word) in words.iter().enumerate() {
            let (its, word, tell) = (Arc::clone(lot), Arc::clone(word), tell.clone());
            std::thread::spawn(move || {
                its.wait(&word, 0, None);
                let _ = tell.send(n);
            });
            lot.until_asleep(n + 1);
        }
        told
    }

    #[test]
    fn a_word_that_is_another_by_now_is_not_slept_on() {
        let lot = ParkingLot::new();
        lot.wait(&AtomicU32::new(1), 0, None);
        lot.until_asleep(0);
    }

    #[test]
    fn a_wake_up_is_for_so_many_that_sleep_on_the_word_the_longest_first() {
        let lot = Arc::new(ParkingLot::new());
        let (one, other) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
        let told = asleep(&lot, &[&one, &other, &one, &one]);
        lot.wake(&one, 1);
        lot.until_asleep(3);
        assert_eq!(told.recv(), Ok(0));
        lot.wake(&one, u32::MAX);
        lot.until_asleep(1);
        let mut woken = [told.recv(), told.recv()];
        woken.sort_unstable_by_key(|n| n.ok());
        assert_eq!(woken, [Ok(2), Ok(3)]);
        lot.wake(&other, 1);
        assert_eq!(told.recv(), Ok(1));
    }

    #[test]
    fn a_sleep_ends_with_its_time_and_takes_no_later_wake_up() {
        let lot = Arc::new(ParkingLot::new());
        let word = Arc::new(AtomicU32::new(0));
        lot.wait(&word, 0, Some(Duration::from_millis(1)));
        lot.until_asleep(0);
        let told = asleep(&lot, &[&word]);
        lot.wake(&word, 1);
        assert_eq!(told.recv(), Ok(0));
    }
}
