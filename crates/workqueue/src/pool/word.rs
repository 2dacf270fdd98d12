//! The published word of a pool: what a push has to know, mirrored from the counts under the lock.
//!
//! Written only under the pool's lock, read by every push without it. See `README.md` for the
//! protocol.

use corewise_sync::atomic::{AtomicU32, Ordering};

use crate::policy::Counts;

/// A push has to wake (or make) a worker of this pool.
const WAKE: u32 = 1;
/// The pod's cores are all taken: a push may look for another pod.
const SATURATED: u32 = 1 << 1;
/// The list under the lock isn't empty.
const LISTED: u32 = 1 << 2;
/// The pool takes no more work.
const CLOSED: u32 = 1 << 3;
/// The pod has no CPU that can be used: its workers run elsewhere.
const AWAY: u32 = 1 << 4;

/// A decoded reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Reading(u32);

impl Reading {
    pub(crate) fn of(counts: &Counts, listed: bool, closed: bool, away: bool) -> Reading {
        let mut bits = 0;
        if counts.wake_on_push() {
            bits |= WAKE;
        }
        if counts.saturated() {
            bits |= SATURATED;
        }
        if listed {
            bits |= LISTED;
        }
        if closed {
            bits |= CLOSED;
        }
        if away {
            bits |= AWAY;
        }
        Reading(bits)
    }

    pub(crate) fn wake(self) -> bool {
        self.0 & WAKE != 0
    }
    pub(crate) fn saturated(self) -> bool {
        self.0 & SATURATED != 0
    }
    pub(crate) fn listed(self) -> bool {
        self.0 & LISTED != 0
    }
    pub(crate) fn closed(self) -> bool {
        self.0 & CLOSED != 0
    }
    pub(crate) fn away(self) -> bool {
        self.0 & AWAY != 0
    }
}

/// The word.
#[derive(Debug)]
pub(crate) struct Word {
    /// A: a [`Reading`]; written under the pool's lock.
    bits: AtomicU32,
}

impl Word {
    pub(crate) fn new(reading: Reading) -> Self {
        Word { bits: AtomicU32::new(reading.0) }
    }

    /// Relaxed: whoever decides to leave on the answer has put its own full fence before.
    pub(crate) fn read(&self) -> Reading {
        Reading(self.bits.load(Ordering::Relaxed))
    }

    /// Publishes; the caller holds the pool's lock and puts the full fence after.
    pub(crate) fn publish(&self, reading: Reading) -> Reading {
        let old = Reading(self.bits.load(Ordering::Relaxed));
        if old != reading {
            self.bits.store(reading.0, Ordering::Relaxed);
        }
        old
    }
}
