//! What a pool carries: the header inside each item, and the handles that move it along.
//!
//! An item goes through three hands, each of which is a type here:
//! [`Queued`] (in a list: it owns the item, through the job slot of the item's own header),
//! [`Running`] (taken by a worker), and, in between, the header's slot itself, which belongs to the
//! holder of the `PENDING` bit.

use std::any::Any;
use std::panic::{self, AssertUnwindSafe};
use std::ptr::NonNull;
use std::sync::Arc;

use corewise_sync::cell::UnsafeCell;
use corewise_sync::inbox::{Link, Node};
use corewise_sync::{Completion, Mutex};

use crate::colours::Ticket;
use crate::error::panic_message;
use crate::work_state::{Finished, Seq, WorkState, at_most};

/// Something that a worker can run.
pub(crate) trait Item: Send + Sync {
    fn header(&self) -> &Header;
    /// Runs the user's function; may panic.
    fn run(&self);
    /// It won't be run: tell those who wait.
    fn cancelled(&self);
    /// `run` panicked.
    fn panicked(&self, payload: Box<dyn Any + Send>);
}

/// What a queued item carries along.
pub(crate) struct Job {
    /// The item itself: it keeps itself alive while it is queued.
    pub(crate) item: Arc<dyn Item>,
    /// Counts the instance in the queue it was queued on, until dropped. `None` in models of the
    /// pool alone.
    pub(crate) ticket: Option<Ticket>,
}

/// The part of an item that the pool knows.
pub(crate) struct Header {
    /// P: owned by the inbox while the item is in one.
    link: Link,
    pub(crate) state: WorkState,
    /// P: owned by the holder of `PENDING`.
    job: UnsafeCell<Option<Job>>,
    /// L: is the lock; guards those who wait, each for the instance of its number.
    flushers: Mutex<Vec<(Seq, Arc<Completion>)>>,
}

// SAFETY: `job` is touched only by the holder of `PENDING`, of whom there is one
// (`WorkState::pend`), and the bit's transitions are acquire/release, so the hand-over orders the
// accesses. A `Job` may move between threads: items are `Send + Sync`, tickets are too.
unsafe impl Sync for Header {}
// SAFETY: as above; nothing in it belongs to a thread.
unsafe impl Send for Header {}

impl Header {
    pub(crate) fn new() -> Self {
        Header {
            link: Link::new(),
            state: WorkState::new(),
            job: UnsafeCell::new(None),
            flushers: Mutex::new(Vec::new()),
        }
    }

    /// Empties the job slot.
    ///
    /// # Safety
    /// The caller holds `PENDING`.
    unsafe fn take_job(&self) -> Option<Job> {
        // SAFETY: the holder of `PENDING` is the only one who touches the slot.
        self.job.with_mut(|slot| unsafe { (*slot).take() })
    }

    /// Fills the job slot.
    ///
    /// # Safety
    /// The caller holds `PENDING`.
    unsafe fn put_job(&self, job: Job) {
        // SAFETY: the holder of `PENDING` is the only one who touches the slot.
        self.job.with_mut(|slot| unsafe { *slot = Some(job) });
    }

    /// Waits until the instance queued last has finished; true where there was one to wait for.
    #[track_caller]
    pub(crate) fn flush(&self) -> bool {
        let event = {
            let mut flushers = self.flushers.lock();
            // Announced and pushed under the lock: an instance that finishes after the announcement
            // sees it, and then waits for this lock before it looks for us.
            let now = self.state.announce_flusher();
            if !now.pending() && !now.running() {
                if flushers.is_empty() {
                    self.state.clear_flushers();
                }
                return false;
            }
            let event = Arc::new(Completion::new());
            flushers.push((now.seq(), Arc::clone(&event)));
            event
        };
        event.wait();
        true
    }

    /// Instance `seq` is over: wakes those who wait for it or for an earlier one.
    fn wake_flushers(&self, seq: Seq) {
        let mut ended = Vec::new();
        {
            let mut flushers = self.flushers.lock();
            flushers.retain(|(target, event)| {
                let over = at_most(*target, seq);
                if over {
                    ended.push(Arc::clone(event));
                }
                !over
            });
            if flushers.is_empty() {
                self.state.clear_flushers();
            }
        }
        for event in ended {
            event.complete();
        }
    }
}

/// A queued item. Dropping it cancels the instance: it is then over without having run.
pub(crate) struct Queued(NonNull<Header>);

// SAFETY: it stands for an `Arc<dyn Item>`, which is `Send` (items are `Send + Sync`).
unsafe impl Send for Queued {}

