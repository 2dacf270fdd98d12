//! A timeline as tasks with links: what may start when, if nothing but the graph says so.

use super::nesting::Nesting;
use super::order::Order;
use super::schedule::schedule;
use crate::json::ns;
use crate::model::{SpanId, SpanKind, Timeline};
use std::collections::HashMap;
use std::time::Duration;

/// What a task waits for, and for how long beyond that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Link {
    /// The task that waits.
    pub(super) to: usize,
    pub(super) when: When,
    /// Nanoseconds after it.
    pub(super) delay: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum When {
    /// The other one has started: it is the one that makes this one known.
    Start,
    /// The other one is done.
    End,
}

/// One span as something to schedule; tasks have the indexes of their spans.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Task {
    /// Nanoseconds of its own, without those inside it.
    pub(super) work: u64,
    /// Nanoseconds from the beginning before which it can't start whatever else there is.
    pub(super) release: u64,
    /// Who waits for it.
    pub(super) links: Vec<Link>,
    /// How many links lead to it.
    pub(super) waits_for: usize,
    /// How long it takes at least from its start to the end of the last one that it holds up.
    pub(super) rank: u64,
}

/// The tasks of a timeline where everything but an init function is asynchronous.
///
/// * A dependency that was [kept](Timeline::is_kept) holds. One that wasn't held nobody up in this
///   run, so it won't in another.
/// * What ran inside another one may start when that one has got as far as it had then.
/// * Init functions stay in the order of their worker, with what passed between them.
/// * In a timeline with init functions (a boot), what ran inside nothing and waited for nothing was
///   started by somebody whom the log doesn't show, such as a program that loaded a module: it
///   starts no sooner. Elsewhere it can start at once.
pub(super) fn tasks(t: &Timeline, factor: impl Fn(SpanId) -> f64) -> Vec<Task> {
    let mut tasks = graph(t, factor);
    boot_order(t, &mut tasks);
    break_cycles(t, &mut tasks);
    tasks
}

/// The same, but for what init functions and the beginning of a boot ask for.
fn graph(t: &Timeline, factor: impl Fn(SpanId) -> f64) -> Vec<Task> {
    let nesting = Nesting::of(t);
    let scaled = |id: SpanId, time: Duration| scale(ns(time), factor(id));
    let mut tasks: Vec<Task> = t
        .iter()
        .map(|(id, _)| Task { work: scaled(id, nesting.exclusive(id)), ..Task::default() })
        .collect();

    for edge in t.edges().iter().filter(|e| t.is_kept(e) && e.before != e.after) {
        join(&mut tasks, edge.before.index(), edge.after.index(), When::End, 0);
    }
    for (parent, inside) in nesting.children(t).iter().enumerate() {
        // What the parent had run by itself before each of them.
        let (mut own, mut cursor) = (Duration::ZERO, t.spans()[parent].start);
        for &child in inside {
            let span = t.span(child);
            own += span.start.saturating_sub(cursor);
            cursor = cursor.max(span.end);
            join(&mut tasks, parent, child.index(), When::Start, scaled(SpanId(parent), own));
        }
    }
    tasks
}

fn join(tasks: &mut [Task], from: usize, to: usize, when: When, delay: u64) {
    tasks[from].links.push(Link { to, when, delay });
    tasks[to].waits_for += 1;
}

fn boot_order(t: &Timeline, tasks: &mut [Task]) {
    let nesting = Nesting::of(t);
    let origin = t.origin();
    let outermost = |id: SpanId| nesting.parent(id).is_none();
    let mut initcalls: Vec<SpanId> = t
        .iter()
        .filter(|&(id, s)| s.kind == SpanKind::Initcall && outermost(id))
        .map(|(id, _)| id)
        .collect();
    initcalls.sort_by_key(|&id| (t.span(id).start, t.span(id).end, id));
    let is_boot = !initcalls.is_empty();
    let mut last: HashMap<&str, SpanId> = HashMap::new();
    for &id in &initcalls {
        let span = t.span(id);
        let known = Some(span.worker.as_str()).filter(|worker| !worker.is_empty());
        let before = known.and_then(|worker| last.insert(worker, id));
        if let Some(before) = before.filter(|&before| t.span(before).end <= span.start) {
            let between = span.start.saturating_sub(t.span(before).end);
            join(tasks, before.index(), id.index(), When::End, ns(between));
        }
    }
    if is_boot {
        for (id, span) in t.iter().filter(|&(id, _)| outermost(id)) {
            let task = &mut tasks[id.index()];
            if task.waits_for == 0 {
                task.release = ns(span.start.saturating_sub(origin));
            }
        }
    }
}

