//! A one-shot event for one waiter, a thread or a task. It allocates nothing and can be reused.
//!
//! The state is one word, and every change of it is a read-modify-write. So the two sides meet in
//! its modification order and no fence is needed:
//!
//! | bits | meaning | set by | cleared by |
//! |---|---|---|---|
//! | (none) | nobody waits yet | | |
//! | `SLEEPING` | a thread sleeps on the word, or is about to | waiter | waiter, `Finish` |
//! | `WAKER` | there is a waker in the slot | waiter | waiter (`Unstore`), `Claim` |
//! | `TAKING` | the completer takes the waker out of the slot | `Claim` | `Finish` |
//! | `DETACHED` | the waiter has left | waiter | `Finish` |
//! | `DONE` | it happened | `Finish` | reset |
//!
//! ```text
//! complete                                  wait
//! Claim: where WAKER: TAKING, take waker    Announce: or SLEEPING, unless DONE
//! Finish: old = DONE in one RMW             Sleep: while SLEEPING
//! Wake: the waker; the sleeper, if old
//!   has SLEEPING                            poll
//!                                           Store: put the waker, then CAS to WAKER,
//!                                             unless DONE: Unstore
//!                                             while TAKING: wake oneself
//! ```
//!
//! The completer owns the slot while `TAKING` is set, the waiter while neither `TAKING` nor `WAKER`
//! is. The word shows the side that comes last, `complete` or `detach`, that it is the last: that
//! side may free the event's memory. `tests/loom/signal.rs` checks this. (The waker's part follows
//! the `AtomicWaker` of the futures crate.)

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use crate::completion::wake;
use crate::facade::atomic::Ordering;
use crate::facade::backend::FutexWord as Futex;
use crate::facade::cell::UnsafeCell;
use crate::facade::hint;
use crate::{context, panics, time};

const SLEEPING: u32 = 1;
const WAKER: u32 = 2;
const TAKING: u32 = 4;
const DETACHED: u32 = 8;
const DONE: u32 = 16;

/// A one-shot event that one side completes and one other side waits for. The module's
/// documentation has the differences to a [`Completion`](crate::Completion), which many can wait
/// for.
///
/// Everything that the completing thread did before [`Signal::complete`] is visible after a wait.
pub struct Signal {
    /// A: the bits of the module's table.
    state: Futex,
    /// P: the completer's while `TAKING` is set, no thread's while `WAKER` is, else the waiter's.
    slot: UnsafeCell<Option<Waker>>,
}

// SAFETY: the slot is reached by one side at a time, as the bits say; wakers may be sent and
// shared.
unsafe impl Sync for Signal {}

impl Default for Signal {
    fn default() -> Self {
        Self::new()
    }
}

impl Signal {
    /// Creates an event that hasn't happened.
    #[inline]
    pub fn new() -> Self {
        Signal { state: Futex::new(0), slot: UnsafeCell::new(None) }
    }

    /// Resets the event to one that hasn't happened.
    ///
    /// # Safety
    /// No other thread uses the event, and their uses happen before: the caller is the last user
    /// (see [`Signal::complete`]), or has seen as its waiter that it happened.
    #[inline]
    pub unsafe fn reset(&self) {
        // A `Finish` cleared the other bits, and took the waker out. Relaxed: the next user gets
        // the event by an operation that orders.
        self.state.word.store(0, Ordering::Relaxed);
    }

