//! One line that several CPUs write at once.

use corewise_topology::CpuId;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use corewise_costs::Contended;

use crate::error::BenchError;

use super::lab::{Apart, Lab, figure_beside};

/// Time of each number of CPUs.
const EACH: Duration = Duration::from_millis(500);
/// Additions of a batch.
const ADDS: u32 = 400;
/// Least mean number of additions of each other CPU during a batch. If fewer came, a thread didn't
/// run, and the batch counts only if all batches are like that.
const SHARE: u64 = 80;

/// Measures additions by 1, 2, 4 and so on, and by all of the CPUs.
pub(super) fn measure(lab: &Lab<'_>, cpus: &[CpuId]) -> Result<Vec<Contended>, BenchError> {
    let mut counts: Vec<usize> =
        (0..).map(|power| 1 << power).take_while(|count| *count < cpus.len()).collect();
    counts.push(cpus.len());
    counts.into_iter().map(|count| together(lab, &cpus[..count])).collect()
}

fn together(lab: &Lab<'_>, cpus: &[CpuId]) -> Result<Contended, BenchError> {
    let word = Apart(AtomicU64::new(0));
    let count = u32::try_from(cpus.len()).unwrap_or(u32::MAX);
    let samples = lab.on_all(cpus, |_, over| {
        let end = Instant::now() + lab.budget(EACH);
        let mut samples = Vec::new();
        while !over.load(Ordering::Relaxed) {
            let before = Instant::now();
            let first = word.0.fetch_add(1, Ordering::AcqRel);
            for _ in 2..ADDS {
                word.0.fetch_add(1, Ordering::AcqRel);
            }
            let last = word.0.fetch_add(1, Ordering::AcqRel);
            // The additions of all CPUs count, since one CPU may keep the line for a while.
            let all = last - first + 1;
            let sample = lab.since(before) * f64::from(count) / all as f64;
            samples.push((sample, all - u64::from(ADDS) >= u64::from(count - 1) * SHARE));
            // The first thread whose time is over ends it for all, so none adds alone.
            if samples.len() >= 5 && Instant::now() >= end {
                over.store(true, Ordering::Relaxed);
            }
        }
        samples
    })?;
    Ok(Contended { cpus: count, each_ns: figure_beside(&samples)? })
}
