//! Whether changes of a file's cache have been quick of late, so that a submitter may do one by itself.

use std::time::Instant;

use corewise_sync::atomic::{AtomicU64, Ordering};
use corewise_sync::time;

use super::policy::{CALM_AFTER, LONG};

/// When one last took long.
pub(super) struct Calm {
    made: Instant,
    /// A: when that was over, in ms since `made`, and 1 more; 0: never. Relaxed: a hint.
    disturbed: AtomicU64,
}

impl Calm {
    pub(super) fn new() -> Self {
        Self { made: time::now(), disturbed: AtomicU64::new(0) }
    }

    pub(super) fn is(&self, now: Instant) -> bool {
        let disturbed = self.disturbed.load(Ordering::Relaxed);
        disturbed == 0 || self.ms(now) >= disturbed + CALM_AFTER.as_millis() as u64
    }

    /// Does a change, and says whether that was quick.
    pub(super) fn watch<R>(&self, change: impl FnOnce() -> R) -> (R, bool) {
        let began = time::now();
        let done = change();
        (done, self.note(began, time::now()))
    }

    fn note(&self, began: Instant, over: Instant) -> bool {
        let quick = over.saturating_duration_since(began) < LONG;
        if !quick {
            self.disturbed.store(self.ms(over), Ordering::Relaxed);
        }
        quick
    }

    fn ms(&self, at: Instant) -> u64 {
        at.saturating_duration_since(self.made).as_millis() as u64 + 1
    }

    /// As if one had taken so long that none is quick any more.
    #[cfg(test)]
    pub(super) fn disturb_for_ever(&self) {
        self.note(self.made, self.made + 1_000_000 * CALM_AFTER);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_a_change_that_took_long_it_takes_a_while_until_it_is_calm_again() {
        let calm = Calm::new();
        let at = |ms: u64| calm.made + std::time::Duration::from_millis(ms);
        assert!(calm.is(at(0)) && calm.note(at(0), at(9)) && calm.is(at(9)));
        assert!(!calm.note(at(10), at(20)));
        assert!(!calm.is(at(20)) && !calm.is(at(1019)));
        assert!(calm.is(at(1020)));
    }
}
