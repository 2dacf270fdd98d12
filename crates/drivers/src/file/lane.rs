//! A lane: requests that wait for a worker which may block, and a bounded number of these.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use corewise_blockmq::Started;
use corewise_blockmq::for_drivers::Queued;
use corewise_sync::Mutex;
use corewise_sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use corewise_sync::inbox::Inbox;
use corewise_workqueue::Workqueue;

use super::volume;
use super::volume::Volume;

/// The count of the workers that the lanes of all volumes have that share it. Each lane may have
/// one, however many the others have.
#[derive(Debug, Default)]
pub(super) struct FileWorkers {
    /// A: Relaxed: a count that nothing else hangs on.
    workers: AtomicUsize,
}

/// Requests that wait for a worker.
pub(super) struct Lane {
    state: LaneState,
    inbox: Inbox<Queued>,
    /// L: is the lock; guards the requests that were taken out of the inbox and not begun. Workers
    /// only.
    taken: Mutex<VecDeque<Started>>,
    crew: Arc<FileWorkers>,
    /// Largest number of workers.
    most: u16,
}

impl Lane {
    pub(super) fn new(crew: &Arc<FileWorkers>, most: u16) -> Arc<Self> {
        Arc::new(Self {
            state: LaneState::new(),
            inbox: Inbox::new(),
            taken: Mutex::new(VecDeque::new()),
            crew: Arc::clone(crew),
            most,
        })
    }

    /// Sends a request of `volume` to a worker. Never blocks.
    pub(super) fn push(self: &Arc<Self>, volume: &Arc<Volume>, mut rq: Started, wq: &Workqueue) {
        rq.set_owner(Arc::clone(volume) as _);
        self.inbox.push(Queued(rq));
        let room = self.crew.workers.load(Ordering::Relaxed) < ALL_WORKERS;
        if self.state.push(if room { self.most } else { 1 }) == PushOutcome::SendWorker {
            self.crew.workers.fetch_add(1, Ordering::Relaxed);
            let worker = Worker { lane: Arc::clone(self), gone: true };
            // If it is refused, the worker is dropped, and that completes what waits.
            drop(wq.execute(move || worker.run()));
        }
    }

    /// Takes a request, for a worker whose Next has counted one.
    fn pop(&self) -> Option<Started> {
        let mut taken = self.taken.lock();
        if taken.is_empty() {
            taken.extend(self.inbox.take().map(|Queued(rq)| rq));
        }
        taken.pop_front()
    }
}

/// A worker of a lane, counted in. If it is dropped, there are no workers any more: what waits
/// completes as gone.
struct Worker {
    lane: Arc<Lane>,
    gone: bool,
}

impl Worker {
    fn run(mut self) {
        self.gone = false;
        self.serve(volume::perform);
    }

