//! A clock that stands still, but for a wait whose time runs out: it moves the clock on to its end.

use std::cell::Cell;
use std::time::Instant;

// One clock for each OS thread, which is a whole model each.
std::thread_local! {
    static NOW: Cell<Option<Instant>> = const { Cell::new(None) };
    static BEGAN: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Nanoseconds since the model's clock was first read, and one more.
pub(crate) fn precise() -> u64 {
    let now = now();
    let began = BEGAN.get().unwrap_or(now);
    BEGAN.set(Some(began));
    u64::try_from(now.duration_since(began).as_nanos()).unwrap_or(u64::MAX - 1) + 1
}

pub(crate) fn coarse() -> u64 {
    precise()
}

pub(crate) fn with_suspends() -> u64 {
    precise()
}

/// Now, in the model's time.
pub(crate) fn now() -> Instant {
    let now = NOW.get().unwrap_or_else(Instant::now);
    NOW.set(Some(now));
    now
}

/// A schedule begins: its clock shows what every other's showed at first. (Code that rounds a time would else not do the
/// same again where the schedule is replayed.)
pub(crate) fn begin() {
    NOW.set(None);
    BEGAN.set(None);
}

/// Time passes, until `then`.
pub(crate) fn move_on(then: Instant) {
    NOW.set(Some(now().max(then)));
}
