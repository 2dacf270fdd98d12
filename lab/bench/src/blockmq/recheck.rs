//! The variants of `seqread`: ways to run a hardware queue. They differ in the second look for
//! requests, after a first one that found none.
//!
//! All but one are code that Linux had. Commit 6bda857bcbb86 of Linux has this code:
//!
//! ```text
//! need_run = blk_mq_hw_queue_need_run(hctx);      // first look: no lock, no fence
//! if (!need_run) {
//!     spin_lock_irqsave(&q->queue_lock, flags);   // sleeps on PREEMPT_RT, and inherits priorities
//!     need_run = blk_mq_hw_queue_need_run(hctx);  // second look
//!     spin_unlock_irqrestore(&q->queue_lock, flags);
//! }
//! ```
//!
//! The mended code has a fence where the lock was. The code before and behind is the same for all:
//! [`ByHand::run_by`] is compiled once for each.

use corewise_blockmq::Queue;
use corewise_blockmq::model::{ByHand, Recheck};
use corewise_sync::{Mutex, SpinLock};

use crate::blockmq::pi_mutex::PiMutex;

/// Runs hardware queues.
pub(super) trait Run: Send + Sync + 'static {
    /// Runs one, if there is need.
    fn run(&self, queue: &Queue, hctx: usize);
}

/// Corewise's own: a fence.
#[derive(Debug, Default)]
pub(super) struct Fenced;

impl Run for Fenced {
    #[inline]
    fn run(&self, queue: &Queue, hctx: usize) {
        queue.run(hctx);
    }
}

/// The second look under a lock of the queue.
#[derive(Debug, Default)]
pub(super) struct Under<L>(L);

impl<L: Lock> Run for Under<L> {
    #[inline]
    fn run(&self, queue: &Queue, hctx: usize) {
        queue.run_by(hctx, self);
    }
}

impl<L: Lock> Recheck for Under<L> {
    #[inline]
    fn again(&self, look: impl Fn() -> bool) -> bool {
        self.0.hold(look)
    }
}

/// A queue without a second look, to measure the cost of the look. A request that races an
/// unquiesce is stranded.
#[derive(Debug, Default)]
pub(super) struct Unchecked;

impl Run for Unchecked {
    #[inline]
    fn run(&self, queue: &Queue, hctx: usize) {
        queue.run_by(hctx, self);
    }
}

impl Recheck for Unchecked {
    #[inline]
    fn again(&self, _: impl Fn() -> bool) -> bool {
        false
    }
}

/// A lock that guards nothing but the order.
pub(super) trait Lock: Default + Send + Sync + 'static {
    /// Holds it for the time of a call.
    fn hold<R>(&self, f: impl FnOnce() -> R) -> R;
}

impl Lock for Mutex<()> {
    #[inline]
    fn hold<R>(&self, f: impl FnOnce() -> R) -> R {
        let _guard = self.lock();
        f()
    }
}

/// A spin lock.
pub(super) struct Spin(SpinLock<()>);

impl Default for Spin {
    fn default() -> Spin {
        Spin(SpinLock::new(()))
    }
}

impl Lock for Spin {
    #[inline]
    fn hold<R>(&self, f: impl FnOnce() -> R) -> R {
        let _guard = self.0.lock();
        f()
    }
}

impl Lock for PiMutex {
    #[inline]
    fn hold<R>(&self, f: impl FnOnce() -> R) -> R {
        PiMutex::hold(self, f)
    }
}
