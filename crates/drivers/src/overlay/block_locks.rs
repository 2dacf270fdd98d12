//! The blocks that a change or a fetch makes own right now, and the changes that wait for them.

use std::ops::Range;

use corewise_blockmq::Started;
use corewise_sync::SpinLock;

/// The locks. Only changes of blocks that aren't own yet take one, so there are few. `C` is a
/// change.
pub struct BlockLocks<C = Started> {
    /// L: is the lock, held for a look at the list; guards the locked bytes and the waiters.
    state: SpinLock<LockState<C>>,
}

struct LockState<C> {
    locked: Vec<Range<u64>>,
    waiting: Vec<(Range<u64>, C)>,
}

impl<C> Default for BlockLocks<C> {
    /// Creates the locks, all of them free.
    fn default() -> Self {
        Self { state: SpinLock::new(LockState { locked: Vec::new(), waiting: Vec::new() }) }
    }
}

impl<C> BlockLocks<C> {
    /// Locks a range of bytes, which are whole blocks, for this change. If a part of them is
    /// locked, the change waits, and the Unlock of that part returns it.
    pub fn lock_or_wait(&self, bytes: &Range<u64>, rq: C) -> Option<C> {
        let mut state = self.state.lock();
        if state.is_locked(bytes) {
            state.waiting.push((bytes.clone(), rq));
            return None;
        }
        state.locked.push(bytes.clone());
        Some(rq)
    }

    /// Locks a range of bytes, which are whole blocks, unless a part of them is locked.
    pub fn try_lock(&self, bytes: &Range<u64>) -> bool {
        let mut state = self.state.lock();
        let is_free = !state.is_locked(bytes);
        if is_free {
            state.locked.push(bytes.clone());
        }
        is_free
    }

    /// Returns true if a part of a range of bytes is locked.
    pub fn is_locked(&self, bytes: &Range<u64>) -> bool {
        self.state.lock().is_locked(bytes)
    }

    /// Unlocks a range, and returns the changes that waited for it, oldest first. The caller begins
    /// them anew.
    #[must_use = "the changes wait for ever otherwise"]
    pub fn unlock(&self, bytes: &Range<u64>) -> Vec<C> {
        let mut state = self.state.lock();
        if let Some(at) = state.locked.iter().position(|locked| locked == bytes) {
            state.locked.swap_remove(at);
        }
        let mut free = Vec::new();
        let mut at = 0;
        while at < state.waiting.len() {
            if overlap(&state.waiting[at].0, bytes) {
                free.push(state.waiting.remove(at).1);
            } else {
                at += 1;
            }
        }
        free
    }
}

impl<C> LockState<C> {
    fn is_locked(&self, bytes: &Range<u64>) -> bool {
        self.locked.iter().any(|locked| overlap(locked, bytes))
    }
}

fn overlap(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}
