//! Polling: a thread that waits for its request looks for completions itself.

use std::cell::Cell;

use corewise_sync::per_thread;

/// Polls that nest on a thread at most; devices further down aren't polled.
const NESTED_POLLS: u32 = 64;

per_thread! {
    /// O: how many polls the thread is in: devices that stand on one another poll each other.
    static POLLING: Cell<u32> = Cell::new(0);
}

/// Whether this thread is inside a poll: what it finds ends here.
pub(crate) fn is_polling() -> bool {
    POLLING.with(Cell::get) != 0
}

/// A poll that the thread is in. Its end restores what was before, also where the driver panics.
pub(crate) struct Polling {
    outer: u32,
}

impl Polling {
    /// Begins one; `None` where so many devices stand on one another that the thread's stack may not do for more.
    pub(crate) fn enter() -> Option<Self> {
        let outer = POLLING.with(Cell::get);
        if outer >= NESTED_POLLS {
            return None;
        }
        POLLING.with(|polling| polling.set(outer + 1));
        Some(Self { outer })
    }
}

impl Drop for Polling {
    fn drop(&mut self) {
        POLLING.with(|polling| polling.set(self.outer));
    }
}
