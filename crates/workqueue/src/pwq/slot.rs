//! Where the pwqs of a queue lie: memory that a queuer may touch before it knows that the pwq is
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
use crate::pwq::deferred::DeferredEnds;
use crate::pwq::flush::{Colours, Members, complete_all};

/// What lies on a slot: a [`Pwq`](crate::pwq::Pwq), or a model's.
pub(crate) trait InSlot: Send + Sync {
    /// It was taken off its slot: all that was queued there is over. Under the lock of the colours.
    fn collected(&self);
}

/// How many stripes an entry can tell apart, and a ticket.
pub(crate) const STRIPES: usize = 128;

/// How many bits of a slot's address may be set. A ticket has others in the rest.
pub(crate) const ADDRESS_BITS: u32 = 48;

/// A place for a pwq, and the counts of what is queued there.
#[repr(align(128))]
pub(crate) struct PwqSlot<L> {
    pub(crate) tally: Tally,
    /// P: written under the lock of the colours while the slot is on no list; read by who has
    /// Validated, until the instance is over.
    pwq: UnsafeCell<Option<L>>,
}

// SAFETY: the pwq is written while nobody reads it (`README.md`), and shared: `L: Send + Sync`.
unsafe impl<L: Send + Sync> Send for PwqSlot<L> {}
// SAFETY: as above.
unsafe impl<L: Send + Sync> Sync for PwqSlot<L> {}

impl<L> PwqSlot<L> {
    /// The pwq.
    ///
    /// # Safety
    /// One is there, for as long as the reference lives: the slot is on the list and the lock is
    /// held, or the caller's instance isn't over, or the caller has Validated and hasn't pushed yet.
    #[inline]
    pub(crate) unsafe fn pwq(&self) -> &L {
        // SAFETY: as the caller says.
        let pwq = self.pwq.with(|pwq| unsafe { (*pwq).as_ref() });
        if hint::EVERY_SCHEDULE || cfg!(debug_assertions) {
            return pwq.expect("a pwq is there for those who may ask");
        }
        // SAFETY: as the caller says.
        unsafe { pwq.unwrap_unchecked() }
    }
}

/// Owns a slot. Others have pointers to it.
pub(crate) struct Owned<L>(NonNull<PwqSlot<L>>);

// SAFETY: as a `Box` of it.
unsafe impl<L: Send + Sync> Send for Owned<L> {}

impl<L> Owned<L> {
    fn new(stripes: usize) -> Self {
        let slot = PwqSlot { tally: Tally::new(stripes), pwq: UnsafeCell::new(None) };
        let slot = NonNull::from(Box::leak(Box::new(slot)));
        let high = (slot.addr().get() as u64) >> ADDRESS_BITS;
        let packed = cfg!(any(target_arch = "x86_64", target_arch = "aarch64"));
        assert!(!packed || high == 0, "no address in user space has more bits, without tags");
        Owned(slot)
    }

    pub(crate) fn slot(&self) -> &PwqSlot<L> {
        // SAFETY: it is owned, and freed by the drop alone.
        unsafe { self.0.as_ref() }
    }

    /// Fill.
    fn fill(&self, pwq: L) {
        // SAFETY: it is spare: no entry has named it since it was collected, so nobody has Validated,
        // and who hasn't reads no pwq.
        self.slot().pwq.with_mut(|place| unsafe { *place = Some(pwq) });
    }

    /// Takes the pwq off.
    fn empty(&self) -> Option<L> {
        // SAFETY: it is quiet and retired: all that was queued is over, and nobody Validates any more.
        // `is_quiet` acquires what they did.
        self.slot().pwq.with_mut(|place| unsafe { (*place).take() })
    }
}

