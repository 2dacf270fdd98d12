//! Polling: a thread that waits for its request looks for completions itself.

use std::cell::Cell;

use corewise_sync::context::AtomicSection;
use corewise_sync::panics::caught;
use corewise_sync::per_thread;

use crate::policy::NESTED_POLLS;
use crate::queue::Core;

per_thread! {
    /// O: how many polls the thread is in: devices that stand on one another poll each other.
    static POLLING: Cell<u32> = Cell::new(0);
}

/// Whether this thread is inside a poll: what it finds ends here.
pub(crate) fn is_polling() -> bool {
    POLLING.with(Cell::get) != 0
}

/// Restores what was before, also where the driver panics.
struct Polling {
    outer: u32,
}

impl Polling {
    fn enter(outer: u32) -> Self {
        POLLING.with(|polling| polling.set(outer + 1));
        Self { outer }
    }
}

impl Drop for Polling {
    fn drop(&mut self) {
        POLLING.with(|polling| polling.set(self.outer));
    }
}

impl Core {
    /// Has the driver look for completions of hardware queue `hctx`: how many it found, `None`
    /// where it doesn't do that, or where so many devices stand on this one that the thread's stack
    /// may not do for more.
    pub(crate) fn poll(&self, hctx: usize) -> Option<usize> {
        let outer = POLLING.with(Cell::get);
        if outer >= NESTED_POLLS {
            return None;
        }
        let _polling = Polling::enter(outer);
        let _section = AtomicSection::enter("poll of a block driver");
        caught(|| self.driver.poll(hctx)).unwrap_or_else(|| {
            tracing::error!(queue = %self.name, "the driver panicked in poll");
            None
        })
    }
}
