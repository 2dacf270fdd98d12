//! Futures on a queue: a work item that polls, and whose waker queues it again.
//!
//! The item's pending bit serves the waker. Any number of wake-ups before the poll become one poll
//! that sees all of them. A wake-up during the poll is accepted, and polls once more after. So
//! there is no queue of woken tasks beside the workqueue, and a woken future waits its turn among
//! the queue's other items.
//!
//! *Owner of a spawned future*: none, the worker that polls it, or none for good once it is over.
//! The item's own state word (`../task/state.rs`) excludes two polls at once, and [`FutureState`] a
//! poll and an abort. The thread that moves the word out of `IDLE` owns the future, until it gives
//! the future back.
//!
//! | value | meaning | next |
//! |---|---|---|
//! | `IDLE` | it waits, queued or not | `begin`: `POLLING`; `stop`: `OVER` |
//! | `POLLING` | its worker polls it | `pause`: `IDLE`; `finish`: `OVER`; `stop`: `STOPPING` |
//! | `STOPPING` | as `POLLING`, and it is to end after this poll | `pause`, `finish`: `OVER` |
//! | `OVER` | it is dropped, or about to be by the thread that came here | none |
//!
//! Beside `IDLE` and `POLLING` there is a bit `CLOSED`: the queue takes no wake-up any more.
//! `close` sets it, once, and it stays. A poll that is queued already still takes place. So after
//! the bit is set *and* the future is `IDLE`, a thread has to check whether a poll is still to
//! come. If none is, the thread has to `stop` the future. That is the thread that set the bit, if
//! it found `IDLE`, and each poller whose `pause` found the bit. No fence is needed between the bit
//! and the check. A poll clears the item's pending bit before it begins. If `close` comes after
//! that poll's `pause`, it acquires the poll's writes, and the check sees the bit cleared, or set
//! by a later wake-up. If `close` comes before the poll's `begin`, that poll's own `pause` finds
//! the bit. The check may miss a poll that is just about to begin (the pending bit is cleared, the
//! word still `IDLE`). Then the future is cancelled.

use std::any::Any;
use std::future::Future;
use std::panic::{self, AssertUnwindSafe, Location};
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Wake, Waker};

use corewise_sync::atomic::{AtomicU32, Ordering};
use corewise_sync::cell::UnsafeCell;
use corewise_sync::{Completion, Mutex};
use tracing::Span;

use crate::attributes::At;
use crate::error::{JoinError, shielded};
use crate::handle::join::{JoinHandle, Outcome};
use crate::pwq::Pwq;
use crate::pwq::waiting::{WaiterKey, Waits, stop_in_turn};
use crate::queue::Workqueue;
use crate::task::header::{Header, Item, ItemRef, Runs, TableOf};
use crate::task::running::{self, Running, Spawner};

impl Workqueue {
    /// Polls a future on the queue until it is ready; the handle yields its value. It takes one
    /// allocation.
    ///
    /// Each poll is one work item: it runs on a worker thread, and counts as queued and as running
    /// like any other. The future's home is the pod of the calling CPU. The future is polled there,
    /// from whichever thread it is woken, near its data. (A soft queue polls it elsewhere while
    /// that pod is saturated.)
    ///
    /// It works with futures of any runtime that need no driver of their own. Those of tokio's I/O
    /// and timers have to be created and polled inside a tokio context: see `Handle::enter` there.
    ///
    /// * [`Workqueue::flush`] waits for a queued poll, not for the future's end: a future that
    ///   waits isn't queued.
    /// * A poll that blocks holds up its worker as any item does: wrap it in
    ///   [`blocking`](crate::blocking).
    /// * If the pools are [shut down](crate::WorkerPools::shutdown), or the queue is
    ///   [destroyed](Workqueue::destroy), a waiting future is cancelled: it is dropped, and the
    ///   handle returns [`JoinError::Cancelled`]. A poll that is queued at that moment still takes
    ///   place.
    /// * The future is dropped before its handle wakes, on the worker that polled it last. If it is
    ///   [aborted](JoinHandle::abort) between two polls, the aborting thread drops it. If it is
    ///   cancelled, the thread that shuts the pools down or destroys the queue drops it, or a
    ///   thread that wakes it at that moment.
    /// * It keeps the queue, and with it the pools, until it is dropped.
    ///
    /// ```
    /// # use corewise_topology::Machine;
    /// # use corewise_workqueue::{WorkerPools, Workqueue};
    /// # let pools = WorkerPools::new(&Machine::live()?);
    /// let queue = Workqueue::builder("futures").build(&pools)?;
    /// let half = queue.spawn(|| 21);
    /// let whole = queue.spawn_future(async move { half.await.map(|n| 2 * n) });
    /// assert_eq!(whole.join()??, 42);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[track_caller]
    pub fn spawn_future<F>(&self, future: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        let site = Location::caller();
        let task = Arc::new_cyclic(|me| FutureTask {
            header: Header::new(&TableOf::<FutureTask<F>, F>::COUNTED),
            state: FutureState::new(),
            future: UnsafeCell::new(Some(future)),
            seat: UnsafeCell::new(None),
            value: Mutex::new(None),
            done: Completion::new(),
            queue: self.clone(),
            place: At::Here.settled(),
            site,
            spawner: Spawner::current(),
            me: Weak::clone(me),
        });
        task.queue(false);
        JoinHandle::counted(task)
    }
}

