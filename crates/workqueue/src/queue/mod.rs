//! The workqueue, through which work is submitted.

pub(crate) mod builder;
pub(crate) mod control;
pub(crate) mod delayed;
pub(crate) mod divide;
mod execute;
mod fork;
pub(crate) mod future;
mod map;
pub(crate) mod scope;

use std::fmt;
use std::panic::Location;
use std::sync::Arc;

use corewise_sync::Mutex;

use crate::attributes::At;
use crate::error::{QueueError, Queued, Refused};
use crate::handle::join::{JoinHandle, Task};
use crate::handle::work::Work;
use crate::pwq::queue_core::QueueCore;
use crate::pwq::table::PwqTable;
use crate::queue::builder::QueueBuilder;
use crate::report::QueueStats;
use crate::task::claim::Claimed;
use crate::task::header::Header;
use crate::task::header::ItemRef;
use crate::timekeeper::delayed::Destination;
use crate::wait::messages;

/// A workqueue: its items run on workers of a pool, as a rule in the pod that they were queued
/// from. See [`QueueBuilder`] for the kinds of queues.
///
/// A cheap handle: clones are the same queue. Dropping it leaves queued work to run.
#[derive(Clone)]
pub struct Workqueue {
    inner: Arc<Inner>,
}

// A panic in there leaves the state whole: no lock is held while users' code runs.
impl std::panic::UnwindSafe for Workqueue {}
impl std::panic::RefUnwindSafe for Workqueue {}

struct Inner {
    /// The table that it queues on now.
    table: PwqTable,
    /// L: is the lock; guards the number of drains under way.
    drains: Mutex<usize>,
    /// L: is the lock; guards the queue below, once there is one. Taken before that of the
    /// attributes.
    below: Mutex<Option<Workqueue>>,
}

impl Destination for Inner {
    fn id(&self) -> u64 {
        self.table.shared().id
    }

    fn is_closed(&self) -> bool {
        self.table.is_closed()
    }

    fn take(&self, at: At, claimed: Claimed, accepted: bool) {
        // If the queue doesn't take the item, the item is cancelled, and its waiters are notified.
        let _ = self.table.place(at, claimed, accepted);
    }
}

impl Workqueue {
    /// Returns a builder for a queue. The name stands in reports and the log. If a name has more
    /// than 256 bytes, its middle is replaced by a mark.
    pub fn builder(name: impl Into<String>) -> QueueBuilder {
        QueueBuilder::new(name.into())
    }

    pub(crate) fn new(table: PwqTable) -> Workqueue {
        let (drains, below) = (Mutex::default(), Mutex::default());
        Workqueue { inner: Arc::new(Inner { table, drains, below }) }
    }

    pub(crate) fn shared(&self) -> &Arc<QueueCore> {
        self.inner.table.shared()
    }

    pub(crate) fn table(&self) -> &PwqTable {
        &self.inner.table
    }

    /// Returns the queue's name.
    pub fn name(&self) -> &str {
        &self.shared().name
    }

    /// Queues an item on the pod of the calling CPU. After `Ok` the item is pending, by this call
    /// or already, and the run that follows sees all writes before the call. If `max_active` is
    /// reached, the item is queued all the same, and held back.
    ///
    /// Any context. The call waits for no work. It is lock-free if the pod's workers are busy, or
    /// one of them looks for work already. If the call has to wake a worker, it holds the pool's
    /// lock, which sleeps on contention, for some dozen instructions. If the pod has room and no
    /// worker left to wake, as after the system refused a thread, the call makes one. If items are
    /// held back, it takes the lock of their list.
    ///
    /// If a shutdown runs at the same time, the call may return `Ok` and the item be cancelled. Its
    /// flushers are woken then, and it can be queued elsewhere.
    ///
    /// # Errors
    /// No run follows from this call: [`QueueError::Disabled`], [`QueueError::Draining`],
    /// [`QueueError::Closed`].
    ///
    /// ```
    /// # use corewise_topology::Machine;
    /// # use corewise_workqueue::{WorkerPools, Workqueue};
    /// use corewise_workqueue::{QueueError, Queued, Work};
    /// # let pools = WorkerPools::new(&Machine::live()?);
    /// let queue = Workqueue::builder("triggers").build(&pools)?;
    /// let work = Work::new(|| println!("at least once"));
    /// queue.queue(&work)?;
    /// match queue.queue(&work) {
    ///     Ok(Queued::Now) => println!("it has started before"),
    ///     Ok(Queued::AlreadyPending) => println!("the two calls become one run"),
    ///     Err(error) => println!("{error}"),
    /// }
    /// queue.destroy();
    /// assert_eq!(queue.queue(&work), Err(QueueError::Closed));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[track_caller]
    pub fn queue(&self, work: &Work) -> Result<Queued, QueueError> {
        self.inner.table.queue(At::Here, work.header(), || work.hold(), Location::caller(), false)
    }

    /// Queues the item at `place`. Not inline, so that callers in other crates don't have the
    /// table's code.
    #[track_caller]
    fn queue_to(&self, place: At, work: &Work) -> Result<Queued, QueueError> {
        self.inner.table.queue(place, work.header(), || work.hold(), Location::caller(), false)
    }

