//! The C library's allocator: blocks that the same thread frees, and blocks that another one frees.
//! Only the allocator touches the memory.

use corewise_topology::CpuId;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use corewise_costs::Allocator;

use crate::error::BenchError;

use super::lab::{Apart, Lab, OURS, OVER, figure, have, join, serve};

/// Bytes of a block.
const SIZE: usize = 64;
/// Blocks in a row, of 64 KiB in all: an allocator keeps as much when it is freed.
const ROW: usize = (64 << 10) / SIZE;
/// Time of each figure.
const EACH: Duration = Duration::from_millis(350);
/// Least number of rounds.
const LEAST: usize = 9;

pub(super) fn measure(lab: &Lab<'_>, cpu: CpuId, cpus: &[CpuId]) -> Result<Allocator, BenchError> {
    let other = cpus.iter().copied().find(|other| *other != cpu);
    let [malloc, free] = lab.on(cpu, || rows(lab))?;
    let elsewhere = other.map(|other| freed_elsewhere(lab, cpu, other)).transpose()?;
    Ok(Allocator {
        malloc_ns: figure(&malloc)?,
        free_ns: figure(&free)?,
        free_elsewhere_ns: elsewhere.map(|samples| figure(&samples)).transpose()?,
    })
}

fn malloc_one() -> *mut libc::c_void {
    // SAFETY: any size may be asked for. The block is freed later, or is null.
    unsafe { libc::malloc(SIZE) }
}

fn free_one(block: *mut libc::c_void) {
    // SAFETY: callers pass a result of `malloc_one`, once. Null may be freed, too.
    unsafe { libc::free(block) };
}

/// Allocates a row of blocks, then frees them, again and again. Returns nanoseconds a block of
/// each.
fn rows(lab: &Lab<'_>) -> [Vec<f64>; 2] {
    let mut blocks = [ptr::null_mut(); ROW];
    let end = Instant::now() + lab.budget(EACH);
    let (mut mallocs, mut frees) = (Vec::new(), Vec::new());
    while mallocs.len() < LEAST || Instant::now() < end {
        let before = Instant::now();
        blocks.iter_mut().for_each(|block| *block = malloc_one());
        mallocs.push(lab.since(before) / ROW as f64);
        let before = Instant::now();
        blocks.iter().for_each(|block| free_one(*block));
        frees.push(lab.since(before) / ROW as f64);
    }
    [mallocs, frees]
}

/// Turn of the freeing thread.
const THEIRS: u32 = 1;

/// Frees rows of blocks on one CPU that another one allocated. Returns nanoseconds of a free.
fn freed_elsewhere(lab: &Lab<'_>, cpu: CpuId, other: CpuId) -> Result<Vec<f64>, BenchError> {
    let turn = Apart(AtomicU32::new(OURS));
    let blocks: Vec<AtomicPtr<libc::c_void>> =
        (0..ROW).map(|_| AtomicPtr::new(ptr::null_mut())).collect();
    thread::scope(|scope| {
        let freeing = lab.start(scope, other, || {
            let mut frees = Vec::new();
            let mut own = Vec::with_capacity(ROW);
            serve(&turn.0, THEIRS, || {
                // The transfer of the list's own lines isn't timed.
                own.extend(blocks.iter().map(|block| block.load(Ordering::Relaxed)));
                let before = Instant::now();
                own.drain(..).for_each(free_one);
                frees.push(lab.since(before) / ROW as f64);
            });
            frees
        })?;
        let allocated = lab.on(cpu, || {
            let end = Instant::now() + lab.budget(EACH);
            let mut rounds = 0;
            while rounds < LEAST || Instant::now() < end {
                blocks.iter().for_each(|block| block.store(malloc_one(), Ordering::Relaxed));
                have(&turn.0, THEIRS);
                rounds += 1;
            }
        });
        turn.0.store(OVER, Ordering::Release);
        let frees = join(freeing)?;
        allocated.map(|()| frees)
    })
}
