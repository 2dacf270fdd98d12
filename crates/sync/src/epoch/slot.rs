//! One reader's slot, and the grace period: a reader says so in a word of its own, and a waiter
//! looks at all of them. `README.md` beside this file names the steps and argues them.

use std::sync::Arc;

use crate::context;
use crate::facade::atomic::{AtomicU32, AtomicU64, Ordering};
use crate::facade::fence::AsymmetricPolicy;
use crate::facade::hint;
use crate::facade::lock::{Condvar, Mutex};
use crate::own::{self, Slots};

/// The lower half of a slot's word: how deep its sections nest just now.
const DEPTH: u64 = u32::MAX as u64;
/// The upper half: how many have ended.
const ONE_ENDED: u64 = DEPTH + 1;

/// Beside the number of watchers: the slot was lent for one section only.
const GUEST: u32 = 1 << 31;

/// How often a grace period looks at those who read before it sleeps: sections are short. Not in
/// models: loom takes each such look for a yield, after which no old value is read any more, and
/// would hide what the fences are for.
const LOOKS: u32 = if hint::IN_MODEL { 0 } else { 256 };

/// Where one thread at a time says that it reads. On cache lines of its own.
#[repr(align(128))]
pub(super) struct Slot {
    /// A: the depth, and how many sections have ended. Stored by the thread that has the slot, and
    /// by it alone.
    word: AtomicU64,
    /// A: how many grace periods watch for the end of the section, and `GUEST`. Written by them and
    /// by the thread that lends the slot; the reader loads it at its end.
    watchers: AtomicU32,
    /// L: is the lock; guards nothing but the sleep of those who watch.
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
    /// One that was left inside a section (its guard was forgotten, or is still somewhere) is its
    /// thread's for ever: what was read may still be looked at.
    fn is_free(&self) -> bool {
        !self.is_inside()
    }
}

impl Slot {
    /// The thread that has the slot goes in.
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
        // Only by forgetting guards; the next one would look like an end.
        assert!(word & DEPTH < DEPTH, "four billion reading sections were left open");
        self.word.store(word + 1, Ordering::Relaxed);
    }

    /// And out; true where somebody has to be told, by `tell`.
    #[inline]
    #[must_use = "true obliges the caller to call `tell`"]
    pub(super) fn exit<A: AsymmetricPolicy>(&self) -> bool {
        let word = self.word.load(Ordering::Relaxed);
        if word & DEPTH != 1 {
            self.word.store(word - 1, Ordering::Relaxed);
            return false;
        }
        // End. Release: what was read in the section was read before, for the Acquire of `is_in`.
        self.word.store((word - 1).wrapping_add(ONE_ENDED), Ordering::Release);
        A::light(); // EndFence, pairs with WatchFence
        self.watchers.load(Ordering::Relaxed) != 0
    }

    /// Wakes those who watch. True where the slot was lent for this section only.
    #[cold]
    pub(super) fn tell(&self) -> bool {
        let watchers = self.watchers.load(Ordering::Relaxed);
        if watchers & !GUEST != 0 {
            let _lock = self.lock.lock();
            self.ended.notify_all();
        }
        watchers & GUEST != 0
    }

    /// Whether its thread is inside a section. For that thread, and for a caller that knows that
    /// none has it.
    pub(super) fn is_inside(&self) -> bool {
        self.word.load(Ordering::Relaxed) & DEPTH != 0
    }

    /// The section that is open now. Acquire: where there is none, the last one's reads were
    /// before.
    fn open_section(&self) -> Option<SlotWord> {
        let word = self.word.load(Ordering::Acquire);
        (word & DEPTH != 0).then_some(SlotWord(word))
    }

    /// Whether that very section is still open. Acquire: if not, its reads were before.
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
    /// A slot for one section: whose end gives it back.
    pub(super) fn lend(&self) -> Arc<Slot> {
        let slot = self.take();
        slot.watchers.fetch_or(GUEST, Ordering::Relaxed);
        slot
    }

    /// The end of a section whose slot was lent.
    pub(super) fn give_back_lent(&self, slot: &Slot) {
        slot.watchers.fetch_and(!GUEST, Ordering::Relaxed);
        self.give_back_at(slot);
    }

    /// The sections that have begun.
    pub(super) fn sections<A: AsymmetricPolicy>(&self) -> Sections {
        A::heavy(); // GraceFence, pairs with BeginFence
        // Scan.
        let open = |slot: &Arc<Slot>| slot.open_section().map(|seen| (Arc::clone(slot), seen));
        Sections(self.look(|slots| slots.iter().filter_map(open).collect()))
    }
}

/// Sections that had begun at one moment: a grace period is over when all of them have ended.
pub(super) struct Sections(Vec<(Arc<Slot>, SlotWord)>);

impl Sections {
    /// Whether all have ended.
    pub(super) fn are_over(&self) -> bool {
        self.0.iter().all(|(slot, seen)| !slot.is_in(*seen))
    }

    /// Whether all have ended, or do so within some microseconds.
    pub(super) fn are_soon_over(&mut self) -> bool {
        let mut looks = LOOKS;
        while !self.0.is_empty() && looks > 0 {
            self.0.retain(|(slot, seen)| slot.is_in(*seen));
            hint::spin_loop();
            looks -= 1;
        }
        self.0.is_empty()
    }

    /// Returns when all have ended. May block.
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
