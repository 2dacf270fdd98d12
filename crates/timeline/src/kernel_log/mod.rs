//! Reads kernel logs: what booting and shutting down cost, device by device.
//!
//! A [`Reader`] takes the bytes of a log as they come, in any pieces, and gives a [`KernelLog`].
//! It knows the lines that a kernel prints with `initcall_debug`, those that its driver core prints
//! with dynamic debugging, and those of a few patches ([`Form`]), behind whatever the program that
//! saved the log put before them ([`Prefix`]). Any excerpt will do: nothing has to begin at a
//! boot, or end with one. A line that looks like one of the forms and is none is kept with the number of
//! its line ([`SuspiciousLine`]); nothing is dropped silently.
//!
//! ```
//! use corewise_timeline::kernel_log::Reader;
//!
//! let mut reader = Reader::new();
//! reader.feed(b"[    5.140900][  T207] calling  nvme_init+0x0/0xff0 [nvme] @ 207\n");
//! reader.feed(b"[    5.240900][  T207] probe of 0000:01:00.0 returned 0 after 90000 usecs\n[   ");
//! reader.feed(b" 5.240950][  T207] initcall nvme_init+0x0/0xff0 [nvme] returned 0 after 100040 usecs\n");
//! let log = reader.finish();
//! assert_eq!(log.boot.spans().len(), 2);
//! assert_eq!(log.boot.serial_sum(), std::time::Duration::from_micros(100_040));
//! ```
//!
//! # What a log says, and what it does not
//!
//! * **Init calls** have two lines, which are paired by function, module and, where the log names
//!   it, thread. The duration is the printed one. A kernel begins with a clock that ticks, and
//!   prints durations in whole ticks (0, 4000, 8000 µs) until it takes a better one; then the
//!   stamps of the two lines bound them. Without its first line a call took at least what is
//!   printed, as all threads' calls share one clock since 4.17. Older kernels print units of 1.024
//!   µs: where one pair of lines, one probe inside or two ticks show that, the durations are
//!   corrected; where nothing shows it either way, they are bounded by both.
//! * **Probes** have one line, at their end. The start is computed ([`Certainty::Inferred`]); the
//!   driver comes from the line since 7.3, before from others. A kernel prints a negative result
//!   when it did not get as far as calling the driver, and a positive one when the driver itself
//!   said no: -517 and 517 are both deferrals. Kernels before 5.14 print 1 for a device that was
//!   bound, and 0 for one that was not: a line within the probe says why (`failed with error`,
//!   `requests probe deferral`), or nobody knows. Such a line without the probe's last one is named
//!   in a note.
//! * **What is nested in what** is proven by threads, where lines name them
//!   (`CONFIG_PRINTK_CALLER`). Else it is found by time: a probe within the time of another one, or
//!   of an init call, seems to have run inside it, unless something says that they ran side by side
//!   ([`nesting`]). It may have run on another thread, so what follows from that is marked
//!   ([`may_be_nested`](crate::Span::may_be_nested)).
//! * **An order in time** needs stamps below the second that are the kernel's own. Without one
//!   ([`Unplaced`](crate::Unplaced)) only what the lines themselves print is known. A journal's own
//!   stamps tell when it got a line, and count only where init calls show that they keep up.
//! * **Shutdowns** have one line, at their beginning. The end is the beginning of the next one of
//!   the same thread ([`Certainty::UpperBound`]). Where lines name no thread, a kernel that shuts
//!   down asynchronously makes that wrong, and the log does not tell; notes say so.
//! * **A line that is there twice**, with the same exact stamp and the same text, is one event.
//! * **The graph** comes from device links, deferrals, parents that lines name, PCI bridges and
//!   names that are paths ([`EdgeSource`]). More can be [applied](KernelLog::apply): that of a sysfs
//!   tree ([`crate::sysfs`]), or one that was written down ([`DeviceGraph::from_text`]).
//!
//! # Memory
//!
//! What is kept grows with the lines that were understood, not with the log: some 300 bytes each,
//! and four times that at the end. It is bounded: beyond some 300 000 lines that are understood,
//! which no machine prints, the others are counted, and a note says so. Some 260 000 messages are
//! remembered with their moments, to tell what is there twice, and a megabyte of a dump whose parts
//! have to be put in order. A compressed log that unpacks to far more than logs do is given up.
//!
//! [`Certainty::Inferred`]: crate::Certainty::Inferred
//! [`Certainty::UpperBound`]: crate::Certainty::UpperBound
//! [`nesting`]: crate::Span::nested_in

