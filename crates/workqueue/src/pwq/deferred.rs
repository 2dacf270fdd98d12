//! What a worker carries: instances that it has run, and that it hasn't counted out yet.
//!
//! Read `README.md` beside this file first: the comments here use its names for the steps.

use std::ptr::{self, NonNull};
use std::sync::Arc;

use corewise_sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use crate::pwq::counts::Care;
use crate::pwq::flush::Colours;
use crate::pwq::slot::{Kept, Seat, Tied, leave};

/// The most that is carried, or taken over without a word to the queue.
const MOST: u64 = 64;

/// In the word of a [`Carry`] each of these has 16 bits. The lowest are the stripe and the colour; then
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
pub(crate) struct Carry<L> {
    /// O: where they were queued, as long as there are any: their counts keep it. Atomic only because
    /// others look, for statistics.
    seat: AtomicPtr<Seat<L>>,
    /// O: the pair, and the counts; as `seat`.
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
        part(self.what.load(Ordering::Relaxed), MANY) == 0
    }

    /// Whether what is carried is of this pair.
    #[inline]
    fn is_of(&self, kept: Kept<L>) -> bool {
        part(self.what.load(Ordering::Relaxed), 0) == pair_of(kept)
            && self.seat.load(Ordering::Relaxed) == kept.0.as_ptr()
    }

    /// Carry: an instance is over. What is carried already is of the same pair. True where that is
    /// enough: PutDown has to follow.
    #[inline]
    #[must_use]
    pub(crate) fn add(&self, kept: Kept<L>) -> bool {
        let what = self.what.load(Ordering::Relaxed);
        let next = if part(what, MANY) == 0 {
            self.seat.store(kept.0.as_ptr(), Ordering::Relaxed);
            pair_of(kept) | 1 << MANY | part(what, TURN) << TURN
        } else {
            debug_assert!(self.is_of(kept), "of one pair");
            what + (1 << MANY)
        };
        // Release pairs with `look`: who counts these counts them among those that came.
        self.what.store(next, Ordering::Release);
        part(next, MANY) >= MOST || part(next, AGAIN) >= MOST
    }

    /// TakeOver: an instance that is queued from inside gets the place of one that is carried, if that is
    /// the one which it would get by Enter. One stays.
    #[inline]
    #[must_use]
    pub(crate) fn take_over(&self, kept: Kept<L>) -> bool {
        let what = self.what.load(Ordering::Relaxed);
        let takes = part(what, MANY) > 1 && self.is_of(kept);
        if takes {
            self.what.store(what - (1 << MANY) + (1 << AGAIN), Ordering::Release);
        }
        takes
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
        self.before(None, of);
    }

    #[cold]
    fn put_down_all<C: Care, S: AsRef<Colours<C, L>> + ?Sized>(
        &self,
        of: impl FnOnce(&L) -> Arc<S>,
    ) {
        let what = self.what.load(Ordering::Relaxed);
        let Some(seat) = NonNull::new(self.seat.load(Ordering::Relaxed)) else { return };
        let kept = (seat, (what & 0xff) as u32, (what >> 8 & 0xff) as u8);
        let (many, again) = (part(what, MANY), part(what, AGAIN));
        if again > 0 {
            // SAFETY: what is carried keeps the seat.
            unsafe { seat.as_ref() }.tally.queued_again(kept.1, again);
        }
        // Before they are over, so that nobody who counts what is carried subtracts them twice.
        self.what.store(part(what, TURN).wrapping_add(1) << TURN, Ordering::Relaxed);
        // SAFETY: so many places of this pair were handed over, and are given back once.
        unsafe { leave::<C, L, S>(kept, many, of) }
    }

    /// What is carried (a moment ago).
    pub(crate) fn look(&self) -> Look {
        let seat = self.seat.load(Ordering::Acquire).addr();
        Look { seat, what: self.what.load(Ordering::Acquire) }
    }
}

/// What was carried at a moment, if it is still the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Look {
    /// The seat's address.
    pub(crate) seat: usize,
    what: u64,
}

impl Look {
    /// How many are carried.
    pub(crate) fn many(self) -> u64 {
        part(self.what, MANY)
    }

    /// How many were queued without having been counted in anew, and that the seat doesn't know of yet.
    pub(crate) fn again(self) -> u64 {
        part(self.what, AGAIN)
    }
}
