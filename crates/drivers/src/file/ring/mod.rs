//! File I/O through io_uring: rings that many files share, with one thread each.
//!
//! `corewise-ring` has the threads, which other users may share: a ring for each few CPUs with a
//! common cache. A hardware queue has the ring of its CPUs. So a thousand files need as many
//! threads as one, and no single thread serves all. (With a ring for each CPU, every completion of
//! a disk would wake another thread: four CPUs share the completions of one wake-up. With a ring
//! that each submitter enters, a completion interrupts the submitting thread, which waits for a
//! socket by then, and wakes a second thread that takes it.)
//!
//! The runner of a hardware queue pushes requests to the inbox, and rings the bell at the end of
//! the pass. The ring's thread takes the inbox, makes entries, submits them all and waits for a
//! completion in one system call, and completes requests.
//!
//! A completion often brings a new request. It is dispatched on the ring's thread itself and lies
//! in the inbox before the thread looks there again: no bell, no system call of its own. So a full
//! queue costs one `io_uring_enter` for each batch of completions, and nothing else. The same holds
//! for requests that another user of the ring submits, such as a disk of ublk. Their reads aren't
//! tried on the spot: the kernel does that when it takes the entries, all in one call.
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

use std::sync::Arc;
use std::{fmt, io};

use corewise_blockmq::for_drivers::{LateOne, Queued};
use corewise_blockmq::{Started, TimedOut, TimerReturn};
use corewise_ring::{RingPort, RingSet};
use corewise_sync::atomic::{AtomicU32, Ordering};
use corewise_sync::inbox::{HasLink, Inbox, Link};
use corewise_sync::{CachePadded, Completion, Mutex};
use corewise_topology::{CpuId, Machine};

use super::lane::FileWorkers;
use super::volume::Volume;

use reactor::Reactor;

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
    set: RingSet,
    crew: Arc<FileWorkers>,
    /// L: is the lock; guards the rings, once they are there.
    rings: Mutex<Option<Arc<Rings>>>,
}

impl FileRings {
    /// Creates rings for the devices of this machine. It sets nothing up yet.
    pub fn new(machine: &Machine) -> Self {
        Self::on(&RingSet::new(machine))
    }

    /// Shares the rings of `set` with its other users. It sets nothing up yet.
    pub fn on(set: &RingSet) -> Self {
        let (crew, rings) = (Arc::default(), Mutex::new(None));
        Self { inner: Arc::new(RingsState { set: set.clone(), crew, rings }) }
    }

    /// Returns the number of CPUs.
    pub(super) fn cpus(&self) -> usize {
        self.inner.set.cpus()
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
        let made = Arc::new(Rings::over(self.inner.set.start()?));
        Ok(Arc::clone(rings.insert(made)))
    }
}

impl fmt::Debug for FileRings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileRings").field("rings", &self.inner.set).finish_non_exhaustive()
    }
}

/// Rings, as the file driver uses them.
pub(super) struct Rings {
    ports: Vec<FilePort>,
    rings: Arc<corewise_ring::Rings>,
}

/// The file driver's part of a ring that other threads reach.
struct FilePort {
    inboxes: Arc<CachePadded<Inboxes>>,
    ring: Arc<CachePadded<RingPort>>,
}

/// The requests that wait for a ring's thread.
#[derive(Default)]
struct Inboxes {
    requests: Inbox<Queued>,
    /// Late requests to cancel.
    asks: Inbox<Box<CancelRequest>>,
}

impl Rings {
    /// Makes the file driver a user of each ring.
    fn over(rings: Arc<corewise_ring::Rings>) -> Self {
        let port = |ring: &Arc<CachePadded<RingPort>>| {
            let inboxes = Arc::<CachePadded<Inboxes>>::default();
            ring.add(Box::new(Reactor::new(Arc::clone(&inboxes))));
            FilePort { inboxes, ring: Arc::clone(ring) }
        };
        let ports = rings.ports().map(port).collect();
        Self { ports, rings }
    }

    /// Sets up `n` rings for one device. Blocks.
    ///
    /// # Errors
    /// If the kernel refuses: it is too old, or a policy forbids io_uring.
    pub(super) fn own(n: usize) -> io::Result<Arc<Self>> {
        Ok(Arc::new(Self::over(corewise_ring::Rings::own(n)?)))
    }

    pub(super) fn len(&self) -> usize {
        self.ports.len()
    }

    /// Returns the ring of a CPU, if they are divided by CPUs.
    pub(super) fn of_cpu(&self, cpu: CpuId) -> Option<usize> {
        self.rings.of_cpu(cpu)
    }

    /// Returns true if the calling thread serves the ring. It takes all that is put into the inbox
    /// before it sleeps.
    pub(super) fn is_here(&self, ring: usize) -> bool {
        self.ports[ring].ring.is_here()
    }

    /// Puts a request into a ring's inbox. Called by the runner of a hardware queue that has this
    /// ring.
    pub(super) fn queue(&self, ring: usize, volume: &Arc<Volume>, mut rq: Started) {
        rq.set_owner(Arc::clone(volume) as _);
        self.ports[ring].inboxes.requests.push(Queued(rq));
    }

    /// Makes the kernel stop a late request, if it can. `ring` is the most likely one. Blocks.
    pub(super) fn call_off(&self, ring: usize, late: &TimedOut<'_>) -> TimerReturn {
        // Hardware queues may have got other CPUs, and so rings, meanwhile.
        let (before, on) = self.ports.split_at(ring);
        let answer = on.iter().chain(before).find_map(|port| port.call_off(late));
        answer.unwrap_or_else(|| {
            tracing::warn!("{late}; the kernel cannot cancel it");
            TimerReturn::ResetTimer
        })
    }

    /// Wakes the ring's thread, if needed. The runner calls this after its pushes.
    pub(super) fn commit(&self, ring: usize) {
        let port = &self.ports[ring];
        // Perhaps all requests were done on the spot, or the thread has taken them already.
        if !port.inboxes.requests.is_empty() {
            port.ring.wake();
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

impl FilePort {
    /// Makes the kernel stop a late request, if it is in this ring and the kernel can; `None` if it
    /// isn't. Blocks until that is known.
    pub(super) fn call_off(&self, late: &TimedOut<'_>) -> Option<TimerReturn> {
        let errno = AtomicU32::new(libc::ENOENT.unsigned_abs());
        let answer = Arc::new(CancelAnswer { errno, told: Completion::new() });
        let theirs = Arc::clone(&answer);
        self.inboxes.asks.push(Box::new(CancelRequest {
            link: Link::new(),
            late: late.which(),
            answer: theirs,
        }));
        self.ring.wake();
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
