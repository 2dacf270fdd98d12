//! Turns init calls, probes, fixups and shutdowns into spans with their outcomes, or into entries
//! without a place in time.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use corewise_timeline::{
    Certainty, Driver, Length, Outcome, Span, SpanId, SpanKind, Timeline, Unplaced,
};

use super::devices::{Drivers, head};
use super::nesting::{self, NestingItem, NestingKind};
use super::policy::{Estimate, Rules};
use crate::facts::Facts;
use crate::facts::records::{Initcall, Probe, Shutdown};
use crate::form::{MICRO, Stamp};
use crate::message::names;

/// The boot's timeline, and the entries that have no place in it.
pub(crate) struct Boot {
    pub timeline: Timeline,
    pub ambiguous: usize,
    /// Number of init calls that printed less than the spans inside them took.
    pub too_short: usize,
}

/// A span to be, with the facts for nesting. The item of an init call begins with its first line.
struct Draft<'a> {
    span: Span,
    item: NestingItem<'a>,
}

/// Returns the spans of init calls, probes and fixups.
pub(crate) fn boot(facts: &Facts, rules: &Rules, drivers: &Drivers) -> Boot {
    let calls = facts.initcalls.iter().enumerate();
    let mut all: Vec<BootItem<'_>> = calls.map(|(i, call)| initcall(call, i, rules)).collect();
    let mut put_off: HashSet<&str> = HashSet::new();
    for probe in &facts.probes {
        let retry = put_off.contains(probe.device.as_str());
        if matches!(outcome(probe, rules), Outcome::Deferred(_)) {
            put_off.insert(&probe.device);
        }
        let driver = probe.driver.as_deref().or(drivers.get(&probe.device).map(Driver::name));
        all.push(self::probe(probe, driver, retry, rules));
    }
    for fixup in &facts.fixups {
        let mut what = Unplaced::new(
            format!("{} ({})", fixup.function, fixup.device),
            SpanKind::Task,
            Length::ZERO,
        );
        what.driver = Some("PCI fixup".into());
        let of = ItemFacts {
            kind: NestingKind::Fixup,
            thread: fixup.thread,
            name: &fixup.device,
            owner: None,
        };
        let gap = self::gap(fixup.begun, fixup.ended, None);
        all.push(of.place(what, None, fixup.ended, rules.fixup(fixup, gap)));
    }
    let mut timeline = Timeline::new("boot");
    let mut drafts: Vec<Draft<'_>> = Vec::new();
    for one in all {
        match one {
            BootItem::Placed(draft) => drafts.push(draft),
            BootItem::Unplaced(unplaced) => timeline.push_unplaced(unplaced),
        }
    }
    drafts.sort_by_key(|d| (d.item.start, std::cmp::Reverse(d.item.end)));

    let items: Vec<NestingItem<'_>> = drafts.iter().map(|d| d.item.clone()).collect();
    let coarsest = Duration::from_nanos(items.iter().map(|i| i.unit).max().unwrap_or(0));
    let places = nesting::decide(&items);
    let (mut ambiguous, mut too_short) = (0, 0);
    for (draft, place) in drafts.iter_mut().zip(&places) {
        draft.span.asynchronous |= place.asynchronous;
        draft.span.may_be_nested = place.ambiguous || place.unproven;
        ambiguous += usize::from(place.ambiguous);
    }
    // A printed duration can be too short: the clock is set while the call runs. The spans inside
    // show the least time, once by all that seem to have run inside, once by those that surely did.
    let mut least: HashMap<usize, [Duration; 2]> = HashMap::new();
    for (draft, place) in drafts.iter().zip(&places) {
        if let Some(outer) = place.inside {
            if draft.span.start < drafts[outer].span.start
                && drafts[outer].item.kind == NestingKind::Initcall
            {
                let from = drafts[outer].span.end.saturating_sub(draft.span.start);
                let [seeming, sure] = least.entry(outer).or_default();
                *seeming = (*seeming).max(from);
                if !place.unproven {
                    *sure = (*sure).max(from);
                }
            }
        }
    }
    for (outer, [seeming, sure]) in least {
        let Draft { span, item } = &mut drafts[outer];
        if Duration::from_nanos(item.start) >= span.start {
            continue;
        }
        // A difference below the truncated parts of a stamp and a printed duration shows nothing.
        too_short += usize::from(seeming > span.drawn() + Duration::from_micros(20));
        let printed = span.took_between.map_or(span.drawn(), |(least, _)| least);
        span.start = Duration::from_nanos(item.start);
        span.queued = span.start;
        let drawn = span.drawn();
        span.took_between = Some((printed.max(sure).min(drawn), drawn));
    }
    // A span runs on the thread of the outermost span around it.
    let workers: Vec<String> = (0..drafts.len())
        .map(|i| {
            let around = std::iter::successors(Some(i), |&i| places[i].inside).take(64);
            around
                .map(|i| &drafts[i].span.worker)
                .find(|w| !w.is_empty())
                .cloned()
                .unwrap_or_default()
        })
        .collect();
    let mut ids: Vec<SpanId> = Vec::with_capacity(drafts.len());
    for (mut draft, worker) in drafts.into_iter().zip(workers) {
        draft.span.worker = worker;
        ids.push(timeline.push(draft.span));
    }
    for (span, place) in timeline.spans_mut().iter_mut().zip(places) {
        span.nested_in = place.inside.map(|outer| ids[outer]);
    }
    timeline.set_resolution(coarsest);
    timeline.set_clock_went_back(facts.went_back_between());
    Boot { timeline, ambiguous, too_short }
}

