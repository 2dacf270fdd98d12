//! The rings of a program: one for each cache shard, started with their first user.

use std::sync::Arc;
use std::{fmt, io};

use corewise_sync::atomic::Ordering;
use corewise_sync::sys::Tid;
use corewise_sync::thread::{Builder, JoinHandle, current};
use corewise_sync::{CachePadded, Completion, Mutex};
use corewise_topology::{AffinityScope, CpuId, CpuSet, DEFAULT_SHARD_SIZE, Machine, pin_thread};

use crate::port::RingPort;
use crate::thread::{Ring, RingUser, serve};

/// The rings of a program, which its drivers and front ends share. They start with their first
/// user, and end with the last holder of this or of the [`Rings`].
#[derive(Clone)]
pub struct RingSet {
    inner: Arc<SetState>,
}

struct SetState {
    /// CPUs of each ring.
    shards: Vec<CpuSet>,
    /// True if they are CPUs of this machine.
    live: bool,
    /// L: is the lock; guards the rings, once they have started.
    rings: Mutex<Option<Arc<Rings>>>,
}

impl RingSet {
    /// Creates a set for this machine, with a ring for each cache shard. Starts nothing yet.
    pub fn new(machine: &Machine) -> RingSet {
        let pods = machine.pods(DEFAULT_SHARD_SIZE);
        let shards = pods.scope(AffinityScope::CacheShard).iter().map(|pod| pod.cpus.clone());
        RingSet::of(shards.collect(), !machine.is_synthetic())
    }

    /// Creates a set without rings, as if the kernel had no io_uring: [`start`](RingSet::start)
    /// fails.
    pub fn refused() -> RingSet {
        RingSet::of(Vec::new(), false)
    }

    fn of(shards: Vec<CpuSet>, live: bool) -> RingSet {
        RingSet { inner: Arc::new(SetState { shards, live, rings: Mutex::new(None) }) }
    }

    /// Returns the number of CPUs that the rings serve.
    pub fn cpus(&self) -> usize {
        self.inner.shards.iter().map(CpuSet::len).sum()
    }

    /// Returns the rings, and starts them if need be. Blocks then.
    ///
    /// # Errors
    /// If the kernel refuses: it is too old, or a policy forbids io_uring.
    pub fn start(&self) -> io::Result<Arc<Rings>> {
        let mut rings = self.inner.rings.lock();
        if let Some(rings) = &*rings {
            return Ok(Arc::clone(rings));
        }
        let SetState { shards, live, .. } = &*self.inner;
        let made = Arc::new(Rings::start(shards.len(), shards, *live)?);
        Ok(Arc::clone(rings.insert(made)))
    }
}

impl fmt::Debug for RingSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RingSet").field("rings", &self.inner.shards.len()).finish_non_exhaustive()
    }
}

/// Rings, each with its thread.
pub struct Rings {
    threads: Vec<RingThread>,
    /// CPUs of each, if they are divided among them.
    shards: Vec<CpuSet>,
}

impl Rings {
    fn start(n: usize, shards: &[CpuSet], live: bool) -> io::Result<Rings> {
        if n == 0 {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "no CPU may be used"));
        }
        let spawn = |i| {
            let shard = shards.get(i);
            let ring = RingThread::spawn(i, kernel_threads(shard.map_or(1, CpuSet::len)))?;
            // The thread runs near these CPUs, and isn't pinned to one: a busy thread on that very
            // CPU would keep it waiting.
            if let Some(shard) = shard.filter(|_| live) {
                if let Err(error) = pin_thread(ring.tid, shard) {
                    tracing::info!(
                        %error,
                        "a ring's thread could not be pinned; it runs on any CPU"
                    );
                }
            }
            Ok(ring)
        };
        let threads = (0..n).map(spawn).collect::<io::Result<_>>()?;
        Ok(Rings { threads, shards: shards.to_vec() })
    }

    /// Starts `n` rings that nobody else shares. Blocks.
    ///
    /// # Errors
    /// The errors are those of [`RingSet::start`].
    pub fn own(n: usize) -> io::Result<Arc<Rings>> {
        Ok(Arc::new(Rings::start(n, &[], false)?))
    }

    /// Returns the ports of the rings, in order.
    pub fn ports(&self) -> impl ExactSizeIterator<Item = &Arc<CachePadded<RingPort>>> {
        self.threads.iter().map(|thread| &thread.port)
    }

    /// Returns the number of the ring of a CPU, if they are divided by CPUs.
    pub fn of_cpu(&self, cpu: CpuId) -> Option<usize> {
        self.shards.iter().position(|shard| shard.contains(cpu))
    }
}

impl fmt::Debug for Rings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rings").field("rings", &self.threads.len()).finish_non_exhaustive()
    }
}

/// Returns the number of threads that the kernel may have for a ring of this many CPUs, for
/// operations that wait: a sync, a hole. By default it takes four for each CPU of the machine, for
/// each ring.
fn kernel_threads(cpus: usize) -> u32 {
    u32::try_from(2 * cpus).map_or(4, |n| n.max(4))
}

struct RingThread {
    port: Arc<CachePadded<RingPort>>,
    tid: Tid,
    thread: Option<JoinHandle<Vec<Box<dyn RingUser>>>>,
}

impl RingThread {
    /// Starts thread `i`. Blocks until it has its ring.
    fn spawn(i: usize, kernel_threads: u32) -> io::Result<RingThread> {
        let port = RingPort::new()?;
        let theirs = Arc::clone(&port);
        let outcome = Arc::new((Completion::new(), Mutex::new(None)));
        let report = Arc::clone(&outcome);
        let thread = Builder::new().name(format!("cw-ring/{i}")).spawn(move || {
            // The ring belongs to the thread that makes it.
            let (made, ring) = match Ring::new(&theirs, kernel_threads) {
                Ok(ring) => (Ok(Tid::current()), Some(ring)),
                Err(error) => (Err(error), None),
            };
            *report.1.lock() = Some(made);
            report.0.complete();
            drop(report);
            ring.map_or_else(Vec::new, |ring| serve(&theirs, ring))
        })?;
        outcome.0.wait();
        let made = outcome.1.lock().take();
        match made {
            Some(Ok(tid)) => Ok(RingThread { port, tid, thread: Some(thread) }),
            Some(Err(error)) => Err(error),
            None => Err(io::Error::other("a ring's thread ended before it reported its start")),
        }
    }
}

impl Drop for RingThread {
    /// Ends the thread once its users let it end, and drops them here: until the thread has ended,
    /// the kernel may use their memory.
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        // The last request's completion may drop the last holder on the thread itself.
        let is_here = thread.thread().id() == current().id();
        self.port.unjoined.store(is_here, Ordering::Relaxed);
        self.port.end.store(true, Ordering::SeqCst);
        self.port.wake();
        if is_here {
            return;
        }
        match thread.join() {
            Ok(users) => drop(users),
            Err(_) => tracing::error!("a ring's thread panicked"),
        }
    }
}
