//! The facts that were read of one boot, before any conclusion.

pub(crate) mod records;

use crate::form::{Form, Prefix};
use crate::form::{MICRO, Stamp};
use crate::graph::EdgeSource;
use crate::log::{BootSummary, Deferral, KernelLog, SuspiciousLine};
use crate::message::{Function, Message, PrintedDuration, Step, names, odd, split_head};
use records::ReportedEnds;
use records::{ClockSource, Fixup, Initcall, Probe, Shutdown};
use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

/// Largest number of devices that are remembered by the words of their drivers: a log may be made
/// of such lines. A driver speaks while it probes, not hours before.
const WORDS_KEPT: usize = 16 * 1024;

/// Approximate size of a line that is kept, beyond its text.
const LINE: usize = 256;

/// Largest size of a log's lines together. With the conclusions and the output, that is about a
/// gigabyte at most. The longest logs of real machines need a tenth.
const ROOM: usize = 80 << 20;

/// Longest time, in nanoseconds, by which stamps of two CPUs may be in the wrong order.
const BACK: u64 = 10_000_000;

/// Largest number of messages that are remembered with their moments, to find those that a log has
/// twice. The longest logs of real machines have a tenth of that.
const SEEN: usize = 1 << 18;

/// Largest number of threads that are remembered in one init function.
const AT_ONCE: usize = 1024;

/// Stamp of an init call's first line, its thread, and the line's number among those that were
/// understood.
type CallStart = (Option<Stamp>, Option<u32>, u64);

/// Largest number of threads that shut devices down at once and are kept apart.
const SHUTTING_DOWN: usize = 4096;

/// The facts of one boot.
#[derive(Clone, Debug, Default)]
pub(crate) struct Facts {
    pub initcalls: Vec<Initcall>,
    pub probes: Vec<Probe>,
    pub fixups: Vec<Fixup>,
    pub shutdowns: Vec<Shutdown>,
    /// Consumer, supplier or parent, and the source of the link.
    pub links: Vec<(String, String, EdgeSource)>,
    pub bridges: Vec<(String, u8, u8)>,
    pub drivers: HashMap<String, String>,
    /// Drivers by the words of devices, for devices of which nothing better is known.
    pub words: HashMap<String, String>,
    pub reasons: HashMap<String, Vec<String>>,
    /// Init calls that have begun, by function and module.
    begun: HashMap<(String, Option<String>), Vec<CallStart>>,
    /// Fixups that have begun, by device and function.
    fixups_begun: HashMap<(String, String), (u32, Option<Stamp>)>,
    probes_begun: HashMap<String, Option<Stamp>>,
    asynchronous: HashSet<String>,
    /// Ends of probes, by the lines within them.
    pub said: ReportedEnds,
    /// Latest cost of a device's probe, which a line of its end may follow.
    costs: HashMap<String, usize>,
    /// Messages with their moments, as far as there is room.
    seen: HashSet<MessageKey>,
    linked: HashSet<(String, String)>,
    bridged: HashSet<(String, u8, u8)>,
    /// Devices that were shut down, each with the index of its shutdown.
    down: HashMap<String, usize>,
    /// Shutdowns that have begun, and that end when the next one begins.
    going_down: Vec<usize>,
    /// True if several threads shut devices down.
    pub several_shut_down: bool,
    /// True once the machine was down.
    over: bool,
    /// True if the last line with a stamp was one of those behind the last device's shutdown.
    tail: bool,
    pub forms: HashMap<Form, u64>,
    pub prefixes: HashMap<Prefix, u64>,
    pub suspicious: Vec<SuspiciousLine>,
    pub suspicious_total: u64,
    /// Number of the first line, and number of lines.
    pub first_line: u64,
    pub lines: u64,
    /// Approximate size of the lines that were kept, including those of earlier boots.
    pub used: usize,
    pub held: usize,
    /// Number of lines that were dropped for lack of room.
    pub left_out: u64,
    pub foreign: u64,
    /// Number of lines that were there already.
    pub doubled: u64,
    /// Last stamp of a repeated part; set while lines come before the last line, so the log has a
    /// part of this boot again.
    copy: Option<u64>,
    /// Number of messages that a journal shows as arrays of bytes.
    pub blobs: u64,
    pub wrapped: u64,
    pub cut: u64,
    pub coarse: u64,
    pub unstamped: u64,
    /// Number of times that the clock went back before the shutdown.
    pub back: usize,
    /// Number of lines that were understood when the clock first went back behind an init call or a
    /// probe.
    back_at: Option<u64>,
    pub first: Option<Stamp>,
    /// Number of stamps that are the receiver's.
    pub received: u64,
    /// Number of lines that were understood.
    understood: u64,
    /// Last line, among those, that announces an init call.
    latest_begun: u64,
    /// First init call whose last line has no later stamp behind it yet, and the latest stamp of
    /// such calls.
    without_next: usize,
    last_ended: u64,
    /// Lines about the clock behind printed durations.
    pub clock_source: ClockSource,
    pub last: Option<Stamp>,
    pub kernel: Option<String>,
    pub command_line: Option<String>,
    pub machine: Option<String>,
}