/// A future that can be spawned.
trait Spawned: Future<Output: Send + 'static> + Send + 'static {}

impl<F: Future<Output: Send + 'static> + Send + 'static> Spawned for F {}

/// A future, and the item that polls it.
#[repr(C)]
struct FutureTask<F: Future> {
    header: Header,
    state: FutureState,
    /// P: belongs to the thread that moved `state` out of `IDLE`, until that moves it back. Pinned:
    /// it is polled and dropped in place, and never moved out.
    future: UnsafeCell<Option<F>>,
    /// P: as `future`: its key in the queue's list of waiting futures.
    seat: UnsafeCell<Option<WaiterKey>>,
    /// L: is the lock; guards the value until the handle takes it.
    value: Mutex<Option<Result<F::Output, JoinError>>>,
    done: Completion,
    /// I: the queue that it goes to when it is woken.
    queue: Workqueue,
    place: At,
    /// I: the source line that spawned it.
    site: &'static Location<'static>,
    spawner: Spawner,
    /// I: the task itself, for its wakers. Weak: a future that no waker refers to any more is
    /// dropped.
    me: Weak<Self>,
}

// SAFETY: only their owner touches `future` and `seat`. `FutureState` makes at most one owner at a
// time, with acquire and release at each change of hands, so `F: Send` is enough. The value is
// behind a lock, so `F::Output: Send` is enough. The other fields are `Sync`.
unsafe impl<F: Future + Send> Sync for FutureTask<F> where F::Output: Send {}

impl<F: Spawned> FutureTask<F> {
    /// Queues a poll. `accepted`: the queue had accepted the future before, so a drain lets it come
    /// to its end.
    fn queue(self: &Arc<Self>, accepted: bool) {
        if self.state.is_over() {
            return;
        }
        let item = || ItemRef::counted(Arc::clone(self));
        let queued = self.queue.submit_with(self.place, &self.header, &item, self.site, accepted);
        // A poll is pending already, and sees the event behind this wake-up.
        if queued.is_err() {
            stop_in_turn(Arc::clone(self) as Arc<dyn Waits>);
        }
    }

    /// Registers a future that a poll left pending, so that the queue's end finds it. The future's
    /// owner calls this. If the queue has ended already, the end of the poll sees that.
    fn sit(&self) {
        self.seat.with_mut(|seat| {
            // SAFETY: the caller owns the future.
            let seat = unsafe { &mut *seat };
            if seat.is_some() {
                return;
            }
            // It is polled on this pwq, mostly always the same.
            let pod = running::current(|job| {
                job.and_then(Running::ticket).map(|ticket| Pwq::of(ticket).pool)
            });
            let me: Weak<dyn Waits> = Weak::clone(&self.me) as _;
            match self.queue.shared().waiting.sit(pod.unwrap_or(0), me) {
                Ok(taken) => *seat = Some(taken),
                Err(_) => {
                    self.state.close();
                }
            }
        });
    }

    /// Returns true if the future waits and its queue is closed, so that no poll is to come.
    fn is_left(&self) -> bool {
        !self.header.state.snapshot().pending()
    }