/// An entry with a place in time, or without one.
enum BootItem<'a> {
    Placed(Draft<'a>),
    Unplaced(Unplaced),
}

/// Facts for nesting about a span, without its times.
struct ItemFacts<'a> {
    kind: NestingKind,
    thread: Option<u32>,
    name: &'a str,
    owner: Option<&'a str>,
}

impl<'a> ItemFacts<'a> {
    /// Finds the place of an entry that ended at its stamp. `begun` is the stamp of a line before
    /// it began. Without an exact stamp of its end, an entry has no place in time.
    fn place(
        self,
        what: Unplaced,
        begun: Option<Stamp>,
        ended: Option<Stamp>,
        told: Estimate,
    ) -> BootItem<'a> {
        let mut what = what;
        if let Some(thread) = self.thread.filter(|_| what.worker.is_empty()) {
            what.worker = format!("pid {thread}");
        }
        let at = |s: Stamp| Duration::from_nanos(s.ns);
        // Without a longest time there is no known start.
        let Some(end) = ended.filter(|end| !end.coarse && told.most.is_some()) else {
            what.took = told.length();
            return BootItem::Unplaced(what);
        };
        let begun = begun.filter(|b| !b.coarse && b.ns <= end.ns).map(at);
        let computed = at(end).saturating_sub(told.drawn);
        let start = begun.map_or(computed, |begun| computed.max(begun));
        let mut span = Span::new(what.name, what.kind, start, at(end));
        if begun != Some(span.start) {
            span.start_certainty = Certainty::Inferred;
        }
        span.took_between = told.bounds();
        // The stamps are closer than the time that it took: they are truncated, or their clock
        // stood.
        if span.drawn() != told.drawn {
            span.took_between = told.most.map(|most| (told.least, most));
        }
        span.worker = what.worker;
        span.cpu = what.cpu;
        span.outcome = what.outcome;
        span.driver = what.driver;
        span.asynchronous = what.asynchronous;
        let ns = |d: Duration| u64::try_from(d.as_nanos()).unwrap_or(u64::MAX);
        let item = NestingItem {
            kind: self.kind,
            start: ns(span.start),
            end: ns(span.end),
            thread: self.thread,
            name: self.name,
            owner: self.owner,
            retry: false,
            asynchronous: span.asynchronous,
            unit: ns(cut_off(end.unit)),
        };
        BootItem::Placed(Draft { span, item })
    }
}

