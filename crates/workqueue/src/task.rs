//! A closure that runs once on a queue, and the handle that waits for its value.

use std::any::Any;
use std::fmt;
use std::future::Future;
use std::panic::{self, AssertUnwindSafe};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use corewise_sync::{Completion, Mutex};
use tracing::Span;

use crate::around::Spawner;
use crate::error::JoinError;
use crate::item::Header;
use crate::table::{Item, Table};
use crate::take_back::take_back;

/// Waits for a spawned closure's value. Dropping it lets the closure run on, unobserved; its value is
/// then dropped on the worker.
///
/// It is a future too, and can be awaited in any runtime.
#[must_use = "the value, or the panic, is in here; drop it on purpose to let the task run on alone"]
pub struct JoinHandle<T> {
    task: Arc<dyn Outcome<T>>,
}

// As for `Workqueue`.
impl<T> std::panic::UnwindSafe for JoinHandle<T> {}
impl<T> std::panic::RefUnwindSafe for JoinHandle<T> {}

impl<T> JoinHandle<T> {
    pub(crate) fn new(task: Arc<impl Outcome<T> + 'static>) -> Self {
        JoinHandle { task }
    }

    /// Waits for the value. May block; on a worker the pool starts other work meanwhile. A closure
    /// that still waits for a worker is run by this call, on this thread, where the caller is on a
    /// CPU of its pod (of a strict queue, or one with a niceness: is a worker of its pool), isn't in
    /// an atomic section or a blocking region, and hasn't 32 such calls on its stack.
    ///
    /// # Errors
    /// [`JoinError::Panicked`] with the panic, [`JoinError::Cancelled`] where it was
    /// [aborted](JoinHandle::abort), or the pools were shut down before it could run.
    ///
    /// # Panics
    /// Where the handle was polled before and has given its value then.
    #[track_caller]
    pub fn join(self) -> Result<T, JoinError> {
        if !self.is_finished() {
            take_back(self.task.waited_for());
        }
        self.task.done().wait();
        self.task.take().expect(TAKEN)
    }

    /// Cancels it: a closure that has not started is dropped and never runs; a future is dropped
    /// before its next poll. What runs at the moment runs on: a closure to its end, a future to the
    /// end of this poll. The handle then says [`JoinError::Cancelled`], unless it ended before.
    ///
    /// Any context. Where nothing of it runs, the closure or future is dropped by this call.
    pub fn abort(&self) {
        self.task.abort();
    }

    /// Whether it is over, so that [`JoinHandle::join`] won't block.
    pub fn is_finished(&self) -> bool {
        self.task.done().is_complete()
    }
}

impl<T> Future for JoinHandle<T> {
    type Output = Result<T, JoinError>;

    /// # Panics
    /// Where it is polled again after it was ready.
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.task.done().poll_complete(cx).map(|()| self.task.take().expect(TAKEN))
    }
}

impl<T> fmt::Debug for JoinHandle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinHandle").field("finished", &self.is_finished()).finish()
    }
}

const TAKEN: &str = "a JoinHandle was polled again after it had given its value";

/// The handle's view of a task: without the type of the closure or future.
pub(crate) trait Outcome<T>: Send + Sync {
    /// It is over, and its value is there.
    fn done(&self) -> &Completion;
    /// The item, for who waits for it.
    fn waited_for(&self) -> &Header;
    /// The value, once.
    fn take(&self) -> Option<Result<T, JoinError>>;
    /// Ends it where it doesn't run.
    fn abort(&self);
}

enum Stage<C, T> {
    Closure(C),
    Value(Result<T, JoinError>),
    Gone,
}

#[repr(C)]
pub(crate) struct Task<C, T> {
    header: Header,
    /// L: is the lock; guards the closure, then the value.
    stage: Mutex<Stage<C, T>>,
    done: Completion,
    spawner: Spawner,
}

impl<C, T> Task<C, T>
where
    C: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
{
    /// The task, and the handle that waits for it. One allocation.
    pub(crate) fn new(closure: C) -> (Arc<Self>, JoinHandle<T>) {
        let task = Arc::new(Task {
            header: Header::new(Table::counted::<Self, C>()),
            stage: Mutex::new(Stage::Closure(closure)),
            done: Completion::new(),
            spawner: Spawner::current(),
        });
        (Arc::clone(&task), JoinHandle::new(task))
    }

    fn replace(&self, next: Stage<C, T>) -> Stage<C, T> {
        std::mem::replace(&mut *self.stage.lock(), next)
    }

    /// The closure where it has not started, else `Gone`: it runs, or is over.
    fn take_closure(&self) -> Stage<C, T> {
        let stage = &mut *self.stage.lock();
        match stage {
            Stage::Closure(_) => std::mem::replace(stage, Stage::Gone),
            _ => Stage::Gone,
        }
    }

    fn end(&self, value: Result<T, JoinError>) {
        self.replace(Stage::Value(value));
        self.done.complete();
    }
}

// SAFETY: `repr(C)`; the header comes first, and is made in `new` only.
unsafe impl<C, T> Item for Task<C, T>
where
    C: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
{
    fn run(&self) {
        // Gone where it was aborted.
        if let Stage::Closure(closure) = self.take_closure() {
            // The closure is dropped by its call, on this worker, before the handle is woken; also
            // where it panics, which ends in `panicked`.
            let value = closure();
            self.end(Ok(value));
        }
    }

    fn cancelled(&self) {
        let closure @ Stage::Closure(_) = self.take_closure() else { return };
        // The closure is dropped before the handle is woken; a destructor's panic is the task's.
        let dropped = panic::catch_unwind(AssertUnwindSafe(|| drop(closure)));
        self.end(Err(dropped.map_or_else(JoinError::panicked, |()| JoinError::Cancelled)));
    }

    fn panicked(&self, payload: Box<dyn Any + Send>) {
        self.end(Err(JoinError::panicked(payload)));
    }

    fn spawner(&self) -> Option<&Span> {
        self.spawner.span()
    }
}

impl<C, T> Outcome<T> for Task<C, T>
where
    C: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
{
    fn done(&self) -> &Completion {
        &self.done
    }

    fn waited_for(&self) -> &Header {
        &self.header
    }

    fn take(&self) -> Option<Result<T, JoinError>> {
        match self.replace(Stage::Gone) {
            Stage::Value(value) => Some(value),
            _ => None,
        }
    }

    fn abort(&self) {
        // Out of its queue, where it lies in one: what waits behind it gets its place.
        if let Some(claimed) = self.header.claim() {
            claimed.cancel();
        }
        self.cancelled();
    }
}
