//! Records of one init call, probe, PCI fixup or shutdown, from its lines.
//!
//! Kernels before 5.14 print 0 at the end of each probe that did not bind its device, whatever the
//! reason. There the lines within a probe tell its outcome.

use std::collections::HashMap;

use crate::form::Stamp;
use crate::message::{DeferralSource, PrintedDuration, version};

/// An init call whose end was seen.
#[derive(Clone, Debug)]
pub(crate) struct Initcall {
    pub function: String,
    pub module: Option<String>,
    pub thread: Option<u32>,
    pub begun: Option<Stamp>,
    pub ended: Option<Stamp>,
    /// First stamp behind its last line that is later than that line's. If a clock stands, that
    /// line may have been written as late as this.
    pub next: Option<Stamp>,
    pub took: PrintedDuration,
    pub result: i64,
    /// Numbers of its first and last line among those that were understood: the order of lines is
    /// known without any stamp.
    pub lines: (Option<u64>, u64),
    /// True if another call began meanwhile. Since 4.17 all threads' init calls share one clock,
    /// which that call has set: the printed time is counted from there.
    pub overtaken: bool,
}

/// A probe whose end was seen, or whose cost was printed.
#[derive(Clone, Debug)]
pub(crate) struct Probe {
    pub device: String,
    pub driver: Option<String>,
    pub thread: Option<u32>,
    pub begun: Option<Stamp>,
    pub ended: Option<Stamp>,
    pub took: PrintedDuration,
    pub result: i64,
    pub cpu: Option<u32>,
    pub worker: Option<String>,
    pub asynchronous: bool,
    pub reason: Option<String>,
    /// Outcome from a line within the probe, if its last line doesn't tell it.
    pub said: Option<ReportedEnd>,
    /// Number of its last line among those that were understood.
    pub line: u64,
}

/// A PCI fixup that took time.
#[derive(Clone, Debug)]
pub(crate) struct Fixup {
    pub device: String,
    pub function: String,
    pub thread: Option<u32>,
    pub begun: Option<Stamp>,
    pub ended: Option<Stamp>,
    pub took: PrintedDuration,
    /// Number of its last line among those that were understood.
    pub line: u64,
}

/// A device's shutdown.
#[derive(Clone, Debug)]
pub(crate) struct Shutdown {
    /// Driver and device.
    pub head: String,
    pub thread: Option<u32>,
    pub begun: Option<Stamp>,
    /// Beginning of the next shutdown of its thread, or of what followed the last one.
    pub ended: Option<Stamp>,
    /// True if the log says where it began and where it was waited for.
    pub asynchronous: bool,
}

impl Shutdown {
    /// Returns true if the line behind it has an earlier stamp: the clock was set back.
    pub(crate) fn goes_back(&self) -> bool {
        self.begun.zip(self.ended).is_some_and(|(begun, ended)| ended.ns < begun.ns)
    }
}

/// Lines that name the clock, each as a number among those that were understood.
#[derive(Clone, Debug, Default)]
pub(crate) struct ClockSource {
    /// First line from which on the clock no longer ticks.
    pub switched: Option<u64>,
    /// Lines between which the clock ticked, as the kernel said; without a second one, up to the
    /// last line. A kernel returns to such a clock if the better one is wrong.
    pub ticks_again: Option<(u64, Option<u64>)>,
    /// Lines at which it stopped ticking, the first time and the last, with their stamps.
    pub ceased: [Option<(u64, Option<Stamp>)>; 2],
}

impl ClockSource {
    /// Records that the kernel chooses a clock at this line, which ticks or doesn't.
    pub(crate) fn choose(&mut self, ticks: bool, line: u64, stamp: Option<Stamp>) {
        match (&mut self.ticks_again, ticks) {
            (None, true) => self.ticks_again = Some((line, None)),
            (Some((_, end)), true) => *end = None,
            (Some((_, end)), false) if end.is_none() => {
                *end = Some(line);
                self.ceased[1] = Some((line, stamp));
            }
            (Some(_), false) => {}
            (None, false) => {}
        }
        if !ticks && self.switched.is_none() {
            self.switched = Some(line);
            self.ceased[0] = Some((line, stamp));
        }
    }
}

