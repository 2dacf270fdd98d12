//! The reader: from bytes to facts, a line at a time.

use super::facts::Facts;
use super::lines::{Line, Lines};
use super::message::{self, Message};
use super::prefix::{self, Prefixes, Stamp};
use super::structured::{self, Pretty, Taken};
use super::{KernelLog, Prefix, assemble};

/// Reads kernel logs as they come, in any pieces. It is a plain value: it reads no clock and opens
/// no file.
///
/// A log can hold several boots. A [new](Reader::new) reader keeps the last one of which there is
/// anything to tell, one for [every boot](Reader::every_boot) keeps each of them.
#[derive(Debug, Default)]
pub struct Reader {
    lines: Lines,
    state: State,
}

#[derive(Debug, Default)]
struct State {
    prefixes: Prefixes,
    pretty: Pretty,
    facts: Facts,
    /// Boots before this one of which there is something to tell: the last, or all of them.
    earlier: Vec<Facts>,
    /// How many there were.
    boots: usize,
    keep_all: bool,
    /// The last message, if it was none of the forms: its end may stand on the next line.
    pending: Pending,
    /// The kernel's own clock was seen: one on the wall has nothing to add.
    kernel_clock: bool,
    /// The first stamp of a clock on the wall.
    base: Option<u64>,
}

/// A message that was not understood, and may be the first part of one that is.
#[derive(Debug, Default)]
struct Pending {
    text: String,
    stamp: Option<Stamp>,
    thread: Option<u32>,
    line: u64,
    why: Option<&'static str>,
}

impl Reader {
    /// A reader that has read nothing, and keeps the last boot of which a log has something to tell.
    pub fn new() -> Reader {
        Reader::default()
    }

    /// Likewise, but it keeps every boot, for [`finish_all`](Reader::finish_all).
    pub fn every_boot() -> Reader {
        Reader { state: State { keep_all: true, ..State::default() }, ..Reader::default() }
    }

    /// Takes the next bytes of the log; lines may be cut anywhere.
    pub fn feed(&mut self, bytes: &[u8]) {
        let state = &mut self.state;
        self.lines.feed(bytes, &mut |line| state.line(line));
    }

    /// How many lines have ended so far.
    pub fn lines(&self) -> u64 {
        self.lines.count()
    }

    /// Concludes. Where the log holds several boots, this is the last one of which it has anything
    /// to tell, and a note says so.
    pub fn finish(mut self) -> KernelLog {
        let (last, boots) = (self.end().pop().unwrap_or_default(), self.state.boots);
        let mut last = assemble::conclude(last);
        if boots > 1 {
            last.notes.insert(0, format!("the log holds {boots} boots; this is the last of them"));
        }
        last
    }

    /// Concludes, with one result for each boot that was kept, in their order; where there is none,
    /// with one that has nothing but notes.
    pub fn finish_all(mut self) -> Vec<KernelLog> {
        self.end().into_iter().map(assemble::conclude).collect()
    }

    /// The log is over: what was kept.
    fn end(&mut self) -> Vec<Facts> {
        let state = &mut self.state;
        self.lines.finish(&mut |line| state.line(line));
        state.flush();
        let last = std::mem::take(&mut state.facts);
        if last.events() {
            state.keep(last);
        } else if state.earlier.is_empty() {
            return vec![last];
        }
        std::mem::take(&mut state.earlier)
    }
}

impl State {
    fn line(&mut self, line: Line<'_>) {
        self.facts.lines += 1;
        self.facts.cut += u64::from(line.cut);
        if line.crlf {
            self.count(Prefix::CrLf);
        }
        let text = line.text.as_ref();
        let entry = match structured::line(text) {
            Some(entry) => Some(entry),
            None => match self.pretty.line(text) {
                Taken::Entry(entry) => Some(entry),
                Taken::Part => return,
                Taken::No => None,
            },
        };
        if let Some(entry) = entry {
            self.flush();
            self.count(entry.kind);
            // A journal keeps the parts of a message with several lines together.
            for part in entry.message.lines() {
                if entry.foreign {
                    self.facts.foreign += 1;
                } else {
                    self.message(part, entry.stamp, entry.thread, line.number);
                }
            }
            return;
        }
        let mut rest = text;
        let mut first = true;
        while !rest.is_empty() {
            let stripped = self.prefixes.strip(rest);
            for kind in &stripped.kinds {
                self.count(*kind);
            }
            let inside = prefix::stamp_inside(stripped.text);
            let (text, behind) = stripped.text.split_at(inside.unwrap_or(stripped.text.len()));
            let bare = stripped.kinds.iter().all(|k| *k == Prefix::MailQuote);
            if stripped.foreign {
                self.flush();
                self.facts.foreign += 1;
            } else if !(first && bare && self.continues(text)) {
                self.flush();
                self.message(text, stripped.stamp, stripped.thread, line.number);
            }
            rest = behind;
            first = false;
        }
    }

