//! A call to many CPUs: one function, one answer per CPU, one wait set that belongs to the call.

use std::any::type_name;
use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use corewise_sync::Countdown;
use corewise_topology::CpuSet;

use crate::error::{CallFailed, SkipReason};
use crate::message::{self, Class, Ended, Job};
use crate::slot::Slot;

/// One call to many. Candidate `i` has slot `i` and one count of the countdown.
pub(crate) struct ManyCell<F, R> {
    f: F,
    answers: Box<[Slot<Result<R, CallFailed>>]>,
    left: Countdown,
}

impl<F, R> ManyCell<F, R> {
    pub(crate) fn new(candidates: usize, f: F) -> Arc<Self> {
        Arc::new(ManyCell {
            f,
            answers: (0..candidates).map(|_| Slot::empty()).collect(),
            left: Countdown::new(candidates),
        })
    }

    /// A candidate wasn't reached: takes it out of the wait set.
    pub(crate) fn skip_one(&self) {
        self.left.done();
    }
}

impl<F, R> Job for ManyCell<F, R>
where
    F: Fn(u32) -> R + Send + Sync + 'static,
    R: Send + 'static,
{
    unsafe fn run(&self, cpu: u32, index: usize) -> Ended {
        let (answer, ended) = match catch_unwind(AssertUnwindSafe(|| (self.f)(cpu))) {
            Ok(value) => (Ok(value), Ended::Returned),
            Err(payload) => {
                (Err(message::panicked(cpu, Class::Urgent, self.name(), payload)), Ended::Panicked)
            }
        };
        // SAFETY: by the caller's promise this is the only access to this index; the waiter reads
        // after the countdown, which counts this answer below.
        unsafe { self.answers[index].put(answer) };
        self.left.done();
        ended
    }

    unsafe fn fail(&self, cpu: u32, index: usize) {
        // SAFETY: as in `run`, which isn't called where this is.
        unsafe { self.answers[index].put(Err(CallFailed::NotOnline { cpu })) };
        self.left.done();
    }

    fn namer(&self) -> fn() -> &'static str {
        type_name::<F>
    }
}

/// A function for many CPUs that nobody waits for.
pub(crate) struct CastCell<F> {
    f: F,
}

impl<F> CastCell<F> {
    pub(crate) fn new(f: F) -> Arc<Self> {
        Arc::new(CastCell { f })
    }
}

impl<F: Fn(u32) + Send + Sync + 'static> Job for CastCell<F> {
    unsafe fn run(&self, cpu: u32, _index: usize) -> Ended {
        match catch_unwind(AssertUnwindSafe(|| (self.f)(cpu))) {
            Ok(()) => Ended::Returned,
            Err(payload) => {
                let failed = message::panicked(cpu, Class::Plain, self.name(), payload);
                drop(failed);
                Ended::Panicked
            }
        }
    }

    unsafe fn fail(&self, cpu: u32, _index: usize) {
        message::dropped(cpu, self.name());
    }

    fn namer(&self) -> fn() -> &'static str {
        type_name::<F>
    }
}

/// The answering side of a call to many, without the function's type.
pub(crate) trait Answers<R>: Send + Sync {
    fn left(&self) -> &Countdown;
    /// Takes the answer of candidate `index`.
    ///
    /// # Safety
    /// `left` is complete, and the caller is the only one who takes.
    unsafe fn take(&self, index: usize) -> Option<Result<R, CallFailed>>;
}

impl<F: Send + Sync, R: Send> Answers<R> for ManyCell<F, R> {
    fn left(&self) -> &Countdown {
        &self.left
    }

    unsafe fn take(&self, index: usize) -> Option<Result<R, CallFailed>> {
        // SAFETY: every writer counted down after its last touch, and nobody else takes.
        unsafe { self.answers[index].take() }
    }
}

/// A CPU that a call to many didn't reach. The function doesn't run there, and nobody waits for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Skipped {
    /// The CPU.
    pub cpu: u32,
    /// Why.
    pub reason: SkipReason,
}

/// Which CPUs a call to many reached, and which it skipped.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Reach {
    /// Where the function runs, in CPU order.
    pub reached: CpuSet,
    /// Where it doesn't, in CPU order.
    pub skipped: Vec<Skipped>,
}

/// A call to many CPUs. Wait for it, await it, or drop it: the function runs in any case, on each
/// CPU that was reached. See [`Call`](crate::Call) for what waiting costs.
#[must_use = "the call runs in any case, but its answers are lost unless it is waited for"]
pub struct ManyCall<R> {
    /// CPU of each candidate slot that was reached.
    slots: Vec<(usize, u32)>,
    reach: Reach,
    answers: Arc<dyn Answers<R>>,
}

/// What a call to many gave.
#[derive(Debug)]
pub struct ManyAnswers<R> {
    /// What the function returned on each CPU that was reached, in CPU order.
    pub values: Vec<(u32, Result<R, CallFailed>)>,
    /// The CPUs that weren't reached.
    pub skipped: Vec<Skipped>,
}

impl<R> ManyAnswers<R> {
    /// The values alone.
    ///
    /// # Errors
    /// The first failure, where a function panicked or its CPU's target was abandoned. CPUs that
    /// were skipped are no failure.
    pub fn into_values(self) -> Result<Vec<(u32, R)>, CallFailed> {
        self.values.into_iter().map(|(cpu, answer)| answer.map(|value| (cpu, value))).collect()
    }
}

impl<R> ManyCall<R> {
    pub(crate) fn new(
        slots: Vec<(usize, u32)>,
        skipped: Vec<Skipped>,
        answers: Arc<dyn Answers<R>>,
    ) -> Self {
        let reached = slots.iter().map(|&(_, cpu)| cpu).collect();
        ManyCall { slots, reach: Reach { reached, skipped }, answers }
    }

    /// Which CPUs were reached and which skipped.
    pub fn reach(&self) -> &Reach {
        &self.reach
    }

    /// Whether all answers are there, so that [`ManyCall::wait`] returns at once.
    pub fn is_complete(&self) -> bool {
        self.answers.left().is_complete()
    }

    /// Waits until the function has ended on every CPU that was reached: at once where there is
    /// none. What it wrote there is visible after. As [`Call::wait`](crate::Call::wait)
    /// otherwise.
    #[track_caller]
    pub fn wait(mut self) -> ManyAnswers<R> {
        self.wait_over();
        self.collect()
    }

    /// Waits until the last answer is there, and leaves them there.
    #[track_caller]
    pub(crate) fn wait_over(&self) {
        if !self.is_complete() {
            self.answers.left().wait();
        }
    }

    /// Takes the answers; only after the countdown is complete.
    fn collect(&mut self) -> ManyAnswers<R> {
        let answers = &self.answers;
        let values = self.slots.drain(..).map(|(index, cpu)| {
            // SAFETY: the countdown is complete, and `self` is the only handle that takes.
            let answer = unsafe { answers.take(index) };
            (cpu, answer.expect("each reached CPU answers once, and its slot is drained once"))
        });
        ManyAnswers { values: values.collect(), skipped: std::mem::take(&mut self.reach.skipped) }
    }
}

impl<R> Future for ManyCall<R> {
    type Output = ManyAnswers<R>;

    /// Ready once; polled again after that it gives no answers.
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        match this.answers.left().poll_complete(cx) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(()) => Poll::Ready(this.collect()),
        }
    }
}

impl<R> fmt::Debug for ManyCall<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ManyCall")
            .field("reach", &self.reach)
            .field("left", &self.answers.left().remaining())
            .finish_non_exhaustive()
    }
}
