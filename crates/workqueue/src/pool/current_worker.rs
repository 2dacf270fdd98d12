//! The worker that the calling thread is, if it is one.

use std::cell::Cell;
use std::marker::PhantomData;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use corewise_sync::per_thread;

use super::worker::Worker;
use crate::task::running::Publication;
use crate::task::ticket::DeferredEnds;

per_thread! {
    static HERE: Cell<Current> = Cell::new(Current::NOBODY);
}

#[derive(Clone, Copy)]
struct Current {
    worker: *const Worker,
    /// The group's address, only compared.
    group: *const (),
}

impl Current {
    const NOBODY: Current = Current { worker: ptr::null(), group: ptr::null() };
}

/// Makes the calling thread this worker's until the guard is dropped.
pub(super) fn enter<'a, G>(worker: &'a Worker, group: &Arc<G>) -> Guard<'a> {
    let here = Current { worker, group: Arc::as_ptr(group).cast() };
    HERE.with(|cell| cell.set(here));
    Guard(PhantomData)
}

/// Borrows its worker, and stays in the frame that made it.
pub(super) struct Guard<'a>(PhantomData<&'a Worker>);

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        HERE.with(|cell| cell.set(Current::NOBODY));
    }
}

#[inline]
fn current() -> Current {
    // A thread that is about to end has no worker any more.
    HERE.try_with(Cell::get).unwrap_or(Current::NOBODY)
}

/// Returns true if the calling thread is a worker of this pool.
pub(crate) fn is_of<G>(group: &Arc<G>, pool: usize) -> bool {
    let Current { worker, group: own } = current();
    // SAFETY: if it isn't null, the guard further up this stack borrows the worker.
    let worker = unsafe { worker.as_ref() };
    worker.is_some_and(|worker| worker.pool == pool) && own == Arc::as_ptr(group).cast()
}

/// Returns a key for a group of pools, to be compared.
pub(crate) fn key<G>(group: &Arc<G>) -> NonNull<()> {
    NonNull::from(&**group).cast()
}

/// Returns the pool whose worker the calling thread is, if it is one: its group's key, and its
/// index in the group.
pub(crate) fn pool() -> Option<(NonNull<()>, usize)> {
    let Current { worker, group } = current();
    // SAFETY: as above.
    let worker = unsafe { worker.as_ref() }?;
    Some((NonNull::new(group.cast_mut())?, worker.pool))
}

/// Returns true if the calling thread is this worker's.
pub(super) fn is(worker: &Worker) -> bool {
    ptr::eq(current().worker, worker)
}

/// Calls `f` with the ends that the calling thread carries, if it is a worker.
#[inline]
pub(crate) fn with_carry<R>(f: impl FnOnce(&DeferredEnds) -> R) -> Option<R> {
    // SAFETY: as above; `f` runs inside that frame.
    unsafe { current().worker.as_ref() }.map(|worker| f(&worker.carry))
}

/// Calls `f` with the place where the calling thread publishes its running instance; with an unread
/// one if it is no worker.
pub(crate) fn with_shown<R>(f: impl FnOnce(&Publication) -> R) -> R {
    // SAFETY: as above; `f` runs inside that frame.
    match unsafe { current().worker.as_ref() } {
        Some(worker) => f(&worker.shown),
        None => f(&Publication::new()),
    }
}

/// Calls `f` with the worker that the calling thread is, if it is one of this group.
pub(super) fn with_own<G, R>(group: &Arc<G>, f: impl FnOnce(Option<&Worker>) -> R) -> R {
    let Current { worker, group: own } = current();
    // SAFETY: as above; `f` runs inside that frame.
    let worker = unsafe { worker.as_ref() };
    f(worker.filter(|_| own == Arc::as_ptr(group).cast()))
}
