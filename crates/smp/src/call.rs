//! A call to one CPU: the handle that waits for it.

use corewise_topology::{CpuId, current_cpu};
use std::fmt;
use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll};

use crate::cells::Waiting;
use crate::error::CallFailed;
use crate::watch;

/// A call that was accepted. Wait for it, await it, or drop it: the function runs in any case.
///
/// The wait set belongs to this call alone. Waiting gives the core back: it spins for less than a
/// wake-up costs, then parks inside a [blocking region](corewise_sync::context::blocking), so on a
/// worker the pool starts other work; as a future nothing is held at all.
///
/// A value that nobody takes is dropped by the side that lets go of the call last: the caller, or the
/// target inside its handler.
#[must_use = "the call runs in any case, but its answer is lost unless it is waited for"]
pub struct Call<R> {
    cpu: CpuId,
    state: State<R>,
}

enum State<R> {
    /// Ran in place.
    Here(Result<R, CallFailed>),
    Sent(Waiting<R>),
    /// The answer was taken.
    Gone,
}

// The value is never pinned: it is moved out of its slot when it is there.
impl<R> Unpin for Call<R> {}

impl<R> Call<R> {
    pub(crate) fn here(cpu: CpuId, answer: Result<R, CallFailed>) -> Self {
        Call { cpu, state: State::Here(answer) }
    }

    pub(crate) fn sent(cpu: CpuId, waiting: Waiting<R>) -> Self {
        Call { cpu, state: State::Sent(waiting) }
    }

    /// The CPU that was called.
    pub fn cpu(&self) -> CpuId {
        self.cpu
    }

    /// Whether the answer is there, so that [`Call::wait`] returns at once.
    pub fn is_complete(&self) -> bool {
        match &self.state {
            State::Here(_) | State::Gone => true,
            State::Sent(waiting) => waiting.cell().signal().is_complete(),
        }
    }

    /// Waits for the answer. Its writes are visible after.
    ///
    /// May block: inside an atomic section (a handler) that is reported, and two CPUs that wait for
    /// each other there never end. A call that a handler made to its own CPU has run already,
    /// so waiting for that one is fine.
    ///
    /// # Errors
    /// The function panicked, or nobody steps that CPU's target any more.
    #[track_caller]
    pub fn wait(mut self) -> Result<R, CallFailed> {
        self.wait_over();
        self.take().expect("a call is answered once, and only its one handle takes the answer")
    }

    /// Waits until the answer is there, and leaves it there.
    #[track_caller]
    pub(crate) fn wait_over(&self) {
        if let State::Sent(waiting) = &self.state {
            // SAFETY: the call's one handle, which is not shared with another waiter.
            unsafe { watch::wait(waiting.cell(), current_cpu() == Some(self.cpu)) };
        }
    }

    /// The answer, where it is there and wasn't taken yet.
    fn take(&mut self) -> Option<Result<R, CallFailed>> {
        if !self.is_complete() {
            return None;
        }
        match mem::replace(&mut self.state, State::Gone) {
            State::Here(answer) => Some(answer),
            // SAFETY: complete.
            State::Sent(waiting) => Some(unsafe { waiting.into_answer() }),
            State::Gone => None,
        }
    }
}

impl<R> Future for Call<R> {
    type Output = Result<R, CallFailed>;

    /// # Panics
    /// Where it is polled again after it was ready.
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let call = self.get_mut();
        if let State::Sent(waiting) = &call.state {
            // SAFETY: the call's one handle, borrowed uniquely.
            if unsafe { watch::poll(waiting.cell(), cx) }.is_pending() {
                return Poll::Pending;
            }
        }
        Poll::Ready(call.take().expect("a call was polled after it had returned its answer"))
    }
}

impl<R> fmt::Debug for Call<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Call")
            .field("cpu", &self.cpu)
            .field("complete", &self.is_complete())
            .finish_non_exhaustive()
    }
}
