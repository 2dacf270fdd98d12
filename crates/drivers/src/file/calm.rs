//! Whether a submitter may do a change of a file's cache by itself: they have been quick of late, and few do.

use std::time::Instant;

use corewise_sync::atomic::{AtomicU16, AtomicU64, Ordering};
use corewise_sync::time;

use super::policy::{CACHED_CHANGES, CALM_AFTER, LONG};

/// When one last took long.
pub(super) struct Calm {
    made: Instant,
    /// A: when that was over, in ms since `made`, and 1 more; 0: never. Relaxed: a hint.
    disturbed: AtomicU64,
    /// A: how many submitters are at one. Relaxed: a hint.
    submitters: AtomicU16,
}

impl Calm {
    pub(super) fn new() -> Self {
        Self { made: time::now(), disturbed: AtomicU64::new(0), submitters: AtomicU16::new(0) }
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

    /// Runs `change` in a submitter; `None` where so many are at one already that it would only wait for them.
    pub(super) fn one_of_few<R>(&self, change: impl FnOnce() -> R) -> Option<R> {
        let others = self.submitters.fetch_add(1, Ordering::Relaxed);
        let _place = Place(self);
        (others < CACHED_CHANGES).then(change)
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

/// A submitter, counted in.
struct Place<'a>(&'a Calm);

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.submitters.fetch_sub(1, Ordering::Relaxed);
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

    #[test]
    fn a_submitter_that_would_wait_for_others_is_told_so() {
        let calm = Calm::new();
        let third = || calm.one_of_few(|| "done");
        let second = || calm.one_of_few(third);
        assert_eq!(calm.one_of_few(second), Some(Some(None)));
        assert_eq!(calm.one_of_few(third), Some(Some("done")));
    }
}