impl Facts {
    /// Returns true if a line of one of the forms was read.
    pub(crate) fn any(&self) -> bool {
        !self.forms.is_empty()
    }

    /// Returns true if something took time, or was meant to: then there is something to report
    /// about this boot.
    pub(crate) fn events(&self) -> bool {
        !(self.initcalls.is_empty() && self.probes.is_empty() && self.shutdowns.is_empty())
            || self.suspicious_total > 0
    }

    /// Returns the number of init calls that have begun and not ended, and the first of them by
    /// name.
    pub(crate) fn unfinished(&self) -> (usize, Option<&str>) {
        let open = self.begun.iter().filter(|(_, calls)| !calls.is_empty());
        let first = open.clone().map(|((name, _), _)| name.as_str()).min();
        (open.map(|(_, calls)| calls.len()).sum(), first)
    }

    /// Marks the receiver's stamps as coarse: they are no order in time, and each tells only its
    /// second.
    pub(crate) fn distrust_received(&mut self) {
        let calls = self.initcalls.iter_mut().flat_map(|c| [&mut c.begun, &mut c.ended]);
        let probes = self.probes.iter_mut().flat_map(|p| [&mut p.begun, &mut p.ended]);
        let shutdowns = self.shutdowns.iter_mut().flat_map(|s| [&mut s.begun, &mut s.ended]);
        let fixups = self.fixups.iter_mut().map(|f| &mut f.ended);
        for stamp in calls.chain(probes).chain(shutdowns).chain(fixups).flatten() {
            stamp.coarse |= stamp.received;
        }
    }

    /// Records a line that looks like one of the forms.
    pub(crate) fn suspect(&mut self, line: u64, text: &str, why: &'static str) {
        self.suspicious_total += 1;
        if self.suspicious.len() < KernelLog::SUSPICIOUS_KEPT {
            let text = text.chars().take(200).collect();
            self.suspicious.push(SuspiciousLine { line, text, why });
        }
    }

    /// Counts a line, which may be several of the file, with this number.
    pub(crate) fn count_line(&mut self, number: u64, lines: u64) {
        if self.lines == 0 {
            self.first_line = number;
        }
        self.lines += lines;
    }

    /// Takes back the count of a line with these prefixes, which comes later.
    pub(crate) fn uncount_line(&mut self, lines: u64, kinds: &[Prefix]) {
        self.lines = self.lines.saturating_sub(lines);
        without(&mut self.prefixes, kinds);
    }

