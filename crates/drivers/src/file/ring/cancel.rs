//! Calling a request off: the thread that finds it late asks the rings' threads, which alone may touch the rings, one after the
//! other until one has it.
//!
//! The tag of a late request is held until the driver has answered ([`Driver::timeout`](corewise_blockmq::Driver::timeout)), so
//! the asker waits for the answer: what the kernel is told to stop is the request that was late, and never the
//! tag's next one. A request that the kernel has stopped completes with `ECANCELED`, before or after that.

use std::sync::Arc;

use corewise_blockmq::for_drivers::LateOne;
use corewise_blockmq::{TimedOut, TimerReturn};
use corewise_sync::Completion;
use corewise_sync::atomic::{AtomicU32, Ordering};
use corewise_sync::inbox::{HasLink, Link};

use super::Port;

/// One late request, on its way to a ring's thread. However it ends, the asker is told.
pub(super) struct Ask {
    link: Link,
    pub(super) late: LateOne,
    answer: Arc<Answer>,
}

struct Answer {
    /// A: the error that the kernel gave, or 0; ENOENT where it wasn't asked. Written before `told`, which orders
    /// it. Relaxed.
    errno: AtomicU32,
    told: Completion,
}

// SAFETY: always the same field of the same value.
unsafe impl HasLink for Ask {
    fn link(&self) -> &Link {
        &self.link
    }
}

impl Ask {
    /// What the kernel has answered; the asker learns it when this is dropped.
    pub(super) fn answered(&self, result: i32) {
        self.answer.errno.store(result.min(0).unsigned_abs(), Ordering::Relaxed);
    }
}

impl Drop for Ask {
    fn drop(&mut self) {
        self.answer.told.complete();
    }
}

impl Port {
    /// Has the kernel stop a late request, if it is in this ring and the kernel can; `None` where it isn't. Blocks
    /// until that is known.
    pub(super) fn call_off(&self, late: &TimedOut<'_>) -> Option<TimerReturn> {
        let errno = AtomicU32::new(libc::ENOENT.unsigned_abs());
        let answer = Arc::new(Answer { errno, told: Completion::new() });
        let theirs = Arc::clone(&answer);
        self.asks.push(Box::new(Ask { link: Link::new(), late: late.which(), answer: theirs }));
        if self.bell.must_ring() {
            self.ring();
        }
        answer.told.wait();
        match answer.errno.load(Ordering::Relaxed) as i32 {
            0 => {
                tracing::warn!("{late}; it is cancelled");
                Some(TimerReturn::Done)
            }
            libc::ENOENT => None,
            _ => {
                tracing::warn!("{late}; the kernel was asked to cancel it, and still runs it");
                Some(TimerReturn::ResetTimer)
            }
        }
    }
}
