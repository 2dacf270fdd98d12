//! How a waiter spins: briefly, and then for as long as a wake-up costs, where that has paid.

use corewise_sync::atomic::{AtomicU32, Ordering};
use corewise_sync::time::Stamp;
use corewise_sync::{Signal, context};

use super::policy::{self, Proof, SPIN};

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
        Patience { proof: AtomicU32::new(pack(Proof::NEW)) }
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
        let proof = self.proof();
        if policy::waits_by_spinning(proof, on_target, context::is_observed()) {
            loop {
                if signal.spin(LOOKS) {
                    self.learn(Proof::well());
                    return None;
                }
                if Stamp::precise().since(began) >= SPIN {
                    self.learn(proof.in_vain());
                    break;
                }
            }
        }
        Some(Wait { began })
    }

    /// The waiter has slept, and it has happened.
    #[cold]
    pub(crate) fn slept(&self, wait: &Wait, on_target: bool) {
        self.learn(self.proof().slept(Stamp::precise().since(wait.began), !on_target));
    }

    fn proof(&self) -> Proof {
        let packed = self.proof.load(Ordering::Relaxed);
        Proof { short: packed as u16, wanted: (packed >> 16) as u16 }
    }

    fn learn(&self, proof: Proof) {
        self.proof.store(pack(proof), Ordering::Relaxed);
    }
}

fn pack(proof: Proof) -> u32 {
    u32::from(proof.wanted) << 16 | u32::from(proof.short)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn after_short_waits_it_spins_until_the_answer_is_there_or_learns_that_it_is_in_vain() {
        let (patience, signal) = (Patience::new(), Arc::new(Signal::new()));
        patience.learn(Proof::well());
        assert!(patience.spin(&signal, false).is_some(), "nobody answers");
        assert_eq!(patience.proof(), Proof::well().in_vain());
        patience.learn(Proof::well());
        let other = Arc::clone(&signal);
        // SAFETY: once.
        let answers = std::thread::spawn(move || unsafe { Signal::complete(&*other) });
        while patience.spin(&signal, false).is_some() {
            patience.learn(Proof::well());
        }
        answers.join().expect("no panic");
    }
}
