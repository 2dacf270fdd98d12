//! Where the links of a queue lie: memory that a queuer may touch before it knows that the link is
//! still there.
//!
//! Read `README.md` beside this file first: the comments here use its names for the steps and states.

use std::marker::PhantomData;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use corewise_sync::atomic::{AtomicPtr, Ordering};
use corewise_sync::cell::UnsafeCell;
use corewise_sync::fence::{FencePolicy, FullFence};
use corewise_sync::hint;

use crate::pwq::counts::{CameIn, Care, Pair, Tally};
use crate::pwq::deferred::Carry;
use crate::pwq::flush::{Colours, Members, complete_all};

/// What lies on a seat: a [`Link`](crate::pwq::Link), or a model's.
pub(crate) trait Tied: Send + Sync {
    /// It was taken off its seat: all that was queued there is over. Under the lock of the colours.
    fn collected(&self);
}

/// How many stripes an entry can tell apart, and a ticket.
pub(crate) const STRIPES: usize = 128;

/// How many bits of a seat's address may be set. A ticket has others in the rest.
pub(crate) const ADDRESS_BITS: u32 = 48;

/// A place for a link, and the counts of what is queued there.
#[repr(align(128))]
pub(crate) struct Seat<L> {
    pub(crate) tally: Tally,
    /// P: written under the lock of the colours while the seat is on no list; read by who has
    /// Validated, until the instance is over.
    link: UnsafeCell<Option<L>>,
}

// SAFETY: the link is written while nobody reads it (`README.md`), and shared: `L: Send + Sync`.
unsafe impl<L: Send + Sync> Send for Seat<L> {}
// SAFETY: as above.
unsafe impl<L: Send + Sync> Sync for Seat<L> {}

impl<L> Seat<L> {
    /// The link.
    ///
    /// # Safety
    /// One is there, for as long as the reference lives: the seat is on the list and the lock is
    /// held, or the caller's instance isn't over, or the caller has Validated and hasn't pushed yet.
    #[inline]
    pub(crate) unsafe fn link(&self) -> &L {
        // SAFETY: as the caller says.
        let link = self.link.with(|link| unsafe { (*link).as_ref() });
        if hint::EVERY_SCHEDULE || cfg!(debug_assertions) {
            return link.expect("a link is there for those who may ask");
        }
        // SAFETY: as the caller says.
        unsafe { link.unwrap_unchecked() }
    }
}

/// Owns a seat. Others have pointers to it.
pub(crate) struct Owned<L>(NonNull<Seat<L>>);

// SAFETY: as a `Box` of it.
unsafe impl<L: Send + Sync> Send for Owned<L> {}

impl<L> Owned<L> {
    fn new(stripes: usize) -> Self {
        let seat = Seat { tally: Tally::new(stripes), link: UnsafeCell::new(None) };
        let seat = NonNull::from(Box::leak(Box::new(seat)));
        let high = (seat.addr().get() as u64) >> ADDRESS_BITS;
        let packed = cfg!(any(target_arch = "x86_64", target_arch = "aarch64"));
        assert!(!packed || high == 0, "no address in user space has more bits, without tags");
        Owned(seat)
    }

    pub(crate) fn seat(&self) -> &Seat<L> {
        // SAFETY: it is owned, and freed by the drop alone.
        unsafe { self.0.as_ref() }
    }

    /// Fill.
    fn fill(&self, link: L) {
        // SAFETY: it is spare: no entry has named it since it was collected, so nobody has Validated,
        // and who hasn't reads no link.
        self.seat().link.with_mut(|place| unsafe { *place = Some(link) });
    }

    /// Takes the link off.
    fn empty(&self) -> Option<L> {
        // SAFETY: it is quiet and retired: all that was queued is over, and nobody Validates any more.
        // `is_quiet` acquires what they did.
        self.seat().link.with_mut(|place| unsafe { (*place).take() })
    }
}

