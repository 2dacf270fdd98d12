//! The rules of a whole log: how its kernel prints results and durations, and how far its stamps
//! can be trusted.

use crate::facts::Facts;
use crate::facts::records::{Fixup, Initcall, Probe};
use crate::form::{Clock, MICRO, Stamp};
use crate::message::{PrintedDuration, version};
use corewise_timeline::Length;
use std::time::Duration;

/// Rules of a log, found before any of its lines is judged.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rules {
    /// True if a probe that returned 1 bound its device, and one that returned 0 did not.
    pub one_is_bound: bool,
    /// Time in which the clock behind printed durations ticked.
    pub ticks: Option<Ticks>,
    /// Unit of the durations of init calls.
    pub unit: Unit,
    /// True if the init calls of all threads may share one clock: the kernel is not known to be
    /// older.
    pub one_clock: bool,
    /// True if the stamps are the receiver's, and nothing shows that they keep up with the kernel.
    pub late: bool,
}

/// Unit of the durations of init calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Unit {
    /// Microseconds, as printed.
    #[default]
    Micros,
    /// Nanoseconds shifted by ten: 1.024 microseconds.
    Shifted,
    /// One of the two; nothing tells which.
    Either,
}

impl Unit {
    fn ns(self) -> u64 {
        if self == Unit::Shifted { 1024 } else { 1000 }
    }
}

/// The time in which the clock behind printed durations ticked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ticks {
    /// Number of init calls that ended in it.
    pub calls: usize,
    /// Last line in it.
    until: u64,
    /// Length of a tick. If all durations are zero, it is the longest tick that kernels have.
    pub tick: Duration,
    /// True if the duration of a whole tick shows its length.
    pub shown: bool,
    /// Lines between which the clock ticked again.
    again: Option<(u64, u64)>,
    /// Lines at which it stopped ticking, with their stamps.
    ceased: [Option<(u64, Option<Stamp>)>; 2],
}

/// Ticks of kernels, in nanoseconds, for each rate that x86 and Arm can be built with.
const TICKS: [u64; 4] = [10_000_000, 4_000_000, 3_333_333, 1_000_000];

impl Rules {
    /// Finds the rules of a log from all its facts.
    pub(crate) fn of(facts: &Facts) -> Rules {
        let with = |f: &dyn Fn(i64) -> bool| facts.probes.iter().filter(|p| f(p.result)).count();
        // Since 2021 a driver's own errors are printed as positive numbers, so EPERM is a 1 too.
        let (ones, others) = (with(&|r| r == 1), with(&|r| r > 1));
        let version = facts.kernel.as_deref().and_then(version);
        let one_is_bound = match version {
            Some(version) if version >= (5, 14) => false,
            // Vendors' kernels may have the change of 2021.
            Some(_) if others == 0 => ones > 0,
            _ => ones > others && ones >= with(&|r| r == 0).div_ceil(4).max(1),
        };
        let (ticks, ticks_show) = ticks(facts, version).unzip();
        let fine = &facts.initcalls[ticks.map_or(0, |ticks| ticks.calls)..];
        let unit = ticks_show.flatten().unwrap_or_else(|| unit(fine, &facts.probes, version));
        let late = facts.received > 0 && !keep_up(fine);
        let one_clock = version.is_none_or(|version| version >= (4, 17));
        Rules { one_is_bound, ticks, unit, one_clock, late }
    }

