//! A closure that runs once on a queue, and the handle that waits for its value.

use std::any::Any;
use std::fmt;
use std::future::Future;
use std::panic::{self, AssertUnwindSafe};
use std::pin::Pin;
use std::ptr::NonNull;
use std::sync::Arc;
use std::task::{Context, Poll};

use corewise_sync::Completion;
use corewise_sync::cell::UnsafeCell;
use corewise_sync::panics;
use tracing::Span;

use crate::error::{JoinError, shielded};
use crate::task::header::Header;
use crate::task::running::Spawner;
use crate::task::vtable::{Item, ItemRef, Lent, Runs, TableOf};
use crate::wait::take_back::{Role, take_back};
use crate::wait::{self, messages};

/// Waits for a spawned closure's value. Dropping it lets the closure run on, unobserved; its value is
/// then dropped on the worker, or here where the closure is over. A panic of the value's destructor is
/// logged, and goes no further.
///
/// It is a future too, and can be awaited in any runtime.
pub struct JoinHandle<T> {
    /// By a pointer to the whole task.
    task: NonNull<dyn Outcome<T>>,
}

// As for `Workqueue`.
impl<T> std::panic::UnwindSafe for JoinHandle<T> {}
impl<T> std::panic::RefUnwindSafe for JoinHandle<T> {}

// SAFETY: a handle is a reference to the task, which is `Send + Sync`.
unsafe impl<T> Send for JoinHandle<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for JoinHandle<T> {}

impl<T> JoinHandle<T> {
    /// Of a task that lives in an `Arc`.
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

    fn lent(&self) -> Lent<'_> {
        // SAFETY: as above; a task is an item, and the pointer is one to all of it.
        unsafe { Lent::new(self.task.cast()) }
    }

    /// Waits for the value. May block; on a worker the pool starts other work meanwhile. A closure
    /// that still waits for a worker is run by this call, on this thread, where the caller is on a
    /// CPU of its pod (of a strict queue, or one with a niceness: is a worker of its pool), isn't in
    /// an atomic section or a blocking region, and hasn't 32 such calls on its stack, or half of it used.
    ///
    /// In a work item it also goes on where it would use up what the closure needs. Where no worker can
    /// come, since the pool has all that it may have and all of them wait, this call runs the closure
    /// while there is a stack. Where the limit of its queue holds the closure back, and that queue's
    /// own item is what waits, it runs in the place of that item.
    ///
    /// # Errors
    /// [`JoinError::Panicked`] with the panic, [`JoinError::Cancelled`] where it was
    /// [aborted](JoinHandle::abort), or the pools were shut down before it could run.
    ///
    /// # Panics
    /// Where the handle was polled before and has given its value then. In a work item, where the wait
    /// would never end: for the item itself, or for a closure that an ordered queue starts only after
    /// others which come after the item.
    #[track_caller]
    pub fn join(self) -> Result<T, JoinError> {
        if !self.is_finished() {
            messages::for_item(self.task().header(), "JoinHandle::join");
            take_back(self.lent(), Role::Waits);
            wait::wait(self.lent(), self.task().done(), Role::Waits);
        }
        self.task().take().expect(TAKEN)
    }

    /// Cancels it: a closure that has not started is dropped and never runs; a future is dropped
    /// before its next poll. A run in progress goes on: a closure to its end, a future to the
    /// end of this poll. The handle then says [`JoinError::Cancelled`], unless it ended before.
    ///
    /// Any context. Where nothing of it runs, the closure or future is dropped by this call.
    pub fn abort(&self) {
        self.task().abort();
        // Out of its queue, where it lies in one: what waits behind it gets its place.
        if let Some(claimed) = self.lent().claim() {
            claimed.cancel();
        }
    }

    /// Whether it is over, so that [`JoinHandle::join`] won't block.
    pub fn is_finished(&self) -> bool {
        self.task().done().is_complete()
    }
}

impl<T> Drop for JoinHandle<T> {
    fn drop(&mut self) {
        // The value, where nobody took it, is dropped with the task: in the middle of a panic, maybe.
        let (table, state) = (self.lent().table, &self.lent().state);
        if table.is_counted() || state.orphan() {
            // SAFETY: the table is the task's. The handle has a count of it, and gives that up; or no instance is
            // left, nobody has the task any more, and none will get it.
            let release = || unsafe { (table.release)(self.task.cast()) };
            shielded("dropping a value that nobody took", release);
        }
    }
}

impl<T> Future for JoinHandle<T> {
    type Output = Result<T, JoinError>;

    /// # Panics
    /// Where it is polled again after it was ready.
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.task().done().poll_complete(cx).map(|()| self.task().take().expect(TAKEN))
    }
}

impl<T> fmt::Debug for JoinHandle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinHandle").field("finished", &self.is_finished()).finish()
    }
}

const TAKEN: &str = "a JoinHandle was polled again after it had given its value";