/// Returns the most by which a time between two stamps may exceed what they say, if that shows.
fn cut_off(unit: u64) -> Duration {
    Duration::from_nanos(if unit > MICRO { unit } else { 0 })
}

/// Returns the time between two stamps, if both are exact. If they are equal, `next` is the first
/// later one.
fn gap(begun: Option<Stamp>, ended: Option<Stamp>, next: Option<Stamp>) -> Option<Duration> {
    let (begun, ended) = begun.zip(ended)?;
    let ended = next.filter(|_| begun.ns == ended.ns).unwrap_or(ended);
    let between = ended.ns.checked_sub(begun.ns).filter(|_| !begun.coarse && !ended.coarse)?;
    Some(Duration::from_nanos(between) + cut_off(begun.unit.max(ended.unit)))
}

fn initcall<'a>(call: &'a Initcall, index: usize, rules: &Rules) -> BootItem<'a> {
    let name = match &call.module {
        Some(module) => format!("{} [{module}]", call.function),
        None => call.function.clone(),
    };
    // The stamps of both lines are finer than a tick. Otherwise the printed time is better, since
    // printing itself takes time on a slow console. If both stamps are equal although the call took
    // some time, the clock stood.
    let stood = rules.ticks_call(index, call) || call.took.time > Duration::from_micros(3);
    let gap = gap(call.begun, call.ended, call.next.filter(|_| stood));
    let both = call.begun.zip(call.ended).filter(|_| gap.is_some());
    let mut what = Unplaced::new(name, SpanKind::Initcall, Length::ZERO);
    what.driver = call.module.as_ref().map(Driver::from);
    what.outcome = match call.result {
        -19 | -6 => Outcome::Skipped(error(call.result)),
        // Handlers of kernel parameters are init calls too, and return 1.
        result if result >= 0 => Outcome::Ok,
        result => Outcome::Failed(error(result)),
    };
    let of = ItemFacts {
        kind: NestingKind::Initcall,
        thread: call.thread,
        name: &call.function,
        owner: call.module.as_deref(),
    };
    let told = rules.initcall(index, call, gap);
    let mut placed = of.place(what, call.begun, call.ended, told);
    if let (BootItem::Placed(draft), Some((begun, _))) = (&mut placed, both) {
        draft.item.start = draft.item.start.min(begun.ns);
    }
    placed
}

fn probe<'a>(
    probe: &'a Probe,
    driver: Option<&'a str>,
    retry: bool,
    rules: &Rules,
) -> BootItem<'a> {
    let mut what = Unplaced::new(probe.device.clone(), SpanKind::Probe, Length::ZERO);
    what.driver = driver.map(Driver::from);
    what.cpu = probe.cpu;
    what.worker = probe.worker.clone().unwrap_or_default();
    what.asynchronous = probe.asynchronous;
    what.outcome = outcome(probe, rules);
    let of = ItemFacts {
        kind: NestingKind::Probe,
        thread: probe.thread,
        name: &probe.device,
        owner: driver,
    };
    let mut placed = of.place(what, probe.begun, probe.ended, rules.probe(probe));
    if let BootItem::Placed(draft) = &mut placed {
        draft.item.retry = retry;
    }
    placed
}

