//! One-shot events: one thing happened ([`Completion`]), or n things did ([`Countdown`]).
//!
//! The state is one word with two bits, `DONE` and `WAITERS`. All changes are read-modify-writes of
//! that word, so the two sides see each other in its modification order and no fence is needed:
//!
//! ```text
//! complete                         register (under the lock of the waiters)
//! Finish: old = or DONE            Announce: old = or WAITERS
//! if old has WAITERS:              if old has DONE: don't sleep
//!   Take: lock, take, wake all     else push the waker
//! ```
//!
//! Either Finish comes first, then Announce sees `DONE`; or Announce does, then Finish sees
//! `WAITERS` and its Take waits for the lock under which the waker is pushed.
//! `tests/loom/completion.rs`.

use std::panic::{self, AssertUnwindSafe};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use crate::facade::atomic::{AtomicU32, AtomicUsize, Ordering};
use crate::facade::hint;
use crate::facade::lock::Mutex;
use crate::parker::Parker;
use crate::{context, panics, time};

/// Flag of an event that has happened.
const DONE: u32 = 1;
/// Flag of an event with a registered waker; never cleared.
const WAITERS: u32 = 2;

/// Number of checks before a waiter parks. A wake-up costs some microseconds, and a check some
/// nanoseconds: together about one wake-up's cost.
const SPINS: u32 = if hint::IN_MODEL { 1 } else { 128 };

/// A one-shot event that threads and futures can wait for. Share it in an `Arc`.
///
/// Everything that the completing thread did before [`Completion::complete`] is visible after a
/// wait.
#[derive(Debug)]
pub struct Completion {
    /// A: `DONE` and `WAITERS`.
    state: AtomicU32,
    /// L: is the lock; guards the wakers of the waiters. Boxed, so that events stay small: most
    /// have none.
    waiters: Mutex<Option<Box<Waiters>>>,
}

/// The waiters for an event. A single waiter takes one allocation.
#[derive(Debug)]
struct Waiters {
    first: Waker,
    more: Vec<Waker>,
}

impl Default for Completion {
    fn default() -> Self {
        Self::new()
    }
}

impl Completion {
    /// Creates an event that hasn't happened.
    #[inline]
    pub fn new() -> Self {
        Completion { state: AtomicU32::new(0), waiters: Mutex::new(None) }
    }

    /// Completes the event and wakes all waiters. Further calls do nothing. Any context; takes a
    /// short lock only if there are waiters. A waker that panics is logged, and keeps no other
    /// waiter asleep.
    #[inline]
    pub fn complete(&self) {
        // Finish. Release pairs with the Acquire loads of the waiters.
        let old = self.state.fetch_or(DONE, Ordering::AcqRel);
        if old & (DONE | WAITERS) == WAITERS {
            self.wake_all();
        }
    }

    fn wake_all(&self) {
        // Take.
        let waiters = self.waiters.lock().take();
        if let Some(waiters) = waiters {
            let Waiters { first, more } = *waiters;
            wake(first);
            more.into_iter().for_each(wake);
        }
    }

    /// Returns true if the event has happened. Then everything before it is visible.
    #[inline]
    pub fn is_complete(&self) -> bool {
        self.state.load(Ordering::Acquire) & DONE != 0
    }

    /// Waits. May block: inside an atomic section that is reported. On a worker thread the pool is
    /// notified and starts other work meanwhile; the waiter spins briefly, then parks.
    #[track_caller]
    pub fn wait(&self) {
        context::might_block("Completion::wait");
        if self.spin() {
            return;
        }
        context::blocking_reported(|| self.park(None));
    }

    /// Waits like [`Completion::wait`], for at most `timeout`. Returns true if the event happened.
    #[track_caller]
    #[must_use = "false: the time ran out"]
    pub fn wait_timeout(&self, timeout: Duration) -> bool {
        context::might_block("Completion::wait_timeout");
        if self.spin() {
            return true;
        }
        context::blocking_reported(|| self.park(time::now().checked_add(timeout)))
    }

