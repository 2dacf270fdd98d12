//! The tags of one hardware queue: its own, or its share of a set that it has with others.
//!
//! Its runner takes them, and any thread returns them. If none is free, the runner leaves in a
//! way that makes another thread run the hardware queue again; `README.md` has the three ways and
//! why none is missed.

use std::fmt;
use std::sync::Arc;

use corewise_sync::CachePadded;
use corewise_sync::atomic::{AtomicU64, Ordering};

use super::TagSet;
use super::bitmap::{RESTART, TagBatch, is_idle};
use super::line::TagWaiter;

/// The duty of a caller that returned a tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "`Restart` obliges the caller to run the hardware queue"]
pub enum FreeResult {
    /// The caller has no duty: there is no waiter.
    Quiet,
    /// The hardware queue waits for this, so the caller has to run it.
    Restart,
}

/// The tags of a hardware queue.
pub struct TagUser {
    set: TagSet,
    /// The user's record in its set; `None` if the set is its own.
    share: Option<Arc<Share>>,
    /// The user's place in the line of a shared set.
    waiter: Arc<TagWaiter>,
}

/// A user of a shared set. The word is on a line of its own: only its own completions write it.
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

/// The user counts as active. Set by the runner, cleared by a sweep that finds it idle.
const ACTIVE: u64 = 1 << 32;
/// The user went without a tag because its share is used up: the next of its own tags that comes
/// back restarts it. The number of its tags is in the bits below `ACTIVE`.
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

    /// Makes it an active user; returns false if it was one. Only the runner calls this.
    #[inline]
    fn activate(&self) -> bool {
        self.word.load(Ordering::Relaxed) & ACTIVE == 0
            && self.word.fetch_or(ACTIVE, Ordering::Relaxed) & ACTIVE == 0
    }

    /// Makes it inactive if it has been idle since the last sweep. The caller holds the registry's
    /// lock.
    pub(super) fn retire_if_idle(&self) -> bool {
        let taken = self.taken.load(Ordering::Relaxed);
        let then = self.taken_then.load(Ordering::Relaxed);
        self.taken_then.store(taken, Ordering::Relaxed);
        let word = self.word.load(Ordering::Relaxed);
        let waits = self.waiter.is_in_line() || self.waiter.is_granted();
        word & ACTIVE != 0 && is_idle((word & COUNT) as u32, waits, then, taken) && self.retire()
    }

    /// Makes it inactive; returns false if it was so.
    pub(super) fn retire(&self) -> bool {
        self.word.fetch_and(!ACTIVE, Ordering::Relaxed) & ACTIVE != 0
    }

    fn in_use(&self) -> u32 {
        (self.word.load(Ordering::Relaxed) & COUNT) as u32
    }

    /// Adds to the number of its tags. Only the runner calls this, as the other functions that
    /// count.
    fn count(&self, n: u32) {
        self.word.fetch_add(u64::from(n), Ordering::Relaxed);
        self.taken.store(
            self.taken.load(Ordering::Relaxed).wrapping_add(u64::from(n)),
            Ordering::Relaxed,
        );
    }

    /// Subtracts tags that came back unused. They are the runner's own, which doesn't wait for
    /// itself.
    fn uncount(&self, n: u32) {
        self.word.fetch_sub(u64::from(n), Ordering::Release);
    }

    /// Subtracts a tag that came back, and takes the mark along.
    fn finish(&self) -> FreeResult {
        // Release to the runner that finds room; Acquire of the work that it published before it
        // set the mark.
        let was = self.word.fetch_sub(1, Ordering::AcqRel);
        debug_assert!(was & COUNT != 0, "a tag came back that this user did not have");
        if was & OVER == 0 || self.word.fetch_and(!OVER, Ordering::AcqRel) & OVER == 0 {
            return FreeResult::Quiet;
        }
        FreeResult::Restart
    }

    /// Sets the mark, and returns how many tags were in use then.
    fn mark_over(&self) -> u32 {
        (self.word.fetch_or(OVER, Ordering::AcqRel) & COUNT) as u32
    }
}

impl TagUser {
    /// Creates a user with `depth` tags of its own, for `cpus` CPUs.
    pub fn alone(depth: u32, cpus: usize) -> Self {
        let set = TagSet::new(depth, cpus);
        Self { set, share: None, waiter: TagWaiter::calling(|| {}) }
    }

    /// Creates a user of a set that others use too. `granted` is called when it got a tag that it
    /// waited for, and has to make its runner come by; as for [`TagWaiter::calling`].
    pub fn of(set: &TagSet, granted: impl Fn() + Send + Sync + 'static) -> Self {
        let waiter = TagWaiter::calling(granted);
        let share = Some(set.join(&waiter));
        Self { set: set.clone(), share, waiter }
    }

    /// Returns the number of tags, of all users.
    pub fn depth(&self) -> u32 {
        self.set.depth()
    }

    /// Returns how many tags this user had a moment ago.
    pub fn in_use(&self) -> u32 {
        match &self.share {
            Some(share) => share.in_use(),
            None => self.set.in_use(),
        }
    }

    /// Takes at least one tag and up to `most`; none if none is free, this user has its share, or
    /// waiters were there before. Only the runner calls this. `cpu`: the CPU of the request.
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

    /// Waits for a tag. The runner found none, and has published its pending work. Either it gets
    /// some tags now, or the hardware queue is run as soon as it can have one. Only the runner
    /// calls this.
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
            // MarkOver, and look again: one that came back before restarted nothing.
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

    /// Makes the next free restart the hardware queue: its runner goes without having started what
    /// it has a tag for. Returns how many tags this user has. With none, no free will ever come,
    /// and the caller itself makes sure that it is run again.
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

    /// Returns a tag that this user got while it waited and can't use any more. To be called at the
    /// end of a run if nothing is pending, or nothing may be dispatched.
    pub fn decline(&self, cpu: usize) {
        if self.share.is_some() {
            if let Some(tag) = self.waiter.take() {
                let _ = self.set.tags().put_batch(cpu, TagBatch::one(tag), 0, None);
            }
        }
    }

    /// Returns true if it has a tag that it waited for and that its runner hasn't taken yet.
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