macro_rules! named {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum $name {
            $($(#[$variant_doc])* #[doc = concat!("`", $text, "`")] $variant,)*
        }

        impl $name {
            /// All of them.
            pub const ALL: [$name; [$($text),*].len()] = [$($name::$variant),*];

            /// How it looks.
            pub fn as_str(self) -> &'static str {
                match self {
                    $($name::$variant => $text,)*
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}

mod assemble;
mod carrier;
mod clock;
mod clock_source;
mod collector;
mod deferral;
mod encoding;
mod export;
mod facts;
mod lines;
mod mail;
mod message;
#[cfg(test)]
mod message_tests;
mod names;
mod nesting;
mod notes;
mod plain;
mod policy;
mod prefix;
mod reader;
mod records;
mod said_ends;
mod sequence;
mod structured;
mod tasks;

pub use encoding::Unread;
pub use reader::Reader;

use crate::driver::{self, Driver};
use crate::graph::{DeviceGraph, EdgeSource};
use crate::length::Length;
use crate::model::{SpanId, Timeline};
use std::collections::BTreeMap;
use std::time::Duration;

/// What one log says about one boot of one machine, up to its end.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct KernelLog {
    /// Init calls, probes and PCI fixups. Times are those of the log's clock: with `printk` stamps,
    /// since the boot.
    pub boot: Timeline,
    /// Shutdowns of devices, by the same clock.
    pub shutdown: Timeline,
    /// The driver of each device that has one by this log. Where no line names it, it is the module
    /// (or the part of the kernel) whose init call probed the device, or
    /// [seems to have](Driver::is_inferred).
    pub drivers: BTreeMap<String, Driver>,
    /// The devices whose probes were put off, those that cost most first.
    pub deferrals: Vec<Deferral>,
    /// Where the time of the init call went that waits for deferred probes; None: it is not there.
    pub deferred_probe: Option<Split>,
    /// Which device waits for which, as far as this log tells, and what was applied to it.
    pub graph: DeviceGraph,
    /// The first [`SUSPICIOUS_KEPT`](KernelLog::SUSPICIOUS_KEPT) lines that look like one of the
    /// forms and are none.
    pub suspicious: Vec<SuspiciousLine>,
    /// How many of those there were.
    pub suspicious_total: u64,
    /// How many lines were of which form, in the order of [`Form`].
    pub forms: Vec<(Form, u64)>,
    /// How many lines had which prefix, in the order of [`Prefix`].
    pub prefixes: Vec<(Prefix, u64)>,
    /// Notes on the log as such, a sentence each. Those on the numbers stand with them, in the
    /// [notes](Timeline::notes) of `boot` and `shutdown`.
    pub notes: Vec<String>,
    /// Lines in all, of this boot.
    pub lines: u64,
    /// The boots that the log holds, where there are several, and one of them was asked for
    /// ([`Reader::finish`]): the first [`BOOTS_KEPT`](KernelLog::BOOTS_KEPT) of them.
    pub boots: Vec<BootSummary>,
    /// The form that the log has, and that is not read: then there is nothing in all of this.
    pub unread: Option<Unread>,
    /// The kernel's version.
    pub kernel: Option<String>,
    /// The kernel's command line.
    pub command_line: Option<String>,
    /// The machine, as the kernel names it.
    pub machine: Option<String>,
}

impl KernelLog {
    /// How many suspicious lines are kept with their text.
    pub const SUSPICIOUS_KEPT: usize = 1000;

    /// How many boots of a log are listed.
    pub const BOOTS_KEPT: usize = 1000;

    /// Adds what somebody else knows of the graph: the edges that are new go into both timelines,
    /// the drivers to the devices that had none, or only a [likely](Driver::is_inferred) one.
    pub fn apply(&mut self, graph: &DeviceGraph) {
        self.graph.merge(graph);
        for (device, name) in &graph.drivers {
            Driver::from(name).learn(device, &mut self.drivers);
        }
        assemble::join(&mut self.boot, &self.graph, false);
        assemble::join(&mut self.shutdown, &self.graph, true);
        assemble::set_drivers(&mut self.boot, &self.drivers);
        assemble::set_drivers(&mut self.shutdown, &self.drivers);
        for deferral in &mut self.deferrals {
            driver::set(&mut deferral.driver, &deferral.device, &self.drivers);
        }
    }

    /// Where the edges come from, each source once.
    pub fn edges_from(&self) -> Vec<EdgeSource> {
        let mut sources: Vec<_> = self.graph.edges().iter().map(|e| e.source).collect();
        sources.sort_unstable();
        sources.dedup();
        sources
    }

    /// True when no line of any form was found.
    pub fn is_empty(&self) -> bool {
        self.boot.is_empty() && self.shutdown.is_empty()
    }
}

/// One of the boots that a log holds, in short.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct BootSummary {
    /// The number of its first line; the first of the log is 1.
    pub first_line: u64,
    /// How many lines it has.
    pub lines: u64,
    /// Its first stamp, by the log's clock.
    pub from: Option<Duration>,
    /// Its last one.
    pub to: Option<Duration>,
    /// Init calls that ended.
    pub initcalls: usize,
    /// Probes that ended.
    pub probes: usize,
    /// Devices that were shut down.
    pub shutdowns: usize,
    /// The kernel's version.
    pub kernel: Option<String>,
}

/// One device's probes that were put off.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Deferral {
    /// The device.
    pub device: String,
    /// Its driver, where the log tells.
    pub driver: Option<Driver>,
    /// How many probes were put off.
    pub attempts: usize,
    /// How many of them the driver itself put off (517). The others (-517) did not get to it: the
    /// driver core knew that a supplier was missing.
    pub by_driver: usize,
    /// When the first of them ended, by the log's clock. None: nobody knows.
    pub first: Option<Duration>,
    /// When the last of them ended.
    pub last: Option<Duration>,
    /// What they took together: time for nothing.
    pub total: Length,
    /// Whether it was bound after all.
    pub bound: Bound,
    /// What it waited for, as the log has it, each reason once and at most
    /// [`REASONS_KEPT`](Deferral::REASONS_KEPT) of them.
    pub reasons: Vec<String>,
}

impl Deferral {
    /// How many different reasons are kept for a device.
    pub const REASONS_KEPT: usize = 16;
}

/// Whether a device that was put off was bound after all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Bound {
    /// Not within this log.
    #[default]
    Never,
    /// At that moment of the log's clock.
    At(Duration),
    /// By a later line than the last try, but nobody knows when.
    Somewhen,
}

