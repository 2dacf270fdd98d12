//! How a waiter spins: briefly, and then for as long as a wake-up costs, where that has paid.

use corewise_sync::atomic::{AtomicU32, Ordering};
use corewise_sync::time::Stamp;
use corewise_sync::{Proof, Signal, context};

use super::policy::{self, SHORT_SLEEP, SPIN};

/// How often it looks before it reads the clock.
const LOOKS: u32 = 32;

/// What the waiters of one source CPU have learned.
pub(crate) struct Patience {
    /// A: a [`Proof`]. Relaxed, and what one writes may be lost to another: it is experience, and orders nothing.
    proof: AtomicU32,
}

/// A wait for which looking briefly wasn't enough.
pub(crate) struct Wait {
    began: Stamp,
}

impl Patience {
    pub(crate) fn new() -> Self {
        Patience { proof: AtomicU32::new(Proof::NEW.pack()) }
    }

    /// Looks, as often as may be: `None` where it has happened; else the caller sleeps, and says after that it
    /// [has](Patience::slept).
    #[inline]
    pub(crate) fn spin(&self, signal: &Signal, on_target: bool) -> Option<Wait> {
        if signal.spin(policy::brief_looks(on_target)) {
            return None;
        }
        self.spin_on(signal, on_target)
    }

    #[cold]
    fn spin_on(&self, signal: &Signal, on_target: bool) -> Option<Wait> {
        let began = Stamp::precise();
        let mut proof = self.proof();
        if policy::waits_by_spinning(proof, on_target, context::is_observed()) {
            loop {
                let well = signal.spin(LOOKS);
                if well || Stamp::precise().since(began) >= SPIN {
                    proof.tried(well);
                    self.learn(proof);
                    if well {
                        return None;
                    }
                    break;
                }
            }
        }
        Some(Wait { began })
    }

    /// The waiter has slept, and it has happened.
    #[cold]
    pub(crate) fn slept(&self, wait: &Wait, on_target: bool) {
        let mut proof = self.proof();
        proof.slept(Stamp::precise().since(wait.began) <= SHORT_SLEEP && !on_target);
        self.learn(proof);
    }

    fn proof(&self) -> Proof {
        Proof::unpack(self.proof.load(Ordering::Relaxed))
    }

    fn learn(&self, proof: Proof) {
        self.proof.store(proof.pack(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn after_short_waits_it_spins_until_the_answer_is_there_or_learns_that_it_is_in_vain() {
        let (patience, signal) = (Patience::new(), Arc::new(Signal::new()));
        let mut given = Proof::NEW;
        given.tried(true);
        patience.learn(given);
        assert!(patience.spin(&signal, false).is_some(), "nobody answers");
        assert!(!patience.proof().is_given());
        patience.learn(given);
        let other = Arc::clone(&signal);
        // SAFETY: once.
        let answers = std::thread::spawn(move || unsafe { Signal::complete(&*other) });
        while patience.spin(&signal, false).is_some() {
            patience.learn(given);
        }
        answers.join().expect("no panic");
    }
}
