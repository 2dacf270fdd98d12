//! The software queues of a hardware queue: one inbox per CPU, and a bitmap of those that are in
//! use.
//!
//! Each CPU pushes to an inbox of its own, so submitters don't meet. The runner must not look at
//! 512 inboxes to find one request, so the push that finds its inbox empty sets the inbox's bit:
//!
//! ```text
//! submitter                          runner
//! Push to the inbox                  Collect: word = swap bitmap word with 0
//! if it was empty: Mark the bit      for each bit: take the inbox
//! ```
//!
//! A later pusher whose push found the inbox non-empty may run the queue before the first one has
//! set the bit, and find nothing: its request rides with the first one's, who marks and then runs.

use std::collections::VecDeque;

use corewise_sync::CachePadded;
use corewise_sync::atomic::{AtomicU64, Ordering};
use corewise_sync::inbox::{Inbox, Node};

/// Software queues, one for each CPU of a hardware queue.
pub struct SoftwareQueues<N: Node> {
    /// A: bit n of word w is set where inbox 64 w + n may hold something.
    pending: Box<[AtomicU64]>,
    inboxes: Box<[CachePadded<Inbox<N>>]>,
}

impl<N: Node> SoftwareQueues<N> {
    /// `n` empty queues; at least one.
    pub fn new(n: usize) -> Self {
        let n = n.max(1);
        Self {
            pending: (0..n.div_ceil(64)).map(|_| AtomicU64::new(0)).collect(),
            inboxes: (0..n).map(|_| CachePadded::new(Inbox::new())).collect(),
        }
    }

    /// Puts a request into queue `slot`. Lock-free.
    pub fn push(&self, slot: usize, node: N) {
        if self.inboxes[slot].push(node) {
            // Mark. Release: whoever takes the bit finds the node in the inbox.
            self.pending[slot / 64].fetch_or(1 << (slot % 64), Ordering::AcqRel);
        }
    }

    /// Something may be pending, a moment ago. Relaxed: the protocols put their fence before it.
    pub fn has_pending(&self) -> bool {
        self.pending.iter().any(|word| word.load(Ordering::Relaxed) != 0)
    }

    /// Moves everything that is pending to the end of `list`: each queue's requests in their
    /// order, the queues in turn.
    pub fn collect(&self, list: &mut VecDeque<N>) {
        for (w, word) in self.pending.iter().enumerate() {
            if word.load(Ordering::Relaxed) == 0 {
                continue;
            }
            // Collect, pairs with Mark.
            let mut bits = word.swap(0, Ordering::AcqRel);
            while bits != 0 {
                let slot = w * 64 + bits.trailing_zeros() as usize;
                bits &= bits - 1;
                list.extend(self.inboxes[slot].take());
            }
        }
    }
}