/// Where the time of one span went.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Split {
    /// The span, of the boot.
    pub span: SpanId,
    /// How long it took.
    pub total: Length,
    /// What ran inside it, by device, the longest first: how often, and how long together. Where
    /// they ran side by side, these add up to more than the total.
    pub shares: Vec<(String, usize, Length)>,
    /// The time in which none of them ran.
    pub rest: Length,
}

/// A line that looks like one of the forms, and is none.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SuspiciousLine {
    /// Its number in the log; the first is 1.
    pub line: u64,
    /// Its first 200 characters.
    pub text: String,
    /// Why it is suspicious.
    pub why: &'static str,
}

named! {
    /// The forms of lines that are understood.
    Form {
        /// An init call begins.
        InitcallStart = "calling FUNCTION @ PID",
        /// An init call ends; older kernels print `msecs`.
        InitcallEnd = "initcall FUNCTION returned N after N usecs",
        /// An init call left something behind, such as a lock.
        InitcallWarning = "initcall FUNCTION returned with WARNING",
        /// An init call that the command line forbids.
        Blacklisted = "initcall FUNCTION blacklisted",
        /// One level of init calls begins.
        InitcallLevel = "entering initcall level: LEVEL",
        /// A probe ends, as kernels before 7.3 print it.
        ProbeEnd = "probe of DEVICE returned N after N usecs",
        /// A probe ends, with the driver's name.
        ProbeEndDriver = "probe of DEVICE with driver DRIVER returned N after N usecs",
        /// A probe ends, as a patch of 2024 prints it.
        ProbeEndPatched = "probe FUNCTION in driver DRIVER for device DEVICE returned N after N usecs",
        /// A probe of the platform bus begins, as the same patch prints it.
        ProbeCalled = "platform probe FUNCTION is being called",
        /// What a probe cost, and where it ran.
        ProbeCost = "DRIVER DEVICE: CPU: N, COMM: WORKER, probe cost: N ns",
        /// A driver is tried on a device.
        ProbeStart = "probing driver DRIVER with device",
        /// A driver is tried on a device, asynchronously.
        ProbeAsync = "probing driver DRIVER asynchronously",
        /// A driver took a device.
        Bound = "driver_bound: bound to device",
        /// A probe failed.
        ProbeFailed = "probe with driver DRIVER failed with error N",
        /// Why a probe was put off.
        Deferral = "error -EPROBE_DEFER: REASON",
        /// A device goes on the list of deferred ones, or leaves it.
        DeferredList = "Added to deferred list",
        /// A device waits for another one.
        Link = "Linked as a consumer to DEVICE",
        /// What became of other links.
        LinkNote = "Fixed dependency cycle(s) with DEVICE",
        /// A device is registered.
        DeviceAdd = "device: 'DEVICE': device_add",
        /// Other words of the driver core.
        BusDebug = "bus: 'BUS': FUNCTION: matched device",
        /// The buses behind a PCI bridge.
        Bridge = "PCI bridge to [bus N-N]",
        /// A fixup of a PCI device begins. It is no init call.
        FixupStart = "DEVICE: calling FUNCTION @ PID",
        /// A fixup of a PCI device ends.
        FixupEnd = "DEVICE: FUNCTION took N usecs",
        /// A callback of suspend or resume begins; it names the parent.
        PmStart = "PM: calling FUNCTION @ PID, parent: DEVICE",
        /// A callback of suspend or resume ends.
        PmEnd = "PM: FUNCTION returned N after N usecs",
        /// A device is shut down.
        Shutdown = "DRIVER DEVICE: shutdown",
        /// The devices are down.
        ShutdownTail = "reboot: ACTION",
        /// The first line of a boot.
        Version = "Linux version VERSION",
        /// The clock behind printed durations is another one from here on.
        ClockSource = "clocksource: Switched to clocksource NAME",
        /// Command line, machine, and the ends of the boot's phases.
        BootMark = "Kernel command line: WORDS, DMI: MACHINE, Run PROGRAM as init process",
    }
}

