//! Polling: a thread that waits for its request looks for completions itself.

use std::cell::Cell;

use corewise_sync::context::AtomicSection;
use corewise_sync::per_thread;

use crate::queue::Core;
use crate::request::caught;

per_thread! {
    static POLLING: Cell<bool> = Cell::new(false);
}

/// Whether this thread is inside a poll: what it finds ends here.
pub(crate) fn is_polling() -> bool {
    POLLING.with(Cell::get)
}

/// Restores what was before, also where the driver panics.
struct Polling {
    outer: bool,
}

impl Polling {
    fn enter() -> Self {
        Self { outer: POLLING.with(|polling| polling.replace(true)) }
    }
}

impl Drop for Polling {
    fn drop(&mut self) {
        POLLING.with(|polling| polling.set(self.outer));
    }
}

impl Core {
    /// Has the driver look for completions of hardware queue `hctx`: how many it found, `None` where it doesn't do
    /// that.
    pub(crate) fn poll(&self, hctx: usize) -> Option<usize> {
        let _polling = Polling::enter();
        let _section = AtomicSection::enter("poll of a block driver");
        caught(|| self.driver.poll(hctx)).unwrap_or_else(|| {
            tracing::error!(queue = %self.name, "the driver panicked in poll");
            None
        })
    }
}