    /// Returns this queue at a place of the caller's choice: `queue.at(At::Node(1)).spawn(f)`.
    #[doc(alias = "queue_work_on")]
    #[doc(alias = "queue_work_node")]
    #[inline]
    pub fn at(&self, place: At) -> PlacedQueue<'_> {
        PlacedQueue { queue: self, place }
    }

    /// Runs a closure on the queue, like [`Workqueue::queue`], with one allocation. After
    /// [`WorkerPools::shutdown`](crate::WorkerPools::shutdown) the closure is dropped, and the
    /// handle reports that it was cancelled.
    #[track_caller]
    pub fn spawn<T, C>(&self, closure: C) -> JoinHandle<T>
    where
        C: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        self.spawn_to(At::Here, closure)
    }

    #[track_caller]
    fn spawn_to<T, C>(&self, place: At, closure: C) -> JoinHandle<T>
    where
        C: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        let (item, handle) = Task::make(closure, ());
        if let Err((item, _)) = self.submit_new(place, item) {
            // No other thread has it.
            item.cancelled();
            item.header().state.give_up();
        }
        handle
    }

    /// Waits for all items that were queued before the call, and for none queued later. May block;
    /// on a worker the pool starts other work meanwhile.
    ///
    /// An item that another thread is about to queue (its call hasn't returned, although the item
    /// is pending) may count as queued later; [`Work::flush`] waits for that one too.
    ///
    /// # Panics
    /// If an item of the same queue calls it, or an item that such an item waits for on the same
    /// stack: it would wait for that item. In an item, if the wait turns out never to end. A
    /// flushed item waits for the caller, or no worker can come for a flushed item and this stack
    /// can't hold it.
    #[track_caller]
    pub fn flush(&self) {
        messages::for_queue(self.shared(), "Workqueue::flush");
        self.flush_all();
    }

    /// Returns counts of the queue's work so far.
    pub fn stats(&self) -> QueueStats {
        self.shared().stats()
    }

    /// Queues an item that was just made. Gives it back if the queue doesn't take it. The called
    /// code isn't generic, so it is compiled once, here, for all callers.
    #[track_caller]
    #[inline(always)]
    pub(crate) fn submit_new(&self, at: At, item: ItemRef) -> Result<(), (ItemRef, QueueError)> {
        match at {
            At::Here => self.submit_new_here(item),
            at => self.submit_new_at(at, item),
        }
    }

    #[track_caller]
    fn submit_new_here(&self, item: ItemRef) -> Result<(), (ItemRef, QueueError)> {
        self.inner.table.queue_new(At::Here, item, Location::caller())
    }

    #[track_caller]
    fn submit_new_at(&self, at: At, item: ItemRef) -> Result<(), (ItemRef, QueueError)> {
        self.inner.table.queue_new(at, item, Location::caller())
    }

    /// Queues the item that `item` returns, whose header is `header`. Compiled once, whatever the
    /// item. `accepted`: the item is part of accepted work, which a drain waits for.
    pub(crate) fn submit_with(
        &self,
        place: At,
        header: &Header,
        item: &dyn Fn() -> ItemRef,
        site: &'static Location<'static>,
        accepted: bool,
    ) -> Result<Queued, QueueError> {
        self.inner.table.queue(place, header, item, site, accepted)
    }
}

/// A [`Workqueue`] at a place: its items run there, and not near the calling CPU. [`Workqueue::at`]
/// makes one.
///
/// ```
/// # use corewise_topology::Machine;
/// # use corewise_workqueue::{WorkerPools, Workqueue};
/// use corewise_workqueue::At;
/// # let pools = WorkerPools::new(&Machine::live()?);
/// let queue = Workqueue::builder("shards").build(&pools)?;
/// let first = queue.at(At::Node(0));
/// let shard = first.spawn(|| vec![0_u8; 4096]);
/// first.execute(|| println!("on node 0 too"))?;
/// assert_eq!(shard.join()?.len(), 4096);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy)]
#[must_use = "it hands in nothing by itself"]
pub struct PlacedQueue<'a> {
    queue: &'a Workqueue,
    place: At,
}

impl PlacedQueue<'_> {
    /// Queues an item as [`Workqueue::queue`] does, at this place.
    ///
    /// # Errors
    /// See [`Workqueue::queue`].
    #[track_caller]
    #[inline]
    pub fn queue(&self, work: &Work) -> Result<Queued, QueueError> {
        self.queue.queue_to(self.place, work)
    }

    /// Spawns a closure as [`Workqueue::spawn`] does, at this place.
    #[track_caller]
    pub fn spawn<T, C>(&self, closure: C) -> JoinHandle<T>
    where
        C: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        self.queue.spawn_to(self.place, closure)
    }

    /// Runs a closure as [`Workqueue::execute`] does, at this place.
    ///
    /// # Errors
    /// See [`Workqueue::execute`].
    #[track_caller]
    #[inline]
    pub fn execute<C: FnOnce() + Send + 'static>(&self, closure: C) -> Result<(), Refused<C>> {
        self.queue.execute_to(self.place, closure)
    }
}

impl fmt::Debug for Workqueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Workqueue")
            .field("name", &self.shared().name)
            .field("kind", &self.kind())
            .field("attributes", &self.shared().attributes)
            .field("stats", &self.stats())
            .finish()
    }
}
