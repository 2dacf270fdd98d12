//! The tags of one hardware queue: its own, or its share of a set that it has with others.
//!
//! Its runner takes them, and any thread gives them back. Where none is to be had, the runner
//! leaves in a way that has somebody run the hardware queue again; `README.md` has the three ways
//! and why none is missed.

use std::fmt;
use std::sync::Arc;

use corewise_sync::CachePadded;
use corewise_sync::atomic::{AtomicU64, Ordering};

use super::TagSet;
use super::bitmap::{RESTART, TagBatch, is_idle};
use super::line::TagWaiter;

/// What giving a tag back tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "`Restart` obliges the caller to run the hardware queue"]
pub enum FreeResult {
    /// Nobody waits.
    Quiet,
    /// The hardware queue waits for this, so the caller has to run it.
    Restart,
}

/// The tags of a hardware queue.
pub struct TagUser {
    set: TagSet,
    /// What is known of this user to the others of its set; `None` where the set is its own.
    share: Option<Arc<Share>>,
    /// Its place in the line of a shared set.
    waiter: Arc<TagWaiter>,
}

/// A user of a shared set. The word is on a line of its own: its completions write it, and nobody
/// else's.
#[derive(Debug)]
pub(super) struct Share {
    word: CachePadded<AtomicU64>,
    /// A: tags taken so far; written by the runner only, Relaxed.
    taken: AtomicU64,
    /// L: guarded by the set's registry: `taken` at the last sweep.
    pub(super) taken_then: AtomicU64,
    /// I: the user's place in the line.
    waiter: Arc<TagWaiter>,
}

/// Counts as one of those who share. Set by the runner, cleared by a sweep that finds it idle.
const ACTIVE: u64 = 1 << 32;
/// It went without a tag because its share is used up: the next of its own tags that comes back
/// restarts it. The number of tags that it has is below.
const OVER: u64 = 1 << 33;
const COUNT: u64 = ACTIVE - 1;

impl Share {
    pub(super) fn new(waiter: Arc<TagWaiter>) -> Self {
        Self {
            waiter,
            word: CachePadded::new(AtomicU64::new(0)),
            taken: AtomicU64::new(0),
            taken_then: AtomicU64::new(0),
        }
    }

    /// It becomes an active one; false where it was. Runner only.
    #[inline]
    fn activate(&self) -> bool {
        self.word.load(Ordering::Relaxed) & ACTIVE == 0
            && self.word.fetch_or(ACTIVE, Ordering::Relaxed) & ACTIVE == 0
    }

    /// A sweep: no longer an active one, if it has been idle since the last. The registry's lock is
    /// held.
    pub(super) fn retire_if_idle(&self) -> bool {
        let taken = self.taken.load(Ordering::Relaxed);
        let then = self.taken_then.load(Ordering::Relaxed);
        self.taken_then.store(taken, Ordering::Relaxed);
        let word = self.word.load(Ordering::Relaxed);
        let waits = self.waiter.is_in_line() || self.waiter.is_granted();
        word & ACTIVE != 0 && is_idle((word & COUNT) as u32, waits, then, taken) && self.retire()
    }

    /// Not an active one any more; false where it wasn't.
    pub(super) fn retire(&self) -> bool {
        self.word.fetch_and(!ACTIVE, Ordering::Relaxed) & ACTIVE != 0
    }

    fn in_use(&self) -> u32 {
        (self.word.load(Ordering::Relaxed) & COUNT) as u32
    }

    /// Runner only, as the others that count.
    fn count(&self, n: u32) {
        self.word.fetch_add(u64::from(n), Ordering::Relaxed);
        self.taken.store(
            self.taken.load(Ordering::Relaxed).wrapping_add(u64::from(n)),
            Ordering::Relaxed,
        );
    }

    /// Tags of the share came back unused: the runner's own, which isn't waiting for itself.
    fn uncount(&self, n: u32) {
        self.word.fetch_sub(u64::from(n), Ordering::Release);
    }

    /// One came back, and takes the mark along.
    fn finish(&self) -> FreeResult {
        // Release to the runner that finds room; Acquire of what it published before it set the
        // mark.
        let was = self.word.fetch_sub(1, Ordering::AcqRel);
        debug_assert!(was & COUNT != 0, "a tag came back that this user did not have");
        if was & OVER == 0 || self.word.fetch_and(!OVER, Ordering::AcqRel) & OVER == 0 {
            return FreeResult::Quiet;
        }
        FreeResult::Restart
    }

    /// Sets the mark, and says how many were in use then.
    fn mark_over(&self) -> u32 {
        (self.word.fetch_or(OVER, Ordering::AcqRel) & COUNT) as u32
    }
}

impl TagUser {
    /// A user with `depth` tags of its own. `cpus`: from how many it is used.
    pub fn alone(depth: u32, cpus: usize) -> Self {
        let set = TagSet::new(depth, cpus);
        Self { set, share: None, waiter: TagWaiter::calling(|| {}) }
    }

