//! One word that two threads change in turn: half of a round trip is one way of a modified line, or
//! a switch.
//!
//! The idea is an old one; nviennot/core-to-core-latency draws the same matrix by compare and swap.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use corewise_topology::CpuId;
use fastrand::Rng;
use rustix::thread::{futex, sched_yield};

use crate::error::BenchError;

use super::distance::Pairs;
use super::lab::{Apart, Lab, OVER, join};

/// All pairs together, in a full call.
const ALL: Duration = Duration::from_millis(14_000);
/// A pair at most: few CPUs need less.
const EACH: Duration = Duration::from_millis(400);
/// So often each pair has its turn, so that what disturbs for a moment disturbs one turn.
const PASSES: u32 = 4;
/// Round trips of a batch; on one CPU half as many.
const TRIPS: u32 = 100;
/// The samples of each pair, in nanoseconds for one way: by stores, and by atomic read-modify-write
/// operations.
pub(super) type Rallies = BTreeMap<(CpuId, CpuId), [Vec<f64>; 2]>;

/// Of each pair.
pub(super) fn measure(lab: &Lab<'_>, pairs: &Pairs) -> Result<Rallies, BenchError> {
    let mut rallies = Rallies::new();
    let mut order = pairs.all();
    let count = u32::try_from(order.len()).unwrap_or(u32::MAX).max(1);
    let turn = (lab.budget(ALL) / count).min(lab.budget(EACH)) / PASSES / 2;
    let mut rng = Rng::with_seed(1);
    for pass in 0..PASSES {
        rng.shuffle(&mut order);
        for &(a, b) in &order {
            // Each leads in half of the passes.
            let (leader, partner) = if pass % 2 == 0 { (a, b) } else { (b, a) };
            let rally = rallies.entry((a, b)).or_default();
            let played = play(lab, leader, partner, [by_store as Hit, by_swap], 3, turn)?;
            rally.iter_mut().zip(played).for_each(|(all, samples)| all.extend(samples));
        }
    }
    Ok(rallies)
}

/// Two threads, on one CPU or two, change a word in turn, in one way after the other, each for so
/// long, and until there are `least` samples: one way.
pub(super) fn play<const WAYS: usize>(
    lab: &Lab<'_>,
    leader: CpuId,
    partner: CpuId,
    hits: [Hit; WAYS],
    least: usize,
    turn: Duration,
) -> Result<[Vec<f64>; WAYS], BenchError> {
    let balls = &hits.map(|_| Apart(AtomicU32::new(0)));
    let end = |ball: &AtomicU32| {
        ball.store(OVER, Ordering::Release);
        let _ = futex::wake(ball, futex::Flags::PRIVATE, 1);
    };
    let trips = if leader == partner { TRIPS / 2 } else { TRIPS };
    thread::scope(|scope| {
        let answers = lab.start(scope, partner, || {
            for (ball, hit) in balls.iter().zip(hits) {
                let mut expected = 1;
                while hit(&ball.0, expected) {
                    expected += 2;
                }
            }
        })?;
        let way = |nth: usize| {
            let (ball, hit, mut next) = (&balls[nth].0, hits[nth], 0);
            let mut batch = || {
                for _ in 0..trips {
                    hit(ball, next);
                    next += 2;
                }
                // The last answer belongs to the batch; on one CPU it isn't waited for by spinning.
                while leader != partner && ball.load(Ordering::Acquire) != next {}
            };
            batch();
            let samples = lab.timed(least, turn, 2 * trips, batch);
            end(ball);
            samples
        };
        let lead = move || std::array::from_fn(way);
        let samples = match leader == partner {
            // It isn't to have the CPU for itself.
            true => lab.start(scope, leader, lead).and_then(join),
            false => lab.on(leader, lead),
        };
        // A leader that hasn't begun has ended none.
        balls.iter().for_each(|ball| end(&ball.0));
        join(answers)?;
        samples
    })
}

/// Waits until the ball is `expected` and makes it one more; false where it is over.
pub(super) type Hit = fn(&AtomicU32, u32) -> bool;

/// By a load again and again, with something between, and a store.
#[inline]
fn by_load(ball: &AtomicU32, expected: u32, between: impl Fn(u32)) -> bool {
    loop {
        match ball.load(Ordering::Acquire) {
            OVER => return false,
            found if found == expected => break,
            found => between(found),
        }
    }
    ball.store(expected + 1, Ordering::Release);
    true
}

fn by_store(ball: &AtomicU32, expected: u32) -> bool {
    by_load(ball, expected, |_| ())
}

fn by_swap(ball: &AtomicU32, expected: u32) -> bool {
    loop {
        let hit =
            ball.compare_exchange(expected, expected + 1, Ordering::AcqRel, Ordering::Acquire);
        match hit {
            Ok(_) => return true,
            Err(OVER) => return false,
            Err(_) => {}
        }
    }
}

/// Both threads are ready all the time.
pub(super) fn by_yield(ball: &AtomicU32, expected: u32) -> bool {
    by_load(ball, expected, |_| sched_yield())
}

/// The thread that passes the turn wakes the other one, and sleeps.
pub(super) fn by_block(ball: &AtomicU32, expected: u32) -> bool {
    // However a sleep ends, the ball is looked at again.
    let sleep = |found| {
        let _ = futex::wait(ball, futex::Flags::PRIVATE, found, None);
    };
    let is_on = by_load(ball, expected, sleep);
    let _ = futex::wake(ball, futex::Flags::PRIVATE, 1);
    is_on
}