/// The end of a probe, by a line within it.
#[derive(Clone, Debug)]
pub(crate) struct ReportedEnd {
    pub driver: Option<String>,
    /// Error, a negative number; -517 is a deferral.
    pub error: i64,
    /// True if the line is the driver core's, which knows what the probe returned.
    pub by_core: bool,
    stamp: Option<Stamp>,
}

/// Longest tick of a clock, in nanoseconds: a printed duration may be that much too short.
const TICK: u64 = 10_000_000;

impl ReportedEnd {
    /// Returns true if the line belongs to the probe with this end, by the time between the two.
    fn is_of(&self, driver: Option<&str>, took: PrintedDuration, ended: Option<Stamp>) -> bool {
        let same = self.driver.as_deref().zip(driver).is_none_or(|(one, other)| one == other);
        let both = self.stamp.zip(ended).filter(|(said, ended)| !said.coarse && !ended.coarse);
        let took = u64::try_from(took.time.as_nanos()).unwrap_or(u64::MAX);
        let within = |(said, ended): (Stamp, Stamp)| {
            let latest = said.ns.saturating_add(said.unit).saturating_add(TICK);
            latest >= ended.ns.saturating_sub(took)
        };
        same && both.is_none_or(within)
    }
}

/// The lines within probes that tell their outcomes.
#[derive(Clone, Debug, Default)]
pub(crate) struct ReportedEnds {
    /// Outcomes by device, since the device's last probe ended.
    open: HashMap<String, ReportedEnd>,
    /// Outcomes of probes whose last line never came, with their devices.
    without_end: Vec<(String, ReportedEnd)>,
}

impl ReportedEnds {
    /// Records that the driver core reports a failed probe.
    pub(crate) fn failed(&mut self, device: &str, driver: &str, error: i64, stamp: Option<Stamp>) {
        let driver = Some(driver.to_owned());
        self.say(device, ReportedEnd { driver, error, by_core: true, stamp });
    }

    /// Records that a device is deferred.
    pub(crate) fn put_off(
        &mut self,
        device: &str,
        driver: Option<&str>,
        said_by: DeferralSource,
        stamp: Option<Stamp>,
    ) {
        if said_by != DeferralSource::WaitingList {
            let by_core = said_by == DeferralSource::ProbeEnd;
            let driver = driver.map(str::to_owned);
            self.say(device, ReportedEnd { driver, error: -517, by_core, stamp });
        }
    }

    fn say(&mut self, device: &str, said: ReportedEnd) {
        // The driver core knows better than a driver how the same probe ends.
        let before = match self.open.get(device) {
            Some(before) if before.by_core && !said.by_core => return,
            _ => self.open.insert(device.to_owned(), said),
        };
        if let Some(before) = before.filter(|before| before.by_core) {
            self.without_end.push((device.to_owned(), before));
        }
    }

    /// Records the last line of a probe with this result. Returns the outcome from a line within
    /// the probe, if the last line doesn't tell it.
    pub(crate) fn end(
        &mut self,
        device: &str,
        driver: Option<&str>,
        result: i64,
        took: PrintedDuration,
        ended: Option<Stamp>,
        kernel: Option<&str>,
    ) -> Option<ReportedEnd> {
        let said = self.open.remove(device)?;
        // Since 5.14 a probe prints its error, and 0 for a device that was bound.
        let prints_errors = || kernel.and_then(version).is_some_and(|version| version >= (5, 14));
        let bound = result == 1 || result == 0 && prints_errors();
        if bound || !said.is_of(driver, took, ended) {
            if said.by_core {
                self.without_end.push((device.to_owned(), said));
            }
            return None;
        }
        Some(said).filter(|_| result == 0)
    }

    /// Returns the failures and deferrals of probes whose last line isn't in the log.
    pub(crate) fn without_end(&self) -> impl Iterator<Item = (&str, &ReportedEnd)> {
        let open = self.open.iter().filter(|(_, said)| said.by_core);
        let open = open.map(|(device, said)| (device.as_str(), said));
        let all = self.without_end.iter().map(|(device, said)| (device.as_str(), said)).chain(open);
        all.filter(|(_, said)| !matches!(said.error, -6 | -19))
    }
}
