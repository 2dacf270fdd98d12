//! Submitters take tags and give them back, more and more of them: a [`TagSet`] against a free list behind a mutex.

use std::collections::VecDeque;

use corewise_blockmq::TagSet;
use corewise_sync::{Condvar, Mutex, thread, time};

use crate::bench::{Cases, Workload, count, variants};
use crate::blockmq::base;
use crate::meter::{Allocations, Meter, between, percentiles};
use crate::start::together;
use crate::{BenchError, Job, Line};

/// Submitters and tags: plenty of tags, then fewer than submitters.
const TAGS: [(u32, u32); 7] = [(1, 128), (2, 128), (4, 128), (8, 128), (16, 128), (4, 2), (16, 4)];

/// So many submitters on so many tags.
pub(super) const WORKLOAD: Workload = Workload {
    cases: Cases::Fit(
        |parts| matches!(parts, ["tags", submitters, depth] if count(submitters) && count(depth)),
        |_| TAGS.map(|(submitters, depth)| format!("tags/{submitters}/{depth}")).into(),
    ),
    quick: |parts, _| parts[1] == "4",
    numbers: |job, _, on| {
        base(job, on);
        job.items = match job.part(2) < job.part(1) {
            true => on.pick(50_000, 20_000),
            false => on.pick(2_000_000, 500_000),
        };
    },
    variants: |_, _| variants(&["corewise", "mutex_list"], false),
    run: |job, allocations| {
        let (submitters, depth) = (job.part(1) as usize, job.part(2));
        match job.runtime.as_str() {
            "corewise" => measure(job, &TagSet::new(depth, submitters), allocations).map(Some),
            "mutex_list" => measure(job, &FreeList::new(depth), allocations).map(Some),
            _ => Ok(None),
        }
    },
};

/// Tags that a submitter has in flight at most.
const IN_FLIGHT: u32 = 4;
/// Where tags are short, a submitter lets others run before it goes on with one of so many.
const YIELDS: usize = 4;
/// One of so many takes is timed: the clock would cost more than a tag.
const TIMED: usize = 32;

/// A set of tags.
trait Tags: Sync {
    /// Takes one, and waits where there is none.
    fn get(&self, cpu: usize) -> u32;
    /// Gives one back.
    fn put(&self, cpu: usize, tag: u32);
}

impl Tags for TagSet {
    fn get(&self, cpu: usize) -> u32 {
        TagSet::get(self, cpu)
    }

    fn put(&self, cpu: usize, tag: u32) {
        TagSet::put(self, cpu, tag);
    }
}

/// What one writes first: free tags on a stack, one lock, one condition variable.
struct FreeList {
    /// L: the lock; guards the free tags, and how many wait for one.
    free: Mutex<(Vec<u32>, usize)>,
    /// L: waited on with `free`.
    freed: Condvar,
}

impl FreeList {
    fn new(depth: u32) -> FreeList {
        FreeList { free: Mutex::new(((0..depth).collect(), 0)), freed: Condvar::new() }
    }
}

impl Tags for FreeList {
    fn get(&self, _cpu: usize) -> u32 {
        let mut free = self.free.lock();
        loop {
            if let Some(tag) = free.0.pop() {
                return tag;
            }
            free.1 += 1;
            free = self.freed.wait(free);
            free.1 -= 1;
        }
    }

    fn put(&self, _cpu: usize, tag: u32) {
        let waiting = {
            let mut free = self.free.lock();
            free.0.push(tag);
            free.1
        };
        // To tell nobody is a system call, too.
        if waiting != 0 {
            self.freed.notify_one();
        }
    }
}

fn measure<T: Tags>(
    job: &Job,
    tags: &T,
    allocations: Option<Allocations>,
) -> Result<Line, BenchError> {
    let (submitters, depth) = (job.part(1) as usize, job.part(2));
    let mut meter = Meter::new(job.count, allocations);
    let each = job.items.div_ceil(submitters);
    // Never so many that all wait for each other with some in hand.
    let in_flight = (depth / submitters as u32).clamp(1, IN_FLIGHT);
    let short = (depth as usize) < submitters;
    let names: Vec<String> = (0..submitters).map(|n| format!("submitter{n}")).collect();
    let mut waits: Vec<u64> = Vec::new();
    let ready =
        |_| Ok((Vec::with_capacity(each / TIMED + 1), VecDeque::with_capacity(in_flight as usize)));
    let body = |cpu: usize, (mut timed, mut held): (Vec<u64>, VecDeque<u32>)| {
        for n in 0..each {
            if held.len() == in_flight as usize {
                if let Some(oldest) = held.pop_front() {
                    tags.put(cpu, oldest);
                }
            }
            let taken = (n % TIMED == 0).then(time::now);
            held.push_back(tags.get(cpu));
            if let Some(before) = taken {
                timed.push(between(before, time::now()));
            }
            if short && n % YIELDS == 0 {
                thread::yield_now();
            }
        }
        held.drain(..).for_each(|tag| tags.put(cpu, tag));
        Ok(timed)
    };
    meter.pass(each * submitters, || {
        let ran = together(&names, ready, body)?;
        waits = ran.given.concat();
        Ok(ran.ended - ran.began)
    })?;
    let mut line = job.line();
    meter.finish(&mut line);
    if !job.count {
        percentiles(&mut line, "latency", &mut waits, &[50.0, 99.0, 99.9]);
        line.set("latency_max", waits.last().copied().unwrap_or(0) as f64);
    }
    Ok(line)
}
