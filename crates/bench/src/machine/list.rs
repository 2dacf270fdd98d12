//! Lines that another CPU has written: a linked list costs a miss each, an array's misses overlap.

use corewise_topology::CpuId;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use corewise_costs::{Distance, Figure};

use crate::error::BenchError;
use crate::rng::Rng;

use super::distance::{Pairs, spread};
use super::lab::{Apart, Lab, OURS, OVER, figure, have, join, serve};

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

/// What one distance costs.
#[derive(Debug)]
pub(super) struct Lists {
    pub(super) list: Figure,
    pub(super) array: Figure,
    /// The same by atomic additions.
    pub(super) array_locked: Figure,
    /// Where there is a third CPU.
    pub(super) list_read: Option<Figure>,
}

/// A line.
#[derive(Debug)]
#[repr(align(64))]
struct Node {
    /// A: the next one, or null at the end; the turn says which thread may write it.
    next: AtomicPtr<Node>,
    /// A: changed with it.
    value: AtomicU64,
}

/// Lines in an order that no prefetcher guesses.
#[derive(Debug)]
struct List {
    nodes: Box<[Node]>,
    order: Vec<u32>,
}

impl List {
    fn new() -> List {
        let node = || Node { next: AtomicPtr::new(ptr::null_mut()), value: AtomicU64::new(0) };
        let nodes = (0..NODES).map(|_| node()).collect();
        let mut order: Vec<u32> = (0..NODES as u32).collect();
        Rng::new(7).shuffle(&mut order);
        List { nodes, order }
    }

    /// Writes each line: the calling CPU's from then on.
    fn write(&self) {
        let following = self.order[1..].iter().map(|&next| Some(next)).chain([None]);
        for (&at, next) in self.order.iter().zip(following) {
            let node = &self.nodes[at as usize];
            let next = next.map_or(ptr::null(), |next| ptr::from_ref(&self.nodes[next as usize]));
            node.next.store(next.cast_mut(), Ordering::Relaxed);
            node.value.store(node.value.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        }
    }

    /// Reads each line by the pointer in the one before.
    fn follow(&self) -> u64 {
        let mut sum = 0;
        let mut at = ptr::from_ref(&self.nodes[self.order[0] as usize]);
        // SAFETY: a pointer is null or to a node of `self.nodes`, which outlives the borrow and
        // whose nodes are never moved; nothing holds a mutable reference to one.
        while let Some(node) = unsafe { at.as_ref() } {
            sum += node.value.load(Ordering::Relaxed);
            at = node.next.load(Ordering::Relaxed).cast_const();
        }
        sum
    }

    /// Adds to each line by its number.
    fn add(&self) -> u64 {
        let add = |&at: &u32| self.nodes[at as usize].value.fetch_add(1, Ordering::Relaxed);
        self.order.iter().map(add).sum()
    }

    /// Reads each line by its number: no load waits for another.
    fn sweep(&self) -> u64 {
        let value = |&at: &u32| self.nodes[at as usize].value.load(Ordering::Relaxed);
        self.order.iter().map(value).sum()
    }
}

/// The turns of the others.
const WRITER: u32 = 1;
const READER: u32 = 2;

/// Of some pairs of a distance; there are `distances` of them.
pub(super) fn measure(
    lab: &Lab<'_>,
    pairs: &Pairs,
    distance: Distance,
    distances: usize,
) -> Result<Lists, BenchError> {
    let chosen = spread(pairs.of(distance), PAIRS);
    let parts = u32::try_from(distances * chosen.len()).unwrap_or(u32::MAX).max(1);
    let each = (lab.budget(ALL) / parts).min(lab.budget(EACH));
    let list = List::new();
    let mut samples = [const { Vec::new() }; 4];
    for pair in chosen {
        let of_pair = one(lab, &list, pair, pairs.third(pair).map(CpuId::number), each)?;
        samples.iter_mut().zip(of_pair).for_each(|(all, some)| all.extend(some));
    }
    let [by_list, by_array, locked, read] = samples;
    Ok(Lists {
        list: figure(&by_list)?,
        array: figure(&by_array)?,
        array_locked: figure(&locked)?,
        list_read: Figure::of(&read),
    })
}

/// The first CPU of the pair reads what the second one wrote.
fn one(
    lab: &Lab<'_>,
    list: &List,
    (reader, writer): (CpuId, CpuId),
    third: Option<u32>,
    budget: Duration,
) -> Result<[Vec<f64>; 4], BenchError> {
    let turn = &Apart(AtomicU32::new(OURS));
    thread::scope(|scope| {
        let writer = lab.start(scope, writer, || serve(&turn.0, WRITER, || list.write()))?;
        let read = || {
            std::hint::black_box(list.sweep());
        };
        let third = third
            .map(|cpu| lab.start(scope, CpuId::new(cpu), move || serve(&turn.0, READER, read)));
        let has_third = matches!(third, Some(Ok(_)));
        let samples = lab.on(reader, || {
            let mut samples = [const { Vec::new() }; 4];
            let timed = |read: fn(&List) -> u64| {
                let before = Instant::now();
                std::hint::black_box(read(list));
                lab.since(before) / NODES as f64
            };
            // Once to have the memory, and the table of pages, at hand.
            have(&turn.0, WRITER);
            timed(List::follow);
            let end = Instant::now() + budget;
            while samples[0].len() < LEAST || Instant::now() < end {
                have(&turn.0, WRITER);
                samples[0].push(timed(List::follow));
                have(&turn.0, WRITER);
                samples[1].push(timed(List::sweep));
                have(&turn.0, WRITER);
                samples[2].push(timed(List::add));
                if has_third {
                    have(&turn.0, WRITER);
                    have(&turn.0, READER);
                    samples[3].push(timed(List::follow));
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
    fn a_list_leads_to_each_line_that_was_written_once() {
        let list = List::new();
        assert_eq!(list.sweep(), 0);
        for times in 1..3 {
            list.write();
            assert_eq!(list.follow(), times * NODES as u64);
            assert_eq!(list.sweep(), times * NODES as u64);
        }
    }
}