    /// Returns the numbers of lines and prefixes without the last line, which is `lines` lines of
    /// the file and has these prefixes.
    pub(crate) fn before_line(&self, lines: u64, kinds: &[Prefix]) -> (u64, HashMap<Prefix, u64>) {
        let mut prefixes = self.prefixes.clone();
        without(&mut prefixes, kinds);
        (self.lines.saturating_sub(lines), prefixes)
    }

    /// Splits off the facts so far: the lines from `first` on are of another boot. `lines` and
    /// `prefixes` are the numbers before it.
    pub(crate) fn split_off(
        &mut self,
        first: u64,
        lines: u64,
        prefixes: HashMap<Prefix, u64>,
    ) -> Facts {
        let mut next = Facts { first_line: first, ..Facts::default() };
        next.lines = self.lines.saturating_sub(lines);
        for (kind, count) in std::mem::replace(&mut self.prefixes, prefixes) {
            let left = count - self.prefixes.get(&kind).copied().unwrap_or_default().min(count);
            if left > 0 {
                next.prefixes.insert(kind, left);
            }
        }
        self.lines = lines;
        next
    }

    /// Returns true if this boot has a message at this moment, which only one can be.
    pub(crate) fn has(&self, moment: Option<MessageKey>) -> bool {
        moment.is_some_and(|moment| self.seen.contains(&moment))
    }

