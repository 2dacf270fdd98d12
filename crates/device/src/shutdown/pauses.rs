//! The time for which this process was stopped during a shutdown: no callback ran then, so none is
//! late for it.

use std::time::Duration;

/// Pauses of which the length is known by itself.
const KEPT: usize = 16;

/// The pauses of a shutdown, in their order. Times are since its beginning.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pauses(Vec<Pause>);

#[derive(Clone, Copy, Debug)]
struct Pause {
    /// When it was noticed.
    end: Duration,
    length: Duration,
}

impl Pauses {
    /// Notes a pause that has just been noticed.
    pub(crate) fn add(&mut self, end: Duration, length: Duration) {
        if length.is_zero() {
            return;
        }
        if self.0.len() >= KEPT {
            let oldest = self.0.remove(0);
            self.0[0].length += oldest.length;
        }
        self.0.push(Pause { end, length });
    }

    /// For how long this process ran from `since` until `now`.
    pub(crate) fn ran(&self, since: Duration, now: Duration) -> Duration {
        let within = |pause: &Pause| pause.length.min(pause.end.saturating_sub(since));
        let paused: Duration = self.0.iter().map(within).sum();
        now.saturating_sub(since).saturating_sub(paused)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ran_is_the_time_without_the_pauses_within_it_however_many_they_were() {
        let second = Duration::from_secs(1);
        let mut pauses = Pauses::default();
        pauses.add(10 * second, 4 * second);
        assert_eq!(pauses.ran(Duration::ZERO, 12 * second), 8 * second);
        assert_eq!(pauses.ran(8 * second, 12 * second), 2 * second, "it began within the pause");
        assert_eq!(pauses.ran(11 * second, 12 * second), second, "it began after the pause");
        for n in 0..100 {
            pauses.add(second * (20 + 2 * n), second);
            pauses.add(second * (20 + 2 * n), Duration::ZERO);
        }
        assert_eq!(pauses.0.len(), KEPT);
        assert_eq!(pauses.ran(Duration::ZERO, 220 * second), 116 * second);
    }
}
