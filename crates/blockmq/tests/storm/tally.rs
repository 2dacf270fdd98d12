//! The outcome of the storm's requests.

use corewise_sync::Mutex;
use corewise_sync::atomic::{AtomicU64, Ordering};

/// Counts, and the mistakes found.
#[derive(Default)]
pub struct Tally {
    /// A: requests that were submitted; Relaxed counter.
    pub submitted: AtomicU64,
    /// A: requests that completed; Relaxed counter.
    pub completed: AtomicU64,
    /// L: is the lock; guards the first mistakes, in words.
    wrong: Mutex<Vec<String>>,
}

impl Tally {
    /// Records a mistake.
    pub fn bad(&self, what: String) {
        let mut wrong = self.wrong.lock();
        if wrong.len() < 10 {
            wrong.push(what);
        }
    }

    /// Returns the mistakes.
    pub fn wrong(&self) -> Vec<String> {
        self.wrong.lock().clone()
    }

    /// Returns the number of requests that completed so far.
    pub fn completed(&self) -> u64 {
        self.completed.load(Ordering::Relaxed)
    }
}
