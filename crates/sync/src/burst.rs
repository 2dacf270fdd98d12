//! Bursts: a thread that completes several requests in a row announces that to the layer of their
//! callers. That layer may then do work once instead of for each request. (The kernel's network
//! receive path gathers packets the same way, NAPI with GRO.)

use std::cell::{Cell, RefCell};
use std::marker::PhantomData;
use std::mem;

use crate::context::AtomicSection;
use crate::facade::backend::per_thread;
use crate::panics::caught;

/// A function that runs later on this thread.
type Deferred = Box<dyn FnOnce()>;

per_thread! {
    /// O: true while the thread is in a burst.
    static IN_BURST: Cell<bool> = Cell::new(false);
    /// O: functions to call at the end of the burst.
    static BEHIND_BURST: RefCell<Vec<Deferred>> = RefCell::new(Vec::new());
}

/// Calls `f` at once, or, while this thread completes several requests in a row, as a ring's thread
/// does, after the last of them. For completion functions: for work that can be done once for many
/// requests, such as sending the replies that have gathered.
///
/// Until then the thread completes and submits some 30 requests at most, and waits for nothing. `f`
/// runs on this thread, in an atomic section; a panic in it is caught.
pub fn behind_burst(f: impl FnOnce() + 'static) {
    if IN_BURST.try_with(Cell::get).unwrap_or(false) {
        BEHIND_BURST.with(|later| later.borrow_mut().push(Box::new(f)));
    } else {
        f();
    }
}

/// A burst of this thread: several requests that it completes in a row. Its drop calls the
/// functions that [`behind_burst`] has left for its end.
#[derive(Debug)]
#[must_use = "the burst ends when it is dropped"]
pub struct Burst {
    /// A burst is its thread's.
    not_send: PhantomData<*const ()>,
}

impl Burst {
    /// Begins a burst. A thread is in one burst at a time.
    pub fn begin() -> Self {
        IN_BURST.with(|inside| inside.set(true));
        Self { not_send: PhantomData }
    }
}

impl Drop for Burst {
    fn drop(&mut self) {
        // A function that is called now, and registers another one, gets that called at once.
        IN_BURST.with(|inside| inside.set(false));
        let mut later = BEHIND_BURST.with(|later| mem::take(&mut *later.borrow_mut()));
        if later.is_empty() {
            return;
        }
        let _section = AtomicSection::enter("the end of a burst of completions");
        for f in later.drain(..) {
            if caught(f).is_none() {
                tracing::error!("a function behind a burst of completions panicked");
            }
        }
        // The memory is kept for the next burst.
        BEHIND_BURST.with(|kept| *kept.borrow_mut() = later);
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::*;

    #[test]
    fn behind_a_burst_all_is_called_that_was_left_and_outside_of_one_at_once() {
        let called = Rc::new(RefCell::new(Vec::new()));
        let call = |n: u32| {
            let called = Rc::clone(&called);
            behind_burst(move || called.borrow_mut().push(n));
        };
        call(1);
        assert_eq!(*called.borrow(), [1]);
        let burst = Burst::begin();
        call(2);
        behind_burst(|| panic!("on purpose"));
        let inner = Rc::clone(&called);
        behind_burst(move || behind_burst(move || inner.borrow_mut().push(3)));
        call(4);
        assert_eq!(*called.borrow(), [1]);
        drop(burst);
        assert_eq!(*called.borrow(), [1, 2, 3, 4]);
        call(5);
        assert_eq!(*called.borrow(), [1, 2, 3, 4, 5]);
    }
}
