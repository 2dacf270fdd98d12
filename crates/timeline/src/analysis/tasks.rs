//! A timeline as tasks with links: the earliest start of each task by the graph alone.
//!
//! This one graph serves three purposes: the bound of the run ([`chain`]), each span's [`slack`],
//! and list scheduling ([`schedule`]). The last one predicts where and when each task runs with a
//! given number of workers.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::time::Duration;

use super::nesting::Nesting;
use crate::length::Length;
use crate::span::{SpanId, SpanKind, Timeline};
use crate::units::ns;

/// A link to a task that waits, with a further delay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Link {
    /// The task that waits.
    pub(super) to: usize,
    pub(super) when: LinkKind,
    /// Delay after it, in nanoseconds.
    pub(super) delay: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LinkKind {
    /// The predecessor has started: it makes this task known.
    Start,
    /// The predecessor is done.
    End,
}

/// One span as something to schedule; tasks have the indexes of their spans.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Task {
    /// Own time in nanoseconds, without the spans inside it.
    pub(super) work: u64,
    /// Earliest possible start, in nanoseconds from the beginning, whatever else there is.
    pub(super) release: u64,
    /// Tasks that wait for it.
    pub(super) links: Vec<Link>,
    /// Number of links that lead to it.
    pub(super) waits_for: usize,
    /// Minimum time from its start to the end of the last task that depends on it.
    pub(super) rank: u64,
}

/// The duration that a span is given, of those that are possible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TimeBound {
    /// The shortest duration.
    Least,
    /// The length of its bar.
    Drawn,
    /// The longest duration, or the length of its bar if there is no upper bound.
    Most,
}

/// Computes `find` of `t` with each length as it is drawn, and returns it as exact as the lengths
/// are.
pub(super) fn as_sure_as(t: &Timeline, find: impl Fn(TimeBound) -> u64) -> Length {
    let drawn = Duration::from_nanos(find(TimeBound::Drawn));
    if t.is_exact() {
        return Length::exact(drawn);
    }
    // A missing span may have delayed others, or be one that others waited for in vain. Stamps that
    // are cut off leave the graph itself open: which edges were kept, and how spans nest.
    match t.unplaced().is_empty() && t.has_order() {
        _ if drawn.is_zero() && t.spans().iter().any(|span| span.took().told().is_none()) => {
            return Length::UNKNOWN;
        }
        true => {}
        false => return Length::about(drawn),
    }
    let [least, most] = [TimeBound::Least, TimeBound::Most].map(&find);
    let least = Duration::from_nanos(least).min(drawn);
    let most = Duration::from_nanos(most).max(drawn);
    match t.spans().iter().all(|span| span.took().most().is_some()) {
        true => Length::between(least, most).telling(drawn),
        false => Length::at_least(least).telling(drawn),
    }
}

/// Returns the tasks of a timeline in which everything but an init function is asynchronous.
///
/// * A dependency that was [kept](Timeline::is_kept) holds. One that wasn't kept delayed nothing in
///   this run, so it delays nothing in another.
/// * A nested span may start when the outer one has progressed as far as it had then.
/// * Init functions keep the order of their worker, with the time that passed between them.
/// * A span inside nothing that waited for nothing known is ready no sooner than it was. A log
///   doesn't show what started it, such as a program that loaded a module. A shutdown is different:
///   a loop over a list called each of them, and none has to wait for that.
pub(super) fn tasks(t: &Timeline, taking: TimeBound, factor: impl Fn(SpanId) -> f64) -> Vec<Task> {
    let mut tasks = graph(t, taking, factor);
    releases(t, &mut tasks);
    break_cycles(t, &mut tasks);
    tasks
}

/// Returns the tasks without the order of init functions, and without ready times.
fn graph(t: &Timeline, taking: TimeBound, factor: impl Fn(SpanId) -> f64) -> Vec<Task> {
    let nesting = Nesting::of(t);
    let scaled = |id: SpanId, time: Duration| scale(ns(time), factor(id));
    let mut tasks: Vec<Task> = t
        .iter()
        .map(|(id, _)| Task { work: scaled(id, nesting.own(id, taking)), ..Task::default() })
        .collect();

    for edge in t.edges().iter().filter(|e| t.is_kept(e) && e.before != e.after) {
        join(&mut tasks, edge.before.index(), edge.after.index(), LinkKind::End, 0);
    }
    for (parent, inside) in nesting.children(t).iter().enumerate() {
        // The own time of the parent before each of them.
        let (mut own, mut cursor) = (Duration::ZERO, t.spans()[parent].start);
        for &child in inside {
            let span = t.span(child);
            own += span.start.saturating_sub(cursor);
            cursor = cursor.max(span.end);
            join(&mut tasks, parent, child.index(), LinkKind::Start, scaled(SpanId(parent), own));
        }
    }
    tasks
}