    /// Completes the event and wakes the waiter. Returns true if there is a waiter, or one may yet
    /// come. Returns false if it has [detached](Signal::detach): the caller is then the last user.
    /// Never blocks; any context. After a true the waiter may free the event at any moment, even
    /// before this returns. The caller ensures that the memory stays mapped until then.
    ///
    /// The event is passed by address, since a reference would have to be valid until this returns.
    ///
    /// # Safety
    /// `this` is valid until the event is complete. This is called once between creations or
    /// resets.
    #[inline]
    pub unsafe fn complete(this: *const Signal) -> bool {
        // SAFETY: valid until the exchange, which uses a reference to the word's cell alone.
        let word = unsafe { &(*this).state.word };
        // Finish, for the common case in which the waiter has done nothing yet. Release pairs with
        // the Acquire of the waiter.
        match word.compare_exchange(0, DONE, Ordering::Release, Ordering::Relaxed) {
            Ok(_) => true,
            // SAFETY: not complete yet.
            Err(now) => unsafe { Signal::complete_slowly(this, now) },
        }
    }

    /// Completes an event whose waiter has announced itself.
    ///
    /// # Safety
    /// See [`Signal::complete`].
    #[cold]
    unsafe fn complete_slowly(this: *const Signal, mut now: u32) -> bool {
        // SAFETY: valid until it is complete, and mapped for longer.
        let (state, slot) = unsafe { (&(*this).state, &(*this).slot) };
        let mut waker = None;
        loop {
            let claims = now & WAKER != 0;
            let next = if claims { now & !WAKER | TAKING } else { DONE };
            // Acquire: if there is a waker, or the waiter has detached, its earlier writes are
            // visible.
            let (success, failure) = (Ordering::AcqRel, Ordering::Relaxed);
            match state.word.compare_exchange(now, next, success, failure) {
                Ok(_) if claims => {
                    // SAFETY: TAKING makes the slot ours.
                    waker = slot.with_mut(|slot| unsafe { (*slot).take() });
                    now = next;
                }
                Ok(_) => break,
                Err(found) => now = found,
            }
        }
        // Wake. The event may be gone: `wake` only uses its address.
        if now & SLEEPING != 0 {
            state.wake();
        }
        if let Some(waker) = waker {
            wake(waker);
        }
        now & DETACHED == 0
    }

    /// Returns true if the event has happened. Then everything before it is visible.
    #[inline]
    pub fn is_complete(&self) -> bool {
        self.state.word.load(Ordering::Acquire) & DONE != 0
    }

    /// Checks up to `looks` times whether the event has happened.
    #[inline]
    pub fn spin(&self, looks: u32) -> bool {
        for _ in 0..looks {
            if self.is_complete() {
                return true;
            }
            hint::spin_loop();
        }
        self.is_complete()
    }

    /// Waits: checks `looks` times, then sleeps. May block: inside an atomic section that is
    /// reported. On a worker thread the pool is notified before the thread sleeps.
    ///
    /// # Safety
    /// No other thread waits, polls or detaches meanwhile.
    #[inline]
    #[track_caller]
    pub unsafe fn wait(&self, looks: u32) {
        // SAFETY: the caller's promise.
        unsafe { self.wait_after(|| self.spin(looks), None) };
    }

    /// Waits like [`Signal::wait`], for at most `timeout` after the last check. Returns true if the
    /// event happened.
    ///
    /// # Safety
    /// See [`Signal::wait`].
    #[inline]
    #[track_caller]
    pub unsafe fn wait_timeout(&self, looks: u32, timeout: Duration) -> bool {
        // SAFETY: the caller's promise.
        unsafe { self.wait_after(|| self.spin(looks), Some(timeout)) }
    }

    /// Waits like [`Signal::wait_timeout`], for a waiter that spins in its own way: `spin` returns
    /// whether it has seen the event.
    ///
    /// # Safety
    /// See [`Signal::wait`].
    #[inline]
    #[track_caller]
    pub unsafe fn wait_after(
        &self,
        spin: impl FnOnce() -> bool,
        timeout: Option<Duration>,
    ) -> bool {
        context::might_block("Signal::wait");
        // SAFETY: the caller's promise.
        spin() || unsafe { self.wait_on(timeout) }
    }

