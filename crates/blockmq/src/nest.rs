//! The nesting of ends of requests, and of dispatches, on a thread. A completion function may
//! submit, the new request may end on the spot, and so on; a drop may do the same. Beyond a bound
//! the next end is put off until the thread is back in the outermost one, so that no chain of ends
//! needs a deep stack. (The kernel keeps a list of requests that are submitted inside a submission,
//! `bio_list`, and one of those that end in an interrupt.)
//!
//! Dispatches nest too, without an end between, if devices stand on one another. Beyond a bound a
//! worker makes the next one.
//!
//! A request that is put off keeps its tag and stays inside its queue. It waits for nothing but
//! this thread's way back, which doesn't block: completion functions run in atomic sections.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::mem::{self, ManuallyDrop};
use std::ptr;

use corewise_sync::panics::caught;
use corewise_sync::per_thread;

/// Number of dispatches that nest on a thread at most, before a worker makes the next one.
const NESTED_DISPATCHES: u32 = 64;

/// Number of ends of requests that nest on a thread at most, before the next one is put off. It is
/// more than a stack has devices, and far from filling a small thread's stack.
const NESTED_ENDS: u32 = 16;

/// An end that runs later on this thread.
type Deferred = Box<dyn FnOnce()>;

per_thread! {
    /// O: number of ends that the thread is in.
    static DEPTH: Cell<u32> = Cell::new(0);
    /// O: the thread's innermost pass. The pass lies on the thread's stack.
    static PASS: Cell<*const InPass> = Cell::new(ptr::null());
    /// O: number of dispatches that the thread is in.
    static DISPATCHES: Cell<u32> = Cell::new(0);
    /// O: the ends that were put off. Never dropped, so that the list outlives the thread's other
    /// variables; it owns nothing once the thread is out of all ends.
    static PUT_OFF: ManuallyDrop<RefCell<VecDeque<Deferred>>> = ManuallyDrop::new(RefCell::new(VecDeque::new()));
}

/// Ends a request: now, or, if the thread is deep in other ends, before the outermost of them is
/// over.
#[inline]
pub(crate) fn end(end: impl FnOnce() + 'static) {
    let depth = DEPTH.with(Cell::get);
    if depth >= NESTED_ENDS {
        return put_off(Box::new(end));
    }
    let _level = Level::enter(depth);
    end();
}

#[cold]
fn put_off(end: Deferred) {
    PUT_OFF.with(|later| later.borrow_mut().push_back(end));
}

/// Returns true if the thread is in too many dispatches to begin another one.
#[inline]
pub(crate) fn is_far_down() -> bool {
    DISPATCHES.with(Cell::get) >= NESTED_DISPATCHES
}

/// Returns true if the thread is in a dispatch or in the end of a request.
pub(crate) fn is_inside() -> bool {
    DEPTH.with(Cell::get) != 0 || DISPATCHES.with(Cell::get) != 0
}

/// Makes a dispatch, or checks whether one is to be made.
#[inline]
pub(crate) fn dispatch<R>(f: impl FnOnce() -> R) -> R {
    struct Out(u32);
    impl Drop for Out {
        fn drop(&mut self) {
            DISPATCHES.with(|inside| inside.set(self.0));
        }
    }
    let before = DISPATCHES.with(Cell::get);
    let _out = Out(before);
    DISPATCHES.with(|inside| inside.set(before + 1));
    f()
}

/// A hardware queue from the view of a pass: its address.
pub(crate) trait Runs {}

/// A pass that a thread is in.
struct InPass {
    /// The address of its hardware queue. Only compared.
    of: *const (),
    outer: *const InPass,
}

/// Makes a pass of `hctx`, whose runner the thread is.
#[inline]
pub(crate) fn pass<T: Runs, R>(hctx: &T, f: impl FnOnce() -> R) -> R {
    struct Out(*const InPass);
    impl Drop for Out {
        fn drop(&mut self) {
            PASS.with(|pass| pass.set(self.0));
        }
    }
    let this = InPass { of: ptr::from_ref(hctx).cast(), outer: PASS.with(Cell::get) };
    let _out = Out(this.outer);
    PASS.with(|pass| pass.set(&this));
    f()
}

/// Returns true if the thread is in a pass of `hctx`, also if it is in others inside that.
#[inline]
pub(crate) fn is_in_pass_of<T: Runs>(hctx: &T) -> bool {
    let mut at = PASS.with(Cell::get);
    // SAFETY: each pass lies in a call of `pass` that this thread is in: it is taken out before
    // that returns or unwinds.
    while let Some(pass) = unsafe { at.as_ref() } {
        if ptr::eq(pass.of, ptr::from_ref(hctx).cast()) {
            return true;
        }
        at = pass.outer;
    }
    false
}

/// One end that the thread is in.
struct Level {
    /// Number of ends that the thread was in before.
    outer: u32,
}

impl Level {
    fn enter(outer: u32) -> Self {
        DEPTH.with(|depth| depth.set(outer + 1));
        Self { outer }
    }
}

impl Drop for Level {
    fn drop(&mut self) {
        if self.outer == 0 {
            // Still inside: ends that these put off come behind them.
            while let Some(end) = next() {
                if caught(end).is_none() {
                    tracing::error!("the completion of a block request panicked");
                }
            }
        }
        DEPTH.with(|depth| depth.set(self.outer));
    }
}

/// Takes the next end that was put off. Behind the last one the list frees its memory.
fn next() -> Option<Deferred> {
    PUT_OFF.with(|later| {
        let mut later = later.borrow_mut();
        let next = later.pop_front();
        if next.is_none() {
            drop(mem::take(&mut *later));
        }
        next
    })
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::*;

    fn chain(left: u32, deepest: Rc<Cell<u32>>, ended: Rc<Cell<u32>>) {
        deepest.set(deepest.get().max(DEPTH.with(Cell::get)));
        if left != 0 {
            let (theirs, count) = (Rc::clone(&deepest), Rc::clone(&ended));
            end(move || chain(left - 1, theirs, count));
        }
        ended.set(ended.get() + 1);
    }

    #[test]
    fn a_chain_of_ends_is_over_with_the_outermost_and_never_deeper_than_the_bound() {
        let (deepest, ended) = (Rc::default(), Rc::default());
        chain(1000, Rc::clone(&deepest), Rc::clone(&ended));
        assert_eq!((deepest.get(), ended.get()), (NESTED_ENDS, 1001));
        assert_eq!(DEPTH.with(Cell::get), 0);
        assert_eq!(PUT_OFF.with(|later| later.borrow().capacity()), 0);
    }

    #[test]
    fn a_panic_leaves_the_depth_as_it_was_and_loses_no_deferred_completion() {
        let ended = Rc::new(Cell::new(0));
        let theirs = Rc::clone(&ended);
        let panicked = caught(|| {
            end(move || {
                for _ in 0..3 {
                    let theirs = Rc::clone(&theirs);
                    put_off(Box::new(move || {
                        theirs.set(theirs.get() + 1);
                        panic!("on purpose");
                    }));
                }
                panic!("on purpose");
            });
        });
        assert!(panicked.is_none());
        assert_eq!((ended.get(), DEPTH.with(Cell::get)), (3, 0));
    }
}