impl<L> Drop for Owned<L> {
    fn drop(&mut self) {
        // SAFETY: it came from a box. It is dropped with the queue, which is there for as long as there
        // is a handle, so that no queuer has a pointer to it, or a pwq on any slot, so that no
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

/// The entry of a CPU: the slot that its work goes to, and the stripe there.
pub(crate) struct Entry<L> {
    /// A: the slot, and the stripe in its lowest bits; null where the CPU has no pwq. Stored under the
    /// lock of the attributes, read by everybody who queues.
    place: AtomicPtr<PwqSlot<L>>,
}

impl<L> Entry<L> {
    /// No pwq.
    pub(crate) fn new() -> Self {
        Entry { place: AtomicPtr::new(ptr::null_mut()) }
    }

    /// Publish.
    pub(crate) fn publish(&self, to: Option<(NonNull<PwqSlot<L>>, u32)>) {
        let place = to.map_or(ptr::null_mut(), |(slot, stripe)| {
            slot.as_ptr().map_addr(|address| address | (stripe as usize % STRIPES))
        });
        // SeqCst: see `README.md`. Release: the pwq is seen whole.
        self.place.store(place, Ordering::SeqCst);
    }

    #[inline]
    fn split(place: *mut PwqSlot<L>) -> Option<(NonNull<PwqSlot<L>>, u32)> {
        let (slot, stripe) = Self::parts(place);
        Some((NonNull::new(slot)?, stripe))
    }

    #[inline]
    fn parts(place: *mut PwqSlot<L>) -> (*mut PwqSlot<L>, u32) {
        // Seats are aligned to the number of stripes.
        let stripe = (place.addr() % STRIPES) as u32;
        (place.map_addr(|address| address & !(STRIPES - 1)), stripe)
    }
}

impl<C: Care, L: InSlot> Colours<C, L> {
    /// Fill: a slot for a pwq, that flushes look at from here on.
    pub(crate) fn fill(&self, stripes: usize, pwq: L) -> NonNull<PwqSlot<L>> {
        let mut members = self.members.lock();
        let fits = |spare: &Owned<L>| spare.slot().tally.stripes() == stripes;
        let owned = match members.spares.iter().position(fits) {
            Some(position) => members.spares.swap_remove(position),
            None => Owned::new(stripes),
        };
        owned.fill(pwq);
        let slot = owned.0;
        members.slots.push(owned);
        slot
    }

    /// Pick; `None` where the CPU has no pwq. The entry names slots of these colours. It writes nothing.
    #[inline]
    pub(crate) fn pick<'a>(&'a self, entry: &'a Entry<L>) -> Option<Picked<'a, L>> {
        // Acquire: the slot is seen whole.
        let place = entry.place.load(Ordering::Acquire);
        let (slot, stripe) = Entry::split(place)?;
        let colour = self.colour();
        // SAFETY: entries name slots of these colours, which are freed with them.
        let came = unsafe { slot.as_ref() }.tally.came(stripe, colour);
        Some(Picked { entry, came, at: Entered { place, colour, slots: PhantomData } })
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

    /// Reuse: without Enter and Validate; `None` where the worker doesn't carry such a place.
    #[inline]
    pub(crate) fn reuse<'a>(
        &'a self,
        carry: &DeferredEnds<L>,
        picked: &Picked<'a, L>,
    ) -> Option<Entered<'a, L>> {
        let Entered { place, colour, .. } = picked.at;
        carry.reuse(picked.at.place()).then_some(Entered { place, colour, slots: PhantomData })
    }

    /// Retract.
    #[cold]
    pub(crate) fn retract(&self, entered: Entered<'_, L>) {
        let (slot, stripe, colour) = entered.keep();
        // SAFETY: slots of these colours are freed with them.
        let tally = &unsafe { slot.as_ref() }.tally;
        tally.undo(stripe);
        let pair = tally.pair(stripe, colour);
        if !pair.leave::<C>(1) {
            self.leave_watched(slot, pair, 1, colour);
        }
    }

    /// Leave, where somebody may watch, and these are the last. The caller has a reference to the colours
    /// beside that of the pwq's.
    #[cold]
    pub(crate) fn leave_watched(
        &self,
        slot: NonNull<PwqSlot<L>>,
        pair: Pair<'_>,
        many: u64,
        colour: u8,
    ) {
        let (drained, gone) = {
            let mut members = self.members.lock();
            let drained = pair.leave_watched(many);
            let drained =
                if drained { members.flushes.drained(colour as usize) } else { Vec::new() };
            (drained, members.collect_if_quiet(slot))
        };
        complete_all(drained);
        drop(gone);
    }

    /// Retire: all slots but `live`, whose entries have been published instead.
    pub(crate) fn retire_all_but(&self, live: &[NonNull<PwqSlot<L>>]) {
        let gone: Vec<_> = {
            let mut members = self.members.lock();
            let old = members.slots.iter().filter(|owned| !live.contains(&owned.0));
            let old: Vec<_> = old.map(|owned| owned.0).collect();
            old.iter().for_each(|slot| {
                // SAFETY: it is on the list, whose lock is held.
                unsafe { slot.as_ref() }.tally.retire();
            });
            order::<C>();
            old.into_iter().map(|slot| members.collect_if_quiet(slot)).collect()
        };
        drop(gone);
    }

    /// The last handle is gone: nobody queues any more.
    pub(crate) fn close(&self) {
        self.retire_all_but(&[]);
    }
}

impl<L: InSlot> Members<L> {
    /// Collect, where it is retired and quiet. The pwq is to be dropped with no lock held: it may have
    /// the last reference to the queue.
    #[must_use]
    pub(crate) fn collect_if_quiet(&mut self, slot: NonNull<PwqSlot<L>>) -> Option<L> {
        let quiet = |owned: &Owned<L>| {
            let tally = &owned.slot().tally;
            owned.0 == slot && tally.is_retired() && tally.is_quiet()
        };
        let position = self.slots.iter().position(quiet)?;
        let owned = self.slots.remove(position);
        let pwq = owned.empty();
        pwq.iter().for_each(InSlot::collected);
        owned.slot().tally.recycle();
        self.spares.push(owned);
        pwq
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
    place: *mut PwqSlot<L>,
    colour: u8,
    /// They are there for as long as the handle that was queued by.
    slots: PhantomData<&'a PwqSlot<L>>,
}

/// An instance's place in the counts: slot, stripe and colour.
pub(crate) type Kept<L> = (NonNull<PwqSlot<L>>, u32, u8);

impl<L> Entered<'_, L> {
    #[inline]
    pub(crate) fn pwq(&self) -> &L {
        let (slot, ..) = self.place();
        // SAFETY: it has Validated, and its place isn't kept: nobody else is given one.
        unsafe { slot.as_ref().pwq() }
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
        let (slot, stripe) = Entry::parts(self.place);
        // SAFETY: the entry was split before.
        (unsafe { NonNull::new_unchecked(slot) }, stripe, self.colour)
    }
}

/// Leave: so many instances of a pair are over. `of` is called while they aren't, where the colours are
/// needed after.
///
/// # Safety
/// So many such places were [kept](Entered::keep), and aren't used again.
#[inline]
pub(crate) unsafe fn leave<C: Care, L: InSlot, S: AsRef<Colours<C, L>> + ?Sized>(
    (at, stripe, colour): Kept<L>,
    many: u64,
    of: impl FnOnce(&L) -> Arc<S>,
) {
    // SAFETY: they aren't over, so the slot is there; what lives on is a pair of references to
    // atomics, which aren't touched after Leave.
    let slot = unsafe { at.as_ref() };
    let pair = slot.tally.pair(stripe, colour);
    if !pair.leave::<C>(many) {
        // SAFETY: still in flight.
        let shared = of(unsafe { slot.pwq() });
        (*shared).as_ref().leave_watched(at, pair, many, colour);
    }
}
