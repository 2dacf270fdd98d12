//! List scheduling: who runs where and when, with so many workers.

use super::tasks::{Task, When};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Where and when a task was put.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Placed {
    /// When nothing was left that it waited for, in nanoseconds from the beginning.
    pub(super) ready: u64,
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) worker: usize,
    /// The task that released it last, if one did.
    pub(super) released_by: Option<usize>,
}

/// Runs `tasks` on `workers` workers (`None`: as many as there are tasks). A worker that is free
/// takes, of those that are ready, the one from which the longest chain hangs; of equal ones the
/// first. Nobody is preempted, and no worker is idle while one is ready.
///
/// This is list scheduling by the critical path (Graham's bounds hold: no more than twice the best
/// schedule); with a worker for each task it is the best one.
pub(super) fn schedule(tasks: &[Task], workers: Option<usize>) -> Vec<Placed> {
    let workers = workers.unwrap_or(usize::MAX).max(1);
    let mut placed = vec![Placed::default(); tasks.len()];
    let mut waits_for: Vec<usize> = tasks.iter().map(|task| task.waits_for).collect();
    // By moment; at one moment ends come first, so that their workers are free for those that are ready.
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
                    release(tasks, i, When::End, now, &mut placed, &mut waits_for, &mut events);
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
            release(tasks, i, When::Start, now, &mut placed, &mut waits_for, &mut events);
        }
    }
    placed
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    End(usize),
    Ready(usize),
}

/// Tells those who wait for this moment of `i`'s life.
fn release(
    tasks: &[Task],
    i: usize,
    when: When,
    now: u64,
    placed: &mut [Placed],
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

#[cfg(test)]
mod tests {
    use super::super::tasks::Link;
    use super::*;

    /// Tasks by work, and links by index; links lead to later tasks only.
    fn tasks(work: &[u64], links: &[(usize, usize)]) -> Vec<Task> {
        let mut tasks: Vec<Task> =
            work.iter().map(|&work| Task { work, rank: work, ..Task::default() }).collect();
        for &(from, to) in links {
            assert!(from < to);
            tasks[from].links.push(Link { to, when: When::End, delay: 0 });
            tasks[to].waits_for += 1;
        }
        for i in (0..tasks.len()).rev() {
            let after = tasks[i].links.iter().map(|link| tasks[link.to].rank).max().unwrap_or(0);
            tasks[i].rank = tasks[i].work + after;
        }
        tasks
    }

    fn makespan(placed: &[Placed]) -> u64 {
        placed.iter().map(|p| p.end).max().unwrap_or(0)
    }

    #[test]
    fn the_longest_chain_goes_first() {
        // Three that take 2 each, and a chain of 1 and 5: taken last, the chain would end at 10.
        let tasks = tasks(&[2, 2, 2, 1, 5], &[(3, 4)]);
        assert_eq!(makespan(&schedule(&tasks, Some(2))), 6);
    }

    #[test]
    fn one_worker_takes_the_sum_and_any_number_the_longest_chain() {
        let tasks = tasks(&[4, 3, 2, 6], &[(0, 1), (1, 2)]);
        assert_eq!(makespan(&schedule(&tasks, Some(1))), 15);
        assert_eq!(makespan(&schedule(&tasks, Some(0))), 15);
        assert_eq!(makespan(&schedule(&tasks, None)), 9);
    }

    #[test]
    fn one_that_is_ready_takes_the_worker_that_becomes_free_at_that_moment() {
        let placed = schedule(&tasks(&[4, 3], &[(0, 1)]), Some(1));
        assert_eq!((placed[1].start, placed[1].worker, placed[1].released_by), (4, 0, Some(0)));
    }

    #[test]
    fn a_schedule_keeps_graham_s_bounds_every_link_and_the_number_of_workers() {
        let mut rng = fastrand::Rng::with_seed(2);
        let mut random = |below: u64| rng.u64(..below);
        for _ in 0..400 {
            let n = 1 + random(14) as usize;
            let work: Vec<u64> = (0..n).map(|_| random(20)).collect();
            let links: Vec<(usize, usize)> = (0..random(20))
                .map(|_| (random(n as u64) as usize, random(n as u64) as usize))
                .filter(|(a, b)| a < b)
                .collect();
            let tasks = tasks(&work, &links);
            let sum: u64 = work.iter().sum();
            let longest = tasks.iter().map(|t| t.rank).max().unwrap_or(0);
            let workers = 1 + random(5);
            let placed = schedule(&tasks, Some(workers as usize));
            let took = makespan(&placed);
            assert!(took >= longest.max(sum.div_ceil(workers)), "{work:?} {links:?}");
            // Graham 1969: the rest of the work is spread evenly while the chain waits.
            assert!(took <= longest + (sum - longest) / workers, "{work:?} {links:?} {workers}");
            assert_eq!(makespan(&schedule(&tasks, None)), longest);
            for &(a, b) in &links {
                assert!(placed[a].end <= placed[b].start);
            }
            for p in &placed {
                assert!(p.ready <= p.start && (p.worker as u64) < workers);
                let beside = |q: &&Placed| q.start <= p.start && p.start < q.end;
                assert!(placed.iter().filter(beside).count() as u64 <= workers);
            }
        }
    }
}
