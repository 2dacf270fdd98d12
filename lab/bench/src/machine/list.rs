//! Lines that another CPU has written. A linked list costs a miss each; an array's misses overlap.

use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use corewise_costs::Distance;
use corewise_topology::CpuId;
use fastrand::Rng;

use crate::error::BenchError;

use super::distance::{Pairs, spread};
use super::lab::{Apart, Lab, OURS, OVER, have, join, serve};

/// Number of lines: they fit into a second-level cache, and overflow the first level.
const NODES: usize = 4096;
/// Greatest number of pairs of a distance.
const PAIRS: usize = 6;
/// Time of all distances together, in a full call.
const ALL: Duration = Duration::from_millis(4_000);
/// Greatest time of a pair.
const EACH: Duration = Duration::from_millis(600);
/// Least number of rounds of a pair.
const LEAST: usize = 5;

/// A line.
#[derive(Debug)]
#[repr(align(64))]
struct Node {
    /// A: the next node of the circle. The turn says which thread may write it.
    next: AtomicPtr<Node>,
    /// A: changed with `next`.
    value: AtomicU64,
}

/// Lines that lead to one another in a circle.
#[derive(Debug)]
struct Lines {
    nodes: Vec<Node>,
    order: Vec<u32>,
}

impl Lines {
    /// Creates the lines. The circle visits them by number, in this order.
    fn new(order: Vec<u32>) -> Lines {
        let node = |_| Node { next: AtomicPtr::new(ptr::null_mut()), value: AtomicU64::new(0) };
        let lines = Lines { nodes: order.iter().map(node).collect(), order };
        lines.write();
        lines
    }

    fn node(&self, at: u32) -> &Node {
        &self.nodes[at as usize]
    }

    /// Writes each line, which moves it to the calling CPU.
    fn write(&self) {
        let following = self.order.iter().cycle().skip(1);
        for (&at, &next) in self.order.iter().zip(following) {
            let node = self.node(at);
            node.next.store(ptr::from_ref(self.node(next)).cast_mut(), Ordering::Relaxed);
            node.value.store(node.value.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        }
    }

    /// Reads `steps` lines, each by the pointer in the previous one, starting at line `from`.
    /// Returns the number of the last line.
    fn walk(&self, from: usize, steps: usize) -> usize {
        let mut at = ptr::from_ref(&self.nodes[from]);
        for _ in 0..steps {
            // SAFETY: `new` and `write` set each line's pointer to one of `self.nodes`. The nodes
            // live as long as the borrow, are never moved, and no mutable reference to one exists.
            at = unsafe { &*at }.next.load(Ordering::Relaxed).cast_const();
        }
        (std::hint::black_box(at).addr() - self.nodes.as_ptr().addr()) / size_of::<Node>()
    }

    fn follow(&self) -> u64 {
        self.walk(self.order[0] as usize, self.order.len()) as u64
    }

    /// Adds to each line by its number.
    fn add(&self) -> u64 {
        self.order.iter().map(|&at| self.node(at).value.fetch_add(1, Ordering::Relaxed)).sum()
    }

    /// Reads each line by its number: no load waits for another.
    fn sweep(&self) -> u64 {
        self.order.iter().map(|&at| self.node(at).value.load(Ordering::Relaxed)).sum()
    }
}

/// Turns of the other threads.
const WRITER: u32 = 1;
const READER: u32 = 2;

/// Measures some pairs of a distance; `distances` is the number of distances. Returns samples by
/// list, by array, by additions to an array and, if there is a third CPU, by a list that it has
/// read.
pub(super) fn measure(
    lab: &Lab<'_>,
    pairs: &Pairs,
    distance: Distance,
    distances: usize,
) -> Result<[Vec<f64>; 4], BenchError> {
    let chosen = spread(pairs.of(distance), PAIRS);
    let parts = u32::try_from(distances * chosen.len()).unwrap_or(u32::MAX).max(1);
    let each = (lab.budget(ALL) / parts).min(lab.budget(EACH));
    // No prefetcher guesses this order.
    let mut order: Vec<u32> = (0..NODES as u32).collect();
    Rng::with_seed(7).shuffle(&mut order);
    let lines = Lines::new(order);
    let mut samples = [const { Vec::new() }; 4];
    for pair in chosen {
        let of_pair = one(lab, &lines, pair, pairs.third(pair), each)?;
        samples.iter_mut().zip(of_pair).for_each(|(all, some)| all.extend(some));
    }
    Ok(samples)
}

/// Measures a pair: the first CPU reads the lines that the second one wrote.
fn one(
    lab: &Lab<'_>,
    list: &Lines,
    (reader, writer): (CpuId, CpuId),
    third: Option<CpuId>,
    budget: Duration,
) -> Result<[Vec<f64>; 4], BenchError> {
    let turn = &Apart(AtomicU32::new(OURS));
    thread::scope(|scope| {
        let writer = lab.start(scope, writer, || serve(&turn.0, WRITER, || list.write()))?;
        let read = || {
            std::hint::black_box(list.sweep());
        };
        let third = third.map(|cpu| lab.start(scope, cpu, move || serve(&turn.0, READER, read)));
        let has_third = matches!(third, Some(Ok(_)));
        let samples = lab.on(reader, || {
            let mut samples = [const { Vec::new() }; 4];
            let timed = |read: fn(&Lines) -> u64| {
                let before = Instant::now();
                std::hint::black_box(read(list));
                lab.since(before) / NODES as f64
            };
            // The first round loads the memory and its page table.
            have(&turn.0, WRITER);
            timed(Lines::follow);
            let end = Instant::now() + budget;
            while samples[0].len() < LEAST || Instant::now() < end {
                have(&turn.0, WRITER);
                samples[0].push(timed(Lines::follow));
                have(&turn.0, WRITER);
                samples[1].push(timed(Lines::sweep));
                have(&turn.0, WRITER);
                samples[2].push(timed(Lines::add));
                if has_third {
                    have(&turn.0, WRITER);
                    have(&turn.0, READER);
                    samples[3].push(timed(Lines::follow));
                }
            }
            samples
        });
        turn.0.store(OVER, Ordering::Release);
        join(writer)?;
        if let Some(third) = third {
            join(third?)?;
        }
        samples
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_circle_leads_to_each_line_that_was_written_once() {
        for count in [1, 64, 1000, NODES] {
            let lines = Lines::new((0..count as u32).rev().collect());
            let mut seen = vec![false; count];
            let mut at = lines.order[0] as usize;
            for _ in 0..count {
                assert!(!std::mem::replace(&mut seen[at], true), "{at} of {count} twice");
                at = lines.walk(at, 1);
            }
            assert_eq!(at, lines.order[0] as usize, "it is a circle");
            lines.write();
            assert_eq!(lines.sweep(), 2 * count as u64);
        }
    }
}
