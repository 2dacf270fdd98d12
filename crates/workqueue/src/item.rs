//! What a pool carries: the header inside each item, and the handles that move it along.
//!
//! An item goes through three hands, each of which is a type here:
//! [`Queued`] (in a list: it owns the item, through the job slot of the item's own header),
//! [`Running`] (taken by a worker), and, in between, the header's slot itself, which belongs to the
//! holder of the `PENDING` bit.

use std::any::Any;
use std::panic::Location;
use std::ptr::NonNull;
use std::sync::Arc;

use corewise_sync::cell::UnsafeCell;
use corewise_sync::inbox::{Link as Hook, Node};
use corewise_sync::{Completion, Mutex};
use tracing::Span;

use crate::around;
use crate::error::shielded;
use crate::link::{Link, Ticket};
use crate::pool::publication::{Label, Publication};
use crate::work_state::{Finished, Seq, WorkState, at_most, long_before};

/// Something that a worker can run.
pub(crate) trait Item: Send + Sync {
    fn header(&self) -> &Header;
    /// Runs the user's function; may panic.
    fn run(&self);
    /// It won't be run: tell those who wait.
    fn cancelled(&self);
    /// `run` panicked.
    fn panicked(&self, payload: Box<dyn Any + Send>);
    /// The span that it was spawned in, where that is known.
    fn spawner(&self) -> Option<&Span> {
        None
    }
}

/// What a queued item carries along.
pub(crate) struct Job {
    /// The item itself: it keeps itself alive while it is queued.
    pub(crate) item: Arc<dyn Item>,
    /// Counts the instance in the queue it was queued on, until dropped. `None` in models of the
    /// pool alone.
    pub(crate) ticket: Option<Ticket>,
    /// The source line that queued it.
    pub(crate) site: &'static Location<'static>,
}

impl Job {
    /// The queue's name, for reports.
    pub(crate) fn queue_name(&self) -> &str {
        self.ticket.as_ref().map_or("", |ticket| &ticket.link.shared.name)
    }

    /// What is shown of it while it runs.
    fn label(&self) -> Label {
        Label {
            name: self.item.header().name,
            site: self.site,
            queue: self.ticket.as_ref().map_or(0, |ticket| ticket.link.shared.id),
        }
    }
}

