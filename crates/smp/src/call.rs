//! A call to one CPU: its function, its answer, and the handle that waits for it.

use std::any::type_name;
use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use corewise_sync::Completion;

use crate::error::CallFailed;
use crate::message::{self, Class, Ended, Job};
use crate::slot::Slot;

/// One call. It belongs to nobody but its caller and its message: no slot is shared with another
/// call, so a waiter never waits for somebody else's.
pub(crate) struct CallCell<F, R> {
    class: Class,
    work: Slot<F>,
    answer: Slot<Result<R, CallFailed>>,
    done: Completion,
}

impl<F, R> CallCell<F, R> {
    pub(crate) fn new(class: Class, f: F) -> Arc<Self> {
        Arc::new(CallCell {
            class,
            work: Slot::full(f),
            answer: Slot::empty(),
            done: Completion::new(),
        })
    }

    /// The function of a call that wasn't accepted.
    ///
    /// # Safety
    /// No message of this call was accepted, so that nobody else can reach the slot.
    pub(crate) unsafe fn take_back(&self) -> Option<F> {
        // SAFETY: the caller promises to be alone with the slot.
        unsafe { self.work.take() }
    }
}

impl<F, R> Job for CallCell<F, R>
where
    F: FnOnce() -> R + Send + 'static,
    R: Send + 'static,
{
    unsafe fn run(&self, cpu: u32, _index: usize) -> Ended {
        // SAFETY: a call has one index, so by the caller's promise this is the only access, and it
        // comes after `new` filled the slot.
        let work = unsafe { self.work.take() };
        let Some(f) = work else { return Ended::Returned };
        let (answer, ended) = match catch_unwind(AssertUnwindSafe(f)) {
            Ok(value) => (Ok(value), Ended::Returned),
            Err(payload) => {
                (Err(message::panicked(cpu, self.class, self.name(), payload)), Ended::Panicked)
            }
        };
        // SAFETY: this is the only write, and the waiter reads after `complete` below.
        unsafe { self.answer.put(answer) };
        self.done.complete();
        ended
    }

    unsafe fn fail(&self, cpu: u32, _index: usize) {
        if self.class == Class::Plain {
            message::dropped(cpu, self.name());
        }
        // SAFETY: as in `run`, which isn't called where this is.
        unsafe { self.answer.put(Err(CallFailed::NotOnline { cpu })) };
        self.done.complete();
    }

    fn namer(&self) -> fn() -> &'static str {
        type_name::<F>
    }
}

/// The answering side of a call, without the function's type.
pub(crate) trait Answer<R>: Send + Sync {
    fn done(&self) -> &Completion;
    /// Takes the answer.
    ///
    /// # Safety
    /// `done` is complete, and the caller is the only one who takes.
    unsafe fn take(&self) -> Option<Result<R, CallFailed>>;
}

impl<F: Send, R: Send> Answer<R> for CallCell<F, R> {
    fn done(&self) -> &Completion {
        &self.done
    }

    unsafe fn take(&self) -> Option<Result<R, CallFailed>> {
        // SAFETY: the writer completed `done` after its last touch, and nobody else takes.
        unsafe { self.answer.take() }
    }
}

/// A call that was accepted. Wait for it, await it, or drop it: the function runs in any case.
///
/// The wait set belongs to this call alone. Waiting gives the core back: it spins for less than a
/// wake-up costs, then parks inside a [blocking region](corewise_sync::context::blocking), so on a
/// worker the pool starts other work; as a future nothing is held at all.
///
/// A value that nobody takes is dropped by whoever lets go of the call last: the caller, or the
/// target inside its handler.
#[must_use = "the call runs in any case, but its answer is lost unless it is waited for"]
pub struct Call<R> {
    cpu: u32,
    state: State<R>,
}

enum State<R> {
    /// Ran in place; gone once the future was polled.
    Here(Option<Result<R, CallFailed>>),
    Sent(Arc<dyn Answer<R>>),
}

// The value is never pinned: it is moved out of its slot when it is there.
impl<R> Unpin for Call<R> {}

impl<R> Call<R> {
    pub(crate) fn here(cpu: u32, answer: Option<Result<R, CallFailed>>) -> Self {
        Call { cpu, state: State::Here(answer) }
    }

    pub(crate) fn sent(cpu: u32, answer: Arc<dyn Answer<R>>) -> Self {
        Call { cpu, state: State::Sent(answer) }
    }

    /// The CPU that was called.
    pub fn cpu(&self) -> u32 {
        self.cpu
    }

    /// Whether the answer is there, so that [`Call::wait`] returns at once.
    pub fn is_complete(&self) -> bool {
        match &self.state {
            State::Here(_) => true,
            State::Sent(answer) => answer.done().is_complete(),
        }
    }

    /// Waits for the answer. What the function wrote is visible after.
    ///
    /// May block: inside an atomic section (a handler) that is reported, and two CPUs that wait for
    /// each other there never end. A call that a handler made to its own CPU has run already,
    /// so waiting for that one is fine.
    ///
    /// # Errors
    /// The function panicked, or nobody steps that CPU's target any more.
    #[track_caller]
    pub fn wait(self) -> Result<R, CallFailed> {
        self.wait_over();
        let answer = match self.state {
            State::Here(answer) => answer,
            // SAFETY: complete, and `self` is the only handle that takes.
            State::Sent(answer) => unsafe { answer.take() },
        };
        answer.expect("a call is answered once, and only its one handle takes the answer")
    }
}

impl<R> Call<R> {
    /// Waits until the answer is there, and leaves it there.
    #[track_caller]
    pub(crate) fn wait_over(&self) {
        match &self.state {
            State::Here(_) => {}
            State::Sent(answer) => answer.done().wait(),
        }
    }
}

impl<R> Future for Call<R> {
    type Output = Result<R, CallFailed>;

    /// # Panics
    /// Where it is polled again after it was ready.
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let answer = match &mut self.get_mut().state {
            State::Here(answer) => answer.take(),
            State::Sent(answer) => {
                if answer.done().poll_complete(cx).is_pending() {
                    return Poll::Pending;
                }
                // SAFETY: complete, and `self` is the only handle that takes.
                unsafe { answer.take() }
            }
        };
        Poll::Ready(answer.expect("a call was polled after it had been ready"))
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
