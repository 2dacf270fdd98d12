//! Unknown prefixes, found by the message behind them.
//!
//! Some messages of the kernel can be recognized anywhere in a line, as both of their ends are
//! fixed: `calling FUNCTION+0x0/0x0 @ PID`, for one. The text before such a message is a prefix,
//! whatever wrote it. The prefix's *shape* (its characters other than letters and digits, and the
//! places of words between) is then removed from other lines as well, whose messages have no such
//! beginning. Behind a prefix, `nvme 0000:01:00.0: shutdown` could be any driver with blanks in its
//! name.
//!
//! A shape counts only if it has a mark besides blanks, and only for lines that have all of it. The
//! times of a prefix that is known by its shape alone are not read, since their meaning is unknown.

use super::{Message, names, parse};
use crate::form::digits;

/// Largest number of shapes of a log's prefixes: names of tasks have marks of their own.
const SHAPES: usize = 32;

/// Longest prefix that programs write.
const LONGEST: usize = 160;

/// The shapes of a log's unknown prefixes.
#[derive(Debug, Default)]
pub(crate) struct Carrier {
    shapes: Vec<String>,
}

impl Carrier {
    /// Returns the message in `text`, whose known prefixes are removed, if an unknown one stands
    /// before it.
    pub(crate) fn strip<'a>(&mut self, text: &'a str) -> Option<&'a str> {
        if let Some(at) = anchor(text) {
            let shape = shape(&text[..at]);
            if marked(&shape) && self.shapes.len() < SHAPES && !self.shapes.contains(&shape) {
                self.shapes.push(shape);
            }
            return Some(&text[at..]);
        }
        let behind = |shape: &String| {
            let rest = &text[behind(text, shape)?..];
            parse(rest).form().map(|_| rest)
        };
        self.shapes.iter().find_map(behind)
    }
}

/// Returns the position in `text`, not at its beginning, of a message that is recognized anywhere.
fn anchor(text: &str) -> Option<usize> {
    const BEGINNINGS: [&str; 4] = ["calling ", "initcall ", "probe of ", "Linux version "];
    // Nearly no line can be one.
    let ends = text.ends_with(|c: char| c.is_ascii_digit()) || text.ends_with("secs");
    if !ends && !text.contains(BEGINNINGS[3]) {
        return None;
    }
    let starts = BEGINNINGS.iter().flat_map(|start| text.match_indices(start));
    let fits = |&at: &usize| {
        let (before, rest) = text.split_at(at);
        if before.is_empty() || before.len() > LONGEST || before.ends_with(char::is_alphanumeric) {
            return false;
        }
        match parse(rest) {
            // `pci 0000:00:03.0: calling …` is a fixup of that device.
            Message::InitcallStart { pid: Some(_), .. } => {
                let ends = rest.rsplit_once(" @ ").is_some_and(|(_, pid)| digits(pid.trim_end()));
                ends && rest.contains("+0x") && !of_pci_device(before)
            }
            Message::InitcallEnd { .. } | Message::ProbeEnd { .. } => true,
            Message::Version(version) => version.starts_with(|c: char| c.is_ascii_digit()),
            _ => false,
        }
    };
    starts.map(|(at, _)| at).filter(fits).min()
}

fn of_pci_device(before: &str) -> bool {
    let head = before.trim_end().strip_suffix(':');
    head.and_then(|head| head.rsplit(' ').next()).is_some_and(|d| names::pci(d).is_some())
}

/// Returns the marks of a prefix, with a `w` for each word and one blank for several.
fn shape(prefix: &str) -> String {
    let mut shape = String::new();
    for c in prefix.chars() {
        let c = kind(c);
        if !(matches!(c, 'w' | ' ') && shape.ends_with(c)) {
            shape.push(c);
        }
    }
    shape
}

fn kind(c: char) -> char {
    match c {
        _ if c.is_alphanumeric() || c == '_' => 'w',
        _ if c.is_whitespace() => ' ',
        _ => c,
    }
}