impl Queued {
    /// Fills the slot of an item that the caller just made pending.
    ///
    /// # Safety
    /// The caller holds `PENDING` of `job.item` through a successful `pend`, and gives it up here.
    pub(crate) unsafe fn new(job: Job) -> Queued {
        let header = NonNull::from(job.item.header());
        // SAFETY: the caller holds `PENDING`; the header lives inside the item, which the job in
        // the slot now keeps alive.
        unsafe { header.as_ref().put_job(job) };
        Queued(header)
    }

    fn header(&self) -> &Header {
        // SAFETY: the job in the slot holds the item, and with it the header, until it is taken
        // out, which only the consuming methods and `drop` do.
        unsafe { self.0.as_ref() }
    }

    /// Starts the instance. `None` where the item is being run by another worker: that one runs
    /// this instance too, right after (an item never runs on two workers).
    pub(crate) fn start(self) -> Option<Running> {
        loop {
            let now = self.header().state.snapshot();
            if now.running() {
                if self.header().state.hand_over(now) {
                    std::mem::forget(self);
                    return None;
                }
                continue;
            }
            // SAFETY: a queued item is pending, and this handle is what holds the bit.
            let job = unsafe { self.header().take_job() }.expect("a queued item has a job");
            if self.header().state.start(now) {
                std::mem::forget(self);
                return Some(Running { job, seq: now.seq() });
            }
            // SAFETY: `start` failed, so the bit is still ours.
            unsafe { self.header().put_job(job) };
        }
    }
}

impl Drop for Queued {
    fn drop(&mut self) {
        let seq = self.header().state.snapshot().seq();
        // SAFETY: a queued item is pending, and this handle is what holds the bit.
        let job = unsafe { self.header().take_job() }.expect("a queued item has a job");
        // From here on `job` alone keeps the header alive.
        let owed = job.item.header().state.cancel();
        job.item.cancelled();
        if owed.flushers {
            job.item.header().wake_flushers(seq);
        }
        drop_item(job.item);
    }
}

// SAFETY: a `Queued` is unique per pending instance (`pend` succeeds once), so its header is in one
// inbox at most; the job in its slot keeps it in place.
unsafe impl Node for Queued {
    type Target = Header;

    fn into_raw(self) -> NonNull<Header> {
        let raw = self.0;
        std::mem::forget(self);
        raw
    }

    unsafe fn from_raw(raw: NonNull<Header>) -> Self {
        Queued(raw)
    }

    unsafe fn link<'a>(raw: NonNull<Header>) -> &'a Link
    where
        Self: 'a,
    {
        // SAFETY: the item is queued while it is in an inbox, so its header is alive.
        unsafe { &(*raw.as_ptr()).link }
    }
}

/// An instance that a worker has started.
pub(crate) struct Running {
    job: Job,
    seq: Seq,
}

impl Running {
    /// The instance runs away from its home pod; counted.
    pub(crate) fn overflowed(&self) {
        if let Some(ticket) = &self.job.ticket {
            ticket.overflowed();
        }
    }

    /// Runs the instance, and each one that is handed over meanwhile. Never unwinds. Returns how
    /// many instances ran.
    pub(crate) fn run(self) -> u64 {
        let Running { mut job, mut seq } = self;
        let mut ran = 0;
        loop {
            if let Err(payload) = panic::catch_unwind(AssertUnwindSafe(|| job.item.run())) {
                job.item.panicked(payload);
            }
            ran += 1;
            let Finished { again, flushers } = job.item.header().state.finish();
            if flushers {
                job.item.header().wake_flushers(seq);
            }
            if !again {
                let Job { item, ticket } = job;
                drop_item(item);
                // Last: after a flush of the queue the instance is over in every respect.
                drop(ticket);
                return ran;
            }
            drop(job.ticket.take());
            // SAFETY: `finish` said that an instance was handed over: `PENDING` is ours now.
            let next = unsafe { job.item.header().take_job() };
            seq = job.item.header().state.restart();
            job = next.expect("a handed-over item has a job");
        }
    }
}

/// Gives up the queue's hold on an item. If it was the last one, the user's destructors run here,
/// and may panic: that is no business of the worker's.
fn drop_item(item: Arc<dyn Item>) {
    if let Err(payload) = panic::catch_unwind(AssertUnwindSafe(|| drop(item))) {
        tracing::error!(
            message = panic_message(payload.as_ref()),
            "dropping a work item's function panicked"
        );
    }
}
