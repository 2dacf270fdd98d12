//! Tools of all measurements: a clock of known cost, threads pinned to a CPU, and loops that end
//! when their time is over.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc;
use std::thread::{self, Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

use corewise_costs::Figure;
use corewise_topology::{CpuId, CpuSet, Machine};

use crate::bench::Effort;
use crate::calls::priority;
use crate::error::BenchError;

/// Length of a batch: long beside a read of the clock, short beside a tick of the timer.
const BATCH: Duration = Duration::from_micros(20);
/// Least number of batches, however short the time is.
const LEAST_BATCHES: usize = 9;
/// Greatest number of batches: more give no new information.
const MOST_BATCHES: usize = 20_000;

/// A value on a cache line of its own, or on two that are fetched together.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Apart<T>(pub(super) T);

/// A place to measure.
#[derive(Debug)]
pub(super) struct Lab<'m> {
    machine: &'m Machine,
    effort: Effort,
    /// Time that a read of the clock adds to an interval, in nanoseconds.
    clock: f64,
    /// Start of the times that several threads share.
    base: Instant,
}

impl<'m> Lab<'m> {
    /// Creates a lab whose clock is calibrated on `cpu`.
    pub(super) fn new(
        machine: &'m Machine,
        effort: Effort,
        cpu: CpuId,
    ) -> Result<Lab<'m>, BenchError> {
        let mut lab = Lab { machine, effort, clock: 0.0, base: Instant::now() };
        lab.clock = lab.on(cpu, || {
            let mut samples: Vec<f64> = (0..2_000)
                .map(|_| {
                    let before = Instant::now();
                    nanoseconds(Instant::now() - before)
                })
                .collect();
            samples.sort_unstable_by(f64::total_cmp);
            samples[samples.len() / 2]
        })?;
        Ok(lab)
    }

    /// Returns the time for a measurement: `full` in a full call, a fifth of it in a quick one.
    pub(super) fn budget(&self, full: Duration) -> Duration {
        if self.effort == Effort::Quick { full / 5 } else { full }
    }

    /// Returns the nanoseconds since the lab was made.
    pub(super) fn now(&self) -> u64 {
        u64::try_from(self.base.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Returns the nanoseconds since `before`, without the clock's own.
    pub(super) fn since(&self, before: Instant) -> f64 {
        (nanoseconds(before.elapsed()) - self.clock).max(0.0)
    }

    /// Takes the clock's own time off an interval between two reads of it.
    pub(super) fn without_clock(&self, interval: f64) -> f64 {
        (interval - self.clock).max(0.0)
    }

    /// Runs `body` on a thread of its own, pinned to `cpu`.
    pub(super) fn on<T: Send>(
        &self,
        cpu: CpuId,
        body: impl FnOnce() -> T + Send,
    ) -> Result<T, BenchError> {
        thread::scope(|scope| join(self.start(scope, cpu, body)?))
    }

    /// Starts a thread that is pinned to `cpu`. Returns once it is pinned.
    pub(super) fn start<'scope, T: Send + 'scope>(
        &self,
        scope: &'scope Scope<'scope, '_>,
        cpu: CpuId,
        body: impl FnOnce() -> T + Send + 'scope,
    ) -> Result<ScopedJoinHandle<'scope, Option<T>>, BenchError> {
        let (there, arrived) = mpsc::channel();
        let machine = self.machine.clone();
        let thread =
            thread::Builder::new().name(format!("cpu{cpu}")).spawn_scoped(scope, move || {
                // A thread with an inherited real-time priority would never give way to the other
                // threads here. If the system refuses, the thread keeps the priority.
                let _ = priority::ordinary();
                let pinned = machine.pin_current_thread(&CpuSet::from_iter([cpu]));
                let is_pinned = pinned.is_ok();
                // The starter waits for this message.
                let _ = there.send(pinned);
                is_pinned.then(body)
            });
        let thread = thread.map_err(BenchError::Thread)?;
        arrived.recv().map_err(|_| BenchError::Panicked)??;
        Ok(thread)
    }

    /// Returns the nanoseconds of one operation, a sample a batch, until `full` (or a quick call's
    /// share of it) is over. `batch` does as many operations as its argument says.
    fn repeat(&self, full: Duration, mut batch: impl FnMut(u32)) -> Vec<f64> {
        // The count doubles until a batch lasts long enough. A disturbed batch ends this early.
        let mut count = 1;
        loop {
            let before = Instant::now();
            batch(count);
            if before.elapsed() >= BATCH || count >= 1 << 20 {
                break;
            }
            count *= 2;
        }
        self.timed(LEAST_BATCHES, self.budget(full), count, || batch(count))
    }

    /// Returns the nanoseconds of one of the `of` operations of a batch, until there are `least`
    /// samples and the budget is spent.
    pub(super) fn timed(
        &self,
        least: usize,
        budget: Duration,
        of: u32,
        mut batch: impl FnMut(),
    ) -> Vec<f64> {
        let end = Instant::now() + budget;
        let mut samples = Vec::new();
        while samples.len() < least || samples.len() < MOST_BATCHES && Instant::now() < end {
            let before = Instant::now();
            batch();
            samples.push(self.since(before) / f64::from(of));
        }
        samples
    }

    /// Runs `body` on all of these CPUs once all threads are there, and returns all samples. `body`
    /// gets the number of its thread and a flag that ends the measurement for all.
    pub(super) fn on_all<T: Send>(
        &self,
        cpus: &[CpuId],
        body: impl Fn(usize, &AtomicBool) -> Vec<T> + Sync,
    ) -> Result<Vec<T>, BenchError> {
        let (over, there) = (&Apart(AtomicBool::new(false)).0, &Apart(AtomicU32::new(0)).0);
        let body = |nth: usize| {
            there.fetch_add(1, Ordering::AcqRel);
            while (there.load(Ordering::Acquire) as usize) < cpus.len()
                && !over.load(Ordering::Relaxed)
            {
                // Two threads may share a CPU.
                thread::yield_now();
            }
            body(nth, over)
        };
        let body = &body;
        thread::scope(|scope| {
            let start = |(nth, cpu): (usize, &CpuId)| self.start(scope, *cpu, move || body(nth));
            let threads: Vec<_> = cpus.iter().enumerate().map(start).collect();
            if threads.iter().any(Result::is_err) {
                over.store(true, Ordering::Relaxed);
            }
            let mut all = Vec::new();
            for thread in threads {
                all.extend(join(thread?)?);
            }
            Ok(all)
        })
    }

    /// Runs `body` as [`Lab::on`] does, while the other CPUs call `busy` repeatedly.
    pub(super) fn beside<T: Send>(
        &self,
        cpu: CpuId,
        others: &[CpuId],
        busy: impl Fn(usize) + Sync,
        body: impl FnOnce() -> T + Send,
    ) -> Result<T, BenchError> {
        let (over, busy) = (&Apart(AtomicBool::new(false)), &busy);
        thread::scope(|scope| {
            let start = |(nth, other): (usize, &CpuId)| {
                self.start(scope, *other, move || {
                    while !over.0.load(Ordering::Relaxed) {
                        busy(nth);
                    }
                })
            };
            let threads: Vec<_> = others.iter().enumerate().map(start).collect();
            let given = self.on(cpu, body);
            over.0.store(true, Ordering::Relaxed);
            for thread in threads {
                join(thread?)?;
            }
            given
        })
    }

    /// Returns the figure of one operation, repeated on `cpu`; see [`Lab::repeat`].
    pub(super) fn repeat_on(
        &self,
        cpu: CpuId,
        full: Duration,
        batch: impl FnMut(u32) + Send,
    ) -> Result<Figure, BenchError> {
        figure(&self.on(cpu, || self.repeat(full, batch))?)
    }
}

