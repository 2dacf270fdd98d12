//! Restores lines as they were written. Dumps of `pstore` lie in a file newest part first. A
//! terminal breaks lines. Messages of netconsole carry a number, since their packets overtake each
//! other.

use std::borrow::Cow;
use std::cmp::Reverse;

use crate::form::{Prefix, Stamp};
use crate::lines::Line;
use crate::message;
use crate::prefix::Prefixes;

/// Largest size of one dump's parts together, including the overhead of their lines. `pstore` has
/// room for some ten kilobytes, and a machine's firmware seldom for more than 64.
const DUMP: usize = 1 << 20;
const LINE: usize = 64;

/// Least width of a terminal, and of a mail.
const TERMINAL: usize = 80;

/// Largest number of a terminal's lines for one message of the kernel.
const WRAPPED: usize = 16;

/// Orders and joins lines.
#[derive(Debug, Default)]
pub(crate) struct LineCollector {
    /// Dump whose parts are read, as `Panic#2`.
    dump: String,
    /// Parts of the dump, by number, as they came.
    parts: Vec<(u32, Vec<Line<'static>>)>,
    bytes: usize,
    /// Number of parts that stood in another order than they were written in.
    pub reordered: u64,
    /// True if a dump was too large to be put in order.
    pub too_large: bool,
    wrap: WrappedLine,
}

impl LineCollector {
    /// Takes one line, and passes on those that are settled.
    pub(crate) fn line(&mut self, line: Line<'_>, each: &mut impl FnMut(Line<'_>)) {
        if let Some((dump, number)) = part(&line.text) {
            if dump != self.dump {
                self.end(each);
                dump.clone_into(&mut self.dump);
            }
            self.parts.push((number, Vec::new()));
        }
        let Some((_, lines)) = self.parts.last_mut() else {
            return self.wrap.line(line, each);
        };
        self.bytes += line.text.len() + LINE;
        lines.push(line.kept());
        if self.bytes > DUMP {
            self.too_large = true;
            self.end(each);
        }
    }

    /// Passes on the rest.
    pub(crate) fn finish(&mut self, each: &mut impl FnMut(Line<'_>)) {
        self.end(each);
        self.wrap.settle(each);
    }

    /// Ends the dump.
    fn end(&mut self, each: &mut impl FnMut(Line<'_>)) {
        let mut parts = std::mem::take(&mut self.parts);
        if !parts.is_sorted_by_key(|(number, _)| Reverse(*number)) {
            self.reordered += parts.len() as u64;
            parts.sort_by_key(|(number, _)| Reverse(*number));
        }
        self.bytes = 0;
        self.dump.clear();
        for line in parts.into_iter().flat_map(|(_, lines)| lines) {
            self.wrap.line(line, each);
        }
    }
}

/// Reads `Panic#2 Part1`: the name of the dump, and the number of the part; the newest is 1.
fn part(text: &str) -> Option<(&str, u32)> {
    let (dump, number) = text.trim().split_once(" Part")?;
    let (reason, count) = dump.split_once('#')?;
    let word = !reason.is_empty() && reason.bytes().all(|b| b.is_ascii_alphabetic());
    let counted = !count.is_empty() && count.bytes().all(|b| b.is_ascii_digit());
    Some((dump, number.parse().ok().filter(|_| word && counted)?))
}

/// Joins a line that is as wide as the terminal with its continuations.
#[derive(Debug, Default)]
struct WrappedLine {
    /// Largest number of characters of a line so far.
    widest: usize,
    /// A line of that width, and those behind it that may continue it.
    held: Vec<Line<'static>>,
}

impl WrappedLine {
    fn line(&mut self, line: Line<'_>, each: &mut impl FnMut(Line<'_>)) {
        // A line has no more characters than bytes.
        if self.held.is_empty() && line.text.len() < TERMINAL {
            return each(line);
        }
        let width = line.text.chars().count();
        if !self.held.is_empty() {
            if self.held.len() < WRAPPED && goes_on(&line.text) {
                self.held.push(line.kept());
                if width < self.widest {
                    self.settle(each);
                }
                return;
            }
            self.settle(each);
        }
        // If a line was wider, no terminal broke this one.
        let full = width >= TERMINAL && width >= self.widest;
        self.widest = self.widest.max(width);
        match full && Prefixes::default().strip(&line.text).stamp.is_some() {
            true => self.held.push(line.kept()),
            false => each(line),
        }
    }

    /// Settles the held lines, which no line continues. The longest beginning that is one message
    /// becomes one line. If there is none, all of it is some other message of the kernel, unless a
    /// mail broke it at a blank.
    fn settle(&mut self, each: &mut impl FnMut(Line<'_>)) {
        let mut held = std::mem::take(&mut self.held);
        let joined =
            |count: usize| held[..count].iter().map(|line| &*line.text).collect::<String>();
        let whole = (2..=held.len()).rev().find(|&count| is_form(&joined(count)));
        let [first, second, ..] = &held[..] else { return held.into_iter().for_each(each) };
        let at_a_blank =
            || is_form(&first.text) || is_form(&format!("{} {}", first.text, second.text));
        let count = match whole {
            Some(count) => count,
            None if at_a_blank() => 1,
            None => held.len(),
        };
        if count > 1 {
            let text = Cow::Owned(joined(count));
            let rest = held.split_off(count);
            let count = held.iter().map(|line| line.count).sum();
            each(Line { text, count, joined: whole.is_some(), ..held.swap_remove(0) });
            held = rest;
        }
        held.into_iter().for_each(each);
    }
}

/// Returns true if a line may continue the one before: it begins with no prefix, and is no message
/// itself.
fn goes_on(text: &str) -> bool {
    !text.is_empty() && !text.starts_with('{') && {
        let stripped = Prefixes::default().strip(text);
        stripped.kinds.is_empty() && message::parse(stripped.text).form().is_none()
    }
}

fn is_form(text: &str) -> bool {
    message::parse(Prefixes::default().strip(text).text).form().is_some()
}

/// Largest number of messages that wait for a missing one. A log that was filtered lacks many.
const WAIT: usize = 16;

/// A message that waits for others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HeldMessage {
    /// Number of its line, and number of lines that it is.
    pub line: u64,
    pub lines: u64,
    pub text: String,
    pub stamp: Option<Stamp>,
    pub thread: Option<u32>,
    /// Prefixes of the message.
    pub kinds: Vec<Prefix>,
}

/// Puts messages in the order of their numbers.
#[derive(Debug, Default)]
pub(crate) struct Sequence {
    /// Number of the last message that was passed on.
    last: Option<u64>,
    /// Messages that came too early, by number.
    early: Vec<(u64, HeldMessage)>,
    /// Number of messages that others overtook.
    pub reordered: u64,
}

impl Sequence {
    /// Takes one message; [`Sequence::next`] then returns those that nothing is missing before.
    ///
    /// A message whose number was passed is late by more than the wait, and comes first among
    /// those.
    pub(crate) fn take(&mut self, number: u64, message: HeldMessage) {
        let at = self.early.partition_point(|&(early, _)| early <= number);
        self.reordered += u64::from(at < self.early.len());
        self.early.insert(at, (number, message));
    }

