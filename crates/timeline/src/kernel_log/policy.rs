//! What a whole log says about how its kernel prints results and durations, and how much its stamps
//! say.

use super::facts::{Facts, Initcall, Probe};
use super::message::Took;
use super::prefix::{MICRO, Stamp};
use crate::length::Length;
use std::time::Duration;

/// What has to be known of the whole log before one line of it can be judged.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rules {
    /// A probe that returned 1 bound its device, and one that returned 0 did not.
    pub one_is_bound: bool,
    /// The first init calls, up to this one, have durations in whole ticks, of this length.
    pub ticks: Option<(usize, Duration)>,
    /// The last line of those.
    ticks_until: u64,
    /// What the durations of init calls are counted in.
    pub unit: Unit,
    /// The stamps are the receiver's, and nothing shows that they keep up with the
    /// kernel.
    pub late: bool,
}

/// What the durations of init calls are counted in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Unit {
    /// Microseconds, as they say.
    #[default]
    Micros,
    /// Nanoseconds shifted by ten: 1.024 microseconds.
    Shifted,
    /// One of the two.
    Either,
}

impl Rules {
    /// Looks at all of it.
    pub(crate) fn of(facts: &Facts) -> Rules {
        let with = |f: &dyn Fn(i64) -> bool| facts.probes.iter().filter(|p| f(p.result)).count();
        // Since 2021 a driver's own errors are printed as positive numbers, so EPERM is a 1 too.
        let (ones, others) = (with(&|r| r == 1), with(&|r| r > 1));
        let one_is_bound = ones > others && ones >= with(&|r| r == 0).div_ceil(4).max(1);
        let ticks = ticks(&facts.initcalls);
        let until = ticks.map_or(0, |(until, _)| until);
        let ticks_until = until.checked_sub(1).map_or(0, |last| facts.initcalls[last].lines.1);
        let fine = &facts.initcalls[until..];
        let unit = unit(fine, &facts.probes, facts.kernel.as_deref());
        let late = facts.received > 0 && !keep_up(fine);
        Rules { one_is_bound, ticks, ticks_until, unit, late }
    }

    /// How long an init call can have taken by what was printed, and what to draw. `gap` is the time
    /// between its two lines.
    pub(crate) fn initcall(&self, index: usize, call: &Initcall, gap: Option<Duration>) -> Told {
        let Took { time, unit } = call.took;
        let tick = self.ticks.filter(|&(until, _)| index < until).map(|(_, tick)| tick);
        let told = match tick {
            Some(tick) => Told::about(time, tick),
            None if unit > Duration::from_micros(1) => Told::cut_off(time, unit),
            None if unit < Duration::from_micros(1) => Told::exact(time),
            None => match self.unit {
                Unit::Micros => Told::exact(time),
                Unit::Shifted => Told::exact(shifted(time)),
                Unit::Either => Told { drawn: time, least: time, most: Some(shifted(time)) },
            },
        };
        match gap {
            // The stamps are finer, and a tick is lost where interrupts are off; printing is in them.
            Some(gap) if tick.is_some() => {
                Told { drawn: gap, least: told.least.min(gap), most: Some(gap) }
            }
            None if call.overtaken => Told { most: None, ..told },
            None => told,
            Some(gap) if call.overtaken && gap > time + time / 50 + Duration::from_micros(100) => {
                Told { drawn: gap, most: Some(gap), ..told }
            }
            // So much no line takes to print: another one may have begun that isn't in the log.
            Some(gap) if gap > time + time / 10 + PRINTING => Told { most: Some(gap), ..told },
            Some(gap) => told.within(gap),
        }
    }

    /// Likewise for a probe.
    pub(crate) fn probe(&self, probe: &Probe) -> Told {
        let Took { time, unit } = probe.took;
        match self.ticks {
            Some((_, tick)) if self.ticks_probe(probe) => Told::about(time, tick),
            _ if unit > Duration::from_micros(1) => Told::cut_off(time, unit),
            _ => Told::exact(time),
        }
    }

    /// Whether a probe's duration is in whole ticks.
    pub(crate) fn ticks_probe(&self, probe: &Probe) -> bool {
        let whole = |tick: Duration| probe.took.time.as_nanos() % tick.as_nanos() == 0;
        probe.line <= self.ticks_until && self.ticks.is_some_and(|(_, tick)| whole(tick))
    }

    /// Likewise for a fixup of a PCI device: every kernel so far shifts its nanoseconds.
    pub(crate) fn fixup(took: Took) -> Told {
        Told { drawn: took.time, least: took.time, most: Some(shifted(took.time)) }
    }
}

/// What it takes to print a line on a slow console.
const PRINTING: Duration = Duration::from_millis(10);

/// What a printed duration says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Told {
    /// What a bar is drawn by.
    pub drawn: Duration,
    pub least: Duration,
    /// None: it may have been any longer.
    pub most: Option<Duration>,
}

impl Told {
    fn exact(time: Duration) -> Told {
        Told { drawn: time, least: time, most: Some(time) }
    }

    fn about(time: Duration, by: Duration) -> Told {
        let (least, most) = (time.saturating_sub(by), time.saturating_add(by));
        Told { drawn: time, least, most: Some(most) }
    }

    /// The rest of a unit isn't printed.
    fn cut_off(time: Duration, unit: Duration) -> Told {
        Told { drawn: time, least: time, most: Some(time.saturating_add(unit)) }
    }

