//! What a worker does between "found nothing" and its sleep: it may spin first.
//!
//! It is on the idle list by then, as one that is parked: who wakes it leaves the token of its parker,
//! and makes a system call only where it sleeps. So this is no part of the pool's protocol.

use std::time::{Duration, Instant};

use corewise_sync::{hint, thread, time};

use super::worker::Worker;
use crate::cpu::current_cpu;
use crate::idle::Idle;
use crate::policy::{Habit, IdleEnd, Shares, is_quick, made_way_well};

/// How often the token is looked at before the first yield: some us, in which most of the work comes
/// that comes to a spinning worker.
const FIRST_LOOKS: u32 = 32;
/// How often between two yields: some 8 us, which another thread that wants the CPU waits at most.
const LOOKS: u32 = 256;
/// A yield that took longer has let another thread run: the CPU isn't free.
const ALONE: Duration = Duration::from_micros(6);

/// How a worker idles, and what it has learnt.
pub(super) struct Idler {
    idle: Idle,
    habit: Habit,
    shares: Shares,
    /// It made way, and so much later it had work.
    made_way: Option<Duration>,
    /// When it was given work last.
    since: Option<Instant>,
    /// No other thread wanted its CPU when it yielded last.
    alone: bool,
}

impl Idler {
    pub(super) fn new(idle: Idle) -> Idler {
        // In a model there is no time to spin for.
        let idle = if cfg!(any(loom, shuttle, miri)) { Idle::Sleep } else { idle };
        Idler {
            idle,
            habit: Habit::NEW,
            shares: Shares::NEW,
            made_way: None,
            since: None,
            alone: true,
        }
    }

    /// Waits until the worker is woken; false where a surplus worker's time ran out first.
    pub(super) fn wait(&mut self, worker: &Worker, limit: Option<Duration>) -> bool {
        if self.idle == Idle::Sleep {
            return worker.park(limit);
        }
        let began = time::now();
        let budget = self.habit.budget(self.idle);
        let spun = !budget.is_zero();
        self.judge(began);
        let makes_way = !spun && self.idle == Idle::Hybrid && self.shares.pays();
        if makes_way {
            thread::yield_now();
            if worker.try_park() {
                let now = time::now();
                self.made_way = Some(now.duration_since(began));
                self.since = Some(now);
                return true;
            }
            self.shares.learn(false);
        }
        if spun {
            let run = self.since.map_or(Duration::MAX, |since| began.duration_since(since));
            worker.spins(is_quick(run));
            let found = self.spin(worker, began, budget);
            worker.spins(false);
            if found {
                self.habit.learn(IdleEnd::Spun);
                self.since = Some(time::now());
                return true;
            }
        }
        let woken = worker.park(limit);
        let ended = time::now();
        let from_here = current_cpu().is_some_and(|cpu| worker.was_woken_from(cpu));
        let for_so_long = ended.duration_since(began);
        self.habit.learn(IdleEnd::Slept { for_so_long, spun, from_here });
        self.shares.slept(for_so_long, from_here);
        self.since = Some(ended);
        woken
    }
}

impl Idler {
    /// What came of making way for who shares the CPU: either that brought much work, or it came soon.
    fn judge(&mut self, began: Instant) {
        if let (Some(waited), Some(since)) = (self.made_way.take(), self.since) {
            self.shares.learn(made_way_well(waited, began.duration_since(since)));
        }
    }

    /// Looks out for the token for so long; whether it came. Gives up where others want the CPU and
    /// bring no work: it would only keep them from it, or be kept from it while work waits.
    fn spin(&mut self, worker: &Worker, began: Instant, budget: Duration) -> bool {
        let mut looks = FIRST_LOOKS;
        loop {
            for _ in 0..if self.alone { looks } else { 1 } {
                if worker.try_park() {
                    return true;
                }
                hint::spin_loop();
            }
            let looked = time::now();
            if looked.duration_since(began) >= budget {
                return false;
            }
            thread::yield_now();
            self.alone = looked.elapsed() <= ALONE;
            if worker.try_park() {
                return true;
            }
            if !self.alone {
                return false;
            }
            looks = LOOKS;
        }
    }
}
