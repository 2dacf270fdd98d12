//! The reader: turns bytes into facts, a line at a time.

mod collector;

use crate::conclude;
use crate::facts::{Facts, MessageKey};
use crate::form::{Clock, Stamp};
use crate::form::{Form, Prefix};
use crate::journal::Export;
use crate::journal::{self, JournalEntry, JournalStep, PrettyJson};
use crate::lines::encoding::{Decoder, Unread};
use crate::lines::plain::plain;
use crate::lines::{Line, Lines};
use crate::log::{BootSummary, KernelLog};
use crate::message::carrier::Carrier;
use crate::message::{self, Message};
use crate::prefix::{Prefixes, StrippedLine, stamp_inside};
use collector::LineCollector;
use collector::{HeldMessage, Sequence};
use std::borrow::Cow;
use std::collections::HashMap;

/// Reads kernel logs in any pieces. A reader is a plain value: it reads no clock and opens no file.
///
/// A log can hold several boots. A [new](Reader::new) reader keeps the last one with anything to
/// report; one for [every boot](Reader::every_boot) keeps all of them. A boot ends with its
/// shutdown: an excerpt with two shutdowns is of two boots. A part of a log that stands there
/// twice, to the microsecond, counts once.
#[derive(Debug, Default)]
pub struct Reader {
    decoder: Decoder,
    lines: Lines,
    collector: LineCollector,
    state: ReaderState,
}

#[derive(Debug, Default)]
struct ReaderState {
    /// Number of the line that is read, and number of lines of the file that it is.
    number: u64,
    lines: u64,
    /// Prefixes of its message.
    kinds: Vec<Prefix>,
    prefixes: Prefixes,
    carrier: Carrier,
    pretty: PrettyJson,
    export: Export,
    sequence: Sequence,
    /// True if the line before was a message of `/dev/kmsg`, or a field of one.
    kmsg: bool,
    facts: Facts,
    /// Messages that wait until their boot is known: this boot's first line came again, so another
    /// boot may begin.
    again: Option<RepeatedBoot>,
    /// Boots before this one with something to report: the last, or all of them.
    earlier: Vec<Facts>,
    /// Summaries of those boots; of very many, the first ones.
    boots: Vec<BootSummary>,
    /// Number of those boots.
    count: usize,
    /// Number of boots with nothing to report.
    silent: usize,
    keep_all: bool,
    /// True if tags of HTML were removed.
    html: bool,
    /// Number of lines from which characters without width were removed.
    invisible: u64,
    /// Last message, if it was none of the forms: its end may stand on the next line.
    pending: Pending,
    /// True once the kernel's own clock was seen: a wall clock has nothing to add.
    kernel_clock: bool,
    /// First stamp of a wall clock.
    base: Option<u64>,
    /// Name of the boot, in a journal.
    boot: Option<String>,
    /// Format that a line announced.
    unread: Option<Unread>,
}

/// Messages from a boot's first line on that the boot before had as well.
#[derive(Debug)]
struct RepeatedBoot {
    /// Number of lines of the boot before that line.
    lines: u64,
    prefixes: HashMap<Prefix, u64>,
    /// Messages of that line, and of those behind it.
    messages: Vec<HeldMessage>,
    /// Number of them with a later stamp that the boot before never had.
    others: usize,
    /// Number of them with a later stamp that the boot before had.
    equal: usize,
    /// True if the boot before had ended. A few equal lines don't show that it is here twice.
    down: bool,
    /// Room for further messages, in bytes.
    room: usize,
}

/// Number of messages that settles their boot: messages that a boot never had are of another one;
/// messages that it had, once the machine was down, are of that one. One of two copies in a log may
/// lack less important lines.
const OTHERS: usize = 64;

/// Size of messages that settles their boot in any case: no kernel logs more before its clock runs.
const ROOM: usize = 1 << 20;