impl<L> Drop for Owned<L> {
    fn drop(&mut self) {
        // SAFETY: it came from a box. It is dropped with the queue, which is there for as long as there
        // is a handle, so that no queuer has a pointer to it, or a link on any seat, so that no
        // instance has.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

/// The accesses around it are SeqCst, which loom takes for weaker ones.
#[inline]
fn order<C: Care>() {
    if C::ORDERED {
        FullFence::implied();
    }
}

/// The entry of a CPU: the seat that its work goes to, and the stripe there.
pub(crate) struct Entry<L> {
    /// A: the seat, and the stripe in its lowest bits; null where the CPU has no link. Stored under the
    /// lock of the attributes, read by everybody who queues.
    place: AtomicPtr<Seat<L>>,
}

impl<L> Entry<L> {
    /// No link.
    pub(crate) fn new() -> Self {
        Entry { place: AtomicPtr::new(ptr::null_mut()) }
    }

    /// Publish.
    pub(crate) fn publish(&self, to: Option<(NonNull<Seat<L>>, u32)>) {
        let place = to.map_or(ptr::null_mut(), |(seat, stripe)| {
            seat.as_ptr().map_addr(|address| address | (stripe as usize % STRIPES))
        });
        // SeqCst: see `README.md`. Release: the link is seen whole.
        self.place.store(place, Ordering::SeqCst);
    }

    #[inline]
    fn split(place: *mut Seat<L>) -> Option<(NonNull<Seat<L>>, u32)> {
        let (seat, stripe) = Self::parts(place);
        Some((NonNull::new(seat)?, stripe))
    }

    #[inline]
    fn parts(place: *mut Seat<L>) -> (*mut Seat<L>, u32) {
        // Seats are aligned to the number of stripes.
        let stripe = (place.addr() % STRIPES) as u32;
        (place.map_addr(|address| address & !(STRIPES - 1)), stripe)
    }
}

impl<C: Care, L: Tied> Colours<C, L> {
    /// Fill: a seat for a link, that flushes look at from here on.
    pub(crate) fn fill(&self, stripes: usize, link: L) -> NonNull<Seat<L>> {
        let mut members = self.members.lock();
        let fits = |spare: &Owned<L>| spare.seat().tally.stripes() == stripes;
        let owned = match members.spares.iter().position(fits) {
            Some(position) => members.spares.swap_remove(position),
            None => Owned::new(stripes),
        };
        owned.fill(link);
        let seat = owned.0;
        members.seats.push(owned);
        seat
    }

    /// Pick; `None` where the CPU has no link. The entry names seats of these colours. It writes nothing.
    #[inline]
    pub(crate) fn pick<'a>(&'a self, entry: &'a Entry<L>) -> Option<Picked<'a, L>> {
        // Acquire: the seat is seen whole.
        let place = entry.place.load(Ordering::Acquire);
        let (seat, stripe) = Entry::split(place)?;
        let colour = self.colour();
        // SAFETY: entries name seats of these colours, which are freed with them.
        let came = unsafe { seat.as_ref() }.tally.came(stripe, colour);
        Some(Picked { entry, came, at: Entered { place, colour, seats: PhantomData } })
    }

    /// Enter and Validate; `None` where the entry is another one meanwhile.
    #[inline]
    pub(crate) fn enter<'a>(&'a self, picked: Picked<'a, L>) -> Option<Entered<'a, L>> {
        // Enter.
        picked.came.enter();
        order::<C>();
        // Validate.
        let again = picked.entry.place.load(Ordering::SeqCst);
        if again != picked.at.place && C::VALIDATES {
            self.retract(picked.at);
            return None;
        }
        Some(picked.at)
    }

    /// TakeOver: without Enter and Validate; `None` where the worker doesn't carry such a place.
    #[inline]
    pub(crate) fn take_over<'a>(
        &'a self,
        carry: &Carry<L>,
        picked: &Picked<'a, L>,
    ) -> Option<Entered<'a, L>> {
        let Entered { place, colour, .. } = picked.at;
        carry.take_over(picked.at.place()).then_some(Entered { place, colour, seats: PhantomData })
    }

    /// Retract.
    #[cold]
    pub(crate) fn retract(&self, entered: Entered<'_, L>) {
        let (seat, stripe, colour) = entered.keep();
        // SAFETY: seats of these colours are freed with them.
        let tally = &unsafe { seat.as_ref() }.tally;
        tally.undo(stripe);
        let pair = tally.pair(stripe, colour);
        if !pair.leave::<C>(1) {
            self.leave_watched(seat, pair, 1, colour);
        }
    }

    /// Leave, where somebody may watch, and these are the last. The caller has a reference to the colours
    /// beside that of the link's.
    #[cold]
    pub(crate) fn leave_watched(
        &self,
        seat: NonNull<Seat<L>>,
        pair: Pair<'_>,
        many: u64,
        colour: u8,
    ) {
        let (drained, gone) = {
            let mut members = self.members.lock();
            let drained = pair.leave_watched(many);
            let drained =
                if drained { members.flushes.drained(colour as usize) } else { Vec::new() };
            (drained, members.collect_if_quiet(seat))
        };
        complete_all(drained);
        drop(gone);
    }

