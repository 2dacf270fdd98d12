//! Replay of a run in which some spans take another time.

use super::nesting::Nesting;
use super::tasks::NodeOrder;
use super::tasks::scale;
use crate::span::{SpanId, Timeline};
use crate::units::ns;
use std::collections::HashMap;

/// Returns the start and end of each span, in nanoseconds from the timeline's
/// [origin](Timeline::origin), if each took `factor` times as long and all else were as it was:
///
/// * each worker runs the same spans in the same order, nested ones inside the same ones;
/// * dependencies that were kept hold;
/// * the time between a span's last predecessor and its start passes again, as it went into
///   unrecorded work.
///
/// If every factor is 1, the result is the run itself.
pub(super) fn replay(t: &Timeline, factor: impl Fn(SpanId) -> f64) -> Vec<(u64, u64)> {
    let nesting = Nesting::of(t);
    let origin = t.origin();
    let at = |moment: std::time::Duration| ns(moment.saturating_sub(origin));
    let n = t.spans().len();
    // A span has two nodes: 2i is its start, 2i + 1 its end.
    let mut graph = Graph::new(2 * n);
    let stamp = |node: usize| {
        let span = &t.spans()[node / 2];
        at(if node % 2 == 0 { span.start } else { span.end })
    };

    for edge in t.edges().iter().filter(|e| t.is_kept(e) && e.before != e.after) {
        graph.join(2 * edge.before.index() + 1, 2 * edge.after.index());
    }
    for (i, inside) in nesting.children(t).iter().enumerate() {
        // The span's own time comes in pieces, between those nested in it.
        let mut last = 2 * i;
        for child in inside {
            // If two overlap in part by their stamps, the second one counts from its beginning. If
            // it outlives this one, it holds it up no longer.
            let [begins, ends] = [2 * child.index(), 2 * child.index() + 1];
            graph.own(if stamp(last) <= stamp(begins) { last } else { 2 * i }, begins, i);
            if stamp(last) <= stamp(ends) && stamp(ends) <= stamp(2 * i + 1) {
                last = ends;
            }
        }
        graph.own(last, 2 * i + 1, i);
    }
    for (before, after) in worker_order(t, &nesting) {
        graph.join(2 * before.index() + 1, 2 * after.index());
    }

    let mut moved: Vec<u64> = vec![0; 2 * n];
    for node in graph.order(|node| (stamp(node), node)) {
        // The predecessor that decided the moment, and the span whose time passes in between.
        let links = &graph.before[node];
        moved[node] = match links.iter().map(|way| stamp(way.from)).max() {
            None => stamp(node),
            Some(latest) => {
                let own = links.iter().find_map(|way| way.own);
                let passed = stamp(node).saturating_sub(latest);
                let passed = own.map_or(passed, |i| scale(passed, factor(SpanId(i))));
                let from = links.iter().map(|way| moved[way.from]).max().unwrap_or(0);
                from.saturating_add(passed)
            }
        };
    }
    (0..n).map(|i| (moved[2 * i], moved[2 * i + 1].max(moved[2 * i]))).collect()
}

/// Returns the pairs of outermost spans that follow each other on each known worker.
fn worker_order(t: &Timeline, nesting: &Nesting) -> Vec<(SpanId, SpanId)> {
    let mut outermost: Vec<SpanId> = t
        .iter()
        .filter(|&(id, span)| !span.worker.is_empty() && nesting.parent(id).is_none())
        .map(|(id, _)| id)
        .collect();
    outermost.sort_by_key(|&id| (t.span(id).start, t.span(id).end, id));
    // If spans overlap in part: the one that ended last among those that had ended.
    let mut last: HashMap<&str, Vec<SpanId>> = HashMap::new();
    let mut pairs = Vec::new();
    for id in outermost {
        let span = t.span(id);
        let before = last.entry(&span.worker).or_default();
        let ended = before.iter().rposition(|&b| t.span(b).end <= span.start);
        if let Some(ended) = ended {
            pairs.push((before[ended], id));
            before.drain(..=ended);
        }
        before.push(id);
        before.sort_by_key(|&b| (t.span(b).end, b));
        // A made-up log of nothing but overlaps must not take very long.
        if before.len() > 64 {
            before.remove(0);
        }
    }
    pairs
}

/// Link from a node to its predecessor.
#[derive(Clone, Copy)]
struct NodeLink {
    from: usize,
    /// The span whose own time passes on it. None: unrecorded time.
    own: Option<usize>,
}

struct Graph {
    before: Vec<Vec<NodeLink>>,
}

impl Graph {
    fn new(nodes: usize) -> Graph {
        Graph { before: vec![Vec::new(); nodes] }
    }

    fn join(&mut self, from: usize, to: usize) {
        self.before[to].push(NodeLink { from, own: None });
    }

    fn own(&mut self, from: usize, to: usize, span: usize) {
        self.before[to].push(NodeLink { from, own: Some(span) });
    }

    /// Returns the nodes in an order in which each comes after its predecessors; among those that
    /// can come next, the first by `key`. Links that would close a cycle are removed: only equal
    /// moments have such.
    fn order<K: Ord>(&mut self, key: impl Fn(usize) -> K) -> Vec<usize> {
        let mut after: Vec<Vec<usize>> = vec![Vec::new(); self.before.len()];
        for (to, links) in self.before.iter().enumerate() {
            for way in links {
                after[way.from].push(to);
            }
        }
        let order = NodeOrder::of(&after, key);
        for (to, links) in self.before.iter_mut().enumerate() {
            links.retain(|way| order.keeps(way.from, to));
        }
        order.nodes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::timeline;
    use crate::span::SpanKind;

    #[test]
    fn a_faster_span_moves_up_those_that_it_held_up_and_no_others() {
        type Spans<'a> = &'a [(&'a str, u64, u64)];
        type Edges<'a> = &'a [(usize, usize)];
        type Case<'a> = (Spans<'a>, Edges<'a>, usize, [(u64, u64); 3]);
        let cases: [Case<'_>; 4] = [
            // Later spans of the same worker move up.
            (&[("a", 0, 10), ("a", 12, 20), ("b", 11, 30)], &[], 0, [(0, 5), (7, 15), (11, 30)]),
            // The third one waits for both. The second one is done at 8.
            (
                &[("a", 0, 10), ("b", 0, 8), ("c", 10, 12)],
                &[(0, 2), (1, 2)],
                0,
                [(0, 5), (0, 8), (8, 10)],
            ),
            // A nested span makes the outer one shorter, and the outer one's own time moves it.
            (&[("a", 0, 20), ("a", 4, 14), ("a", 20, 21)], &[], 1, [(0, 15), (4, 9), (15, 16)]),
            (&[("a", 0, 20), ("a", 4, 14), ("a", 20, 21)], &[], 0, [(0, 15), (2, 12), (15, 16)]),
        ];
        for (spans, edges, halved, found) in cases {
            let t = timeline(SpanKind::Probe, spans, edges);
            let half = |id: SpanId| if id.index() == halved { 0.5 } else { 1.0 };
            let found = found.map(|(start, end)| (start * 1_000_000, end * 1_000_000));
            assert_eq!(replay(&t, half), found, "{spans:?} {halved}");
        }
    }
}
