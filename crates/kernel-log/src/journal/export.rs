//! `journalctl -o export` and `-o verbose`: a field a line. An empty line stands behind each entry,
//! or a line with its time before it.

use super::{Entry, Taken};
use crate::form::Prefix;
use crate::stamp::{Clock, Stamp};

/// Puts the fields of entries together.
///
/// A value that holds a line's end or a control character stands on lines of its own, behind its
/// length. The kernel writes none of those; they are passed over.
#[derive(Debug, Default)]
pub(crate) struct Export {
    entry: Option<Fields>,
    /// Fields are indented, and a line that is not ends the entry.
    verbose: bool,
}

#[derive(Debug, Default)]
struct Fields {
    message: Option<String>,
    source: Option<u64>,
    monotonic: Option<u64>,
    boot: Option<String>,
    foreign: bool,
}

impl Export {
    /// Takes one line.
    pub(crate) fn line(&mut self, text: &str) -> Taken {
        if heads(text) {
            self.verbose = true;
            return self.begin();
        }
        if self.verbose && self.entry.is_some() && !text.starts_with(' ') {
            self.verbose = false;
            return match self.finish() {
                Some(entry) => Taken::Behind(entry),
                None => Taken::No,
            };
        }
        let Some((name, value)) = field(if self.verbose { text.trim_start() } else { text }) else {
            return match &self.entry {
                None => Taken::No,
                Some(_) if text.is_empty() => self.finish().map_or(Taken::Part, Taken::Entry),
                // A value that is not text, or its name.
                Some(_) => Taken::Part,
            };
        };
        if name == "__CURSOR" {
            self.verbose = false;
            return self.begin();
        }
        let Some(fields) = &mut self.entry else { return Taken::No };
        match name {
            // Where an entry has several, the first one counts.
            "MESSAGE" if fields.message.is_none() => fields.message = Some(value.to_owned()),
            "_SOURCE_MONOTONIC_TIMESTAMP" => fields.source = value.parse().ok(),
            "__MONOTONIC_TIMESTAMP" => fields.monotonic = value.parse().ok(),
            "_BOOT_ID" => fields.boot = Some(value.to_owned()),
            "_TRANSPORT" => fields.foreign = value != "kernel",
            _ => {}
        }
        Taken::Part
    }

    fn begin(&mut self) -> Taken {
        let ended = self.finish();
        self.entry = Some(Fields::default());
        ended.map_or(Taken::Part, Taken::Entry)
    }

    /// The entry that has begun: the next one begins, or the log is over.
    pub(crate) fn finish(&mut self) -> Option<Entry> {
        let fields = self.entry.take()?;
        let message = fields.message?;
        let received = fields.source.is_none();
        let ns = fields.source.or(fields.monotonic).and_then(|us| us.checked_mul(1000));
        Some(Entry {
            message,
            stamp: ns.map(|ns| Stamp { received, ..Stamp::new(ns, Clock::Boot) }),
            thread: None,
            kind: Prefix::JournalExport,
            foreign: fields.foreign,
            boot: fields.boot,
            console: false,
        })
    }
}

/// `Wed 2026-03-04 13:21:00.000000 UTC [s=ab12;i=1;b=cd34]`, before the fields of an entry.
fn heads(text: &str) -> bool {
    let cursor = text.strip_suffix(']').and_then(|text| text.split_once(" [s="));
    cursor.is_some_and(|(time, cursor)| !time.starts_with(' ') && cursor.contains(";i="))
}

/// `NAME=value`.
fn field(text: &str) -> Option<(&str, &str)> {
    let (name, value) = text.split_once('=')?;
    let letter = |b: u8| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'_';
    (!name.is_empty() && name.bytes().all(letter)).then_some((name, value))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(text: &str) -> Vec<Entry> {
        let mut export = Export::default();
        let taken = text.lines().map(|line| export.line(line)).collect::<Vec<_>>();
        let last = export.finish();
        let entry = |taken| match taken {
            Taken::Entry(entry) | Taken::Behind(entry) => Some(entry),
            _ => None,
        };
        taken.into_iter().filter_map(entry).chain(last).collect()
    }

    #[test]
    fn an_entry_ends_at_an_empty_line_or_at_the_next_one() {
        let text = "__CURSOR=s=1;i=2\n__MONOTONIC_TIMESTAMP=9\n_BOOT_ID=ab\n_TRANSPORT=kernel\n\
                    _SOURCE_MONOTONIC_TIMESTAMP=5140900\nMESSAGE=a=b\nMESSAGE=c\n\n\
                    __CURSOR=s=1;i=3\n__MONOTONIC_TIMESTAMP=7\n_TRANSPORT=stdout\nMESSAGE\n\
                    \x0c\0\0\0\0\0\0\0probe of a\nx\nSYSLOG_PID=1\nMESSAGE=d\n\
                    __CURSOR=s=1;i=4\nMESSAGE=e\n";
        let found: Vec<_> = entries(text)
            .into_iter()
            .map(|e| (e.message, e.stamp.map(|s| s.ns), e.boot, e.foreign))
            .collect();
        assert_eq!(
            found,
            [
                ("a=b".into(), Some(5_140_900_000), Some("ab".into()), false),
                ("d".into(), Some(7000), None, true),
                ("e".into(), None, None, false),
            ]
        );
    }

    #[test]
    fn the_fields_of_a_verbose_entry_are_indented_behind_its_time() {
        let head = |i| format!("Wed 2026-03-04 13:21:00.000000 UTC [s=ab12;i={i};b=cd34]\n");
        let text = head(1)
            + "    _TRANSPORT=kernel\n    MESSAGE=a=b\n    _SOURCE_MONOTONIC_TIMESTAMP=7\n"
            + &head(2)
            + "    MESSAGE=c\n            more of it\n-- Boot 12 --\n"
            + &head(3)
            + "    _TRANSPORT=stdout\n    MESSAGE=d\n";
        let found: Vec<_> = entries(&text)
            .into_iter()
            .map(|e| (e.message, e.stamp.map(|s| s.ns), e.foreign))
            .collect();
        let told = |text: &str, ns, foreign| (text.to_owned(), ns, foreign);
        assert_eq!(
            found,
            [told("a=b", Some(7000), false), told("c", None, false), told("d", None, true)]
        );
    }

    #[test]
    fn other_texts_are_none_of_it() {
        let mut export = Export::default();
        for line in ["", "MESSAGE=x", "[    1.0] a=b", "PATH=/bin", "a: b"] {
            assert_eq!(export.line(line), Taken::No, "{line}");
        }
    }
}
