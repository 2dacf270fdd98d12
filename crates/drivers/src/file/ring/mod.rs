//! File I/O through io_uring: rings that many files share, with one thread each.
//!
//! The thread is the only one that touches the ring, so the ring needs no lock. The kernel can
//! leave the work of completions to that thread (`SINGLE_ISSUER`, `DEFER_TASKRUN`): no thread is
//! interrupted, and what a submitting thread began isn't cancelled when that thread ends. (With a
//! ring that each submitter enters, a completion interrupts the submitting thread, which waits for
//! a socket by then, and wakes a second thread that takes it.)
//!
//! There is a ring for each few CPUs that share a cache, and a hardware queue has the ring of its
//! CPUs. So a thousand files need as many threads as one, and no single thread serves all. (With a
//! ring for each CPU, every completion of a disk would wake another thread: four CPUs share the
//! completions of one wake-up.)
//!
//! The runner of a hardware queue pushes requests to the inbox, and rings the bell at the end of
//! the pass. The ring's thread takes the inbox, makes entries, submits them all and waits for a
//! completion in one system call, and completes requests.
//!
//! A completion often brings a new request. It is dispatched on the ring's thread itself and lies
//! in the inbox before the thread looks there again: no bell, no system call of its own. So a full
//! queue costs one `io_uring_enter` for each batch of completions, and nothing else.
//!
//! The bell ([`Bell`]) wakes the thread through an `eventfd` that
//! the ring polls. A ring at rest sleeps in the kernel.
//!
//! The ring's thread also cancels a request that is late
//! ([`Driver::timeout`](corewise_blockmq::Driver::timeout)). A request that the kernel has not
//! begun, or can interrupt, ends; one that a disk has continues.
//!
//! Drivers aren't polled for completions: the kernel does the rest of a completion when the ring's
//! thread asks for it, so other threads would find nothing. A thread that polls a ring for its own
//! requests has to own it.
//!
//! # Memory
//! A request's memory stays where it is from its entry to its completion: the slot owns the
//! request, which owns the buffers, and the file. The kernel has finished with all of them before
//! the thread ends. A file that bypasses the page cache needs aligned memory. Other memory is
//! copied once, through its slot's piece of a registered buffer, or, if it is larger, through
//! memory of its own.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::{fmt, io};

use corewise_blockmq::for_drivers::{LateOne, Queued};
use corewise_blockmq::{Started, TimedOut, TimerReturn};
use corewise_sync::atomic::{AtomicBool, AtomicU32, Ordering};
use corewise_sync::inbox::{HasLink, Inbox, Link};
use corewise_sync::sys::Tid;
use corewise_sync::thread::{Builder, JoinHandle, current};
use corewise_sync::{Bell, CachePadded, Completion, Mutex};
use corewise_topology::{AffinityScope, CpuId, CpuSet, DEFAULT_SHARD_SIZE, Machine, pin_thread};
use reactor::Reactor;
use rustix::event::{EventfdFlags, eventfd};

use super::lane::FileWorkers;
use super::volume::Volume;

mod memory;
mod reactor;
#[cfg(test)]
mod tests;

/// The resources that the file devices of a program share: the rings of io_uring, one for each
/// cache shard of the machine, and the number of workers that may wait for their disks.
///
/// A device that isn't given any ([`FileOptions::rings`](super::FileOptions::rings)) has a ring and
/// workers of its own, which is a thread and some 100 KiB for each. The first device that needs
/// them sets the rings up. They end with the last holder, a device or this.
///
/// ```
/// use std::sync::Arc;
/// use corewise_drivers::{FileDriver, FileOptions, FileRings};
/// use corewise_blockmq::{BlockDeviceExt, Queue};
/// # use corewise_topology::Machine;
/// # use corewise_workqueue::{WorkerPools, Workqueue};
/// # let machine = Machine::live()?;
/// # let pools = WorkerPools::new(&machine);
/// # let wq = Workqueue::builder("block").build(&pools)?;
/// # let folder = tempfile::tempdir()?;
///
/// let rings = FileRings::new(&machine);
/// for name in ["one", "two"] {
///     let options = FileOptions::new(folder.path().join(name)).size(1 << 20).rings(&rings);
///     let disk = Queue::builder(&machine, Arc::new(FileDriver::open(options, &wq)?)).build(&wq);
///     assert_eq!(disk.read_at(0, 512)?, [0; 512][..]);
/// #   disk.drain();
/// }
/// # pools.shutdown();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct FileRings {
    inner: Arc<RingsState>,
}

struct RingsState {
    /// The CPUs of each ring.
    shards: Vec<CpuSet>,
    /// True if they are CPUs of this machine.
    live: bool,
    crew: Arc<FileWorkers>,
    /// L: is the lock; guards the rings, once they are there.
    rings: Mutex<Option<Arc<Rings>>>,
}