/// The handle's view of a task, which is an [`Item`]: without the type of the closure or future.
pub(crate) trait Outcome<T>: Item {
    /// It is over, and its value is there.
    fn done(&self) -> &Completion;
    /// The value, once.
    fn take(&self) -> Option<Result<T, JoinError>>;
    /// Its instance, if one is pending, is about to be cancelled: ends what that doesn't.
    fn abort(&self) {}
}

enum Stage<C, T> {
    Closure(C),
    Value(Result<T, JoinError>),
    Gone,
}

/// What a run touches first lies together.
#[repr(C)]
pub(crate) struct Task<C, T> {
    header: Header,
    /// P: belongs to the thread that starts the item, or claims it to cancel it, until `done`; from then on to the
    /// handle, or to the thread that frees the task.
    stage: UnsafeCell<Stage<C, T>>,
    done: Completion,
    spawner: Spawner,
}

// SAFETY: `stage` is touched by one at a time, which `RUNNING` and `done` pass on with acquire and
// release: so `C: Send` and `T: Send` are enough. The other fields are `Sync`.
unsafe impl<C: Send, T: Send> Sync for Task<C, T> {}

impl<C: FnOnce() -> T + Send + 'static, T: Send + 'static> Task<C, T> {
    /// The task, which is pending, and the handle that waits for it. One allocation.
    #[inline]
    pub(crate) fn make(closure: C) -> (ItemRef, JoinHandle<T>) {
        let spawner = Spawner::current();
        // Memory first: see `Workqueue::execute`.
        let room = Box::new_uninit();
        let header = Header::new(&TableOf::<Self, C>::ONCE);
        let stage = UnsafeCell::new(Stage::Closure(closure));
        let task = Box::write(room, Task { header, done: Completion::new(), spawner, stage });
        let task = NonNull::from(Box::leak(task));
        // SAFETY: it was made pending, and is handed over.
        let item = unsafe { ItemRef::kept(task.cast()) };
        (item, JoinHandle { task })
    }

    /// # Safety
    /// The stage is the caller's: see there.
    unsafe fn replace(&self, next: Stage<C, T>) -> Stage<C, T> {
        // SAFETY: as the caller says.
        self.stage.with_mut(|stage| std::mem::replace(unsafe { &mut *stage }, next))
    }

    /// By the runner or canceller of the task.
    fn end(&self, value: Result<T, JoinError>) {
        // SAFETY: the item runs, or was claimed, and isn't done: the stage is the caller's.
        drop(unsafe { self.replace(Stage::Value(value)) });
        // Without a handle nobody waits, or ever will.
        if !self.header.state.snapshot().is_orphan() {
            self.done.complete();
        }
    }
}

impl<C: FnOnce() -> T + Send + 'static, T: Send + 'static> Runs for Task<C, T> {
    fn run(&self) {
        // SAFETY: who has started the item runs it, and it isn't done: the stage is the caller's.
        if let Stage::Closure(closure) = unsafe { self.replace(Stage::Gone) } {
            // The closure is dropped by its call, on this worker, before the handle is woken; also
            // where it panics, which ends in `panicked`.
            let value = closure();
            self.end(Ok(value));
        }
    }
}

// SAFETY: `repr(C)`; the header comes first, and is made in `make` only.
unsafe impl<C: FnOnce() -> T + Send + 'static, T: Send + 'static> Item for Task<C, T> {
    fn cancelled(&self) {
        // The closure is dropped before the handle is woken; a destructor's panic is the task's.
        // SAFETY: as in `run`, for the claimant of the item.
        let closure = unsafe { self.replace(Stage::Gone) };
        let dropped = panic::catch_unwind(AssertUnwindSafe(|| drop(closure)));
        self.end(Err(dropped.map_or_else(JoinError::panicked, |()| JoinError::Cancelled)));
    }

    fn panicked(&self, payload: Box<dyn Any + Send>) {
        if self.done.is_complete() {
            // Not the closure: a subscriber, when the run was over. The stage is the handle's by now.
            return panics::discard(payload);
        }
        // Where a subscriber panicked before the run the closure is still there. It is dropped before
        // the handle is woken, and a destructor's panic keeps nobody waiting.
        // SAFETY: as in `run`, for the starter of the item.
        let closure = unsafe { self.replace(Stage::Gone) };
        shielded("dropping a closure that didn't run", || drop(closure));
        self.end(Err(JoinError::panicked(payload)));
    }

    fn spawner(&self) -> Option<&Span> {
        self.spawner.span()
    }
}

impl<C: FnOnce() -> T + Send + 'static, T: Send + 'static> Outcome<T> for Task<C, T> {
    fn done(&self) -> &Completion {
        &self.done
    }

    fn take(&self) -> Option<Result<T, JoinError>> {
        // SAFETY: the handle takes the value when it has seen that the task is done.
        match unsafe { self.replace(Stage::Gone) } {
            Stage::Value(value) => Some(value),
            Stage::Closure(_) | Stage::Gone => None,
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