    /// Retire: all seats but `live`, whose entries have been published instead.
    pub(crate) fn retire_all_but(&self, live: &[NonNull<Seat<L>>]) {
        let gone: Vec<_> = {
            let mut members = self.members.lock();
            let old = members.seats.iter().filter(|owned| !live.contains(&owned.0));
            let old: Vec<_> = old.map(|owned| owned.0).collect();
            old.iter().for_each(|seat| {
                // SAFETY: it is on the list, whose lock is held.
                unsafe { seat.as_ref() }.tally.retire();
            });
            order::<C>();
            old.into_iter().map(|seat| members.collect_if_quiet(seat)).collect()
        };
        drop(gone);
    }

    /// The last handle is gone: nobody queues any more.
    pub(crate) fn close(&self) {
        self.retire_all_but(&[]);
    }
}

impl<L: Tied> Members<L> {
    /// Collect, where it is retired and quiet. The link is to be dropped with no lock held: it may have
    /// the last reference to the queue.
    #[must_use]
    pub(crate) fn collect_if_quiet(&mut self, seat: NonNull<Seat<L>>) -> Option<L> {
        let quiet = |owned: &Owned<L>| {
            let tally = &owned.seat().tally;
            owned.0 == seat && tally.is_retired() && tally.is_quiet()
        };
        let position = self.seats.iter().position(quiet)?;
        let owned = self.seats.remove(position);
        let link = owned.empty();
        link.iter().for_each(Tied::collected);
        owned.seat().tally.recycle();
        self.spares.push(owned);
        link
    }
}

/// What a queuer has Picked: nothing of it is to be trusted before it has Entered and Validated.
pub(crate) struct Picked<'a, L> {
    entry: &'a Entry<L>,
    came: CameIn<'a>,
    /// Where it is once it has Validated.
    at: Entered<'a, L>,
}

/// A queuer that has Validated. It has a place in the counts for its instance, which is a ticket's once
/// that was [kept](Entered::keep); else it has to [Retract](Colours::retract). Two words, so that it is
/// handed on in registers.
#[must_use]
pub(crate) struct Entered<'a, L> {
    /// As in the entry.
    place: *mut Seat<L>,
    colour: u8,
    /// They are there for as long as the handle that was queued by.
    seats: PhantomData<&'a Seat<L>>,
}

/// An instance's place in the counts: seat, stripe and colour.
pub(crate) type Kept<L> = (NonNull<Seat<L>>, u32, u8);

impl<L> Entered<'_, L> {
    #[inline]
    pub(crate) fn link(&self) -> &L {
        let (seat, ..) = self.place();
        // SAFETY: it has Validated, and its place isn't kept: nobody else is given one.
        unsafe { seat.as_ref().link() }
    }

    #[inline]
    pub(crate) fn stripe(&self) -> u32 {
        self.place().1
    }

    /// Hands over its place in the counts, to be given back by [`leave`].
    #[inline]
    pub(crate) fn keep(self) -> Kept<L> {
        self.place()
    }

    #[inline]
    fn place(&self) -> Kept<L> {
        let (seat, stripe) = Entry::parts(self.place);
        // SAFETY: the entry was split before.
        (unsafe { NonNull::new_unchecked(seat) }, stripe, self.colour)
    }
}

/// Leave: so many instances of a pair are over. `of` is called while they aren't, where the colours are
/// needed after.
///
/// # Safety
/// So many such places were [kept](Entered::keep), and aren't used again.
#[inline]
pub(crate) unsafe fn leave<C: Care, L: Tied, S: AsRef<Colours<C, L>> + ?Sized>(
    (at, stripe, colour): Kept<L>,
    many: u64,
    of: impl FnOnce(&L) -> Arc<S>,
) {
    // SAFETY: they aren't over, so the seat is there; what lives on is a pair of references to
    // atomics, which aren't touched after Leave.
    let seat = unsafe { at.as_ref() };
    let pair = seat.tally.pair(stripe, colour);
    if !pair.leave::<C>(many) {
        // SAFETY: still in flight.
        let shared = of(unsafe { seat.link() });
        (*shared).as_ref().leave_watched(at, pair, many, colour);
    }
}
