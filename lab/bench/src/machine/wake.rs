//! Wake-ups by futex: what the call costs the one who wakes, and when the woken thread runs.

use corewise_topology::CpuId;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use corewise_costs::{Distance, Target, Wake};
use rustix::thread::{futex, sched_yield};

use crate::error::BenchError;
use crate::meter::sleep_exactly;

use super::distance::{Pairs, spread};
use super::lab::{Apart, Lab, OVER, join, tail};

/// How long a thread sleeps whose CPU has nothing else to do: not at all nearly, shortly, until the
/// CPU halts, and until it sleeps deeply.
const IDLE_US: [u64; 6] = [1, 5, 20, 200, 1_000, 5_000];
/// And one beside a thread that computes.
const BUSY_US: [u64; 2] = [20, 1_000];
/// And one on the CPU of its waker.
const SAME_US: [u64; 1] = [20];
/// Pairs of a distance.
const PAIRS: usize = 3;
/// All idle targets together, in a full call.
const IDLE: Duration = Duration::from_millis(8_000);
/// All busy targets together.
const BUSY: Duration = Duration::from_millis(4_000);
/// One kind of wake-up at most.
const EACH: Duration = Duration::from_millis(1_500);
/// Samples of a pair at least; and at most.
const LEAST: usize = 12;
const MOST: usize = 2_000;
/// A wake-up that found nobody asleep counts for nothing; after so many there are no others.
const TRIES: usize = 10;

/// Of each distance there is.
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
        // It may be that nobody ever was asleep so soon.
        if let (Ok(call_ns), Ok(latency_ns)) = (tail(&calls), tail(&latencies)) {
            wakes.push(Wake { distance, target, slept_us: slept as f64, call_ns, latency_ns });
        }
    }
    Ok(wakes)
}

/// Where the woken thread sleeps.
#[derive(Debug, Default)]
struct Bed {
    /// A: a number for each wake-up, [`OVER`] at the end; the futex.
    word: Apart<AtomicU32>,
    /// A: when it ran last, by [`Lab::now`]; published with `Release`, for its waker.
    ran: Apart<AtomicU64>,
}

impl Bed {
    /// Sleeps, and tells when it runs.
    fn sleep(&self, lab: &Lab<'_>) {
        let mut seen = 0;
        loop {
            while self.word.0.load(Ordering::Acquire) == seen {
                // However it ends, the word is looked at again.
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

    /// Whether somebody was woken.
    fn wake(&self) -> bool {
        futex::wake(&self.word.0, futex::Flags::PRIVATE, 1).is_ok_and(|woken| woken > 0)
    }
}

/// What the calls of one kind of wake-up cost, and how long it took until the thread ran.
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
        // Where both are one, the waker computes.
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