    /// Whether `text`, which has no prefix of its own, is the rest of a message that a mail program
    /// wrapped, or that another writer of the console cut; then that message is taken.
    fn continues(&mut self, text: &str) -> bool {
        let text = text.trim();
        let pending = &mut self.pending;
        if pending.text.is_empty() || text.is_empty() || text.len() > 200 {
            return false;
        }
        let length = pending.text.len();
        pending.text.push(' ');
        pending.text.push_str(text);
        let joined = std::mem::take(&mut pending.text);
        let (stamp, thread) = (pending.stamp, pending.thread);
        let message = message::parse(&joined);
        let taken = message.form().is_some();
        if taken {
            self.pending.why = None;
            self.facts.wrapped += 1;
            self.take(&message, stamp, thread);
        } else {
            self.pending.text = joined;
            self.pending.text.truncate(length);
        }
        taken
    }

    fn message(&mut self, text: &str, stamp: Option<Stamp>, thread: Option<u32>, line: u64) {
        if text.trim().is_empty() {
            return;
        }
        let stamp = self.stamp(stamp);
        if self.new_boot(text, stamp) {
            let ended = std::mem::take(&mut self.facts);
            if ended.events() {
                self.keep(ended);
            }
            self.facts.lines = 1;
        }
        if stamp.is_some() {
            self.facts.last = stamp;
        }
        let message = message::parse(text);
        if self.take(&message, stamp, thread) {
            return;
        }
        if let Message::Suspicious(why) = message {
            self.pending.why = Some(why);
        }
        if stamp.is_some() || self.pending.why.is_some() {
            self.pending.text.clear();
            let end = (0..=200.min(text.len())).rev().find(|&i| text.is_char_boundary(i));
            self.pending.text.push_str(&text[..end.unwrap_or_default()]);
            (self.pending.stamp, self.pending.thread) = (stamp, thread);
            self.pending.line = line;
        }
    }

    fn take(&mut self, message: &Message<'_>, stamp: Option<Stamp>, thread: Option<u32>) -> bool {
        self.facts.add(message, stamp, thread)
    }

    fn keep(&mut self, facts: Facts) {
        if !self.keep_all {
            self.earlier.clear();
        }
        self.earlier.push(facts);
        self.boots += 1;
    }

    /// Nothing continues the pending message.
    fn flush(&mut self) {
        if let Some(why) = self.pending.why.take() {
            self.facts.suspect(self.pending.line, &self.pending.text, why);
        }
        self.pending.text.clear();
    }

    /// One clock for the whole log: the kernel's, or else that on the wall, from its first stamp.
    fn stamp(&mut self, stamp: Option<Stamp>) -> Option<Stamp> {
        let mut stamp = stamp?;
        if !stamp.wall {
            self.kernel_clock = true;
            return Some(stamp);
        }
        if self.kernel_clock {
            return None;
        }
        stamp.ns = stamp.ns.saturating_sub(*self.base.get_or_insert(stamp.ns));
        Some(stamp)
    }

    /// Whether another boot begins with this message.
    fn new_boot(&self, text: &str, stamp: Option<Stamp>) -> bool {
        const SECOND: u64 = 1_000_000_000;
        if text.starts_with("Linux version ") {
            return self.facts.kernel.is_some() || self.facts.any();
        }
        if text.starts_with("-- Boot ") || text.starts_with("-- Reboot --") {
            return self.facts.any();
        }
        // A log that was cut may lack that line, but no clock goes back like this.
        match (self.facts.last, stamp) {
            (Some(last), Some(now)) => now.ns < SECOND && last.ns > 5 * SECOND && !now.wall,
            _ => false,
        }
    }

    fn count(&mut self, kind: Prefix) {
        *self.facts.prefixes.entry(kind).or_default() += 1;
    }
}
