//! The fake device. Its probe burns CPU time and waits, in turn, and records its own time.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use corewise_sync::{Mutex, context, hint, thread, time};
use corewise_topology::{CpuId, current_cpu};

use crate::meter::{nanoseconds, sleep_exactly, thread_cpu};

/// The work of a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Pattern {
    /// Number of pieces, each of which burns and waits.
    pub pieces: u32,
    /// CPU time of one piece.
    pub burn: Duration,
    /// Length of the wait after a piece, until the probe runs again.
    pub wait: Duration,
}

/// Pieces of the published probe.
const PIECES: u32 = 16;

/// The published probe; see the [module above](super).
const PUBLISHED: Pattern = Pattern {
    pieces: PIECES,
    burn: Duration::from_micros(16_700 / PIECES as u64),
    wait: Duration::from_micros(17_500 / PIECES as u64),
};

impl Pattern {
    /// Returns the published probe, shortened so that the probes of all devices burn no more than
    /// `most` in all. It has fewer pieces then, at least one, of about the same length.
    pub(super) fn of(devices: u32, most: Duration) -> Pattern {
        let devices = devices.max(1);
        let (burn, wait) = (PUBLISHED.burn * PIECES, PUBLISHED.wait * PIECES);
        let part = (most.as_secs_f64() / (burn * devices).as_secs_f64()).min(1.0);
        let pieces = (f64::from(PIECES) * part).round().max(1.0) as u32;
        let piece = |whole: Duration| whole.mul_f64(part) / pieces;
        Pattern { pieces, burn: piece(burn), wait: piece(wait) }
    }

    /// Returns the CPU time of one probe.
    pub(super) fn cpu(&self) -> Duration {
        self.burn * self.pieces
    }

    /// Burns and waits. If the thread is a worker, its pool learns of the waits: the kernel's
    /// scheduler tells its pools too.
    fn go_through(&self, oversleep: Duration, mut seen: impl FnMut()) {
        let sleep = self.wait.saturating_sub(oversleep);
        for _ in 0..self.pieces {
            seen();
            burn(self.burn);
            context::blocking("the device", || thread::sleep(sleep));
        }
        seen();
    }
}

/// Spin hints between two reads of the clock.
const PAUSES: u32 = 200;
/// Approximate time of one hint, for a machine that can't measure it.
const PAUSE: Duration = Duration::from_nanos(40);

/// Keeps the CPU until this thread has used this much CPU time.
fn burn(time: Duration) {
    let until = thread_cpu() + time;
    while thread_cpu() < until {
        for _ in 0..PAUSES {
            std::hint::spin_loop();
        }
        hint::computed(PAUSE * PAUSES);
    }
}

/// Returns the time by which a sleep exceeds this length, on this thread and a machine at rest: the
/// median of some sleeps.
pub(super) fn oversleep(sleep: Duration) -> Duration {
    sleep_exactly();
    let mut over: Vec<Duration> = (0..21)
        .map(|_| {
            let began = time::now();
            thread::sleep(sleep);
            (time::now() - began).saturating_sub(sleep)
        })
        .collect();
    over.sort_unstable();
    over[over.len() / 2]
}

/// Times of the probes of one pass, in nanoseconds, and the CPUs on which they were seen.
type Noted = (Vec<u64>, BTreeSet<CpuId>);

/// A device that any thread can probe.
#[derive(Debug, Clone)]
pub(super) struct Device {
    /// The work of its probe.
    pub pattern: Pattern,
    /// Time that a sleep takes beyond its length, from [`oversleep`].
    pub oversleep: Duration,
    /// L: is the lock; guards the times of this device's probes and of other devices that share it.
    pub costs: Arc<Mutex<Noted>>,
}

impl Device {
    /// Probes the device on this thread.
    pub(super) fn probe(&self) {
        if self.pattern.pieces == 0 {
            return;
        }
        sleep_exactly();
        let mut cpus = BTreeSet::new();
        let began = time::now();
        self.pattern.go_through(self.oversleep, || cpus.extend(current_cpu()));
        let cost = nanoseconds(time::now() - began);
        let mut noted = self.costs.lock();
        noted.0.push(cost);
        noted.1.append(&mut cpus);
    }

    /// Takes the recorded values.
    pub(super) fn take(&self) -> Noted {
        std::mem::take(&mut *self.costs.lock())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_probe_is_shortened_in_proportion_and_never_to_nothing() {
        let long = Pattern::of(3, Duration::from_secs(1));
        assert_eq!(long, PUBLISHED);
        let short = Pattern::of(10_000, Duration::from_secs(1));
        assert_eq!(short.pieces, 1);
        assert!(short.cpu() * 10_000 <= Duration::from_millis(1_001), "{short:?}");
        let share = |p: Pattern| p.burn.as_secs_f64() / (p.burn + p.wait).as_secs_f64();
        assert!((share(short) - share(long)).abs() < 0.01, "{short:?}");
    }

    #[test]
    fn the_published_pattern_keeps_one_cpu_busy_with_three_and_takes_35_ms_alone() {
        // The published times are 53/50/47 and 35/35/33 ms.
        let mean = |of: [f64; 3]| of.iter().sum::<f64>() / 3.0;
        let busy = 3.0 * PUBLISHED.cpu().as_secs_f64() * 1e3;
        assert!((busy / mean([53.37, 49.53, 47.32]) - 1.0).abs() < 0.02, "{busy}");
        let alone = ((PUBLISHED.burn + PUBLISHED.wait) * PIECES).as_secs_f64() * 1e3;
        assert!((alone / mean([34.77, 34.70, 33.23]) - 1.0).abs() < 0.02, "{alone}");
    }

    #[test]
    fn a_probe_uses_its_cpu_time_and_is_noted() {
        let pattern =
            Pattern { pieces: 3, burn: Duration::from_micros(50), wait: Duration::from_micros(1) };
        let device = Device { pattern, oversleep: Duration::ZERO, costs: Arc::default() };
        let before = thread_cpu();
        device.probe();
        assert!(thread_cpu() - before >= pattern.cpu());
        let (costs, cpus) = device.take();
        assert!(costs.len() == 1 && u128::from(costs[0]) >= pattern.cpu().as_nanos());
        assert!(!cpus.is_empty());
        assert!(device.take().0.is_empty());
    }
}
