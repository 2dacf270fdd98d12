//! Wake-ups by futex: the time of the call, and the time until the woken thread runs.

use corewise_topology::CpuId;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use corewise_costs::{Distance, Target, Wake};
use rustix::thread::{futex, sched_yield};

use crate::error::BenchError;
use crate::meter::sleep_exactly;

use super::distance::{Pairs, spread};
use super::lab::{Apart, Lab, OVER, figure, join};

/// Lengths of the sleep on an idle CPU: nearly none, short ones, until the CPU halts, and until it
/// sleeps deeply.
const IDLE_US: [u64; 6] = [1, 5, 20, 200, 1_000, 5_000];
/// Lengths of the sleep beside a thread that computes.
const BUSY_US: [u64; 2] = [20, 1_000];
/// Lengths of the sleep on the CPU of the waker.
const SAME_US: [u64; 1] = [20];
/// Greatest number of pairs of a distance.
const PAIRS: usize = 3;
/// Time of all idle targets together, in a full call.
const IDLE: Duration = Duration::from_millis(8_000);
/// Time of all busy targets together.
const BUSY: Duration = Duration::from_millis(4_000);
/// Greatest time of one kind of wake-up.
const EACH: Duration = Duration::from_millis(1_500);
/// Least number of samples of a pair.
const LEAST: usize = 12;
/// Greatest number of samples of a pair.
const MOST: usize = 2_000;
/// Greatest number of wake-ups for a sample: one that found no sleeping thread doesn't count.
const TRIES: usize = 10;

/// Measures each distance that occurs.
pub(super) fn measure(lab: &Lab<'_>, cpu: CpuId, pairs: &Pairs) -> Result<Vec<Wake>, BenchError> {
    let mut kinds = Vec::new();
    for distance in pairs.distances() {
        kinds.extend(IDLE_US.map(|slept| (distance, Target::Idle, slept)));
        kinds.extend(BUSY_US.map(|slept| (distance, Target::Busy, slept)));
    }
    kinds.extend(SAME_US.map(|slept| (Distance::Same, Target::Idle, slept)));
    kinds.extend(BUSY_US.map(|slept| (Distance::Same, Target::Busy, slept)));
    let count = |target| kinds.iter().filter(|kind| kind.1 == target).count() as u32;
    let [idle, busy] = [(IDLE, Target::Idle), (BUSY, Target::Busy)]
        .map(|(all, target)| (lab.budget(all) / count(target).max(1)).min(lab.budget(EACH)));
    let mut wakes = Vec::new();
    for (distance, target, slept) in kinds {
        let chosen = match distance {
            Distance::Same => vec![(cpu, cpu)],
            _ => spread(pairs.of(distance), PAIRS),
        };
        let each = if target == Target::Idle { idle } else { busy } / chosen.len() as u32;
        let (mut calls, mut latencies) = (Vec::new(), Vec::new());
        for pair in chosen {
            let kind = (target, Duration::from_micros(slept));
            let (call, latency) = wake(lab, pair, kind, each)?;
            calls.extend(call);
            latencies.extend(latency);
        }
        // With a very short sleep, the thread may never have been asleep.
        if let (Ok(call_ns), Ok(latency_ns)) = (figure(&calls), figure(&latencies)) {
            wakes.push(Wake { distance, target, slept_us: slept as f64, call_ns, latency_ns });
        }
    }
    Ok(wakes)
}

/// The futex that the woken thread sleeps on.
#[derive(Debug, Default)]
struct Bed {
    /// A: a number for each wake-up, [`OVER`] at the end; the futex.
    word: Apart<AtomicU32>,
    /// A: the time of the last run, by [`Lab::now`]. Published with `Release`, for the waker.
    ran: Apart<AtomicU64>,
}

impl Bed {
    /// Sleeps, and publishes the time of each run.
    fn sleep(&self, lab: &Lab<'_>) {
        let mut seen = 0;
        loop {
            while self.word.0.load(Ordering::Acquire) == seen {
                // The word decides, however the wait ends.
                let _ = futex::wait(&self.word.0, futex::Flags::PRIVATE, seen, None);
            }
            let now = lab.now();
            seen = self.word.0.load(Ordering::Acquire);
            self.ran.0.store(now, Ordering::Release);
            if seen == OVER {
                return;
            }
        }
    }

    /// Wakes the sleeper. Returns true if it was asleep.
    fn wake(&self) -> bool {
        futex::wake(&self.word.0, futex::Flags::PRIVATE, 1).is_ok_and(|woken| woken > 0)
    }
}

/// Measures one kind of wake-up. Returns the times of the calls, and those until the thread ran.
fn wake(
    lab: &Lab<'_>,
    (from, to): (CpuId, CpuId),
    (target, slept): (Target, Duration),
    budget: Duration,
) -> Result<(Vec<f64>, Vec<f64>), BenchError> {
    let (bed, over) = (Bed::default(), Apart(AtomicBool::new(false)));
    let gives_way = from == to && target == Target::Idle;
    thread::scope(|scope| {
        let sleeper = lab.start(scope, to, || bed.sleep(lab))?;
        // If both CPUs are one, the waker computes.
        let burner = (target == Target::Busy && from != to).then(|| {
            lab.start(scope, to, || {
                while !over.0.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            })
        });
        let waker = lab.start(scope, from, || wake_again(lab, &bed, gives_way, slept, budget));
        let samples = waker.and_then(join);
        over.0.store(true, Ordering::Relaxed);
        bed.word.0.store(OVER, Ordering::Release);
        bed.wake();
        join(sleeper)?;
        if let Some(burner) = burner {
            join(burner?)?;
        }
        samples
    })
}

fn wake_again(
    lab: &Lab<'_>,
    bed: &Bed,
    gives_way: bool,
    slept: Duration,
    budget: Duration,
) -> (Vec<f64>, Vec<f64>) {
    sleep_exactly();
    let end = Instant::now() + budget;
    let (mut calls, mut latencies) = (Vec::new(), Vec::new());
    for number in 1..(MOST * TRIES) as u32 {
        let enough = calls.len() >= LEAST || number as usize >= LEAST * TRIES;
        if calls.len() >= MOST || enough && Instant::now() >= end {
            break;
        }
        let ran = bed.ran.0.load(Ordering::Acquire);
        let before = Instant::now();
        if gives_way {
            thread::sleep(slept);
        }
        while before.elapsed() < slept {
            std::hint::spin_loop();
        }
        bed.word.0.store(number, Ordering::Release);
        let asked = lab.now();
        let woken = bed.wake();
        let returned = lab.now();
        let mut now = bed.ran.0.load(Ordering::Acquire);
        while now == ran {
            if gives_way {
                sched_yield();
            } else {
                std::hint::spin_loop();
            }
            now = bed.ran.0.load(Ordering::Acquire);
        }
        // A thread that hadn't gone to sleep yet wasn't woken.
        if woken {
            calls.push(lab.without_clock(returned.saturating_sub(asked) as f64));
            latencies.push(now.saturating_sub(asked) as f64);
        }
    }
    (calls, latencies)
}