    /// Polls the event for a future: ready if it has happened. Otherwise the task is woken when it
    /// happens.
    pub fn poll_complete(&self, cx: &mut Context<'_>) -> Poll<()> {
        if self.is_complete() || !self.register(cx.waker()) {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }

    /// Waits for about as long as a wake-up costs, without sleeping. Returns true if the event
    /// happened. For a thread that then waits in its own way.
    pub fn spin(&self) -> bool {
        for _ in 0..SPINS {
            if self.is_complete() {
                return true;
            }
            hint::spin_loop();
        }
        self.is_complete()
    }

    fn park(&self, deadline: Option<Instant>) -> bool {
        let parker = Parker::new();
        if !self.register(&parker.waker()) {
            return true;
        }
        while !self.is_complete() {
            match deadline {
                None => parker.park(),
                Some(end) => match end.saturating_duration_since(time::now()) {
                    // The check comes at the very end, too: a model's clock stands still there.
                    Duration::ZERO => {
                        self.forget(&parker.waker());
                        return self.is_complete();
                    }
                    left => {
                        parker.park_timeout(left);
                    }
                },
            }
        }
        true
    }

    /// Registers a waker. Returns false if the event has happened meanwhile and nothing was
    /// registered.
    fn register(&self, waker: &Waker) -> bool {
        // Cloned, and dropped if it isn't needed, outside the lock: both may be user code.
        let mut own = Some(waker.clone());
        let mut waiters = self.waiters.lock();
        // Announce. Acquire: if DONE is seen, the completer's writes are too.
        if self.state.fetch_or(WAITERS, Ordering::AcqRel) & DONE != 0 {
            return false;
        }
        match &mut *waiters {
            None => {
                *waiters = own.take().map(|first| Box::new(Waiters { first, more: Vec::new() }))
            }
            Some(there) => {
                if !there.first.will_wake(waker) && !there.more.iter().any(|w| w.will_wake(waker)) {
                    there.more.extend(own.take());
                }
            }
        }
        drop(waiters);
        true
    }

    /// Removes the waker of a waiter whose time ran out.
    fn forget(&self, waker: &Waker) {
        let mut waiters = self.waiters.lock();
        let Some(there) = &mut *waiters else { return };
        there.more.retain(|w| !w.will_wake(waker));
        if there.first.will_wake(waker) {
            if there.more.is_empty() {
                *waiters = None;
            } else {
                there.first = there.more.remove(0);
            }
        }
    }
}

/// Wakes one waiter. Its waker may be a user's and panic: the waiters after it are to be woken as
/// well, and the completer isn't responsible for it.
pub(crate) fn wake(waker: Waker) {
    if hint::IN_MODEL {
        // In a model, a panic is the verdict.
        return waker.wake();
    }
    if let Err(payload) = panic::catch_unwind(AssertUnwindSafe(|| waker.wake())) {
        panics::discard(payload);
        // The log's subscriber is user code, too.
        let told = panic::catch_unwind(|| tracing::error!("a waker panicked"));
        told.unwrap_or_else(panics::discard);
    }
}

/// Completes when [`Countdown::done`] has been called `n` times.
///
/// Everything that each caller of `done` did before is visible after a wait: the decrements form
/// one release sequence, which the last of them acquires.
#[derive(Debug)]
pub struct Countdown {
    /// A: the number of missing calls.
    left: AtomicUsize,
    all: Completion,
}

impl Countdown {
    /// Creates a countdown of `n` calls; 0 is complete at once.
    pub fn new(n: usize) -> Self {
        let countdown = Countdown { left: AtomicUsize::new(n), all: Completion::new() };
        if n == 0 {
            countdown.all.complete();
        }
        countdown
    }

    /// Counts one call. Returns true for the last. Any context.
    ///
    /// # Panics
    /// If it is called more than `n` times: the count is then wrong for good.
    pub fn done(&self) -> bool {
        // AcqRel: releases this caller's writes, and the last caller acquires those of all.
        let before = self.left.fetch_sub(1, Ordering::AcqRel);
        assert!(before != 0, "Countdown::done called more often than it counts");
        if before == 1 {
            self.all.complete();
        }
        before == 1
    }

