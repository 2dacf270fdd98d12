//! What came of the storm's requests.

use corewise_sync::Mutex;
use corewise_sync::atomic::{AtomicU64, Ordering};

/// Counts, and what was wrong.
#[derive(Default)]
pub struct Tally {
    /// A: requests that were submitted; Relaxed counter.
    pub submitted: AtomicU64,
    /// A: requests that completed; Relaxed counter.
    pub completed: AtomicU64,
    /// L: is the lock; guards the first things that were wrong, in words.
    wrong: Mutex<Vec<String>>,
}

impl Tally {
    /// Something that must not be.
    pub fn bad(&self, what: String) {
        let mut wrong = self.wrong.lock();
        if wrong.len() < 10 {
            wrong.push(what);
        }
    }

    /// What was wrong.
    pub fn wrong(&self) -> Vec<String> {
        self.wrong.lock().clone()
    }

    /// Requests that completed so far.
    pub fn completed(&self) -> u64 {
        self.completed.load(Ordering::Relaxed)
    }
}
