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
    use crate::span::{EdgeKind, Span, SpanKind};
    use std::time::Duration;

    fn timeline(spans: &[(&str, u64, u64)], edges: &[(usize, usize)]) -> Timeline {
        let ns = Duration::from_nanos;
        let mut t = Timeline::new("t");
        for &(worker, start, end) in spans {
            t.push(Span::new("x", SpanKind::Probe, ns(start), ns(end)).on(worker, None));
        }
        for &(before, after) in edges {
            t.push_edge(SpanId(before), SpanId(after), EdgeKind::Supplier);
        }
        t
    }

    #[test]
    fn later_spans_of_the_same_worker_move_up_and_those_of_others_stay() {
        let t = timeline(&[("a", 0, 10), ("a", 12, 20), ("b", 11, 30)], &[]);
        let half = |id: SpanId| if id.index() == 0 { 0.5 } else { 1.0 };
        assert_eq!(replay(&t, half), [(0, 5), (7, 15), (11, 30)]);
    }

    #[test]
    fn a_dependency_holds_and_the_slack_before_it_is_used_up_first() {
        // The third one waits for both; the second one is done at 8.
        let t = timeline(&[("a", 0, 10), ("b", 0, 8), ("c", 10, 12)], &[(0, 2), (1, 2)]);
        let half = |id: SpanId| if id.index() == 0 { 0.5 } else { 1.0 };
        assert_eq!(replay(&t, half), [(0, 5), (0, 8), (8, 10)]);
    }

    #[test]
    fn a_probe_inside_another_one_makes_that_one_shorter_by_what_it_saves() {
        let t = timeline(&[("a", 0, 20), ("a", 4, 14), ("a", 20, 21)], &[]);
        let half = |id: SpanId| if id.index() == 1 { 0.5 } else { 1.0 };
        assert_eq!(replay(&t, half), [(0, 15), (4, 9), (15, 16)]);
        let outer = |id: SpanId| if id.index() == 0 { 0.5 } else { 1.0 };
        assert_eq!(replay(&t, outer), [(0, 15), (2, 12), (15, 16)]);
    }

    #[test]
    fn with_nothing_changed_it_is_the_run_itself() {
        let mut rng = fastrand::Rng::with_seed(3);
        let mut random = |below: u64| rng.u64(..below);
        for _ in 0..400 {
            let n = 1 + random(10) as usize;
            let spans: Vec<(&str, u64, u64)> = (0..n)
                .map(|_| {
                    let start = 3 + random(14);
                    (["", "a", "b"][random(3) as usize], start, start + random(8))
                })
                .collect();
            let edges: Vec<(usize, usize)> = (0..random(16))
                .map(|_| (random(n as u64) as usize, random(n as u64) as usize))
                .collect();
            let t = timeline(&spans, &edges);
            let origin = spans.iter().map(|s| s.1).min().unwrap();
            let as_it_was: Vec<_> = spans.iter().map(|s| (s.1 - origin, s.2 - origin)).collect();
            assert_eq!(replay(&t, |_| 1.0), as_it_was, "{spans:?} {edges:?}");

            // A faster span never makes the end later, and saves no more than it was made faster
            // by.
            let which = random(n as u64) as usize;
            let faster = replay(&t, |id| if id.index() == which { 0.25 } else { 1.0 });
            let end = |spans: &[(u64, u64)]| spans.iter().map(|s| s.1).max().unwrap();
            let took = as_it_was[which].1 - as_it_was[which].0;
            assert!(end(&faster) <= end(&as_it_was));
            assert!(end(&as_it_was) - end(&faster) <= took, "{spans:?} {edges:?}");
        }
    }
}