    /// Returns the time that an init call can have taken by its printed duration, and the length to
    /// draw. `gap` is the time between its two lines.
    pub(crate) fn initcall(
        &self,
        index: usize,
        call: &Initcall,
        gap: Option<Duration>,
    ) -> Estimate {
        let PrintedDuration { time, unit } = call.took;
        let ticked = || self.ticks_call(index, call) || self.call_spans_clocks(call);
        let ticks = self.ticks.filter(|_| ticked());
        let told = match ticks {
            Some(ticks) => ticks.told(call.took, self.unit),
            None if unit > Duration::from_micros(1) => Estimate::cut_off(time, unit),
            None if unit < Duration::from_micros(1) => Estimate::exact(time),
            None => match self.unit {
                Unit::Micros => Estimate::exact(time),
                Unit::Shifted => Estimate::exact(shifted(time)),
                Unit::Either => Estimate { drawn: time, least: time, most: Some(shifted(time)) },
            },
        };
        match gap {
            // The stamps are finer, and ticks are lost while interrupts are off. The gap includes
            // printing.
            Some(gap) if ticks.is_some() => told.between_lines(gap),
            // Another call may have set the shared clock long after this call had begun.
            None if self.overtaken(call) || self.may_have_begun_before(index, call) => {
                let since_boot = call.ended.and_then(since_boot);
                Estimate { most: since_boot.map(|most| most.max(told.least)), ..told }
            }
            None => told,
            Some(gap)
                if self.overtaken(call) && gap > time + time / 50 + Duration::from_micros(100) =>
            {
                Estimate { drawn: gap, most: Some(gap), ..told }
            }
            // No line takes that long to print: a call that isn't in the log may have begun.
            Some(gap) if gap > time + time / 10 + PRINTING => Estimate { most: Some(gap), ..told },
            Some(gap) => told.within(gap),
        }
        .since_boot(call.ended)
    }

    /// Returns true if the printed time of an init call may be counted from the start of another
    /// one.
    pub(crate) fn overtaken(&self, call: &Initcall) -> bool {
        call.overtaken && self.one_clock
    }

    /// Returns true if an init call without its first line may have taken longer than it says: a
    /// call of another thread may have set the shared clock. While that clock ticks at first, there
    /// is one thread only, since a program that loads modules needs a file system.
    pub(crate) fn may_have_begun_before(&self, index: usize, call: &Initcall) -> bool {
        let at_first = self.ticks.is_some_and(|ticks| index < ticks.calls);
        call.lines.0.is_none() && self.one_clock && !at_first
    }

    /// Returns the time that a probe can have taken by its printed duration.
    pub(crate) fn probe(&self, probe: &Probe) -> Estimate {
        let PrintedDuration { time, unit } = probe.took;
        let ticked = || self.ticks_probe(probe) || self.probe_spans_clocks(probe);
        match self.ticks.filter(|_| ticked()) {
            Some(ticks) => ticks.told(probe.took, Unit::Micros),
            _ if unit > Duration::from_micros(1) => Estimate::cut_off(time, unit),
            _ => Estimate::exact(time),
        }
        .since_boot(probe.ended)
    }

    /// Returns true if an init call ended while the clock behind its duration ticked.
    pub(crate) fn ticks_call(&self, index: usize, call: &Initcall) -> bool {
        self.ticks.is_some_and(|ticks| {
            let (first, last) = call.lines;
            let again = |(from, to)| last > from && first.unwrap_or(last) < to;
            index < ticks.calls || ticks.again.is_some_and(again)
        })
    }

    /// Returns true if a probe's duration is in whole ticks.
    pub(crate) fn ticks_probe(&self, probe: &Probe) -> bool {
        self.ticks.is_some_and(|ticks| {
            let us = u64::try_from(probe.took.time.as_micros()).unwrap_or(u64::MAX);
            let whole = ticks_of(us, nanos(ticks.tick), Unit::Micros);
            ticks.ticks_again_at(probe.line)
                || probe.line <= ticks.until && (us == 0 || whole.is_some())
        })
    }

    /// Returns true if an init call may have begun while the clock ticked and ended when it no
    /// longer did. Its printed duration is then the difference of two clocks.
    pub(crate) fn call_spans_clocks(&self, call: &Initcall) -> bool {
        let (first, last) = call.lines;
        self.ticks.is_some_and(|t| t.spans((first, last), (call.begun, call.ended), call.took.time))
    }

