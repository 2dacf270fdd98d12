//! The handles of calls: that of a call to one CPU, and that of a call to many, which waits for all
//! of these and has their answers.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::{fmt, mem};

use corewise_topology::{CpuId, CpuSet, current_cpu};

use crate::cells::{Answers, AnswersIter, Waiting, WaitingForMany};
use crate::error::{CallFailed, SkipReason};
use crate::watch;

/// An accepted call. Wait for it, await it, or drop it: the function runs in any case.
///
/// The wait set belongs to this call alone. Waiting gives the core back: it spins for less than a
/// wake-up costs, then parks inside a [blocking region](corewise_sync::context::blocking), so on a
/// worker the pool starts other work. A future holds no thread at all.
///
/// The side that releases the call last drops a value that isn't taken: the caller, or the target
/// inside its handler.
#[must_use = "the call runs in any case, but its answer is lost unless it is waited for"]
pub struct Call<R> {
    cpu: CpuId,
    state: CallState<R>,
}

enum CallState<R> {
    /// The call was run in place.
    Here(Result<R, CallFailed>),
    Sent(Waiting<R>),
    /// The answer was taken.
    Gone,
}

// The value is never pinned: it is moved out of its slot once it is there.
impl<R> Unpin for Call<R> {}

impl<R> Call<R> {
    pub(crate) fn here(cpu: CpuId, answer: Result<R, CallFailed>) -> Self {
        Call { cpu, state: CallState::Here(answer) }
    }

    pub(crate) fn sent(cpu: CpuId, waiting: Waiting<R>) -> Self {
        Call { cpu, state: CallState::Sent(waiting) }
    }

    /// Returns the CPU that was called.
    pub fn cpu(&self) -> CpuId {
        self.cpu
    }

    /// Returns true if the answer is there, so that [`Call::wait`] returns at once.
    pub fn is_complete(&self) -> bool {
        match &self.state {
            CallState::Here(_) | CallState::Gone => true,
            CallState::Sent(waiting) => waiting.cell().signal().is_complete(),
        }
    }

    /// Waits for the answer. The function's writes are visible after.
    ///
    /// May block: inside an atomic section (a handler) that is reported, and two CPUs that wait for
    /// each other there never end. A call that a handler made to its own CPU has run already, so it
    /// may be waited for.
    ///
    /// # Errors
    /// An error if the function panicked, or no thread steps that CPU's target any more.
    #[track_caller]
    pub fn wait(mut self) -> Result<R, CallFailed> {
        self.wait_over();
        self.take().expect("a call is answered once, and only its one handle takes the answer")
    }

    /// Waits until the answer is there, and leaves it there.
    #[track_caller]
    pub(crate) fn wait_over(&self) {
        if let CallState::Sent(waiting) = &self.state {
            // SAFETY: the call's one handle, which is not shared with another waiter.
            unsafe { watch::wait(waiting.cell(), current_cpu() == Some(self.cpu)) };
        }
    }

    /// Takes the answer, if it is there and wasn't taken yet.
    fn take(&mut self) -> Option<Result<R, CallFailed>> {
        if !self.is_complete() {
            return None;
        }
        match mem::replace(&mut self.state, CallState::Gone) {
            CallState::Here(answer) => Some(answer),
            // SAFETY: complete.
            CallState::Sent(waiting) => Some(unsafe { waiting.into_answer() }),
            CallState::Gone => None,
        }
    }
}

impl<R> Future for Call<R> {
    type Output = Result<R, CallFailed>;

    /// Polls for the answer.
    ///
    /// # Panics
    /// Panics if it is polled again after it was ready.
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let call = self.get_mut();
        if let CallState::Sent(waiting) = &call.state {
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

/// A CPU that a call to many didn't reach. The function doesn't run there, and the call doesn't
/// wait for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Skipped {
    /// The CPU.
    pub cpu: CpuId,
    /// The reason.
    pub reason: SkipReason,
}

/// The CPUs that a call to many reached, and those that it skipped.
#[must_use = "it says which CPUs were left out"]
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Reach {
    /// CPUs on which the function runs.
    pub reached: CpuSet,
    /// CPUs on which it doesn't run, in CPU order.
    pub skipped: Vec<Skipped>,
}

/// A call to many CPUs. Wait for it, await it, or drop it: the function runs in any case, on each
/// CPU that was reached. [`Call`](crate::Call) describes the cost of waiting.
#[must_use = "the call runs in any case, but its answers are lost unless it is waited for"]
pub struct ManyCall<R> {
    /// The call; `None` once the future was ready.
    waiting: Option<WaitingForMany<R>>,
    skipped: Vec<Skipped>,
}

// The values are never pinned: they are moved out of their cells once they are there.
impl<R> Unpin for ManyCall<R> {}

/// The result of a call to many.
#[must_use = "it says which CPUs were left out, and which calls panicked"]
#[derive(Debug)]
#[non_exhaustive]
pub struct ManyAnswers<R> {
    /// Values that the function returned, one for each CPU that was reached, in CPU order.
    pub values: Values<R>,
    /// The CPUs that weren't reached.
    pub skipped: Vec<Skipped>,
}

impl<R> ManyAnswers<R> {
    /// Returns the values alone.
    ///
    /// # Errors
    /// The first failure, if a function panicked or its CPU's target was abandoned. CPUs that were
    /// skipped are no failure.
    pub fn into_values(self) -> Result<Vec<(CpuId, R)>, CallFailed> {
        self.values.map(|(cpu, answer)| answer.map(|value| (cpu, value))).collect()
    }
}

/// Values of a function by CPU, or the reason why there is none; in CPU order. They still lie where
/// the targets put them, so nothing was allocated for them; dropping this drops them.
pub struct Values<R> {
    answers: Answers<R>,
    len: usize,
}

impl<R> Values<R> {
    /// Returns the number of CPUs that have answered and weren't taken out yet.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if there is none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns an iterator over each CPU and its answer.
    pub fn iter(&self) -> ValuesIter<'_, R> {
        ValuesIter { answers: self.answers.iter() }
    }
}

