//! From what was read to what it means: spans, their edges, and the sentences beside them.

use super::deferral;
use super::facts::Facts;
use super::message::split_head;
use super::nesting::{self, Item, Kind};
use super::policy::{Estimate, Rules};
use super::prefix::{MICRO, Stamp};
use super::records::{Initcall, Probe, Shutdown};
use super::{Form, KernelLog, Prefix, Split, names};
use crate::driver::{self, Driver, Drivers};
use crate::graph::{DeviceGraph, EdgeSource, GraphEdge};
use crate::length::Length;
use crate::model::{Certainty, EdgeKind, Outcome, Span, SpanId, SpanKind, Timeline, Unplaced};
use std::collections::{HashMap, HashSet};
use std::time::Duration;

/// Concludes from the facts of one boot.
pub(crate) fn conclude(mut facts: Facts) -> KernelLog {
    facts.suspicious.sort_by_key(|suspicious| suspicious.line);
    let rules = Rules::of(&facts);
    if rules.late {
        facts.distrust_received();
    }
    let mut drivers = drivers(&mut facts);
    let mut boot = boot(&facts, &rules, &drivers);
    // The drivers that were tried, be a device bound or not.
    let mut tried = drivers.clone();
    for (id, driver) in registered(&boot.timeline) {
        let span = &mut boot.timeline.spans_mut()[id.index()];
        if span.outcome.is_ok() {
            driver.learn(&span.name, &mut drivers);
        }
        driver.learn(&span.name, &mut tried);
        span.driver = Some(driver);
    }
    let mut shutdown = shutdown(&facts.shutdowns, &drivers);
    let graph = graph(&facts, &boot.timeline, &shutdown);
    join(&mut boot.timeline, &graph, false);
    join(&mut shutdown, &graph, true);
    set_drivers(&mut boot.timeline, &drivers);
    let notes = super::notes::notes(&facts, &rules, &mut boot, &mut shutdown);
    let count = |counts: &HashMap<Form, u64>| {
        Form::ALL.iter().filter_map(|f| Some((*f, *counts.get(f)?))).collect()
    };
    KernelLog {
        deferrals: deferral::group(&facts, &rules, &tried),
        deferred_probe: split(&boot.timeline),
        notes,
        boot: boot.timeline,
        shutdown,
        drivers,
        graph,
        forms: count(&facts.forms),
        prefixes: Prefix::ALL.iter().filter_map(|p| Some((*p, *facts.prefixes.get(p)?))).collect(),
        suspicious: facts.suspicious,
        suspicious_total: facts.suspicious_total,
        lines: facts.lines,
        boots: Vec::new(),
        unread: None,
        kernel: facts.kernel,
        command_line: facts.command_line,
        machine: facts.machine,
    }
}

/// The driver of each device, from the best line there is.
fn drivers(facts: &mut Facts) -> Drivers {
    let told = facts.drivers.drain();
    let mut drivers: Drivers = told.map(|(device, driver)| (device, driver.into())).collect();
    let known: HashSet<&str> = facts.probes.iter().map(|p| p.device.as_str()).collect();
    for shutdown in &facts.shutdowns {
        let Some((driver, device)) = head(&shutdown.head, &known) else { continue };
        if !names::is_bus(driver) {
            Driver::from(driver).learn(device, &mut drivers);
        }
    }
    drivers
}

/// The probes right inside an init call, with what that registered: a module, as a rule, is the
/// driver, and `NAME_driver_init` registers `NAME`. Only where no line says better.
fn registered(boot: &Timeline) -> Vec<(SpanId, Driver)> {
    let mut found = Vec::new();
    let probe = |s: &Span| s.kind == SpanKind::Probe && s.driver.is_none();
    for (id, span) in boot.iter().filter(|(_, span)| probe(span)) {
        let Some(call) = span.nested_in.map(|outer| boot.span(outer)) else { continue };
        if call.kind != SpanKind::Initcall {
            continue;
        }
        let name = call.name.split(' ').next().unwrap_or_default();
        let built_in = ["_driver_init", "_drv_init"].into_iter().find_map(|e| name.strip_suffix(e));
        if let Some(driver) = call.driver.as_ref().map(Driver::name).or(built_in) {
            let inferred = span.may_be_nested;
            found.push((id, if inferred { Driver::inferred(driver) } else { driver.into() }));
        }
    }
    found
}