    /// It took no longer than that: it lies between two lines. Where it was printed longer than that,
    /// two clocks disagree, and nobody knows which is right.
    fn within(self, gap: Duration) -> Told {
        // The part by which a stamp and a duration are cut off.
        const ROUNDED: Duration = Duration::from_micros(3);
        let Told { drawn, least, most } = self;
        match least > gap.saturating_add(ROUNDED) {
            true => Told { drawn: gap, least: gap, most },
            false => {
                let most = most.map_or(gap, |most| most.min(gap)).max(drawn).max(least);
                Told { drawn, least, most: Some(most) }
            }
        }
    }

    /// How long it took.
    pub(crate) fn length(self) -> Length {
        match self.most {
            Some(most) => Length::between(self.least, most).telling(self.drawn),
            None => Length::at_least(self.least),
        }
    }

    /// The bounds, where a bar doesn't say it all.
    pub(crate) fn bounds(self) -> Option<(Duration, Duration)> {
        let most = self.most.unwrap_or(self.drawn);
        (self.least != most).then_some((self.least, most))
    }
}

/// How many init calls come before the first one whose duration is not in whole ticks, and the
/// tick. A tick has 1, 3.33 (which is printed as 3333 or 6666), 4 or 10 ms.
fn ticks(initcalls: &[Initcall]) -> Option<(usize, Duration)> {
    const TICKS: [u128; 3] = [10_000, 4_000, 1_000];
    let micros = |c: &Initcall| c.took.time.as_micros();
    let fine = |c: &Initcall| {
        c.took.unit > Duration::from_micros(1) || micros(c) > 0 && micros(c) % 1000 != 0
    };
    let until = initcalls.iter().position(fine).unwrap_or(initcalls.len());
    let coarse: Vec<u128> = initcalls[..until].iter().map(micros).filter(|&us| us > 0).collect();
    let tick = TICKS.into_iter().find(|t| coarse.iter().all(|us| us % t == 0))?;
    // One round number proves nothing.
    let last = initcalls[..until].iter().rposition(|c| micros(c) > 0)?;
    (until >= 3).then(|| (last + 1, Duration::from_micros(tick as u64)))
}

fn shifted(time: Duration) -> Duration {
    time.saturating_add(time * 3 / 125)
}

/// The time between the two lines of an init call.
fn gap(call: &Initcall, counts: impl Fn(&Stamp) -> bool) -> Option<Duration> {
    let both = call.begun.filter(&counts).zip(call.ended.filter(&counts));
    let (begun, ended) = both.filter(|(begun, ended)| begun.ns <= ended.ns)?;
    Some(Duration::from_nanos(ended.ns - begun.ns))
}

/// Older kernels (before about 5.18) print `ns >> 10` and call it microseconds: a call takes 2.4 %
/// longer than they say. Two things show it, and either one will do:
///
/// * the time between the call's two lines, which is never shorter than the call;
/// * a probe that was longer than the call in which it ran: probes are printed in microseconds.
///
/// The time of printing is between the lines as well, so a longer gap shows nothing, and a gap that is
/// as much longer by chance seems to show it. So a version line of a kernel that prints microseconds
/// settles it, one of an older kernel needs one witness, and a log without any needs two that no one
/// delay explains.
fn unit(calls: &[Initcall], probes: &[Probe], kernel: Option<&str>) -> Unit {
    let micros = Duration::from_micros;
    let printed = |call: &Initcall| Some(call.took.time).filter(|_| call.took.unit == micros(1));
    let version = kernel.and_then(version);
    if version.is_some_and(|version| version >= (5, 18)) {
        return Unit::Micros;
    }
    let (mut fits, mut against) = (0_u32, 0_u32);
    let (mut shortest, mut longest) = (Duration::MAX, Duration::ZERO);
    for call in calls.iter().filter(|call| !call.overtaken) {
        let gap = gap(call, |s| !s.coarse && !s.wall && !s.received && s.unit <= MICRO);
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
    // A console takes as long for one line as for another, roughly: that is no share of the calls.
    let by_pairs = u32::from(fits > 0) + u32::from(longest / 2 >= shortest);
    let shown = version.is_some() || by_pairs + inside >= 2;
    match fits + inside > against {
        true if shown => Unit::Shifted,
        true => Unit::Either,
        false if against > 0 => Unit::Micros,
        false => Unit::Either,
    }
}

/// `6.12` of `6.12.0-rc3+`.
fn version(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

/// How many probes were longer than the only init call that had begun when they ended, by no more
/// than the two units differ; none, if as many were longer by more: those ran beside the calls, and
/// so may the others have.
fn longer_inside(calls: &[Initcall], probes: &[Probe]) -> u32 {
    let micros = Duration::from_micros;
    let (mut fits, mut beside) = (0_u32, 0_u32);
    for probe in probes.iter().filter(|p| !p.asynchronous && p.took.unit <= micros(1)) {
        // They come in the order of their last lines.
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

/// Whether the receiver's stamps keep up with the kernel, by its init calls: none
/// took much longer than the time between its two lines, and one of a millisecond shows that.
fn keep_up(calls: &[Initcall]) -> bool {
    let mut shown = false;
    for call in calls.iter().filter(|call| call.took.time >= Duration::from_millis(1)) {
        let Some(gap) = gap(call, |s| s.received && !s.coarse) else { continue };
        // A clock that is set meanwhile makes half of a time, but a line that lay somewhere none.
        if gap < call.took.time / 4 {
            return false;
        }
        shown |= gap >= call.took.time;
    }
    shown
}