named! {
    /// What stands before messages.
    Prefix {
        /// The kernel's stamp.
        Printk = "[    1.234567]",
        /// The thread or CPU that logged (`CONFIG_PRINTK_CALLER`).
        CallerId = "[ T8227]",
        /// The level, as a number.
        Level = "<6>",
        /// `dmesg -x`.
        Facility = "kern  :info  :",
        /// `dmesg -T`: whole seconds.
        DmesgCtime = "[Wed Mar  4 13:21:03 2026]",
        /// `dmesg --reltime` or `--show-delta`: differences.
        DmesgDelta = "[  +0.000013]",
        /// `dmesg -H`, where a minute begins: only the minute.
        DmesgMinute = "[Nov23 00:06]",
        /// `dmesg --time-format iso`, `journalctl -o short-iso`.
        Iso = "2026-03-04T13:21:03,123456+00:00",
        /// `dmesg --json`.
        DmesgJson = "{\"pri\": 6, \"time\": 1.234567, \"msg\": \"",
        /// The device `/dev/kmsg`.
        Kmsg = "6,339,5140900,-;",
        /// `journalctl`, and the files of syslog: whole seconds.
        Journal = "mar 06 13:18:23 host kernel:",
        /// `journalctl -o short-monotonic`.
        JournalMonotonic = "[    5.140900] host kernel:",
        /// `journalctl -o json`.
        JournalJson = "{\"MESSAGE\": \"",
        /// `journalctl -o export`, and `-o verbose`.
        JournalExport = "MESSAGE=",
        /// An object of JSON in each line, with the console's line in one of its fields.
        JsonLine = "{\"log\": \"",
        /// Android: the CPU, and the task that logs.
        AndroidTask = "(0)[1:swapper/0]",
        /// `adb logcat -b kernel`.
        Logcat = "01-01 00:00:05.140 0 0 I :",
        /// The logs of LAVA.
        Lava = "- {\"lvl\": \"target\", \"msg\": \"",
        /// What a terminal program, or `ts`, puts before each line.
        Clock = "13:18:23.123",
        /// A stamp that lost its brackets.
        Bare = "172.609825",
        /// Anything else, which is known by the message behind it. Its times are not read.
        Carrier = "another prefix",
        /// A mail's quotation.
        MailQuote = "> ",
        /// Not before but behind the line: CR and LF, from a serial console.
        CrLf = "CR LF",
    }
}
