//! The costs of a run: CPU time, context switches, memory, allocations.

use std::time::{Duration, Instant};

use corewise_sync::sys;

use crate::stats::{median, percentile};
use crate::usage::Usage;
pub(crate) use crate::usage::{thread_cpu, threads};
use crate::{BenchError, Job, Line};

/// Makes sleeps of this thread end on time, instead of up to 50 µs late.
pub(crate) fn sleep_exactly() {
    // If the system refuses it, sleeps are late by the slack, for all runtimes alike.
    let _ = sys::wake_on_time();
}

/// A function that returns the number of allocations of the process so far. A program that installs
/// a counting allocator has one. It counts only in runs that ask for it.
pub type Allocations = fn() -> u64;

/// A meter of the passes of one run, created before the runtime.
#[derive(Debug)]
pub struct Meter {
    allocations: Option<Allocations>,
    threads_before: u64,
    cpu: Duration,
    not_ours: Duration,
    voluntary_switches: u64,
    allocated: u64,
    items: usize,
    rates: Vec<f64>,
}

impl Meter {
    /// Creates the meter of a run. With `count`, the run counts its allocations by `allocations`.
    pub fn new(count: bool, allocations: Option<Allocations>) -> Meter {
        Meter {
            allocations: allocations.filter(|_| count),
            threads_before: threads().unwrap_or(0),
            cpu: Duration::ZERO,
            not_ours: Duration::ZERO,
            voluntary_switches: 0,
            allocated: 0,
            items: 0,
            rates: Vec::new(),
        }
    }

    /// Measures a pass over this number of items. `pass` returns its time by its own clock.
    ///
    /// # Errors
    /// `pass` fails.
    pub fn pass(
        &mut self,
        items: usize,
        pass: impl FnOnce() -> Result<Duration, BenchError>,
    ) -> Result<(), BenchError> {
        self.pass_of(|| Ok((items, pass()?)))
    }

    /// Measures the passes of a job, after one over a tenth of the items that isn't measured.
    pub(crate) fn passes(
        &mut self,
        job: &Job,
        mut pass: impl FnMut(usize) -> Result<Duration, BenchError>,
    ) -> Result<(), BenchError> {
        pass(job.items.div_ceil(10))?;
        (0..job.passes).try_for_each(|_| self.pass(job.items, || pass(job.items)))
    }

    /// Measures a pass as [`Meter::pass`] does. The pass returns its number of items too.
    pub(crate) fn pass_of(
        &mut self,
        pass: impl FnOnce() -> Result<(usize, Duration), BenchError>,
    ) -> Result<(), BenchError> {
        let allocated = self.allocations.map(|count| count());
        let before = Usage::now();
        let (items, took) = pass()?;
        let after = Usage::now();
        if let (Some(count), Some(before)) = (self.allocations, allocated) {
            self.allocated += count() - before;
        }
        self.cpu += after.cpu.saturating_sub(before.cpu);
        self.voluntary_switches += after.voluntary_switches - before.voluntary_switches;
        self.items += items;
        self.rates.push(items as f64 / took.as_secs_f64());
        Ok(())
    }

    /// Subtracts CPU time that isn't the runtime's.
    pub(crate) fn exclude(&mut self, cpu: Duration) {
        self.not_ours += cpu;
    }

    /// Returns the number of threads created since the meter was.
    pub(crate) fn new_threads(&self) -> u64 {
        threads().unwrap_or(0).saturating_sub(self.threads_before)
    }

    /// Adds CPU seconds and context switches of a pass, on average, and nothing else.
    pub(crate) fn finish_pass(&self, line: &mut Line) {
        let passes = self.rates.len().max(1) as f64;
        line.set("cpu_seconds", self.cpu.as_secs_f64() / passes);
        line.set("voluntary_switches", self.voluntary_switches as f64 / passes);
    }

    /// Adds the values of a workload whose passes have items. A run that counted allocations
    /// reports these alone.
    pub fn finish(&self, mut line: Line) -> Line {
        let items = self.items.max(1) as f64;
        if self.allocations.is_some() {
            line.metrics.clear();
            line.set("allocations_per_item", self.allocated as f64 / items);
            return line;
        }
        let cpu = self.cpu.saturating_sub(self.not_ours);
        if let Some(rate) = median(&self.rates) {
            line.set("items_per_second", rate);
        }
        line.set("cpu_per_item", cpu.as_secs_f64() * 1e9 / items);
        line.set("cpu_seconds", cpu.as_secs_f64());
        line.set("voluntary_switches", self.voluntary_switches as f64 * 1e6 / items);
        line.set("peak_rss", Usage::now().peak_rss as f64);
        line
    }
}

/// Adds the percentiles of some samples in nanoseconds, as `STEM_p50` and so on, and the 100th as
/// `STEM_max`. It omits the 99.9th of fewer than 5 000 samples, which would be noise.
pub fn percentiles(line: &mut Line, stem: &str, samples: &mut [u64], which: &[f64]) {
    samples.sort_unstable();
    for &percent in which {
        if percent == 99.9 && samples.len() < 5_000 {
            continue;
        }
        if let Some(value) = percentile(samples, percent) {
            let name = if percent == 100.0 { "max".to_owned() } else { format!("p{percent}") };
            line.set(&format!("{stem}_{}", name.replace('.', "")), value as f64);
        }
    }
}

/// Returns a span in whole nanoseconds.
pub(crate) fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Returns the nanoseconds from one time to another, or 0 if the second is earlier.
pub(crate) fn between(from: Instant, to: Instant) -> u64 {
    nanoseconds(to.saturating_duration_since(from))
}

#[cfg(test)]
mod tests {
    use super::*;
    #[test]
    fn the_rate_is_that_of_the_middle_pass_and_a_counting_run_reports_allocations_alone() {
        use corewise_sync::atomic::{AtomicU64, Ordering};
        fn count() -> u64 {
            static CALLS: AtomicU64 = AtomicU64::new(0);
            CALLS.fetch_add(6, Ordering::Relaxed)
        }
        let measured = |counting: bool| {
            let mut meter = Meter::new(counting, Some(count));
            for seconds in [1, 4, 2] {
                meter.pass(8, || Ok(Duration::from_secs(seconds))).unwrap();
            }
            meter.finish(Line::new("x", "x")).metrics
        };
        let timed = measured(false);
        assert!(timed["items_per_second"] == 4.0 && timed["peak_rss"] > 0.0);
        assert!(!timed.contains_key("allocations_per_item"));
        let counted = measured(true);
        assert_eq!((counted.len(), counted["allocations_per_item"]), (1, 18.0 / 24.0));
    }

    #[test]
    fn percentiles_have_their_names_and_rare_ones_need_many_samples() {
        let mut line = Line::new("x", "x");
        percentiles(&mut line, "latency", &mut [3, 1, 2], &[50.0, 99.0, 99.9]);
        assert_eq!(line.metrics.keys().collect::<Vec<_>>(), ["latency_p50", "latency_p99"]);
        assert_eq!(line.metrics["latency_p50"], 2.0);
        let mut many: Vec<u64> = (1..=10_000).collect();
        percentiles(&mut line, "latency", &mut many, &[99.9, 100.0]);
        assert_eq!(
            (line.metrics["latency_p999"], line.metrics["latency_max"]),
            (9_990.0, 10_000.0)
        );
    }
}
