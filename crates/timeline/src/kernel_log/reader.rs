//! The reader: from bytes to facts, a line at a time.

use super::encoding::{Decoder, Unread};
use super::export::Export;
use super::facts::Facts;
use super::lines::{Line, Lines};
use super::message::{self, Message};
use super::plain::plain;
use super::prefix::{self, Prefixes, Stamp};
use super::structured::{self, Entry, Pretty, Taken};
use super::{BootSummary, KernelLog, Prefix, assemble};

/// Reads kernel logs as they come, in any pieces. It is a plain value: it reads no clock and opens
/// no file.
///
/// A log can hold several boots. A [new](Reader::new) reader keeps the last one of which there is
/// anything to tell, one for [every boot](Reader::every_boot) keeps each of them. A boot ends with
/// its shutdown: an excerpt with two shutdowns is of two.
#[derive(Debug, Default)]
pub struct Reader {
    decoder: Decoder,
    lines: Lines,
    state: State,
}

#[derive(Debug, Default)]
struct State {
    /// The number of the line that is read.
    number: u64,
    /// What stood before its message.
    kinds: Vec<Prefix>,
    prefixes: Prefixes,
    pretty: Pretty,
    export: Export,
    facts: Facts,
    /// Boots before this one of which there is something to tell: the last, or all of them.
    earlier: Vec<Facts>,
    /// Each of those there were; the first ones of very many.
    boots: Vec<BootSummary>,
    /// How many there were.
    count: usize,
    keep_all: bool,
    /// The last message, if it was none of the forms: its end may stand on the next line.
    pending: Pending,
    /// The kernel's own clock was seen: one on the wall has nothing to add.
    kernel_clock: bool,
    /// The first stamp of a clock on the wall.
    base: Option<u64>,
    /// The boot's name, in a journal.
    boot: Option<String>,
    /// What was recognized by a line.
    unread: Option<Unread>,
}

/// A message that was not understood, and may be the first part of one that is.
#[derive(Debug, Default)]
struct Pending {
    /// It has a stamp, or looks like one of the forms. A mail may be wrapped behind the stamp.
    open: bool,
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

    /// Takes the next bytes of the log; lines may be cut anywhere. Output of `gzip` is
    /// unpacked, and UTF-16 is decoded.
    pub fn feed(&mut self, bytes: &[u8]) {
        let Reader { decoder, lines, state } = self;
        decoder.feed(bytes, &mut |text| lines.feed(text, &mut |line| state.line(line)));
    }

    /// How many lines have ended so far.
    pub fn lines(&self) -> u64 {
        self.lines.count()
    }

    /// Concludes. Where the log holds several boots, this is the last one of which it has anything
    /// to tell; [`KernelLog::boots`] lists them.
    pub fn finish(mut self) -> KernelLog {
        let last = self.end().pop().unwrap_or_default();
        let mut last = self.conclude(last);
        if self.state.count > 1 {
            let count = self.state.count;
            last.notes.insert(0, format!("the log holds {count} boots; this is the last of them"));
            last.boots = std::mem::take(&mut self.state.boots);
        }
        last
    }

    /// Concludes, with one result for each boot that was kept, in their order; where there is none,
    /// with one that has nothing but notes.
    pub fn finish_all(mut self) -> Vec<KernelLog> {
        self.end().into_iter().map(|facts| self.conclude(facts)).collect()
    }

    fn conclude(&self, facts: Facts) -> KernelLog {
        let mut log = assemble::conclude(facts);
        let mut at = 0;
        self.decoder.notes(&mut |note| {
            log.notes.insert(at, note);
            at += 1;
        });
        let nothing = || self.decoder.unread_without_events().filter(|_| log.forms.is_empty());
        log.unread = self.decoder.unread().or(self.state.unread).or_else(nothing);
        log
    }

    /// The log is over: what was kept.
    fn end(&mut self) -> Vec<Facts> {
        let Reader { decoder, lines, state } = self;
        decoder.finish(&mut |text| lines.feed(text, &mut |line| state.line(line)));
        lines.finish(&mut |line| state.line(line));
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
        self.number = line.number;
        self.kinds.clear();
        self.facts.count_line(line.number);
        self.facts.cut += u64::from(line.cut);
        if line.crlf {
            self.count(Prefix::CrLf);
        }
        let text = line.text.as_ref();
        let taken = match structured::line(text) {
            Some(entry) => Taken::Entry(entry),
            None => match self.pretty.line(text) {
                Taken::No => self.export.line(text),
                taken => taken,
            },
        };
        match taken {
            Taken::Entry(entry) => self.entry(&entry),
            Taken::Part => {}
            Taken::No => self.console(text),
        }
    }