    /// Drops the future and gives the value to the handle. The future's owner calls this.
    fn end(&self, value: Result<F::Output, JoinError>) {
        self.let_go();
        *self.value.lock() = Some(value);
        self.done.complete();
    }
}

impl<F: Future> FutureTask<F> {
    /// Drops the future, which doesn't wait any more. Its owner calls this. A destructor's panic
    /// ends here.
    fn let_go(&self) {
        // SAFETY: the caller owns the future.
        let seat = self.seat.with_mut(|seat| unsafe { (*seat).take() });
        if let Some(seat) = seat {
            drop(self.queue.shared().waiting.leave(seat));
        }
        shielded("dropping a spawned future", || {
            // SAFETY: as above. It is dropped in place.
            self.future.with_mut(|slot| unsafe { *slot = None });
        });
    }
}

impl<F: Spawned> Waits for FutureTask<F> {
    fn shut(&self) -> bool {
        self.state.close() && self.is_left()
    }

    fn stop(&self) {
        if self.state.stop() {
            self.end(Err(JoinError::Cancelled));
        }
    }
}

impl<F: Spawned> Runs for FutureTask<F> {
    fn run(&self) {
        // A reference to the task exists while it runs, so the upgrade succeeds.
        let Some(me) = self.me.upgrade() else { return };
        if !self.state.begin() {
            return;
        }
        let waker = Waker::from(me);
        let mut cx = Context::from_waker(&waker);
        let polled = panic::catch_unwind(AssertUnwindSafe(|| {
            self.future.with_mut(|slot| {
                // SAFETY: `begin` made this worker the owner.
                let future = unsafe { &mut *slot }.as_mut().expect("it isn't over, so it is there");
                // SAFETY: the task lies in an `Arc` and is never moved, nor is the future moved out
                // of it. `end` drops it in place, and so does the task's own drop.
                unsafe { Pin::new_unchecked(future) }.poll(&mut cx)
            })
        }));
        let value = match polled {
            Ok(Poll::Pending) => {
                self.sit();
                match self.state.pause() {
                    PauseOutcome::Waits => return,
                    PauseOutcome::Closed => {
                        if self.is_left() {
                            self.stop();
                        }
                        return;
                    }
                    // It was stopped meanwhile.
                    PauseOutcome::Stopped => Err(JoinError::Cancelled),
                }
            }
            Ok(Poll::Ready(value)) => {
                self.state.finish();
                Ok(value)
            }
            Err(payload) => {
                self.state.finish();
                Err(JoinError::panicked(payload))
            }
        };
        self.end(value);
    }
}

// SAFETY: `repr(C)`; the header comes first, and is made in `spawn_future` only.
unsafe impl<F: Spawned> Item for FutureTask<F> {
    fn cancelled(&self) {
        self.stop();
    }

    fn panicked(&self, payload: Box<dyn Any + Send>) {
        // The panic isn't the future's own, which `run` catches: the future wasn't polled.
        if self.state.stop() {
            self.end(Err(JoinError::panicked(payload)));
        } else {
            corewise_sync::panics::discard(payload);
        }
    }

    fn spawner(&self) -> Option<&Span> {
        self.spawner.span()
    }
}

impl<F: Spawned> Wake for FutureTask<F> {
    fn wake(self: Arc<Self>) {
        self.queue(true);
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.queue(true);
    }
}

impl<F: Future> Drop for FutureTask<F> {
    fn drop(&mut self) {
        // No waker and no waiter of it is left. The last waker may be dropped anywhere.
        self.let_go();
    }
}

impl<F: Spawned> Outcome<F::Output> for FutureTask<F> {
    fn done(&self) -> &Completion {
        &self.done
    }

    fn take(&self) -> Option<Result<F::Output, JoinError>> {
        self.value.lock().take()
    }

    fn abort(&self) {
        self.stop();
    }
}

const IDLE: u32 = 0;
const POLLING: u32 = 1;
const STOPPING: u32 = 2;
const OVER: u32 = 3;
/// A flag beside `IDLE` and `POLLING`.
const CLOSED: u32 = 4;

/// The result of giving up a future that a poll didn't end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PauseOutcome {
    /// The future waits.
    Waits,
    /// The future waits, and its queue is closed: the caller checks whether a poll is still to
    /// come.
    Closed,
    /// The future is over, and the caller owns it.
    Stopped,
}

