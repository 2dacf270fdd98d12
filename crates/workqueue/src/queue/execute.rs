//! A closure that runs once and has no handle: the cheapest way to have something run.
//!
//! Only the pool knows such an item: it can't be claimed, flushed or queued again. So it is pending
//! from its making to its end, and its state word never changes. Its run uses it up.
//!
//! The module also has the closures of `try_spawn`. A queue takes a limited number of these at
//! once.

use std::panic::Location;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use corewise_sync::hint;
use tracing::Span;

use crate::attributes::At;
use crate::error::{QueueError, Refused};
use crate::fork::lane::Lane;
use crate::fork::spawn_ring::Closure;
use crate::handle::join::{JoinHandle, Task};
use crate::pool::current_worker;
use crate::pool::group::Group;
use crate::pwq::Pwq;
use crate::pwq::queue_core::Permit;
use crate::queue::Workqueue;
use crate::task::header::{Header, Item, ItemRef, Job, OneShotItem, TableOf};
use crate::task::running::{self, Spawner};
use crate::task::ticket::Ticket;

impl Workqueue {
    /// Runs a closure on the queue, once, without a handle. It is cheaper than
    /// [`Workqueue::spawn`], for work without a waiter. It takes one allocation, which the worker
    /// frees before it calls the closure.
    ///
    /// The closure runs on a worker thread of the queue, near the calling CPU, and is dropped
    /// there. A panic is logged. [`Workqueue::flush`] waits for it. Any context, like
    /// [`Workqueue::queue`].
    ///
    /// Inside an item of the same queue the call is cheaper still, without an allocation. The
    /// worker keeps closures of up to five words that take less than 5 us or so, and runs them
    /// after the item. It shares them in tens, and wakes no worker for the first of them. They
    /// start in the order of these calls, but maybe before items that the item has queued in
    /// another way. If the item sleeps, or runs for long, other workers take the closures that its
    /// worker keeps.
    ///
    /// # Errors
    /// The closure comes back, with [`QueueError::Draining`](crate::QueueError::Draining) or
    /// [`QueueError::Closed`](crate::QueueError::Closed). If the queue ends after the call, while
    /// the closure waits for a worker, it is dropped without having run, by the thread that ends
    /// the queue.
    ///
    /// ```
    /// # use corewise_topology::Machine;
    /// # use corewise_workqueue::{WorkerPools, Workqueue};
    /// # let pools = WorkerPools::new(&Machine::live()?);
    /// let queue = Workqueue::builder("log").build(&pools)?;
    /// queue.execute(|| println!("written in a while"))?;
    /// queue.flush();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[track_caller]
    #[inline]
    pub fn execute<C: FnOnce() + Send + 'static>(&self, closure: C) -> Result<(), Refused<C>> {
        self.execute_to(At::Here, closure)
    }

    #[track_caller]
    #[inline]
    pub(super) fn execute_to<C>(&self, place: At, closure: C) -> Result<(), Refused<C>>
    where
        C: FnOnce() + Send + 'static,
    {
        // This comes before the move of the closure: if a subscriber panics in there, the closure
        // is dropped as always.
        let spawner = Spawner::current();
        if matches!(place, At::Here) && spawner.span().is_none() {
            let fits = const { Closure::holds::<C>() };
            if let Some(inside) = self.enters_inside(fits) {
                let job = Job { ticket: inside.ticket.into(), site: Location::caller() };
                inside.group.keep(inside.pool, inside.lane, Closure::new(closure, job));
                return Ok(());
            }
        }
        // The memory comes first, so that the item is made in place: a copy would wait for its own
        // stores.
        let room = Box::new_uninit();
        let header = Header::new(&TableOf::<OneShot<C>, C>::ALONE);
        let once = NonNull::from(Box::leak(room).write(OneShot { header, closure, spawner }));
        // SAFETY: it was made pending, and is handed over.
        let item = unsafe { ItemRef::kept(once.cast()) };
        self.submit_new(place, item).map_err(|(_, error)| {
            // SAFETY: it came back, so no other thread has it; it was leaked above.
            Refused { closure: unsafe { Box::from_raw(once.as_ptr()) }.take(), error }
        })
    }
}

/// A place for a closure that stays with the calling worker.
struct KeptPlace<'a> {
    ticket: Ticket,
    group: &'a Arc<Group>,
    pool: usize,
    lane: &'a Lane,
}

