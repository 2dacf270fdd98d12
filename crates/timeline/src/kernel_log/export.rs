//! `journalctl -o export`: a field a line, and an empty line behind each entry.

use super::Prefix;
use super::prefix::{Clock, Stamp};
use super::structured::{Entry, Taken};

/// Puts the fields of entries together.
///
/// A value that holds a line's end or a control character stands on lines of its own, behind its
/// length. The kernel writes none of those; they are passed over.
#[derive(Debug, Default)]
pub(crate) struct Export {
    entry: Option<Fields>,
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
        let Some((name, value)) = field(text) else {
            return match &self.entry {
                None => Taken::No,
                Some(_) if text.is_empty() => self.end(),
                // A value that is not text, or its name.
                Some(_) => Taken::Part,
            };
        };
        if name == "__CURSOR" {
            let ended = self.end();
            self.entry = Some(Fields::default());
            return ended;
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

    fn end(&mut self) -> Taken {
        let Some(fields) = self.entry.take() else { return Taken::Part };
        let Some(message) = fields.message else { return Taken::Part };
        let received = fields.source.is_none();
        let ns = fields.source.or(fields.monotonic).and_then(|us| us.checked_mul(1000));
        Taken::Entry(Entry {
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
        let last = export.end();
        let entry = |taken| match taken {
            Taken::Entry(entry) => Some(entry),
            _ => None,
        };
        taken.into_iter().chain([last]).filter_map(entry).collect()
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
    fn other_texts_are_none_of_it() {
        let mut export = Export::default();
        for line in ["", "MESSAGE=x", "[    1.0] a=b", "PATH=/bin", "a: b"] {
            assert_eq!(export.line(line), Taken::No, "{line}");
        }
    }
}