/// Driver and device of a shutdown line. A device that was probed in this log settles where the
/// blank is.
fn head<'a>(head: &'a str, known: &HashSet<&str>) -> Option<(&'a str, &'a str)> {
    let blanks = head.match_indices(' ').map(|(at, _)| (&head[..at], &head[at + 1..]));
    blanks.clone().find(|(_, device)| known.contains(device)).or_else(|| split_head(head))
}

/// The boot's timeline, and what is not in it.
pub(crate) struct Boot {
    pub timeline: Timeline,
    pub ambiguous: usize,
    /// Init calls that printed less than what ran inside them took.
    pub too_short: usize,
}

/// A span to be, with what nesting has to know. An init call's item begins with its first line.
struct Draft<'a> {
    span: Span,
    item: Item<'a>,
}

fn boot(facts: &Facts, rules: &Rules, drivers: &Drivers) -> Boot {
    let calls = facts.initcalls.iter().enumerate();
    let mut all: Vec<Placed<'_>> = calls.map(|(i, call)| initcall(call, i, rules)).collect();
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
        let of = Of { kind: Kind::Fixup, thread: fixup.thread, name: &fixup.device, owner: None };
        let gap = self::gap(fixup.begun, fixup.ended, None);
        all.push(of.place(what, None, fixup.ended, rules.fixup(fixup, gap)));
    }
    let mut timeline = Timeline::new("boot");
    let mut drafts: Vec<Draft<'_>> = Vec::new();
    for one in all {
        match one {
            Placed::There(draft) => drafts.push(draft),
            Placed::Nowhere(unplaced) => timeline.push_unplaced(unplaced),
        }
    }
    drafts.sort_by_key(|d| (d.item.start, std::cmp::Reverse(d.item.end)));

    let items: Vec<Item<'_>> = drafts.iter().map(|d| d.item.clone()).collect();
    let coarsest = Duration::from_nanos(items.iter().map(|i| i.unit).max().unwrap_or(0));
    let places = nesting::decide(&items);
    let (mut ambiguous, mut too_short) = (0, 0);
    for (draft, place) in drafts.iter_mut().zip(&places) {
        draft.span.asynchronous |= place.asynchronous;
        draft.span.may_be_nested = place.ambiguous || place.unproven;
        ambiguous += usize::from(place.ambiguous);
    }
    // A printed duration can be too short: the clock is set while it runs. The time that an init call ran
    // tells. By all that seem to have run inside, and by those that surely did.
    let mut least: HashMap<usize, [Duration; 2]> = HashMap::new();
    for (draft, place) in drafts.iter().zip(&places) {
        if let Some(outer) = place.inside {
            if draft.span.start < drafts[outer].span.start
                && drafts[outer].item.kind == Kind::Initcall
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
        // Less than the cut-off part of a stamp and a printed duration shows nothing.
        too_short += usize::from(seeming > span.drawn() + Duration::from_micros(20));
        let printed = span.took_between.map_or(span.drawn(), |(least, _)| least);
        span.start = Duration::from_nanos(item.start);
        span.queued = span.start;
        let drawn = span.drawn();
        span.took_between = Some((printed.max(sure).min(drawn), drawn));
    }
    // A span runs on the thread of the outermost one around it.
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
    for ((mut draft, worker), place) in drafts.into_iter().zip(workers).zip(places) {
        draft.span.worker = worker;
        draft.span.nested_in = place.inside.map(SpanId);
        timeline.push(draft.span);
    }
    timeline.set_resolution(coarsest);
    timeline.set_clock_went_back(facts.went_back_between());
    Boot { timeline, ambiguous, too_short }
}

/// Whether something has a place in time.
enum Placed<'a> {
    There(Draft<'a>),
    Nowhere(Unplaced),
}

/// What nesting has to know of a span, but for its times.
struct Of<'a> {
    kind: Kind,
    thread: Option<u32>,
    name: &'a str,
    owner: Option<&'a str>,
}

