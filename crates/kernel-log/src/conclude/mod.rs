//! The conclusions from the facts of a log: spans, their edges, and notes.

mod devices;
mod nesting;
mod notes;
mod policy;
mod spans;

use crate::facts::Facts;
use crate::form::{Form, Prefix};
use crate::graph::DeviceGraph;
use crate::log::{Bound, Deferral, KernelLog, Split, SplitShare};
use corewise_timeline::{Driver, Length, Outcome, Span, SpanKind, Timeline};
use devices::{Drivers, drivers_of, is_surer, learn, registered, set, set_drivers};
use policy::Rules;
use spans::outcome;
use std::collections::HashMap;
use std::time::Duration;

impl KernelLog {
    /// Adds a graph from another source. New edges go into both timelines, the drivers to devices
    /// that had none, or only a [likely](Driver::is_inferred) one.
    pub fn apply(&mut self, graph: &DeviceGraph) {
        self.graph.merge(graph);
        for (device, name) in &graph.drivers {
            learn(&mut self.drivers, device, &Driver::from(name));
        }
        devices::join(&mut self.boot, &self.graph, false);
        devices::join(&mut self.shutdown, &self.graph, true);
        set_drivers(&mut self.boot, &self.drivers);
        set_drivers(&mut self.shutdown, &self.drivers);
        for deferral in &mut self.deferrals {
            set(&mut deferral.driver, &deferral.device, &self.drivers);
        }
    }
}

/// Draws the conclusions from the facts of one boot.
pub(crate) fn conclude(mut facts: Facts) -> KernelLog {
    facts.suspicious.sort_by_key(|suspicious| suspicious.line);
    let rules = Rules::of(&facts);
    if rules.late {
        facts.distrust_received();
    }
    let mut drivers = drivers_of(&mut facts);
    let mut boot = spans::boot(&facts, &rules, &drivers);
    // Drivers that were tried, even on devices that weren't bound.
    let mut tried = drivers.clone();
    for (id, driver) in registered(&boot.timeline) {
        let span = &mut boot.timeline.spans_mut()[id.index()];
        if span.outcome.is_ok() {
            learn(&mut drivers, &span.name, &driver);
        }
        learn(&mut tried, &span.name, &driver);
        span.driver = Some(driver);
    }
    let mut shutdown = spans::shutdown(&facts.shutdowns, &drivers);
    let graph = devices::graph(&facts, &boot.timeline, &shutdown);
    devices::join(&mut boot.timeline, &graph, false);
    devices::join(&mut shutdown, &graph, true);
    set_drivers(&mut boot.timeline, &drivers);
    let notes = notes::notes(&facts, &rules, &mut boot, &mut shutdown);
    let count = |counts: &HashMap<Form, u64>| {
        Form::ALL.iter().filter_map(|f| Some((*f, *counts.get(f)?))).collect()
    };
    KernelLog {
        deferrals: deferrals(&facts, &rules, &tried),
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

/// Returns how the init call that waits for the deferred probes spent its time.
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
    // Probes come by start. A worker continues them after the call has stopped waiting.
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
    let share =
        |(device, (times, took)): (&str, _)| SplitShare { device: device.to_owned(), times, took };
    let mut shares: Vec<_> = shares.into_iter().map(share).collect();
    shares.sort_by(|a, b| b.took.told().cmp(&a.took.told()).then_with(|| a.device.cmp(&b.device)));
    let rest = call.drawn().saturating_sub(covered);
    let rest = if exact { Length::exact(rest) } else { Length::about(rest) };
    Some(Split { span, total: call.took(), shares, rest })
}

/// Returns all devices whose probes were deferred, the most expensive first.
fn deferrals(facts: &Facts, rules: &Rules, drivers: &Drivers) -> Vec<Deferral> {
    let mut groups: HashMap<&str, Deferral> = HashMap::new();
    for probe in &facts.probes {
        let ended = probe.ended.filter(|s| !s.coarse).map(|s| Duration::from_nanos(s.ns));
        match outcome(probe, rules) {
            Outcome::Deferred(_) => {
                let known = drivers.get(&probe.device);
                let named = probe.driver.as_ref().map(Driver::from);
                let group = groups.entry(&probe.device).or_insert_with(|| Deferral {
                    device: probe.device.clone(),
                    driver: named.filter(|named| is_surer(named, known)).or(known.cloned()),
                    first: ended,
                    reasons: facts.reasons.get(&probe.device).cloned().unwrap_or_default(),
                    ..Deferral::default()
                });
                group.attempts += 1;
                group.by_driver += usize::from(probe.result != -517);
                group.last = ended;
                group.total = group.total + rules.probe(probe).length();
                group.bound = Bound::Never;
            }
            Outcome::Ok => {
                if let Some(group) = groups.get_mut(probe.device.as_str()) {
                    if group.bound == Bound::Never {
                        group.bound = ended.map_or(Bound::Somewhen, Bound::At);
                    }
                }
            }
            _ => {}
        }
    }
    let mut groups: Vec<Deferral> = groups.into_values().collect();
    groups.sort_by(|a, b| {
        let rank = |d: &Deferral| (d.total.told(), d.attempts);
        rank(b).cmp(&rank(a)).then_with(|| a.device.cmp(&b.device))
    });
    groups
}
