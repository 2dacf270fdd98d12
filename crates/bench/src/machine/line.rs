//! What one CPU does with lines that nobody else touches, with a line that all read, and with memory.

use corewise_topology::CpuId;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering, fence};
use std::time::Duration;

use corewise_costs::{Figure, Line};

use crate::error::BenchError;

use super::facts;
use super::lab::{Apart, Lab, figure};

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

const NO_MEMORY: BenchError = BenchError::Nothing { what: "memory" };

pub(super) fn measure(lab: &Lab<'_>, cpu: CpuId, cpus: &[CpuId]) -> Result<Line, BenchError> {
    let own = Apart(AtomicU64::new(0));
    let word = &own.0;
    let ring = Ring::new(RING, |step| (step + 1) % RING).ok_or(NO_MEMORY)?;
    Ok(Line {
        load_hit_ns: lab
            .repeat_on(cpu, EACH, |count| {
                ring.walk(0, rounds(count, 16));
            })
            .map(|figure| per(figure, 16))?,
        load_shared_hit_ns: shared(lab, cpu, cpus)?,
        load_memory_ns: memory(lab, cpu)?,
        store_ns: lab
            .repeat_on(cpu, EACH, |count| {
                for number in 0..u64::from(count) {
                    for part in 0..16 {
                        word.store(number + part, Ordering::Relaxed);
                    }
                }
            })
            .map(|figure| per(figure, 16))?,
        locked_ns: lab.repeat_on(cpu, EACH, |count| {
            for _ in 0..count {
                word.fetch_add(1, Ordering::AcqRel);
            }
        })?,
        fence_ns: lab.repeat_on(cpu, EACH, |count| {
            for number in 0..u64::from(count) {
                word.store(number, Ordering::Relaxed);
                fence(Ordering::SeqCst);
            }
        })?,
    })
}

/// An operation of a batch is so many.
fn rounds(count: u32, of: usize) -> usize {
    count as usize * of
}

/// Of one of so many that are an operation.
fn per(figure: Figure, parts: u32) -> Figure {
    let part = |value: f64| (value / f64::from(parts) * 1000.0).round() / 1000.0;
    Figure {
        p10: part(figure.p10),
        p50: part(figure.p50),
        p90: part(figure.p90),
        p99: figure.p99.map(part),
    }
}

/// Lines that lead to one another in a circle.
#[derive(Debug)]
struct Ring {
    lines: Vec<RingLine>,
}

#[derive(Debug)]
#[repr(align(64))]
struct RingLine {
    /// A: the next line; written while the ring is made, by one thread.
    next: AtomicPtr<RingLine>,
}

impl Ring {
    /// Of `count` lines; after line `n` comes line `after(n)`, all of them from line 0.
    /// `None` where the process gets no memory for them.
    fn new(count: usize, after: impl Fn(usize) -> usize) -> Option<Ring> {
        let line = || RingLine { next: AtomicPtr::new(ptr::null_mut()) };
        let mut lines = Vec::new();
        lines.try_reserve_exact(count).ok()?;
        lines.extend((0..count).map(|_| line()));
        let ring = Ring { lines };
        ring.link(after);
        Some(ring)
    }

    /// In the order of the circle: what is walked through first was written first.
    fn link(&self, after: impl Fn(usize) -> usize) {
        let mut at = 0;
        for _ in 0..self.lines.len() {
            let following = after(at);
            let next = ptr::from_ref(&self.lines[following]);
            self.lines[at].next.store(next.cast_mut(), Ordering::Relaxed);
            at = following;
        }
    }

    /// Takes so many steps from the line of this number; gives the number where they end.
    fn walk(&self, from: usize, steps: usize) -> usize {
        let mut at = ptr::from_ref(&self.lines[from]);
        for _ in 0..steps {
            // SAFETY: each line's pointer was set by `link` to one of `self.lines`, which live as
            // long as the borrow, are never moved, and to which there is no mutable reference.
            at = unsafe { &*at }.next.load(Ordering::Relaxed).cast_const();
        }
        (std::hint::black_box(at).addr() - self.lines.as_ptr().addr()) / size_of::<RingLine>()
    }
}

/// All read the same lines, nobody writes.
fn shared(lab: &Lab<'_>, cpu: CpuId, cpus: &[CpuId]) -> Result<Figure, BenchError> {
    let ring = Ring::new(RING, |step| (step + 1) % RING).ok_or(NO_MEMORY)?;
    let others: Vec<CpuId> =
        cpus.iter().copied().filter(|other| *other != cpu).take(READERS - 1).collect();
    let read = |_| {
        ring.walk(0, 16 * RING);
    };
    let samples = lab.beside(cpu, &others, read, || {
        lab.repeat(EACH, |count| {
            ring.walk(0, rounds(count, 16));
        })
    })?;
    figure(&samples).map(|figure| per(figure, 16))
}

/// A walk through more memory than the last-level cache holds.
fn memory(lab: &Lab<'_>, cpu: CpuId) -> Result<Figure, BenchError> {
    let most = MOST_BYTES.min(facts::available_bytes() / 4).max(LEAST_BYTES);
    let bytes = (4 * facts::last_level_cache_bytes(cpu)).clamp(LEAST_BYTES, most);
    let largest = (bytes / size_of::<RingLine>() as u64).ilog2();
    let least = (LEAST_BYTES / size_of::<RingLine>() as u64).ilog2();
    let samples = lab.on(cpu, || {
        // A process may get less than the system has.
        let mut counts = (least..=largest).rev().map(|power| 1 << power);
        let ring = counts.find_map(|count| Ring::new(count, |at| scattered(at, count)))?;
        let mut at = 0;
        let samples =
            lab.timed(50, lab.budget(2 * EACH), LOADS as u32, || at = ring.walk(at, LOADS));
        Some(samples)
    })?;
    figure(&samples.ok_or(NO_MEMORY)?)
}

/// The number after `at`, in a circle through all numbers below `count`, a power of two: a linear
/// congruential generator of full period (Hull and Dobell: an odd addend, a factor of 4n + 1), seen
/// through numbers whose bits are in reverse, so that neighbours in the circle share no page.
fn scattered(at: usize, count: usize) -> usize {
    let bits = count.trailing_zeros();
    if bits == 0 {
        return 0;
    }
    let reverse = |number: usize| number.reverse_bits() >> (usize::BITS - bits);
    let mask = count - 1;
    let next = reverse(at)
        .wrapping_mul(0x5851_f42d_4c95_7f2d_u64 as usize)
        .wrapping_add(0x1405_7b7e_f767_814f_u64 as usize);
    reverse(next & mask)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scattered_circle_has_each_number_once() {
        for count in [1, 2, 4, 64, 1 << 12] {
            let mut seen = vec![false; count];
            let mut at = 0;
            for _ in 0..count {
                assert!(!std::mem::replace(&mut seen[at], true), "{at} of {count} twice");
                at = scattered(at, count);
            }
            assert_eq!(at, 0, "it is a circle");
        }
    }
}
