//! Threads: one that is pinned, one of its own, and many that go at once, when the last is in its place; or none.

use std::sync::Arc;

use corewise_sync::atomic::{AtomicBool, Ordering};
use corewise_sync::thread::{self, ScopedJoinHandle};
use corewise_sync::{Completion, Countdown, Mutex};
use corewise_topology::{CpuSet, Machine};

use crate::error::BenchError;

/// Starts a thread that is pinned to these CPUs, if any are given, and returns once it is where it is to be.
///
/// # Errors
/// It couldn't be started or pinned; then `body` isn't run.
pub fn pinned(
    machine: &Machine,
    name: &str,
    cpus: Option<CpuSet>,
    body: impl FnOnce() + Send + 'static,
) -> Result<thread::JoinHandle<()>, BenchError> {
    let told = Arc::new((Mutex::new(Ok(())), Completion::new()));
    let (theirs, machine) = (Arc::clone(&told), machine.clone());
    let thread = thread::Builder::new().name(name.to_owned()).spawn(move || {
        let pinned = cpus.map_or(Ok(()), |cpus| machine.pin_current_thread(&cpus).map(drop));
        let is_pinned = pinned.is_ok();
        *theirs.0.lock() = pinned;
        theirs.1.complete();
        if is_pinned {
            body();
        }
    });
    let thread = thread.map_err(BenchError::Thread)?;
    told.1.wait();
    std::mem::replace(&mut *told.0.lock(), Ok(()))?;
    Ok(thread)
}

/// Runs `body` on a thread of its own, so that where it is pinned ends with it.
pub(crate) fn alone<T: Send>(
    name: &str,
    body: impl FnOnce() -> Result<T, BenchError> + Send,
) -> Result<T, BenchError> {
    thread::scope(|scope| {
        let thread = thread::Builder::new().name(name.to_owned()).spawn_scoped(scope, body);
        thread.map_err(BenchError::Thread)?.join().unwrap_or(Err(BenchError::Panicked))
    })
}

/// The gate.
#[derive(Debug)]
pub(crate) struct Start {
    ready: Countdown,
    go: Completion,
    /// A: Relaxed; ordered by `go`.
    aborted: AtomicBool,
}

impl Start {
    pub(crate) fn new(threads: usize) -> Self {
        let (ready, go) = (Countdown::new(threads), Completion::new());
        Start { ready, go, aborted: AtomicBool::new(false) }
    }

    /// For the threads: in place; true when released.
    pub(crate) fn wait(&self) -> bool {
        self.ready.done();
        self.go.wait();
        !self.aborted.load(Ordering::Relaxed)
    }

    /// For the one who started them: waits until all are in their places.
    pub(crate) fn all_ready(&self) {
        self.ready.wait();
    }

    /// For the one who started them: releases them when all are in their places. Nobody is where
    /// one said that it can't be.
    pub(crate) fn release(&self) {
        self.all_ready();
        self.go.complete();
    }

    /// Nobody runs.
    pub(crate) fn abort(&self) {
        self.aborted.store(true, Ordering::Relaxed);
        self.go.complete();
        self.ready.done();
    }
}

/// Runs `body` on as many threads as there are `names`, each given its number. A body makes ready,
/// calls [`Start::wait`], and does its work if that says so; one that can't get ready calls
/// [`Start::abort`]. The values that the bodies returned, in their order, once all have ended.
pub(crate) fn together<T: Send>(
    names: &[String],
    body: impl Fn(usize, &Start) -> Result<Option<T>, BenchError> + Sync,
) -> Result<Vec<T>, BenchError> {
    let start = Start::new(names.len());
    let (start, body) = (&start, &body);
    thread::scope(|scope| {
        let mut threads: Vec<ScopedJoinHandle<'_, _>> = Vec::new();
        for (number, name) in names.iter().enumerate() {
            let builder = thread::Builder::new().name(name.clone());
            match builder.spawn_scoped(scope, move || body(number, start)) {
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
        let joined: Vec<Result<Option<T>, BenchError>> = threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or(Err(BenchError::Panicked)))
            .collect();
        joined.into_iter().filter_map(Result::transpose).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_cannot_get_ready_keeps_all_from_running_and_nobody_hangs() {
        // A machine that claims to be live can't be made up; a start that is aborted by one of
        // three threads is what a CPU leads to that can't be pinned to.
        let start = Start::new(3);
        thread::scope(|scope| {
            let waiters = [(); 2].map(|()| scope.spawn(|| start.wait()));
            start.abort();
            start.release();
            assert!(waiters.into_iter().all(|waiter| !waiter.join().unwrap()));
        });
    }

    #[test]
    fn results_come_in_order_and_a_panic_is_an_error() {
        let names: Vec<String> = (0..3).map(|n| format!("t{n}")).collect();
        let ran = together(&names, |number, start| Ok(start.wait().then_some(number)));
        assert_eq!(ran.unwrap(), [0, 1, 2]);
        let ran = together(&names, |number, start| {
            assert!(start.wait() && number != 1, "on purpose");
            Ok(Some(()))
        });
        assert!(matches!(ran, Err(BenchError::Panicked)));
    }
}