/// A message and its prefixes.
struct Record<'a> {
    text: &'a str,
    message: &'a Message<'a>,
    stamp: Option<Stamp>,
    thread: Option<u32>,
    moment: Option<MessageKey>,
}

impl<'a> Record<'a> {
    fn new(
        text: &'a str,
        message: &'a Message<'a>,
        stamp: Option<Stamp>,
        thread: Option<u32>,
    ) -> Record<'a> {
        Record { text, message, stamp, thread, moment: MessageKey::of(text, stamp) }
    }
}

/// Returns true if `text`, before a stamp of the kernel in the same line, is no message, but the
/// text of a program.
fn is_carrier(stripped: &StrippedLine<'_>, text: &str) -> bool {
    let kernels = |stamp: Stamp| stamp.clock == Clock::Boot;
    !stripped.stamp.is_some_and(kernels) && message::parse(text).form().is_none()
}

/// A message that was not understood, and may be the first part of one that is.
#[derive(Debug, Default)]
struct Pending {
    /// True if it has a stamp, or looks like one of the forms. A mail may be wrapped behind the
    /// stamp.
    open: bool,
    text: String,
    stamp: Option<Stamp>,
    thread: Option<u32>,
    line: u64,
    why: Option<&'static str>,
}

impl Reader {
    /// Creates a reader that keeps the last boot with something to report.
    pub fn new() -> Reader {
        Reader::default()
    }

    /// Creates a reader that keeps every boot, for [`finish_all`](Reader::finish_all).
    pub fn every_boot() -> Reader {
        Reader {
            state: ReaderState { keep_all: true, ..ReaderState::default() },
            ..Reader::default()
        }
    }

    /// Takes the next bytes of the log, in any pieces. Unpacks the output of `gzip`, and decodes
    /// UTF-16.
    pub fn feed(&mut self, bytes: &[u8]) {
        let Reader { decoder, lines, collector, state } = self;
        decoder.feed(bytes, &mut |text| {
            lines.feed(text, &mut |line| collector.line(line, &mut |line| state.line(line)));
        });
    }

    /// Draws the conclusions. If the log holds several boots, the result is the last one with
    /// anything to report; [`KernelLog::boots`] lists them.
    pub fn finish(mut self) -> KernelLog {
        let mut last = self.finish_kept().pop().unwrap_or_default();
        if self.state.count > 1 {
            let count = self.state.count;
            last.notes.insert(0, format!("the log holds {count} boots; this is the last of them"));
            last.boots = std::mem::take(&mut self.state.boots);
        }
        last
    }

    /// Draws the conclusions and returns one result for each boot that was kept, in their order.
    /// Without such a boot, the only result has nothing but notes.
    pub fn finish_all(mut self) -> Vec<KernelLog> {
        self.finish_kept()
    }

    fn finish_kept(&mut self) -> Vec<KernelLog> {
        let (kept, later) = self.end();
        let mut logs: Vec<KernelLog> = kept.into_iter().map(|facts| self.conclude(facts)).collect();
        let silent = self.state.silent - usize::from(later.is_some());
        if let Some(last) = logs.last_mut() {
            if let Some(later) = later {
                let kernel = later.kernel.map(|kernel| format!(", of Linux {kernel}"));
                last.notes.insert(
                    0,
                    format!(
                        "an earlier boot is shown: the last one (from line {} on{}) has no line of \
                         an init call, a probe or a shutdown",
                        later.first_line,
                        kernel.unwrap_or_default()
                    ),
                );
            }
            if silent > 0 {
                let boots = if silent == 1 { "1 boot".into() } else { format!("{silent} boots") };
                last.notes.push(format!(
                    "{boots} without a line of an init call, a probe or a shutdown {} passed over",
                    if silent == 1 { "was" } else { "were" }
                ));
            }
        }
        logs
    }