/// The part of an item that the pool knows.
pub(crate) struct Header {
    /// P: owned by the inbox or the list that the item is in.
    hook: Hook,
    /// I: the name of the user's function, for reports.
    pub(crate) name: fn() -> &'static str,
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

impl Header {
    /// The header of an item whose function is a `T`.
    pub(crate) fn new<T>() -> Self {
        Header {
            hook: Hook::new(),
            name: std::any::type_name::<T>,
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
        let ended = self.flushers_until(seq, &mut self.flushers.lock());
        for event in ended {
            event.complete();
        }
    }

    /// Takes out those who wait for instance `seq` or for an earlier one.
    fn flushers_until(
        &self,
        seq: Seq,
        flushers: &mut Vec<(Seq, Arc<Completion>)>,
    ) -> Vec<Arc<Completion>> {
        let ended = flushers.extract_if(.., |(target, _)| at_most(*target, seq));
        let ended = ended.map(|(_, event)| event).collect();
        if flushers.is_empty() {
            self.state.clear_flushers();
        }
        ended
    }

    /// The pending instance is cancelled: those who wait for it and have to be woken now. Where an
    /// earlier one still runs nobody has: who waits for the cancelled one then waits for that.
    fn cancel(&self) -> Vec<Arc<Completion>> {
        // Under the lock: the worker that runs the earlier one finishes either before, and then
        // isn't seen running, or it sees what is changed here.
        let mut flushers = self.flushers.lock();
        let old = self.state.cancel();
        if !old.running() {
            return self.flushers_until(old.seq(), &mut flushers);
        }
        for (target, _) in flushers.iter_mut().filter(|(target, _)| *target == old.seq()) {
            *target = long_before(old.seq());
        }
        Vec::new()
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

    /// The link that it was queued on; `None` in models of the pool alone.
    pub(crate) fn link(&self) -> Option<Arc<Link>> {
        self.ticket(|ticket| Arc::clone(&ticket.link))
    }

    /// It has a place in its link's slot of the limiter, which the end of the instance gives back.
    pub(crate) fn count(&self) {
        self.ticket(Ticket::count);
    }

    fn ticket<R>(&self, f: impl FnOnce(&Ticket) -> R) -> Option<R> {
        // SAFETY: a queued item is pending, and this handle is what holds the bit.
        let job = self.header().job.with(|slot| unsafe { (*slot).as_ref().map(NonNull::from) });
        // SAFETY: as above: nobody changes the slot while this handle is borrowed.
        let ticket = job.and_then(|job| unsafe { job.as_ref() }.ticket.as_ref());
        ticket.map(f)
    }

    /// Gives the instance up as if it had never been queued: who waits for it goes on, the item
    /// itself isn't told.
    pub(crate) fn refuse(self) {
        // SAFETY: a queued item is pending, and this handle is what holds the bit.
        let job = unsafe { self.header().take_job() }.expect("a queued item has a job");
        std::mem::forget(self);
        for event in job.item.header().cancel() {
            event.complete();
        }
        drop_item(job.item);
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
        // SAFETY: a queued item is pending, and this handle is what holds the bit.
        let job = unsafe { self.header().take_job() }.expect("a queued item has a job");
        // From here on `job` alone keeps the header alive.
        let ended = job.item.header().cancel();
        shielded("cancelling a work item", || job.item.cancelled());
        for event in ended {
            event.complete();
        }
        drop_item(job.item);
    }
}

// SAFETY: a `Queued` is unique per pending instance (`pend` succeeds once), so its header is in one
// inbox or list at most; the job in its slot keeps it in place.
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

    unsafe fn link<'a>(raw: NonNull<Header>) -> &'a Hook
    where
        Self: 'a,
    {
        // SAFETY: the item is queued while it is in an inbox, so its header is alive.
        unsafe { &(*raw.as_ptr()).hook }
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

    /// Runs the instance, and each one that is handed over meanwhile, showing each. Never unwinds.
    /// Returns how many instances ran.
    pub(crate) fn run(self, shown: &Publication) -> u64 {
        let Running { mut job, mut seq } = self;
        let mut ran = 0;
        loop {
            shown.starts(job.label());
            if let Err(payload) = around::run(&job) {
                shielded("dropping what a work item panicked with", || job.item.panicked(payload));
            }
            ran += 1;
            let Finished { again, flushers } = job.item.header().state.finish();
            if flushers {
                job.item.header().wake_flushers(seq);
            }
            if !again {
                shown.ends();
                let Job { item, ticket, .. } = job;
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
    shielded("dropping a work item's function", || drop(item));
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::work::Work;

    fn pend(work: &Work) -> Queued {
        let item = Arc::clone(&work.inner) as Arc<dyn Item>;
        assert!(item.header().state.pend());
        // SAFETY: `pend` succeeded just now.
        unsafe { Queued::new(Job { item, ticket: None, site: Location::caller() }) }
    }

    #[test]
    fn a_cancelled_instance_ends_no_flush_that_waits_for_the_running_one() {
        let work = Work::new(|| ());
        let header = work.inner.header();
        let first = pend(&work).start().expect("nobody runs it");
        std::thread::scope(|scope| {
            let waiting = |n| {
                while header.flushers.lock().len() != n {
                    std::thread::yield_now();
                }
            };
            let mut flushes = vec![scope.spawn(|| work.flush())];
            waiting(1);
            let second = pend(&work);
            flushes.push(scope.spawn(|| work.flush()));
            waiting(2);
            drop(second);
            assert_eq!(header.flushers.lock().len(), 2, "the first instance still runs");
            first.run(&Publication::new());
            assert!(flushes.into_iter().all(|flush| flush.join().unwrap()));
        });
        assert!(!work.flush(), "nothing is left to wait for");
    }
}
