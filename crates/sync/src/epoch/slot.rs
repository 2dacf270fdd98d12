//! One reader's slot, and the grace period: each reader announces its sections in a word of its
//! own, and a waiter reads all of these words. `README.md` beside this file names the steps and
//! argues them.

use std::sync::Arc;

use crate::context;
use crate::facade::atomic::{AtomicU32, AtomicU64, Ordering};
use crate::facade::fence::AsymmetricPolicy;
use crate::facade::hint;
use crate::facade::lock::{Condvar, Mutex};
use crate::own::{self, Slots};

/// Lower half of a slot's word: the present nesting depth of sections.
const DEPTH: u64 = u32::MAX as u64;
/// Unit of the upper half: the number of ended sections.
const ONE_ENDED: u64 = DEPTH + 1;

/// Flag beside the number of watchers: the slot was lent for one section only.
const GUEST: u32 = 1 << 31;

/// Number of checks of a grace period for the end of sections before it sleeps: sections are short.
/// Zero in models: loom takes each check for a yield, after which no old value is read any more,
/// and would hide what the fences are for.
const LOOKS: u32 = if hint::IN_MODEL { 0 } else { 256 };

/// The word in which one thread at a time announces that it reads, on cache lines of its own.
#[repr(align(128))]
pub(super) struct Slot {
    /// A: the depth, and the number of ended sections. Stored only by the thread that has the slot.
    word: AtomicU64,
    /// A: the number of grace periods that watch for the end of the section, and `GUEST`. Written
    /// by them and by the thread that lends the slot; the reader loads it at the end of a section.
    watchers: AtomicU32,
    /// L: is the lock; guards nothing but the sleep of the watchers.
    lock: Mutex<()>,
    /// L: waited on with `lock`.
    ended: Condvar,
}

/// A section as it was seen at one moment: its slot's word.
#[derive(Clone, Copy)]
struct SlotWord(u64);

impl Default for Slot {
    fn default() -> Slot {
        Slot {
            word: AtomicU64::new(0),
            watchers: AtomicU32::new(0),
            lock: Mutex::new(()),
            ended: Condvar::new(),
        }
    }
}

impl own::Slot for Slot {
    /// Returns true if another thread may take the slot. One that was left inside a section (its
    /// guard was forgotten, or still exists) stays its thread's for ever: data that was read may
    /// still be in use.
    fn is_free(&self) -> bool {
        !self.is_inside()
    }
}

impl Slot {
    /// Enters a section, on the thread that has the slot.
    #[inline]
    pub(super) fn enter<A: AsymmetricPolicy>(&self) {
        let word = self.word.load(Ordering::Relaxed);
        if word & DEPTH != 0 {
            return self.enter_deeper(word);
        }
        self.word.store(word + 1, Ordering::Relaxed); // Begin
        A::light(); // BeginFence, pairs with GraceFence
    }

    #[cold]
    fn enter_deeper(&self, word: u64) {
        // This takes forgotten guards; the next one would look like an end.
        assert!(word & DEPTH < DEPTH, "four billion reading sections were left open");
        self.word.store(word + 1, Ordering::Relaxed);
    }

    /// Exits a section. Returns true if a watcher has to be woken, by `tell`.
    #[inline]
    #[must_use = "true obliges the caller to call `tell`"]
    pub(super) fn exit<A: AsymmetricPolicy>(&self) -> bool {
        let word = self.word.load(Ordering::Relaxed);
        if word & DEPTH != 1 {
            self.word.store(word - 1, Ordering::Relaxed);
            return false;
        }
        // End. Release: reads in the section come before the Acquire of `is_in`.
        self.word.store((word - 1).wrapping_add(ONE_ENDED), Ordering::Release);
        A::light(); // EndFence, pairs with WatchFence
        self.watchers.load(Ordering::Relaxed) != 0
    }

    /// Wakes the watchers. Returns true if the slot was lent for this section only.
    #[cold]
    pub(super) fn tell(&self) -> bool {
        let watchers = self.watchers.load(Ordering::Relaxed);
        if watchers & !GUEST != 0 {
            let _lock = self.lock.lock();
            self.ended.notify_all();
        }
        watchers & GUEST != 0
    }

    /// Returns true if its thread is inside a section. For that thread, and for a caller that knows
    /// that no thread has it.
    pub(super) fn is_inside(&self) -> bool {
        self.word.load(Ordering::Relaxed) & DEPTH != 0
    }

    /// Returns the open section. Acquire: if there is none, the last one's reads came before.
    fn open_section(&self) -> Option<SlotWord> {
        let word = self.word.load(Ordering::Acquire);
        (word & DEPTH != 0).then_some(SlotWord(word))
    }

    /// Returns true if that very section is still open. Acquire: if not, its reads came before.
    fn is_in(&self, seen: SlotWord) -> bool {
        let word = self.word.load(Ordering::Acquire);
        word & DEPTH != 0 && word / ONE_ENDED == seen.0 / ONE_ENDED
    }

    fn sleep_through(&self, seen: SlotWord) {
        let mut lock = self.lock.lock();
        while self.is_in(seen) {
            lock = self.ended.wait(lock);
        }
    }
}

impl Slots<Slot> {
    /// Lends a slot for one section, whose end gives it back.
    pub(super) fn lend(&self) -> Arc<Slot> {
        let slot = self.take();
        slot.watchers.fetch_or(GUEST, Ordering::Relaxed);
        slot
    }

    /// Takes back a slot that was lent, at the end of its section.
    pub(super) fn give_back_lent(&self, slot: &Slot) {
        slot.watchers.fetch_and(!GUEST, Ordering::Relaxed);
        self.give_back_at(slot);
    }

    /// Returns the sections that have begun.
    pub(super) fn sections<A: AsymmetricPolicy>(&self) -> Sections {
        A::heavy(); // GraceFence, pairs with BeginFence
        // Scan.
        let open = |slot: &Arc<Slot>| slot.open_section().map(|seen| (Arc::clone(slot), seen));
        Sections(self.look(|slots| slots.iter().filter_map(open).collect()))
    }
}

/// Sections that had begun at one moment: a grace period ends when all of them have ended.
pub(super) struct Sections(Vec<(Arc<Slot>, SlotWord)>);

impl Sections {
    /// Returns true if all have ended.
    pub(super) fn are_over(&self) -> bool {
        self.0.iter().all(|(slot, seen)| !slot.is_in(*seen))
    }

    /// Returns true if all have ended, or end within some microseconds.
    pub(super) fn are_soon_over(&mut self) -> bool {
        let mut looks = LOOKS;
        while !self.0.is_empty() && looks > 0 {
            self.0.retain(|(slot, seen)| slot.is_in(*seen));
            hint::spin_loop();
            looks -= 1;
        }
        self.0.is_empty()
    }

    /// Waits until all have ended. May block.
    pub(super) fn wait<A: AsymmetricPolicy>(mut self) {
        if self.are_soon_over() {
            return;
        }
        for (slot, _) in &self.0 {
            slot.watchers.fetch_add(1, Ordering::Relaxed); // Watch
        }
        A::heavy(); // WatchFence, pairs with EndFence
        context::blocking_reported(|| {
            self.0.iter().for_each(|(slot, seen)| slot.sleep_through(*seen));
        });
        for (slot, _) in &self.0 {
            slot.watchers.fetch_sub(1, Ordering::Relaxed);
        }
    }
}