    /// Returns true if numbers begin anew with this message, as those of another boot do: they go
    /// back by far, or one comes again with another text. The messages of the boot before must be
    /// [passed on](Sequence::end) first.
    pub(crate) fn begins_anew(&self, number: u64, text: &str) -> bool {
        let newest = self.early.last().map(|&(number, _)| number).max(self.last);
        newest.is_some_and(|newest| number.saturating_add(4 * WAIT as u64) < newest)
            || self.early.iter().any(|(early, held)| *early == number && held.text != text)
    }

    /// Returns all messages, even if some are missing. The next number may be any.
    pub(crate) fn end(&mut self) -> Vec<HeldMessage> {
        self.last = None;
        std::mem::take(&mut self.early).into_iter().map(|(_, message)| message).collect()
    }

    /// Returns the next message, if it is known to be the next.
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

    fn gathered(text: &str) -> (Vec<(u64, String)>, LineCollector) {
        let (mut collector, mut found) = (LineCollector::default(), Vec::new());
        let mut each = |line: Line<'_>| found.push((line.number, line.text.into_owned()));
        for (i, line) in text.lines().enumerate() {
            let (number, text) = (i as u64 + 1, Cow::Borrowed(line));
            collector.line(Line { number, text, ..Line::default() }, &mut each);
        }
        collector.finish(&mut each);
        (found, collector)
    }

    fn numbers(text: &str) -> Vec<u64> {
        gathered(text).0.into_iter().map(|(number, _)| number).collect()
    }

    #[test]
    fn parts_of_a_dump_are_put_in_the_order_in_which_they_were_written() {
        let text =
            "before\nPanic#2 Part1\nd\nPanic#2 Part3\na\nb\nPanic#2 Part2\nc\nOops#1 Part1\nx";
        assert_eq!(numbers(text), [1, 4, 5, 6, 7, 8, 2, 3, 9, 10]);
        assert_eq!(gathered(text).1.reordered, 3);
        let text = "Panic#2 Part2\na\nPanic#2 Part1\nb";
        assert_eq!((numbers(text), gathered(text).1.reordered), (vec![1, 2, 3, 4], 0));
        for none in ["Panic Part1", "Panic#2 Part", "#2 Part1", "Panic#x Part1", "a#1 Part1x"] {
            assert_eq!(part(none), None, "{none}");
        }
    }

    #[test]
    fn a_dump_that_no_memory_is_for_is_handed_on_as_it_comes() {
        let mut text = String::from("Panic#2 Part1\n");
        let line = format!("{}\n", "x".repeat(1000));
        (0..2000).for_each(|_| text.push_str(&line));
        text.push_str("Panic#2 Part2\nb\n");
        let (found, collector) = gathered(&text);
        assert!(collector.too_large);
        assert!(found.is_sorted() && found.len() == 2003, "{}", found.len());
    }

    #[test]
    fn a_line_as_wide_as_the_terminal_is_joined_with_what_goes_on_with_it() {
        let message = "[    1.000000] platform fa00000.a-device-with-a-very-long-name: Linked as a \
                       consumer to 601000.a-supplier-with-a-name-that-is-no-shorter-than-the-other\n";
        let mut text = String::from("[    0.900000] short\n");
        for piece in message.trim_end().as_bytes().chunks(80) {
            text += std::str::from_utf8(piece).expect("letters");
            text += "\n";
        }
        let (found, _) = gathered(&format!("{text}[    1.100000] next\n"));
        assert_eq!(found[1], (2, message.trim_end().to_owned()));
        assert_eq!(found[2].1, "[    1.100000] next");
        // A wider line shows that no terminal of that width broke it.
        let wider = format!("[    0.000000] Linux version {}\n", "x".repeat(100));
        assert_eq!(numbers(&format!("{wider}{text}")), [1, 2, 3, 4]);
        // A program's line behind a complete message stays a line.
        let whole = format!("[    1.000000] probe of {} returned 0 after 5 usecs", "x".repeat(31));
        assert_eq!(whole.len(), 80);
        assert_eq!(numbers(&format!("{whole}\nlogin:\n")), [1, 2]);
    }

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
