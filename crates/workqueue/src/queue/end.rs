//! The listeners to the end of a queue, beside its futures and timers.

use std::fmt;
use std::sync::{Arc, Weak};

use crate::error::shielded;
use crate::pwq::queue_core::QueueCore;
use crate::pwq::waiting::{Seat, Waits};
use crate::queue::Workqueue;

/// Has a function called at the end of a queue, for as long as it isn't dropped: see [`Workqueue::on_end`].
#[must_use = "dropping it has nobody told"]
pub struct EndNotice {
    queue: Weak<QueueCore>,
    seat: Option<Seat>,
    /// The list has it weakly.
    _told: Arc<dyn Waits>,
}

struct Told<F>(F);

impl<F: Fn() + Send + Sync> Waits for Told<F> {
    fn shut(&self) -> bool {
        true
    }

    fn stop(&self) {
        (self.0)();
    }
}

impl Workqueue {
    /// Has `told` called once the queue takes nothing any more: it was destroyed, or its pools were shut down.
    /// A thread that begins to queue something from then on is refused. For one that has promised to do something
    /// on the queue, and then has to do without.
    ///
    /// It is called once, by the thread that ends the queue, or that drops the last handle of the pools, before that thread
    /// waits for the workers; with no lock held. Where the queue has ended it is called at once, by this
    /// thread. A panic in it is logged. It isn't called once the notice was dropped, though it may still be running then.
    pub fn on_end(&self, told: impl Fn() + Send + Sync + 'static) -> EndNotice {
        let told = Arc::new(Told(told));
        let list: Weak<dyn Waits> = Arc::downgrade(&told) as _;
        let seat = self.shared().waiting.sit(0, list).ok();
        if seat.is_none() {
            shielded("a callback at the end of a queue", || told.stop());
        }
        EndNotice { queue: Arc::downgrade(self.shared()), seat, _told: told }
    }
}

impl Drop for EndNotice {
    fn drop(&mut self) {
        if let (Some(queue), Some(seat)) = (self.queue.upgrade(), self.seat.take()) {
            drop(queue.waiting.leave(seat));
        }
    }
}

impl fmt::Debug for EndNotice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EndNotice").field("told", &self.seat.is_none()).finish_non_exhaustive()
    }
}