    /// Continues to sleep after a wait that timed out: this reports no second violation. `None`:
    /// without a timeout.
    ///
    /// # Safety
    /// See [`Signal::wait`].
    pub unsafe fn wait_on(&self, timeout: Option<Duration>) -> bool {
        context::blocking_reported(|| {
            self.sleep(timeout.and_then(|timeout| time::now().checked_add(timeout)))
        })
    }

    /// Sleeps until the event or the deadline. The caller is the one waiter.
    #[cold]
    fn sleep(&self, deadline: Option<Instant>) -> bool {
        let mut now = self.unstore();
        loop {
            if now & DONE != 0 {
                return true;
            }
            let left = match deadline {
                None => None,
                Some(end) => match end.checked_duration_since(time::now()) {
                    Some(left) if !left.is_zero() => Some(left),
                    // SLEEPING may stay: it costs the completer a useless wake-up, and costs later
                    // waits nothing.
                    _ => return self.is_complete(),
                },
            };
            if now & SLEEPING == 0 {
                // Announce. Acquire as in `is_complete`.
                let next = now | SLEEPING;
                let (success, failure) = (Ordering::Relaxed, Ordering::Acquire);
                if let Err(found) = self.state.word.compare_exchange(now, next, success, failure) {
                    now = found;
                    continue;
                }
                now = next;
            }
            self.state.wait(now, left);
            now = self.state.word.load(Ordering::Acquire);
        }
    }

    /// Polls the event for a future: ready if it has happened. Otherwise the task is woken when it
    /// happens. The waker of the last poll counts.
    ///
    /// # Safety
    /// See [`Signal::wait`].
    pub unsafe fn poll_complete(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut now = self.unstore();
        loop {
            if now & DONE != 0 {
                return Poll::Ready(());
            }
            if now & TAKING != 0 {
                // The completer is about to finish, and owns the slot.
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            // Store. Outside the closure, since clone and drop are user code.
            let own = Some(cx.waker().clone());
            // SAFETY: neither WAKER nor TAKING, and only the waiter sets the one that leads to the
            // other.
            let old = self.slot.with_mut(|slot| unsafe { std::mem::replace(&mut *slot, own) });
            drop(old);
            // Release pairs with the Acquire of Claim.
            match self.state.word.compare_exchange(now, WAKER, Ordering::Release, Ordering::Acquire)
            {
                Ok(_) => return Poll::Pending,
                Err(found) => {
                    // SAFETY: as above.
                    drop(self.slot.with_mut(|slot| unsafe { (*slot).take() }));
                    now = found;
                }
            }
        }
    }

    /// Detaches the waiter for ever. Returns true if the event has happened: the caller is then the
    /// last user. Otherwise the completer will be. Never blocks.
    ///
    /// # Safety
    /// See [`Signal::wait`]. No thread waits, polls or detaches until the event is reset.
    pub unsafe fn detach(&self) -> bool {
        if self.unstore() & DONE != 0 {
            return true;
        }
        // Acquire: if the event has happened, everything before it is visible. Release: the
        // waiter's writes happen before the actions of the completer as the last user.
        self.state.word.swap(DETACHED, Ordering::AcqRel) & DONE != 0
    }

    /// Takes back the waker of an earlier poll, if there is one, and returns the word without it
    /// (Unstore).
    fn unstore(&self) -> u32 {
        let now = self.state.word.load(Ordering::Acquire);
        if now & WAKER == 0 {
            return now;
        }
        match self.state.word.compare_exchange(
            now,
            now & !WAKER,
            Ordering::Acquire,
            Ordering::Acquire,
        ) {
            Ok(_) => {
                // SAFETY: neither WAKER nor TAKING, and only the waiter sets the one that leads to
                // the other.
                drop_quietly(self.slot.with_mut(|slot| unsafe { (*slot).take() }));
                now & !WAKER
            }
            // The waker was claimed meanwhile.
            Err(found) => found,
        }
    }
}

/// Drops a waker, which is user code: a panic doesn't keep the waiter from leaving.
fn drop_quietly(waker: Option<Waker>) {
    if hint::IN_MODEL {
        // In a model, a panic is the verdict.
        return drop(waker);
    }
    catch_unwind(AssertUnwindSafe(|| drop(waker))).unwrap_or_else(panics::discard);
}

impl fmt::Debug for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Signal").field("complete", &self.is_complete()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parker::Parker;
    use std::sync::Arc;

