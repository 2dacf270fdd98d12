//! Tags: the slots of a device, and the waiters for one.
//!
//! * `bitmap.rs`: the tags, and their numbers, spread over cache lines (the kernel's `sbitmap`).
//! * `line.rs`: a caller that finds none stands in line, and is served in that order.
//! * `user.rs`: a hardware queue with tags of its own, or with a fair share of a set that several
//!   have.
//!
//! `README.md` argues the protocols; `tests/loom/tags.rs` checks them.

mod bitmap;
mod line;
mod user;

use std::fmt;
use std::sync::{Arc, Weak};

use bitmap::{Bitmap, WAITING};
use corewise_sync::atomic::{AtomicU32, AtomicU64, Ordering};
use corewise_sync::time::Stamp;
use corewise_sync::{CleanAt, SpinLock, context};
use line::Line;
use user::Share;

pub use bitmap::TagBatch;
pub use line::TagWaiter;
pub use user::{FreeResult, TagUser};

/// Largest number of tags of a hardware queue, or of a set: the kernel's `BLK_MQ_MAX_DEPTH`.
pub(crate) const MAX_DEPTH: u32 = 10_240;

/// A set of tags, numbers from 0. Each has one owner at a time. Clones are the same set.
///
/// Hardware queues have one each, or share one, as a host adapter has for all its queues, or for
/// all its disks ([`QueueBuilder::tags`](crate::QueueBuilder::tags)). A set can be used by itself
/// as well, to bound the number of anything.
///
/// Taking and returning is one atomic instruction each, on a cache line that the CPU mostly has to
/// itself. A thread that finds none stands in line. The waiters get tags in the order in which they
/// came, and while there is one no other thread gets a tag.
///
/// `cpu` is a number of the caller's that spreads callers over the words; best that of the CPU it
/// is on, and any number will do.
#[derive(Clone)]
pub struct TagSet(Arc<Tags>);

/// The inside of a [`TagSet`]. `MARKS` is false only in the model that shows that waiters are
/// forgotten without marks.
pub struct Tags<const MARKS: bool = true> {
    bitmap: Bitmap,
    line: Line<MARKS>,
    users: Users,
}

/// The users that share the set.
struct Users {
    /// L: the lock; guards the list of the users, and changes of `active`.
    joined: SpinLock<TagUsers>,
    /// A: number of active users. Relaxed: a share is about right.
    active: AtomicU32,
    /// A: the share of each user. Relaxed, as `active`.
    share: AtomicU32,
    /// A: the time of the last sweep, in nanoseconds; Relaxed.
    swept: AtomicU64,
}

/// The list of a set's users.
#[derive(Default)]
struct TagUsers {
    all: Vec<Weak<Share>>,
    clean_at: CleanAt,
}

/// The outcome of putting tags back.
struct FreedMarks {
    marks: u64,
    /// True if the waiter `own` got a tag.
    own_got: bool,
}

impl TagSet {
    /// Creates `depth` free tags, 1 to 10 240 (others are clamped), for callers on `cpus` CPUs.
    pub fn new(depth: u32, cpus: usize) -> Self {
        Self(Arc::new(Tags::new(depth, cpus)))
    }

    /// Returns the number of tags.
    pub fn depth(&self) -> u32 {
        self.0.bitmap.depth()
    }

    /// Returns how many were in use a moment ago.
    pub fn in_use(&self) -> u32 {
        self.0.bitmap.in_use()
    }

    /// Takes a tag, if one is free and there is no waiter for it. Never blocks.
    #[inline]
    pub fn try_get(&self, cpu: usize) -> Option<u32> {
        self.0.try_get(cpu)
    }

    /// Takes a tag; blocks until earlier waiters have had one and one is free.
    #[track_caller]
    pub fn get(&self, cpu: usize) -> u32 {
        context::might_block("a wait for a tag");
        if let Some(tag) = self.try_get(cpu) {
            return tag;
        }
        let waiter = TagWaiter::thread();
        self.0.line_up(&waiter, cpu);
        loop {
            if let Some(tag) = waiter.take_soon() {
                return tag;
            }
            context::blocking("a wait for a tag", || waiter.sleep());
        }
    }

    /// Gives a tag back that the caller has. Never blocks; may have a hardware queue run.
    #[inline]
    pub fn put(&self, cpu: usize, tag: u32) {
        self.0.put(cpu, tag);
    }

    /// Returns the inside: see [`crate::model`].
    pub(crate) fn tags(&self) -> &Tags {
        &self.0
    }
}

impl<const MARKS: bool> Tags<MARKS> {
    /// Creates free tags as [`TagSet::new`] does.
    pub fn new(depth: u32, cpus: usize) -> Self {
        let bitmap = Bitmap::new(depth.min(MAX_DEPTH), cpus);
        let users = Users {
            joined: SpinLock::new(TagUsers::default()),
            active: AtomicU32::new(0),
            share: AtomicU32::new(bitmap.depth()),
            swept: AtomicU64::new(0),
        };
        Self { bitmap, line: Line::new(), users }
    }