fn join(tasks: &mut [Task], from: usize, to: usize, when: LinkKind, delay: u64) {
    tasks[from].links.push(Link { to, when, delay });
    tasks[to].waits_for += 1;
}

fn releases(t: &Timeline, tasks: &mut [Task]) {
    let nesting = Nesting::of(t);
    let origin = t.origin();
    let outermost = |id: SpanId| nesting.parent(id).is_none();
    let mut initcalls: Vec<SpanId> = t
        .iter()
        .filter(|&(id, s)| s.kind == SpanKind::Initcall && outermost(id))
        .map(|(id, _)| id)
        .collect();
    initcalls.sort_by_key(|&id| (t.span(id).start, t.span(id).end, id));
    let mut last: HashMap<&str, SpanId> = HashMap::new();
    for &id in &initcalls {
        let span = t.span(id);
        let known = Some(span.worker.as_str()).filter(|worker| !worker.is_empty());
        let before = known.and_then(|worker| last.insert(worker, id));
        if let Some(before) = before.filter(|&before| t.span(before).end <= span.start) {
            let between = span.start.saturating_sub(t.span(before).end);
            join(tasks, before.index(), id.index(), LinkKind::End, ns(between));
        }
    }
    for (id, span) in t.iter().filter(|&(id, s)| s.kind != SpanKind::Shutdown && outermost(id)) {
        let task = &mut tasks[id.index()];
        if task.waits_for == 0 {
            task.release = ns(span.queued.saturating_sub(origin));
        }
    }
}

/// Removes the links that would close a cycle, which only spans of no length at one moment can
/// have, and computes the ranks.
fn break_cycles(t: &Timeline, tasks: &mut [Task]) {
    let after: Vec<Vec<usize>> =
        tasks.iter().map(|task| task.links.iter().map(|link| link.to).collect()).collect();
    let order = NodeOrder::of(&after, |i| t.spans()[i].end);
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
            let from = if link.when == LinkKind::End { work } else { 0 };
            from.saturating_add(link.delay).saturating_add(tasks[link.to].rank)
        });
        tasks[i].rank = after.max().unwrap_or(0).max(work);
    }
}

/// Returns the time by which each span could be later, or longer, without delaying the end, with a
/// worker for everything that is ready.
pub(super) fn slack(t: &Timeline) -> Vec<Length> {
    let of = |taking| {
        let tasks = tasks(t, taking, |_| 1.0);
        let placed = schedule(&tasks, None);
        let end = placed.iter().map(|p| p.end).max().unwrap_or(0);
        let left = tasks
            .iter()
            .zip(&placed)
            .map(|(task, p)| end.saturating_sub(p.start.saturating_add(task.rank)));
        left.map(Duration::from_nanos).collect::<Vec<_>>()
    };
    let drawn = of(TimeBound::Drawn);
    if t.is_exact() {
        return drawn.into_iter().map(Length::exact).collect();
    }
    // With other times, another chain may be the longest, so no bound follows.
    let others = of(TimeBound::Least).into_iter().zip(of(TimeBound::Most));
    let sure = |(drawn, (least, most)): (Duration, (Duration, Duration))| {
        let known = t.has_order() && !drawn.is_zero();
        let same = known && drawn == least && drawn == most;
        if same { Length::exact(drawn) } else { Length::about(drawn) }
    };
    drawn.into_iter().zip(others).map(sure).collect()
}

/// Returns the chain that no number of workers makes shorter, and its time from the timeline's
/// origin. It ends last if everything is asynchronous and there is a worker for everything, and
/// each span is followed by one that it held up. None of them has any [slack].
pub(crate) fn chain(t: &Timeline) -> (Vec<SpanId>, Length) {
    let tasks = tasks(t, TimeBound::Drawn, |_| 1.0);
    let placed = schedule(&tasks, None);
    // Of several that end last, the longest wins, then the one that was pushed first.
    let rank = |&i: &usize| (placed[i].end, tasks[i].work, std::cmp::Reverse(i));
    let last = (0..tasks.len()).max_by_key(rank);
    let back = |&i: &usize| placed[i].released_by;
    let mut spans: Vec<SpanId> = std::iter::successors(last, back).map(SpanId).collect();
    spans.reverse();
    let longest = |tasks: Vec<Task>| tasks.iter().map(|t| t.release.saturating_add(t.rank)).max();
    let of = |taking| longest(self::tasks(t, taking, |_| 1.0)).unwrap_or(0);
    (spans, as_sure_as(t, of))
}