impl FileRings {
    /// Creates rings for the devices of this machine. It sets nothing up yet.
    pub fn new(machine: &Machine) -> Self {
        let pods = machine.pods(DEFAULT_SHARD_SIZE);
        let shards = pods.scope(AffinityScope::CacheShard).iter().map(|pod| pod.cpus.clone());
        Self::of(shards.collect(), !machine.is_synthetic())
    }

    fn of(shards: Vec<CpuSet>, live: bool) -> Self {
        let (crew, rings) = (Arc::default(), Mutex::new(None));
        Self { inner: Arc::new(RingsState { shards, live, crew, rings }) }
    }

    /// Creates rings as if the kernel had no io_uring.
    #[cfg(test)]
    pub(super) fn refused() -> Self {
        Self::of(Vec::new(), false)
    }

    /// Returns the number of CPUs.
    pub(super) fn cpus(&self) -> usize {
        self.inner.shards.iter().map(CpuSet::len).sum()
    }

    pub(super) fn crew(&self) -> &Arc<FileWorkers> {
        &self.inner.crew
    }

    /// Returns the rings. Sets them up if need be, and blocks then.
    pub(super) fn get(&self) -> io::Result<Arc<Rings>> {
        let mut rings = self.inner.rings.lock();
        if let Some(rings) = &*rings {
            return Ok(Arc::clone(rings));
        }
        let RingsState { shards, live, .. } = &*self.inner;
        let made = Arc::new(Rings::new(shards.len(), shards, *live)?);
        Ok(Arc::clone(rings.insert(made)))
    }
}

impl fmt::Debug for FileRings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileRings").field("rings", &self.inner.shards.len()).finish_non_exhaustive()
    }
}

/// Rings, each with its thread.
pub(super) struct Rings {
    rings: Vec<RingThread>,
    /// The CPUs of each, if they are divided among them.
    shards: Vec<CpuSet>,
}

/// The part of a ring that other threads reach.
struct RingPort {
    inbox: Inbox<Queued>,
    /// Late requests to cancel.
    asks: Inbox<Box<CancelRequest>>,
    bell: Bell,
    /// The wire of the bell.
    wire: OwnedFd,
    /// A: true once the rings are dropped; Release and Acquire.
    end: AtomicBool,
}

struct RingThread {
    port: Arc<CachePadded<RingPort>>,
    tid: Tid,
    thread: Option<JoinHandle<()>>,
}

impl Rings {
    /// Sets up rings and their threads. Blocks.
    ///
    /// # Errors
    /// If the kernel refuses: it is too old, or a policy forbids io_uring.
    fn new(n: usize, shards: &[CpuSet], live: bool) -> io::Result<Self> {
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
                    tracing::info!(%error, "a ring's thread could not be pinned; it runs on any CPU");
                }
            }
            Ok(ring)
        };
        let rings = (0..n).map(spawn).collect::<io::Result<_>>()?;
        Ok(Self { rings, shards: shards.to_vec() })
    }

    /// Sets up `n` rings for one device. Blocks.
    ///
    /// # Errors
    /// The errors are those of `new`.
    pub(super) fn own(n: usize) -> io::Result<Arc<Self>> {
        Ok(Arc::new(Self::new(n, &[], false)?))
    }

    pub(super) fn len(&self) -> usize {
        self.rings.len()
    }

    /// Returns the ring of a CPU, if they are divided by CPUs.
    pub(super) fn of_cpu(&self, cpu: CpuId) -> Option<usize> {
        self.shards.iter().position(|shard| shard.contains(cpu))
    }

    /// Puts a request into a ring's inbox. Called by the runner of a hardware queue that has this
    /// ring.
    pub(super) fn queue(&self, ring: usize, volume: &Arc<Volume>, mut rq: Started) {
        rq.set_owner(Arc::clone(volume) as _);
        self.rings[ring].port.inbox.push(Queued(rq));
    }

    /// Makes the kernel stop a late request, if it can. `ring` is the most likely one. Blocks.
    pub(super) fn call_off(&self, ring: usize, late: &TimedOut<'_>) -> TimerReturn {
        // Hardware queues may have got other CPUs, and so rings, meanwhile.
        let (before, on) = self.rings.split_at(ring);
        let answer = on.iter().chain(before).find_map(|ring| ring.port.call_off(late));
        answer.unwrap_or_else(|| {
            tracing::warn!("{late}; the kernel cannot cancel it");
            TimerReturn::ResetTimer
        })
    }

    /// Wakes the ring's thread, if needed. The runner calls this after its pushes.
    pub(super) fn commit(&self, ring: usize) {
        let port = &self.rings[ring].port;
        // Perhaps all requests were done on the spot, or the thread has taken them already.
        if !port.inbox.is_empty() && port.bell.must_ring() {
            port.ring();
        }
    }
}

/// Returns the number of threads that the kernel may have for a ring of this many CPUs, for
/// operations that wait: a sync, a hole. By default it takes four for each CPU of the machine, for
/// each ring.
fn kernel_threads(cpus: usize) -> u32 {
    u32::try_from(2 * cpus).map_or(4, |n| n.max(4))
}

