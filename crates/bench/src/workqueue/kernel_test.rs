//! The kernel's workqueue test (`lib/test_workqueue.c`, Linux 7.1), in user space.
//!
//! One thread per online CPU, pinned there. Each has one item in flight: it times the *queueing
//! call* alone, waits until the item has run, and does so again. So the percentiles are those of
//! the call (in the old design, the wait for the pool's lock), not of the round trip. The rate is
//! all items by the time from the release of the threads to the end of a flush after they have
//! stopped.
//!
//! Every variant is given the same threads and the same waiter (a futex-based parker without
//! spinning), and an item that is made once and queued again and again, so nothing but the queue
//! differs.

use std::thread;
use std::time::{Duration, Instant};

use corewise_sync::atomic::{AtomicBool, Ordering};
use corewise_sync::{Completion, Countdown, Parker, Unparker};
use corewise_topology::{CpuSet, Machine};

use crate::error::BenchError;
use crate::stats::percentile;

/// What the workload needs of a queue.
pub trait Queue: Sync {
    /// Something that can be queued again and again, by one thread.
    type Item: Send;

    /// An item that does nothing but leave the token when it runs. Made once per thread; not timed.
    fn item(&self, done: Unparker) -> Self::Item;

    /// Queues the item. This call is what is timed. The item isn't queued and has run when it is
    /// made.
    fn queue(&self, item: &Self::Item);

    /// Waits for everything that was queued.
    fn flush(&self);
}

/// What one run gave.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Outcome {
    /// Items per second, all threads together.
    pub items_per_second: f64,
    /// Nanoseconds that half of the queueing calls didn't exceed.
    pub call_p50: f64,
    /// 90 % of them.
    pub call_p90: f64,
    /// 95 % of them.
    pub call_p95: f64,
}

/// Runs the workload once: `items` per thread, one thread per online CPU of the machine. Threads of
/// a synthetic machine aren't pinned. Blocks.
///
/// # Errors
/// A thread couldn't be started or pinned, or one panicked.
pub fn run<Q: Queue>(machine: &Machine, queue: &Q, items: usize) -> Result<Outcome, BenchError> {
    if items == 0 {
        return Err(BenchError::Nothing { what: "items" });
    }
    let cpus = machine.online();
    let start = Start::new(cpus.len());
    let start = &start;
    thread::scope(|scope| {
        let mut threads = Vec::new();
        for cpu in &cpus {
            let builder = thread::Builder::new().name(format!("bench/{cpu}"));
            let body = move || {
                machine.pin_current_thread(&CpuSet::from_iter([cpu])).inspect_err(|_| {
                    start.abort();
                })?;
                Ok(start.wait().then(|| submit(queue, items)))
            };
            match builder.spawn_scoped(scope, body) {
                Ok(thread) => threads.push(thread),
                Err(error) => {
                    // Those that were started wait for the release: let them go home.
                    start.abort();
                    return Err(BenchError::Thread(error));
                }
            }
        }
        start.release();
        // All are joined before any error is returned: the scope itself panics for a panic left
        // unseen.
        let joined: Vec<Result<Option<ThreadRun>, BenchError>> = threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or(Err(BenchError::Panicked)))
            .collect();
        let runs: Result<Vec<_>, BenchError> =
            joined.into_iter().filter_map(Result::transpose).collect();
        let runs = runs?;
        queue.flush();
        let end = Instant::now();
        outcome(runs, end).ok_or(BenchError::Nothing { what: "online CPUs" })
    })
}

/// What one thread measured.
struct ThreadRun {
    began: Instant,
    calls: Vec<u64>,
}