/// Returns the length of the longest chain through `ids`, if all else takes no time and only the
/// known graph delays anything.
pub(super) fn chain_of(t: &Timeline, ids: &[SpanId]) -> Length {
    let mut counts = vec![0.0; t.spans().len()];
    for id in ids {
        counts[id.index()] = 1.0;
    }
    as_sure_as(t, |taking| {
        let mut tasks = graph(t, taking, |id| counts[id.index()]);
        break_cycles(t, &mut tasks);
        tasks.iter().map(|task| task.rank).max().unwrap_or(0)
    })
}

/// Returns `ns` times `factor`; exact for a factor of 1.
pub(super) fn scale(ns: u64, factor: f64) -> u64 {
    if factor == 1.0 { ns } else { (ns as f64 * factor.max(0.0)).round() as u64 }
}

/// Ready time, start and end that a task was given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ScheduledTask {
    /// Moment at which its last predecessor was done, in nanoseconds from the beginning.
    pub(super) ready: u64,
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) worker: usize,
    /// The task that released it last, if one did.
    pub(super) released_by: Option<usize>,
}

/// Runs `tasks` on `workers` workers (`None`: as many as there are tasks). A free worker takes, of
/// the ready tasks, the one from which the longest chain hangs; of equal ones the first. No task is
/// preempted, and no worker is idle while one is ready.
///
/// This is list scheduling by the critical path (Graham's bounds hold: no more than twice the best
/// schedule); with a worker for each task it is the best one.
pub(super) fn schedule(tasks: &[Task], workers: Option<usize>) -> Vec<ScheduledTask> {
    let workers = workers.unwrap_or(usize::MAX).max(1);
    let mut placed = vec![ScheduledTask::default(); tasks.len()];
    let mut waits_for: Vec<usize> = tasks.iter().map(|task| task.waits_for).collect();
    // Events by moment. Ends come first at one moment, so that their workers are free for the tasks
    // that are ready.
    let mut events: BinaryHeap<Reverse<(u64, Event)>> = BinaryHeap::new();
    let mut ready: BinaryHeap<(u64, Reverse<usize>)> = BinaryHeap::new();
    let mut free: BinaryHeap<Reverse<usize>> = BinaryHeap::new();
    let mut used = 0;
    for (i, task) in tasks.iter().enumerate() {
        placed[i].ready = task.release;
        if task.waits_for == 0 {
            events.push(Reverse((task.release, Event::Ready(i))));
        }
    }
    while let Some(&Reverse((now, _))) = events.peek() {
        while let Some(&Reverse((at, event))) = events.peek() {
            if at > now {
                break;
            }
            events.pop();
            match event {
                Event::End(i) => {
                    free.push(Reverse(placed[i].worker));
                    release(tasks, i, LinkKind::End, now, &mut placed, &mut waits_for, &mut events);
                }
                Event::Ready(i) => ready.push((tasks[i].rank, Reverse(i))),
            }
        }
        while let Some(&(_, Reverse(i))) = ready.peek() {
            let worker = match free.pop() {
                Some(Reverse(worker)) => worker,
                None if used < workers => {
                    used += 1;
                    used - 1
                }
                None => break,
            };
            ready.pop();
            let end = now.saturating_add(tasks[i].work);
            let place = &mut placed[i];
            (place.start, place.end, place.worker) = (now, end, worker);
            events.push(Reverse((end, Event::End(i))));
            release(tasks, i, LinkKind::Start, now, &mut placed, &mut waits_for, &mut events);
        }
    }
    placed
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    End(usize),
    Ready(usize),
}

/// Tells the tasks that wait for this event of `i`.
fn release(
    tasks: &[Task],
    i: usize,
    when: LinkKind,
    now: u64,
    placed: &mut [ScheduledTask],
    waits_for: &mut [usize],
    events: &mut BinaryHeap<Reverse<(u64, Event)>>,
) {
    for link in tasks[i].links.iter().filter(|link| link.when == when) {
        let from = now.saturating_add(link.delay);
        let place = &mut placed[link.to];
        if from >= place.ready {
            (place.ready, place.released_by) = (from, Some(i));
        }
        waits_for[link.to] -= 1;
        if waits_for[link.to] == 0 {
            events.push(Reverse((place.ready, Event::Ready(link.to))));
        }
    }
}

/// Nodes in an order.
pub(super) struct NodeOrder {
    /// The nodes, first to last.
    pub(super) nodes: Vec<usize>,
    /// Position of each node, by node.
    places: Vec<usize>,
}

