//! What travels to a target: one function to run there, or one share of a function for many CPUs.

use std::any::Any;
use std::panic::Location;
use std::sync::Arc;

use corewise_sync::inbox::{HasLink, Link};

use crate::error::{CallFailed, PanicPayload};
#[cfg(not(loom))]
use crate::policy;
use crate::running::Label;
use crate::stats::Queued;

/// Whether somebody waits for the call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Class {
    /// Somebody may wait: these run first.
    Urgent,
    /// Nobody waits.
    Plain,
}

/// How a job ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    Returned,
    Panicked,
}

/// The shared part of a call. Each of its messages carries an `index` of its own.
pub(crate) trait Job: Send + Sync {
    /// Runs the function on `cpu`, keeps its answer, and signals that it is there. Never unwinds
    /// out of the function itself.
    ///
    /// # Safety
    /// For each index there is one call of `run` or `fail` in all, and it happens after the job was
    /// made.
    unsafe fn run(&self, cpu: u32, index: usize) -> Ended;
    /// Signals that the function won't run.
    ///
    /// # Safety
    /// As [`Job::run`].
    unsafe fn fail(&self, cpu: u32, index: usize);
    /// Gives the function's name, for reports.
    fn namer(&self) -> fn() -> &'static str;
    /// The function's name, for reports.
    fn name(&self) -> &'static str {
        self.namer()()
    }
}

/// A message in a target's queue.
pub(crate) struct Message {
    link: Link,
    class: Class,
    cpu: u32,
    index: usize,
    label: Label,
    /// When, as [`Queued::word`] has it.
    #[cfg_attr(loom, allow(dead_code))]
    queued: u64,
    /// Gone once it was run, failed or taken back: so each of these happens once.
    job: Option<Arc<dyn Job>>,
}

// SAFETY: always the same field, inside `self`, and returned by nobody else.
unsafe impl HasLink for Message {
    fn link(&self) -> &Link {
        &self.link
    }
}

impl Message {
    /// A message for share `index` of `job`.
    ///
    /// # Safety
    /// It is the only message of that index, and nobody runs or fails that index otherwise.
    #[track_caller]
    pub(crate) unsafe fn new(class: Class, cpu: u32, index: usize, job: Arc<dyn Job>) -> Box<Self> {
        let label = Label { name: job.namer(), site: Location::caller(), source: None };
        #[cfg(not(loom))]
        let queued = Queued::now(policy::weight(true, 0)).word();
        #[cfg(loom)]
        let queued = 0;
        Box::new(Message { link: Link::new(), class, cpu, index, label, queued, job: Some(job) })
    }

    pub(crate) fn class(&self) -> Class {
        self.class
    }

    /// What it says of itself in reports.
    pub(crate) fn label(&self) -> Label {
        self.label
    }

    /// When it was made: right before it is pushed.
    pub(crate) fn queued(&self) -> Queued {
        #[cfg(loom)]
        return Queued::NOT;
        #[cfg(not(loom))]
        return Queued::from_word(self.queued);
    }

    /// Runs the call.
    pub(crate) fn run(mut self) -> Ended {
        match self.job.take() {
            // SAFETY: this message is the only one of its index, and gives the job up here; the
            // push and take that brought it here come after the making of the job.
            Some(job) => unsafe { job.run(self.cpu, self.index) },
            None => Ended::Returned,
        }
    }

    /// The message wasn't accepted: forgets the call without failing it. Whoever takes it back
    /// tells the caller.
    pub(crate) fn take_back(mut self) {
        self.job = None;
    }
}

impl Drop for Message {
    /// A message that is dropped without having run still ends its call: nobody waits for ever.
    fn drop(&mut self) {
        if let Some(job) = self.job.take() {
            // SAFETY: as in `run`.
            unsafe { job.fail(self.cpu, self.index) };
        }
    }
}

/// What a caught panic means for the caller. Where nobody waits it is logged, so that it isn't
/// silent.
pub(crate) fn panicked(
    cpu: u32,
    class: Class,
    name: &'static str,
    payload: Box<dyn Any + Send>,
) -> CallFailed {
    let panic = PanicPayload::new(payload);
    if class == Class::Plain {
        tracing::error!(
            cpu,
            function = name,
            panic = panic.message(),
            "a called function panicked"
        );
    }
    CallFailed::Panicked { cpu, panic }
}

/// A call that nobody waits for is dropped without having run: that isn't silent either.
pub(crate) fn dropped(cpu: u32, name: &'static str) {
    tracing::warn!(cpu, function = name, "a call was dropped: nobody steps this CPU's target");
}
