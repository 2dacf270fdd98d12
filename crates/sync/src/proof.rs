//! A thread's record of whether spinning before a sleep has paid.

/// Short sleeps in a row that prove it at first, and after each spin that paid.
const LEAST: u16 = 2;
/// Short sleeps in a row that prove it after many spins in vain.
const MOST: u16 = 256;

/// The proof that it pays to spin before a sleep.
///
/// Some short sleeps in a row give it: a thread that spins would have been spared them. It holds as
/// long as each spin ends with what the thread waits for. A spin in vain takes the proof away, and
/// doubles the number of short sleeps that give it again.
///
/// ```
/// use corewise_sync::Proof;
///
/// let mut proof = Proof::NEW;
/// proof.slept(true);
/// assert!(!proof.is_given(), "one short sleep may be chance");
/// proof.slept(true);
/// assert!(proof.is_given());
/// proof.tried(false);
/// (0..3).for_each(|_| proof.slept(true));
/// assert!(!proof.is_given(), "it takes four now");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Proof {
    /// Short sleeps in a row.
    short: u16,
    /// Short sleeps in a row that give the proof.
    wanted: u16,
}

impl Proof {
    /// The state of a thread that has not slept yet: no proof.
    pub const NEW: Proof = Proof { short: 0, wanted: LEAST };

    /// Returns whether it pays to spin before the next sleep.
    pub fn is_given(self) -> bool {
        self.short >= self.wanted
    }

    /// Records a sleep. It is `short` if a spin would have spared it.
    pub fn slept(&mut self, short: bool) {
        self.short = if short { self.short.saturating_add(1) } else { 0 };
    }

    /// Records a spin. It `paid` if the thread then needed no sleep.
    pub fn tried(&mut self, paid: bool) {
        *self = match paid {
            true => Proof { short: LEAST, wanted: LEAST },
            false => Proof { short: 0, wanted: (self.wanted * 2).min(MOST) },
        };
    }

    /// Returns the proof as a number, for an atomic word that threads share.
    pub fn pack(self) -> u32 {
        u32::from(self.wanted) << 16 | u32::from(self.short)
    }

    /// Returns the proof that [`Proof::pack`] made a number of.
    pub fn unpack(packed: u32) -> Proof {
        Proof { short: packed as u16, wanted: (packed >> 16) as u16 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_spin_in_vain_doubles_the_short_sleeps_that_are_wanted_until_one_pays() {
        let mut proof = Proof::NEW;
        let mut wanted = Vec::new();
        for _ in 0..9 {
            let mut sleeps = 0;
            while !proof.is_given() {
                proof.slept(true);
                sleeps += 1;
            }
            wanted.push(sleeps);
            proof.tried(false);
        }
        assert_eq!(wanted, [2, 4, 8, 16, 32, 64, 128, 256, 256]);
        proof.tried(true);
        assert!(proof.is_given());
        proof.slept(false);
        assert!(!proof.is_given(), "a long sleep");
        (0..2).for_each(|_| proof.slept(true));
        assert!(proof.is_given());
    }

    #[test]
    fn a_packed_proof_is_unpacked_as_it_was() {
        let mut proof = Proof::NEW;
        proof.tried(false);
        (0..3).for_each(|_| proof.slept(true));
        assert_eq!(Proof::unpack(proof.pack()), proof);
    }
}