    /// Takes a tag as [`TagSet::try_get`] does.
    #[inline]
    pub fn try_get(&self, cpu: usize) -> Option<u32> {
        self.bitmap.take(cpu, 1, false)?.pop()
    }

    /// Puts a waiter in line, at the end, or gives it a tag at once. Never blocks. If it stands
    /// there already, or has a tag to take, nothing changes.
    pub fn line_up(&self, waiter: &Arc<TagWaiter>, cpu: usize) {
        self.line_up_calling(waiter, cpu, None);
    }

    /// Does the same as [`Tags::line_up`], but doesn't call `own` if that gets a tag at once.
    fn line_up_calling(&self, waiter: &Arc<TagWaiter>, cpu: usize, own: Option<&TagWaiter>) {
        if waiter.enter() {
            self.line.push(Arc::clone(waiter));
            self.line.serve(&self.bitmap, cpu, own);
        }
    }

    /// Takes a waiter out of the line for good: it can't line up again. Returns the tag that it got
    /// meanwhile, if any: the caller has it.
    pub fn leave(&self, waiter: &TagWaiter, cpu: usize) -> Option<u32> {
        let tag = waiter.leave();
        if tag.is_none() {
            self.line.note_left();
            self.line.serve(&self.bitmap, cpu, None);
        }
        tag
    }

    /// Gives a tag back as [`TagSet::put`] does; may call the function of a [`TagWaiter`].
    #[inline]
    pub fn put(&self, cpu: usize, tag: u32) {
        self.put_batch(cpu, TagBatch::one(tag), 0, None);
    }

    /// Gives tags back, and takes the marks `taking`. `own` isn't called if it gets one.
    #[inline]
    fn put_batch(
        &self,
        cpu: usize,
        tags: TagBatch,
        taking: u64,
        own: Option<&TagWaiter>,
    ) -> FreedMarks {
        let marks = self.bitmap.free(tags, taking);
        let own_got = marks & WAITING != 0 && self.line.serve(&self.bitmap, cpu, own);
        FreedMarks { marks, own_got }
    }
}

/// The operations of a [`TagUser`] on its set.
impl TagSet {
    fn bitmap(&self) -> &Bitmap {
        &self.0.bitmap
    }

    fn join(&self, waiter: &Arc<TagWaiter>) -> Arc<Share> {
        let share = Arc::new(Share::new(Arc::clone(waiter)));
        let mut joined = self.0.users.joined.lock();
        let TagUsers { all, clean_at } = &mut *joined;
        clean_at.before_one_more(all, Vec::len, |all| all.retain(|one| one.strong_count() != 0));
        all.push(Arc::downgrade(&share));
        share
    }

    /// Counts one more active user.
    fn count_active(&self) {
        let _joined = self.0.users.joined.lock();
        self.set_active(self.0.users.active.load(Ordering::Relaxed) + 1);
    }

    /// Sets the number of active users. The caller holds the registry's lock.
    fn set_active(&self, active: u32) {
        self.0.users.active.store(active, Ordering::Relaxed);
        self.0.users.share.store(bitmap::share(self.depth(), active), Ordering::Relaxed);
    }

    /// Returns the present share of each user.
    fn share(&self) -> u32 {
        self.0.users.share.load(Ordering::Relaxed)
    }

    /// Removes a user.
    fn part(&self, share: &Share) {
        let _joined = self.0.users.joined.lock();
        if share.retire() {
            self.set_active(self.0.users.active.load(Ordering::Relaxed).saturating_sub(1));
        }
    }

    /// Makes a sweep if the last one was some time ago, since a user is kept to its share: users
    /// that are counted as active may be idle.
    fn sweep_now_and_then(&self) {
        let (now, then) = (Stamp::coarse(), self.0.users.swept.load(Ordering::Relaxed));
        if now.since(Stamp::from_nanos(then)) >= bitmap::SWEEP_PAUSE {
            self.0.users.swept.store(now.nanos(), Ordering::Relaxed);
            self.sweep();
        }
    }

    /// Stops counting as active each user that had no tag since the last call, and waits for none,
    /// until it takes one. Done every 20 ms at most, if a user is kept to its share.
    pub fn sweep(&self) {
        let joined = self.0.users.joined.lock();
        let idle = joined.all.iter().filter_map(Weak::upgrade).filter(|one| one.retire_if_idle());
        let idle = idle.count() as u32;
        self.set_active(self.0.users.active.load(Ordering::Relaxed).saturating_sub(idle));
    }
}

impl fmt::Debug for TagSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TagSet")
            .field("depth", &self.depth())
            .field("in_use", &self.in_use())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
