//! A timeline as tasks with links: what may start when, if nothing but the graph says so.
//!
//! This one graph tells what bounds the run ([`chain`]) and what each span has to spare ([`slack`]), and
//! predictions schedule it anew.

use super::nesting::Nesting;
use super::order::Order;
use super::schedule::schedule;
use crate::length::Length;
use crate::span::{SpanId, SpanKind, Timeline};
use crate::units::ns;
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
    /// Those that wait for it.
    pub(super) links: Vec<Link>,
    /// How many links lead to it.
    pub(super) waits_for: usize,
    /// How long it takes at least from its start to the end of the last one that it holds up.
    pub(super) rank: u64,
}

/// Which of the times that a span can have taken it is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Taking {
    /// The shortest.
    Least,
    /// That of its bar.
    Drawn,
    /// The longest, or that of its bar where there is no such bound.
    Most,
}

/// What `find` finds of `t` with each length as it is drawn, as sure as the lengths are.
pub(super) fn as_sure_as(t: &Timeline, find: impl Fn(Taking) -> u64) -> Length {
    let drawn = Duration::from_nanos(find(Taking::Drawn));
    if t.is_exact() {
        return Length::exact(drawn);
    }
    // A span that is missing may hold up others, or have held them up for nothing. Stamps that are cut
    // off leave the graph itself open: which edges were kept, and what ran inside what.
    match t.unplaced().is_empty() && t.has_order() {
        _ if drawn.is_zero() && t.spans().iter().any(|span| span.took().told().is_none()) => {
            return Length::UNKNOWN;
        }
        true => {}
        false => return Length::about(drawn),
    }
    let [least, most] = [Taking::Least, Taking::Most].map(&find);
    let least = Duration::from_nanos(least).min(drawn);
    let most = Duration::from_nanos(most).max(drawn);
    match t.spans().iter().all(|span| span.took().most().is_some()) {
        true => Length::between(least, most).telling(drawn),
        false => Length::at_least(least).telling(drawn),
    }
}

/// The tasks of a timeline where everything but an init function is asynchronous.
///
/// * A dependency that was [kept](Timeline::is_kept) holds. One that wasn't held nobody up in this
///   run, so it won't in another.
/// * What ran inside another one may start when that one has got as far as it had then.
/// * Init functions stay in the order of their worker, with what passed between them.
/// * What ran inside nothing and waited for nothing known is ready no sooner than it was: a log
///   doesn't show who started it, such as a program that loaded a module. A shutdown is different:
///   a loop over a list called each of them, and none has to wait for that.
pub(super) fn tasks(t: &Timeline, taking: Taking, factor: impl Fn(SpanId) -> f64) -> Vec<Task> {
    let mut tasks = graph(t, taking, factor);
    releases(t, &mut tasks);
    break_cycles(t, &mut tasks);
    tasks
}

/// The same, but for the order of init functions, and without moments at which anything was ready.
fn graph(t: &Timeline, taking: Taking, factor: impl Fn(SpanId) -> f64) -> Vec<Task> {
    let nesting = Nesting::of(t);
    let scaled = |id: SpanId, time: Duration| scale(ns(time), factor(id));
    let mut tasks: Vec<Task> = t
        .iter()
        .map(|(id, _)| Task { work: scaled(id, nesting.own(id, taking)), ..Task::default() })
        .collect();

    for edge in t.edges().iter().filter(|e| t.is_kept(e) && e.before != e.after) {
        join(&mut tasks, edge.before.index(), edge.after.index(), When::End, 0);
    }
    for (parent, inside) in nesting.children(t).iter().enumerate() {
        // The time that the parent had run by itself before each of them.
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
            join(tasks, before.index(), id.index(), When::End, ns(between));
        }
    }
    for (id, span) in t.iter().filter(|&(id, s)| s.kind != SpanKind::Shutdown && outermost(id)) {
        let task = &mut tasks[id.index()];
        if task.waits_for == 0 {
            task.release = ns(span.queued.saturating_sub(origin));
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
    let drawn = of(Taking::Drawn);
    if t.is_exact() {
        return drawn.into_iter().map(Length::exact).collect();
    }
    // With other times another chain may be the longest: no bound follows.
    let others = of(Taking::Least).into_iter().zip(of(Taking::Most));
    let sure = |(drawn, (least, most)): (Duration, (Duration, Duration))| {
        let known = t.has_order() && !drawn.is_zero();
        let same = known && drawn == least && drawn == most;
        if same { Length::exact(drawn) } else { Length::about(drawn) }
    };
    drawn.into_iter().zip(others).map(sure).collect()
}

/// The chain that no number of workers makes shorter: those that end last if everything is
/// asynchronous and there is a worker for everything, each with the one that held it up. None of
/// them has anything to [spare](slack). With it, how long it takes from the timeline's origin.
pub(crate) fn chain(t: &Timeline) -> (Vec<SpanId>, Length) {
    let tasks = tasks(t, Taking::Drawn, |_| 1.0);
    let placed = schedule(&tasks, None);
    // Of several that end last the longest, then the one that was pushed first.
    let rank = |&i: &usize| (placed[i].end, tasks[i].work, std::cmp::Reverse(i));
    let last = (0..tasks.len()).max_by_key(rank);
    let back = |&i: &usize| placed[i].released_by;
    let mut spans: Vec<SpanId> = std::iter::successors(last, back).map(SpanId).collect();
    spans.reverse();
    let longest = |tasks: Vec<Task>| tasks.iter().map(|t| t.release.saturating_add(t.rank)).max();
    let of = |taking| longest(self::tasks(t, taking, |_| 1.0)).unwrap_or(0);
    (spans, as_sure_as(t, of))
}

/// How long the longest chain through `ids` is, if all else takes no time and nothing keeps anybody
/// but the known graph.
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

/// `ns` times `factor`; exact for a factor of 1.
pub(super) fn scale(ns: u64, factor: f64) -> u64 {
    if factor == 1.0 { ns } else { (ns as f64 * factor.max(0.0)).round() as u64 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::span::{EdgeKind, Span};
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
        let tasks = tasks(&t, Taking::Drawn, |_| 1.0);
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
        let tasks = tasks(&t, Taking::Drawn, |_| 1.0);
        assert_eq!(tasks[0].links, [Link { to: 1, when: When::End, delay: 2 }]);
        // From the beginning, which is the first one's start.
        assert_eq!(tasks.iter().map(|t| t.release).collect::<Vec<_>>(), [0, 0, 25, 35]);
    }

    #[test]
    fn in_a_shutdown_what_waits_for_nobody_can_start_at_once_and_elsewhere_when_it_was_ready() {
        let of = |kind| {
            let mut t = Timeline::new("t");
            push(&mut t, kind, "w", 5, 10);
            push(&mut t, kind, "w", 1000, 1030);
            let tasks = tasks(&t, Taking::Drawn, |_| 1.0);
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
        let tasks = tasks(&t, Taking::Drawn, |_| 1.0);
        assert_eq!((tasks[0].waits_for, tasks[1].waits_for), (0, 1));
        assert_eq!((tasks[0].links.len(), tasks[1].links.len()), (1, 0));
    }

    #[test]
    fn a_factor_of_one_changes_no_bit() {
        assert_eq!(scale(u64::MAX, 1.0), u64::MAX);
        assert_eq!((scale(7, 0.5), scale(100, 0.0), scale(100, -1.0)), (4, 0, 0));
    }
}
