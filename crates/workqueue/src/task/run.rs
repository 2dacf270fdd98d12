//! What surrounds each run of an item: its `tracing` span, the note of what runs on this thread, and
//! the check that it left nothing behind.
//!
//! Without a subscriber that wants the span this costs one load of `tracing`'s global level when an
//! item is spawned and one when it runs; the check reads two thread-locals before and after.

use std::panic::{self, AssertUnwindSafe};

use corewise_sync::context::{Leak, Standing};
use corewise_sync::thread;
use tracing::{Level, Span};

use crate::error::quietly;
use crate::task::current;
use crate::task::header::Running;

/// The spans' target and level: what a subscriber has to let through to see them.
macro_rules! wanted {
    () => {
        tracing::span_enabled!(target: "corewise_workqueue", Level::TRACE)
    };
}

/// The span that a closure or future was spawned in. Holding it keeps it open.
pub(crate) struct Spawner(Option<Box<Span>>);

impl Spawner {
    /// The calling thread's span, where anybody wants to know.
    #[inline]
    pub(crate) fn current() -> Spawner {
        if wanted!() { Spawner::look() } else { Spawner(None) }
    }

    #[cold]
    fn look() -> Spawner {
        let span = Span::current();
        Spawner((!span.is_none()).then(|| Box::new(span)))
    }

    pub(crate) fn span(&self) -> Option<&Span> {
        self.0.as_deref()
    }
}

/// Runs the instance once. An error is what it panicked with. What it left behind is reported, and
/// the thread's standing restored.
#[inline(always)]
pub(crate) fn run(running: &Running) -> thread::Result<()> {
    let standing = Standing::now();
    let _current = current::enter(running);
    // The subscriber's code is in here too: if it panics, that is the item's panic.
    let result = panic::catch_unwind(AssertUnwindSafe(|| {
        if wanted!() { in_span(running) } else { running.uncalled().call() }
    }));
    if let Some(leak) = standing.restore() {
        report(running, leak);
    }
    result
}

#[cold]
fn report(running: &Running, leak: Leak) {
    quietly(|| {
        tracing::error!(
            target: "corewise_workqueue",
            queue = running.job.queue_name(),
            function = running.name(),
            site = %running.job.site,
            "a work item left something behind, which is put right now: {leak}"
        );
    });
}

#[cold]
fn in_span(running: &Running) {
    // The subscriber may panic before the call.
    let uncalled = running.uncalled();
    // Kept open: the item may be gone when it has run.
    let spawner = uncalled.spawner().cloned();
    let parent = spawner.as_ref().and_then(Span::id);
    let span = tracing::trace_span!(
        target: "corewise_workqueue",
        parent: parent,
        "run",
        queue = running.job.queue_name(),
        function = running.name(),
        site = %running.job.site,
    );
    span.in_scope(|| uncalled.call());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_subscriber_nothing_is_kept_of_the_spawner_s_span() {
        let _span = tracing::error_span!("spawner").entered();
        assert!(Spawner::current().span().is_none());
        assert_eq!(size_of::<Spawner>(), size_of::<usize>());
    }
}