impl<'a, R> IntoIterator for &'a Values<R> {
    type Item = &'a (CpuId, Result<R, CallFailed>);
    type IntoIter = ValuesIter<'a, R>;

    fn into_iter(self) -> ValuesIter<'a, R> {
        self.iter()
    }
}

/// An iterator over each CPU and its answer, from [`Values::iter`].
pub struct ValuesIter<'a, R> {
    answers: AnswersIter<'a, R>,
}

impl<'a, R> Iterator for ValuesIter<'a, R> {
    type Item = &'a (CpuId, Result<R, CallFailed>);

    fn next(&mut self) -> Option<Self::Item> {
        self.answers.next()
    }
}

impl<R> fmt::Debug for ValuesIter<'_, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ValuesIter")
    }
}

/// Takes the answers out.
impl<R> Iterator for Values<R> {
    type Item = (CpuId, Result<R, CallFailed>);

    fn next(&mut self) -> Option<Self::Item> {
        let next = self.answers.next()?;
        self.len -= 1;
        Some(next)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.len, Some(self.len))
    }
}

impl<R> ExactSizeIterator for Values<R> {}

impl<R: fmt::Debug> fmt::Debug for Values<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl<R> ManyCall<R> {
    pub(crate) fn new(waiting: WaitingForMany<R>, skipped: Vec<Skipped>) -> Self {
        ManyCall { waiting: Some(waiting), skipped }
    }

    /// Returns the CPUs that were reached, and those that were skipped.
    pub fn reach(&self) -> Reach {
        let reached = self.waiting.iter().flat_map(WaitingForMany::cpus).collect();
        Reach { reached, skipped: self.skipped.clone() }
    }

    /// Returns true if all answers are there, so that [`ManyCall::wait`] returns at once.
    pub fn is_complete(&self) -> bool {
        self.waiting.as_ref().is_none_or(|waiting| waiting.cell().signal().is_complete())
    }

    /// Waits until the function has ended on every CPU that was reached, and returns at once if
    /// there is none. Its writes there are visible after. Otherwise it behaves as
    /// [`Call::wait`](crate::Call::wait).
    #[track_caller]
    pub fn wait(mut self) -> ManyAnswers<R> {
        self.wait_over();
        self.collect()
    }

    /// Waits until the last answer is there, and leaves them there.
    #[track_caller]
    pub(crate) fn wait_over(&self) {
        if let Some(waiting) = &self.waiting {
            if !waiting.cell().signal().is_complete() {
                // SAFETY: the call's one handle, which is not shared with another waiter.
                unsafe { watch::wait(waiting.cell(), false) };
            }
        }
    }

    /// Takes the answers, after the last has come.
    fn collect(&mut self) -> ManyAnswers<R> {
        let values = match self.waiting.take() {
            Some(waiting) => {
                let len = waiting.cpus().count();
                // SAFETY: it is complete.
                Values { answers: unsafe { waiting.into_answers() }, len }
            }
            None => Values { answers: Answers::NONE, len: 0 },
        };
        ManyAnswers { values, skipped: std::mem::take(&mut self.skipped) }
    }
}

impl<R> Future for ManyCall<R> {
    type Output = ManyAnswers<R>;

    /// Becomes ready once; a later poll gives no answers.
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        if let Some(waiting) = &this.waiting {
            // SAFETY: the call's one handle, borrowed uniquely.
            if unsafe { watch::poll(waiting.cell(), cx) }.is_pending() {
                return Poll::Pending;
            }
        }
        Poll::Ready(this.collect())
    }
}

impl<R> fmt::Debug for ManyCall<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ManyCall")
            .field("reach", &self.reach())
            .field("left", &self.waiting.as_ref().map_or(0, WaitingForMany::left))
            .finish_non_exhaustive()
    }
}
