//! One word that two CPUs change in turn: half of a round trip is one way of a modified line.
//!
//! The idea is an old one; nviennot/core-to-core-latency draws the same matrix by compare and swap.

use corewise_topology::CpuId;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use crate::error::BenchError;
use crate::rng::Rng;

use super::distance::Pairs;
use super::lab::{Apart, Lab, join};

/// All pairs together, in a full call.
const ALL: Duration = Duration::from_millis(14_000);
/// A pair at most: few CPUs need less.
const EACH: Duration = Duration::from_millis(400);
/// So often each pair has its turn, so that what disturbs for a moment disturbs one turn.
const PASSES: u32 = 4;
/// Round trips of a batch.
const TRIPS: u32 = 100;
/// Ends the game.
const OVER: u64 = u64::MAX;

/// The samples of a pair, in nanoseconds for one way.
#[derive(Debug, Default)]
pub(super) struct Rally {
    /// By stores.
    pub(super) one_way: Vec<f64>,
    /// By atomic read-modify-write operations.
    pub(super) locked: Vec<f64>,
}

/// By pair.
pub(super) type Rallies = BTreeMap<(CpuId, CpuId), Rally>;

/// Of each pair.
pub(super) fn measure(lab: &Lab<'_>, pairs: &Pairs) -> Result<Rallies, BenchError> {
    let mut rallies = Rallies::new();
    let mut order = pairs.all();
    let count = u32::try_from(order.len()).unwrap_or(u32::MAX).max(1);
    let turn = (lab.budget(ALL) / count).min(lab.budget(EACH)) / PASSES / 2;
    let mut rng = Rng::new(1);
    for pass in 0..PASSES {
        rng.shuffle(&mut order);
        for &(a, b) in &order {
            // Each leads in half of the passes.
            let (leader, partner) = if pass % 2 == 0 { (a, b) } else { (b, a) };
            let [one_way, locked] = play(lab, leader, partner, turn)?;
            let rally = rallies.entry((a, b)).or_default();
            rally.one_way.extend(one_way);
            rally.locked.extend(locked);
        }
    }
    Ok(rallies)
}

/// Both kinds, each for `turn`.
fn play(
    lab: &Lab<'_>,
    leader: CpuId,
    partner: CpuId,
    turn: Duration,
) -> Result<[Vec<f64>; 2], BenchError> {
    let balls = [Apart(AtomicU64::new(0)), Apart(AtomicU64::new(0))];
    let [stored, locked] = &balls;
    thread::scope(|scope| {
        let partner = lab.start(scope, partner, || {
            answer(&stored.0, by_store);
            answer(&locked.0, by_swap);
        })?;
        let samples = lab.on(leader, || {
            [lead(lab, &stored.0, by_store, turn), lead(lab, &locked.0, by_swap, turn)]
        });
        if samples.is_err() {
            // The leader hasn't begun: nobody else would end the game.
            stored.0.store(OVER, Ordering::Release);
            locked.0.store(OVER, Ordering::Release);
        }
        join(partner)?;
        samples
    })
}

/// Waits until the ball is `expected` and makes it one more; gives what it is where it is over.
type Hit = fn(&AtomicU64, u64) -> bool;

fn by_store(ball: &AtomicU64, expected: u64) -> bool {
    loop {
        match ball.load(Ordering::Acquire) {
            OVER => return false,
            found if found == expected => break,
            _ => {}
        }
    }
    ball.store(expected + 1, Ordering::Release);
    true
}

fn by_swap(ball: &AtomicU64, expected: u64) -> bool {
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

fn answer(ball: &AtomicU64, hit: Hit) {
    let mut expected = 1;
    while hit(ball, expected) {
        expected += 2;
    }
}

fn lead(lab: &Lab<'_>, ball: &AtomicU64, hit: Hit, turn: Duration) -> Vec<f64> {
    let mut next = 0;
    let mut batch = || {
        for _ in 0..TRIPS {
            hit(ball, next);
            next += 2;
        }
        // The last answer belongs to the batch.
        while ball.load(Ordering::Acquire) != next {}
    };
    batch();
    let samples = lab.timed(3, turn, 2 * TRIPS, batch);
    ball.store(OVER, Ordering::Release);
    samples
}