impl Workqueue {
    /// Enters, if an item of this queue runs here whose worker may keep a closure that `fits`. Else
    /// the closure goes to the list, after those that the worker keeps.
    #[inline]
    fn enters_inside(&self, fits: bool) -> Option<KeptPlace<'_>> {
        running::current(|running| {
            let running = running?;
            let lane = self.lane_of(running).filter(|lane| lane.takes_spawns())?;
            let (_, pool) = current_worker::pool()?;
            let own = running.ticket()?;
            // SAFETY: the item that runs here keeps its group and the lane for as long as they are
            // used.
            let (group, lane) =
                unsafe { (&*ptr::from_ref(&Pwq::of(own).group), &*ptr::from_ref(lane)) };
            let enter = || self.table().enter_inside(own, pool, lane);
            let Some(ticket) = fits.then(enter).flatten() else {
                group.overtakes_none(pool, lane);
                return None;
            };
            Some(KeptPlace { ticket, group, pool, lane })
        })
    }
}

/// A one-shot closure's item. The fields that a run touches lie together.
#[repr(C)]
struct OneShot<C> {
    header: Header,
    closure: C,
    spawner: Spawner,
}

impl<C> OneShot<C> {
    /// Takes the closure out, and frees the rest.
    #[inline]
    #[expect(clippy::boxed_local, reason = "the closure is moved, not the whole item")]
    fn take(self: Box<Self>) -> C {
        hint::reads(&self.closure);
        self.closure
    }
}

// SAFETY: the closure is touched by the owner of all of the item, to run or drop it; `C: Send` is
// enough for that. The other fields are `Sync`.
unsafe impl<C: Send> Sync for OneShot<C> {}

// SAFETY: `repr(C)`; the header comes first, and is made in `execute_to` only.
unsafe impl<C: FnOnce() + Send> Item for OneShot<C> {
    fn spawner(&self) -> Option<&Span> {
        self.spawner.span()
    }
}

impl<C: FnOnce() + Send> OneShotItem for OneShot<C> {
    #[inline]
    fn run(self: Box<Self>) {
        // The item is gone before the closure is called: what that queues has its memory.
        let closure = self.take();
        closure();
    }
}

impl Workqueue {
    /// Queues a closure as [`Workqueue::spawn`] does if the queue has room, and else gives the
    /// closure back. So the queue of an overloaded server doesn't grow: the server can refuse the
    /// surplus.
    ///
    /// A queue has room for as many closures as its [`capacity`](crate::QueueBuilder::capacity)
    /// says, waiting or running, or for any number. The place of a closure is free again when it
    /// has run, or was cancelled and dropped, and before its handle is ready. Any context, as
    /// [`Workqueue::queue`]; if the queue has a capacity, all callers write one shared counter.
    ///
    /// # Errors
    /// The closure, as it was, with [`QueueError::Full`], or with [`QueueError::Draining`] or
    /// [`QueueError::Closed`].
    ///
    /// ```
    /// # use corewise_topology::Machine;
    /// # use corewise_workqueue::{WorkerPools, Workqueue};
    /// use corewise_workqueue::QueueError;
    /// # let pools = WorkerPools::new(&Machine::live()?);
    /// let queue = Workqueue::builder("thumbnails").max_active(2).capacity(100).build(&pools)?;
    /// match queue.try_spawn(|| println!("made in a while")) {
    ///     Ok(job) => job.join()?,
    ///     Err(refused) if refused.error == QueueError::Full => eprintln!("come again later"),
    ///     Err(refused) => return Err(refused.error.into()),
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[track_caller]
    pub fn try_spawn<T, C>(&self, closure: C) -> Result<JoinHandle<T>, Refused<C>>
    where
        C: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        let permit = match &self.inner.table.shared().room {
            None => None,
            Some(room) => match room.enter() {
                None => {
                    // "Gone" is another error than "full".
                    let closed = self.inner.table.check_at_once(false).err();
                    return Err(Refused { closure, error: closed.unwrap_or(QueueError::Full) });
                }
                permit => permit,
            },
        };
        let (item, handle) = Task::make(closure, permit);
        match self.submit_new(At::Here, item) {
            Ok(()) => Ok(handle),
            Err((item, error)) => {
                // SAFETY: it was made just now, with this closure and permit, and comes back: no
                // other thread has it.
                let closure = unsafe { Task::<C, T, Option<Permit>>::unmake(item, handle) };
                Err(Refused { closure, error })
            }
        }
    }
}

#[cfg(all(test, target_pointer_width = "64"))]
mod tests {
    use super::*;

    #[test]
    fn a_closure_of_two_words_takes_80_bytes() {
        fn size<C>(_: &C) -> usize {
            size_of::<OneShot<C>>()
        }
        let (one, other) = (Box::new(1_u64), Box::new(2_u64));
        let closure = move || drop((one, other));
        assert_eq!(size_of_val(&closure), 16);
        assert!(size(&closure) <= 80, "{} bytes", size(&closure));
    }
}
