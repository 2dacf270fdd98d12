//! What one CPU does with lines that nobody else touches, with a line that all read, and with
//! memory.

use corewise_topology::CpuId;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::time::Duration;

use corewise_costs::{Figure, Line};

use crate::error::BenchError;

use super::lab::{Apart, Lab, figure};
use super::list::{Lines, far_apart};
use super::{NO_MEMORY, facts};

/// Of each figure.
const EACH: Duration = Duration::from_millis(250);
/// Lines of the ring that stays in the first-level cache: half of the smallest one there is.
const RING: usize = 128;
/// CPUs that read a line at once.
const READERS: usize = 8;
/// Loads of a batch from memory.
const LOADS: usize = 500;
/// Memory that is walked through, at most.
const MOST_BYTES: u64 = 1 << 30;
/// And at least.
const LEAST_BYTES: u64 = 32 << 20;

pub(super) fn measure(lab: &Lab<'_>, cpu: CpuId, cpus: &[CpuId]) -> Result<Line, BenchError> {
    let own = Apart(AtomicU64::new(0));
    let word = &own.0;
    let ring = Lines::new(RING, |nth| nth).ok_or(NO_MEMORY)?;
    let walk = |count: u32| {
        ring.walk(0, 16 * count as usize);
    };
    // All read the same lines, nobody writes.
    let others = cpus.iter().copied().filter(|other| *other != cpu).take(READERS - 1);
    let others: Vec<CpuId> = others.collect();
    let shared = || {
        let read = |_| walk(RING as u32);
        figure(&lab.beside(cpu, &others, read, || lab.repeat(EACH, 16, walk))?)
    };
    Ok(Line {
        load_hit_ns: lab.repeat_on(cpu, EACH, 16, walk)?,
        load_shared_hit_ns: shared()?,
        load_memory_ns: memory(lab, cpu)?,
        store_ns: lab.repeat_on(cpu, EACH, 16, |count| {
            for number in 0..u64::from(count) {
                for part in 0..16 {
                    word.store(number + part, Ordering::Relaxed);
                }
            }
        })?,
        locked_ns: lab.repeat_on(cpu, EACH, 1, |count| {
            for _ in 0..count {
                word.fetch_add(1, Ordering::AcqRel);
            }
        })?,
        fence_ns: lab.repeat_on(cpu, EACH, 1, |count| {
            for number in 0..u64::from(count) {
                word.store(number, Ordering::Relaxed);
                fence(Ordering::SeqCst);
            }
        })?,
    })
}

/// A walk through more memory than the last-level cache holds.
fn memory(lab: &Lab<'_>, cpu: CpuId) -> Result<Figure, BenchError> {
    let most = MOST_BYTES.min(facts::available_bytes() / 4).max(LEAST_BYTES);
    let bytes = (4 * facts::last_level_cache_bytes(cpu)).clamp(LEAST_BYTES, most);
    let samples = lab.on(cpu, || {
        // A process may get less than the system has.
        let mut sizes = (0..).map(|power| bytes >> power).take_while(|bytes| *bytes >= LEAST_BYTES);
        let lines = |bytes: u64| {
            let count = (bytes / 64) as usize;
            Lines::new(count, |nth| far_apart(nth, count))
        };
        let ring = sizes.find_map(lines)?;
        let mut at = 0;
        let walk = || at = ring.walk(at, LOADS);
        Some(lab.timed(50, lab.budget(2 * EACH), LOADS as u32, walk))
    })?;
    figure(&samples.ok_or(NO_MEMORY)?)
}