    /// A user of a set that others use too. `granted` is called where it got a tag that it waited
    /// for, and has to see to it that its runner comes by; as for [`TagWaiter::calling`].
    pub fn of(set: &TagSet, granted: impl Fn() + Send + Sync + 'static) -> Self {
        let waiter = TagWaiter::calling(granted);
        let share = Some(set.join(&waiter));
        Self { set: set.clone(), share, waiter }
    }

    /// How many tags there are, of all users.
    pub fn depth(&self) -> u32 {
        self.set.depth()
    }

    /// How many tags this user has, a moment ago.
    pub fn in_use(&self) -> u32 {
        match &self.share {
            Some(share) => share.in_use(),
            None => self.set.in_use(),
        }
    }

    /// Takes at least one tag and up to `most`; none where none is free, this user has its share,
    /// or others were there before. Runner only. `cpu`: for whose request.
    #[inline]
    pub fn take(&self, cpu: usize, most: u32) -> TagBatch {
        match &self.share {
            None => self.set.bitmap().take(cpu, most, false).unwrap_or_default(),
            Some(share) => self.take_shared(share, cpu, most),
        }
    }

    fn take_shared(&self, share: &Share, cpu: usize, most: u32) -> TagBatch {
        if share.activate() {
            self.set.count_active();
        }
        let taken = if let Some(tag) = self.waiter.take() {
            TagBatch::one(tag)
        } else if self.waiter.is_in_line() {
            TagBatch::default()
        } else {
            let room = self.set.share().saturating_sub(share.in_use());
            match most.min(room) {
                0 => TagBatch::default(),
                most => self.set.bitmap().take(cpu, most, false).unwrap_or_default(),
            }
        };
        if !taken.is_empty() {
            share.count(taken.len());
        }
        taken
    }

    /// The runner found no tag, and has published what it leaves undone: either it gets some now,
    /// or somebody will run the hardware queue as soon as it can have one. Runner only.
    pub fn wait(&self, cpu: usize, most: u32) -> TagBatch {
        let Some(share) = &self.share else {
            // Mark, Retry.
            let _in_use = self.restart_at_next_free();
            return self.take(cpu, most);
        };
        if self.waiter.is_in_line() {
            return self.take(cpu, most); // perhaps no longer
        }
        if share.in_use() >= self.set.share() {
            self.set.sweep_now_and_then();
            // MarkOver, and look again: one that came back before told nobody.
            if share.mark_over() >= self.set.share() {
                return TagBatch::default();
            }
        }
        let tags = self.take(cpu, most);
        if tags.is_empty() {
            self.set.tags().line_up_calling(&self.waiter, cpu, Some(&self.waiter));
            return self.take(cpu, most);
        }
        tags
    }

    /// The runner goes without having started what it has a tag for: the next free restarts it. How
    /// many tags this user has: with none, no free will ever come, and the caller sees to it itself
    /// that it is run again.
    #[must_use = "with nothing in use, no free will ever come"]
    pub fn restart_at_next_free(&self) -> u32 {
        match &self.share {
            Some(share) => share.mark_over(),
            None => self.set.bitmap().renew_mark(RESTART),
        }
    }

    /// Gives a tag back that was in use.
    #[inline]
    pub fn free(&self, cpu: usize, tag: u32) -> FreeResult {
        let Some(share) = &self.share else {
            let put = self.set.tags().put_batch(cpu, TagBatch::one(tag), RESTART, None);
            return if put.marks & RESTART != 0 { FreeResult::Restart } else { FreeResult::Quiet };
        };
        let put = self.set.tags().put_batch(cpu, TagBatch::one(tag), 0, Some(&self.waiter));
        let freed = share.finish();
        if put.own_got { FreeResult::Restart } else { freed }
    }

    /// Gives tags back that were never used, and leaves the mark: the runner takes back its own.
    pub fn put_back(&self, cpu: usize, tags: TagBatch) {
        if tags.is_empty() {
            return;
        }
        if let Some(share) = &self.share {
            share.uncount(tags.len());
        }
        // It doesn't stand in line: it had tags.
        let _ = self.set.tags().put_batch(cpu, tags, 0, None);
    }

    /// Gives back a tag that this user got while it waited and has no use for any more. To be
    /// called at the end of a run where nothing is pending, or nothing may be dispatched.
    pub fn decline(&self, cpu: usize) {
        if self.share.is_some() {
            if let Some(tag) = self.waiter.take() {
                let _ = self.set.tags().put_batch(cpu, TagBatch::one(tag), 0, None);
            }
        }
    }

    /// It has a tag that it waited for, which its runner hasn't taken yet.
    #[inline]
    pub fn has_grant(&self) -> bool {
        self.share.is_some() && self.waiter.is_granted()
    }
}

impl Drop for TagUser {
    fn drop(&mut self) {
        if let Some(share) = &self.share {
            if let Some(tag) = self.set.tags().leave(&self.waiter, 0) {
                self.set.put(0, tag);
            }
            self.set.part(share);
        }
    }
}

impl fmt::Debug for TagUser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TagUser")
            .field("depth", &self.depth())
            .field("in_use", &self.in_use())
            .field("shared", &self.share.is_some())
            .finish_non_exhaustive()
    }
}