    /// Returns true if a probe may have begun while the clock ticked and ended when it no longer
    /// did.
    pub(crate) fn probe_spans_clocks(&self, probe: &Probe) -> bool {
        let Probe { line, begun, ended, took, .. } = probe;
        self.ticks.is_some_and(|t| t.spans((None, *line), (*begun, *ended), took.time))
    }

    /// Returns the time that a fixup of a PCI device can have taken: every kernel so far shifts its
    /// nanoseconds. `gap` is the time between its two lines.
    pub(crate) fn fixup(&self, fixup: &Fixup, gap: Option<Duration>) -> Estimate {
        let time = fixup.took.time;
        let ticked = |ticks: &Ticks| {
            fixup.line <= ticks.until
                || ticks.ticks_again_at(fixup.line)
                || ticks.spans((None, fixup.line), (fixup.begun, fixup.ended), time)
        };
        let ticks = self.ticks.filter(ticked);
        match (ticks, gap) {
            (Some(ticks), Some(gap)) => ticks.told(fixup.took, Unit::Shifted).between_lines(gap),
            (Some(ticks), None) => ticks.told(fixup.took, Unit::Shifted),
            (None, _) => Estimate { drawn: time, least: time, most: Some(shifted(time)) },
        }
        .since_boot(fixup.ended)
    }

    /// Returns the number of durations that are longer than the kernel had run by the stamps of
    /// their lines: one of the two clocks is wrong.
    pub(crate) fn longer_than_clock(facts: &Facts) -> usize {
        let calls = facts.initcalls.iter().map(|call| (call.took, call.ended));
        let probes = facts.probes.iter().map(|probe| (probe.took, probe.ended));
        let fixups = facts.fixups.iter().map(|fixup| (fixup.took, fixup.ended));
        let longer = |(took, ended): &(PrintedDuration, Option<Stamp>)| {
            let unit = ended.map_or(0, |ended| ended.unit);
            let most = ended.and_then(since_boot);
            most.is_some_and(|most| took.time > most + ROUNDED + Duration::from_nanos(unit))
        };
        calls.chain(probes).chain(fixups).filter(longer).count()
    }
}

impl Ticks {
    /// Returns true if the clock ticked again after a better one.
    pub(crate) fn again(self) -> bool {
        self.again.is_some()
    }

    /// Returns true if the clock ticked again at a line.
    fn ticks_again_at(self, line: u64) -> bool {
        self.again.is_some_and(|(from, to)| from < line && line < to)
    }

    /// Returns true if the time between these lines and stamps, whose first ones may be unknown,
    /// may span the moment at which the clock stopped ticking. Returns true if the stamps don't
    /// tell.
    fn spans(
        &self,
        (first, last): (Option<u64>, u64),
        (begun, ended): (Option<Stamp>, Option<Stamp>),
        took: Duration,
    ) -> bool {
        let longest = nanos(took.saturating_add(self.tick));
        let earliest = |stamp: Stamp| match begun.filter(|begun| !begun.coarse) {
            Some(begun) => begun.ns,
            None => stamp.ns.saturating_sub(longest),
        };
        self.ceased.iter().flatten().any(|&(line, at)| {
            let before = || {
                ended.zip(at).is_none_or(|(ended, at)| {
                    let known = if ended.coarse || at.coarse { 1_000_000_000 } else { at.unit };
                    earliest(ended) < at.ns.saturating_add(known)
                })
            };
            last > line && first.map_or_else(before, |first| first < line)
        })
    }

    /// Returns the bounds of a duration in whole ticks: each of its ends may lie anywhere in a
    /// tick.
    fn told(self, took: PrintedDuration, unit: Unit) -> Estimate {
        let us = u64::try_from(took.time.as_micros()).unwrap_or(u64::MAX);
        let time = match ticks_of(us, nanos(self.tick), unit) {
            Some(n) => self.tick.saturating_mul(u32::try_from(n).unwrap_or(u32::MAX)),
            None => took.time,
        };
        let least = time.saturating_sub(self.tick);
        Estimate { drawn: time, least, most: Some(time.saturating_add(self.tick)) }
    }
}