    fn entry(&mut self, entry: &Entry) {
        self.count(entry.kind);
        if entry.foreign {
            self.flush();
            self.facts.foreign += 1;
            return;
        }
        if entry.console {
            return self.console(&plain(entry.message.as_bytes()));
        }
        self.flush();
        if entry.boot.is_some() && entry.boot != self.boot {
            self.boot.clone_from(&entry.boot);
            if self.facts.any() {
                self.begin();
            }
        }
        // A journal keeps the parts of a message with several lines together.
        for part in entry.message.lines() {
            self.message(&plain(part.as_bytes()), entry.stamp, entry.thread);
        }
    }

    /// A line with whatever stands before its message.
    fn console(&mut self, text: &str) {
        self.unread = self.unread.or(Unread::of_line(text));
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
                self.message(text, stripped.stamp, stripped.thread);
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
        if !pending.open || text.is_empty() || text.len() > 200 {
            return false;
        }
        let length = pending.text.len();
        if length > 0 {
            pending.text.push(' ');
        }
        pending.text.push_str(text);
        let joined = std::mem::take(&mut pending.text);
        let (stamp, thread) = (pending.stamp, pending.thread);
        let message = message::parse(&joined);
        let taken = message.form().is_some();
        if taken {
            self.pending.why = None;
            self.pending.open = false;
            self.facts.wrapped += 1;
            self.take(&joined, &message, stamp, thread);
        } else {
            self.pending.text = joined;
            self.pending.text.truncate(length);
        }
        taken
    }

    fn message(&mut self, text: &str, stamp: Option<Stamp>, thread: Option<u32>) {
        let empty = text.trim().is_empty();
        if empty && stamp.is_none() {
            return;
        }
        let stamp = self.stamp(stamp);
        if !empty {
            if self.new_boot(text, stamp) {
                self.begin();
            }
            let message = message::parse(text);
            if self.take(text, &message, stamp, thread) {
                return;
            }
            if let Message::Suspicious(why) = message {
                self.pending.why = Some(why);
            }
        }
        if stamp.is_some() || self.pending.why.is_some() {
            self.pending.open = true;
            self.pending.text.clear();
            let end = (0..=200.min(text.len())).rev().find(|&i| text.is_char_boundary(i));
            self.pending.text.push_str(text[..end.unwrap_or_default()].trim_end());
            (self.pending.stamp, self.pending.thread) = (stamp, thread);
            self.pending.line = self.number;
        }
    }

    fn take(
        &mut self,
        text: &str,
        message: &Message<'_>,
        stamp: Option<Stamp>,
        thread: Option<u32>,
    ) -> bool {
        if self.facts.over_before(message) {
            self.begin();
        }
        self.facts.see(stamp);
        self.facts.add(text.len(), message, stamp, thread)
    }

    /// Another boot begins with this line.
    fn begin(&mut self) {
        let mut ended = std::mem::take(&mut self.facts);
        ended.lines = ended.lines.saturating_sub(1);
        self.facts.count_line(self.number);
        for kind in &self.kinds {
            *ended.prefixes.entry(*kind).or_default() -= 1;
            *self.facts.prefixes.entry(*kind).or_default() += 1;
        }
        ended.prefixes.retain(|_, count| *count > 0);
        if ended.events() {
            self.keep(ended);
        }
        self.facts.held = self.earlier.iter().map(|facts| facts.used).sum();
    }

    fn keep(&mut self, facts: Facts) {
        if !self.keep_all {
            self.earlier.clear();
        }
        if self.boots.len() < KernelLog::BOOTS_KEPT {
            self.boots.push(facts.summary());
        }
        self.earlier.push(facts);
        self.count += 1;
    }

    /// Nothing continues the pending message.
    fn flush(&mut self) {
        if let Some(why) = self.pending.why.take() {
            self.facts.suspect(self.pending.line, &self.pending.text, why);
        }
        self.pending.text.clear();
        self.pending.open = false;
    }

    /// One clock for the whole log: the kernel's, or else that on the wall, from its first stamp.
    fn stamp(&mut self, stamp: Option<Stamp>) -> Option<Stamp> {
        let mut stamp = stamp?;
        if !stamp.is_wall() {
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
        // A log that was cut may lack that line, but no clock goes back like this; and nothing
        // follows a shutdown but another boot.
        match (self.facts.last, stamp) {
            (Some(last), Some(now)) if !now.is_wall() => {
                now.ns < SECOND && last.ns > 5 * SECOND
                    || !self.facts.shutdowns.is_empty() && now.ns.saturating_add(SECOND) < last.ns
            }
            _ => false,
        }
    }

    fn count(&mut self, kind: Prefix) {
        self.kinds.push(kind);
        *self.facts.prefixes.entry(kind).or_default() += 1;
    }
}
