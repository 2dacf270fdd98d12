//! Threads of workloads: a pinned one, one for a function alone, and several that begin together
//! once the last is ready.

use std::sync::Arc;
use std::time::Instant;

use corewise_sync::atomic::{AtomicBool, Ordering};
use corewise_sync::thread::{self, ScopedJoinHandle};
use corewise_sync::{Completion, Countdown, Mutex, time};
use corewise_topology::{CpuSet, Machine};
use corewise_workqueue::WorkerPools;

use crate::error::BenchError;

/// Pools that are shut down when this is dropped.
#[derive(Debug)]
pub(crate) struct Pools(pub(crate) WorkerPools);

impl Drop for Pools {
    fn drop(&mut self) {
        self.0.shutdown();
    }
}

/// Starts a thread, pins it to these CPUs, if any are given, and returns once it is pinned.
///
/// # Errors
/// The thread couldn't be started or pinned. Then `body` isn't run.
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

/// Runs `body` on a thread of its own, so that its pinning ends with it.
pub(crate) fn alone<T: Send>(
    name: &str,
    body: impl FnOnce() -> Result<T, BenchError> + Send,
) -> Result<T, BenchError> {
    thread::scope(|scope| {
        let thread = thread::Builder::new().name(name.to_owned()).spawn_scoped(scope, body);
        thread.map_err(BenchError::Thread)?.join().unwrap_or(Err(BenchError::Panicked))
    })
}

/// Results of threads that began at once.
#[derive(Debug)]
pub(crate) struct Ran<T> {
    /// Results of the threads, in their order.
    pub(crate) given: Vec<T>,
    /// Time at which the first began.
    pub(crate) began: Instant,
    /// Time at which the last was done.
    pub(crate) ended: Instant,
}

/// Starts a thread for each of the `names`. Each calls `ready` with its number, and runs `body`
/// once all are ready. If one can't get ready, none runs it. All have ended when this returns.
pub(crate) fn together<P, T: Send>(
    names: &[String],
    ready: impl Fn(usize) -> Result<P, BenchError> + Sync,
    body: impl Fn(usize, P) -> Result<T, BenchError> + Sync,
) -> Result<Ran<T>, BenchError> {
    // A: true if a thread failed; Relaxed, ordered by `all_there`.
    let (all_there, aborted) = (Countdown::new(names.len()), AtomicBool::new(false));
    let one = &|number: usize| {
        let made = ready(number);
        if made.is_err() {
            aborted.store(true, Ordering::Relaxed);
        }
        all_there.done();
        all_there.wait();
        let made = made?;
        if aborted.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let began = time::now();
        Ok(Some((body(number, made)?, began, time::now())))
    };
    let all = thread::scope(|scope| {
        let mut threads: Vec<ScopedJoinHandle<'_, _>> = Vec::new();
        for (number, name) in names.iter().enumerate() {
            let builder = thread::Builder::new().name(name.clone());
            match builder.spawn_scoped(scope, move || one(number)) {
                Ok(thread) => threads.push(thread),
                Err(error) => {
                    // The started threads wait for the others: this ends their wait.
                    aborted.store(true, Ordering::Relaxed);
                    (number..names.len()).for_each(|_| _ = all_there.done());
                    return Err(BenchError::Thread(error));
                }
            }
        }
        // All threads are joined before any error is returned: the scope itself panics for a panic
        // that no join has taken.
        let join =
            |thread: ScopedJoinHandle<'_, _>| thread.join().unwrap_or(Err(BenchError::Panicked));
        let joined: Vec<Result<Option<_>, BenchError>> = threads.into_iter().map(join).collect();
        joined.into_iter().filter_map(Result::transpose).collect::<Result<Vec<_>, _>>()
    })?;
    let now = time::now();
    let began = all.iter().map(|(_, began, _)| *began).min().unwrap_or(now);
    let ended = all.iter().map(|(_, _, ended)| *ended).max().unwrap_or(now);
    Ok(Ran { given: all.into_iter().map(|(given, ..)| given).collect(), began, ended })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_come_in_order_and_one_that_cannot_get_ready_or_panics_is_an_error() {
        let names: Vec<String> = (0..3).map(|n| format!("t{n}")).collect();
        let ran = together(&names, Ok, |number, made| Ok(number + made)).unwrap();
        assert_eq!(ran.given, [0, 2, 4]);
        assert!(ran.began <= ran.ended);
        let ran = together(&names, Ok, |number, _| {
            assert!(number != 1, "on purpose");
            Ok(())
        });
        assert!(matches!(ran, Err(BenchError::Panicked)));
        let never = |_, ()| -> Result<(), BenchError> { panic!("one of them isn't there") };
        let ready = |number| if number == 1 { Err(BenchError::WrongAnswer) } else { Ok(()) };
        assert!(matches!(together(&names, ready, never), Err(BenchError::WrongAnswer)));
    }
}
