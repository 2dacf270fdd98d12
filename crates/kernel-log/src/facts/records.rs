//! What the lines of a log say of one init call, probe, PCI fixup or shutdown.

use super::said_ends::SaidEnd;
use crate::message::Took;
use crate::stamp::Stamp;

/// An init call whose end was seen.
#[derive(Clone, Debug)]
pub(crate) struct Initcall {
    pub function: String,
    pub module: Option<String>,
    pub thread: Option<u32>,
    pub begun: Option<Stamp>,
    pub ended: Option<Stamp>,
    /// The first stamp behind its last line that is later than that line's. Where a clock stands,
    /// that line may have been written as late as this.
    pub next: Option<Stamp>,
    pub took: Took,
    pub result: i64,
    /// Which of the lines that were understood its first one is, and its last one: the order of
    /// lines, which is known without any stamp.
    pub lines: (Option<u64>, u64),
    /// Another one began meanwhile. Since 4.17 all threads' init calls share one clock, which that
    /// one has set: the printed time is counted from there.
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
    pub took: Took,
    pub result: i64,
    pub cpu: Option<u32>,
    pub worker: Option<String>,
    pub asynchronous: bool,
    pub reason: Option<String>,
    /// What a line within it said of its end, where its last line doesn't.
    pub said: Option<SaidEnd>,
    /// Which of the lines that were understood its end is.
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
    pub took: Took,
    /// Which of the lines that were understood its end is.
    pub line: u64,
}

/// A device's shutdown.
#[derive(Clone, Debug)]
pub(crate) struct Shutdown {
    /// Driver and device.
    pub head: String,
    pub thread: Option<u32>,
    pub begun: Option<Stamp>,
    /// The beginning of the next one of its thread, or what came after the last one.
    pub ended: Option<Stamp>,
    /// The log says where it began and where it was waited for.
    pub asynchronous: bool,
}

impl Shutdown {
    /// Whether the line behind it has an earlier stamp: the clock was set back.
    pub(crate) fn goes_back(&self) -> bool {
        self.begun.zip(self.ended).is_some_and(|(begun, ended)| ended.ns < begun.ns)
    }
}

/// Lines that name the clock, each as a number among those that were understood.
#[derive(Clone, Debug, Default)]
pub(crate) struct ClockSource {
    /// The first line from which on the clock ticks no more.
    pub switched: Option<u64>,
    /// The lines between which it ticked, as the kernel said. None: up to the last one. A kernel
    /// goes back to such a clock where the better one is wrong.
    pub ticks_again: Option<(u64, Option<u64>)>,
    /// The lines at which it ceased to tick, the first time and the last, with their stamps.
    pub ceased: [Option<(u64, Option<Stamp>)>; 2],
}

impl ClockSource {
    /// The kernel chooses a clock at this line, which ticks or doesn't.
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
