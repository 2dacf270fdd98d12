//! Short items among some that block, in an open loop. Each item has an intended time, and its
//! latency counts from there, even if the producer is late.

use corewise_sync::{hint, thread, time};
use std::sync::Arc;
use std::time::Duration;

use corewise_sync::atomic::{AtomicU64, Ordering};

use crate::bench::{Cases, Workload};
use crate::meter::{Meter, between, percentiles, thread_cpu};
use crate::workqueue::runtime::Spawn;
use crate::workqueue::tiny::Countdown;
use crate::workqueue::{base, own, with_before};
use crate::{BenchError, Job, Line};

/// Load in percent of the rate that the workers could reach if there were never more of them. With
/// `hint`, blocking items announce that they block.
pub(super) const WORKLOAD: Workload = Workload {
    cases: Cases::These("mix/50 mix/50/hint mix/80 mix/80/hint"),
    quick: |parts, _| parts == ["mix", "50"],
    numbers: |job, parts, on| {
        base(job, on);
        (job.producers, job.passes, job.hint) = (1, 1, parts.len() == 3);
        (job.block_us, job.short_us) = (1_000, 1);
        // A worker that blocks for each tenth item does 10 000 a second.
        job.rate = 10_000 * job.workers as u64 * u64::from(job.part(1)) / 100;
        // The run takes two seconds, or 0.3.
        job.items = (job.rate as usize).saturating_mul(on.pick(20, 3)) / 10;
    },
    variants: |_, on| with_before(on, false, false),
    run: own,
};

/// Runs the workload once. The calling thread is the producer.
///
/// # Errors
/// The job has no rate.
pub(super) fn run<R: Spawn>(job: &Job, runtime: &R, meter: &mut Meter) -> Result<Line, BenchError> {
    if job.rate == 0 {
        return Err(BenchError::Nothing { what: "items per second" });
    }
    let plan = plan(job);
    let (first, rest) = plan.split_at(job.items.div_ceil(10));
    produce(job, runtime, first);
    let (mut short, mut producer) = (Vec::new(), Duration::ZERO);
    meter.pass(rest.len(), || {
        let began = (time::now(), thread_cpu());
        short = produce(job, runtime, rest);
        producer = thread_cpu() - began.1;
        Ok(time::now() - began.0)
    })?;
    meter.exclude(producer);
    let mut line = job.line();
    percentiles(&mut line, "short", &mut short, &[50.0, 90.0, 99.0, 99.9, 100.0]);
    line.set("threads", meter.new_threads() as f64);
    Ok(meter.finish(line))
}

/// One item of the plan.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Planned {
    gap: Duration,
    blocks: bool,
}

/// Returns the plan: a tenth of the items to warm up, and the items.
fn plan(job: &Job) -> Vec<Planned> {
    let mut counter = job.seed;
    let mut next = || split_mix(&mut counter);
    let planned = |_| {
        // 53 random bits are a number from 0 to just below 1.
        let uniform = (next() >> 11) as f64 / (1_u64 << 53) as f64;
        let gap = Duration::from_secs_f64(-(1.0 - uniform).ln() / job.rate as f64);
        Planned { gap, blocks: next() % 10 == 0 }
    };
    (0..job.items.div_ceil(10) + job.items).map(planned).collect()
}

/// Returns the next number of Vigna's SplitMix64, a hashed counter. Other languages need only a few
/// lines for it, too.
fn split_mix(counter: &mut u64) -> u64 {
    *counter = counter.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *counter;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Queues the planned items, and waits for all. Returns the latencies of the short ones.
fn produce<R: Spawn>(job: &Job, runtime: &R, plan: &[Planned]) -> Vec<u64> {
    let block = Duration::from_micros(job.block_us.into());
    let spin = Duration::from_micros(job.short_us.into());
    // Relaxed: one item writes each, and they are read after all have counted down.
    let latencies: Arc<[AtomicU64]> = plan.iter().map(|_| AtomicU64::new(0)).collect();
    let countdown = Countdown::new(plan.len().max(1));
    let mut intended = time::now();
    for (number, planned) in plan.iter().enumerate() {
        intended += planned.gap;
        // The producer yields, so a worker that the system wakes on this CPU runs at once.
        while time::now() < intended {
            thread::yield_now();
        }
        if planned.blocks {
            let blocking = move || {
                thread::sleep(block);
                countdown.count();
            };
            match job.hint {
                true => runtime.spawn_blocking(blocking),
                false => runtime.spawn(blocking),
            }
        } else {
            let latencies = Arc::clone(&latencies);
            runtime.spawn(move || {
                let began = time::now();
                while time::now() - began < spin {
                    hint::spin_loop();
                }
                let latency = between(intended, time::now());
                latencies[number].store(latency, Ordering::Relaxed);
                countdown.count();
            });
        }
    }
    if !plan.is_empty() {
        countdown.wait();
    }
    runtime.flush();
    let short = plan.iter().zip(&latencies[..]).filter(|(planned, _)| !planned.blocks);
    short.map(|(_, latency)| latency.load(Ordering::Relaxed)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workqueue::tests::job;

    #[test]
    fn the_plan_keeps_the_rate_blocks_for_a_tenth_and_is_repeatable() {
        let job = job("mix/50 items=20000", 2);
        let of = plan(&job);
        assert_eq!(of.len(), 22_000);
        assert_eq!(of, plan(&job));
        let all: Duration = of.iter().map(|planned| planned.gap).sum();
        // 22 000 at 10 000 a second; five standard deviations of a sum of exponentials.
        assert!((2.12..2.28).contains(&all.as_secs_f64()), "{all:?}");
        let blocking = of.iter().filter(|planned| planned.blocks).count();
        assert!((1_980..=2_420).contains(&blocking), "{blocking}");
        // Programs in other languages must compute the same first gap and kind for seed 1.
        let mut counter = 1;
        let first = [(); 2].map(|()| split_mix(&mut counter));
        assert_eq!(first, [0x910a_2dec_8902_5cc1, 0xbeeb_8da1_658e_ec67]);
    }
}