/// Returns the number of ticks in a printed number.
fn ticks_of(printed: u64, tick: u64, unit: Unit) -> Option<u64> {
    let unit = unit.ns();
    let ns = printed.checked_mul(unit)?;
    let n = (ns.checked_add(tick / 2)? / tick).max(1);
    let whole = n.checked_mul(tick)? / unit;
    // A tick that is no whole number of units may be truncated at either end.
    let off = u64::from(tick % unit != 0);
    (whole.abs_diff(printed) <= off).then_some(n)
}

/// Returns the time that the kernel has run by the stamp of a line, if the stamp is the kernel's.
fn since_boot(stamp: Stamp) -> Option<Duration> {
    (stamp.clock == Clock::Boot && !stamp.coarse).then(|| Duration::from_nanos(stamp.ns))
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Truncated part of a stamp and of a duration.
const ROUNDED: Duration = Duration::from_micros(3);

/// Time to print a line on a slow console.
const PRINTING: Duration = Duration::from_millis(10);

/// Meaning of a printed duration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Estimate {
    /// Length of the bar.
    pub drawn: Duration,
    pub least: Duration,
    /// Longest possible time; `None` if there is no bound.
    pub most: Option<Duration>,
}

impl Estimate {
    fn exact(time: Duration) -> Estimate {
        Estimate { drawn: time, least: time, most: Some(time) }
    }

    /// Returns the estimate of a time whose fraction of a unit isn't printed.
    fn cut_off(time: Duration, unit: Duration) -> Estimate {
        Estimate { drawn: time, least: time, most: Some(time.saturating_add(unit)) }
    }

    /// Bounds whole ticks by the time between two lines. If late ticks contradict the lines, they
    /// bound nothing.
    fn between_lines(self, gap: Duration) -> Estimate {
        let least = if self.least < gap { self.least } else { Duration::ZERO };
        Estimate { drawn: gap, least, most: Some(gap) }
    }

    /// Bounds the time by `gap`, since it lies between two lines. If the printed time is longer,
    /// two clocks disagree, and nothing tells which is right.
    fn within(self, gap: Duration) -> Estimate {
        let Estimate { drawn, least, most } = self;
        match least > gap.saturating_add(ROUNDED) {
            true => Estimate { drawn: gap, least: gap, most },
            false => {
                let most = most.map_or(gap, |most| most.min(gap)).max(drawn).max(least);
                Estimate { drawn, least, most: Some(most) }
            }
        }
    }

    /// Bounds the time by the stamp of its end, since nothing begins before the boot. If the
    /// printed time is longer, two clocks disagree.
    fn since_boot(self, ended: Option<Stamp>) -> Estimate {
        let Estimate { drawn, least, most } = self;
        let unit = Duration::from_nanos(ended.map_or(0, |ended| ended.unit));
        match ended.and_then(since_boot) {
            Some(longest) if least > longest + ROUNDED + unit => {
                Estimate { drawn: longest, least: longest, most }
            }
            Some(longest) if drawn > longest => Estimate { drawn: longest.max(least), ..self },
            _ => self,
        }
    }

    /// Returns the length of the time.
    pub(crate) fn length(self) -> Length {
        match self.most {
            Some(most) => Length::between(self.least, most).telling(self.drawn),
            None => Length::at_least(self.least),
        }
    }

    /// Returns the bounds, unless the bar shows the exact time.
    pub(crate) fn bounds(self) -> Option<(Duration, Duration)> {
        let most = self.most.unwrap_or(self.drawn);
        (self.least != most).then_some((self.least, most))
    }
}