    fn serve(&self, with: fn(Started)) {
        let mut had = false;
        while self.lane.state.next(had) {
            had = true;
            if let Some(rq) = self.lane.pop() {
                with(rq);
            }
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if self.gone {
            self.serve(volume::gone);
        }
        self.lane.crew.workers.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The lanes of a volume: a change of the cache waits for the file's lock, in the kernel, and no
/// read waits for it.
pub(super) struct Lanes {
    pub(super) changes: Arc<Lane>,
    pub(super) others: Arc<Lane>,
}

impl Lanes {
    /// `cached`: changes go to the host's page cache.
    pub(super) fn new(crew: &Arc<FileWorkers>, cached: bool) -> Self {
        let changes = if cached { CACHED_CHANGES } else { WORKERS };
        Self { changes: Lane::new(crew, changes), others: Lane::new(crew, WORKERS) }
    }
}

// The word of a lane: the number of requests that wait in it, of its workers, and of those that are
// at a request. Lanes are the file driver's (`README.md` beside this file has the protocol).

/// A request that waits.
const WAITING: u64 = 1 << 32;
/// A worker that is on its way, looks for a request, or handles one.
const WORKER: u64 = 1 << 16;
/// A worker that handles a request.
const BUSY: u64 = 1;
/// Bits of the two lower counts.
const COUNT: u64 = WORKER - 1;

/// The request of [`LaneState::push`] to its caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a request without a worker waits for ever"]
pub enum PushOutcome {
    /// A worker that is there takes it.
    Served,
    /// The caller has to send a worker, which is counted already.
    SendWorker,
}

/// The word. All changes are read-modify-writes of it, so they have one order.
#[derive(Default)]
pub struct LaneState {
    /// A: the three counts. AcqRel: a worker that takes a request sees what its pusher did before.
    word: AtomicU64,
}

impl LaneState {
    /// Creates a lane without requests or workers.
    pub fn new() -> Self {
        Self::default()
    }

    /// Counts a request that has been put into the lane, which has room for `most` workers, at
    /// least one (Push).
    #[inline]
    pub fn push(&self, most: u16) -> PushOutcome {
        let mut pushed = PushOutcome::Served;
        self.change(|word| {
            let (word, send) = (word + WAITING, wants_worker(word + WAITING, most));
            pushed = if send { PushOutcome::SendWorker } else { PushOutcome::Served };
            if send { word + WORKER } else { word }
        });
        pushed
    }

    /// Counts out a worker's request (`had`), if it had one, and returns true if there is one that
    /// it may take now (Next). False: the worker is counted out, and leaves.
    #[inline]
    pub fn next(&self, had: bool) -> bool {
        let done = if had { BUSY } else { 0 };
        let before = self.change(|word| match word - done {
            free if free < WAITING => free - WORKER,
            free => free - WAITING + BUSY,
        });
        before - done >= WAITING
    }

    /// Returns the number of workers.
    pub fn workers(&self) -> u64 {
        (self.word.load(Ordering::Relaxed) / WORKER) & COUNT
    }

    fn change(&self, mut step: impl FnMut(u64) -> u64) -> u64 {
        let always = |word| Some(step(word));
        let (Ok(before) | Err(before)) =
            self.word.fetch_update(Ordering::AcqRel, Ordering::Relaxed, always);
        before
    }
}

/// Returns true if more requests wait than workers are about to take one, and there is room for one
/// more worker.
fn wants_worker(word: u64, most: u16) -> bool {
    let (waiting, workers, busy) = (word / WAITING, (word / WORKER) & COUNT, word & COUNT);
    waiting > workers - busy && workers < u64::from(most.max(1))
}

impl fmt::Debug for LaneState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = self.word.load(Ordering::Relaxed);
        f.debug_struct("LaneState")
            .field("waiting", &(word / WAITING))
            .field("workers", &((word / WORKER) & COUNT))
            .field("busy", &(word & COUNT))
            .finish()
    }
}

// Numbers of the file driver, each with its reason.

/// Largest number of workers of a lane: a disk with this many requests at once is as fast as it
/// gets. (An ext4 file on a virtio disk makes 90 to 99 k reads a second from 32 in flight on.) Each
/// more is a thread that the scheduler has to switch to.
pub(super) const WORKERS: u16 = 32;
/// Largest number of workers for changes that go to the host's page cache. The kernel does one of a
/// file at a time, so a second worker answers the one before meanwhile, and a third would wait.
pub(super) const CACHED_CHANGES: u16 = 2;
/// Time from which on a change of the cache counts as one that waited for a disk. It is more than
/// two busy CPUs take from a thread, and the least of the kernel's pauses for too much dirty
/// memory.
pub(super) const LONG: Duration = Duration::from_millis(10);
/// Time after such a change in which submitters leave changes to workers, so that a client's reads
/// don't wait with its writes.
pub(super) const CALM_AFTER: Duration = Duration::from_secs(1);
/// Approximate bound of the workers of all lanes of a server. If there are this many, a lane that
/// has one gets no other.
pub(super) const ALL_WORKERS: usize = 64;
/// Most bytes that are read or written on the spot: copying more takes some time, and others wait
/// for the same hardware queue.
pub(super) const AT_ONCE: u64 = 64 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_is_sent_only_where_none_is_about_to_look_and_there_is_room() {
        let lane = LaneState::new();
        assert_eq!(lane.push(2), PushOutcome::SendWorker);
        assert!(lane.next(false), "it takes the first");
        assert_eq!(lane.push(2), PushOutcome::SendWorker, "the first worker is at a request");
        assert_eq!(lane.push(2), PushOutcome::Served, "no room for a third worker");
        assert!(lane.next(true) && lane.next(false));
        assert!(!lane.next(true), "nothing is left: it leaves");
        assert_eq!(lane.workers(), 1);
        assert!(!lane.next(true));
        assert_eq!(lane.push(2), PushOutcome::SendWorker, "all have left");
        assert_eq!(lane.workers(), 1);
    }

    #[test]
    fn a_worker_that_is_on_its_way_counts_for_one_request_only() {
        let lane = LaneState::new();
        assert_eq!(lane.push(8), PushOutcome::SendWorker);
        assert_eq!(lane.push(8), PushOutcome::SendWorker);
        assert!(lane.next(false));
        assert_eq!(lane.push(8), PushOutcome::SendWorker);
    }
}
