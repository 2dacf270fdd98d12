//! Calls into the system that do nothing, empty threads, and the hint of a spin loop.

use corewise_topology::CpuId;
use std::hint::{black_box, spin_loop};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use corewise_costs::{Calls, Figure};

use crate::error::BenchError;

use super::lab::{Apart, Lab, figure, figure_beside};

/// Time of each figure.
const EACH: Duration = Duration::from_millis(200);
/// Number of barriers of a batch.
const BARRIERS: u32 = 10;
/// `membarrier(2)`: commands of the kernel's interface.
const REGISTER_PRIVATE_EXPEDITED: i32 = 1 << 4;
const PRIVATE_EXPEDITED: i32 = 1 << 3;

pub(super) fn calls(lab: &Lab<'_>, cpu: CpuId, cpus: &[CpuId]) -> Result<Calls, BenchError> {
    let each = |op: &(dyn Fn() + Sync)| {
        lab.repeat_on(cpu, EACH, |count| {
            for _ in 0..count {
                op();
            }
        })
    };
    let others: Vec<CpuId> = cpus.iter().copied().filter(|other| *other != cpu).collect();
    let has_membarrier = membarrier(REGISTER_PRIVATE_EXPEDITED);
    let beside = |others: &[CpuId]| match has_membarrier {
        true => membarrier_beside(lab, cpu, others).map(Some),
        false => Ok(None),
    };
    Ok(Calls {
        bare_ns: each(&|| {
            black_box(rustix::process::getppid());
        })?,
        yield_ns: each(&rustix::thread::sched_yield)?,
        clock_ns: each(&|| {
            black_box(Instant::now());
        })?,
        fault_ns: Some(faults(lab, cpu)?),
        membarrier_alone_ns: beside(&[])?,
        membarrier_one_ns: if others.is_empty() { None } else { beside(&others[..1])? },
        membarrier_all_ns: if others.is_empty() { None } else { beside(&others)? },
    })
}

/// Measures the first writes to pages of memory.
fn faults(lab: &Lab<'_>, cpu: CpuId) -> Result<Figure, BenchError> {
    const PAGES: usize = 256;
    let samples = lab.on(cpu, || {
        let end = Instant::now() + lab.budget(EACH);
        let mut samples = Vec::new();
        while samples.len() < 9 || Instant::now() < end {
            let Ok(memory) = Pages::new(PAGES) else { break };
            let before = Instant::now();
            memory.touch();
            samples.push(lab.since(before) / PAGES as f64);
        }
        samples
    })?;
    figure(&samples)
}

/// Pages of memory that were never written.
struct Pages {
    start: *mut u8,
    count: usize,
}

impl Pages {
    const BYTES: usize = 4096;

    fn new(count: usize) -> std::io::Result<Pages> {
        use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};
        let bytes = count * Pages::BYTES;
        let (may, kind) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: the mapping is new, at an address that the system chooses.
        let start = unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, may, kind)? };
        let pages = Pages { start: start.cast(), count };
        // A system without huge pages refuses, and gives small pages anyway.
        // SAFETY: the range is the mapping above, and the advice changes no content.
        let _ = unsafe { madvise(start, bytes, Advice::LinuxNoHugepage) };
        Ok(pages)
    }

    fn touch(&self) {
        for page in 0..self.count {
            // SAFETY: the address lies within the mapping, which is writable.
            unsafe { self.start.add(page * Pages::BYTES).write_volatile(1) };
        }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: `new` mapped as many bytes at this address, and nothing refers to them any more.
        let _ = unsafe { rustix::mm::munmap(self.start.cast(), self.count * Pages::BYTES) };
    }
}

/// Calls `membarrier` with a command. Returns true if the system did it.
fn membarrier(command: i32) -> bool {
    // SAFETY: the call takes numbers only.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

/// Measures `membarrier` while threads of this process run on the other CPUs.
fn membarrier_beside(lab: &Lab<'_>, cpu: CpuId, others: &[CpuId]) -> Result<Figure, BenchError> {
    let rounds: Vec<Apart<AtomicU64>> = others.iter().map(|_| Apart::default()).collect();
    let run = |nth: usize| {
        rounds[nth].0.fetch_add(1, Ordering::Relaxed);
    };
    let samples = lab.beside(cpu, others, run, || {
        let now = || rounds.iter().map(|one| one.0.load(Ordering::Relaxed)).collect::<Vec<_>>();
        let end = Instant::now() + lab.budget(EACH);
        let mut samples = Vec::new();
        while samples.len() < 20 || Instant::now() < end {
            let seen = now();
            let before = Instant::now();
            for _ in 0..BARRIERS {
                black_box(membarrier(PRIVATE_EXPEDITED));
            }
            let sample = lab.since(before) / f64::from(BARRIERS);
            // The count of each running thread rises. A busy machine may stop one of them.
            samples.push((sample, now().iter().zip(&seen).all(|(now, seen)| now > seen)));
        }
        samples
    })?;
    figure_beside(&samples)
}

/// Measures an empty thread, from its start until it has been joined.
pub(super) fn spawn_join(lab: &Lab<'_>, cpu: CpuId) -> Result<Figure, BenchError> {
    // The thread inherits its starter's CPU.
    let samples = lab.on(cpu, || {
        lab.timed(20, lab.budget(EACH), 1, || {
            // A refused thread leaves no result, and an empty one can't panic.
            let _ = thread::Builder::new().spawn(|| {}).map(thread::JoinHandle::join);
        })
    })?;
    figure(&samples)
}

pub(super) fn spin_hint(lab: &Lab<'_>, cpu: CpuId) -> Result<Figure, BenchError> {
    lab.repeat_on(cpu, EACH, |count| {
        for _ in 0..count {
            spin_loop();
        }
    })
}