/// Returns the time in which the clock behind printed durations ticked, and the unit that this
/// shows, if it does.
///
/// A kernel begins with a clock that ticks, and prints a line when it takes a better one. Durations
/// that end before that line are whole ticks, zero among them. If the log lacks the line, the first
/// duration that is no whole tick ends that time; zeros before it may be of either clock.
///
/// A kernel that finds its better clock wrong returns to the one that ticks, and prints that too.
fn ticks(facts: &Facts, version: Option<(u32, u32)>) -> Option<(Ticks, Option<Unit>)> {
    let first = ticks_of_calls(facts, version);
    let first = first.or_else(|| Some((ticks_of_probes(facts)?, None)));
    let ceased = facts.clock_source.ceased;
    let first = first.or_else(|| Some((unseen_ticks(facts)?, None)));
    let first = first.map(|(ticks, unit)| (Ticks { ceased, ..ticks }, unit));
    let Some((from, to)) = facts.clock_source.ticks_again else { return first };
    let to = to.unwrap_or(u64::MAX);
    let values = printed(facts).filter(|(line, _)| (from..to).contains(line));
    let (tick, shown) = match (first, longest_tick(values.map(|(_, us)| us))) {
        (Some((ticks, _)), _) if ticks.shown => (ticks.tick, true),
        (_, Some((tick, shown, _))) if shown > 0 => (tick, true),
        _ => (Duration::from_nanos(TICKS[0]), false),
    };
    let ceased = [None, ceased[1]];
    let none = Ticks { tick, shown, ceased, ..Ticks::default() };
    let (ticks, unit) = first.unwrap_or((none, None));
    Some((Ticks { again: Some((from, to)), tick, shown, ..ticks }, unit))
}

/// Returns the ticks of a boot's log without any value from the time before the kernel changed its
/// clock.
fn unseen_ticks(facts: &Facts) -> Option<Ticks> {
    let until = facts.clock_source.switched.filter(|_| facts.kernel.is_some())?;
    let none = printed(facts).next().is_none_or(|(line, _)| line > until);
    none.then(|| Ticks { until, tick: Duration::from_nanos(TICKS[0]), ..Ticks::default() })
}

/// Returns the microseconds that calls and probes printed, with the lines of their ends, in the
/// order of lines.
fn printed(facts: &Facts) -> impl Iterator<Item = (u64, u64)> {
    let calls = facts.initcalls.iter().map(|call| (call.lines.1, call.took));
    let probes = facts.probes.iter().map(|probe| (probe.line, probe.took));
    let mut all: Vec<(u64, PrintedDuration)> = calls.chain(probes).collect();
    all.sort_unstable_by_key(|(line, _)| *line);
    let micros = |(line, took): (u64, PrintedDuration)| {
        let us = u64::try_from(took.time.as_micros()).ok();
        us.filter(|_| took.unit == Duration::from_micros(1)).map(|us| (line, us))
    };
    all.into_iter().filter_map(micros)
}

/// Returns the tick whose multiples begin these values in the longest row. Also returns the length
/// of that row, first without zeros, then with them.
fn longest_tick(values: impl Iterator<Item = u64>) -> Option<(Duration, usize, usize)> {
    let values: Vec<u64> = values.collect();
    let fits = |tick: u64| {
        let whole = |us: u64| us == 0 || ticks_of(us, tick, Unit::Micros).is_some();
        let until = values.iter().position(|&us| !whole(us)).unwrap_or(values.len());
        (values[..until].iter().filter(|&&us| us > 0).count(), tick, until)
    };
    let (shown, tick, until) = TICKS.map(fits).into_iter().max()?;
    Some((Duration::from_nanos(tick), shown, until))
}

