//! The dependencies that a log tells, and the edges between spans that follow from them.

use crate::facts::Facts;
use crate::graph::{DeviceGraph, EdgeSource, GraphEdge};
use crate::message::names;
use corewise_timeline::{EdgeKind, SpanId, SpanKind, Timeline};
use std::collections::{HashMap, HashSet};

/// Every dependency that the log tells.
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