    #[test]
    fn a_signal_is_completed_waited_for_and_reused() {
        let signal = Signal::new();
        for _ in 0..3 {
            assert!(!signal.spin(3));
            // SAFETY: one thread is both sides.
            unsafe {
                assert!(Signal::complete(&signal));
                signal.wait(0);
                assert!(signal.wait_timeout(0, Duration::ZERO));
                signal.reset();
            }
        }
    }

    #[test]
    fn a_wait_that_times_out_can_be_followed_by_another_and_by_a_poll() {
        let signal = Signal::new();
        let parker = Parker::new();
        let waker = parker.waker();
        // SAFETY: one thread is both sides.
        unsafe {
            assert!(!signal.wait_timeout(1, Duration::from_millis(1)));
            assert!(signal.poll_complete(&mut Context::from_waker(&waker)).is_pending());
            assert!(signal.poll_complete(&mut Context::from_waker(&waker)).is_pending());
            assert!(!signal.wait_timeout(1, Duration::from_millis(1)));
            assert!(signal.poll_complete(&mut Context::from_waker(&waker)).is_pending());
            assert!(Signal::complete(&signal));
            assert!(parker.try_park(), "the waker was woken");
            assert!(signal.poll_complete(&mut Context::from_waker(&waker)).is_ready());
        }
    }

    #[test]
    fn the_last_to_arrive_is_told_so() {
        // SAFETY: one thread is both sides, each ends once in a life.
        unsafe {
            let signal = Signal::new();
            assert!(!signal.detach());
            assert!(!Signal::complete(&signal), "the completer is the last");
            signal.reset();
            assert!(Signal::complete(&signal));
            assert!(signal.detach(), "the waiter is the last");
            signal.reset();
            let parker = Parker::new();
            assert!(signal.poll_complete(&mut Context::from_waker(&parker.waker())).is_pending());
            assert!(!signal.detach());
            assert!(!Signal::complete(&signal));
            assert!(!parker.try_park(), "who has left isn't woken");
        }
    }

    #[test]
    fn a_waker_whose_drop_panics_keeps_nobody_from_leaving() {
        struct Bomb;
        impl std::task::Wake for Bomb {
            fn wake(self: Arc<Self>) {}
        }
        impl Drop for Bomb {
            fn drop(&mut self) {
                panic!("on purpose, in a waker's drop");
            }
        }
        let signal = Signal::new();
        let waker = Waker::from(Arc::new(Bomb));
        // SAFETY: one thread is both sides.
        unsafe {
            assert!(signal.poll_complete(&mut Context::from_waker(&waker)).is_pending());
            // Now the one in the signal is the last.
            drop(waker);
            assert!(!signal.detach());
            assert!(!Signal::complete(&signal), "it was told that the waiter has left");
        }
    }

    #[test]
    fn a_sleeping_thread_is_woken() {
        let signal = Arc::new(Signal::new());
        let other = Arc::clone(&signal);
        // SAFETY: this thread alone waits, the other alone completes.
        let completer = std::thread::spawn(move || unsafe { Signal::complete(&*other) });
        // SAFETY: as above.
        unsafe { signal.wait(0) };
        assert!(completer.join().unwrap());
    }

    #[test]
    fn a_wait_in_an_atomic_section_is_one_violation() {
        let before = context::violations();
        let signal = Signal::new();
        let section = context::AtomicSection::enter("test");
        // SAFETY: no other thread has it.
        assert!(!unsafe { signal.wait_timeout(0, Duration::ZERO) });
        drop(section);
        assert_eq!(context::violations(), before + 1);
    }
}
