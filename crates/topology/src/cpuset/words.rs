//! The words of a bitmap, of which a few need no memory of their own.

use std::hash::{Hash, Hasher};
use std::ops::{Deref, DerefMut};

/// Number of words in place: 128 CPUs.
const FEW: usize = 2;

/// A vector of words. It is equal to, and hashes as, the slice of them.
#[derive(Clone)]
pub(crate) enum Words {
    /// Words in place; those beyond the length are zero.
    Few { words: [u64; FEW], len: u8 },
    /// Words in a vector.
    Many(Vec<u64>),
}

impl Words {
    /// Grows to `to` words, no fewer than it has; the new ones are zero.
    pub(crate) fn grow(&mut self, to: usize) {
        match self {
            Words::Few { len, .. } if to <= FEW => *len = (*len).max(to as u8),
            Words::Few { words, len } => {
                let mut many = words[..usize::from(*len)].to_vec();
                many.resize(to, 0);
                *self = Words::Many(many);
            }
            Words::Many(words) => words.resize(to.max(words.len()), 0),
        }
    }

    /// Removes the zero words at the end.
    pub(crate) fn trim(&mut self) {
        let len = self.iter().rposition(|&word| word != 0).map_or(0, |last| last + 1);
        match self {
            Words::Few { len: now, .. } => *now = len as u8,
            Words::Many(words) => words.truncate(len),
        }
    }
}

impl Default for Words {
    fn default() -> Self {
        Words::Few { words: [0; FEW], len: 0 }
    }
}

impl Deref for Words {
    type Target = [u64];

    fn deref(&self) -> &[u64] {
        match self {
            Words::Few { words, len } => &words[..usize::from(*len)],
            Words::Many(words) => words,
        }
    }
}

impl DerefMut for Words {
    fn deref_mut(&mut self) -> &mut [u64] {
        match self {
            Words::Few { words, len } => &mut words[..usize::from(*len)],
            Words::Many(words) => words,
        }
    }
}

impl FromIterator<u64> for Words {
    fn from_iter<I: IntoIterator<Item = u64>>(iter: I) -> Self {
        let mut words = Words::default();
        for (at, word) in iter.into_iter().enumerate() {
            words.grow(at + 1);
            words[at] = word;
        }
        words
    }
}

impl PartialEq for Words {
    fn eq(&self, other: &Words) -> bool {
        **self == **other
    }
}

impl Eq for Words {}

impl Hash for Words {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (**self).hash(state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_and_many_hold_the_same() {
        let mut words = Words::default();
        for len in 1..=5 {
            words.grow(len);
            assert_eq!((words.len(), words[len - 1]), (len, 0));
            words[len - 1] = len as u64;
        }
        assert_eq!(*words, [1, 2, 3, 4, 5]);
        words.grow(2);
        assert_eq!(words.len(), 5, "it doesn't shrink");
        words[1..].fill(0);
        words.trim();
        assert_eq!(*words, [1]);
        assert!(words == Words::from_iter([1]), "wherever they lie");
        words[0] = 0;
        words.trim();
        assert!(words.is_empty());
    }
}