/// Turn of the measuring thread. Other numbers are turns of other threads.
pub(super) const OURS: u32 = 0;
/// Mark that the turns are over.
pub(super) const OVER: u32 = u32::MAX;

/// Runs `part` on each turn of number `mine`, until the turns are over.
pub(super) fn serve(turn: &AtomicU32, mine: u32, mut part: impl FnMut()) {
    loop {
        match turn.load(Ordering::Acquire) {
            OVER => return,
            now if now == mine => {
                part();
                turn.store(OURS, Ordering::Release);
            }
            _ => std::hint::spin_loop(),
        }
    }
}

/// Gives another thread the turn and waits for its end.
pub(super) fn have(turn: &AtomicU32, whom: u32) {
    turn.store(whom, Ordering::Release);
    while turn.load(Ordering::Acquire) != OURS {
        std::hint::spin_loop();
    }
}

/// Joins a thread and returns its result.
pub(super) fn join<T>(thread: ScopedJoinHandle<'_, Option<T>>) -> Result<T, BenchError> {
    thread.join().ok().flatten().ok_or(BenchError::Panicked)
}

/// Returns the figure of samples.
pub(super) fn figure(samples: &[f64]) -> Result<Figure, BenchError> {
    Figure::of(samples).ok_or(BenchError::Nothing { what: "sample" })
}

/// Returns the figure of those samples during which the other threads ran. If they ran during none,
/// all samples count.
pub(super) fn figure_beside(samples: &[(f64, bool)]) -> Result<Figure, BenchError> {
    let alone = samples.iter().all(|(_, beside)| !beside);
    let kept = samples.iter().filter(|(_, beside)| alone || *beside);
    figure(&kept.map(|(each, _)| *each).collect::<Vec<_>>())
}

pub(super) fn nanoseconds(duration: Duration) -> f64 {
    duration.as_nanos() as f64
}
