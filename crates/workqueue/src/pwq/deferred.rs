//! What a worker carries: instances that it has run, and that it hasn't counted out yet.
//!
//! Read `README.md` beside this file first: the comments here use its names for the steps.

use std::ptr::{self, NonNull};
use std::sync::Arc;

use corewise_sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use crate::pwq::counts::Care;
use crate::pwq::enter::{Entered, Picked, leave};
use crate::pwq::flush::Colours;
use crate::pwq::slot::{InSlot, Kept, PwqSlot};

/// The most that is carried, or taken over without a word to the queue.
const MOST: u64 = 64;

/// In the word of a [`DeferredEnds`] each of these has 16 bits. The lowest are the stripe and the colour; then
/// comes how many are carried.
const MANY: u32 = 16;
/// How many were taken over since.
const AGAIN: u32 = 32;
/// How often it was put down, so that two equal words are one.
const TURN: u32 = 48;

fn part(what: u64, of: u32) -> u64 {
    what >> of & 0xffff
}

/// Instances of one pair that a worker has run, one right after the other, and not counted out.
pub(crate) struct DeferredEnds<L> {
    /// O: where they were queued, as long as there are any: their counts keep it. Atomic only because
    /// others look, for statistics.
    slot: AtomicPtr<PwqSlot<L>>,
    /// O: the pair, and the counts; as `slot`.
    what: AtomicU64,
}

/// Stripe and colour, as in the word.
#[inline]
fn pair_of<L>((_, stripe, colour): Kept<L>) -> u64 {
    u64::from(stripe) | u64::from(colour) << 8
}

impl<L: InSlot> DeferredEnds<L> {
    pub(crate) fn new() -> DeferredEnds<L> {
        DeferredEnds { slot: AtomicPtr::new(ptr::null_mut()), what: AtomicU64::new(0) }
    }

    /// Whether it is empty.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        part(self.what.load(Ordering::Relaxed), MANY) == 0
    }

    /// Whether what is carried is of this pair.
    #[inline]
    fn is_of(&self, kept: Kept<L>) -> bool {
        part(self.what.load(Ordering::Relaxed), 0) == pair_of(kept)
            && self.slot.load(Ordering::Relaxed) == kept.0.as_ptr()
    }

    /// Defer: an instance is over. What is carried already is of the same pair. True where that is
    /// enough: CountOut has to follow.
    #[inline]
    #[must_use]
    pub(crate) fn add(&self, kept: Kept<L>) -> bool {
        let what = self.what.load(Ordering::Relaxed);
        let next = if part(what, MANY) == 0 {
            self.slot.store(kept.0.as_ptr(), Ordering::Relaxed);
            pair_of(kept) | 1 << MANY | part(what, TURN) << TURN
        } else {
            debug_assert!(self.is_of(kept), "of one pair");
            what + (1 << MANY)
        };
        // Release pairs with `look`: who counts these counts them among those that came.
        self.what.store(next, Ordering::Release);
        part(next, MANY) >= MOST || part(next, AGAIN) >= MOST
    }

    /// Reuse: an instance that is queued from inside gets the place of one that is carried, if that is
    /// the one which it would get by Enter. One stays.
    #[inline]
    pub(crate) fn reuse<'a>(&self, picked: &Picked<'a, L>) -> Option<Entered<'a, L>> {
        let entered = picked.entered();
        let what = self.what.load(Ordering::Relaxed);
        let takes = part(what, MANY) > 1 && self.is_of(entered.place());
        if takes {
            self.what.store(what - (1 << MANY) + (1 << AGAIN), Ordering::Release);
        }
        takes.then_some(entered)
    }

    /// The worker is about to run an instance: CountOut, unless that is of the same pair. `None`: of none.
    #[inline]
    pub(crate) fn before<C: Care, S: AsRef<Colours<C, L>> + ?Sized>(
        &self,
        next: Option<Kept<L>>,
        of: impl FnOnce(&L) -> Arc<S>,
    ) {
        if !self.is_empty() && !next.is_some_and(|next| self.is_of(next)) {
            self.count_out_all(of);
        }
    }

    /// CountOut: the worker is about to do something else than to start an instance of the same pair. All
    /// that it carries Leave. `of`: see [`leave`].
    #[inline]
    pub(crate) fn count_out<C: Care, S: AsRef<Colours<C, L>> + ?Sized>(
        &self,
        of: impl FnOnce(&L) -> Arc<S>,
    ) {
        self.before(None, of);
    }

    #[cold]
    fn count_out_all<C: Care, S: AsRef<Colours<C, L>> + ?Sized>(
        &self,
        of: impl FnOnce(&L) -> Arc<S>,
    ) {
        let what = self.what.load(Ordering::Relaxed);
        let Some(slot) = NonNull::new(self.slot.load(Ordering::Relaxed)) else { return };
        let kept = (slot, (what & 0xff) as u32, (what >> 8 & 0xff) as u8);
        let (many, again) = (part(what, MANY), part(what, AGAIN));
        if again > 0 {
            // SAFETY: what is carried keeps the slot.
            unsafe { slot.as_ref() }.tally.queued_again(kept.1, again);
        }
        // Before they are over, so that nobody who counts what is carried subtracts them twice.
        self.what.store(part(what, TURN).wrapping_add(1) << TURN, Ordering::Relaxed);
        // SAFETY: so many places of this pair were handed over, and are given back once.
        unsafe { leave::<C, L, S>(kept, many, of) }
    }

    /// What is carried (a moment ago).
    pub(crate) fn look(&self) -> Look {
        let slot = self.slot.load(Ordering::Acquire).addr();
        Look { slot, what: self.what.load(Ordering::Acquire) }
    }
}

/// What was carried at a moment, if it is still the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Look {
    /// The slot's address.
    pub(crate) slot: usize,
    what: u64,
}

impl Look {
    /// How many are carried.
    pub(crate) fn many(self) -> u64 {
        part(self.what, MANY)
    }

    /// How many were queued without having been counted in anew, and that the slot doesn't know of yet.
    pub(crate) fn again(self) -> u64 {
        part(self.what, AGAIN)
    }
}