    /// Returns the number of missing calls, as of a moment ago.
    pub fn remaining(&self) -> usize {
        self.left.load(Ordering::Acquire)
    }

    /// Waits for all calls, like [`Completion::wait`].
    #[track_caller]
    pub fn wait(&self) {
        self.all.wait();
    }

    /// Waits for all calls, for at most `timeout`, like [`Completion::wait_timeout`].
    #[track_caller]
    #[must_use = "false: the time ran out"]
    pub fn wait_timeout(&self, timeout: Duration) -> bool {
        self.all.wait_timeout(timeout)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn waiting_after_it_happened_returns_at_once() {
        let event = Completion::new();
        event.complete();
        event.complete();
        event.wait();
        assert!(event.wait_timeout(Duration::ZERO));
    }

    #[test]
    fn a_wait_that_times_out_leaves_no_waker_behind() {
        let event = Completion::new();
        assert!(!event.wait_timeout(Duration::from_millis(1)));
        assert!(event.waiters.lock().is_none());
    }

    #[test]
    fn the_first_to_wait_may_leave_first_and_the_others_are_woken() {
        let event = Arc::new(Completion::new());
        let parkers = [Parker::new(), Parker::new(), Parker::new()];
        for parker in &parkers {
            assert!(event.register(&parker.waker()) && event.register(&parker.waker()));
        }
        event.forget(&parkers[0].waker());
        event.forget(&parkers[2].waker());
        event.complete();
        assert!(!parkers[0].try_park() && parkers[1].try_park() && !parkers[2].try_park());
        assert!(event.waiters.lock().is_none());
    }

    #[test]
    fn a_countdown_completes_with_the_last_and_names_it() {
        let countdown = Countdown::new(2);
        assert!(!countdown.done());
        assert!(!countdown.all.is_complete());
        assert!(countdown.done());
        countdown.wait();
        assert!(Countdown::new(0).all.is_complete());
    }

    #[test]
    #[should_panic(expected = "more often")]
    fn a_countdown_counts_no_further_than_zero() {
        Countdown::new(0).done();
    }

    #[test]
    fn a_poll_registers_once_and_is_woken() {
        use crate::facade::atomic::AtomicUsize;
        use std::task::Wake;
        struct Count(AtomicUsize);
        impl Wake for Count {
            fn wake(self: Arc<Self>) {
                self.0.fetch_add(1, Ordering::Relaxed);
            }
        }
        let count = Arc::new(Count(AtomicUsize::new(0)));
        let waker = Waker::from(Arc::clone(&count));
        let mut cx = Context::from_waker(&waker);
        let event = Completion::new();
        assert!(event.poll_complete(&mut cx).is_pending());
        assert!(event.poll_complete(&mut cx).is_pending());
        event.complete();
        assert_eq!(count.0.load(Ordering::Relaxed), 1);
        assert!(event.poll_complete(&mut cx).is_ready());
    }

    #[test]
    fn a_waker_that_panics_keeps_no_other_waiter_asleep() {
        use std::task::Wake;
        struct Bomb;
        impl Wake for Bomb {
            fn wake(self: Arc<Self>) {
                panic!("on purpose, in wake");
            }
        }
        let event = Arc::new(Completion::new());
        let bomb = Waker::from(Arc::new(Bomb));
        assert!(event.poll_complete(&mut Context::from_waker(&bomb)).is_pending());
        let parker = Parker::new();
        let waker = parker.waker();
        assert!(event.poll_complete(&mut Context::from_waker(&waker)).is_pending());
        let completer = {
            let event = Arc::clone(&event);
            std::thread::spawn(move || event.complete())
        };
        let completed = completer.join();
        assert!(parker.park_timeout(Duration::ZERO), "the token is there");
        assert!(completed.is_ok(), "and the waker's panic is no business of the completer's");
    }

    #[test]
    fn a_wait_in_an_atomic_section_is_one_violation() {
        let before = context::violations();
        let event = Completion::new();
        let section = context::AtomicSection::enter("test");
        assert!(!event.wait_timeout(Duration::ZERO));
        drop(section);
        assert_eq!(context::violations(), before + 1);
    }
}
