//! What a worker carries: instances that it has run, and that it hasn't counted out yet.
//!
//! Read `links.md` beside this file first: the comments here use its names for the steps.

use std::ptr::{self, NonNull};
use std::sync::Arc;

use corewise_sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use crate::colours::Colours;
use crate::seat::{Kept, Seat, Tied, leave};
use crate::tally::Care;

/// The most that is carried.
const MOST: u64 = 64;

/// In the word of a [`Carry`]: the lowest bits are the stripe and the colour, those above count.
const COUNT: u32 = 16;

/// Instances of one pair that a worker has run, one right after the other, and not counted out.
pub(crate) struct Carry<L> {
    /// O: where they were queued, as long as there are any: their counts keep it. Atomic only because
    /// others look, for statistics.
    seat: AtomicPtr<Seat<L>>,
    /// O: the pair, and how many; as `seat`.
    what: AtomicU64,
}

/// Stripe and colour, as in the word.
#[inline]
fn pair_of<L>((_, stripe, colour): Kept<L>) -> u64 {
    u64::from(stripe) | u64::from(colour) << 8
}

impl<L: Tied> Carry<L> {
    pub(crate) fn new() -> Carry<L> {
        Carry { seat: AtomicPtr::new(ptr::null_mut()), what: AtomicU64::new(0) }
    }

    /// Whether it is empty.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.what.load(Ordering::Relaxed) >> COUNT == 0
    }

    /// Whether what is carried is of this pair.
    #[inline]
    fn is_of(&self, kept: Kept<L>) -> bool {
        let pair = self.what.load(Ordering::Relaxed) & ((1 << COUNT) - 1);
        pair == pair_of(kept) && self.seat.load(Ordering::Relaxed) == kept.0.as_ptr()
    }

    /// Carry: an instance is over. What is carried already is of the same pair. True where that is
    /// enough: PutDown has to follow.
    #[inline]
    #[must_use]
    pub(crate) fn add(&self, kept: Kept<L>) -> bool {
        let what = self.what.load(Ordering::Relaxed);
        let many = (what >> COUNT) + 1;
        if many == 1 {
            self.seat.store(kept.0.as_ptr(), Ordering::Relaxed);
        }
        debug_assert!(many == 1 || self.is_of(kept), "of one pair");
        // Release pairs with `look`: who counts these counts them among those that came.
        self.what.store(pair_of(kept) | many << COUNT, Ordering::Release);
        many >= MOST
    }

    /// The worker is about to run an instance: PutDown, unless that is of the same pair. `None`: of none.
    #[inline]
    pub(crate) fn before<C: Care, S: AsRef<Colours<C, L>> + ?Sized>(
        &self,
        next: Option<Kept<L>>,
        of: impl FnOnce(&L) -> Arc<S>,
    ) {
        if !self.is_empty() && !next.is_some_and(|next| self.is_of(next)) {
            self.put_down_all(of);
        }
    }

    /// PutDown: the worker is about to do something else than to start an instance of the same pair. All
    /// that it carries Leave. `of`: see [`leave`].
    #[inline]
    pub(crate) fn put_down<C: Care, S: AsRef<Colours<C, L>> + ?Sized>(
        &self,
        of: impl FnOnce(&L) -> Arc<S>,
    ) {
        if !self.is_empty() {
            self.put_down_all(of);
        }
    }

    #[cold]
    fn put_down_all<C: Care, S: AsRef<Colours<C, L>> + ?Sized>(
        &self,
        of: impl FnOnce(&L) -> Arc<S>,
    ) {
        let what = self.what.load(Ordering::Relaxed);
        let Some(seat) = NonNull::new(self.seat.load(Ordering::Relaxed)) else { return };
        let many = what >> COUNT;
        // Before they are over, so that nobody who counts what is carried subtracts them twice.
        self.what.store(0, Ordering::Relaxed);
        let kept = (seat, (what & 0xff) as u32, (what >> 8 & 0xff) as u8);
        // SAFETY: so many places of this pair were handed over, and are given back once.
        unsafe { leave::<C, L, S>(kept, many, of) }
    }

    /// The seat's address, and how many are carried there (a moment ago).
    pub(crate) fn look(&self) -> (usize, u64) {
        // Together with a second look that finds the same it is one moment's.
        let seat = self.seat.load(Ordering::Acquire).addr();
        (seat, self.what.load(Ordering::Acquire) >> COUNT)
    }
}
