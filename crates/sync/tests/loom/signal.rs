//! The event for one waiter under every interleaving: the waiter is woken, earlier writes are seen,
//! and one of the two sides learns that it is the last.

use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use corewise_sync::atomic::{AtomicUsize, Ordering};
use corewise_sync::{Parker, Signal, cell::UnsafeCell, model::must_fail, thread};

struct Shared {
    signal: Signal,
    /// Value that is written before the event, read after it, and written again by the last side.
    value: UnsafeCell<u32>,
}
// SAFETY: only the order that the signal gives keeps the accesses apart; that is what is modelled.
unsafe impl Sync for Shared {}

fn shared() -> Arc<Shared> {
    Arc::new(Shared { signal: Signal::new(), value: UnsafeCell::new(0) })
}

/// Writes, then completes.
fn complete(shared: &Shared) -> bool {
    // SAFETY: nobody reads before the event.
    shared.value.with_mut(|p| unsafe { *p = 7 });
    // SAFETY: the one completer.
    unsafe { Signal::complete(&shared.signal) }
}

#[test]
fn loom_a_thread_that_waits_is_woken_and_sees_what_was_written() {
    loom::model(|| {
        let shared = shared();
        let other = Arc::clone(&shared);
        let completer = thread::spawn(move || assert!(complete(&other)));
        // SAFETY: the one waiter.
        unsafe { shared.signal.wait(1) };
        // SAFETY: the writer is done: that is what the event says.
        assert_eq!(shared.value.with(|p| unsafe { *p }), 7);
        completer.join().unwrap();
    });
}

#[test]
fn loom_a_signal_that_isn_t_completed_leaves_its_waiter_asleep() {
    must_fail("loom_a_signal_that_isn_t_completed_leaves_its_waiter_asleep", || {
        loom::model(|| {
            let shared = shared();
            // SAFETY: the one waiter.
            unsafe { shared.signal.wait(1) };
        });
    });
}

/// A waker that counts. A parker's waker allocates, and the model needs no sleep to see that it was
/// woken.
struct Woken(AtomicUsize);
impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Release);
    }
}

#[test]
fn loom_the_waker_of_the_last_poll_is_woken() {
    loom::model(|| {
        let shared = shared();
        let other = Arc::clone(&shared);
        let completer = thread::spawn(move || assert!(complete(&other)));
        let woken = [(); 2].map(|()| Arc::new(Woken(AtomicUsize::new(0))));
        let mut last = Poll::Pending;
        for woken in &woken {
            let waker = Waker::from(Arc::clone(woken));
            // SAFETY: the one waiter.
            last = unsafe { shared.signal.poll_complete(&mut Context::from_waker(&waker)) };
            if last.is_ready() {
                break;
            }
        }
        completer.join().unwrap();
        if last.is_pending() {
            assert!(woken[1].0.load(Ordering::Acquire) > 0, "the last poll's task sleeps for ever");
        }
        assert!(shared.signal.is_complete());
        // SAFETY: the writer is done.
        assert_eq!(shared.value.with(|p| unsafe { *p }), 7);
    });
}

#[test]
fn loom_a_thread_may_wait_after_a_poll() {
    loom::model(|| {
        let shared = shared();
        let other = Arc::clone(&shared);
        let completer = thread::spawn(move || assert!(complete(&other)));
        let parker = Parker::new();
        let waker = parker.waker();
        // SAFETY: the one waiter.
        unsafe {
            let _ = shared.signal.poll_complete(&mut Context::from_waker(&waker));
            shared.signal.wait(0);
        }
        // SAFETY: the writer is done.
        assert_eq!(shared.value.with(|p| unsafe { *p }), 7);
        completer.join().unwrap();
    });
}

/// Ends the two sides at different times: exactly one learns that it is the last, and resets.
fn one_is_the_last(polls: bool) {
    let shared = shared();
    let other = Arc::clone(&shared);
    let completer = thread::spawn(move || {
        let last = !complete(&other);
        if last {
            // SAFETY: the last to use it.
            other.value.with_mut(|p| unsafe { *p = 0 });
            // SAFETY: as above.
            unsafe { other.signal.reset() };
        }
        last
    });
    let parker = Parker::new();
    let waker = parker.waker();
    if polls {
        // SAFETY: the one waiter.
        let _ = unsafe { shared.signal.poll_complete(&mut Context::from_waker(&waker)) };
    }
    // SAFETY: the one waiter, once.
    let last = unsafe { shared.signal.detach() };
    if last {
        // SAFETY: the last to use it.
        shared.value.with_mut(|p| unsafe { *p = 0 });
    }
    assert_ne!(last, completer.join().unwrap(), "one of the two is the last");
}

#[test]
fn loom_one_of_the_two_sides_is_told_that_it_is_the_last() {
    loom::model(|| one_is_the_last(false));
}

#[test]
fn loom_one_is_the_last_also_where_a_waker_was_stored() {
    loom::model(|| one_is_the_last(true));
}
