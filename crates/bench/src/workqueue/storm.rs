//! Tiny items from outside, as many and as fast as the producers can.

use std::thread;
use std::time::Instant;

use crate::error::BenchError;
use crate::workqueue::case::Case;
use crate::workqueue::job::Job;
use crate::workqueue::line::Line;
use crate::workqueue::meter::Meter;
use crate::workqueue::runtime::{Reuse, Runtime, Spawn};
use crate::workqueue::start::{Start, together};
use crate::workqueue::tiny::{Countdown, Tiny};

/// A closure per item.
///
/// # Errors
/// A producer couldn't be started, or panicked.
pub fn boxed<R: Spawn>(job: &Job, runtime: &R, meter: &mut Meter) -> Result<Line, BenchError> {
    storm(job, runtime, meter, |share, countdown, start| {
        start.wait().then(|| {
            let began = Instant::now();
            for payload in 0..share as u64 {
                let tiny = Tiny { countdown, payload };
                runtime.spawn(move || tiny.run());
            }
            began
        })
    })
}

/// Items that each producer made before.
///
/// # Errors
/// A producer couldn't be started, or panicked.
pub fn reused<R: Reuse>(job: &Job, runtime: &R, meter: &mut Meter) -> Result<Line, BenchError> {
    storm(job, runtime, meter, |share, countdown, start| {
        let item = |payload| runtime.reusable(Tiny { countdown, payload });
        let ring: Vec<R::Item> = (0..job.ring as u64).map(item).collect();
        start.wait().then(|| {
            let began = Instant::now();
            let mut left = share;
            'all: loop {
                for item in &ring {
                    if left == 0 {
                        break 'all;
                    }
                    left -= 1;
                    while !runtime.requeue(item) {
                        // The workers haven't come round to it: they need the CPU more.
                        thread::yield_now();
                    }
                }
            }
            // The last runs may be going on still: the ring outlives them, as its items may have
            // to.
            (began, ring)
        })
    })
}

/// What a producer returns: when it began, and what has to live until all items have run.
trait Produced: Send {
    fn began(&self) -> Instant;
}

impl Produced for Instant {
    fn began(&self) -> Instant {
        *self
    }
}

impl<T: Send> Produced for (Instant, Vec<T>) {
    fn began(&self) -> Instant {
        self.0
    }
}

fn storm<R: Runtime, P: Produced>(
    job: &Job,
    runtime: &R,
    meter: &mut Meter,
    produce: impl Fn(usize, &'static Countdown, &Start) -> Option<P> + Sync,
) -> Result<Line, BenchError> {
    let striped = matches!(job.case, Case::Storm { striped: true, .. });
    let names: Vec<String> = (0..job.producers).map(|n| format!("producer/{n}")).collect();
    let pass = |items: usize| {
        let shares = shares(items, job.producers);
        let (all, counts) = if striped {
            Countdown::striped(&shares)
        } else {
            let all = Countdown::new(items);
            (all, vec![all; job.producers])
        };
        let produced =
            together(&names, |number, start| Ok(produce(shares[number], counts[number], start)))?;
        all.wait();
        let end = Instant::now();
        runtime.flush();
        let began = produced.iter().map(Produced::began).min().unwrap_or(end);
        Ok(end - began)
    };
    pass(job.items.div_ceil(10))?;
    for _ in 0..job.passes {
        meter.pass(job.items, || pass(job.items))?;
    }
    let mut line = Line::new(&job.case.to_string(), &job.runtime);
    meter.finish(&mut line);
    Ok(line)
}

/// `items` divided among the producers; the first ones take the rest.
fn shares(items: usize, producers: usize) -> Vec<usize> {
    let (each, rest) = (items / producers, items % producers);
    (0..producers).map(|n| each + usize::from(n < rest)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workqueue::job::Effort;
    use corewise_sync::atomic::{AtomicUsize, Ordering};
    use corewise_topology::CpuSet;
    use std::sync::Arc;

    /// Runs items in the queueing call itself, and refuses each second reused one.
    #[derive(Clone, Default)]
    struct Inline {
        /// A: Relaxed; read after the threads were joined.
        calls: Arc<AtomicUsize>,
    }
    impl Runtime for Inline {}
    impl Spawn for Inline {
        fn spawn<F: FnOnce() + Send + 'static>(&self, closure: F) {
            self.calls.fetch_add(1, Ordering::Relaxed);
            closure();
        }
    }
    impl Reuse for Inline {
        type Item = Tiny;
        fn reusable(&self, tiny: Tiny) -> Tiny {
            tiny
        }
        fn requeue(&self, item: &Tiny) -> bool {
            let accepted = self.calls.fetch_add(1, Ordering::Relaxed) % 2 == 1;
            if accepted {
                item.run();
            }
            accepted
        }
    }

    fn job(case: &str) -> Job {
        let case = case.parse().unwrap();
        let job = Job::new(case, "x", &CpuSet::full(1), Effort::Quick);
        Job { items: 100, passes: 2, ring: 7, ..job }
    }

    #[test]
    fn only_accepted_queueings_count() {
        for case in ["storm/reused", "storm/reused/striped", "oversubscribed/reused"] {
            let (job, runtime) = (job(case), Inline::default());
            let line = reused(&job, &runtime, &mut Meter::new(&job, None)).unwrap();
            assert_eq!(runtime.calls.load(Ordering::Relaxed), 2 * (10 + 100 + 100), "{case}");
            assert!(line.metrics["items_per_second"] > 0.0);
        }
    }

    #[test]
    fn every_closure_runs_once() {
        for case in ["storm/boxed", "storm/boxed/striped", "oversubscribed/boxed"] {
            let (job, runtime) = (job(case), Inline::default());
            boxed(&job, &runtime, &mut Meter::new(&job, None)).unwrap();
            assert_eq!(runtime.calls.load(Ordering::Relaxed), 10 + 100 + 100, "{case}");
        }
    }

    #[test]
    fn what_cannot_be_divided_goes_to_the_first() {
        assert_eq!(shares(10, 3), [4, 3, 3]);
        assert_eq!(shares(1, 2), [1, 0]);
    }
}
