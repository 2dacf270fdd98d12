//! The C library's allocator: blocks that the same thread frees, that another one frees, and what
//! all CPUs do at once. Nobody touches the memory but the allocator.

use corewise_topology::CpuId;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use corewise_costs::Allocator;

use crate::error::BenchError;

use super::lab::{Apart, Lab, OURS, OVER, figure, have, join, serve};

const SIZES: [usize; 3] = [64, 256, 4096];
/// Of each figure of each size.
const EACH: Duration = Duration::from_millis(350);
/// Bytes in a row: fewer than an allocator gives back to the system when they are free.
const ROW: usize = 64 << 10;
/// Rounds at least.
const LEAST: usize = 9;

pub(super) fn measure(
    lab: &Lab<'_>,
    cpu: CpuId,
    cpus: &[CpuId],
) -> Result<Vec<Allocator>, BenchError> {
    let other = cpus.iter().copied().find(|other| *other != cpu);
    let mut all = Vec::new();
    for size in SIZES {
        let [malloc, free] = lab.on(cpu, || rows(lab, size, || true))?;
        let elsewhere = match other {
            Some(other) => Some(freed_elsewhere(lab, size, cpu, other)?),
            None => None,
        };
        let [malloc_after, free_elsewhere] = elsewhere.unwrap_or_default();
        all.push(Allocator {
            bytes: size as u64,
            malloc_ns: figure(&malloc)?,
            free_ns: figure(&free)?,
            free_elsewhere_ns: other.map(|_| figure(&free_elsewhere)).transpose()?,
            malloc_after_elsewhere_ns: other.map(|_| figure(&malloc_after)).transpose()?,
            pair_ns: lab.repeat_on(cpu, EACH, 1, |count| {
                for _ in 0..count {
                    free_one(std::hint::black_box(malloc_one(size)));
                }
            })?,
            pair_all_ns: figure(&at_once(lab, size, cpus)?)?,
        });
    }
    Ok(all)
}

fn malloc_one(size: usize) -> *mut libc::c_void {
    // SAFETY: any size may be asked for; what is given is freed, or null.
    unsafe { libc::malloc(size) }
}

fn free_one(block: *mut libc::c_void) {
    // SAFETY: callers pass what `malloc_one` gave, once; null may be freed, too.
    unsafe { libc::free(block) };
}

/// Mallocs in a row, then frees in a row: nanoseconds of one of each.
fn rows(lab: &Lab<'_>, size: usize, wanted: impl Fn() -> bool) -> [Vec<f64>; 2] {
    let count = ROW / size;
    let mut blocks = vec![ptr::null_mut(); count];
    let end = Instant::now() + lab.budget(EACH);
    let (mut mallocs, mut frees) = (Vec::new(), Vec::new());
    while mallocs.len() < LEAST || Instant::now() < end && wanted() {
        let before = Instant::now();
        blocks.iter_mut().for_each(|block| *block = malloc_one(size));
        mallocs.push(lab.since(before) / count as f64);
        let before = Instant::now();
        blocks.iter().for_each(|block| free_one(*block));
        frees.push(lab.since(before) / count as f64);
    }
    [mallocs, frees]
}

/// The turn of the freeing thread.
const THEIRS: u32 = 1;

/// A thread allocates what another one frees, in turns: nanoseconds of a malloc and of a free.
fn freed_elsewhere(
    lab: &Lab<'_>,
    size: usize,
    cpu: CpuId,
    other: CpuId,
) -> Result<[Vec<f64>; 2], BenchError> {
    let count = ROW / size;
    let turn = Apart(AtomicU32::new(OURS));
    let blocks: Vec<AtomicPtr<libc::c_void>> =
        (0..count).map(|_| AtomicPtr::new(ptr::null_mut())).collect();
    thread::scope(|scope| {
        let freeing = lab.start(scope, other, || {
            let mut frees = Vec::new();
            let mut own = Vec::with_capacity(count);
            serve(&turn.0, THEIRS, || {
                // The list's own lines are no part of it.
                own.extend(blocks.iter().map(|block| block.load(Ordering::Relaxed)));
                let before = Instant::now();
                own.drain(..).for_each(free_one);
                frees.push(lab.since(before) / count as f64);
            });
            frees
        })?;
        let mallocs = lab.on(cpu, || {
            let mut own = vec![ptr::null_mut(); count];
            let mut mallocs = Vec::new();
            let end = Instant::now() + lab.budget(EACH);
            while mallocs.len() < LEAST || Instant::now() < end {
                let before = Instant::now();
                own.iter_mut().for_each(|block| *block = malloc_one(size));
                mallocs.push(lab.since(before) / count as f64);
                let shown = blocks.iter().zip(&own);
                shown.for_each(|(shown, block)| shown.store(*block, Ordering::Relaxed));
                have(&turn.0, THEIRS);
            }
            mallocs
        });
        turn.0.store(OVER, Ordering::Release);
        let frees = join(freeing)?;
        // The first ones had fresh memory.
        Ok([mallocs?.split_off(2), frees])
    })
}

/// All CPUs do the same at once: nanoseconds of a malloc and a free.
fn at_once(lab: &Lab<'_>, size: usize, cpus: &[CpuId]) -> Result<Vec<f64>, BenchError> {
    lab.on_all(cpus, |_, over| {
        let [mallocs, frees] = rows(lab, size, || !over.load(Ordering::Relaxed));
        // The first whose time is over ends it for all: none goes on alone.
        over.store(true, Ordering::Relaxed);
        mallocs.iter().zip(&frees).map(|(malloc, free)| malloc + free).collect()
    })
}
