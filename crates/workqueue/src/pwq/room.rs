//! The places of a queue that takes so many closures at once.

use std::sync::Arc;

use corewise_sync::atomic::aside::AtomicU64;
use corewise_sync::atomic::{AtomicUsize, Ordering};

/// So many places.
pub(crate) struct Room {
    /// I: how many there are.
    places: usize,
    /// A: how many are taken. It says nothing of other memory, so Relaxed.
    taken: AtomicUsize,
    /// A: how often none was free. A counter, so Relaxed.
    refused: AtomicU64,
}

/// A place in a [`Room`], until it is dropped.
pub(crate) struct Permit(Arc<Room>);

impl Room {
    pub(crate) fn new(places: usize) -> Arc<Room> {
        Arc::new(Room { places, taken: AtomicUsize::new(0), refused: AtomicU64::new(0) })
    }

    /// Takes a place, if there is one.
    pub(crate) fn enter(self: &Arc<Room>) -> Option<Permit> {
        let one_more = |taken: usize| (taken < self.places).then(|| taken + 1);
        let taken = self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more);
        if taken.is_err() {
            self.refused.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        Some(Permit(Arc::clone(self)))
    }

    /// How many places there are.
    pub(crate) fn places(&self) -> usize {
        self.places
    }

    /// How often a caller found no place.
    pub(crate) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.taken.fetch_sub(1, Ordering::Relaxed);
    }
}