impl RingPort {
    /// Returns true if nothing waits for the ring's thread.
    fn is_empty(&self) -> bool {
        self.inbox.is_empty() && self.asks.is_empty()
    }

    fn new() -> io::Result<Self> {
        Ok(Self {
            inbox: Inbox::new(),
            asks: Inbox::new(),
            bell: Bell::new(),
            wire: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            end: AtomicBool::new(false),
        })
    }

    /// Wakes the ring's thread.
    fn ring(&self) {
        loop {
            match rustix::io::write(&self.wire, &1u64.to_ne_bytes()) {
                Err(rustix::io::Errno::INTR) => {}
                // The only failure is a counter that is full after 2^64 rings.
                Ok(_) | Err(_) => return,
            }
        }
    }
}

impl RingThread {
    fn spawn(i: usize, kernel_threads: u32) -> io::Result<Self> {
        let port = Arc::new(CachePadded::new(RingPort::new()?));
        let theirs = Arc::clone(&port);
        let told = Arc::new((Completion::new(), Mutex::new(None)));
        let tell = Arc::clone(&told);
        // The ring belongs to the thread that makes it.
        let thread = Builder::new().name(format!("cw-ring/{i}")).spawn(move || {
            let (made, reactor) = match Reactor::new(theirs, kernel_threads) {
                Ok(reactor) => (Ok(Tid::current()), Some(reactor)),
                Err(error) => (Err(error), None),
            };
            *tell.1.lock() = Some(made);
            tell.0.complete();
            drop(tell);
            if let Some(reactor) = reactor {
                reactor.run();
            }
        })?;
        told.0.wait();
        match told.1.lock().take() {
            Some(Ok(tid)) => Ok(Self { port, tid, thread: Some(thread) }),
            Some(Err(error)) => Err(error),
            None => Err(io::Error::other("a ring's thread ended before it reported its start")),
        }
    }
}

impl Drop for RingThread {
    /// Ends the thread. Nothing is in flight: each request in a slot keeps its queue, and with it
    /// the driver and the rings, alive.
    fn drop(&mut self) {
        self.port.end.store(true, Ordering::Release);
        self.port.ring();
        if let Some(thread) = self.thread.take() {
            // The last request's completion may drop the driver on the thread itself.
            if thread.thread().id() != current().id() && thread.join().is_err() {
                tracing::error!("a ring's thread panicked");
            }
        }
    }
}

// Cancelling a request: the thread that finds it late asks the rings' threads, which alone may
// touch the rings, one after the other until one has it.
//
// The tag of a late request is held until the driver has answered
// ([`Driver::timeout`](corewise_blockmq::Driver::timeout)), so the asker waits for the answer. So
// the driver asks the kernel to stop the request that was late, and never the tag's next one. A
// request that the kernel has stopped completes with `ECANCELED`, before or after that.

/// One late request, on its way to a ring's thread. The asker gets its end in any case.
pub(super) struct CancelRequest {
    link: Link,
    pub(super) late: LateOne,
    answer: Arc<CancelAnswer>,
}

struct CancelAnswer {
    /// A: the error that the kernel gave, or 0; ENOENT if it wasn't asked. Written before `told`,
    /// which orders it. Relaxed.
    errno: AtomicU32,
    told: Completion,
}

// SAFETY: always the same field of the same value.
unsafe impl HasLink for CancelRequest {
    fn link(&self) -> &Link {
        &self.link
    }
}

impl CancelRequest {
    /// Records the kernel's answer; the asker learns it when this is dropped.
    pub(super) fn answered(&self, result: i32) {
        self.answer.errno.store(result.min(0).unsigned_abs(), Ordering::Relaxed);
    }
}

impl Drop for CancelRequest {
    fn drop(&mut self) {
        self.answer.told.complete();
    }
}

impl RingPort {
    /// Makes the kernel stop a late request, if it is in this ring and the kernel can; `None` if it
    /// isn't. Blocks until that is known.
    pub(super) fn call_off(&self, late: &TimedOut<'_>) -> Option<TimerReturn> {
        let errno = AtomicU32::new(libc::ENOENT.unsigned_abs());
        let answer = Arc::new(CancelAnswer { errno, told: Completion::new() });
        let theirs = Arc::clone(&answer);
        self.asks.push(Box::new(CancelRequest {
            link: Link::new(),
            late: late.which(),
            answer: theirs,
        }));
        if self.bell.must_ring() {
            self.ring();
        }
        answer.told.wait();
        match answer.errno.load(Ordering::Relaxed) as i32 {
            0 => {
                tracing::warn!("{late}; it is cancelled");
                Some(TimerReturn::Done)
            }
            libc::ENOENT => None,
            _ => {
                tracing::warn!("{late}; the kernel was asked to cancel it, and still runs it");
                Some(TimerReturn::ResetTimer)
            }
        }
    }
}