impl<'a> Of<'a> {
    /// Gives something that ended at its stamp its place in time. `begun` is the stamp of a line
    /// before it began. Without an exact stamp of its end it has none.
    fn place(
        self,
        what: Unplaced,
        begun: Option<Stamp>,
        ended: Option<Stamp>,
        told: Estimate,
    ) -> Placed<'a> {
        let mut what = what;
        if let Some(thread) = self.thread.filter(|_| what.worker.is_empty()) {
            what.worker = format!("pid {thread}");
        }
        let at = |s: Stamp| Duration::from_nanos(s.ns);
        // Without a longest time there is no known start.
        let Some(end) = ended.filter(|end| !end.coarse && told.most.is_some()) else {
            what.took = told.length();
            return Placed::Nowhere(what);
        };
        let begun = begun.filter(|b| !b.coarse && b.ns <= end.ns).map(at);
        let computed = at(end).saturating_sub(told.drawn);
        let start = begun.map_or(computed, |begun| computed.max(begun));
        let mut span = Span::new(what.name, what.kind, start, at(end));
        if begun != Some(span.start) {
            span.start_certainty = Certainty::Inferred;
        }
        span.took_between = told.bounds();
        // Stamps that are cut off, or of a clock that stood, are nearer than it took.
        if span.drawn() != told.drawn {
            span.took_between = told.most.map(|most| (told.least, most));
        }
        span.worker = what.worker;
        span.cpu = what.cpu;
        span.outcome = what.outcome;
        span.driver = what.driver;
        span.asynchronous = what.asynchronous;
        let ns = |d: Duration| u64::try_from(d.as_nanos()).unwrap_or(u64::MAX);
        let item = Item {
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
        Placed::There(Draft { span, item })
    }
}

/// By how much a time between two stamps may be longer than they say, where that shows.
fn cut_off(unit: u64) -> Duration {
    Duration::from_nanos(if unit > MICRO { unit } else { 0 })
}

/// The time between two stamps, where both are exact. Where they are one, `next` is the first later
/// one.
fn gap(begun: Option<Stamp>, ended: Option<Stamp>, next: Option<Stamp>) -> Option<Duration> {
    let (begun, ended) = begun.zip(ended)?;
    let ended = next.filter(|_| begun.ns == ended.ns).unwrap_or(ended);
    let between = ended.ns.checked_sub(begun.ns).filter(|_| !begun.coarse && !ended.coarse)?;
    Some(Duration::from_nanos(between) + cut_off(begun.unit.max(ended.unit)))
}

fn initcall<'a>(call: &'a Initcall, index: usize, rules: &Rules) -> Placed<'a> {
    let name = match &call.module {
        Some(module) => format!("{} [{module}]", call.function),
        None => call.function.clone(),
    };
    // The stamps of both lines are finer than a tick; else the printed time is better, since the
    // printing itself takes time on a slow console.
    // Where both are one although it took some time, the clock stood.
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
    let of = Of {
        kind: Kind::Initcall,
        thread: call.thread,
        name: &call.function,
        owner: call.module.as_deref(),
    };
    let told = rules.initcall(index, call, gap);
    let mut placed = of.place(what, call.begun, call.ended, told);
    if let (Placed::There(draft), Some((begun, _))) = (&mut placed, both) {
        draft.item.start = draft.item.start.min(begun.ns);
    }
    placed
}

fn probe<'a>(probe: &'a Probe, driver: Option<&'a str>, retry: bool, rules: &Rules) -> Placed<'a> {
    let mut what = Unplaced::new(probe.device.clone(), SpanKind::Probe, Length::ZERO);
    what.driver = driver.map(Driver::from);
    what.cpu = probe.cpu;
    what.worker = probe.worker.clone().unwrap_or_default();
    what.asynchronous = probe.asynchronous;
    what.outcome = outcome(probe, rules);
    let of = Of { kind: Kind::Probe, thread: probe.thread, name: &probe.device, owner: driver };
    let mut placed = of.place(what, probe.begun, probe.ended, rules.probe(probe));
    if let Placed::There(draft) = &mut placed {
        draft.item.retry = retry;
    }
    placed
}

