//! The making of threads. The standard library, or the user's handler, makes those of workers. The
//! module also makes the threads beside the workers (the timekeeper's, a rescuer's, `cw-follow`),
//! and waits for their end.
//!
//! A thread inherits the niceness and the CPUs of its maker, and should not keep them. Any thread
//! may have to make a worker, even one of high priority, or one that is pinned to another pod.

use std::sync::Arc;
use std::time::Instant;
use std::{fmt, io};

use corewise_sync::atomic::{AtomicU32, Ordering};
use corewise_sync::thread::{self, JoinHandle, ThreadId};
use corewise_sync::{Completion, Mutex, sys, text, time};
use corewise_topology::{CpuSet, pin_current_thread};

/// A worker that wants a thread: the argument of a spawn handler, see
/// [`PoolsBuilder::spawn_handler`](crate::PoolsBuilder::spawn_handler). The idea is rayon's
/// `ThreadBuilder`.
///
/// If it is dropped without [`run`](WorkerThread::run), there is no thread for it: the pool
/// continues with its other workers, and retries later.
pub struct WorkerThread {
    name: String,
    body: Option<Body>,
}

type Action = Box<dyn FnOnce() + Send>;

struct Body {
    run: Action,
    /// Uncounts the worker.
    lost: Action,
    phase: Arc<Phase>,
}

/// The progress of a handler with a worker. The side that finds that the worker won't run uncounts
/// it, once.
struct Phase {
    /// A: one of the constants below.
    now: AtomicU32,
}

/// The handler has the worker.
const ASKED: u32 = 0;
/// The handler said that the worker will run.
const PROMISED: u32 = 1;
/// The worker runs, or has run.
const RUNS: u32 = 2;
/// The worker won't run.
const LOST: u32 = 3;

impl WorkerThread {
    /// Returns the name for the thread: at most 15 bytes, which is what the kernel shows.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Runs the worker's loop, until it leaves its pool, and pins the calling thread to the
    /// worker's CPUs. Call it on a thread of its own, soon: the pool counts on this worker. On a
    /// thread that is a worker it returns at once, and the pool goes on without this one.
    pub fn run(mut self) {
        if super::current_worker::pool().is_some() {
            // This thread is another worker's: the dropped one is lost.
            return;
        }
        let Some(Body { run, lost, phase }) = self.body.take() else { return };
        if phase.now.swap(RUNS, Ordering::AcqRel) == LOST {
            // The handler said that it failed, and the worker isn't counted any more.
            return;
        }
        drop(lost);
        run();
    }
}

impl Drop for WorkerThread {
    fn drop(&mut self) {
        let Some(Body { lost, phase, .. }) = self.body.take() else { return };
        // While the handler is still busy, its caller finds out when it returns.
        if phase.now.swap(LOST, Ordering::AcqRel) == PROMISED {
            lost();
        }
    }
}

impl fmt::Debug for WorkerThread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkerThread").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Makes the threads of workers.
#[derive(Clone, Default)]
pub(crate) struct Spawner(Option<Arc<Handler>>);

type Handler = dyn Fn(WorkerThread) -> io::Result<()> + Send + Sync;

impl Spawner {
    pub(crate) fn by(
        handler: impl Fn(WorkerThread) -> io::Result<()> + Send + Sync + 'static,
    ) -> Self {
        Spawner(Some(Arc::new(handler)))
    }

    /// Makes a thread for a worker that is counted already. On an error the worker won't run;
    /// `lost` is called if that turns out after this has returned. Returns a handle if the thread
    /// can be joined.
    pub(crate) fn spawn(
        &self,
        name: String,
        run: impl FnOnce() + Send + 'static,
        lost: impl FnOnce() + Send + 'static,
    ) -> io::Result<Option<JoinHandle<()>>> {
        let Some(handler) = &self.0 else { return spawn(name, run).map(Some) };
        let phase = Arc::new(Phase { now: AtomicU32::new(ASKED) });
        let body = Body { run: Box::new(run), lost: Box::new(lost), phase: Arc::clone(&phase) };
        let asked =
            std::panic::AssertUnwindSafe(|| handler(WorkerThread { name, body: Some(body) }));
        let said = std::panic::catch_unwind(asked).unwrap_or_else(|payload| {
            let error = io::Error::other(format!(
                "the spawn handler panicked: {}",
                text::message(corewise_sync::panics::message(&*payload))
            ));
            corewise_sync::panics::discard(payload);
            Err(error)
        });
        let now = &phase.now;
        match said {
            Err(error) => match now.swap(LOST, Ordering::AcqRel) {
                // The worker runs all the same.
                RUNS => Ok(None),
                _ => Err(error),
            },
            Ok(()) => {
                match now.compare_exchange(ASKED, PROMISED, Ordering::AcqRel, Ordering::Acquire) {
                    Err(LOST) => Err(io::Error::other("the spawn handler dropped the worker")),
                    _ => Ok(None),
                }
            }
        }
    }
}

/// Size of a thread's stack by default, in bytes.
const STACK: usize = 2 << 20;

pub(crate) fn spawn(
    name: String,
    body: impl FnOnce() + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    corewise_sync::sys::room_for_stack(STACK)?;
    corewise_sync::thread::Builder::new().name(name).spawn(body)
}

/// A thread that runs until its owner tells it to end.
pub(crate) struct ServiceThread {
    /// I: its name.
    name: String,
    /// I: completed at the end of its body, also by a panic.
    over: Arc<Completion>,
    /// I: the thread's id.
    id: ThreadId,
    /// L: is the lock; guards the thread, until it is joined.
    handle: Mutex<Option<JoinHandle<()>>>,
}

