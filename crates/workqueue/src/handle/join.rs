//! A closure that runs once on a queue, and the handle that waits for its value.

use std::any::Any;
use std::fmt;
use std::future::Future;
use std::mem;
use std::ops::Deref;
use std::panic::{self, AssertUnwindSafe};
use std::pin::Pin;
use std::ptr::NonNull;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use corewise_sync::Completion;
use corewise_sync::cell::UnsafeCell;
use corewise_sync::panics;
use tracing::Span;

use crate::error::{JoinError, shielded};
use crate::task::header::Header;
use crate::task::header::{Item, ItemRef, LentItem, Runs, TableOf};
use crate::task::running::Spawner;
use crate::wait::{self, messages};
use crate::wait::{Role, take_back};

/// Waits for a spawned closure's value. Dropping the handle lets the closure run on, unobserved.
/// Its value is then dropped on the worker, or here if the closure is over. A panic of the value's
/// destructor is logged, and goes no further.
///
/// The handle is a future too, and can be awaited in any runtime.
pub struct JoinHandle<T> {
    /// The task, as a pointer to all of it.
    task: NonNull<dyn Outcome<T>>,
}

// The reason is that of `Workqueue`.
impl<T> std::panic::UnwindSafe for JoinHandle<T> {}
impl<T> std::panic::RefUnwindSafe for JoinHandle<T> {}

// SAFETY: a handle is a reference to the task, which is `Send + Sync`.
unsafe impl<T> Send for JoinHandle<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for JoinHandle<T> {}

impl<T> JoinHandle<T> {
    /// Creates the handle of a task that lives in an `Arc`.
    pub(crate) fn counted<O: Outcome<T> + 'static>(task: Arc<O>) -> Self {
        // SAFETY: `Arc::into_raw` never returns null.
        let task = unsafe { NonNull::new_unchecked(Arc::into_raw(task).cast_mut()) };
        JoinHandle { task }
    }

    #[inline]
    fn task(&self) -> &dyn Outcome<T> {
        // SAFETY: the handle keeps the task.
        unsafe { self.task.as_ref() }
    }

    fn lent(&self) -> LentItem<'_> {
        // SAFETY: as above; a task is an item, and the pointer is one to all of it.
        unsafe { LentItem::new(self.task.cast()) }
    }

    /// Waits for the value. May block; on a worker the pool starts other work meanwhile. If the
    /// closure still waits for a worker, this call may run it, on this thread. Three conditions
    /// apply. The caller is on a CPU of the closure's pod (for a strict queue, or one with a
    /// niceness: it is a worker of its pool). It isn't in an atomic section or a blocking region.
    /// It hasn't used half of its stack.
    ///
    /// In a work item the call also handles a wait that would use up the closure's worker or place.
    /// If no worker can come, since the pool has its maximum and all of them wait, this call runs
    /// the closure while there is a stack. If the limit of its queue holds the closure back, and an
    /// item of that queue waits, the closure runs in the place of that item.
    ///
    /// # Errors
    /// [`JoinError::Panicked`] with the panic, [`JoinError::Cancelled`] if it was
    /// [aborted](JoinHandle::abort), or the pools were shut down before it could run.
    ///
    /// # Panics
    /// If the handle was polled before and has returned its value. In a work item, if the wait
    /// would never end. The item waits for itself, or for a closure that an ordered queue starts
    /// only after others which come after the item.
    #[track_caller]
    pub fn join(self) -> Result<T, JoinError> {
        self.wait();
        self.task().take().expect(TAKEN)
    }

    #[track_caller]
    fn wait(&self) {
        if !self.is_finished() {
            messages::for_item(self.task().header(), "JoinHandle::join");
            take_back(self.lent(), Role::Waits);
            wait::wait(self.lent(), self.task().done(), Role::Waits);
        }
    }

    /// Waits for `timeout` at most. Returns true if the job is over, so that [`JoinHandle::join`]
    /// won't block. It runs nothing on this thread, since that might not end in time. So an item
    /// waits in vain for a closure that its own place or order holds back. May block; on a worker
    /// the pool starts other work meanwhile.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use corewise_topology::Machine;
    /// # use corewise_workqueue::{WorkerPools, Workqueue};
    /// # let pools = WorkerPools::new(&Machine::live()?);
    /// let queue = Workqueue::builder("queries").build(&pools)?;
    /// let answer = queue.spawn(|| 42);
    /// while !answer.wait_timeout(Duration::from_secs(1)) {
    ///     eprintln!("still at it");
    /// }
    /// assert_eq!(answer.join()?, 42);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[track_caller]
    pub fn wait_timeout(&self, timeout: Duration) -> bool {
        self.is_finished() || self.task().done().wait_timeout(timeout)
    }

    /// Makes the drop of the handle [abort](JoinHandle::abort) the closure or future.
    ///
    /// ```
    /// # use std::future::pending;
    /// # use std::time::Duration;
    /// # use corewise_topology::Machine;
    /// # use corewise_workqueue::{WorkerPools, Workqueue};
    /// # let pools = WorkerPools::new(&Machine::live()?);
    /// let queue = Workqueue::builder("watchers").build(&pools)?;
    /// // It may watch for so long, and not longer.
    /// let watcher = queue.spawn_future(pending::<()>()).abort_on_drop();
    /// assert!(!watcher.wait_timeout(Duration::from_millis(1)));
    /// drop(watcher);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn abort_on_drop(self) -> AbortOnDrop<T> {
        AbortOnDrop { handle: Some(self) }
    }

    /// Cancels the job: a closure that has not started is dropped and never runs; a future is
    /// dropped before its next poll. A run in progress continues: a closure to its end, a future to
    /// the end of this poll. The handle then returns [`JoinError::Cancelled`], unless the job ended
    /// before.
    ///
    /// Any context. If nothing of it runs, this call drops the closure or future.
    pub fn abort(&self) {
        self.task().abort();
        // The job leaves its queue, if it lies in one: the items behind it get its place.
        if let Some(claimed) = self.lent().claim() {
            claimed.cancel();
        }
    }

    /// Returns true if the job is over, so that [`JoinHandle::join`] won't block.
    pub fn is_finished(&self) -> bool {
        self.task().done().is_complete()
    }
}

