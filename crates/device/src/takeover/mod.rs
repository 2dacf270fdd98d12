//! The takeover of a list: one thread walks it, and another one may take the rest over at any
//! moment.
//!
//! The protocol, its race and its proof stand in `README.md` beside this file; the steps named
//! there (Step, Take) are the names used in the comments here.

use corewise_sync::atomic::{AtomicU64, Ordering};

/// The bit that marks a takeover of the rest.
const TAKEN: u64 = 1;

/// Number of low bits of a note for what comes with the time.
const MARK_BITS: u32 = 16;

/// The position of a walker in a list, with a note of each element that the walker has finished. It
/// knows nothing of the list, so that it can be model-checked alone (`tests/loom/takeover.rs`).
///
/// Without a takeover a step costs one store and one exchange on a word that no other thread
/// writes. No method blocks or allocates.
#[derive(Debug)]
pub struct Walk {
    /// A: number of elements that the walker has finished, above [`TAKEN`].
    word: AtomicU64,
    /// A: by element, its note: written before the Step that makes it visible.
    notes: Box<[AtomicU64]>,
}

/// The time when the walker was through with an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WalkNote {
    /// Nanoseconds, less than 2^48 (78 hours; later ends count as that).
    pub at: u64,
    /// Further data of the note: the CPU, say.
    pub mark: u16,
}

impl Walk {
    /// Creates a walk at the beginning of a list of that length.
    pub fn new(len: usize) -> Walk {
        Walk { word: AtomicU64::new(0), notes: (0..len).map(|_| AtomicU64::new(0)).collect() }
    }

    /// Ends the element of that place, and goes on to the next (step Step). Called by the walker
    /// alone, in order. Returns false if the rest was taken over before. Then neither this element
    /// nor any after it counts as done by the walker. The taker expects the walker to report the
    /// result of this one.
    #[must_use = "false: the element is not noted"]
    pub fn step(&self, place: usize, note: WalkNote) -> bool {
        let at = note.at.min((1 << (u64::BITS - MARK_BITS)) - 1);
        let word = at << MARK_BITS | u64::from(note.mark);
        // Relaxed: the exchange makes it visible.
        self.notes[place].store(word, Ordering::Relaxed);
        let (now, next) = ((place as u64) << 1, (place as u64 + 1) << 1);
        // Release: the note, and what the element left behind. Acquire if it fails: what the taker
        // did before. Partner: `take`.
        self.word.compare_exchange(now, next, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Takes the rest over (step Take). Returns the number of elements that the walker has
    /// finished. The walker is at the next one, if there is one.
    pub fn take(&self) -> usize {
        // Acquire: the notes of all that is over. Partner: `step`.
        (self.word.fetch_or(TAKEN, Ordering::AcqRel) >> 1) as usize
    }

    /// Returns the number of elements that the walker has finished, just now or when the rest was
    /// taken over.
    pub fn over(&self) -> usize {
        (self.word.load(Ordering::Acquire) >> 1) as usize
    }

    /// Returns the note of an element that the walker has finished.
    pub fn note(&self, place: usize) -> WalkNote {
        let word = self.notes[place].load(Ordering::Relaxed);
        WalkNote { at: word >> MARK_BITS, mark: (word & u64::from(u16::MAX)) as u16 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_walk_notes_each_element_until_it_is_taken_over() {
        let walk = Walk::new(3);
        assert_eq!(walk.over(), 0);
        assert!(walk.step(0, WalkNote { at: 5, mark: 1 }));
        assert_eq!(walk.take(), 1);
        assert!(!walk.step(1, WalkNote { at: 9, mark: 1 }));
        assert_eq!((walk.over(), walk.note(0)), (1, WalkNote { at: 5, mark: 1 }));
    }

    #[test]
    fn an_end_after_days_is_noted_as_the_latest_that_fits() {
        let walk = Walk::new(1);
        assert!(walk.step(0, WalkNote { at: u64::MAX, mark: 7 }));
        assert_eq!(walk.note(0), WalkNote { at: (1 << 48) - 1, mark: 7 });
    }
}
