//! What all measurements share: a clock whose cost is known, threads pinned to a CPU, and loops
//! that end when their time is over.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread::{self, Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

use corewise_costs::Figure;
use corewise_topology::{CpuId, CpuSet, Machine};

use crate::bench::Effort;
use crate::calls::priority;
use crate::error::BenchError;

/// A batch is to last so long: long beside a read of the clock, short beside a tick of the timer.
const BATCH: Duration = Duration::from_micros(20);
/// Batches that are measured at least, however little time there is.
const LEAST_BATCHES: usize = 9;
/// And at most: more tell nothing new.
const MOST_BATCHES: usize = 20_000;

/// On a line, or two that are fetched together, of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Apart<T>(pub(super) T);

/// A place to measure.
#[derive(Debug)]
pub(super) struct Lab<'m> {
    machine: &'m Machine,
    effort: Effort,
    /// What a read of the clock adds to what lies between two of them, in nanoseconds.
    clock: f64,
    /// Times of several threads are told from here.
    base: Instant,
    /// A: how often a thread that had its CPU for itself lost it; a count, `Relaxed`.
    lost: AtomicU64,
    /// A: for how long such threads ran, in nanoseconds; a count, `Relaxed`.
    alone: AtomicU64,
}

impl<'m> Lab<'m> {
    /// Whose clock is calibrated on this CPU.
    pub(super) fn new(
        machine: &'m Machine,
        effort: Effort,
        cpu: CpuId,
    ) -> Result<Lab<'m>, BenchError> {
        let mut lab = Lab {
            machine,
            effort,
            clock: 0.0,
            base: Instant::now(),
            lost: AtomicU64::new(0),
            alone: AtomicU64::new(0),
        };
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

    /// A share of the time that there is: `full` of a full call, a fifth of it of a quick one.
    pub(super) fn budget(&self, full: Duration) -> Duration {
        if self.effort == Effort::Quick { full / 5 } else { full }
    }

    /// Nanoseconds since the lab was made.
    pub(super) fn now(&self) -> u64 {
        u64::try_from(self.base.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Nanoseconds since `before`, without the clock's own.
    pub(super) fn since(&self, before: Instant) -> f64 {
        (nanoseconds(before.elapsed()) - self.clock).max(0.0)
    }

    /// What an interval of two reads of the clock holds beside theirs.
    pub(super) fn without_clock(&self, interval: f64) -> f64 {
        (interval - self.clock).max(0.0)
    }

    /// Involuntary switches a second of threads that had their CPU for themselves.
    pub(super) fn lost_per_second(&self) -> f64 {
        let alone = self.alone.load(Ordering::Relaxed) as f64 / 1e9;
        if alone > 0.0 { self.lost.load(Ordering::Relaxed) as f64 / alone } else { 0.0 }
    }

    /// Runs `body` on a thread of its own, pinned to `cpu`, which it is to have for itself: what
    /// takes the CPU from it is noise, and counted.
    pub(super) fn on<T: Send>(
        &self,
        cpu: CpuId,
        body: impl FnOnce() -> T + Send,
    ) -> Result<T, BenchError> {
        thread::scope(|scope| {
            let body = || {
                let (lost, began) = (involuntary(), Instant::now());
                let given = body();
                self.lost.fetch_add(involuntary().saturating_sub(lost), Ordering::Relaxed);
                let alone = u64::try_from(began.elapsed().as_nanos()).unwrap_or(0);
                self.alone.fetch_add(alone, Ordering::Relaxed);
                given
            };
            join(self.start(scope, cpu, body)?)
        })
    }

    /// Starts a thread that is pinned to `cpu`, and returns when it is there.
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
                // A real-time priority that was inherited would never give way to the other threads
                // here. None is known that can't be given up; if so, it is as it was asked for.
                let _ = priority::ordinary();
                let pinned = machine.pin_current_thread(&CpuSet::from_iter([cpu]));
                let is_pinned = pinned.is_ok();
                // Its starter waits for that.
                let _ = there.send(pinned);
                is_pinned.then(body)
            });
        let thread = thread.map_err(BenchError::Thread)?;
        arrived.recv().map_err(|_| BenchError::Panicked)??;
        Ok(thread)
    }

    /// Nanoseconds of one operation, batch by batch, until `full` (or a quick call's share of it)
    /// is over. `batch` does so many times `parts` operations as it is told.
    pub(super) fn repeat(
        &self,
        full: Duration,
        parts: u32,
        mut batch: impl FnMut(u32),
    ) -> Vec<f64> {
        // Doubled until it lasts; a batch that was disturbed ends that too early at worst.
        let mut count = 1;
        loop {
            let before = Instant::now();
            batch(count);
            if before.elapsed() >= BATCH || count >= 1 << 20 {
                break;
            }
            count *= 2;
        }
        self.timed(LEAST_BATCHES, self.budget(full), count * parts, || batch(count))
    }

    /// Nanoseconds of one of the `of` operations that `batch` does, until there are `least` samples
    /// and the budget is spent.
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

    /// Runs `body` on all of these CPUs, from when all are there, and gives what they gave
    /// together. It is given its number, and whether it is over for all.
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
                // Two may share a CPU.
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

    /// Runs `body` on a CPU, as [`Lab::on`], while others do `busy` again and again.
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

    /// The figure of [`Lab::repeat`] on a CPU.
    pub(super) fn repeat_on(
        &self,
        cpu: CpuId,
        full: Duration,
        parts: u32,
        batch: impl FnMut(u32) + Send,
    ) -> Result<Figure, BenchError> {
        figure(&self.on(cpu, || self.repeat(full, parts, batch))?)
    }
}

/// The turn of the measuring thread; other numbers are others'.
pub(super) const OURS: u32 = 0;
/// Ends the turns.
pub(super) const OVER: u32 = u32::MAX;

/// Does its part whenever it has the turn.
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

/// Gives another thread the turn, and waits for its end.
pub(super) fn have(turn: &AtomicU32, whom: u32) {
    turn.store(whom, Ordering::Release);
    while turn.load(Ordering::Acquire) != OURS {
        std::hint::spin_loop();
    }
}

/// What a thread gave.
pub(super) fn join<T>(thread: ScopedJoinHandle<'_, Option<T>>) -> Result<T, BenchError> {
    thread.join().ok().flatten().ok_or(BenchError::Panicked)
}

/// The figure of samples.
pub(super) fn figure(samples: &[f64]) -> Result<Figure, BenchError> {
    Figure::of(samples).ok_or(BenchError::Nothing { what: "sample" })
}

/// The figure of those samples in which the others did their part; of all where they did in none.
pub(super) fn figure_beside(samples: &[(f64, bool)]) -> Result<Figure, BenchError> {
    let alone = samples.iter().all(|(_, beside)| !beside);
    let kept = samples.iter().filter(|(_, beside)| alone || *beside);
    figure(&kept.map(|(each, _)| *each).collect::<Vec<_>>())
}

/// The figure of samples whose tail is of use.
pub(super) fn tail(samples: &[f64]) -> Result<Figure, BenchError> {
    Figure::with_tail(samples).ok_or(BenchError::Nothing { what: "sample" })
}

pub(super) fn nanoseconds(duration: Duration) -> f64 {
    duration.as_nanos() as f64
}

/// How often the calling thread has lost its CPU.
fn involuntary() -> u64 {
    // SAFETY: all zeroes is a valid `rusage`: it holds integers only.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to a `rusage` that lives through the call. If it failed, the zeroes
    // would stand for no switches.
    unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) };
    u64::try_from(usage.ru_nivcsw).unwrap_or(0)
}