impl<T> Drop for JoinHandle<T> {
    fn drop(&mut self) {
        // A value that wasn't taken is dropped with the task, perhaps in the middle of a panic.
        let (table, state) = (self.lent().table, &self.lent().state);
        if table.is_counted() || state.orphan() {
            // SAFETY: the table is the task's. The handle has a count of it, and gives that up; or
            // no instance is left, no thread has the task any more, and none will get it.
            let release = || unsafe { (table.release)(self.task.cast()) };
            shielded("dropping a value that was not taken", release);
        }
    }
}

impl<T> Future for JoinHandle<T> {
    type Output = Result<T, JoinError>;

    /// Returns the result once the job is over.
    ///
    /// # Panics
    ///
    /// If it is polled again after it was ready.
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.task().done().poll_complete(cx).map(|()| self.task().take().expect(TAKEN))
    }
}

impl<T> fmt::Debug for JoinHandle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinHandle").field("finished", &self.is_finished()).finish()
    }
}

/// A [`JoinHandle`] that aborts when it is dropped: see [`JoinHandle::abort_on_drop`]. So no
/// closure or future continues when its owner is gone, except for a run that is in progress then.
/// (tokio-util's `AbortOnDropHandle`.)
///
/// The handle is a future too.
#[must_use = "dropping it aborts what was spawned"]
pub struct AbortOnDrop<T> {
    /// `None` once it was given away.
    handle: Option<JoinHandle<T>>,
}

impl<T> AbortOnDrop<T> {
    /// Waits for the result as [`JoinHandle::join`] does. If the wait ends with a panic, the job is
    /// aborted.
    ///
    /// # Errors
    /// See [`JoinHandle::join`].
    ///
    /// # Panics
    /// See [`JoinHandle::join`].
    #[track_caller]
    pub fn join(self) -> Result<T, JoinError> {
        self.wait();
        self.detach().join()
    }