/// Returns true if a shape has more than words and blanks, and ends at a place where a message can
/// begin.
fn marked(shape: &str) -> bool {
    shape.contains(|c| c != 'w' && c != ' ') && !shape.ends_with('w')
}

/// Returns the number of bytes of `text` with this shape, if it begins with the shape and a word
/// follows.
fn behind(text: &str, shape: &str) -> Option<usize> {
    let mut chars = text.char_indices().peekable();
    for mark in shape.chars() {
        let (_, first) = chars.next().filter(|&(_, c)| kind(c) == mark)?;
        if matches!(mark, 'w' | ' ') {
            while chars.next_if(|&(_, c)| kind(c) == kind(first)).is_some() {}
        }
    }
    chars.peek().filter(|(_, c)| kind(*c) != ' ').map(|&(at, _)| at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_that_is_one_anywhere_shows_the_prefix_before_it() {
        for prefix in [
            "|x| ",
            "2026/03/04 13:21 host app - ",
            "{tty0} ",
            "6.12.3;7;1000;",
            "stdout F ",
            "12: ",
            "I/kernel  ( 0): ",
            "[pod/x/y] ",
        ] {
            for message in [
                "calling  a_init+0x0/0x40 @ 1",
                "initcall a_init+0x0/0x40 [a] returned 0 after 5 usecs",
                "probe of 0000:00:05.0 returned 0 after 4000 usecs",
                "probe of 0000:00:05.0 with driver a b returned 0 after 4000 usecs",
                "Linux version 6.12.3 (a@b)",
            ] {
                let line = format!("{prefix}{message}");
                assert_eq!(Carrier::default().strip(&line), Some(message), "{line}");
            }
        }
    }

    #[test]
    fn other_messages_are_found_behind_a_prefix_of_the_same_shape() {
        let mut carrier = Carrier::default();
        let shutdown = "i8042 aux 00:01: shutdown";
        let line = |n: u64| format!("app-{n} (tty) #{n}| ");
        assert_eq!(carrier.strip(&(line(7) + shutdown)), None);
        assert!(carrier.strip(&(line(8) + "Linux version 6.12.3 (a@b)")).is_some());
        assert_eq!(carrier.strip(&(line(123) + shutdown)), Some(shutdown));
        // Another shape, and a text that is none of the forms.
        assert_eq!(carrier.strip(&format!("app (tty) #1| {shutdown}")), None);
        assert_eq!(carrier.strip(&(line(9) + "usb 1-1: new device")), None);
    }

    #[test]
    fn nothing_is_a_prefix_that_may_be_part_of_a_message() {
        let mut carrier = Carrier::default();
        for text in [
            "pci 0000:00:03.0: calling  quirk_usb_early_handoff+0x0/0x7e0 @ 1",
            "at24 1-0050: PM: calling f+0x0/0x30 [at24] @ 92, parent: i2c-1",
            "nvme: probe of 0000:01:00.0 failed with error -12",
            "recalling  a_init+0x0/0x40 @ 1",
            "the Linux version of it",
            "calling  a_init+0x0/0x40 @ 1",
        ] {
            assert_eq!(carrier.strip(text), None, "{text}");
        }
        assert!(carrier.shapes.is_empty());
        // Words alone are no shape: a driver's name may be several words.
        assert!(carrier.strip("some words calling  a_init+0x0/0x40 @ 1").is_some());
        assert!(carrier.shapes.is_empty(), "{:?}", carrier.shapes);
        assert_eq!(carrier.strip("generic phy x:00: shutdown"), None);
    }

    #[test]
    fn shapes_are_bounded() {
        let mut carrier = Carrier::default();
        for n in 0..1000 {
            let prefix = "-".repeat(n % 100) + &"+".repeat(n / 100) + ": ";
            carrier.strip(&(prefix + "Linux version 6.12.3 (a@b)"));
        }
        assert_eq!(carrier.shapes.len(), SHAPES);
    }
}