/// Returns shutdowns as spans.
pub(crate) fn shutdown(shutdowns: &[Shutdown], drivers: &Drivers) -> Timeline {
    let known: HashSet<&str> = drivers.keys().map(String::as_str).collect();
    let mut timeline = Timeline::new("shutdown");
    for shutdown in shutdowns {
        let (driver, device) = head(&shutdown.head, &known).unwrap_or(("", shutdown.head.as_str()));
        let exact = |s: &Stamp| !s.coarse;
        let at = |s: Stamp| Duration::from_nanos(s.ns);
        let mut what = Unplaced::new(device, SpanKind::Shutdown, Length::UNKNOWN);
        let bus = names::is_bus(driver);
        what.driver = drivers
            .get(device)
            .cloned()
            .or_else(|| (!bus && !driver.is_empty()).then(|| driver.into()));
        what.asynchronous = shutdown.asynchronous;
        // One thread shuts down all devices that aren't called asynchronous.
        what.worker = match shutdown.thread {
            Some(thread) => format!("pid {thread}"),
            None if shutdown.asynchronous => String::new(),
            None => "shutdown".to_owned(),
        };
        let Some(start) = shutdown.begun.filter(exact).map(at) else {
            timeline.push_unplaced(what);
            continue;
        };
        // If the clock was set back, the next line's stamp is no bound.
        let next = shutdown.ended.filter(exact);
        let unit = cut_off(next.map_or(MICRO, |next| next.unit));
        let end = next.map(at).filter(|&end| end >= start);
        let mut span = Span::new(what.name, what.kind, start, end.unwrap_or(start));
        if end.is_some_and(|end| end == start || !unit.is_zero()) {
            let most = span.drawn() + unit.max(Duration::from_nanos(MICRO));
            span.took_between = Some((Duration::ZERO, most));
        }
        span.driver = what.driver;
        span.asynchronous = what.asynchronous;
        span.worker = what.worker;
        span.end_certainty = if end.is_some() { Certainty::UpperBound } else { Certainty::Assumed };
        timeline.push(span);
    }
    timeline.set_clock_went_back(shutdowns.iter().any(Shutdown::goes_back));
    let units = shutdowns.iter().flat_map(|s| [s.begun, s.ended]).flatten().filter(|s| !s.coarse);
    timeline.set_resolution(units.map(|s| cut_off(s.unit)).max().unwrap_or_default());
    timeline
}

/// Returns the outcome of a probe.
pub(crate) fn outcome(probe: &Probe, rules: &Rules) -> Outcome {
    match probe.result {
        517 => Outcome::Deferred(why(probe, "the driver asked for it")),
        -517 => Outcome::Deferred(why(probe, "a supplier was not ready")),
        0 if rules.one_is_bound => match &probe.said {
            Some(said) => ended_with(probe, said.error),
            None => Outcome::Skipped(NOT_BOUND.to_owned()),
        },
        1 if rules.one_is_bound => Outcome::Ok,
        0 => match &probe.said {
            Some(said) if said.by_core => ended_with(probe, said.error),
            _ => Outcome::Ok,
        },
        result => ended_with(probe, -result.saturating_abs()),
    }
}

/// Reason for a probe that did not bind its device, and printed no error.
pub(crate) const NOT_BOUND: &str = "not bound, and no line says why";

fn ended_with(probe: &Probe, error: i64) -> Outcome {
    match error {
        -517 => Outcome::Deferred(why(probe, "the driver asked for it")),
        // Quiet in the kernel too: the driver does not want the device, and another one may.
        -6 | -19 => Outcome::Skipped(self::error(error)),
        error => Outcome::Failed(self::error(error)),
    }
}

fn why(probe: &Probe, otherwise: &str) -> String {
    probe.reason.clone().unwrap_or_else(|| otherwise.to_owned())
}

/// Returns the name of an error in the kernel's sources.
pub(crate) fn error(result: i64) -> String {
    const NAMES: [(i64, &str); 16] = [
        (-1, "EPERM"),
        (-2, "ENOENT"),
        (-5, "EIO"),
        (-6, "ENXIO: no such device or address"),
        (-11, "EAGAIN"),
        (-12, "ENOMEM"),
        (-13, "EACCES"),
        (-14, "EFAULT"),
        (-16, "EBUSY"),
        (-17, "EEXIST"),
        (-19, "ENODEV: no such device"),
        (-22, "EINVAL"),
        (-38, "ENOSYS"),
        (-95, "EOPNOTSUPP"),
        (-110, "ETIMEDOUT"),
        (-524, "ENOTSUPP"),
    ];
    match NAMES.iter().find(|(number, _)| *number == result) {
        Some((_, name)) => (*name).to_owned(),
        None => format!("error {result}"),
    }
}