    /// Returns the plain handle: the job continues to its end.
    pub fn detach(mut self) -> JoinHandle<T> {
        self.handle.take().expect(GIVEN_AWAY)
    }
}

impl<T> Deref for AbortOnDrop<T> {
    type Target = JoinHandle<T>;

    fn deref(&self) -> &JoinHandle<T> {
        self.handle.as_ref().expect(GIVEN_AWAY)
    }
}

impl<T> Drop for AbortOnDrop<T> {
    fn drop(&mut self) {
        self.handle.iter().for_each(JoinHandle::abort);
    }
}

impl<T> Future for AbortOnDrop<T> {
    type Output = Result<T, JoinError>;

    /// Returns the result once the job is over.
    ///
    /// # Panics
    ///
    /// If it is polled again after it was ready.
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(self.handle.as_mut().expect(GIVEN_AWAY)).poll(cx)
    }
}

impl<T> fmt::Debug for AbortOnDrop<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AbortOnDrop").field("finished", &self.is_finished()).finish()
    }
}

const GIVEN_AWAY: &str = "only `detach` gives it away, and uses up what it was in";

const TAKEN: &str = "a JoinHandle was polled again after it had given its value";

/// The handle's view of a task, which is an [`Item`]: without the type of the closure or future.
pub(crate) trait Outcome<T>: Item {
    /// Returns the completion for the end of the job, after which its value is there.
    fn done(&self) -> &Completion;
    /// Returns the value, once.
    fn take(&self) -> Option<Result<T, JoinError>>;
    /// Ends the parts of the job that the cancellation of a pending instance doesn't end. Called
    /// just before that.
    fn abort(&self) {}
}

enum Stage<C, T, P> {
    /// The closure, and the permit that is dropped when the closure is over.
    Closure(C, P),
    Value(Result<T, JoinError>),
    Gone,
}

/// A closure's task. The fields that a run touches first lie together.
#[repr(C)]
pub(crate) struct Task<C, T, P = ()> {
    header: Header,
    /// P: belongs to the thread that starts the item, or claims it to cancel it, until `done`; from
    /// then on to the handle, or to the thread that frees the task.
    stage: UnsafeCell<Stage<C, T, P>>,
    done: Completion,
    spawner: Spawner,
}

// SAFETY: one thread at a time touches `stage`; `RUNNING` and `done` pass it on with acquire and
// release. So `Send` is enough for its content. The other fields are `Sync`.
unsafe impl<C: Send, T: Send, P: Send> Sync for Task<C, T, P> {}

impl<C, T, P> Task<C, T, P>
where
    C: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
    P: Send + 'static,
{
    /// Creates a pending task and the handle that waits for it, in one allocation. `permit` is
    /// dropped when the closure is over, and before the handle is woken.
    #[inline]
    pub(crate) fn make(closure: C, permit: P) -> (ItemRef, JoinHandle<T>) {
        let spawner = Spawner::current();
        // The memory comes first: see `Workqueue::execute`.
        let room = Box::new_uninit();
        let header = Header::new(&TableOf::<Self, C>::ONCE);
        let stage = UnsafeCell::new(Stage::Closure(closure, permit));
        let task = Task { header, done: Completion::new(), spawner, stage };
        let task = NonNull::from(Box::leak(room).write(task));
        // SAFETY: it was made pending, and is handed over.
        let item = unsafe { ItemRef::kept(task.cast()) };
        (item, JoinHandle { task })
    }

    /// Returns the closure of a task that the queue didn't take.
    ///
    /// # Safety
    /// The arguments are the results of [`Task::make`], for a task of this type, and no other
    /// thread ever had the item.
    pub(crate) unsafe fn unmake(item: ItemRef, handle: JoinHandle<T>) -> C {
        mem::forget(handle);
        // SAFETY: it was leaked in `make`, and is the caller's alone.
        let task = unsafe { Box::from_raw(item.pointer().cast::<Self>().as_ptr()) };
        match task.stage.into_inner() {
            Stage::Closure(closure, _) => closure,
            Stage::Value(_) | Stage::Gone => unreachable!("it wasn't queued, and so didn't run"),
        }
    }

    /// Replaces the task's stage and returns the previous one.
    ///
    /// # Safety
    /// The stage is the caller's: see the field.
    unsafe fn replace(&self, next: Stage<C, T, P>) -> Stage<C, T, P> {
        // SAFETY: as the caller says.
        self.stage.with_mut(|stage| mem::replace(unsafe { &mut *stage }, next))
    }

    /// Ends the task with this value. Called by its runner or canceller.
    fn end(&self, value: Result<T, JoinError>) {
        // SAFETY: the item runs, or was claimed, and isn't done: the stage is the caller's.
        drop(unsafe { self.replace(Stage::Value(value)) });
        // Without a handle no thread waits, or ever will.
        if !self.header.state.snapshot().is_orphan() {
            self.done.complete();
        }
    }
}

