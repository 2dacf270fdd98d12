//! The devices in a log: their dependencies, with the edges between spans that follow, and their
//! drivers. Drivers come from the lines that name them and from the surroundings of probes.

use std::collections::{BTreeMap, HashMap, HashSet};

use corewise_timeline::{Driver, EdgeKind, Outcome, Span, SpanId, SpanKind, Timeline};

use crate::facts::Facts;
use crate::graph::{DeviceGraph, EdgeSource, GraphEdge};
use crate::message::{names, split_head};

/// Returns every dependency in the log.
pub(crate) fn graph(facts: &Facts, boot: &Timeline, shutdown: &Timeline) -> DeviceGraph {
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
    // The innermost bridge has the fewest buses behind it.
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
        // The nearest ancestor in this log.
        let parents = std::iter::successors(names::parent(device), |name| names::parent(name));
        if let Some(parent) = parents.take(16).find(|p| devices.contains(p.as_str())) {
            graph.add(parent, device, EdgeKind::Parent, EdgeSource::Name);
        }
    }
    graph
}

/// Adds the edges between devices with spans to a timeline, unless it has them. In a shutdown they
/// point the other way. If a device between two others has no span, since it has nothing to probe,
/// the two are joined.
pub(crate) fn join(timeline: &mut Timeline, graph: &DeviceGraph, shutdown: bool) {
    // The last successful probe stands for the device: the others were in vain.
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

/// Largest number of devices without spans that are passed on the way from a device with one.
const THROUGH: usize = 1024;

/// The drivers of devices, by the devices' names.
pub(crate) type Drivers = BTreeMap<String, Driver>;

/// Returns true if `driver` is better known than `known`: nothing is known, or something likely
/// while `driver` is proven.
pub(crate) fn is_surer(driver: &Driver, known: Option<&Driver>) -> bool {
    known.is_none_or(|known| known.is_inferred() && !driver.is_inferred())
}

/// Records `driver` for a device, unless what is known is as sure.
pub(crate) fn learn(drivers: &mut Drivers, device: &str, driver: &Driver) {
    if is_surer(driver, drivers.get(device)) {
        drivers.insert(device.to_owned(), driver.clone());
    }
}

/// Sets the driver of `device` if `drivers` has a surer one.
pub(crate) fn set(known: &mut Option<Driver>, device: &str, drivers: &Drivers) {
    if let Some(driver) = drivers.get(device).filter(|driver| is_surer(driver, known.as_ref())) {
        *known = Some(driver.clone());
    }
}

/// Returns the driver of each device, from the best line in the log.
pub(crate) fn drivers_of(facts: &mut Facts) -> Drivers {
    let told = facts.drivers.drain();
    let mut drivers: Drivers = told.map(|(device, driver)| (device, driver.into())).collect();
    let known: HashSet<&str> = facts.probes.iter().map(|p| p.device.as_str()).collect();
    for shutdown in &facts.shutdowns {
        let Some((driver, device)) = head(&shutdown.head, &known) else { continue };
        if !names::is_bus(driver) {
            learn(&mut drivers, device, &Driver::from(driver));
        }
    }
    drivers
}

/// Returns the probes directly inside an init call, with the driver that the call registered. A
/// module, as a rule, is the driver, and `NAME_driver_init` registers `NAME`. Used only if no line
/// is better.
pub(crate) fn registered(boot: &Timeline) -> Vec<(SpanId, Driver)> {
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

/// Sets the driver of each device that has none yet, or a less sure one.
pub(crate) fn set_drivers(timeline: &mut Timeline, drivers: &Drivers) {
    // A driver that failed may be another than the one that took the device.
    let other = |s: &Span| {
        s.driver.is_some() && matches!(s.outcome, Outcome::Failed(_) | Outcome::Skipped(_))
    };
    for span in timeline.spans_mut() {
        if span.kind != SpanKind::Initcall && !other(span) {
            set(&mut span.driver, &span.name, drivers);
        }
    }
    for u in timeline.unplaced_mut() {
        if u.kind != SpanKind::Initcall {
            set(&mut u.driver, &u.name, drivers);
        }
    }
}

/// Splits a shutdown line into driver and device. A device that was probed in this log decides
/// which blank divides them.
pub(crate) fn head<'a>(head: &'a str, known: &HashSet<&str>) -> Option<(&'a str, &'a str)> {
    let blanks = head.match_indices(' ').map(|(at, _)| (&head[..at], &head[at + 1..]));
    blanks.clone().find(|(_, device)| known.contains(device)).or_else(|| split_head(head))
}
