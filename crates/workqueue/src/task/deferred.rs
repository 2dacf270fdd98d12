//! What a worker carries: instances that it has run, and that it hasn't counted out yet.
//!
//! Read `../pwq/README.md` first: the comments here use its names for the steps.

use std::mem;
use std::ptr::{self, NonNull};

use corewise_sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use crate::task::ticket::{Event, Home, MaybeTicket, Spot, Ticket};

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
pub(crate) struct DeferredEnds {
    /// O: where they were queued, as long as there are any: their counts keep it. Atomic only because
    /// others look, for statistics.
    home: AtomicPtr<Home>,
    /// O: the pair, and the counts; as `home`.
    what: AtomicU64,
}

/// Stripe and colour, as in the word.
#[inline]
fn pair_of(Spot { stripe, colour, .. }: Spot) -> u64 {
    u64::from(stripe) | u64::from(colour) << 8
}

impl DeferredEnds {
    pub(crate) fn new() -> DeferredEnds {
        DeferredEnds { home: AtomicPtr::new(ptr::null_mut()), what: AtomicU64::new(0) }
    }

    /// Whether it is empty.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        part(self.what.load(Ordering::Relaxed), MANY) == 0
    }

    /// Whether what is carried is of this pair.
    #[inline]
    fn is_of(&self, at: Spot) -> bool {
        part(self.what.load(Ordering::Relaxed), 0) == pair_of(at)
            && self.home.load(Ordering::Relaxed) == at.home.as_ptr()
    }

    /// The worker's instance is over, and is carried, unless the limiter has to know: that one is counted out.
    #[inline]
    pub(crate) fn ends(&self, ticket: MaybeTicket) {
        let Some(at) = ticket.as_ref().filter(|ticket| !ticket.is_counted()).map(Ticket::spot)
        else {
            return;
        };
        mem::forget(ticket);
        // SAFETY: the place was the ticket's, which is given up.
        if unsafe { self.add(at) } {
            self.stops();
        }
    }

    /// Defer: an instance is over. The instances carried already are of the same pair. True where that is
    /// enough: CountOut has to follow.
    ///
    /// # Safety
    /// The place was this instance's alone, and its home is there until it has Left.
    #[inline]
    #[must_use]
    pub(crate) unsafe fn add(&self, at: Spot) -> bool {
        let what = self.what.load(Ordering::Relaxed);
        let next = if part(what, MANY) == 0 {
            self.home.store(at.home.as_ptr(), Ordering::Relaxed);
            pair_of(at) | 1 << MANY | part(what, TURN) << TURN
        } else {
            debug_assert!(self.is_of(at), "of one pair");
            what + (1 << MANY)
        };
        // Release pairs with `look`: who counts these counts them among those that came.
        self.what.store(next, Ordering::Release);
        part(next, MANY) >= MOST || part(next, AGAIN) >= MOST
    }

    /// Reuse: an instance that is queued from inside gets the place of one that is carried, if that is
    /// the one which it would get by Enter. One stays. True where it was.
    #[inline]
    #[must_use]
    pub(crate) fn reuse(&self, at: Spot) -> bool {
        let what = self.what.load(Ordering::Relaxed);
        let takes = part(what, MANY) > 1 && self.is_of(at);
        if takes {
            self.what.store(what - (1 << MANY) + (1 << AGAIN), Ordering::Release);
        }
        takes
    }

    /// Before the worker runs an instance, or does anything else with it: CountOut, unless that is of the
    /// same pair.
    #[inline]
    pub(crate) fn starts(&self, next: Option<&Ticket>) {
        // Without a ticket only in models of a pool alone, where nothing is carried.
        if let Some(next) = next {
            self.before((!next.is_counted()).then(|| next.spot()));
        }
    }

    /// CountOut: the worker is about to do something else than to start an instance of the same pair. All
    /// that it carries Leave.
    #[inline]
    pub(crate) fn stops(&self) {
        self.before(None);
    }

    /// The worker is about to run an instance of this pair: CountOut, unless it carries such. `None`: of
    /// none.
    #[inline]
    pub(crate) fn before(&self, next: Option<Spot>) {
        if !self.is_empty() && !next.is_some_and(|next| self.is_of(next)) {
            self.count_out();
        }
    }

    #[cold]
    fn count_out(&self) {
        let what = self.what.load(Ordering::Relaxed);
        let Some(home) = NonNull::new(self.home.load(Ordering::Relaxed)) else { return };
        let at = Spot { home, stripe: (what & 0xff) as u32, colour: (what >> 8 & 0xff) as u8 };
        let (many, again) = (part(what, MANY), part(what, AGAIN));
        // SAFETY: what is carried keeps the home.
        let schedule = unsafe { home.as_ref() }.schedule;
        if again > 0 {
            // SAFETY: as above.
            unsafe { schedule.note(at, Event::Again(again)) };
        }
        // Before they are over, so that nobody who counts what is carried subtracts them twice.
        self.what.store(part(what, TURN).wrapping_add(1) << TURN, Ordering::Relaxed);
        // SAFETY: so many places of this pair were handed over, and are given back once.
        unsafe { schedule.leave(at, many, false) }
    }

    /// What is carried (a moment ago).
    pub(crate) fn look(&self) -> Look {
        let home = self.home.load(Ordering::Acquire).addr();
        Look { home, what: self.what.load(Ordering::Acquire) }
    }
}

/// What was carried at a moment, if it is still the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Look {
    /// The home's address.
    pub(crate) home: usize,
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