impl<C, T, P> Runs for Task<C, T, P>
where
    C: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
    P: Send + 'static,
{
    fn run(&self) {
        // SAFETY: the thread that has started the item runs it, and it isn't done: the stage is the
        // caller's.
        if let Stage::Closure(closure, permit) = unsafe { self.replace(Stage::Gone) } {
            // The closure is dropped by its call, on this worker, before the handle is woken; even
            // if it panics, which ends in `panicked`.
            let value = closure();
            drop(permit);
            self.end(Ok(value));
        }
    }
}

// SAFETY: `repr(C)`; the header comes first, and is made in `make` only.
unsafe impl<C, T, P> Item for Task<C, T, P>
where
    C: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
    P: Send + 'static,
{
    fn cancelled(&self) {
        // The closure is dropped before the handle is woken; a destructor's panic is the task's.
        // SAFETY: as in `run`, for the claimant of the item.
        let closure = unsafe { self.replace(Stage::Gone) };
        let dropped = panic::catch_unwind(AssertUnwindSafe(|| drop(closure)));
        self.end(Err(dropped.map_or_else(JoinError::panicked, |()| JoinError::Cancelled)));
    }

    fn panicked(&self, payload: Box<dyn Any + Send>) {
        if self.done.is_complete() {
            // A subscriber panicked when the run was over, not the closure. The stage is the
            // handle's by now.
            return panics::discard(payload);
        }
        // If a subscriber panicked before the run the closure is still there. It is dropped before
        // the handle is woken, and a destructor's panic keeps no thread waiting. SAFETY: as in
        // `run`, for the starter of the item.
        let closure = unsafe { self.replace(Stage::Gone) };
        shielded("dropping a closure that didn't run", || drop(closure));
        self.end(Err(JoinError::panicked(payload)));
    }

    fn spawner(&self) -> Option<&Span> {
        self.spawner.span()
    }
}

impl<C, T, P> Outcome<T> for Task<C, T, P>
where
    C: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
    P: Send + 'static,
{
    fn done(&self) -> &Completion {
        &self.done
    }

    fn take(&self) -> Option<Result<T, JoinError>> {
        // SAFETY: the handle takes the value when it has seen that the task is done.
        match unsafe { self.replace(Stage::Gone) } {
            Stage::Value(value) => Some(value),
            Stage::Closure(..) | Stage::Gone => None,
        }
    }
}

#[cfg(all(test, target_pointer_width = "64"))]
mod tests {
    use super::*;

    #[test]
    fn a_task_of_a_closure_of_two_words_takes_120_bytes() {
        fn size<C: FnOnce() -> T, T>(_: &C) -> usize {
            size_of::<Task<C, T>>()
        }
        let (one, other) = (Box::new(1_u64), Box::new(2_u64));
        let closure = move || *one + *other;
        assert_eq!(size_of_val(&closure), 16);
        assert!(size(&closure) <= 120, "{} bytes", size(&closure));
    }
}