/// How a probe ended.
pub(super) fn outcome(probe: &Probe, rules: &Rules) -> Outcome {
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

/// What is known of a probe that did not bind its device, and printed no error.
pub(super) const NOT_BOUND: &str = "not bound, and no line says why";

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

fn shutdown(shutdowns: &[Shutdown], drivers: &Drivers) -> Timeline {
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
        // One thread shuts down what is not said to be asynchronous.
        what.worker = match shutdown.thread {
            Some(thread) => format!("pid {thread}"),
            None if shutdown.asynchronous => String::new(),
            None => "shutdown".to_owned(),
        };
        let Some(start) = shutdown.begun.filter(exact).map(at) else {
            timeline.push_unplaced(what);
            continue;
        };
        // Where the clock was set back, the next line's stamp is no bound.
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

/// Every dependency that the log tells.
fn graph(facts: &Facts, boot: &Timeline, shutdown: &Timeline) -> DeviceGraph {
    let mut graph = DeviceGraph::new();
    for (consumer, supplier, source) in &facts.links {
        let parent = *source == EdgeSource::ParentLine;
        let kind = if parent { EdgeKind::Parent } else { EdgeKind::Supplier };
        graph.add(supplier, consumer, kind, *source);
    }
    let spans = boot.spans().iter().chain(shutdown.spans()).map(|s| (s.kind, s.name.as_str()));
    let others = boot.unplaced().iter().chain(shutdown.unplaced());
    let all = spans.chain(others.map(|u| (u.kind, u.name.as_str())));
    let device = |kind: SpanKind| matches!(kind, SpanKind::Probe | SpanKind::Shutdown);
    let devices: HashSet<&str> = all.filter(|(kind, _)| device(*kind)).map(|(_, n)| n).collect();
    let mut ordered: Vec<&str> = devices.iter().copied().collect();
    ordered.sort_unstable();
    // The innermost bridge is the one with the fewest buses behind it.
    let mut behind: HashMap<(&str, u8), (&str, u8)> = HashMap::new();
    for (bridge, first, last) in &facts.bridges {
        let Some((segment, _)) = names::pci(bridge) else { continue };
        for bus in *first..=*last {
            let width = last - first;
            let best = behind.entry((segment, bus)).or_insert((bridge, width));
            if width <= best.1 {
                *best = (bridge, width);
            }
        }
    }
    for &device in &ordered {
        if let Some((segment, bus)) = names::pci(device) {
            if let Some((bridge, _)) = behind.get(&(segment, bus)) {
                if devices.contains(bridge) {
                    graph.add(*bridge, device, EdgeKind::Parent, EdgeSource::BridgeLine);
                }
            }
        }
        // The nearest ancestor that is in this log.
        let parents = std::iter::successors(names::parent(device), |name| names::parent(name));
        if let Some(parent) = parents.take(16).find(|p| devices.contains(p.as_str())) {
            graph.add(parent, device, EdgeKind::Parent, EdgeSource::Name);
        }
    }
    graph
}

/// Puts the edges between devices that have spans into a timeline, except those that it has; in a
/// shutdown they point the other way. Where a device between two others has no span, as it has
/// nothing to probe, the two are joined.
pub(crate) fn join(timeline: &mut Timeline, graph: &DeviceGraph, shutdown: bool) {
    // The last probe that ended well stands for the device: the others were in vain.
    let mut spans: HashMap<String, SpanId> = HashMap::new();
    for (id, span) in timeline.iter() {
        let counts = matches!(span.kind, SpanKind::Probe | SpanKind::Shutdown);
        if counts && (span.outcome.is_ok() || !spans.contains_key(&span.name)) {
            spans.insert(span.name.clone(), id);
        }
    }
    let mut needs: HashMap<&str, Vec<&GraphEdge>> = HashMap::new();
    for edge in graph.edges() {
        needs.entry(&edge.consumer).or_default().push(edge);
    }
    let mut known: HashSet<(SpanId, SpanId)> =
        timeline.edges().iter().map(|e| (e.before, e.after)).collect();
    let mut ordered: Vec<(SpanId, &str)> = spans.iter().map(|(n, id)| (*id, n.as_str())).collect();
    ordered.sort_unstable();
    for (id, name) in ordered {
        let mut to_do: Vec<(&str, Option<EdgeKind>)> = vec![(name, None)];
        let mut seen: HashSet<&str> = HashSet::from([name]);
        while let Some((device, kind)) = to_do.pop() {
            for edge in needs.get(device).into_iter().flatten().rev() {
                let kind = kind.filter(|k| *k == EdgeKind::Supplier).unwrap_or(edge.kind);
                let supplier = edge.supplier.as_str();
                if seen.len() > THROUGH || !seen.insert(supplier) {
                    continue;
                }
                let Some(&needed) = spans.get(supplier) else {
                    to_do.push((supplier, Some(kind)));
                    continue;
                };
                let (before, after) = if shutdown { (id, needed) } else { (needed, id) };
                if known.insert((before, after)) {
                    timeline.push_edge(before, after, kind);
                }
            }
        }
    }
}

/// How many devices without spans are gone through from one that has one.
const THROUGH: usize = 1024;

/// Says the driver of each device that has none yet, or a less sure one.
pub(crate) fn set_drivers(timeline: &mut Timeline, drivers: &Drivers) {
    // Another driver than the one that took the device may have failed.
    let other = |s: &Span| {
        s.driver.is_some() && matches!(s.outcome, Outcome::Failed(_) | Outcome::Skipped(_))
    };
    for span in timeline.spans_mut() {
        if span.kind != SpanKind::Initcall && !other(span) {
            driver::set(&mut span.driver, &span.name, drivers);
        }
    }
    for u in timeline.unplaced_mut() {
        if u.kind != SpanKind::Initcall {
            driver::set(&mut u.driver, &u.name, drivers);
        }
    }
}

/// Where the time of the init call went that waits for the deferred probes.
fn split(boot: &Timeline) -> Option<Split> {
    let waits = |s: &&Span| s.kind == SpanKind::Initcall && s.name == nesting::DEFERRED;
    let (span, call) = boot.iter().find(|(_, s)| waits(s))?;
    let mut shares: HashMap<&str, (usize, Length)> = HashMap::new();
    let mut covered = Duration::ZERO;
    let mut until = call.start;
    let outermost = |s: &&Span| s.nested_in.is_none_or(|outer| outer == span);
    let probes = boot.spans().iter().filter(|s| s.kind == SpanKind::Probe).filter(outermost);
    let mut exact = call.took().is_exact() && boot.unplaced().is_empty();
    let unit = boot.resolution();
    exact &= boot.has_order();
    // They come by start. A worker goes on with them when the call has stopped waiting.
    for inner in probes.filter(|s| s.start < call.end && s.end > call.start) {
        let (start, end) = (inner.start.max(call.start), inner.end.min(call.end));
        let share = shares.entry(&inner.name).or_insert((0, Length::ZERO));
        share.0 += 1;
        let within = end.saturating_sub(start);
        let took = inner.took();
        share.1 = share.1
            + match !boot.clock_went_back() && took.is_exact() && (unit.is_zero() || took == within)
            {
                true => Length::exact(within),
                false => {
                    let least = match boot.clock_went_back() {
                        true => Duration::ZERO,
                        false => took.least().min(within.saturating_sub(unit)),
                    };
                    Length::between(least, within.saturating_add(unit)).within(took)
                }
            };
        exact &= took.is_exact();
        covered += end.saturating_sub(start.max(until));
        until = until.max(end);
    }
    let mut shares: Vec<_> =
        shares.into_iter().map(|(name, (n, took))| (name.to_owned(), n, took)).collect();
    shares.sort_by(|a, b| b.2.told().cmp(&a.2.told()).then_with(|| a.0.cmp(&b.0)));
    let rest = call.drawn().saturating_sub(covered);
    let rest = if exact { Length::exact(rest) } else { Length::about(rest) };
    Some(Split { span, total: call.took(), shares, rest })
}

/// An error as the kernel's sources name it.
pub(super) fn error(result: i64) -> String {
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
