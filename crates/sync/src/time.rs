//! The clock that product code reads.
//!
//! It is the system's monotonic clock. Shuttle has no time: there the clock stands still, but for a
//! wait whose time runs out, which may happen at any moment: it moves the clock on to its end. So
//! code that compares deadlines sees what it would see on a machine whose threads are arbitrarily
//! slow, and a seed replays it exactly.

/// Now. Any context.
#[cfg(not(shuttle))]
#[inline]
pub fn now() -> std::time::Instant {
    std::time::Instant::now()
}

#[cfg(shuttle)]
pub(crate) use model::move_on;
#[cfg(shuttle)]
pub use model::now;

#[cfg(shuttle)]
mod model {
    use std::cell::Cell;
    use std::time::Instant;

    // One clock for each OS thread, which is a whole model each.
    std::thread_local! {
        static NOW: Cell<Option<Instant>> = const { Cell::new(None) };
    }

    /// Now, in the model's time.
    pub fn now() -> Instant {
        let now = NOW.get().unwrap_or_else(Instant::now);
        NOW.set(Some(now));
        now
    }

    /// Time passes, until `then`.
    pub(crate) fn move_on(then: Instant) {
        NOW.set(Some(now().max(then)));
    }
}
