//! How a queuer comes to a slot and is counted there, how it leaves, and when a pwq is collected.
//!
//! Read `README.md` beside this file first: the comments here use its names for the steps and states.

use std::ptr::NonNull;
use std::sync::Arc;

use corewise_sync::atomic::Ordering;
use corewise_sync::fence::{FencePolicy, FullFence};

use crate::pwq::counts::{Care, Pair};
use crate::pwq::flush::{Colours, Members};
use crate::pwq::slot::{Entry, InSlot, Owned, PwqSlot};
use crate::task::flushers;
use crate::task::ticket::Spot;

/// The accesses around it are SeqCst, which loom takes for weaker ones.
#[inline]
fn order<C: Care>() {
    if C::ORDERED {
        FullFence::implied();
    }
}

impl<C: Care, L: InSlot> Colours<C, L> {
    /// Fill: a slot for a pwq, that flushes look at from here on.
    pub(crate) fn fill(&self, stripes: usize, pwq: L) -> NonNull<PwqSlot<L>> {
        let mut members = self.members.lock();
        let fits = |spare: &Owned<L>| spare.slot().tally.stripes() == stripes;
        let owned = match members.spares.iter().position(fits) {
            Some(position) => members.spares.swap_remove(position),
            None => Owned::new(pwq.home(), stripes),
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
        let (slot, stripe) = Entry::parts(place);
        let slot = NonNull::new(slot)?;
        let colour = self.colour();
        // SAFETY: entries name slots of these colours, which are freed with them.
        let pair = unsafe { slot.as_ref() }.tally.pair(stripe, colour);
        Some(Picked { entry, place, colour, pair })
    }

    /// Enter and Validate: the caller's place in the counts, to be given back by [`leave`]. `None` where the entry
    /// is another one meanwhile.
    #[inline]
    #[must_use]
    pub(crate) fn enter(&self, picked: Picked<'_, L>) -> Option<Spot> {
        // Enter.
        picked.pair.enter();
        order::<C>();
        // Validate.
        let again = picked.entry.place.load(Ordering::SeqCst);
        if again != picked.place && C::VALIDATES {
            self.retract(picked.spot());
            return None;
        }
        Some(picked.spot())
    }

    /// Retract.
    #[cold]
    fn retract(&self, Spot { home, stripe, colour }: Spot) {
        let slot = home.cast::<PwqSlot<L>>();
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
        // Outside the lock: a woken waiter may want it at once.
        flushers::wake(drained);
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
    /// As it was in the entry.
    place: *mut PwqSlot<L>,
    colour: u8,
    pair: Pair<'a>,
}

impl<L> Picked<'_, L> {
    /// Where it would Enter.
    #[inline]
    pub(crate) fn spot(&self) -> Spot {
        let (slot, stripe) = Entry::parts(self.place);
        // SAFETY: `pick` looked.
        let home = unsafe { NonNull::new_unchecked(slot) }.cast();
        Spot { home, stripe, colour: self.colour }
    }
}

/// Leave: so many instances of a pair are over. `of` is called while they aren't, where the colours are
/// needed after.
///
/// # Safety
/// So many such places of an `L`'s were [Entered](Colours::enter), or taken over, and aren't used again.
#[inline]
pub(crate) unsafe fn leave<C: Care, L: InSlot, S: AsRef<Colours<C, L>> + ?Sized>(
    Spot { home, stripe, colour }: Spot,
    many: u64,
    of: impl FnOnce(&L) -> Arc<S>,
) {
    let at = home.cast::<PwqSlot<L>>();
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
