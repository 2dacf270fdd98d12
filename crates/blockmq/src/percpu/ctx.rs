//! The software queues of a queue: one inbox per CPU; and for each hardware queue a bitmap of those of its
//! CPUs' that are in use.
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
//! set the bit, and find nothing: its request rides with the first one's, which marks and then runs.
//!
//! The inboxes belong to the queue, as the CPUs do, and each hardware queue's bitmap has a bit for every one of
//! them: which CPU goes to which hardware queue may change (while the queue is frozen, so that all are empty)
//! without anything being made or freed that somebody might still look at.

use corewise_sync::CachePadded;
use corewise_sync::atomic::{AtomicU64, Ordering};
use corewise_sync::inbox::{Inbox, Node};

/// Software queues, one for each CPU of a queue.
pub struct SoftwareQueues<N: Node> {
    inboxes: Box<[CachePadded<Inbox<N>>]>,
}

/// Which software queues hold something for one hardware queue.
#[derive(Debug)]
pub struct CtxMap {
    /// A: bit n of word w is set where software queue 64 w + n may hold something.
    words: Box<[AtomicU64]>,
}

impl CtxMap {
    /// No bit of `slots` is set.
    pub fn new(slots: usize) -> Self {
        Self { words: (0..slots.max(1).div_ceil(64)).map(|_| AtomicU64::new(0)).collect() }
    }

    /// Something may be pending, a moment ago. Relaxed: the protocols put their fence before it.
    pub fn has_pending(&self) -> bool {
        self.words.iter().any(|word| word.load(Ordering::Relaxed) != 0)
    }
}

impl<N: Node> SoftwareQueues<N> {
    /// `n` empty queues; at least one.
    pub fn new(n: usize) -> Self {
        Self { inboxes: (0..n.max(1)).map(|_| CachePadded::new(Inbox::new())).collect() }
    }

    /// Puts a request into queue `slot`, which is `map`'s hardware queue's. Lock-free.
    pub fn push(&self, map: &CtxMap, slot: usize, node: N) {
        if self.inboxes[slot].push(node) {
            // Mark. Release: the taker of the bit finds the node in the inbox.
            map.words[slot / 64].fetch_or(1 << (slot % 64), Ordering::AcqRel);
        }
    }

    /// Moves everything that is pending for `map`'s hardware queue to the end of `list`: each queue's requests
    /// in their order, the queues in turn.
    pub fn collect(&self, map: &CtxMap, list: &mut impl Extend<N>) {
        for (w, word) in map.words.iter().enumerate() {
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