    fn conclude(&self, facts: Facts) -> KernelLog {
        let mut log = conclude::conclude(facts);
        let mut notes = Vec::new();
        self.decoder.notes(&mut |note| notes.push(note));
        if self.lines.decoded() {
            notes.push("the log is the source of a mail: quoted-printable was decoded".into());
        }
        if self.state.html {
            notes.push("the log is HTML: its tags were taken out".into());
        }
        if self.state.invisible > 0 {
            let n = self.state.invisible;
            notes.push(format!(
                "characters without width (joiners, marks of direction) were taken out of {n} {}: names \
                 that differ by nothing else became one",
                if n == 1 { "line" } else { "lines" }
            ));
        }
        if self.state.sequence.reordered > 0 {
            let n = self.state.sequence.reordered;
            notes.push(format!(
                "{n} {} overtaken on the way and put in order by {}",
                if n == 1 { "message was" } else { "messages were" },
                if n == 1 { "its number" } else { "their numbers" }
            ));
        }
        if self.collector.reordered > 0 {
            notes.push(format!(
                "{} parts of a dump by pstore were put in the order in which they were written",
                self.collector.reordered
            ));
        }
        if self.collector.too_large {
            notes.push(
                "a dump by pstore is too large to be put in order: its parts are read as they stand"
                    .into(),
            );
        }
        log.notes.splice(0..0, notes);
        let nothing = || self.decoder.unread_without_events().filter(|_| log.forms.is_empty());
        log.unread = self.decoder.unread().or_else(nothing);
        match self.state.unread {
            Some(unread) if log.forms.is_empty() => log.unread = log.unread.or(Some(unread)),
            Some(_) => log.notes.push(
                "a part of the mail is encoded in base64, and was not read: save the mail as text"
                    .into(),
            ),
            None => {}
        }
        log
    }

    /// Ends the log. Returns the boots that were kept, and the last boot if it is none of them.
    fn end(&mut self) -> (Vec<Facts>, Option<BootSummary>) {
        let Reader { decoder, lines, collector, state } = self;
        let mut line = |line: Line<'_>| state.line(line);
        decoder.finish(&mut |text| {
            lines.feed(text, &mut |text| collector.line(text, &mut line));
        });
        lines.finish(&mut |text| collector.line(text, &mut line));
        collector.finish(&mut line);
        if let Some(entry) = state.export.finish() {
            state.entry(&entry);
        }
        state.in_order();
        state.settle();
        state.flush();
        let last = std::mem::take(&mut state.facts);
        if last.events() {
            state.keep(last);
        } else if state.earlier.is_empty() {
            return (vec![last], None);
        } else {
            state.silent += 1;
            return (std::mem::take(&mut state.earlier), Some(last.summary()));
        }
        (std::mem::take(&mut state.earlier), None)
    }
}

impl ReaderState {
    fn line(&mut self, line: Line<'_>) {
        self.number = line.number;
        self.kinds.clear();
        self.lines = line.count;
        self.facts.count_line(line.number, line.count);
        self.facts.cut += u64::from(line.cut);
        self.facts.wrapped += u64::from(line.joined);
        self.html |= line.html;
        self.invisible += u64::from(line.invisible);
        if line.crlf {
            self.count(Prefix::CrLf);
        }
        let text = line.text.as_ref();
        let taken = match journal::line(text) {
            Some(entry) => JournalStep::Entry(entry),
            None => match self.pretty.line(text) {
                JournalStep::No => self.export.line(text),
                taken => taken,
            },
        };
        match taken {
            JournalStep::Entry(entry) => self.entry(&entry),
            JournalStep::Behind(entry) => {
                self.entry(&entry);
                self.console(text);
            }
            JournalStep::Part => {}
            JournalStep::No => self.console(text),
        }
    }

    fn entry(&mut self, entry: &JournalEntry) {
        self.count(entry.kind);
        if entry.foreign {
            self.flush();
            self.facts.foreign += 1;
            return;
        }
        if entry.console {
            for text in entry.message.lines() {
                let text = self.plain(text);
                self.console(&text);
            }
            return;
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
            let text = self.plain(part);
            self.message(&text, entry.stamp, entry.thread);
        }
    }

