//! Messages that carry a number: netconsole sends each in a packet, and packets overtake each
//! other.

use crate::form::Prefix;
use crate::stamp::Stamp;

/// How many messages one that is missing is waited for. A log that was filtered lacks many.
const WAIT: usize = 16;

/// A message that waits for others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HeldMessage {
    /// The number of its line, and how many lines it is.
    pub line: u64,
    pub lines: u64,
    pub text: String,
    pub stamp: Option<Stamp>,
    pub thread: Option<u32>,
    /// What stood before it.
    pub kinds: Vec<Prefix>,
}

/// Puts messages in the order of their numbers.
#[derive(Debug, Default)]
pub(crate) struct Sequence {
    /// The number of the last one that was handed on.
    last: Option<u64>,
    /// Those that came too early, by number.
    early: Vec<(u64, HeldMessage)>,
    /// How many were overtaken by others.
    pub reordered: u64,
}

impl Sequence {
    /// Takes one message; [`Sequence::next`] then hands on those that nothing is missing before.
    ///
    /// One whose number was passed is late by more than was waited for, and stands first in those.
    pub(crate) fn take(&mut self, number: u64, message: HeldMessage) {
        let at = self.early.partition_point(|&(early, _)| early <= number);
        self.reordered += u64::from(at < self.early.len());
        self.early.insert(at, (number, message));
    }

    /// Whether numbers begin anew with this message, as those of another boot do: they go back by
    /// far, or one comes again with another text. The messages of the boot before have to be
    /// [handed on](Sequence::end) first.
    pub(crate) fn begins_anew(&self, number: u64, text: &str) -> bool {
        let newest = self.early.last().map(|&(number, _)| number).max(self.last);
        newest.is_some_and(|newest| number.saturating_add(4 * WAIT as u64) < newest)
            || self.early.iter().any(|(early, held)| *early == number && held.text != text)
    }

    /// All messages, whatever is missing; the next number may be any.
    pub(crate) fn end(&mut self) -> Vec<HeldMessage> {
        self.last = None;
        std::mem::take(&mut self.early).into_iter().map(|(_, message)| message).collect()
    }

    /// The next message, where it is known to be that.
    pub(crate) fn next(&mut self) -> Option<HeldMessage> {
        let first = self.early.first()?.0;
        // The first one of all may have been overtaken too.
        let follows = self.last.is_some_and(|last| first <= last.saturating_add(1));
        if !follows && self.early.len() <= WAIT {
            return None;
        }
        self.last = self.last.max(Some(first));
        Some(self.early.remove(0).1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ordered(numbers: &[u64]) -> Vec<u64> {
        let (mut sequence, mut found) = (Sequence::default(), Vec::new());
        for &number in numbers {
            if sequence.begins_anew(number, "") {
                found.extend(sequence.end().into_iter().map(|m| m.line));
            }
            let (text, kinds, lines) = (String::new(), Vec::new(), 1);
            let held = HeldMessage { line: number, lines, text, stamp: None, thread: None, kinds };
            sequence.take(number, held);
            found.extend(std::iter::from_fn(|| sequence.next()).map(|m| m.line));
        }
        assert!(sequence.early.len() <= WAIT);
        found.extend(sequence.end().into_iter().map(|m| m.line));
        found
    }

    #[test]
    fn messages_that_overtook_others_are_put_behind_them() {
        assert_eq!(ordered(&[400, 402, 401, 403]), [400, 401, 402, 403]);
        assert_eq!(ordered(&[1, 5, 3, 4, 2, 6]), [1, 2, 3, 4, 5, 6]);
        assert_eq!(ordered(&[7, 7, 8, 8]), [7, 7, 8, 8]);
        assert_eq!(ordered(&[402, 401, 400, 403]), [400, 401, 402, 403]);
    }

    #[test]
    fn what_is_missing_is_not_waited_for_for_ever() {
        let even: Vec<u64> = (0..100).map(|n| 2 * n).collect();
        assert_eq!(ordered(&even), even);
        // Another boot begins anew.
        assert_eq!(ordered(&[900, 901, 0, 1, 2]), [900, 901, 0, 1, 2]);
        assert_eq!(ordered(&[900, 903, 0, 1, 2]), [900, 903, 0, 1, 2]);
        let mut sequence = Sequence::default();
        let (text, kinds) = ("a".to_owned(), Vec::new());
        let held = HeldMessage { line: 1, lines: 1, text, stamp: None, thread: None, kinds };
        sequence.take(7, held);
        assert!(sequence.begins_anew(7, "b") && !sequence.begins_anew(7, "a"));
    }
}