impl NodeOrder {
    /// Returns an order in which each node comes before those that are `after` it. Of the nodes
    /// that can come next, the first by `key` wins; the same holds if all that are left wait.
    pub(super) fn of<K: Ord>(after: &[Vec<usize>], key: impl Fn(usize) -> K) -> NodeOrder {
        let n = after.len();
        let mut waits_for = vec![0_usize; n];
        after.iter().flatten().for_each(|&to| waits_for[to] += 1);
        let mut places = vec![usize::MAX; n];
        let mut nodes = Vec::with_capacity(n);
        let ranked = |i: usize| Reverse((key(i), i));
        let mut ready: BinaryHeap<_> = (0..n).filter(|&i| waits_for[i] == 0).map(ranked).collect();
        let mut stuck: Vec<usize> = (0..n).collect();
        stuck.sort_by_key(|&i| key(i));
        let mut stuck = stuck.into_iter();
        loop {
            let next = ready.pop().map(|Reverse((_, i))| i);
            let next = next.or_else(|| stuck.find(|&i| places[i] == usize::MAX));
            let Some(i) = next else { break };
            if places[i] != usize::MAX {
                continue;
            }
            places[i] = nodes.len();
            nodes.push(i);
            for &to in &after[i] {
                waits_for[to] -= 1;
                if waits_for[to] == 0 && places[to] == usize::MAX {
                    ready.push(ranked(to));
                }
            }
        }
        NodeOrder { nodes, places }
    }

    /// Returns true if `before` comes before `after`. An order that was stated and doesn't hold
    /// would close a cycle.
    pub(super) fn keeps(&self, before: usize, after: usize) -> bool {
        self.places[before] < self.places[after]
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::span::{EdgeKind, Span};

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
        let tasks = tasks(&t, TimeBound::Drawn, |_| 1.0);
        let link = |to, delay| Link { to, when: LinkKind::Start, delay };
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
        let tasks = tasks(&t, TimeBound::Drawn, |_| 1.0);
        assert_eq!(tasks[0].links, [Link { to: 1, when: LinkKind::End, delay: 2 }]);
        // Moments count from the beginning, which is the start of the first one.
        assert_eq!(tasks.iter().map(|t| t.release).collect::<Vec<_>>(), [0, 0, 25, 35]);
    }

    #[test]
    fn in_a_shutdown_what_waits_for_nobody_can_start_at_once_and_elsewhere_when_it_was_ready() {
        let of = |kind| {
            let mut t = Timeline::new("t");
            push(&mut t, kind, "w", 5, 10);
            push(&mut t, kind, "w", 1000, 1030);
            let tasks = tasks(&t, TimeBound::Drawn, |_| 1.0);
            assert!(tasks.iter().all(|t| t.waits_for == 0));
            tasks.iter().map(|t| t.release).collect::<Vec<_>>()
        };
        assert_eq!(of(SpanKind::Shutdown), [0, 0]);
        assert_eq!(of(SpanKind::Probe), [0, 995]);
    }

    #[test]
    fn a_cycle_of_spans_without_length_is_broken() {
        let mut t = Timeline::new("t");
        let a = push(&mut t, SpanKind::Probe, "", 5, 5);
        let b = push(&mut t, SpanKind::Probe, "", 5, 5);
        t.push_edge(a, b, EdgeKind::Supplier);
        t.push_edge(b, a, EdgeKind::Supplier);
        t.push_edge(a, a, EdgeKind::Supplier);
        let tasks = tasks(&t, TimeBound::Drawn, |_| 1.0);
        assert_eq!((tasks[0].waits_for, tasks[1].waits_for), (0, 1));
        assert_eq!((tasks[0].links.len(), tasks[1].links.len()), (1, 0));
    }

    #[test]
    fn a_factor_of_one_changes_no_bit() {
        assert_eq!(scale(u64::MAX, 1.0), u64::MAX);
        assert_eq!((scale(7, 0.5), scale(100, 0.0), scale(100, -1.0)), (4, 0, 0));
    }

    #[test]
    fn each_comes_after_what_it_waits_for_and_else_by_key() {
        // 3 waits for 0 and 2. The key is the number backwards.
        let order = NodeOrder::of(&[vec![3], vec![], vec![3], vec![]], Reverse);
        assert_eq!(order.nodes, [2, 1, 0, 3]);
        assert!(order.keeps(0, 3) && order.keeps(2, 3) && !order.keeps(3, 0));
    }

    #[test]
    fn a_circle_is_opened_at_its_first_by_key_and_all_nodes_are_in_the_order() {
        let order = NodeOrder::of(&[vec![1], vec![2], vec![0, 3], vec![]], |i| [5, 4, 6, 9][i]);
        assert_eq!(order.nodes, [1, 2, 0, 3]);
        assert!(!order.keeps(0, 1), "this one closes the circle");
    }
}