fn submit<Q: Queue>(queue: &Q, items: usize) -> ThreadRun {
    let parker = Parker::new();
    let item = queue.item(parker.unparker());
    let mut calls = Vec::with_capacity(items);
    let began = Instant::now();
    for _ in 0..items {
        let before = Instant::now();
        queue.queue(&item);
        calls.push(nanoseconds(before.elapsed()));
        parker.park();
    }
    ThreadRun { began, calls }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// The run from what its threads measured: the clock starts with the first of them.
fn outcome(runs: Vec<ThreadRun>, end: Instant) -> Option<Outcome> {
    let began = runs.iter().map(|run| run.began).min()?;
    let mut calls: Vec<u64> = runs.into_iter().flat_map(|run| run.calls).collect();
    calls.sort_unstable();
    let call = |percent| percentile(&calls, percent).map(|ns| ns as f64);
    Some(Outcome {
        items_per_second: calls.len() as f64 / (end - began).as_secs_f64(),
        call_p50: call(50.0)?,
        call_p90: call(90.0)?,
        call_p95: call(95.0)?,
    })
}

/// Lets all threads go at once, when the last is in its place; or none.
struct Start {
    ready: Countdown,
    go: Completion,
    /// A: Relaxed; ordered by `go`.
    aborted: AtomicBool,
}

impl Start {
    fn new(threads: usize) -> Self {
        let (ready, go) = (Countdown::new(threads), Completion::new());
        Start { ready, go, aborted: AtomicBool::new(false) }
    }

    /// For the threads: in place; true when released.
    fn wait(&self) -> bool {
        self.ready.done();
        self.go.wait();
        !self.aborted.load(Ordering::Relaxed)
    }

    /// For the one who started them: releases them when all are in their places. Nobody is where
    /// one said that it can't be.
    fn release(&self) {
        self.ready.wait();
        self.go.complete();
    }

    /// Nobody runs.
    fn abort(&self) {
        self.aborted.store(true, Ordering::Relaxed);
        self.go.complete();
        self.ready.done();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use corewise_sync::atomic::AtomicUsize;

    /// Runs items in the queueing call itself, and counts.
    #[derive(Default)]
    struct Inline {
        /// A: Relaxed; read after the threads were joined.
        queued: AtomicUsize,
        /// A: as `queued`.
        flushed: AtomicUsize,
    }

    impl Queue for Inline {
        type Item = Unparker;
        fn item(&self, done: Unparker) -> Unparker {
            done
        }
        fn queue(&self, item: &Unparker) {
            self.queued.fetch_add(1, Ordering::Relaxed);
            item.unpark();
        }
        fn flush(&self) {
            self.flushed.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn each_cpu_queues_its_items_and_the_end_is_flushed_once() {
        let machine = Machine::synthetic("core:3 pu:1").unwrap();
        let queue = Inline::default();
        let outcome = run(&machine, &queue, 50).unwrap();
        assert_eq!(queue.queued.into_inner(), 150);
        assert_eq!(queue.flushed.into_inner(), 1);
        assert!(outcome.items_per_second > 0.0);
        assert!(outcome.call_p50 <= outcome.call_p90 && outcome.call_p90 <= outcome.call_p95);
    }

    #[test]
    fn the_rate_counts_from_the_first_start_to_the_end() {
        let zero = Instant::now();
        let at = |seconds| zero + Duration::from_secs(seconds);
        let runs = vec![
            ThreadRun { began: at(2), calls: vec![30, 10] },
            ThreadRun { began: at(1), calls: vec![40, 20] },
        ];
        let outcome = outcome(runs, at(3)).unwrap();
        assert_eq!(outcome.items_per_second, 2.0, "four items in two seconds");
        assert_eq!((outcome.call_p50, outcome.call_p95), (20.0, 40.0), "of all threads' calls");
    }

    #[test]
    fn a_panic_in_the_queue_is_an_error_and_nobody_hangs() {
        struct Broken;
        impl Queue for Broken {
            type Item = ();
            fn item(&self, _done: Unparker) {}
            fn queue(&self, (): &()) {
                panic!("on purpose");
            }
            fn flush(&self) {}
        }
        let machine = Machine::synthetic("core:2 pu:1").unwrap();
        assert!(matches!(run(&machine, &Broken, 1), Err(BenchError::Panicked)));
    }

    #[test]
    fn a_cpu_that_cannot_be_pinned_to_is_an_error_and_nobody_hangs() {
        // A machine that claims to be live can't be made up; a start that is aborted by one of
        // three threads is what such a CPU leads to.
        let start = Start::new(3);
        thread::scope(|scope| {
            let waiters = [(); 2].map(|()| scope.spawn(|| start.wait()));
            start.abort();
            start.release();
            assert!(waiters.into_iter().all(|waiter| !waiter.join().unwrap()));
        });
    }

    #[test]
    fn no_items_are_refused() {
        let machine = Machine::synthetic("core:1 pu:1").unwrap();
        let refused = run(&machine, &Inline::default(), 0);
        assert!(matches!(refused, Err(BenchError::Nothing { what: "items" })));
    }
}
