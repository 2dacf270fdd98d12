//! A lane: requests that wait for a worker which may block, and a bounded number of these.

use std::collections::VecDeque;
use std::sync::Arc;

use corewise_blockmq::Started;
use corewise_blockmq::for_drivers::Queued;
use corewise_sync::Mutex;
use corewise_sync::atomic::{AtomicUsize, Ordering};
use corewise_sync::inbox::Inbox;
use corewise_workqueue::Workqueue;

use super::lane_state::{LaneState, Pushed};
use super::policy::{ALL_WORKERS, WORKERS};
use super::volume::{self, Volume};

/// How many workers the lanes of all volumes have that share it. Each lane may have one whatever the others have.
#[derive(Debug, Default)]
pub(super) struct Crew {
    /// A: Relaxed: a count that nothing else hangs on.
    workers: AtomicUsize,
}

/// Requests that wait for a worker.
pub(super) struct Lane {
    state: LaneState,
    inbox: Inbox<Queued>,
    /// L: is the lock; guards what was taken out of the inbox and not begun. Workers only.
    taken: Mutex<VecDeque<Started>>,
    crew: Arc<Crew>,
    /// How many workers it may have.
    most: u16,
}

impl Lane {
    pub(super) fn new(crew: &Arc<Crew>, most: u16) -> Arc<Self> {
        Arc::new(Self {
            state: LaneState::new(),
            inbox: Inbox::new(),
            taken: Mutex::new(VecDeque::new()),
            crew: Arc::clone(crew),
            most,
        })
    }

    /// Has a worker do a request of `volume`. Never blocks.
    pub(super) fn push(self: &Arc<Self>, volume: &Arc<Volume>, mut rq: Started, wq: &Workqueue) {
        rq.set_owner(Arc::clone(volume) as _);
        self.inbox.push(Queued(rq));
        let room = self.crew.workers.load(Ordering::Relaxed) < ALL_WORKERS;
        if self.state.push(if room { self.most } else { 1 }) == Pushed::SendWorker {
            self.crew.workers.fetch_add(1, Ordering::Relaxed);
            let worker = Worker { lane: Arc::clone(self), gone: true };
            // Where it is refused, the worker is dropped, and that completes what waits.
            drop(wq.execute(move || worker.run()));
        }
    }

    /// Takes a request, for a worker that was told that there is one.
    fn pop(&self) -> Option<Started> {
        let mut taken = self.taken.lock();
        if taken.is_empty() {
            taken.extend(self.inbox.take().map(|Queued(rq)| rq));
        }
        taken.pop_front()
    }
}

/// A worker of a lane, counted in. Dropped, there are no workers any more: what waits completes as gone.
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

/// The lanes of a volume: a change of what the cache holds waits for the file's lock, in the kernel, and no read for it.
pub(super) struct Lanes {
    pub(super) changes: Arc<Lane>,
    pub(super) others: Arc<Lane>,
}

impl Lanes {
    /// `cached`: changes go to the host's page cache.
    pub(super) fn new(crew: &Arc<Crew>, cached: bool) -> Self {
        let changes = if cached { super::policy::CACHED_CHANGES } else { WORKERS };
        Self { changes: Lane::new(crew, changes), others: Lane::new(crew, WORKERS) }
    }
}