    /// Returns the plain text of a part of an entry.
    fn plain<'a>(&mut self, text: &'a str) -> Cow<'a, str> {
        let (text, taken) = plain(text.as_bytes());
        self.invisible += u64::from(taken.invisible);
        text
    }

    /// Reads a line of a console, with its prefixes.
    fn console(&mut self, text: &str) {
        self.unread = self.unread.or(Unread::of_line(text));
        // A field that `/dev/kmsg` writes behind a message: ` SUBSYSTEM=pci`.
        if self.kmsg && text.starts_with(' ') && text.contains('=') {
            return;
        }
        let mut rest = text;
        let mut first = true;
        while !rest.is_empty() {
            let mut stripped = self.prefixes.strip(rest);
            if let Some(sequence) = stripped.sequence {
                self.kmsg = true;
                return self.numbered(sequence, &stripped);
            }
            if first {
                self.kmsg = false;
                self.in_order();
            }
            let inside = stamp_inside(stripped.text);
            let (text, behind) = stripped.text.split_at(inside.unwrap_or(stripped.text.len()));
            for kind in &stripped.kinds {
                self.count(*kind);
            }
            let bare = stripped.kinds.iter().all(|k| *k == Prefix::MailQuote);
            if stripped.foreign {
                self.flush();
                self.facts.foreign += 1;
            } else if first && bare && self.continues(text) {
                // The text was the rest of the message before.
            } else if inside.is_some() && is_carrier(&stripped, text) {
                self.count(Prefix::Carrier);
            } else {
                self.flush();
                stripped.text = text;
                self.message_behind(&stripped);
            }
            rest = behind;
            first = false;
        }
    }

    /// Reads a message behind its known prefixes, and perhaps an unknown one.
    fn message_behind(&mut self, stripped: &StrippedLine<'_>) {
        let StrippedLine { text, stamp, thread, .. } = *stripped;
        let message = message::parse(text);
        // A driver's name may be several words, and so look like a prefix. Nothing else can.
        let sure = message.form().is_some_and(|form| form != Form::Shutdown);
        match if sure { None } else { self.carrier.strip(text) } {
            Some(behind) => {
                self.count(Prefix::Carrier);
                self.message(behind, stamp, thread);
            }
            None => self.parsed(text, &message, stamp, thread),
        }
    }

    /// Takes a message of `/dev/kmsg`, which may have overtaken others on its way.
    fn numbered(&mut self, sequence: u64, stripped: &StrippedLine<'_>) {
        // The line counts when the message's turn comes.
        self.facts.uncount_line(self.lines, &self.kinds);
        let mut kinds = std::mem::take(&mut self.kinds);
        kinds.extend_from_slice(&stripped.kinds);
        if self.sequence.begins_anew(sequence, stripped.text) {
            self.in_order();
        }
        let StrippedLine { text, stamp, thread, .. } = *stripped;
        let (line, lines, text) = (self.number, self.lines, text.to_owned());
        self.sequence.take(sequence, HeldMessage { line, lines, text, stamp, thread, kinds });
        while let Some(message) = self.sequence.next() {
            self.in_turn(message);
        }
    }

    /// Records the messages that came too early: no other will come.
    fn in_order(&mut self) {
        let (number, lines) = (self.number, self.lines);
        for message in self.sequence.end() {
            self.in_turn(message);
        }
        (self.number, self.lines) = (number, lines);
    }

    fn in_turn(&mut self, message: HeldMessage) {
        let kinds = std::mem::take(&mut self.kinds);
        (self.number, self.lines) = (message.line, message.lines);
        self.facts.count_line(message.line, message.lines);
        message.kinds.iter().for_each(|kind| self.count(*kind));
        self.flush();
        self.message(&message.text, message.stamp, message.thread);
        self.kinds = kinds;
    }

    /// Returns true if `text`, which has no prefix of its own, is the rest of a message that a mail
    /// program wrapped, or that another writer of the console cut. That message is recorded then.
    fn continues(&mut self, text: &str) -> bool {
        let text = text.trim();
        let pending = &mut self.pending;
        if !pending.open || text.is_empty() || text.len() > 200 {
            return false;
        }
        let length = pending.text.len();
        let mut joined = std::mem::take(&mut pending.text);
        // A mail's encoding, whose head isn't here, breaks lines like this, anywhere.
        let soft = joined.ends_with('=') && {
            joined.pop();
            true
        };
        if length > 0 && !soft {
            joined.push(' ');
        }
        joined.push_str(text);
        let (stamp, thread) = (pending.stamp, pending.thread);
        let message = message::parse(&joined);
        let taken = message.form().is_some();
        if taken {
            self.pending.why = None;
            self.pending.open = false;
            self.facts.wrapped += 1;
            self.take(&Record::new(&joined, &message, stamp, thread));
        } else {
            joined.truncate(length - usize::from(soft));
            if soft {
                joined.push('=');
            }
            self.pending.text = joined;
        }
        taken
    }

    fn message(&mut self, text: &str, stamp: Option<Stamp>, thread: Option<u32>) {
        self.parsed(text, &message::parse(text), stamp, thread);
    }

    fn parsed(
        &mut self,
        text: &str,
        message: &Message<'_>,
        stamp: Option<Stamp>,
        thread: Option<u32>,
    ) {
        let empty = text.trim().is_empty();
        if empty && stamp.is_none() {
            return;
        }
        let record = Record::new(text, message, self.stamp(stamp), thread);
        if empty || !self.is_again(&record) {
            self.record(&record);
        }
    }

    /// Records a message with its stamp by the clock of the log.
    fn record(&mut self, record: &Record<'_>) {
        let Record { text, message, stamp, thread, .. } = *record;
        if !text.trim().is_empty() {
            let had = self.facts.has(record.moment);
            if had {
                self.facts.again(stamp);
            }
            let version = text.starts_with("Linux version ");
            let of_this = had || !version && self.facts.in_copy(stamp);
            if !of_this && self.new_boot(text, stamp) {
                self.begin();
            }
            if self.take(record) {
                return;
            }
            self.facts.blobs += u64::from(text.starts_with('[') && text.ends_with("B blob data]"));
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

    fn take(&mut self, record: &Record<'_>) -> bool {
        let Record { text, message, stamp, thread, moment } = *record;
        let had = message.form().is_some() && self.facts.has(moment);
        if had && !self.facts.is_another(message, stamp) {
            self.facts.doubled += 1;
            return true;
        }
        if !self.facts.in_copy(stamp) && self.facts.over_before(message) {
            self.begin();
        }
        self.facts.remember(moment);
        self.facts.see(stamp);
        self.facts.add(text.len(), message, stamp, thread)
    }

    /// Returns true if a message has to wait until its boot is known: this boot's first line came
    /// again, with the same stamp. Either another boot begins, or the log has this one twice.
    fn is_again(&mut self, record: &Record<'_>) -> bool {
        let Record { text, stamp, thread, moment, .. } = *record;
        let version = text.starts_with("Linux version ");
        let held = self.again.as_ref().and_then(|again| again.messages.last()?.stamp);
        if version && held.zip(stamp).is_some_and(|(held, now)| now.ns < held.ns) {
            self.settle();
        }
        if self.again.is_none() {
            // If nothing later was read, a console merely wrote its line twice.
            let went_on = |now: Stamp| self.facts.last.is_some_and(|last| now.ns < last.ns);
            if !version || !stamp.is_some_and(went_on) || !self.facts.has(moment) {
                return false;
            }
            let (lines, prefixes) = self.facts.before_line(self.lines, &self.kinds);
            self.again = Some(RepeatedBoot {
                lines,
                prefixes,
                messages: Vec::new(),
                others: 0,
                equal: 0,
                down: self.facts.is_down(),
                room: ROOM,
            });
        }
        let had = self.facts.has(moment);
        let Some(again) = &mut self.again else { return false };
        let first = again.messages.first().and_then(|first| first.stamp);
        let later = first.zip(stamp).is_some_and(|(first, now)| now.ns > first.ns);
        let (line, lines, kinds) = (self.number, self.lines, self.kinds.clone());
        let held = HeldMessage { line, lines, text: text.to_owned(), stamp, thread, kinds };
        again.messages.push(held);
        again.others += usize::from(later && !had);
        again.equal += usize::from(later && had);
        again.room = again.room.saturating_sub(text.len() + size_of::<HeldMessage>());
        if again.equal >= if again.down { OTHERS } else { 1 } {
            self.go_on();
        } else if again.others >= OTHERS || again.room == 0 {
            self.begin_again();
        }
        true
    }

    /// Settles the boot of the messages that waited by their majority: nothing more will tell it.
    fn settle(&mut self) {
        match self.again.as_ref().is_some_and(|again| again.equal > again.others) {
            true => self.go_on(),
            false => self.begin_again(),
        }
    }

    /// Records the messages that waited, as messages of this boot.
    fn go_on(&mut self) {
        let Some(again) = self.again.take() else { return };
        self.replay(again.messages);
    }

    /// Records the messages that waited, as messages of another boot.
    fn begin_again(&mut self) {
        let Some(again) = self.again.take() else { return };
        let mut ended = std::mem::take(&mut self.facts);
        let first = again.messages.first().map_or(self.number, |first| first.line);
        self.facts = ended.split_off(first, again.lines, again.prefixes);
        self.ended(ended);
        self.replay(again.messages);
    }

    fn replay(&mut self, messages: Vec<HeldMessage>) {
        let (number, kinds) = (self.number, std::mem::take(&mut self.kinds));
        for message in messages {
            self.number = message.line;
            self.flush();
            let HeldMessage { text, stamp, thread, .. } = &message;
            self.record(&Record::new(text, &message::parse(text), *stamp, *thread));
        }
        (self.number, self.kinds) = (number, kinds);
    }

    /// Begins another boot with this line.
    fn begin(&mut self) {
        let (lines, prefixes) = self.facts.before_line(self.lines, &self.kinds);
        let mut ended = std::mem::take(&mut self.facts);
        self.facts = ended.split_off(self.number, lines, prefixes);
        self.ended(ended);
    }

    fn ended(&mut self, ended: Facts) {
        if ended.events() {
            self.keep(ended);
        } else if ended.kernel.is_some() {
            self.silent += 1;
        }
        self.facts.held = self.earlier.iter().map(|facts| facts.used).sum();
    }

    fn keep(&mut self, mut facts: Facts) {
        facts.forget();
        if !self.keep_all {
            self.earlier.clear();
        }
        if self.boots.len() < KernelLog::BOOTS_KEPT {
            self.boots.push(facts.summary());
        }
        self.earlier.push(facts);
        self.count += 1;
    }

    /// Records the pending message, which nothing continues.
    fn flush(&mut self) {
        if let Some(why) = self.pending.why.take() {
            self.facts.suspect(self.pending.line, &self.pending.text, why);
        }
        self.pending.text.clear();
        self.pending.open = false;
    }

    /// Returns a stamp by the one clock of the whole log: the kernel's, or else a wall clock, from
    /// its first stamp.
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

    /// Returns true if another boot begins with this message.
    fn new_boot(&self, text: &str, stamp: Option<Stamp>) -> bool {
        const SECOND: u64 = 1_000_000_000;
        if text.starts_with("Linux version ") {
            return self.facts.kernel.is_some() || self.facts.any();
        }
        if text.starts_with("-- Boot ") || text.starts_with("-- Reboot --") {
            return self.facts.any();
        }
        // A log that was cut may lack that line, but no clock goes back like this, and only another
        // boot follows a shutdown.
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