/// A limit on the wait for threads to end.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limit {
    /// `None`: for ever.
    pub(crate) until: Option<Instant>,
    /// True if the wait includes the destructors of thread-local values; that isn't possible with a
    /// limit.
    pub(crate) joins: bool,
}

struct ExitSignal(Arc<Completion>);

impl Drop for ExitSignal {
    fn drop(&mut self) {
        self.0.complete();
    }
}

impl ServiceThread {
    /// Starts it.
    pub(crate) fn spawn(
        name: String,
        body: impl FnOnce() + Send + 'static,
    ) -> io::Result<ServiceThread> {
        let over = Arc::new(Completion::new());
        let completes = ExitSignal(Arc::clone(&over));
        let handle = spawn(name.clone(), move || {
            let _completes = completes;
            body();
        })?;
        Ok(ServiceThread { name, over, id: handle.thread().id(), handle: Mutex::new(Some(handle)) })
    }

    /// Waits for its end, unless it is the calling thread; returns its name if the time is up
    /// first. May block.
    pub(crate) fn wait(&self, limit: Limit) -> Result<(), String> {
        if thread::current().id() == self.id {
            return Ok(());
        }
        if let Some(until) = limit.until {
            if !self.over.wait_timeout(until.saturating_duration_since(time::now())) {
                return Err(self.name.clone());
            }
        }
        let handle = if limit.joins { self.handle.lock().take() } else { None };
        if let Some(handle) = handle {
            // It catches panics; if it died of its own, that is logged there.
            let _ = handle.join();
        }
        Ok(())
    }
}

pub(crate) use corewise_sync::sys::{niceness, set_niceness};

/// Sets the niceness of a thread that belongs to no pool, and lets it use any CPU that the process
/// may use.
pub(crate) fn run_anywhere(nice: i32) {
    if let Err(error) = set_niceness(nice) {
        tracing::debug!(nice, %error, "a thread keeps the niceness of the worker that made it");
    }
    // The kernel leaves out those that the process may not use.
    if let Err(error) = pin_current_thread(&CpuSet::full(1024)) {
        tracing::debug!(%error, "a thread keeps the CPUs of the worker that made it");
    }
}

/// Makes the kernel wake the calling thread on time. By default it waits up to 50 us longer, to
/// wake several at once.
pub(crate) fn wake_on_time() {
    if let Err(error) = sys::wake_on_time() {
        tracing::debug!(%error, "timers may be up to 50 us late");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, channel};

    /// Spawns a worker with a given answer, and returns the outcome of the spawning.
    fn ask(spawner: &Spawner) -> (io::Result<()>, Receiver<&'static str>) {
        let (tell, told) = channel();
        let lost = tell.clone();
        let said = spawner.spawn(
            "name".into(),
            move || tell.send("ran").expect("the test listens"),
            move || lost.send("lost").expect("the test listens"),
        );
        (said.map(drop), told)
    }

    #[test]
    fn a_handler_makes_the_thread() {
        let spawner = Spawner::by(|worker| {
            assert_eq!(worker.name(), "name");
            std::thread::spawn(|| worker.run());
            Ok(())
        });
        let (said, told) = ask(&spawner);
        said.expect("the handler made one");
        assert_eq!(told.iter().collect::<Vec<_>>(), ["ran"]);
    }

    #[test]
    fn a_handler_that_fails_panics_or_drops_the_worker_is_an_error_and_the_worker_never_runs() {
        let handlers = [
            Spawner::by(|_| Err(io::Error::other("no"))),
            Spawner::by(|_| panic!("on purpose")),
            Spawner::by(|_| Ok(())),
        ];
        for spawner in handlers {
            let (said, told) = ask(&spawner);
            assert!(said.is_err());
            assert_eq!(told.iter().count(), 0);
        }
        let kept = Arc::new(corewise_sync::Mutex::new(None));
        let keeps = Arc::clone(&kept);
        let (said, told) = ask(&Spawner::by(move |worker| {
            *keeps.lock() = Some(worker);
            Err(io::Error::other("no"))
        }));
        assert!(said.is_err());
        let worker: WorkerThread = kept.lock().take().expect("it was kept");
        worker.run();
        assert_eq!(told.iter().count(), 0, "it had said no");
    }

    #[test]
    fn a_worker_that_is_dropped_after_it_was_promised_is_uncounted() {
        let kept = Arc::new(corewise_sync::Mutex::new(None));
        let keeps = Arc::clone(&kept);
        let (said, told) = ask(&Spawner::by(move |worker| {
            *keeps.lock() = Some(worker);
            Ok(())
        }));
        said.expect("it was promised");
        assert!(told.try_recv().is_err());
        let worker: Option<WorkerThread> = kept.lock().take();
        drop(worker);
        assert_eq!(told.iter().collect::<Vec<_>>(), ["lost"]);
    }
}

#[cfg(test)]
mod inherit_tests {
    use super::*;

    #[test]
    fn a_thread_has_a_niceness_of_its_own_and_passes_it_on() {
        if !sys::KERNEL_THREADS {
            // No thread has a niceness.
            return;
        }
        let own = niceness();
        std::thread::spawn(move || {
            set_niceness(own + 1).expect("to be nicer is always allowed");
            let child = std::thread::spawn(niceness).join().expect("no panic");
            assert_eq!(child, own + 1);
        })
        .join()
        .expect("no panic");
        assert_eq!(niceness(), own);
    }
}
