//! What a log says of a boot.

use crate::form::{Form, Prefix};
use crate::graph::{DeviceGraph, EdgeSource};
use crate::lines::encoding::Unread;
use corewise_timeline::{Driver, Length, SpanId, Timeline};
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
    /// ([`Reader::finish`](crate::Reader::finish)): the first
    /// [`BOOTS_KEPT`](KernelLog::BOOTS_KEPT) of them.
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

    /// Where the edges come from, each source once.
    pub fn edges_from(&self) -> Vec<EdgeSource> {
        let mut sources: Vec<_> = self.graph.edges().iter().map(|e| e.source).collect();
        sources.sort_unstable();
        sources.dedup();
        sources
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
    /// What ran inside it, by device, the longest first. Where they ran side by side, these add up
    /// to more than the total.
    pub shares: Vec<SplitShare>,
    /// The time in which none of them ran.
    pub rest: Length,
}

/// What ran for one device inside a span.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SplitShare {
    /// The device.
    pub device: String,
    /// How often something ran for it.
    pub times: usize,
    /// How long all of that took together.
    pub took: Length,
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
