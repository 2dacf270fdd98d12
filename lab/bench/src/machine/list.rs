//! Lines that another CPU has written: a linked list costs a miss each, an array's misses overlap.

use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use corewise_costs::Distance;
use corewise_topology::CpuId;
use fastrand::Rng;

use crate::error::BenchError;

use super::NO_MEMORY;
use super::distance::{Pairs, spread};
use super::lab::{Apart, Lab, OURS, OVER, have, join, serve};

/// As many lines as fit into a second-level cache; of the first level none are left.
const NODES: usize = 4096;
/// Pairs of a distance.
const PAIRS: usize = 6;
/// All distances together, in a full call.
const ALL: Duration = Duration::from_millis(4_000);
/// A pair at most.
const EACH: Duration = Duration::from_millis(600);
/// Rounds of a pair at least.
const LEAST: usize = 5;

/// A line.
#[derive(Debug)]
#[repr(align(64))]
struct Node {
    /// A: the next one of the circle; the turn says which thread may write it.
    next: AtomicPtr<Node>,
    /// A: changed with it.
    value: AtomicU64,
}

/// Lines that lead to one another in a circle.
#[derive(Debug)]
pub(super) struct Lines {
    nodes: Vec<Node>,
    order: Vec<u32>,
}

impl Lines {
    /// So many, the `n`th of the circle being that of number `order(n)`; written in that order.
    /// `None` where the process gets no memory for them.
    pub(super) fn new(count: usize, order: impl Fn(u32) -> u32) -> Option<Lines> {
        let node = || Node { next: AtomicPtr::new(ptr::null_mut()), value: AtomicU64::new(0) };
        let (mut nodes, numbers) = (Vec::new(), 0..count as u32);
        let mut ordered = Vec::new();
        nodes.try_reserve_exact(count).ok()?;
        ordered.try_reserve_exact(count).ok()?;
        nodes.extend(numbers.clone().map(|_| node()));
        ordered.extend(numbers.map(order));
        let lines = Lines { nodes, order: ordered };
        lines.write();
        Some(lines)
    }

    fn node(&self, at: u32) -> &Node {
        &self.nodes[at as usize]
    }

    /// Writes each line: the calling CPU's from then on.
    pub(super) fn write(&self) {
        let following = self.order.iter().cycle().skip(1);
        for (&at, &next) in self.order.iter().zip(following) {
            let node = self.node(at);
            node.next.store(ptr::from_ref(self.node(next)).cast_mut(), Ordering::Relaxed);
            node.value.store(node.value.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        }
    }

    /// Reads so many lines, each by the pointer in the one before, from the line of this number;
    /// gives the number at which that ends.
    pub(super) fn walk(&self, from: usize, steps: usize) -> usize {
        let mut at = ptr::from_ref(&self.nodes[from]);
        for _ in 0..steps {
            // SAFETY: `new` has set each line's pointer to one of `self.nodes`, and `write` sets it
            // to one: they live as long as the borrow, are never moved, and there is no mutable
            // reference to one.
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

/// An order in which neighbours share no page, where there are many lines: steps of a prime, which
/// has no divisor in common with their number.
pub(super) fn far_apart(nth: u32, count: usize) -> u32 {
    (u64::from(nth) * 2_654_435_761 % count as u64) as u32
}

/// The turns of the others.
const WRITER: u32 = 1;
const READER: u32 = 2;

/// The samples of some pairs of a distance, of which there are `distances`: by list, by array, by
/// additions to it, and, where there is a third CPU, by list after that has read it.
pub(super) fn measure(
    lab: &Lab<'_>,
    pairs: &Pairs,
    distance: Distance,
    distances: usize,
) -> Result<[Vec<f64>; 4], BenchError> {
    let chosen = spread(pairs.of(distance), PAIRS);
    let parts = u32::try_from(distances * chosen.len()).unwrap_or(u32::MAX).max(1);
    let each = (lab.budget(ALL) / parts).min(lab.budget(EACH));
    // No prefetcher guesses it.
    let mut order: Vec<u32> = (0..NODES as u32).collect();
    Rng::with_seed(7).shuffle(&mut order);
    let lines = Lines::new(NODES, |nth| order[nth as usize]).ok_or(NO_MEMORY)?;
    let mut samples = [const { Vec::new() }; 4];
    for pair in chosen {
        let of_pair = one(lab, &lines, pair, pairs.third(pair), each)?;
        samples.iter_mut().zip(of_pair).for_each(|(all, some)| all.extend(some));
    }
    Ok(samples)
}

/// The first CPU of the pair reads what the second one wrote.
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
            // Once to have the memory, and the table of pages, at hand.
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
            let lines = Lines::new(count, |nth| far_apart(nth, count)).unwrap();
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