/// Returns the ticks that the values of probes show. If the log says when the kernel changed its
/// clock, all values before that line are multiples of one tick, or zero. Otherwise three of them
/// in a row, two not zero, show the tick.
fn ticks_of_probes(facts: &Facts) -> Option<Ticks> {
    let before = |&(line, _): &(u64, u64)| facts.clock_source.switched.is_none_or(|at| line < at);
    let values: Vec<(u64, u64)> = printed(facts).take_while(before).collect();
    let (tick, shown, until) = longest_tick(values.iter().map(|(_, us)| *us))?;
    let all = facts.clock_source.switched.filter(|_| until == values.len() && until > 0);
    if all.is_none() && (until < 3 || shown < 2) {
        return None;
    }
    let until = all.unwrap_or_else(|| values[until - 1].0);
    let calls = facts.initcalls.iter().filter(|call| call.lines.1 <= until).count();
    let tick = if shown > 0 { tick } else { Duration::from_nanos(TICKS[0]) };
    Some(Ticks { calls, until, tick, shown: shown > 0, ..Ticks::default() })
}

/// Returns the ticks that the values of init calls show.
fn ticks_of_calls(facts: &Facts, version: Option<(u32, u32)>) -> Option<(Ticks, Option<Unit>)> {
    let calls = &facts.initcalls[..];
    let begun = |call: &Initcall| call.lines.0.unwrap_or(call.lines.1);
    let switched = facts.clock_source.switched.map(|line| {
        let position = calls.iter().position(|call| begun(call) > line);
        position.unwrap_or(calls.len())
    });
    let calls = &calls[..switched.unwrap_or(calls.len())];
    let printed = |call: &Initcall| match call.took.unit == Duration::from_micros(1) {
        true => u64::try_from(call.took.time.as_micros()).ok(),
        false => None,
    };
    // Number of leading durations that fit a tick in a unit, and number of those that show it.
    let fits = |tick: u64, unit: Unit| {
        let fine = |call: &Initcall| {
            let ticks = |us| us == 0 || ticks_of(us, tick, unit).is_some();
            // The clock changes while a call runs.
            !printed(call).is_some_and(ticks)
                && facts.clock_source.switched.is_none_or(|at| call.lines.1 < at)
        };
        let until = calls.iter().position(fine).unwrap_or(calls.len());
        let shown = calls[..until].iter().filter(|call| printed(call) > Some(0)).count();
        (shown, until)
    };
    let units = match version {
        Some(version) if version >= (5, 18) => &[Unit::Micros][..],
        _ => &[Unit::Shifted, Unit::Micros],
    };
    let all = units.iter().flat_map(|&unit| TICKS.map(|tick| (fits(tick, unit), tick, unit)));
    let ((shown, until), tick, unit) = all.max_by_key(|&((shown, _), tick, _)| (shown, tick))?;
    // One round number proves nothing, and zeros prove only that the kernel had not changed its
    // clock yet.
    if until < 3 || shown == 0 && (switched.is_none() || until < calls.len()) {
        return None;
    }
    let last = match facts.clock_source.switched {
        Some(line) if until == calls.len() => line,
        _ => calls[until - 1].lines.1,
    };
    let tick = Duration::from_nanos(if shown > 0 { tick } else { TICKS[0] });
    let ticks = Ticks { calls: until, until: last, tick, shown: shown > 0, ..Ticks::default() };
    Some((ticks, (shown > 1).then_some(unit)))
}

fn shifted(time: Duration) -> Duration {
    time.saturating_add(time * 3 / 125)
}

/// Returns the time between the two lines of an init call.
fn gap(call: &Initcall, counts: impl Fn(&Stamp) -> bool) -> Option<Duration> {
    let both = call.begun.filter(&counts).zip(call.ended.filter(&counts));
    let (begun, ended) = both.filter(|(begun, ended)| begun.ns <= ended.ns)?;
    Some(Duration::from_nanos(ended.ns - begun.ns))
}

