//! One flush for many requests: the thread that flushes, and the requests that the flush is for.
//!
//! A flush makes changes durable that completed before it began. So all requests that come while
//! one is in flight wait for the next one, and there is never more than one in flight. The kernel
//! keeps two lists under a lock (`blk-flush.c`); here it is an inbox and a word of two bits.
//!
//! ```text
//! asker                                flusher
//! Wait: push itself to the inbox       the flush ends: its requests are answered
//! Join: IDLE -> FLUSHING: flush        End: AGAIN set: clear it, Take the inbox, flush
//!       FLUSHING: set AGAIN, and go         else FLUSHING -> IDLE
//! ```
//!
//! Wait comes before Join, and Join and End are read-modify-writes of one word, so they have one
//! order and no fence is needed. A Join before the End makes that an Again, which finds the waiter;
//! a later Join finds IDLE, and flushes itself. A waiter is taken only before a flush is submitted,
//! so no flush that began before its request answers it. (`tests/loom/flusher.rs`)

use corewise_sync::atomic::{AtomicU32, Ordering};
use corewise_sync::inbox::{Batch, Inbox, Node};

/// A flush is in flight. Set by Join, cleared by End.
const FLUSHING: u32 = 1;
/// A request came meanwhile. Set by Join, never without FLUSHING; cleared by End.
const AGAIN: u32 = 1 << 1;

/// Requests that wait for a flush.
pub struct Flusher<N: Node> {
    waiting: Inbox<N>,
    /// A: the two bits.
    state: AtomicU32,
}

impl<N: Node> Default for Flusher<N> {
    fn default() -> Self {
        Self::new()
    }
}

impl<N: Node> Flusher<N> {
    /// Creates a flusher without waiters or flush.
    pub fn new() -> Self {
        Self { waiting: Inbox::new(), state: AtomicU32::new(0) }
    }

    /// Makes `node` wait for a flush that begins from now on. If this returns a batch, the caller
    /// makes that flush, for all in it, and calls [`Flusher::end`] when it has ended.
    #[must_use = "nobody else makes the flush"]
    pub fn ask(&self, node: N) -> Option<Batch<N>> {
        self.waiting.push(node); // Wait
        // Join. AcqRel: an End that sees it finds the waiter.
        let join = |state| if state & FLUSHING == 0 { FLUSHING } else { state | AGAIN };
        let was = self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, |s| Some(join(s)));
        if was.is_ok_and(|was| was & FLUSHING == 0) { self.take() } else { None }
    }

    /// Ends a flush; its requests are answered. If this returns a batch, the caller makes the next
    /// one, as for [`Flusher::ask`].
    #[must_use = "nobody else makes the flush"]
    pub fn end(&self) -> Option<Batch<N>> {
        if self.ended() { None } else { self.take() }
    }

    /// Takes the waiters. If an earlier Join's have been taken already, tries to end.
    fn take(&self) -> Option<Batch<N>> {
        loop {
            let batch = self.waiting.take();
            if !batch.is_empty() {
                return Some(batch);
            }
            if self.ended() {
                return None;
            }
        }
    }

    /// Tries to end, and returns true if no request came meanwhile (End).
    fn ended(&self) -> bool {
        let end = |state| if state & AGAIN == 0 { 0 } else { FLUSHING };
        let was = self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, |s| Some(end(s)));
        was.is_ok_and(|was| was & AGAIN == 0)
    }
}

impl<N: Node> std::fmt::Debug for Flusher<N> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Flusher")
            .field("flushing", &(self.state.load(Ordering::Relaxed) & FLUSHING != 0))
            .finish_non_exhaustive()
    }
}