/// Takes out the links that would close a cycle, which only spans of no length at one moment can
/// have, and finds the ranks.
fn break_cycles(t: &Timeline, tasks: &mut [Task]) {
    let after: Vec<Vec<usize>> =
        tasks.iter().map(|task| task.links.iter().map(|link| link.to).collect()).collect();
    let order = Order::of(&after, |i| t.spans()[i].end);
    for i in 0..tasks.len() {
        let links = std::mem::take(&mut tasks[i].links);
        let (kept, closing): (Vec<Link>, Vec<Link>) =
            links.into_iter().partition(|link| order.keeps(i, link.to));
        tasks[i].links = kept;
        for link in closing {
            tasks[link.to].waits_for -= 1;
        }
    }
    for &i in order.nodes.iter().rev() {
        let work = tasks[i].work;
        let after = tasks[i].links.iter().map(|link| {
            let from = if link.when == When::End { work } else { 0 };
            from.saturating_add(link.delay).saturating_add(tasks[link.to].rank)
        });
        tasks[i].rank = after.max().unwrap_or(0).max(work);
    }
}

/// By how much each span could be later, or longer, without the end of it all being so, with a worker
/// for everything that is ready.
pub(super) fn slack(t: &Timeline) -> Vec<Duration> {
    let tasks = tasks(t, |_| 1.0);
    let placed = schedule(&tasks, None);
    let end = placed.iter().map(|p| p.end).max().unwrap_or(0);
    let left = tasks
        .iter()
        .zip(&placed)
        .map(|(task, p)| end.saturating_sub(p.start.saturating_add(task.rank)));
    left.map(Duration::from_nanos).collect()
}

/// How long the longest chain through `ids` is, if all else takes no time and nothing keeps anybody
/// but the known graph.
pub(super) fn chain_of(t: &Timeline, ids: &[SpanId]) -> Duration {
    let mut counts = vec![0.0; t.spans().len()];
    for id in ids {
        counts[id.index()] = 1.0;
    }
    let mut tasks = graph(t, |id| counts[id.index()]);
    break_cycles(t, &mut tasks);
    Duration::from_nanos(tasks.iter().map(|task| task.rank).max().unwrap_or(0))
}

/// `ns` times `factor`; exact for a factor of 1.
pub(super) fn scale(ns: u64, factor: f64) -> u64 {
    if factor == 1.0 { ns } else { (ns as f64 * factor.max(0.0)).round() as u64 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{EdgeKind, Span};
    use std::time::Duration;

    fn push(t: &mut Timeline, kind: SpanKind, worker: &str, start: u64, end: u64) -> SpanId {
        let ns = Duration::from_nanos;
        t.push(Span::new("x", kind, ns(start), ns(end)).on(worker, None))
    }

    #[test]
    fn a_nested_probe_may_start_when_its_parent_has_got_that_far() {
        let mut t = Timeline::new("t");
        push(&mut t, SpanKind::Probe, "w", 0, 100);
        push(&mut t, SpanKind::Probe, "w", 10, 40);
        push(&mut t, SpanKind::Probe, "w", 60, 90);
        let tasks = tasks(&t, |_| 1.0);
        let link = |to, delay| Link { to, when: When::Start, delay };
        assert_eq!(tasks[0].links, [link(1, 10), link(2, 30)]);
        assert_eq!(tasks.iter().map(|t| t.work).collect::<Vec<_>>(), [40, 30, 30]);
        assert_eq!(tasks.iter().map(|t| t.rank).collect::<Vec<_>>(), [60, 30, 30]);
    }

    #[test]
    fn init_functions_keep_their_order_and_what_passed_between_them() {
        let mut t = Timeline::new("t");
        push(&mut t, SpanKind::Initcall, "1", 5, 10);
        push(&mut t, SpanKind::Initcall, "1", 12, 20);
        push(&mut t, SpanKind::Initcall, "7", 30, 31);
        push(&mut t, SpanKind::Probe, "", 40, 45);
        let tasks = tasks(&t, |_| 1.0);
        assert_eq!(tasks[0].links, [Link { to: 1, when: When::End, delay: 2 }]);
        // From the beginning, which is the first one's start.
        assert_eq!(tasks.iter().map(|t| t.release).collect::<Vec<_>>(), [0, 0, 25, 35]);
    }

    #[test]
    fn without_init_functions_what_waits_for_nobody_can_start_at_once() {
        let mut t = Timeline::new("t");
        push(&mut t, SpanKind::Shutdown, "w", 5, 10);
        push(&mut t, SpanKind::Shutdown, "w", 10, 30);
        assert!(tasks(&t, |_| 1.0).iter().all(|t| t.release == 0 && t.waits_for == 0));
    }

    #[test]
    fn a_cycle_of_spans_without_length_is_broken() {
        let mut t = Timeline::new("t");
        let a = push(&mut t, SpanKind::Probe, "", 5, 5);
        let b = push(&mut t, SpanKind::Probe, "", 5, 5);
        t.push_edge(a, b, EdgeKind::Supplier);
        t.push_edge(b, a, EdgeKind::Supplier);
        t.push_edge(a, a, EdgeKind::Supplier);
        let tasks = tasks(&t, |_| 1.0);
        assert_eq!((tasks[0].waits_for, tasks[1].waits_for), (0, 1));
        assert_eq!((tasks[0].links.len(), tasks[1].links.len()), (1, 0));
    }

    #[test]
    fn a_factor_of_one_changes_no_bit() {
        assert_eq!(scale(u64::MAX, 1.0), u64::MAX);
        assert_eq!((scale(7, 0.5), scale(100, 0.0), scale(100, -1.0)), (4, 0, 0));
    }
}