/// Returns the unit of the durations of init calls. Older kernels (before about 5.18) print
/// `ns >> 10` and call that microseconds: a call takes 2.4 % longer than they say. Two kinds of
/// witnesses show it, and either one suffices:
///
/// * the time between the call's two lines, which is never shorter than the call;
/// * a probe that was longer than the call in which it ran: probes are printed in microseconds.
///
/// The time between the lines includes printing, so a longer gap shows nothing, and a gap that is
/// longer by just that share by chance is a false witness. A version line of a kernel that prints
/// microseconds therefore settles it, one of an older kernel needs one witness, and a log without a
/// version needs two that no single delay explains.
fn unit(calls: &[Initcall], probes: &[Probe], version: Option<(u32, u32)>) -> Unit {
    let micros = Duration::from_micros;
    let printed = |call: &Initcall| Some(call.took.time).filter(|_| call.took.unit == micros(1));
    if version.is_some_and(|version| version >= (5, 18)) {
        return Unit::Micros;
    }
    let (mut fits, mut against) = (0_u32, 0_u32);
    let (mut shortest, mut longest) = (Duration::MAX, Duration::ZERO);
    for call in calls.iter().filter(|call| !call.overtaken) {
        let gap = gap(call, |s| !s.coarse && !s.is_wall() && !s.received && s.unit <= MICRO);
        let Some((gap, printed)) = gap.zip(printed(call)).filter(|(gap, p)| gap >= p) else {
            continue;
        };
        let ratio = gap.as_secs_f64() / printed.as_secs_f64().max(1e-9);
        if printed >= micros(1000) && ratio < 1.0236 {
            against += 1;
        } else if printed >= micros(5000) && (1.0236..1.0250).contains(&ratio) {
            fits += 1;
            (shortest, longest) = (shortest.min(printed), longest.max(printed));
        }
    }
    let inside = if against == 0 { longer_inside(calls, probes) } else { 0 };
    // A console takes roughly the same time for each line, which is no fixed share of the calls.
    let by_pairs = u32::from(fits > 0) + u32::from(longest / 2 >= shortest);
    let shown = version.is_some() || by_pairs + inside >= 2;
    match fits + inside > against {
        true if shown => Unit::Shifted,
        true => Unit::Either,
        false if against > 0 => Unit::Micros,
        false => Unit::Either,
    }
}

/// Returns the number of probes that were longer than the only init call that had begun when they
/// ended, by at most the difference of the two units. Returns 0 if as many were longer by more:
/// those ran beside the calls, and so may the others have.
fn longer_inside(calls: &[Initcall], probes: &[Probe]) -> u32 {
    let micros = Duration::from_micros;
    let (mut fits, mut beside) = (0_u32, 0_u32);
    for probe in probes.iter().filter(|p| !p.asynchronous && p.took.unit <= micros(1)) {
        // Probes come in the order of their last lines.
        let next = calls.partition_point(|call| call.lines.1 < probe.line);
        let around = calls[next..].iter().take(8);
        let mut around = around.filter(|call| call.lines.0.is_none_or(|first| first < probe.line));
        let (Some(call), None) = (around.next(), around.next()) else { continue };
        let printed = call.took.time;
        if call.overtaken
            || call.took.unit != micros(1)
            || printed < micros(2000)
            || call.thread != probe.thread.or(call.thread)
        {
            continue;
        }
        let took = probe.took.time;
        if took > shifted(printed + micros(1)) + micros(1) {
            beside += 1;
        } else if took > printed + printed / 2000 + micros(2) {
            fits += 1;
        }
    }
    if fits > beside { fits } else { 0 }
}

/// Returns true if the receiver's stamps keep up with the kernel. By the init calls, none took much
/// longer than the time between its two lines, and one of at least a millisecond shows that.
fn keep_up(calls: &[Initcall]) -> bool {
    let mut shown = false;
    for call in calls.iter().filter(|call| call.took.time >= Duration::from_millis(1)) {
        let Some(gap) = gap(call, |s| s.received && !s.coarse) else { continue };
        // A clock that is set meanwhile halves a time, but a line that was delayed leaves nearly
        // none.
        if gap < call.took.time / 4 {
            return false;
        }
        shown |= gap >= call.took.time;
    }
    shown
}
