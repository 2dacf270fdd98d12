//! The result of reading a log: one boot.

use crate::form::{Form, Prefix};
use crate::graph::{DeviceGraph, EdgeSource};
use crate::lines::encoding::Unread;
use corewise_timeline::{Driver, Length, SpanId, Timeline};
use std::collections::BTreeMap;
use std::time::Duration;

/// The contents of a log for one boot of one machine, up to its end.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct KernelLog {
    /// Init calls, probes and PCI fixups. Times are those of the log's clock: with `printk` stamps,
    /// since the boot.
    pub boot: Timeline,
    /// Shutdowns of devices, by the same clock.
    pub shutdown: Timeline,
    /// Driver of each device that has one by this log. If no line names the driver, the entry is
    /// the module (or the part of the kernel) whose init call probed the device, or [seems to
    /// have](Driver::is_inferred).
    pub drivers: BTreeMap<String, Driver>,
    /// Devices whose probes were deferred, the most expensive first.
    pub deferrals: Vec<Deferral>,
    /// Time of the init call that waits for deferred probes; `None` if the log lacks that call.
    pub deferred_probe: Option<Split>,
    /// Dependencies between devices, from this log and from the graphs that were applied.
    pub graph: DeviceGraph,
    /// First [`SUSPICIOUS_KEPT`](KernelLog::SUSPICIOUS_KEPT) lines that only look like one of the
    /// forms.
    pub suspicious: Vec<SuspiciousLine>,
    /// Number of such lines.
    pub suspicious_total: u64,
    /// Number of lines of each form, in the order of [`Form`].
    pub forms: Vec<(Form, u64)>,
    /// Number of lines with each prefix, in the order of [`Prefix`].
    pub prefixes: Vec<(Prefix, u64)>,
    /// Notes on the whole log, a sentence each. Notes on the numbers are in the
    /// [notes](Timeline::notes) of `boot` and `shutdown`.
    pub notes: Vec<String>,
    /// Number of lines of this boot.
    pub lines: u64,
    /// Boots of the log, if it holds several and one of them was asked for
    /// ([`Reader::finish`](crate::Reader::finish)): the first [`BOOTS_KEPT`](KernelLog::BOOTS_KEPT)
    /// of them.
    pub boots: Vec<BootSummary>,
    /// Format of a log that can't be read. All other fields are empty then.
    pub unread: Option<Unread>,
    /// Version of the kernel.
    pub kernel: Option<String>,
    /// Command line of the kernel.
    pub command_line: Option<String>,
    /// Name of the machine in the kernel's log.
    pub machine: Option<String>,
}

impl KernelLog {
    /// Number of suspicious lines that are kept with their text.
    pub const SUSPICIOUS_KEPT: usize = 1000;

    /// Number of boots of a log that are listed.
    pub const BOOTS_KEPT: usize = 1000;

    /// Returns the sources of the edges, each once.
    pub fn edges_from(&self) -> Vec<EdgeSource> {
        let mut sources: Vec<_> = self.graph.edges().iter().map(|e| e.source).collect();
        sources.sort_unstable();
        sources.dedup();
        sources
    }
}

/// A summary of one of the boots in a log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct BootSummary {
    /// Number of its first line; the first line of the log is 1.
    pub first_line: u64,
    /// Number of its lines.
    pub lines: u64,
    /// First stamp, by the log's clock.
    pub from: Option<Duration>,
    /// Last stamp.
    pub to: Option<Duration>,
    /// Number of init calls that ended.
    pub initcalls: usize,
    /// Number of probes that ended.
    pub probes: usize,
    /// Number of devices that were shut down.
    pub shutdowns: usize,
    /// Version of the kernel.
    pub kernel: Option<String>,
}

/// The deferred probes of one device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Deferral {
    /// Name of the device.
    pub device: String,
    /// Driver of the device, if the log names it.
    pub driver: Option<Driver>,
    /// Number of deferred probes.
    pub attempts: usize,
    /// Number of probes that the driver itself deferred (517). The others (-517) did not reach the
    /// driver: the driver core knew that a supplier was missing.
    pub by_driver: usize,
    /// End of the first of them, by the log's clock; `None` if unknown.
    pub first: Option<Duration>,
    /// End of the last of them.
    pub last: Option<Duration>,
    /// Time of all of them together, which was in vain.
    pub total: Length,
    /// Final state of the device.
    pub bound: Bound,
    /// Reasons in the log, each once and at most [`REASONS_KEPT`](Deferral::REASONS_KEPT) of them.
    pub reasons: Vec<String>,
}

impl Deferral {
    /// Largest number of different reasons that are kept for a device.
    pub const REASONS_KEPT: usize = 16;
}

/// The final state of a device whose probe was deferred.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Bound {
    /// Never bound within this log.
    #[default]
    Never,
    /// Bound at that moment of the log's clock.
    At(Duration),
    /// Bound by a line after the last try, at an unknown time.
    Somewhen,
}

/// The time of one span, split by device.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Split {
    /// Span of the boot.
    pub span: SpanId,
    /// Length of the span.
    pub total: Length,
    /// Time inside the span for each device, the longest first. If probes ran in parallel, these
    /// add up to more than the total.
    pub shares: Vec<SplitShare>,
    /// Time in which none of them ran.
    pub rest: Length,
}

/// Time for one device inside a span.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SplitShare {
    /// Name of the device.
    pub device: String,
    /// Number of spans of the device.
    pub times: usize,
    /// Length of all of them together.
    pub took: Length,
}

/// A line that looks like one of the forms, and is none.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SuspiciousLine {
    /// Number of the line in the log; the first is 1.
    pub line: u64,
    /// First 200 characters of the line.
    pub text: String,
    /// Reason for the suspicion.
    pub why: &'static str,
}
