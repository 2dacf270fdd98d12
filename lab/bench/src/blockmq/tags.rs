//! Submitters that take tags and put them back, in growing numbers. A [`TagSet`] is compared with a
//! free list behind a mutex.

use std::collections::VecDeque;

use corewise_blockmq::TagSet;
use corewise_sync::{Condvar, Mutex, thread, time};

use crate::bench::{Cases, Workload, count, variants};
use crate::blockmq::base;
use crate::meter::{Meter, between, percentiles};
use crate::start::together;
use crate::{BenchError, Job, Line};

/// Submitters and tags: plenty of tags, then fewer than submitters.
const TAGS: [(u32, u32); 7] = [(1, 128), (2, 128), (4, 128), (8, 128), (16, 128), (4, 2), (16, 4)];

/// Takes and puts of tags by a number of submitters.
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
    run: |job, meter| {
        let (submitters, depth) = (job.part(1) as usize, job.part(2));
        match job.runtime.as_str() {
            "corewise" => {
                let tags = TagSet::new(depth, submitters);
                measure(job, |cpu| tags.get(cpu), |cpu, tag| tags.put(cpu, tag), meter)
            }
            "mutex_list" => {
                let tags = FreeList::new(depth);
                measure(job, |_| tags.get(), |_, tag| tags.put(tag), meter)
            }
            _ => job.unknown(),
        }
    },
};

/// Largest number of tags that a submitter has in flight.
const IN_FLIGHT: u32 = 4;
/// Period, in tags, at which a submitter yields its CPU if tags are short.
const YIELDS: usize = 4;
/// Period, in takes, at which a take is timed. The clock costs more than a tag.
const TIMED: usize = 32;

/// The simplest implementation: a stack of free tags, one lock, one condition variable.
struct FreeList {
    /// L: is the lock; guards the free tags, and the number of threads that wait for one.
    free: Mutex<(Vec<u32>, usize)>,
    /// L: waited on with `free`.
    freed: Condvar,
}

impl FreeList {
    fn new(depth: u32) -> FreeList {
        FreeList { free: Mutex::new(((0..depth).collect(), 0)), freed: Condvar::new() }
    }
}

impl FreeList {
    fn get(&self) -> u32 {
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

    fn put(&self, tag: u32) {
        let waiting = {
            let mut free = self.free.lock();
            free.0.push(tag);
            free.1
        };
        // A notification without a waiter is a system call, too.
        if waiting != 0 {
            self.freed.notify_one();
        }
    }
}

/// Measures takes of tags. `get` takes a tag, and waits if there is none. `put` puts one back. Both
/// get the submitter's number.
fn measure(
    job: &Job,
    get: impl Fn(usize) -> u32 + Sync,
    put: impl Fn(usize, u32) + Sync,
    meter: &mut Meter,
) -> Result<Line, BenchError> {
    let (submitters, depth) = (job.part(1) as usize, job.part(2));
    let each = job.items.div_ceil(submitters);
    // The limit prevents that all wait for each other with some tags in hand.
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
                    put(cpu, oldest);
                }
            }
            let taken = (n % TIMED == 0).then(time::now);
            held.push_back(get(cpu));
            if let Some(before) = taken {
                timed.push(between(before, time::now()));
            }
            if short && n % YIELDS == 0 {
                thread::yield_now();
            }
        }
        held.drain(..).for_each(|tag| put(cpu, tag));
        Ok(timed)
    };
    meter.pass(each * submitters, || {
        let ran = together(&names, ready, body)?;
        waits = ran.given.concat();
        Ok(ran.ended - ran.began)
    })?;
    let mut line = job.line();
    percentiles(&mut line, "latency", &mut waits, &[50.0, 99.0, 99.9, 100.0]);
    Ok(meter.finish(line))
}