/// The word.
#[derive(Debug)]
pub(crate) struct FutureState {
    /// A: one of the values above. Each change that gives the future up is a release, each that
    /// takes it an acquire.
    word: AtomicU32,
}

impl FutureState {
    pub(crate) fn new() -> Self {
        FutureState { word: AtomicU32::new(IDLE) }
    }

    /// Returns true if the future is over (a moment ago).
    pub(crate) fn is_over(&self) -> bool {
        self.word.load(Ordering::Relaxed) == OVER
    }

    /// Claims the future for a poll: returns true if the caller owns it now. Two polls at once
    /// don't happen, since an item never runs on two workers.
    pub(crate) fn begin(&self) -> bool {
        let taken = self.change(|now| (now & !CLOSED == IDLE).then_some(now - IDLE + POLLING));
        debug_assert!(matches!(taken, Ok(_) | Err(OVER)));
        taken.is_ok()
    }

    /// Gives the future up after a poll that didn't end it, to be polled again unless it has been
    /// stopped. Its owner calls this.
    pub(crate) fn pause(&self) -> PauseOutcome {
        match self.change(|now| (now & !CLOSED == POLLING).then_some(now - POLLING + IDLE)) {
            Ok(was) if was & CLOSED == 0 => PauseOutcome::Waits,
            Ok(_) => PauseOutcome::Closed,
            Err(_) => {
                self.finish();
                PauseOutcome::Stopped
            }
        }
    }

    /// Marks the future's queue as closed. Returns true if the future waits, so that the caller has
    /// to check whether a poll is still to come. Else the thread that polls it checks.
    pub(crate) fn close(&self) -> bool {
        self.change(|now| matches!(now, IDLE | POLLING).then_some(now | CLOSED)) == Ok(IDLE)
    }

    /// Changes the state, and returns the previous one; returns the current one as an error if it
    /// stays.
    fn change(&self, next: impl FnMut(u32) -> Option<u32>) -> Result<u32, u32> {
        self.word.fetch_update(Ordering::AcqRel, Ordering::Acquire, next)
    }

    /// Marks the future as over. Its owner calls this.
    pub(crate) fn finish(&self) {
        self.word.store(OVER, Ordering::Release);
    }

    /// Marks the future to be stopped. Returns true if the caller owns it now, and has to end it.
    /// Returns false if a worker polls it, which ends it, or if it is over.
    pub(crate) fn stop(&self) -> bool {
        let was = self.change(|now| match now & !CLOSED {
            IDLE => Some(OVER),
            POLLING => Some(STOPPING),
            _ => None,
        });
        was.is_ok_and(|was| was & !CLOSED == IDLE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stop_between_two_polls_takes_the_future_and_no_poll_follows() {
        let state = FutureState::new();
        assert!(state.begin() && state.pause() == PauseOutcome::Waits);
        assert!(state.stop(), "it belongs to the one who stopped it");
        assert!(state.is_over() && !state.begin() && !state.stop());
    }

    #[test]
    fn a_stop_during_a_poll_leaves_the_future_to_the_poller() {
        let state = FutureState::new();
        assert!(state.begin());
        assert!(!state.stop() && !state.stop());
        assert!(!state.is_over());
        assert_eq!(state.pause(), PauseOutcome::Stopped, "it isn't polled again");
        assert!(state.is_over());
    }

    #[test]
    fn a_poll_that_ends_it_wins_over_a_stop() {
        let state = FutureState::new();
        assert!(state.begin());
        assert!(!state.stop());
        state.finish();
        assert!(state.is_over() && !state.stop());
    }

    #[test]
    fn closing_a_waiting_future_obliges_the_closer_to_look_and_else_its_poller() {
        let waits = FutureState::new();
        assert!(waits.close() && !waits.close());
        assert!(waits.begin(), "a poll that is queued already takes place");
        assert!(!waits.is_over());
        assert_eq!(waits.pause(), PauseOutcome::Closed);
        assert!(waits.stop() && waits.is_over());
        let polled = FutureState::new();
        assert!(polled.begin() && !polled.close());
        assert_eq!(polled.pause(), PauseOutcome::Closed);
        assert!(polled.begin() && !polled.stop());
        assert_eq!(polled.pause(), PauseOutcome::Stopped);
        assert!(polled.is_over() && !polled.close() && polled.is_over());
    }
}
