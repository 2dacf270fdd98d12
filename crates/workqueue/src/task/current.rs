//! Which item runs on the calling thread: the innermost, where a waiter runs one inside another.

use std::cell::Cell;
use std::marker::PhantomData;
use std::ptr;

use corewise_sync::per_thread;

use crate::task::header::Running;

per_thread! {
    static CURRENT: Cell<*const Running> = Cell::new(ptr::null());
}

/// The instance runs on this thread until the guard is dropped.
#[inline]
pub(crate) fn enter(running: &Running) -> Guard<'_> {
    let outer = CURRENT.with(|c| c.replace(running));
    running.outer.set(outer);
    Guard { outer, running: PhantomData }
}

/// Restores what ran before. Borrows its instance, and belongs to its thread (it holds a pointer, so it
/// isn't `Send`). It stays in the frame that made it, is not forgotten, and guards end in reverse
/// order.
pub(crate) struct Guard<'a> {
    outer: *const Running,
    running: PhantomData<&'a Running>,
}

impl Drop for Guard<'_> {
    #[inline]
    fn drop(&mut self) {
        CURRENT.with(|c| c.set(self.outer));
    }
}

/// Calls `see` with the instance that runs on this thread; `None` off the workers, and between items.
pub(crate) fn with<R>(see: impl FnOnce(Option<&Running>) -> R) -> R {
    // On a thread that is about to end nothing runs.
    let running = CURRENT.try_with(Cell::get).unwrap_or(ptr::null());
    // SAFETY: where it isn't null, a guard on this thread borrows the instance, and is alive: it would
    // have put the former pointer back else. `see` runs inside that guard's frame, so it is outlived.
    see(unsafe { running.as_ref() })
}

/// Whether any instance is `wanted` of those that run on this thread's stack: the innermost, which is
/// shown first, and those that wait for it further up.
pub(crate) fn any(mut wanted: impl FnMut(&Running) -> bool) -> bool {
    let mut next = CURRENT.try_with(Cell::get).unwrap_or(ptr::null());
    // SAFETY: as in `with`; what an instance runs inside of outlives it.
    while let Some(running) = unsafe { next.as_ref() } {
        if wanted(running) {
            return true;
        }
        next = running.outer.get();
    }
    false
}