    /// Returns true if a message that was there already, with this stamp, is another event. While
    /// the clock of the stamps stands, two init functions of one name print the same lines: a call
    /// that is over begins anew, and one that is open ends. Two consoles write each line twice at
    /// once instead.
    pub(crate) fn is_another(&self, message: &Message<'_>, stamp: Option<Stamp>) -> bool {
        let stands = stamp.zip(self.last).is_some_and(|(now, last)| now.ns == last.ns);
        let open = |function: &Function<'_>| {
            let key = (function.name.to_owned(), function.module.map(str::to_owned));
            self.begun.contains_key(&key)
        };
        let fixing = |device: &str, function: &Function<'_>| {
            self.fixups_begun.contains_key(&(device.to_owned(), function.name.to_owned()))
        };
        stands
            && match message {
                Message::InitcallStart { function, .. } => !open(function),
                Message::InitcallEnd { function, .. } => open(function),
                Message::FixupStart { device, function, .. } => !fixing(device, function),
                Message::FixupEnd { device, function, .. } => fixing(device, function),
                _ => false,
            }
    }

    /// Records a message at a moment.
    pub(crate) fn remember(&mut self, moment: Option<MessageKey>) {
        if let Some(moment) = moment.filter(|_| self.seen.len() < SEEN) {
            self.seen.insert(moment);
        }
    }

    /// Forgets all messages: no further one is of this boot.
    pub(crate) fn forget(&mut self) {
        self.seen = HashSet::new();
    }

    /// Records that a line was there already, whether it was understood or not.
    pub(crate) fn again(&mut self, stamp: Option<Stamp>) {
        let back = stamp.zip(self.last).filter(|(now, last)| now.ns < last.ns);
        self.copy = back.map(|(now, _)| now.ns).or(self.copy);
    }

    /// Returns true if a line with this stamp is in a part that the log repeats, and so is of this
    /// boot. That part ends when it reaches the last line, or when its own clock goes back.
    pub(crate) fn in_copy(&mut self, stamp: Option<Stamp>) -> bool {
        let (Some(before), Some(now)) = (self.copy, stamp) else { return self.copy.is_some() };
        let ends = self.last.is_none_or(|last| now.ns >= last.ns);
        let goes_on = !ends && now.ns.saturating_add(BACK) >= before;
        self.copy = goes_on.then_some(now.ns);
        goes_on
    }

    /// Records the stamp of a line.
    pub(crate) fn see(&mut self, stamp: Option<Stamp>) {
        if let Some(now) = stamp.filter(|_| self.copy.is_none()) {
            let back = |last: Stamp| !last.coarse && now.ns.saturating_add(BACK) < last.ns;
            if self.shutdowns.is_empty() && !now.coarse && self.last.is_some_and(back) {
                self.back += 1;
                let any = !(self.initcalls.is_empty()
                    && self.probes.is_empty()
                    && self.fixups.is_empty()
                    && self.begun.is_empty());
                self.back_at = self.back_at.or(Some(self.understood).filter(|_| any));
            }
            self.first = self.first.or(stamp);
            self.last = stamp;
            if now.ns > self.last_ended {
                let ended = &mut self.initcalls[self.without_next..];
                ended.iter_mut().for_each(|call| call.next = stamp);
                self.without_next = self.initcalls.len();
            }
        }
    }

    /// Returns true if the clock went back between init calls, probes and fixups, or during one.
    pub(crate) fn went_back_between(&self) -> bool {
        let calls = self.initcalls.iter().map(|call| call.lines.1);
        let probes = self.probes.iter().map(|probe| probe.line);
        let mut all = calls.chain(probes).chain(self.fixups.iter().map(|fixup| fixup.line));
        self.back_at.is_some_and(|at| all.any(|line| line > at))
    }

    /// Returns a summary of the facts.
    pub(crate) fn summary(&self) -> BootSummary {
        let at = |stamp: Option<Stamp>| stamp.map(|s| Duration::from_nanos(s.ns));
        BootSummary {
            first_line: self.first_line,
            lines: self.lines,
            from: at(self.first),
            to: at(self.last),
            initcalls: self.initcalls.len(),
            probes: self.probes.len(),
            shutdowns: self.shutdowns.len(),
            kernel: self.kernel.clone(),
        }
    }

    /// Returns true if the machine is down by the last line.
    pub(crate) fn is_down(&self) -> bool {
        self.over || self.tail
    }

    /// Returns true if the machine was down before this message, which is then of another boot: a
    /// device is shut down once, and nothing begins after the last one.
    pub(crate) fn over_before(&self, message: &Message<'_>) -> bool {
        match *message {
            Message::Shutdown { step: Step::AsyncEnd, .. } => false,
            // The last device may be named again: its class, then its bus.
            Message::Shutdown { head, .. } => {
                let again =
                    |at: usize| !self.shutdowns[at].asynchronous && !self.going_down.contains(&at);
                self.over || self.down.get(head).is_some_and(|&at| again(at))
            }
            Message::InitcallStart { .. }
            | Message::InitcallEnd { .. }
            | Message::ProbeEnd { .. } => self.over,
            _ => false,
        }
    }

    /// Adds one message, whose text has this length. Returns false if it was none of the forms.
    pub(crate) fn add(
        &mut self,
        length: usize,
        message: &Message<'_>,
        stamp: Option<Stamp>,
        thread: Option<u32>,
    ) -> bool {
        if stamp.is_some() {
            self.tail = matches!(message, Message::ShutdownTail);
        }
        let Some(form) = message.form() else {
            if let Message::Words { head } = message {
                self.hear(head);
            }
            return false;
        };
        *self.forms.entry(form).or_default() += 1;
        if !matches!(message, Message::Known(_) | Message::ShutdownTail) {
            let used = self.used + LINE + length;
            if used + self.held > ROOM {
                self.left_out += 1;
                return true;
            }
            self.used = used;
        }
        self.understood += 1;
        match stamp {
            None => self.unstamped += 1,
            Some(s) if s.coarse => self.coarse += 1,
            Some(s) if s.received => self.received += 1,
            Some(_) => {}
        }
        match *message {
            Message::InitcallStart { function, pid } => {
                let key = (function.name.to_owned(), function.module.map(str::to_owned));
                let calls = self.begun.entry(key).or_default();
                if calls.len() < AT_ONCE {
                    calls.push((stamp, pid, self.understood));
                }
                self.latest_begun = self.understood;
            }
            Message::InitcallEnd { function, result, took } => {
                self.initcall(function, result, took, stamp, thread);
            }
            Message::ProbeEnd { device, driver, result, took, .. } => {
                self.probe(device, driver, result, took, stamp, thread);
            }
            Message::ProbeCost { driver, device, cpu, worker, took } => {
                self.know(device, driver);
                self.costs.insert(device.to_owned(), self.probes.len());
                self.probes.push(Probe {
                    device: device.to_owned(),
                    driver: Some(driver.to_owned()),
                    thread,
                    begun: None,
                    ended: stamp,
                    took: PrintedDuration { time: took, unit: Duration::from_nanos(1) },
                    result: 0,
                    cpu: Some(cpu),
                    worker: Some(worker.to_owned()),
                    asynchronous: worker.starts_with("kworker/"),
                    reason: None,
                    said: None,
                    line: self.understood,
                });
            }
            Message::ProbeStart { driver, device } => {
                self.know(device, driver);
                self.probes_begun.insert(device.to_owned(), stamp);
            }
            Message::ProbeAsync { driver, device } => {
                if let Some(driver) = driver {
                    self.know(device, driver);
                }
                self.asynchronous.insert(device.to_owned());
            }
            Message::Bound { driver, device } => self.know(device, driver),
            Message::ProbeFailed { driver, device, error } => {
                self.left(device, driver);
                self.said.failed(device, driver, error, stamp);
            }
            Message::Deferral { device, driver, supplier, reason, said_by } => {
                if let Some(driver) = driver {
                    self.know(device, driver);
                }
                if let Some(supplier) = supplier {
                    let supplier = names::of_node(supplier);
                    self.link(device, &supplier, EdgeSource::Deferral);
                }
                let reasons = self.reasons.entry(device.to_owned()).or_default();
                if reasons.len() < Deferral::REASONS_KEPT && !reasons.iter().any(|r| r == reason) {
                    reasons.push(reason.to_owned());
                }
                self.said.put_off(device, driver, said_by, stamp);
            }
            Message::Link { consumer, supplier, orders } => {
                if orders {
                    self.link(consumer, supplier, EdgeSource::LinkLine);
                }
            }
            Message::Bridge { device, first, last } => {
                let bridge = (device.to_owned(), first, last);
                if self.bridged.insert(bridge.clone()) {
                    self.bridges.push(bridge);
                }
            }
            Message::FixupStart { device, function, pid } => {
                let key = (device.to_owned(), function.name.to_owned());
                self.fixups_begun.insert(key, (pid, stamp));
            }
            Message::FixupEnd { device, function, took } => {
                let key = (device.to_owned(), function.name.to_owned());
                let (pid, begun) = self.fixups_begun.remove(&key).unzip();
                let (thread, begun) = (pid.or(thread), begun.flatten());
                let (device, function) = key;
                // Hundreds of fixups do nothing at all.
                if !took.time.is_zero() {
                    let (ended, line) = (stamp, self.understood);
                    let fixup = Fixup { device, function, thread, begun, ended, took, line };
                    self.fixups.push(fixup);
                }
            }
            Message::PmStart { device, parent } => {
                if parent != "none" {
                    self.link(device, parent, EdgeSource::ParentLine);
                }
            }
            Message::Shutdown { head, step } => self.shutdown(head, step, stamp, thread),
            Message::ShutdownTail => {
                self.end_shutdowns(stamp, None);
                self.over |= !self.shutdowns.is_empty();
            }
            Message::ClockSource { ticks } => {
                self.clock_source.choose(ticks, self.understood, stamp);
            }
            Message::Version(version) => self.kernel = Some(version.to_owned()),
            Message::CommandLine(text) => self.command_line = Some(text.to_owned()),
            Message::Machine(name) => self.machine = Some(name.to_owned()),
            Message::Known(_) | Message::Words { .. } | Message::Suspicious(_) | Message::Other => {
            }
        }
        true
    }

    fn initcall(
        &mut self,
        function: Function<'_>,
        result: i64,
        took: PrintedDuration,
        ended: Option<Stamp>,
        thread: Option<u32>,
    ) {
        let key = (function.name.to_owned(), function.module.map(str::to_owned));
        let calls = self.begun.get_mut(&key).filter(|calls| !calls.is_empty());
        let begun = calls.map(|calls| {
            // If several threads are in one function, the thread that logs decides, otherwise the
            // time.
            let by_thread = calls.iter().position(|(_, pid, _)| pid.is_some() && *pid == thread);
            let by_time = ended.map(|e| e.ns.saturating_sub(nanos(took.time)));
            let nearest = || {
                let distance =
                    |c: &CallStart| c.0.zip(by_time).map_or(u64::MAX, |(s, t)| s.ns.abs_diff(t));
                (0..calls.len()).min_by_key(|&i| distance(&calls[i])).unwrap_or_default()
            };
            let at = by_thread.unwrap_or_else(nearest);
            calls.remove(at)
        });
        if self.begun.get(&key).is_some_and(Vec::is_empty) {
            self.begun.remove(&key);
        }
        let (begun, pid, first) =
            begun.map_or((None, None, None), |(stamp, pid, line)| (stamp, pid, Some(line)));
        let (function, module) = key;
        let thread = pid.or(thread);
        let lines = (first, self.understood);
        let overtaken = first.is_some_and(|first| first < self.latest_begun);
        self.last_ended = self.last_ended.max(ended.map_or(0, |ended| ended.ns));
        self.initcalls.push(Initcall {
            function,
            module,
            thread,
            begun,
            ended,
            next: None,
            took,
            result,
            lines,
            overtaken,
        });
    }

    fn probe(
        &mut self,
        device: &str,
        driver: Option<&str>,
        result: i64,
        took: PrintedDuration,
        ended: Option<Stamp>,
        thread: Option<u32>,
    ) {
        let said = self.said.end(device, driver, result, took, ended, self.kernel.as_deref());
        let deferred =
            result.unsigned_abs() == 517 || said.as_ref().is_some_and(|said| said.error == -517);
        let words = self.words.get(device).filter(|d| !names::is_bus(d));
        let said_driver = said.as_ref().and_then(|said| said.driver.as_deref());
        let driver = driver.or(said_driver).or(self.drivers.get(device).map(String::as_str));
        let driver = driver.map(str::to_owned).or_else(|| words.cloned());
        let failed = said.is_some();
        let mut probe = Probe {
            device: device.to_owned(),
            driver: driver.clone(),
            thread,
            begun: self.probes_begun.remove(device).flatten(),
            ended,
            took,
            result,
            cpu: None,
            worker: None,
            asynchronous: self.asynchronous.remove(device),
            reason: self
                .reasons
                .get(device)
                .filter(|_| deferred)
                .and_then(|reasons| reasons.last().cloned()),
            said,
            line: self.understood,
        };
        // The cost is printed inside the probe: one probe, two lines.
        let cost = self.costs.remove(device).filter(|&at| {
            let cost = &self.probes[at];
            match (cost.ended, ended) {
                (Some(c), Some(e)) => c.ns.saturating_add(nanos(took.time)) >= e.ns,
                _ => at + 1 == self.probes.len(),
            }
        });
        if let Some(at) = cost {
            let cost = &self.probes[at];
            probe.cpu = cost.cpu;
            probe.worker = cost.worker.clone();
            probe.asynchronous |= cost.asynchronous;
            self.probes[at] = probe;
        } else {
            self.probes.push(probe);
        }
        match driver {
            // Kernels before 5.14 print 1 for a device that was bound.
            Some(driver) if matches!(result, 0 | 1) && !failed => self.know(device, &driver),
            Some(driver) => self.left(device, &driver),
            None => {}
        }
    }

    fn shutdown(&mut self, head: &str, step: Step, stamp: Option<Stamp>, thread: Option<u32>) {
        let begun = self.down.get(head).copied();
        match step {
            Step::AsyncEnd => {
                let begun = begun.and_then(|at| self.shutdowns.get_mut(at));
                if let Some(shutdown) = begun.filter(|s| s.asynchronous && s.ended.is_none()) {
                    shutdown.ended = stamp;
                }
                return;
            }
            // `shutdown_pre` of the same device: one shutdown, two lines.
            Step::Shutdown if begun.is_some_and(|at| self.going_down.contains(&at)) => return,
            _ => {}
        }
        self.end_shutdowns(stamp, thread);
        let first = self.shutdowns.first().and_then(|first| first.thread);
        self.several_shut_down |= thread.is_some() && first.is_some() && first != thread;
        let (at, asynchronous) = (self.shutdowns.len(), step == Step::AsyncStart);
        if !asynchronous && self.going_down.len() < SHUTTING_DOWN {
            self.going_down.push(at);
        }
        self.down.insert(head.to_owned(), at);
        self.shutdowns.push(Shutdown {
            head: head.to_owned(),
            thread,
            begun: stamp,
            ended: None,
            asynchronous,
        });
    }

    /// Ends shutdowns at the beginning of something that cannot begin before: those of `thread` if
    /// both lines name their thread, otherwise all.
    fn end_shutdowns(&mut self, stamp: Option<Stamp>, thread: Option<u32>) {
        let Facts { going_down, shutdowns, .. } = self;
        going_down.retain(|&at| {
            let open = &mut shutdowns[at];
            let other = thread.zip(open.thread).is_some_and(|(one, other)| one != other);
            if !other {
                open.ended = stamp;
            }
            other
        });
    }

    fn link(&mut self, consumer: &str, supplier: &str, source: EdgeSource) {
        let key = (consumer.to_owned(), supplier.to_owned());
        if self.linked.insert(key.clone()) {
            self.links.push((key.0, key.1, source));
        }
    }

    fn know(&mut self, device: &str, driver: &str) {
        if self.drivers.get(device).is_none_or(|known| known != driver) {
            self.drivers.insert(device.to_owned(), driver.to_owned());
        }
    }

    /// Records that a driver was tried on a device and isn't bound to it.
    fn left(&mut self, device: &str, driver: &str) {
        if self.drivers.get(device).is_some_and(|known| known == driver) {
            self.drivers.remove(device);
        }
    }

    /// Records the words of a device: its driver or its bus stands before its name.
    fn hear(&mut self, head: &str) {
        let Some((driver, device)) = split_head(head) else { return };
        let long = driver.len().max(device.len()) > 64;
        if long || odd(head) || driver.contains(' ') || driver.ends_with([':', ']', ',']) {
            return;
        }
        match self.words.get_mut(device) {
            Some(known) if known == driver => {}
            Some(known) => driver.clone_into(known),
            None => {
                if self.words.len() >= WORDS_KEPT {
                    self.words.clear();
                }
                self.words.insert(device.to_owned(), driver.to_owned());
            }
        }
    }
}

fn without(prefixes: &mut HashMap<Prefix, u64>, kinds: &[Prefix]) {
    for kind in kinds {
        if let Some(count) = prefixes.get_mut(kind) {
            *count = count.saturating_sub(1);
        }
    }
    prefixes.retain(|_, count| *count > 0);
}

/// A message and when it was logged, as one number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct MessageKey(u64);

impl MessageKey {
    /// Returns the key of a message; `None` if the stamp doesn't distinguish moments.
    pub(crate) fn of(text: &str, stamp: Option<Stamp>) -> Option<MessageKey> {
        let stamp = stamp.filter(|s| !s.coarse && !s.received && s.unit <= MICRO)?;
        let mut hasher = DefaultHasher::new();
        (stamp.ns, text).hash(&mut hasher);
        Some(MessageKey(hasher.finish()))
    }
}

fn nanos(d: Duration) -> u64 {
    u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)
}
