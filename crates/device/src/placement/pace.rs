//! Whether a probe's worker tells its pool that it blocks. Nobody knows the nature of a probe, so by
//! default it does: others then start beside it at once. But that costs two switches between threads
//! (some µs), and where probes are over in less, they are faster one after the other.
//!
//! So after some quick ones in a row the next isn't declared. If that one blocks all the same, the
//! pool finds out within a fraction of a millisecond; and more quick ones in a row are asked for, the
//! more often that happens.
//!
//! Nor is it where many that are declared run already. A declared probe holds no core for its pool,
//! also while it computes: with all of a hundred devices at once each would wait for the others, and
//! have a thread of its own. Beyond that many the pool starts the next one when one sleeps or ends.

use super::too_many_at_once;

use corewise_sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

/// What is over so soon is quick: about what it costs to have another worker take over.
const QUICK: Duration = Duration::from_micros(20);
/// How many quick ones in a row are asked for at first, and at most.
const PROOF: u32 = 4;
const MOST_PROOF: u32 = 1 << 14;

/// How quick the probes of late have been.
#[derive(Debug)]
pub(super) struct Pace {
    /// A: quick probes in a row. Relaxed, as the other: hints, and a lost update costs a switch.
    quick: AtomicU32,
    /// A: how many are asked for.
    wanted: AtomicU32,
    /// A: declared probes that run. Relaxed: only the number counts.
    declared: AtomicUsize,
    /// I: the CPUs for probes.
    cpus: usize,
}

/// One probe, until it is over.
#[derive(Debug)]
pub(super) struct Pacing<'p> {
    /// A: the pace's.
    declared: Option<&'p AtomicUsize>,
    /// It isn't since so many others are.
    crowded: bool,
}

impl Pace {
    pub(super) fn new(cpus: usize) -> Pace {
        Pace {
            quick: AtomicU32::new(0),
            wanted: AtomicU32::new(PROOF),
            declared: AtomicUsize::new(0),
            cpus,
        }
    }

    /// A probe begins: says whether it tells its pool that it blocks.
    pub(super) fn begin(&self) -> Pacing<'_> {
        if self.are_quick() {
            return Pacing { declared: None, crowded: false };
        }
        let others = self.declared.fetch_add(1, Ordering::Relaxed);
        let declared = Some(&self.declared);
        let pacing = Pacing { declared, crowded: false };
        if too_many_at_once(others, self.cpus) {
            // Its count ends here.
            drop(pacing);
            return Pacing { declared: None, crowded: true };
        }
        pacing
    }

    fn are_quick(&self) -> bool {
        self.quick.load(Ordering::Relaxed) >= self.wanted.load(Ordering::Relaxed)
    }

    /// A probe was over after so long.
    pub(super) fn note(&self, took: Duration, declared: bool) {
        if took <= QUICK {
            if declared {
                self.quick.fetch_add(1, Ordering::Relaxed);
            }
            return;
        }
        self.quick.store(0, Ordering::Relaxed);
        if !declared {
            let wanted = self.wanted.load(Ordering::Relaxed);
            self.wanted.store((wanted * 2).min(MOST_PROOF), Ordering::Relaxed);
        }
    }
}

impl Pacing<'_> {
    /// Whether its worker may go on with another probe without asking its pool.
    pub(super) fn goes_on(&self) -> bool {
        !self.crowded
    }

    pub(super) fn declares(&self) -> bool {
        self.declared.is_some()
    }
}

impl Drop for Pacing<'_> {
    fn drop(&mut self) {
        if let Some(declared) = self.declared {
            declared.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOW: Duration = Duration::from_millis(1);

    fn declares(pace: &Pace) -> bool {
        pace.begin().declares()
    }

    fn quick_ones(pace: &Pace, n: u32) {
        (0..n).for_each(|_| pace.note(QUICK, declares(pace)));
    }

    #[test]
    fn a_probe_is_declared_until_some_in_a_row_were_quick() {
        let pace = Pace::new(2);
        assert!(declares(&pace), "nobody knows what it does");
        quick_ones(&pace, PROOF - 1);
        pace.note(SLOW, true);
        quick_ones(&pace, PROOF - 1);
        assert!(declares(&pace), "in a row");
        quick_ones(&pace, 1);
        assert!(!declares(&pace));
        quick_ones(&pace, 10_000);
        assert!(!declares(&pace));
    }

    #[test]
    fn a_slow_one_that_was_not_declared_makes_the_proof_longer_up_to_a_limit() {
        let pace = Pace::new(2);
        quick_ones(&pace, PROOF);
        pace.note(SLOW, false);
        quick_ones(&pace, 2 * PROOF - 1);
        assert!(declares(&pace));
        quick_ones(&pace, 1);
        assert!(!declares(&pace));
        (0..40).for_each(|_| pace.note(SLOW, false));
        quick_ones(&pace, MOST_PROOF);
        assert!(!declares(&pace));
    }

    #[test]
    fn beyond_some_at_once_a_probe_is_not_declared_until_one_that_is_has_ended() {
        let pace = Pace::new(2);
        let mut running: Vec<Pacing<'_>> = (0..100).map(|_| pace.begin()).collect();
        let declared = running.iter().filter(|pacing| pacing.declares()).count();
        assert!((2..100).contains(&declared), "{declared}");
        assert!(!declares(&pace));
        running.remove(0);
        assert!(declares(&pace));
    }
}
